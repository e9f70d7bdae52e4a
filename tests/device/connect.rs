//! Connections: made, refused, lost and ended, with private data.

use std::io::Write;
use std::net::SocketAddr;
use std::{hint, thread};

use log::{Level, LevelFilter};
use rpma::reconnect::{ToConn, connect};

use crate::common::prelude::*;
use crate::common::program::{Program, alone, executable, free_port};

#[test]
fn a_device_is_found_from_either_side() -> Result {
    let _test = device_test();
    for addr in [addr(), addr6()] {
        let local = Device::from_addr(&addr, Side::Local)?;
        let remote = Device::from_addr(&addr, Side::Remote)?;
        assert_eq!(local.get_name(), remote.get_name());
        assert!(!local.get_name().is_empty());
    }
    Ok(())
}

#[test]
fn connects_over_both_families() -> Result {
    let (_test, peer) = peer_test()?;
    for addr in [addr(), addr6()] {
        let cfg = ConnCfg::new();
        let end = (&peer, &cfg);
        let pair = Pair::between(&addr, end, end, (&[], &[]))?;
        assert_ne!(pair.client.get_qp_num(), pair.server.get_qp_num());
    }
    Ok(())
}

/// Promise: an IPv4 address in an IPv6 one, as a socket of both families shows its peers, is that
/// IPv4 address.
#[test]
fn a_mapped_address_connects() -> Result {
    let _test = device_test();
    let (plain, mapped) = (addr(), format!("::ffff:{}", addr()));
    for side in [Side::Local, Side::Remote] {
        let device = Device::from_addr(&mapped, side)?;
        let same = Device::from_addr(&plain, side)?;
        assert_eq!(device.get_name(), same.get_name());
    }
    let (peer, cfg) = (peer()?, ConnCfg::new());
    let end = (&peer, &cfg);
    let pair = Pair::between(&mapped, end, end, (&[], &[]))?;
    for conn in [&pair.client, &pair.server] {
        assert_eq!(conn.peer_addr()?.ip().to_string(), plain);
    }
    Ok(())
}

/// The names are in a hosts file that only these two programs see, in a mount namespace of their
/// own.
#[test]
#[cfg_attr(feature = "sim", ignore = "on a device only: programs of their own")]
fn a_host_name_leads_to_its_addresses() -> Result {
    let _test = device_test();
    let hosts = hosts_file(["four.test", "six.test"])?;
    let hosts = hosts.to_str().ok_or("text")?;
    let example = executable("01-connection");
    for name in ["four.test", "six.test"] {
        let port = free_port(&addr());
        let text = port.to_string();
        let start = |role| {
            let program = [&*example, role, name, &text];
            Program::start(&[&sees(hosts)[..], &program[..]].concat(), LIMIT)
        };
        let mut server = start("server");
        server.wait_listening(name, port);
        let client = start("client").finish().success(name);
        assert_eq!(client.stdout, ["Received a message: Hello client!"]);
        server.finish().success(name);
    }
    let unknown = Device::from_addr("none.test", Side::Remote).expect_err("nobody's name");
    assert_says(&unknown, &["none.test"]);
    Ok(())
}

/// The port of the server for [`connects_to_both`].
const PORT: &str = "RPMA_TEST_PORT";

/// Promise: a name with two addresses connects, whichever of them the server listens on, and an
/// error has the reason of each.
#[test]
#[cfg_attr(feature = "sim", ignore = "on a device only: a program of its own")]
fn a_name_with_two_addresses_connects() -> Result {
    let _test = device_test();
    let hosts = hosts_file(["both.test"; 2])?;
    let hosts = hosts.to_str().ok_or("text")?;
    let test = alone(module_path!(), "connects_to_both");
    let test: Vec<&str> = test.iter().map(String::as_str).collect();
    let run = |port: u16| {
        let port = format!("{PORT}={port}");
        let program = [&sees(hosts)[..], &["env", &port], &test[..]].concat();
        Program::start(&program, LIMIT)
    };
    let peer = peer()?;
    for at in [addr(), addr6()] {
        let ep = Ep::listen(&peer, &at, 0)?;
        let client = run(ep.get_port());
        let conn = accept(&ep, &ConnCfg::new())?.wait_established(LIMIT)?;
        assert_eq!(conn.wait_ended(LIMIT)?, ConnEvent::Closed);
        client.finish().success(&at);
    }
    let ended = run(free_port(&addr())).finish();
    let text = ended.stderr.join("\n");
    let both = ["none of the 2 addresses works", &addr(), &addr6()];
    assert_says(&text, &both);
    let reasons = text.matches("nobody listens on that port (reason 8)");
    assert_eq!(reasons.count(), 2, "{text}");
    Ok(())
}

/// The client of [`a_name_with_two_addresses_connects`], in a program of its own.
#[test]
fn connects_to_both() {
    let Ok(port) = std::env::var(PORT) else {
        return;
    };
    let port = port.parse().expect("a port");
    let (cfg, offer) = (ConnCfg::new(), Offer::default());
    let connected = connect("both.test", port, LIMIT, &cfg, &offer, ToConn);
    drop(connected.unwrap_or_else(|error| panic!("{error}")));
}

/// A hosts file with names for the addresses of both families.
fn hosts_file([four, six]: [&str; 2]) -> Result<tempfile::TempPath> {
    let mut file = tempfile::NamedTempFile::new()?;
    write!(file, "{} {four}\n{} {six}\n", addr(), addr6())?;
    Ok(file.into_temp_path())
}

/// A program that sees this hosts file.
fn sees(hosts: &str) -> [&str; 7] {
    // A guest without other hosts in its settings has no such file.
    const SEES: &str = r#"[ -e /etc/hosts ] || touch /etc/hosts && mount --bind "$1" /etc/hosts && shift && exec "$@""#;
    ["unshare", "--mount", "sh", "-c", SEES, "sh", hosts]
}

/// The C library's receivers see the fixed field, padded: so do ours, and no byte is cut.
#[test]
fn private_data_travels_both_ways() -> Result {
    let (_test, peer) = peer_test()?;
    let cfg = ConnCfg::new();
    let (question, answer) = ([7; 56], [9; 196]);
    for (question, answer) in [(&question[..], &answer[..]), (b"hi", b"ho"), (&[], &[])] {
        let ep = listen(&peer)?;
        let req = resolve(&peer, &ep, &cfg)?;
        assert!(req.get_private_data().is_empty());
        let client = req.connect(question)?;
        // Nothing before the answer.
        assert!(client.get_private_data().is_empty());

        let req = request(&ep, &cfg)?;
        let (data, padding) = req.get_private_data().split_at(question.len());
        let len = data.len() + padding.len();
        assert_eq!((data, len), (question, arrives(question.len(), 56)));
        assert!(padding.iter().all(|&byte| byte == 0));
        let server = req.connect(answer)?;

        established(&client, &server)?;
        let len = arrives(answer.len(), 196);
        assert_eq!(client.get_private_data().len(), len);
        assert_eq!(client.get_private_data()[..answer.len()], *answer);
        assert_eq!(server.get_private_data()[..question.len()], *question);
    }
    Ok(())
}

#[test]
fn private_data_that_is_too_long_is_refused_and_the_request_lives_on() -> Result {
    let (_test, peer) = peer_test()?;
    let cfg = ConnCfg::new();
    let ep = listen(&peer)?;
    let req = resolve(&peer, &ep, &cfg)?;
    let refused = req.connect(&[1; 57]).expect_err("56 bytes fit");
    assert!(refused.to_string().contains("56"), "{refused}");
    let client = refused.object.ok_or("the request")?.connect(&[1; 56])?;

    let req = request(&ep, &cfg)?;
    let refused = req.connect(&[2; 197]).expect_err("196 bytes fit");
    assert!(refused.to_string().contains("196"), "{refused}");
    let server = refused.object.ok_or("the request")?.connect(&[2; 196])?;
    established(&client, &server)
}

#[test]
fn a_dropped_request_is_a_reject() -> Result {
    let (_test, peer) = peer_test()?;
    let cfg = ConnCfg::new();
    let ep = listen(&peer)?;
    for delete in [false, true] {
        let client = ask(&peer, &ep, &cfg)?;
        let req = request(&ep, &cfg)?;
        if delete {
            req.delete()?
        } else {
            drop(req)
        }
        assert_eq!(rejected(&client)?, ConnEvent::BY_PROGRAM);
        // As in librpma, disconnecting is possible.
        client.disconnect()?;
    }
    Ok(())
}

#[test]
fn nobody_listens() -> Result {
    let (_test, peer) = peer_test()?;
    let port = Ep::listen(&peer, &addr(), 0)?.get_port();
    let req = ConnReq::new(&peer, &addr(), port, &ConnCfg::new())?;
    let client = req.connect(&[])?;
    assert_eq!(rejected(&client)?, ConnEvent::NO_LISTENER);
    Ok(())
}

/// An address in the device's network that no host has: the kernel asks for it until the limit of
/// the configuration has passed.
#[test]
fn an_unreachable_address_is_an_error_within_the_limit() -> Result {
    /// The kernel counts its limit in jiffies, which are at most so long.
    const JIFFY: Duration = Duration::from_millis(10);
    let (_test, peer) = peer_test()?;
    let addr = addr();
    let (network, _) = addr.rsplit_once('.').ok_or("an IPv4 address")?;
    let nowhere = format!("{network}.222");
    // Below and above the default.
    let [short, long] = [Duration::from_millis(300), Duration::from_secs(4)];
    for limit in [short, long] {
        let cfg = ConnCfg::new().set_timeout(limit).clone();
        let start = Instant::now();
        let error = ConnReq::new(&peer, &nowhere, 7204, &cfg).expect_err("nobody is there");
        let took = start.elapsed();
        assert_says(&error, &["rdma_resolve_addr", "cannot be reached"]);
        assert!(took + JIFFY >= limit, "{took:?} of {limit:?}");
        assert!(limit == long || took < long, "{took:?} of {limit:?}");
    }
    let error = Device::from_addr(&nowhere, Side::Remote).expect_err("nobody is there");
    assert_says(&error, &["rdma_resolve_addr"]);
    Ok(())
}

#[test]
fn a_client_that_vanishes_does_not_hurt_the_endpoint() -> Result {
    let (_test, peer) = peer_test()?;
    let cfg = ConnCfg::new();
    let ep = listen(&peer)?;
    for _ in 0..20 {
        drop(ask(&peer, &ep, &cfg)?);
    }
    // Those that are gone are skipped; one that has gone just now may still be taken, and
    // fails.
    let client = resolve(&peer, &ep, &cfg)?.connect(b"the one that stays")?;
    let server = loop {
        let req = request(&ep, &cfg)?;
        let stays = req.get_private_data().starts_with(b"the one that stays");
        match req.connect(&[]) {
            Ok(server) if stays => break server,
            Ok(_) => {}
            Err(error) => assert!(!stays, "{error}"),
        }
    };
    established(&client, &server)
}

#[test]
fn a_request_outlives_its_client_and_its_endpoint() -> Result {
    let (_test, peer) = peer_test()?;
    let cfg = ConnCfg::new();
    let ep = listen(&peer)?;
    let client = ask(&peer, &ep, &cfg)?;
    let req = request(&ep, &cfg)?;
    ep.shutdown()?;
    let server = req.connect(&[])?;
    established(&client, &server)?;
    drop(client);
    assert_eq!(event(&server)?, ConnEvent::Closed);

    let ep = listen(&peer)?;
    drop(ask(&peer, &ep, &cfg)?);
    if let Ok(req) = ep.next_conn_req_timeout(&cfg, Duration::from_secs(1)) {
        // The accept fails, or the connection ends with an event. If the client's last message
        // got lost, the kernel gives up after more than a minute.
        if let Ok(server) = req.connect(&[]) {
            let mut end = server.next_event_timeout(3 * LIMIT)?;
            if is_iwarp() && end == ConnEvent::Established {
                // The kernel of the client has the connection until it has the answer.
                end = event(&server)?;
            }
            assert_ne!(end, ConnEvent::Established, "the client is gone");
        }
    }
    Ok(())
}

#[test]
fn closing_is_seen_by_both_sides() -> Result {
    let (_test, peer) = peer_test()?;
    let pair = Pair::new(&peer)?;
    pair.client.disconnect()?;
    assert_eq!(event(&pair.server)?, ConnEvent::Closed);
    pair.server.disconnect()?;
    assert_eq!(event(&pair.client)?, ConnEvent::Closed);
    // Another event, not the same again.
    assert_eq!(event(&pair.client)?, ConnEvent::TimewaitExit);
    pair.client.disconnect()?;
    pair.client.delete()?;
    pair.server.delete()?;
    Ok(())
}

#[test]
fn dropping_a_connection_tells_the_peer_and_does_not_wait_for_it() -> Result {
    let (_test, peer) = peer_test()?;
    let Pair { client, server } = Pair::new(&peer)?;
    let start = Instant::now();
    drop(client);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(event(&server)?, ConnEvent::Closed);
    Ok(())
}

/// Promise: both sides have both addresses, and report the same ones.
#[test]
fn each_side_knows_who_the_other_one_is() -> Result {
    let (_test, peer) = peer_test()?;
    for addr in [addr(), addr6()] {
        let ep = Ep::listen(&peer, &addr, 0)?;
        let cfg = ConnCfg::new();
        let req = ConnReq::new(&peer, &addr, ep.get_port(), &cfg)?;
        let at = SocketAddr::new(addr.parse()?, ep.get_port());
        assert_eq!(req.peer_addr()?, at);
        let client = req.connect(&[])?;
        let req = request(&ep, &cfg)?;
        let from = req.peer_addr()?;
        let server = req.connect(&[])?;
        established(&client, &server)?;
        assert_eq!(client.peer_addr()?, at);
        assert_eq!(client.local_addr()?, from);
        assert_eq!(server.peer_addr()?, from);
        assert_eq!(server.local_addr()?, at);
        assert_eq!(from.ip(), at.ip(), "one host");
    }
    Ok(())
}

/// Promise: an offer of the longest data arrives in either direction, and one byte more is refused
/// before anything is sent.
#[test]
fn offers_travel_both_ways() -> Result {
    let (_test, peer) = peer_test()?;
    let memory = region(&peer, 64, FLUSHED)?;
    let platform = *PeerCfg::new().set_direct_write_to_pmem(true);
    let full = |room| -> Result<_> {
        let mut offer = Offer::new(&platform);
        let left = offer.add_region(&memory).left(room).ok_or("room")?;
        offer.set_data(&vec![7; left]);
        assert_eq!(offer.left(room), Some(0));
        Ok(offer)
    };
    let (from_client, from_server) = (full(Offer::CONNECT)?, full(Offer::ACCEPT)?);
    let data = [
        from_client.encode(Offer::CONNECT)?,
        from_server.encode(Offer::ACCEPT)?,
    ];
    let cfg = ConnCfg::new();
    let end = (&peer, &cfg);
    let pair = Pair::between(&addr(), end, end, (&data[0], &data[1]))?;
    for (conn, expected) in [(&pair.server, &from_client), (&pair.client, &from_server)] {
        let offer = conn.offer()?;
        assert_eq!(&offer, expected);
        assert_eq!(offer.regions(), [remote(&memory)]);
        assert!(offer.platform().get_direct_write_to_pmem());
    }
    Ok(())
}

/// The device goes away only after everything that was made on it.
#[test]
fn the_device_lives_as_long_as_what_was_made_on_it() -> Result {
    let _test = device_test();
    let device = Device::from_addr(&addr(), Side::Local)?;
    let peer = Peer::new(&device)?;
    drop(device);
    let pair = Pair::new(&peer)?;
    drop(peer);
    drop(pair.client);
    assert_eq!(event(&pair.server)?, ConnEvent::Closed);
    Ok(())
}

/// W-3: the C library leaves the client without an answer for more than a minute.
#[test]
fn a_request_whose_queues_cannot_be_made_is_refused() -> Result {
    let (_test, peer) = peer_test()?;
    let ep = listen(&peer)?;
    let client = ask(&peer, &ep, &ConnCfg::new())?;
    let greedy = ConnCfg::new().set_sq_size(u32::MAX).clone();
    assert_invalid(ep.next_conn_req_timeout(&greedy, LIMIT), &["send queue"]);
    // The request was not touched: with a better configuration it can be taken.
    let server = accept(&ep, &ConnCfg::new())?;
    established(&client, &server)?;
    for (cfg, what) in [
        (ConnCfg::new().set_sq_size(1 << 21), "send queue"),
        (ConnCfg::new().set_rq_size(1 << 21), "receive queue"),
        (ConnCfg::new().set_cq_size(1 << 21), "completion queue"),
    ] {
        let error = ConnReq::new(&peer, &addr(), ep.get_port(), cfg).expect_err("too many");
        assert_says(&error, &[what]);
    }
    Ok(())
}

/// W-18: in the C library another thread that waits for requests can take an accepted connection's
/// `Established`, because its id is moved to a channel of its own only after the accept.
#[test]
fn threads_that_wait_for_requests_take_nothing_else() -> Result {
    const CLIENTS: usize = 30;
    let (_test, peer) = peer_test()?;
    let cfg = ConnCfg::new();
    let ep = listen(&peer)?;
    thread::scope(|scope| {
        let acceptor = || {
            let mut accepted = 0;
            loop {
                let req = request(&ep, &cfg).expect("a request");
                if req.get_private_data().starts_with(b"!") {
                    return accepted;
                }
                let server = req.connect(&[]).expect("accepts");
                let event = event(&server).expect("an event in time");
                assert_eq!(event, ConnEvent::Established);
                accepted += 1;
            }
        };
        let acceptors = [scope.spawn(acceptor), scope.spawn(acceptor)];
        let connect = |private_data: &[u8]| -> Result<_> {
            let client = resolve(&peer, &ep, &cfg)?.connect(private_data)?;
            Ok((event(&client)?, client))
        };
        for _ in 0..CLIENTS {
            let (event, _client) = connect(&[])?;
            assert_eq!(event, ConnEvent::Established);
        }
        // Each of these sends one thread home, which rejects it.
        for _ in &acceptors {
            assert!(matches!(connect(b"!")?.0, ConnEvent::Rejected { .. }));
        }
        let accepted = acceptors.map(|thread| thread.join().expect("accepts"));
        assert_eq!(accepted.iter().sum::<usize>(), CLIENTS, "{accepted:?}");
        Ok(())
    })
}

/// The events of a connection go to the program's own logger, with their levels.
#[test]
fn the_life_of_a_connection_is_logged() -> Result {
    let _test = device_test();
    lines::keep(LevelFilter::Info);
    let Pair { client, server } = Pair::new(&peer()?)?;
    let names =
        [&client, &server].map(|conn| (conn.local_addr().expect("known"), conn.get_qp_num()));
    client.disconnect()?;
    assert_eq!(event(&server)?, ConnEvent::Closed);
    let records = lines::take_with_levels();
    let infos = |text: &str| {
        let of_it = |(level, found): &&(Level, String)| *level == Level::Info && found == text;
        records.iter().filter(of_it).count()
    };
    // Each line names its connection: the other side, and the queue pair.
    for (conn, text) in [
        (0, ConnEvent::Established.to_string()),
        (1, ConnEvent::Established.to_string()),
        (0, "disconnecting".to_owned()),
        (1, ConnEvent::Closed.to_string()),
    ] {
        let line = format!(
            "{} (queue pair {}): {text}",
            names[1 - conn].0,
            names[conn].1
        );
        assert_eq!(infos(&line), 1, "{line}: {records:?}");
    }
    let is_wrong = |(level, _): &(Level, String)| *level < Level::Info;
    assert!(!records.iter().any(is_wrong), "{records:?}");
    Ok(())
}

/// A client's private data is available before the server accepts the connection.
#[test]
fn the_server_sees_private_data_before_it_accepts() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let ep = listen(&peer)?;
    let req = ConnReq::new(&peer, &addr(), ep.get_port(), &ConnCfg::new())?;
    let _client = req.connect(b"hello")?;
    let req = ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT);
    let data = req?.get_private_data().to_vec();
    assert_eq!(&data[..5], b"hello");
    Ok(())
}

/// Promise of `NotConnected::NotYet`: an operation that comes too early is refused for that
/// reason, also just as the connection opens. Before, some reads were "not supported" then.
#[test]
fn a_read_just_as_the_connection_opens() -> Result {
    let _test = device_test();
    let (peer, cfg) = (peer()?, ConnCfg::new());
    let ep = listen(&peer)?;
    for _ in 0..100 {
        let client = ask(&peer, &ep, &cfg)?;
        let _server = accept(&ep, &cfg)?;
        let read = || client.read(MrSlice::EMPTY, RemoteSlice::EMPTY, ALWAYS, 0);
        let reader = || {
            loop {
                match read() {
                    Err(Error::NotConnected(NotConnected::NotYet)) => hint::spin_loop(),
                    posted => return posted,
                }
            }
        };
        let posted = thread::scope(|scope| -> Result<_> {
            let reader = scope.spawn(here(reader));
            assert_eq!(event(&client)?, ConnEvent::Established);
            Ok(reader.join().expect("no panic")?)
        })?;
        client.wait_for(posted, LIMIT, |_| {})?;
    }
    Ok(())
}

/// A connection is written to a log in a few lines, however long its queues are.
#[test]
fn a_connection_is_printed_in_a_few_lines() -> Result {
    let _test = device_test();
    let mut cfg = ConnCfg::new();
    cfg.set_sq_size(1000).set_rq_size(1000).set_rcq_size(10);
    let Pair { client, server } = Pair::with(&peer()?, &cfg, &cfg)?;
    drop(server);
    assert_eq!(event(&client)?, ConnEvent::Closed);
    let queues = [Some(client.get_cq()), client.get_rcq()];
    for text in [format!("{client:?}"), format!("{queues:?}")] {
        assert!(text.len() < 1000, "{text}");
    }
    assert!(format!("{client:?}").contains("ended: Some(Closed)"));
    Ok(())
}
