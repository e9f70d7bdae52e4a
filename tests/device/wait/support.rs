//! Functions of these tests: a wait and its clients.

use rpma::wait::{Happened, Member, Wait};

use crate::common::prelude::*;

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
    is_event(wait, member, &ConnEvent::Established)?;
    Ok((member, client))
}

/// A wait without members, and an endpoint for them.
pub(crate) fn empty_wait() -> Result<(Wait, Ep, Peer)> {
    let peer = peer()?;
    Ok((Wait::new()?, listen(&peer)?, peer))
}

/// A wait with a member, whose client is returned, and an endpoint of this peer.
pub(crate) fn wait_for_one(peer: &Peer) -> Result<(Wait, Ep, Member, Conn)> {
    let (mut wait, ep) = (Wait::new()?, listen(peer)?);
    let (member, client) = joined(&mut wait, &ep, peer, &ConnCfg::new())?;
    Ok((wait, ep, member, client))
}

/// The next thing is this event of the member.
pub(crate) fn is_event(wait: &mut Wait, member: Member, expected: &ConnEvent) -> Result {
    match next(wait, &mut [Wc::default()])? {
        Happened::Event(of, event) if of == member && event == *expected => Ok(()),
        other => panic!("{expected:?}: {other:?}"),
    }
}

/// The next thing is one completion of the member.
pub(crate) fn completes(wait: &mut Wait, member: Member) -> Result<Wc> {
    let mut wcs = [Wc::default(); 4];
    match next(wait, &mut wcs)? {
        Happened::Completions(of, 1) if of == member => Ok(wcs[0]),
        other => panic!("{other:?}"),
    }
}

/// Posts a write on the member's connection.
pub(crate) fn member_writes(wait: &Wait, member: Member, op_context: u64) -> Result {
    write_nothing(wait.conn(member).ok_or("a member")?, op_context)?;
    Ok(())
}

/// A write of the member completes: it goes on.
pub(crate) fn goes_on(wait: &mut Wait, member: Member) -> Result {
    member_writes(wait, member, 1)?;
    completes(wait, member)?.result()?;
    Ok(())
}

/// The member gets a message of its client, into a receive with this number.
pub(crate) fn gets_message(wait: &Wait, (member, client): (Member, &Conn), number: u64) -> Result {
    let conn = wait.conn(member).ok_or("a member")?;
    conn.recv(MrSlice::EMPTY, number)?;
    send(client)
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
    match write_nothing(conn, op_context) {
        Ok(_) => true,
        Err(Error::QueueFull { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Sends a message of 0 bytes, and waits until it has arrived.
pub(crate) fn send(client: &Conn) -> Result {
    send_empty(client, 1)?;
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
