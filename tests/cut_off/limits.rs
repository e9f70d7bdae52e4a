//! How long it takes, in virtual time.

use std::time::Duration;

use rpma::sim::{Fabric, Profile, now};
use rpma::{Conn, ConnCfg, ConnReq, Ep, MrSlice, Srq, SrqCfg};

use crate::common::{LIMIT, peer};
use crate::support::{flushed, receive};

/// The server's end of a connection, with these settings, and the client's.
fn connected(fabric: &Fabric, cfg: impl FnOnce(&rpma::Peer) -> ConnCfg) -> (Conn, Conn) {
    let hosts = ["client", "server"].map(|name| fabric.host(name));
    let addr = hosts[1].addr().to_string();
    let client_peer = {
        let _entered = hosts[0].enter();
        peer()
    };
    let _entered = hosts[1].enter();
    let server_peer = peer();
    let ep = Ep::listen(&server_peer, &addr, 0).expect("listens");
    let cfg = cfg(&server_peer);
    todo!()
}
