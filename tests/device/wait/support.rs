//! Functions of these tests: a wait and its clients.

use rpma::wait::{Happened, Member, Wait};

use crate::common::prelude::*;

pub(crate) const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;
pub(crate) const SHORT: Duration = Duration::from_millis(50);

/// Connects a client to an endpoint, and accepts it for the wait. The member's `Established` is
/// taken.
pub(crate) fn joined(
    wait: &mut Wait,
    ep: &Ep,
    peer: &Peer,
    cfg: &ConnCfg,
) -> Result<(Member, Conn)> {
    let place = wait.place();
    let cfg = place.cfg(peer, cfg)?;
    let (client, server) = pair(ep, peer, &cfg)?;
    let member = wait.add(place, server)?;
    assert!(is_established(wait, member)?);
    Ok((member, client))
}

fn is_established(wait: &mut Wait, member: Member) -> Result<bool> {
    let happened = wait.next(&mut [Wc::default()], LIMIT)?;
    Ok(matches!(happened, Some(Happened::Event(of, ConnEvent::Established)) if of == member))
}

/// A client that is established, and the server's side, which has not taken its event.
pub(crate) fn pair(ep: &Ep, peer: &Peer, cfg: &ConnCfg) -> Result<(Conn, Conn)> {
    let client = ask(peer, ep, &ConnCfg::new())?;
    let server = accept(ep, cfg)?;
    assert_eq!(event(&client)?, ConnEvent::Established);
    Ok((client, server))
}

/// Posts a write of 0 bytes, if there is room for one.
pub(crate) fn write(conn: &Conn, op_context: u64) -> bool {
    match conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, op_context) {
        Ok(_) => true,
        Err(Error::QueueFull { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Sends a message of 0 bytes, and waits until it has arrived.
pub(crate) fn send(client: &Conn) -> Result {
    client.send(MrSlice::EMPTY, ALWAYS, 1)?;
    completion(client)?;
    Ok(())
}

/// The next thing that happens, in time.
pub(crate) fn next(wait: &mut Wait, wcs: &mut [Wc]) -> Result<Happened> {
    Ok(wait.next(wcs, LIMIT)?.ok_or("something")?)
}

/// Sees that the wait returns `None` after a while.
pub(crate) fn nothing(wait: &mut Wait) -> Result {
    let happened = wait.next(&mut [Wc::default()], SHORT)?;
    assert!(happened.is_none(), "{happened:?}");
    Ok(())
}
