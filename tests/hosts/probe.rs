//! A server that looks whether its client is still there.

use rpma::{MrSlice, RemoteSlice};

use crate::prelude::*;

/// For a client to come, and for each side to answer.
const CONNECT: Duration = Duration::from_secs(30);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);
/// No look waits longer.
const LIMIT: Duration = Duration::from_secs(50);

/// Serves one client, and prints why and how soon a look has failed.
pub(crate) fn probe(addr: &str, port: &str) -> Result<()> {
    let peer = Peer::at(addr)?;
    let ep = Ep::listen(&peer, addr, port.parse()?)?;
    println!("listening");
    let mut cfg = ConnCfg::new();
    // 67 ms, three times.
    cfg.set_ack_timeout(Some(14))?.set_retry_count(2)?;
    let req = ep.next_conn_req_timeout(&cfg, CONNECT)?;
    let conn = req.connect(&[])?.wait_established(CONNECT)?;
    look(&conn)?;
    println!("probing");
    loop {
        let started = Instant::now();
        match look(&conn) {
            Ok(()) => thread::sleep(PAUSE),
            Err(error @ Error::Operation(_)) => {
                println!("failed after {} ms: {error}", started.elapsed().as_millis());
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn look(conn: &Conn) -> rpma::Result<()> {
    let flags = Flags::COMPLETION_ALWAYS;
    let probe = conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, flags, 0)?;
    conn.wait_for(probe, LIMIT, |_| {}).map(drop)
}

/// A client that asks for as many retries as librpma does.
pub(crate) fn endless(addr: &str, port: &str, seconds: &str) -> Result<()> {
    let peer = Peer::toward(addr)?;
    let mut cfg = ConnCfg::new();
    cfg.set_retry_count(7)?;
    let req = ConnReq::new(&peer, addr, port.parse()?, &cfg)?;
    let _conn = req.connect(&[])?.wait_established(CONNECT)?;
    println!("connected");
    thread::sleep(Duration::from_secs(seconds.parse()?));
    Ok(())
}
