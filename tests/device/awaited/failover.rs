//! A bond that fails over under connections: an event that is no end, in a program that blocks and
//! in one that awaits.

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::{env, fs, io};

use rpma_async::{Conn, Listener, Reactor, Setup};

use crate::awaited::support::{self, CLOSE, Memories, accept_next, begun, both, run};
use crate::common;
use crate::common::prelude::*;
use crate::common::program::{Program, alone};

/// The interface of the bond, and the two below it. Each of these has a hardware address of its
/// own, which the bond takes over.
const BOND: &str = "rpmabond";
const BELOW: [&str; 2] = ["rpmabelow0", "rpmabelow1"];
const DEVICE: &str = "rxebond";
const ADDR: &str = "10.79.0.1";

/// In the environment of a program that works over the bond.
const WORKS: &str = "RPMA_TEST_BOND";

/// `RDMA_CM_EVENT_ADDR_CHANGE`.
const ADDR_CHANGE: u32 = 14;

/// Runs a program of the system, with these words.
fn call(words: &str) -> io::Result<()> {
    let mut words_of = words.split(' ');
    let mut command = Command::new(words_of.next().expect("a program"));
    let Output { status, stderr, .. } = command.args(words_of).output()?;
    let text = String::from_utf8_lossy(&stderr);
    let failed = || io::Error::other(format!("{words}: {status}: {text}"));
    status.success().then_some(()).ok_or_else(failed)
}

/// A device on a bond. The interfaces are gone when this is dropped. No program may have the device
/// open then, because the kernel waits for it: only a program of its own uses it.
struct Bond;

impl Bond {
    fn new() -> io::Result<Self> {
        call("modprobe bonding max_bonds=0")?;
        let this = Self;
        call(&format!(
            "ip link add {BOND} type bond mode active-backup fail_over_mac active"
        ))?;
        for below in BELOW {
            call(&format!("ip link add {below} type dummy"))?;
            call(&format!("ip link set {below} master {BOND}"))?;
        }
        activate(BELOW[0])?;
        call(&format!("ip link set {BOND} up"))?;
        call(&format!("ip addr add {ADDR}/24 dev {BOND}"))?;
        call(&format!("rdma link add {DEVICE} type rxe netdev {BOND}"))?;
        Ok(this)
    }
}

impl Drop for Bond {
    fn drop(&mut self) {
        // The first of them that is not there failed to be made.
        let _ = call(&format!("rdma link delete {DEVICE}"));
        for interface in [BOND, BELOW[0], BELOW[1]] {
            let _ = call(&format!("ip link delete {interface}"));
        }
    }
}

/// Makes the bond use this interface.
fn activate(below: &str) -> io::Result<()> {
    call(&format!(
        "ip link set {BOND} type bond active_slave {below}"
    ))
}

fn hardware_address() -> io::Result<String> {
    fs::read_to_string(format!("/sys/class/net/{BOND}/address"))
}

/// Promise: an address change (`RDMA_CM_EVENT_ADDR_CHANGE`) ends no connection, endpoint or listener.
#[test]
#[cfg_attr(feature = "sim", ignore = "on a device only: network interfaces")]
fn a_bond_that_fails_over_ends_nothing() -> Result {
    let _test = device_test();
    let _bond = Bond::new()?;
    let test = alone(module_path!(), "works_over_a_bond");
    let (addr, works) = (format!("RPMA_TEST_ADDR={ADDR}"), format!("{WORKS}=1"));
    let test: Vec<&str> = test.iter().map(String::as_str).collect();
    let program = [&["env", &addr, &works], &test[..]].concat();
    let ended = Program::start(&program, LIMIT).finish();
    ended.success("over a bond");
    Ok(())
}

/// The program of [`a_bond_that_fails_over_ends_nothing`], which has the bond's address for its
/// device.
///
/// soft-RoCE cannot send on a connection that is older than the failover: the kernel has given the
/// addresses of the bond other places in the device's table, and the old ones are no more. So the
/// old connections only live here, and the new ones work.
#[test]
fn works_over_a_bond() -> Result {
    if env::var_os(WORKS).is_none() {
        return Ok(());
    }
    let peer = peer()?;
    let ep = listen(&peer)?;
    let old = blocking(&peer, &ep)?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let (listener, addr) = support::listen(&reactor)?;
        let (client, server) = awaiting(&reactor, &listener, addr).await?;
        let mut ends = [client.closed(), server.closed()];

        let before = hardware_address()?;
        activate(BELOW[1])?;
        assert_ne!(hardware_address()?, before, "the bond has failed over");
        for conn in [&old.client, &old.server] {
            match event(conn)? {
                ConnEvent::Other { event, .. } => assert_eq!(event, ADDR_CHANGE),
                other => panic!("{other}"),
            }
        }

        let again = blocking(&peer, &ep)?;
        let (client, server) = awaiting(&reactor, &listener, addr).await?;
        let (closed, ended) = both(client.close(CLOSE), server.closed()).await;
        closed?;
        assert_eq!(ended?, ConnEvent::Closed);
        again.client.disconnect()?;
        assert_eq!(again.server.wait_ended(LIMIT)?, ConnEvent::Closed);
        for conn in [&old.client, &old.server] {
            assert_eq!(conn.ended(), None);
        }
        for end in &mut ends {
            let ended = begun(end).await;
            assert!(ended.is_none(), "a change of the address is no end");
        }
        Ok(())
    })
}

/// Two ends that block, and work.
fn blocking(peer: &Peer, ep: &Ep) -> Result<Pair> {
    let client = ask(peer, ep, &ConnCfg::new())?;
    let server = accept(ep, &ConnCfg::new())?;
    let client = client.wait_established(LIMIT)?;
    let server = server.wait_established(LIMIT)?;
    let memories = common::Memories::new(peer, peer, 64)?;
    memories.write(&client, 1)?;
    completion(&client)?.result()?;
    Ok(Pair { client, server })
}

/// Two ends that await, and work.
async fn awaiting(
    reactor: &Reactor,
    listener: &Listener,
    addr: SocketAddr,
) -> Result<(Conn, Conn)> {
    let setup = Setup::default();
    let accepting = accept_next(listener, &setup, &[]);
    let (client, server) = both(reactor.connect(addr, &setup, &[]), accepting).await;
    let (client, server) = (client?, server?);
    let memories = Memories::new(reactor.peer());
    client.write(memories.to(), memories.word())?.await?;
    client.flush(memories.to(), FlushType::Visibility)?.await?;
    Ok((client, server))
}
