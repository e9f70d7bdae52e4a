//! The server's half of a commit by the server's method, with many clients that are silent.

use std::sync::Arc;

use rpma::Result;
use rpma::commit::{Limits, Method, Writer, WriterCfg};
use rpma::serve::{Directory, Served, Server, ServerCfg};

use crate::common::prelude::*;
use crate::rpma::many_files;
use crate::{LEN, ROUNDS, counted};

const LIMIT: Duration = Duration::from_secs(10);
/// The memory of each client.
const PART: usize = 1024;

/// Counts the server's work for a commit, with this many clients.
pub(crate) fn run(addr: &str, clients: usize) -> Result<()> {
    many_files();
    let slots = clients as u32;
    let start = Directory::len_for(slots).next_multiple_of(PART);
    let all = PmemMap::open(devdax(), start + clients * PART)?;
    let device = Device::from_addr(addr, Side::Local)?;
    let ep = Ep::listen(&Peer::new(&device)?, addr, 0)?;
    let mut cfg = ServerCfg::new();
    cfg.set_most_clients(clients)?;
    cfg.set_commits(Some(Limits::new(4, 4, 4096)?));
    // An earlier run may have left a directory.
    all.store_u64(0, 0)?;
    let directory = Directory::create(all.part(..start)?, slots)?;
    let mut server = Server::new(ep, directory, &cfg)?;
    let far = Peer::new(&device)?;
    let mut writers = Vec::new();
    for key in 1..=clients {
        let at = start + (key - 1) * PART;
        let memory = all.part(at..at + PART)?;
        writers.push(connect(&mut server, &far, addr, (key, memory))?);
    }
    while server.next(&mut [Wc::default()], Duration::ZERO)?.is_some() {}
    let source = Mr::reg(&far, vec![7; LEN], MrUsage::WRITE_SRC)?;
    let writer = &mut writers[clients / 2];
    let to = writer.offer().regions()[0];
    for round in 0..2 {
        for number in 0..ROUNDS as u64 {
            let tail = (to.slice(512..520)?, number.to_ne_bytes());
            let part = (to.slice(..LEN as u64)?, source.slice(..)?);
            let ticket = writer.commit(&[part], Some(tail))?;
            measured_serve(&mut server)?;
            writer.wait(ticket, LIMIT, |_| {})?;
        }
        // The first commits have made room for lists.
        let name = format!("serve_{clients}");
        counted(["ignored", &name][round], ROUNDS);
    }
    // Its connections end when the process does.
    std::process::exit(0);
}

/// A writer of this key, with this memory.
fn connect(
    server: &mut Server,
    far: &Peer,
    addr: &str,
    (key, memory): (usize, PmemMap),
) -> Result<Writer> {
    let device = Device::from_addr(addr, Side::Local)?;
    let peer = Peer::new(&device)?;
    let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
    let region = Arc::new(Mr::reg(&peer, memory, usage)?);
    let cfg = WriterCfg::new(Method::Server);
    let settings = cfg.conn_cfg(&ConnCfg::new())?;
    let req = ConnReq::new(far, addr, server.get_port(), &settings)?;
    let mut offer = Offer::default();
    offer.set_identity(Identity {
        key: key as u64,
        epoch: 1,
        instance: 1,
    });
    let connecting = Writer::connect(req, &cfg, &offer)?;
    loop {
        match server.next(&mut [Wc::default()], LIMIT)?.expect("in time") {
            Served::Asks(asked) => {
                server.admit(asked, &peer, &region, &[])?;
                return connecting.wait(LIMIT);
            }
            Served::Arrived(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// A call of the server's loop, in which the request is there, is served and answered, until there
/// is no more work.
#[inline(never)]
fn measured_serve(server: &mut Server) -> Result<()> {
    let served = server.next(&mut [Wc::default(); 4], Duration::ZERO)?;
    assert!(served.is_none(), "nothing for the program: {served:?}");
    Ok(())
}
