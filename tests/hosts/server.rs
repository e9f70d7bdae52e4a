//! The host that owns the memory.

use std::thread;

use rpma::pmem::{Ddio, DevicePath, Domain, Platform, PmemMap};
use rpma::{ConnCfg, ConnEvent, Device, Ep, Mr, MrUsage, Peer, PeerCfg, Side};

use crate::Result;
use crate::log::SIZE;

/// Serves until it is killed: one thread for each connection waits for its end, however long that takes.
pub(crate) fn serve(addr: &str, port: &str, path: &str) -> Result<()> {
    let peer = Peer::new(&Device::from_addr(addr, Side::Local)?)?;
    let usage = MrUsage::READ_SRC
        | MrUsage::WRITE_DST
        | MrUsage::FLUSH_TYPE_VISIBILITY
        | MrUsage::FLUSH_TYPE_PERSISTENT;
    let map = PmemMap::open(path, SIZE)?;
    let platform = Platform::detect(&map)?;
    println!("{platform}");
    // A power cut of guest 2 loses no line of a cache, and its firmware reports that.
    if platform.domain() != Domain::CpuCaches {
        return Err(format!("this guest must report eADR: {platform}").into());
    }
    let cfg = PeerCfg::for_platform(platform.domain(), DevicePath::of(&peer, Ddio::On));
    let mr = Mr::reg(&peer, map, usage)?;
    let offer = [&mr.get_descriptor()[..], &cfg.get_descriptor()].concat();
    let ep = Ep::listen(&peer, addr, port.parse()?)?;
    println!("listening");
    for number in 1.. {
        let conn = ep.next_conn_req(&ConnCfg::new())?.connect(&offer);
        match conn {
            Ok(conn) => {
                println!("client {number}");
                thread::spawn(move || {
                    loop {
                        match conn.next_event() {
                            Ok(ConnEvent::Established) => continue,
                            Ok(event) => println!("client {number}: {event}"),
                            Err(error) => println!("client {number}: {error}"),
                        }
                        break;
                    }
                });
            }
            Err(error) => println!("client {number}: {error}"),
        }
    }
    Ok(())
}
