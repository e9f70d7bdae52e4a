//! Making and ending a connection, and waiting for an operation.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rpma::wait::{Happened, Member, Wait};
use rpma::{Conn, ConnCfg, ConnEvent, ConnReq, Ep, Error, Next, Peer, Wc, WcOpcode};

/// For the other side to answer when a connection is made: a program that stands still does not,
/// and the kernel would wait with us.
pub(crate) const ANSWER: Duration = Duration::from_secs(30);

/// The connection has ended instead.
#[derive(Debug)]
pub(crate) struct Ended(pub(crate) ConnEvent);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, while waiting for a completion", self.0)
    }
}

impl std::error::Error for Ended {}

/// The first address that `addr` stands for. The calls of async programs look up no name.
pub(crate) fn socket_addr(addr: &str, port: u16) -> Result<SocketAddr> {
    let found = (addr, port).to_socket_addrs();
    let mut found = found.with_context(|| format!("the address \"{addr}\" cannot be resolved"))?;
    found
        .next()
        .with_context(|| format!("the name \"{addr}\" has no address"))
}

/// Connects to the server at `addr` and `port`.
pub(crate) fn connect(peer: &Peer, addr: &str, port: u16, private_data: &[u8]) -> Result<Conn> {
    let req = ConnReq::new(peer, addr, port, &ConnCfg::new())?;
    establish(req, private_data)
}

/// Waits for a client, however long that takes, and accepts its connection.
pub(crate) fn accept(ep: &Ep, private_data: &[u8]) -> Result<Conn> {
    let req = ep.next_conn_req(&ConnCfg::new())?;
    establish(req, private_data)
}

/// Connects, or accepts the client's request. The connection can be used when both sides have
/// answered.
pub(crate) fn establish(req: ConnReq, private_data: &[u8]) -> Result<Conn> {
    Ok(req.connect(private_data)?.wait_established(ANSWER)?)
}

/// Ends the connection from this side: notifies the peer, and waits until it has answered.
pub(crate) fn disconnect_and_wait(conn: &Conn) -> Result<()> {
    conn.disconnect()?;
    wait_until_closed(conn)
}

/// Waits until the peer ends the connection, and then ends it on this side. A peer that is killed
/// ends it as well.
pub(crate) fn wait_and_disconnect(conn: &Conn) -> Result<()> {
    wait_until_closed(conn)?;
    Ok(conn.disconnect()?)
}

/// Ends the connections of clients that have sent their last message.
///
/// A client disconnects when that message is acknowledged. If we did it at once, we could take the
/// acknowledgement away with the connection, and the client could not find out whether the message
/// was lost. librpma's clients of examples 08srq and 13 wait for us to disconnect: that is done for
/// those that are still there after a second, for all of them before the first answer is waited
/// for.
pub(crate) fn end_after_last_message(conns: &[Conn]) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(1);
    let mut staying = Vec::new();
    for conn in conns {
        let left = until.saturating_duration_since(Instant::now());
        match end(conn, left) {
            Ok(()) => conn.disconnect()?,
            Err(error) if matches!(error.downcast_ref(), Some(Error::TimedOut(_))) => {
                staying.push(conn)
            }
            Err(error) => return Err(error),
        }
    }
    staying.iter().try_for_each(|conn| conn.disconnect())?;
    staying.into_iter().try_for_each(wait_until_closed)
}

/// Waits until the peer ends the connection, or has answered to its end.
///
/// The first has no limit: a peer may take as long as it likes. (If its host vanishes no event
/// comes. To notice that, a program needs a limit, and messages that show that the peer lives.) On
/// the second the kernel gives up, after more than a minute.
pub(crate) fn wait_until_closed(conn: &Conn) -> Result<()> {
    end(conn, Duration::MAX)
}

/// Waits until the connection is closed. The event may have come already, in a wait for a
/// completion.
fn end(conn: &Conn, limit: Duration) -> Result<()> {
    match conn.wait_ended(limit)? {
        ConnEvent::Closed => Ok(()),
        event => bail!("{event}, while waiting for: {}", ConnEvent::Closed),
    }
}

/// Waits for the next completion of the connection, in either of its queues.
///
/// It may never come. A receive completes when the peer has sent something; if the peer ends or is
/// killed instead, the connection has an event, which the peer's kernel has sent. That is an error
/// here, [`Ended`], as a failed operation is. (A host that vanishes sends no event. Programs that
/// have to notice that set a limit to their waits. There is no limit here, because a peer may take
/// as long as it likes.)
pub(crate) fn next_completion(conn: &Conn) -> Result<Wc> {
    let mut wcs = [Wc::default()];
    loop {
        match (conn.next(&mut wcs, limit(conn)), conn.ended()) {
            (Ok(Next::Completions(_)), _) => {
                wcs[0].result()?;
                return Ok(wcs[0]);
            }
            (Ok(Next::Event(_)), _) => {}
            (Err(Error::TimedOut(_)), Some(event)) => bail!(Ended(event.clone())),
            (Err(error), _) => return Err(error.into()),
        }
    }
}

/// The same for a wait with this member as its only connection: also the completions of a shared
/// receive queue.
pub(crate) fn next_completion_of(wait: &mut Wait, client: Member) -> Result<Wc> {
    let mut wcs = [Wc::default()];
    loop {
        let conn = member(wait, client)?;
        let (limit, ended) = (limit(conn), conn.ended().cloned());
        match (wait.next(&mut wcs, limit)?, ended) {
            (Some(Happened::Completions(..)), _) => {
                wcs[0].result()?;
                return Ok(wcs[0]);
            }
            (Some(Happened::Failed(_, error)), _) => return Err(error.into()),
            (None, Some(event)) => bail!(Ended(event)),
            _ => {}
        }
    }
}

/// A connection that this program has added to the wait and not removed.
pub(crate) fn member(wait: &Wait, client: Member) -> Result<&Conn> {
    wait.conn(client).context("it is a member")
}

/// How long a completion may take: for ever, or until a moment after the end of the connection. A
/// message that the peer has sent just before it left can be slower than the news of its end.
pub(crate) fn limit(conn: &Conn) -> Duration {
    let left = |at: Instant| at.saturating_duration_since(Instant::now());
    conn.ended()
        .and(conn.quiet_from())
        .map_or(Duration::MAX, left)
}

/// Waits for the completion of the operation that was posted with `op_context`, and returns the
/// kind of the operation.
///
/// Posting an operation only puts it into a queue of the device. When the device is done with it,
/// it puts a completion into the completion queue and wakes us. After a failed operation no later
/// one is executed, so the failure of an earlier one is returned as well.
pub(crate) fn wait_for_completion(conn: &Conn, op_context: u64) -> Result<WcOpcode> {
    loop {
        let wc = next_completion(conn)?;
        if wc.wr_id() == op_context {
            return Ok(wc.result()?.opcode());
        }
    }
}
