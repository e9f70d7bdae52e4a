//! Connections that are made or ended while the hosts do not reach each other.

use crate::links::prelude::*;
use std::ops::ControlFlow;

/// A connection that is asked for, accepted or confirmed during a partition is there after it.
#[test]
fn connecting_across_a_partition() -> Result {
    each(|world| {
        let ep = world.listen()?;
        let req = world.resolve(&ep, &patient())?;
        world.link.partition();
        let client = req.connect(b"it is me")?;
        let none = ep.next_conn_req_timeout(&patient(), Duration::ZERO);
        assert!(matches!(none, Err(Error::NoEvent)), "{none:?}");
        world.link.heal();
        let req = request(&ep, &patient())?;
        assert!(req.get_private_data().starts_with(b"it is me"));

        world.link.partition();
        let server = req.connect(b"welcome")?;
        nothing(&client);
        world.link.heal();

        world.link.partition();
        let client = client.wait_established(LIMIT)?;
        assert!(client.get_private_data().starts_with(b"welcome"));
        knock(&client, 1)?;
        nothing(&server);
        world.link.heal();
        let _server = server.wait_established(LIMIT)?;
        opcode_of(&completion(&client), 1)?;
        Ok(())
    })
}

/// A reject is sent once: a client that does not get it asks again, and is heard again. While only
/// the way of the reject is cut, the same request does not come again and again at one instant.
#[test]
fn a_reject_that_is_lost() -> Result {
    for cut in [Link::partition, Link::block] {
        each(|world| {
            let back = back(world);
            let ep = world.listen()?;
            let client = world.ask(&ep, &patient())?;
            let req = request(&ep, &patient())?;
            cut(&back);
            req.reject(b"not you")?;
            nothing(&client);
            let none = ep.next_conn_req_timeout(&patient(), Duration::ZERO);
            assert!(matches!(none, Err(Error::NoEvent)), "{none:?}");
            back.heal();
            let req = request(&ep, &patient())?;
            nothing(&client);
            req.reject(b"not you")?;
            let ConnEvent::Rejected { private_data, .. } = event(&client)? else {
                panic!("it is rejected");
            };
            assert!(private_data.starts_with(b"not you"));
            Ok(())
        })?;
    }
    Ok(())
}

/// Ends that go away during a partition leave the other end as a dead host would; no other call
/// fails.
#[test]
fn ends_that_go_away_unheard() -> Result {
    each(|world| {
        let ep = world.listen()?;
        // A client that gives up: its server accepts in vain.
        let client = world.ask(&ep, &patient())?;
        let req = request(&ep, &patient())?;
        world.link.partition();
        drop(client);
        let server = req.connect(&[])?;
        world.link.heal();
        nothing(&server);
        drop(server);

        // A server that does.
        let client = world.ask(&ep, &patient())?;
        let req = request(&ep, &patient())?;
        world.link.partition();
        drop(req.connect(&[])?);
        world.link.heal();
        drop(request(&ep, &patient())?);
        assert!(matches!(event(&client)?, ConnEvent::Rejected { .. }));

        // A listener that is gone.
        let req = world.resolve(&ep, &patient())?;
        world.link.partition();
        let client = req.connect(&[])?;
        ep.shutdown()?;
        nothing(&client);
        world.link.heal();
        assert!(matches!(event(&client)?, ConnEvent::Rejected { .. }));
        Ok(())
    })
}

/// A host that is not reached has no address, and one that is reached in time has.
#[test]
fn resolving_across_a_partition() -> Result {
    each(|world| {
        let ep = world.listen()?;
        world.link.partition();
        let mut cfg = ConnCfg::new();
        cfg.set_timeout(Duration::from_millis(20));
        let error = world.resolve(&ep, &cfg).expect_err("nobody answers");
        assert!(error.to_string().contains("did not answer") || error.raw_os_error().is_some());

        cfg.set_timeout(LIMIT);
        let _entered = world.hosts[0].enter();
        let to = (world.hosts[1].addr(), ep.get_port()).into();
        let resolving = ConnReq::resolve(&world.peers[0], to, &cfg)?;
        let ControlFlow::Continue(resolving) = resolving.advance()? else {
            panic!("it is not reached");
        };
        world.link.heal();
        assert!(matches!(resolving.advance()?, ControlFlow::Break(_)));
        Ok(())
    })
}

/// A disconnect does not wait for the peer, which learns of it when it is reached.
#[test]
fn disconnecting_across_a_partition() -> Result {
    each(|world| {
        let Pair { client, server } = world.connect(&patient(), &patient())?;
        world.link.partition();
        client.disconnect()?;
        nothing(&client);
        nothing(&server);
        world.link.heal();
        assert_eq!(event(&server)?, ConnEvent::Closed);
        server.disconnect()?;
        assert_eq!(event(&client)?, ConnEvent::Closed);

        // Both at the same time: one answers the other.
        let Pair { client, server } = world.connect(&patient(), &patient())?;
        world.link.partition();
        client.disconnect()?;
        server.disconnect()?;
        world.link.heal();
        assert_eq!(event(&server)?, ConnEvent::Closed);
        nothing(&client);
        server.delete()?;
        assert_eq!(event(&client)?, ConnEvent::Closed);
        Ok(())
    })
}

/// `Conn::close` keeps its limit, and reports that no operation was acknowledged. The peer does not
/// notice it until it sends, and then gets no answer.
#[test]
fn closing_across_a_partition() -> Result {
    each(|world| {
        let Pair { client, server } = world.connect(&patient(), &impatient())?;
        world.link.partition();
        let error = client.close(Duration::from_millis(10));
        let error = error.expect_err("nobody acknowledges").error;
        assert!(matches!(error, Error::TimedOut(_)), "{error:?}");
        world.link.heal();
        nothing(&server);
        drop(server);

        // The client's count is for both.
        let Pair { client, server } = world.connect(&impatient(), &impatient())?;
        world.link.partition();
        drop(client);
        world.link.heal();
        nothing(&server);
        knock(&server, 1)?;
        unanswered(&completion(&server), 1);
        Ok(())
    })
}

/// A client asks for retries without end, and its host is gone. The server notices that after as
/// many retries as its own settings allow.
#[test]
fn an_accepting_side_counts_its_own_retries() -> Result {
    /// Its first try, and the retries.
    const TRIES: u32 = 4;
    /// 137 s: this test's own time does not matter beside it.
    const EXPONENT: u8 = 25;
    each(|world| {
        let cfg = settings(TRIES as u8 - 1, EXPONENT);
        let (_client, server) = world.connect(&patient(), &cfg)?.ends();
        world.fabric.jump_over_waits();
        let _entered = world.hosts[1].enter();
        world.hosts[0].freeze();
        let start = now();
        let probe = knock(&server, 1);
        unanswered_wait(server.wait_for(probe?, 60 * LIMIT, |_| {}));
        let (took, one) = (now() - start, Duration::from_nanos(4_096 << EXPONENT));
        let tries = one * TRIES..one * (TRIES + 1);
        assert!(tries.contains(&took), "{took:?}, at {one:?} each");
        world.hosts[0].thaw();
        Ok(())
    })
}

/// No wait is endless: a request without an answer ends after the kernel's time.
#[test]
fn the_connection_manager_gives_up() -> Result {
    let fabric = Rig::of(&Profile::RXE_6_12).jumping().emptied();
    let world = World::on(&fabric);
    let _entered = world.hosts[0].enter();
    let ep = world.listen()?;
    let accepted = world.ask(&ep, &patient())?;
    let req = request(&ep, &patient())?;
    let (disconnected, other) = world.connect(&patient(), &patient())?.ends();
    let asking = world.resolve(&ep, &patient())?;
    world.link.partition();
    let start = now();
    let asking = asking.connect(&[])?;
    let accepting = req.connect(&[])?;
    disconnected.disconnect()?;
    let late = |conn: &Conn| conn.next_event_timeout(2 * LIMIT);
    let unreachable = ConnEvent::Unreachable { status: -110 };
    assert_eq!(late(&asking)?, unreachable);
    assert!(now() - start > Duration::from_secs(68));
    assert_eq!(late(&accepting)?, unreachable);
    assert_eq!(late(&disconnected)?, ConnEvent::Closed);
    assert_eq!(late(&disconnected)?, ConnEvent::TimewaitExit);
    world.link.heal();
    nothing(&other);
    // Its server has given up, so that its repetition is a new request; the others have not asked.
    let server = request(&ep, &patient())?.connect(&[])?;
    drop((accepted.wait_established(LIMIT)?, server));
    let none = ep.next_conn_req_timeout(&patient(), Duration::ZERO);
    assert!(matches!(none, Err(Error::NoEvent)), "{none:?}");
    Ok(())
}
