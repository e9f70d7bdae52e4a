//! How long cutting off takes, in virtual time. It never waits for the peer.

use std::time::Duration;

use rpma::sim::{Errno, Fabric, Host, Link, Profile, now};
use rpma::{Conn, ConnCfg, ConnReq, Ep, MrSlice, Peer, Srq, SrqCfg, Wc};

use crate::common::{LIMIT, peer};
use crate::support::{ALWAYS, flushed, numbers, receive, write_nothing};

const MILLISECOND: Duration = Duration::from_millis(1);

/// A connection of two hosts.
struct Hosts {
    fabric: Fabric,
    link: Link,
    server_host: Host,
    client: Conn,
    server: Conn,
    srq: Option<Srq>,
}

impl Hosts {
    /// `shares`: the server has a shared receive queue.
    fn new(profile: &Profile, shares: bool) -> Self {
        let fabric = Fabric::seeded(profile.clone(), 1);
        let hosts = ["client", "server"].map(|name| fabric.host(name));
        let peers = hosts.each_ref().map(|host| {
            let _entered = host.enter();
            peer()
        });
        let [client_peer, server_peer] = peers;
        let _entered = hosts[1].enter();
        let addr = hosts[1].addr().to_string();
        let ep = Ep::listen(&server_peer, &addr, 0).expect("listens");
        let srq = shares.then(|| queue(&server_peer));
        let mut cfg = ConnCfg::new();
        cfg.set_srq(srq.as_ref());
        let asking = {
            let _entered = hosts[0].enter();
            let cfg = ConnCfg::new();
            let req = ConnReq::new(&client_peer, &addr, ep.get_port(), &cfg).expect("resolves");
            req.connect(&[]).expect("asks")
        };
        let req = ep.next_conn_req_timeout(&cfg, LIMIT).expect("a request");
        let server = req.connect(&[]).expect("accepts");
        let client = asking.wait_established(LIMIT).expect("accepted");
        let server = server.wait_established(LIMIT).expect("established");
        let link = fabric.between(&hosts[0], &hosts[1]);
        let [_, server_host] = hosts;
        Self {
            fabric,
            link,
            server_host,
            client,
            server,
            srq,
        }
    }
}

/// A shared receive queue with receives that complete in the queues of its connections.
fn queue(peer: &Peer) -> Srq {
    let mut cfg = SrqCfg::new();
    cfg.set_rcq_size(0);
    let srq = Srq::new(peer, &cfg).expect("a queue");
    for number in 0..3 {
        srq.recv(MrSlice::EMPTY, number).expect("posted");
    }
    srq
}

/// Cuts a connection off, and returns the time that it takes.
fn timed(server: Conn, host: &Host) -> (Vec<Wc>, Duration) {
    let _entered = host.enter();
    let begin = now();
    let rest = server.cut_off().expect("cut off");
    (rest, now() - begin)
}

/// Promise: it takes a millisecond, whether the peer answers or not. With own operations in flight,
/// too, which are returned as flushed.
#[test]
fn it_waits_for_no_peer() {
    for profile in Profile::ALL {
        for is_silent in [false, true] {
            let hosts = Hosts::new(&profile, false);
            receive(&hosts.server, 0..2);
            if is_silent {
                hosts.link.partition();
                let _entered = hosts.server_host.enter();
                write_nothing(&hosts.server, 7);
            }
            let (rest, took) = timed(hosts.server, &hosts.server_host);
            let sent = if is_silent { vec![7] } else { vec![] };
            assert_eq!(numbers(&rest), [sent, vec![0, 1]]);
            assert_eq!(flushed(&rest), rest.len(), "{rest:?}");
            assert!(took < MILLISECOND, "{}: {took:?}", profile.name());
            hosts.link.heal();
        }
    }
}

/// Promise: a device that does not flush is waited for a second at most. Its operations are
/// unknown, and the peer is still cut off.
#[test]
fn a_device_that_does_not_flush() {
    for profile in Profile::ALL {
        let hosts = Hosts::new(&profile, false);
        receive(&hosts.server, 0..2);
        hosts.server_host.freeze();
        let (rest, took) = timed(hosts.server, &hosts.server_host);
        assert!(rest.is_empty(), "{rest:?}");
        let second = Duration::from_secs(1);
        let limit = second..second + 2 * MILLISECOND;
        assert!(limit.contains(&took), "{}: {took:?}", profile.name());
        hosts.server_host.thaw();
    }
}

/// Promise: it does not wait for a queue pair that did not enter the error state, which does not
/// flush.
#[test]
fn a_queue_pair_that_does_not_enter_the_error_state() {
    for profile in Profile::ALL {
        let hosts = Hosts::new(&profile, false);
        receive(&hosts.server, 0..2);
        let calls = ["ibv_modify_qp", "rdma_disconnect"];
        let failing = calls.map(|call| hosts.fabric.fail(call).next(Errno::IO));
        let (rest, took) = timed(hosts.server, &hosts.server_host);
        assert!(!failing.iter().any(|failing| failing.is_pending()));
        assert!(rest.is_empty(), "{rest:?}");
        assert!(took < MILLISECOND, "{}: {took:?}", profile.name());
    }
}

/// Promise: with a shared receive queue it waits for the receive of an incomplete message, for at
/// most 0.1 s, and returns it if the device does.
#[test]
fn an_incomplete_message() {
    for profile in Profile::ALL {
        let hosts = Hosts::new(&profile, true);
        hosts.server_host.lose_receive(1);
        let sent = hosts.client.send(MrSlice::EMPTY, ALWAYS, 1);
        let sent = sent.expect("posted");
        let failed = hosts.client.wait_for(sent, LIMIT, |_| {});
        failed.expect_err("it is never complete");
        let (rest, took) = timed(hosts.server, &hosts.server_host);
        let returns = profile.name() != Profile::RXE_6_12.name();
        let received = if returns { vec![0] } else { vec![] };
        assert_eq!(numbers(&rest), [vec![], received], "{}", profile.name());
        assert!(took < Duration::from_millis(102), "{took:?}");
        assert!(hosts.srq.expect("it has one").kept() <= 1);
    }
}
