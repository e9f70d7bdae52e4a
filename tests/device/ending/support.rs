//! The shared parts of these tests: operations of no bytes, and connections without an answer.

use crate::common::prelude::*;

/// Long enough that only a hang is longer, short enough that the kernel's own limits are longer.
pub(crate) const SOON: Duration = Duration::from_millis(300);

/// A client without an answer yet, and the request at the endpoint that it asks.
pub(crate) fn asked(peer: &Peer) -> Result<(Conn, Ep, ConnReq)> {
    let (client, ep) = unanswered(peer)?;
    let req = request(&ep, &ConnCfg::new())?;
    Ok((client, ep, req))
}

/// An outgoing connection without an answer yet, and the endpoint that it asks.
pub(crate) fn unanswered(peer: &Peer) -> Result<(Conn, Ep)> {
    let ep = listen(peer)?;
    Ok((ask(peer, &ep, &ConnCfg::new())?, ep))
}
