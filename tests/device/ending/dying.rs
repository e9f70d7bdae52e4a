//! Clients that die by the thousand.

use std::process::{self, Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, thread};

use crate::common::prelude::*;
use crate::common::program::command_alone;
use crate::ending::support::SOON;

/// How a client dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// While it waits for an answer.
    Asking,
    /// After the server has rejected it.
    Rejected,
    /// With operations in flight, while the server drops the connection as well.
    Working,
    /// With operations in flight, after its first completion.
    Completing,
    /// With operations in flight, after it has disconnected.
    Disconnected,
}

impl Death {
    const ALL: [Self; KINDS] = [
        Self::Asking,
        Self::Rejected,
        Self::Working,
        Self::Completing,
        Self::Disconnected,
    ];
}

const KINDS: usize = 5;

/// Makes clients that die.
struct Dying<'a> {
    peer: &'a Peer,
    ep: &'a Ep,
    src: &'a Mr<Memory>,
    far: RemoteSlice,
}

impl Dying<'_> {
    fn request(&self) -> Result<ConnReq> {
        let req = resolve(self.peer, self.ep, &ConnCfg::new())?;
        req.recv(MrSlice::EMPTY, 1)?;
        Ok(req)
    }

    /// A client asks for a connection, and dies.
    fn die(&self, death: Death) -> Result {
        if death == Death::Asking {
            // One more, which never reaches the endpoint.
            drop(self.request()?);
        }
        let client = self.request()?.connect(&[death as u8])?;
        if death == Death::Asking {
            // The request may be anywhere.
            return Ok(());
        }
        match client.wait_established(LIMIT) {
            Ok(client) => self.die_connected(client, death)?,
            Err(Error::NotEstablished(_)) => assert_eq!(death, Death::Rejected),
            Err(error) => panic!("{error:?}"),
        }
        Ok(())
    }

    fn die_connected(&self, client: Conn, death: Death) -> Result {
        assert_ne!(death, Death::Rejected, "it was to be rejected");
        for wr_id in 0..5 {
            let near = self.src.slice(..)?;
            client.send(near, ALWAYS, wr_id)?;
            client.write(self.far, near, ALWAYS, wr_id)?;
        }
        match death {
            Death::Working => {}
            Death::Completing => drop(next_completion(client.get_cq())?),
            _ => client.disconnect()?,
        }
        Ok(())
    }
}

/// Takes clients as they come, until all threads that make them have `left`. Returns how many of
/// each kind have come.
fn take_the_dying(ep: &Ep, dst: &Mr<Memory>, left: &AtomicUsize) -> Result<[usize; KINDS]> {
    let mut accepted = Vec::new();
    let mut seen = [0; KINDS];
    while left.load(Ordering::Acquire) > 0 {
        accepted.retain(|(death, conn)| stays(*death, conn));
        let req = match ep.next_conn_req_timeout(&ConnCfg::new(), Duration::from_millis(5)) {
            Ok(req) => req,
            Err(Error::NoEvent) => continue,
            Err(error) => panic!("the endpoint fails: {error:?}"),
        };
        let death = Death::ALL[usize::from(req.get_private_data()[0])];
        seen[death as usize] += 1;
        if let Some(conn) = answer(req, death, dst)? {
            accepted.push((death, conn));
        }
    }
    Ok(seen)
}

/// Whether the server keeps a connection: some are dropped as soon as they are there, the others
/// when the client is gone.
fn stays(death: Death, conn: &Conn) -> bool {
    match conn.next_event_timeout(Duration::ZERO) {
        Ok(ConnEvent::Established) => death != Death::Working,
        Ok(_) => false,
        Err(Error::NoEvent) => death != Death::Asking,
        Err(error) => panic!("a connection fails: {error:?}"),
    }
}

/// Rejects a client, or accepts it. `None` if there is no connection.
fn answer(req: ConnReq, death: Death, dst: &Mr<Memory>) -> Result<Option<Conn>> {
    if death == Death::Rejected {
        req.reject(b"no")?;
        return Ok(None);
    }
    for wr_id in 0..5 {
        req.recv(dst.slice(..)?, wr_id)?;
    }
    let accepted = req.connect(&[]);
    if let Err(error) = &accepted {
        assert_eq!(death, Death::Asking, "a client that is gone: {error}");
    }
    Ok(accepted.ok())
}

/// A thousand clients connect and die in every way, before and after they are accepted, with
/// operations posted, rejected, waiting for an answer. The endpoint takes them as they come, and
/// works afterwards as before.
#[test]
fn a_thousand_clients_die() -> Result {
    const CLIENTS: usize = 1000;
    let (_test, peer) = peer_test()?;
    let ep = listen(&peer)?;
    let src = region(&peer, 64, MrUsage::SEND | MrUsage::WRITE_SRC)?;
    let dst = region(&peer, 64, MrUsage::RECV | MrUsage::WRITE_DST)?;
    let dying = Dying {
        peer: &peer,
        ep: &ep,
        src: &src,
        far: remote(&dst).slice(..)?,
    };
    let (next, left) = (AtomicUsize::new(0), AtomicUsize::new(2));
    let seen = thread::scope(|scope| -> Result<_> {
        for _ in 0..2 {
            scope.spawn(here(|| {
                let _counts = Leaving(&left);
                while let nth @ 0..CLIENTS = next.fetch_add(1, Ordering::Relaxed) {
                    dying.die(Death::ALL[nth % KINDS]).expect("asks");
                }
            }));
        }
        take_the_dying(&ep, &dst, &left)
    })?;
    // Those that die while they ask may have come or not.
    let waited = [CLIENTS / KINDS; KINDS - 1];
    assert_eq!(seen[1..], waited, "all that waited for an answer");
    still_works(&ep, &peer)?;
    Ok(())
}

/// An endpoint takes a client, past those that are gone, and messages arrive.
fn still_works(ep: &Ep, peer: &Peer) -> Result {
    const STAYS: &[u8] = b"the one that stays";
    let src = region(peer, 64, MrUsage::SEND)?;
    let dst = region(peer, 64, MrUsage::RECV)?;
    let client = resolve(peer, ep, &ConnCfg::new())?.connect(STAYS)?;
    let server = loop {
        let req = request(ep, &ConnCfg::new())?;
        let stays = req.get_private_data().starts_with(STAYS);
        match req.connect(&[]) {
            Ok(server) if stays => break server,
            Ok(_) => {}
            Err(error) => assert!(!stays, "{error}"),
        }
    };
    established(&client, &server)?;
    src.write_at(0, &pattern(64, 5))?;
    server.recv(dst.slice(..)?, 1)?;
    client.send(src.slice(..)?, ALWAYS, 2)?;
    done(&client, 2)?;
    done(&server, 1)?;
    assert_eq!(contents(&dst)?, pattern(64, 5));
    no_completion(&client)?;
    Ok(())
}

/// When a program is killed.
#[derive(Clone, Copy)]
enum Moment {
    /// Before its request is answered.
    Requested,
    /// After it is accepted, whether or not it knows.
    Accepted,
    /// While it sends and writes.
    Working,
}

impl Moment {
    const ALL: [Self; 3] = [Self::Requested, Self::Accepted, Self::Working];
}

/// Kills a program at its moment: the server has an ordinary end.
fn kill(child: Killed, req: ConnReq, target: &Mr<Memory>, moment: Moment) -> Result {
    match moment {
        Moment::Requested => {
            drop(child);
            // The accept fails, or the connection ends.
            if let Ok(conn) = req.connect(&[]) {
                assert_ne!(event(&conn)?, ConnEvent::Established, "it is dead");
            }
        }
        Moment::Accepted => {
            let conn = req.connect(&target.get_descriptor())?;
            drop(child);
            // Whether or not it came so far.
            if event(&conn)? == ConnEvent::Established {
                assert_eq!(event(&conn)?, ConnEvent::Closed);
            }
        }
        Moment::Working => {
            let conn = req.connect(&target.get_descriptor())?;
            assert_eq!(event(&conn)?, ConnEvent::Established);
            assert_eq!(done(&conn, 0)?, WcOpcode::RECV);
            drop(child);
            assert_eq!(event(&conn)?, ConnEvent::Closed);
            let rest = conn.close(LIMIT)?;
            assert_eq!(rest.len(), 4, "{rest:?}");
        }
    }
    Ok(())
}

/// Programs that are killed at any moment: with a request that the server has not read, when they
/// were just accepted, and in the middle of sending and writing. The kernel notifies the server,
/// for which each is an ordinary end, and frees their objects.
#[test]
#[cfg_attr(feature = "sim", ignore = "on a device only: programs of their own")]
fn clients_that_are_killed() -> Result {
    const CHILD: &str = "RPMA_TEST_CLIENT_TO_KILL";
    const CLIENTS: usize = 12;
    if let Ok(port) = env::var(CHILD) {
        let peer = peer()?;
        connect_and_work(&peer, port.parse()?)?;
    }
    let (_test, peer) = peer_test()?;
    let ep = listen(&peer)?;
    let dst = region(&peer, 64, MrUsage::RECV)?;
    let target = region(&peer, 1 << 20, MrUsage::WRITE_DST)?;
    let start = || -> Result<_> {
        let child = command_alone(module_path!(), "clients_that_are_killed")
            .env(CHILD, ep.get_port().to_string())
            .stdout(Stdio::null())
            .spawn();
        Ok(Killed(child?))
    };
    // One starts while another one is served.
    let mut children = vec![start()?];
    for nth in 0..CLIENTS {
        if nth + 1 < CLIENTS {
            children.push(start()?);
        }
        let req = request(&ep, &ConnCfg::new())?;
        let id = u32::from_ne_bytes(req.get_private_data()[..4].try_into().expect("4 bytes"));
        let of_it = children.iter().position(|child| child.0.id() == id);
        let child = children.swap_remove(of_it.ok_or("one of them")?);
        for wr_id in 0..5 {
            req.recv(dst.slice(..)?, wr_id)?;
        }
        kill(child, req, &target, Moment::ALL[nth % Moment::ALL.len()])?;
    }
    still_works(&ep, &peer)?;
    Ok(())
}

/// The work of a client that is to be killed: a message, then writes without an end.
fn connect_and_work(peer: &Peer, port: u16) -> Result {
    let req = ConnReq::new(peer, &addr(), port, ConnCfg::new().set_sq_size(100))?;
    let client = req.connect(&process::id().to_ne_bytes())?;
    let client = client.wait_established(LIMIT)?;
    let src = region(peer, 1 << 20, MrUsage::SEND | MrUsage::WRITE_SRC)?;
    let far = MrRemote::from_descriptor(client.get_private_data())?;
    client.send(src.slice(..8)?, ALWAYS, 0)?;
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        let (to, from) = (far.slice(..)?, src.slice(..)?);
        match client.write(to, from, ALWAYS, 1) {
            Ok(_) => {}
            Err(Error::QueueFull { .. }) => _ = next_completion(client.get_cq())?.result()?,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("not killed in time");
}

/// A program that is killed at the latest when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // The result is ignored: the process must end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Counts down when a thread ends, also by a panic.
struct Leaving<'a>(&'a AtomicUsize);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// A connection with a client that waits for an operation which the server's device does not
/// answer. The client's device sends it again for minutes.
fn unheard() -> Result<(Pair, Posted)> {
    // 8.6 s, seven times.
    let cfg = ConnCfg::new().set_ack_timeout(Some(21))?.clone();
    let pair = Pair::with(&peer()?, &cfg, &ConnCfg::new())?;
    let sent = post_unanswered(&pair.client, 1)?;
    Ok((pair, sent))
}

/// Promise: a wait for an operation ends soon after the connection has, and not with the device's
/// retries. The event with which it ended is not lost: it comes next.
#[test]
fn a_wait_for_an_operation_sees_the_end() -> Result {
    let _test = device_test();
    let (Pair { client, server }, sent) = unheard()?;
    assert_timed_out(client.wait_for(sent, Duration::ZERO, |_| {}));
    drop(server);
    for again in [false, true] {
        match client.wait_for(sent, LIMIT, |_| {}) {
            Err(Error::Ended(end)) => assert_eq!(*end, ConnEvent::Closed),
            // There the end flushes it, so that the first wait has its completion.
            Err(Error::PolledElsewhere) if again && is_iwarp() => {}
            waited => panic!("{waited:?}"),
        }
    }
    assert_eq!(client.ended(), Some(&ConnEvent::Closed));
    let next = client.next(&mut [Wc::default()], Duration::ZERO)?;
    assert_eq!(next, Next::Event(ConnEvent::Closed));
    let none = client.next_event_timeout(Duration::ZERO);
    assert!(matches!(none, Err(Error::NoEvent)), "{none:?}");
    Ok(())
}

/// A client's settings: retries without end on soft-RoCE, as librpma asks for them.
fn endless() -> Result<ConnCfg> {
    let cfg = ConnCfg::new().set_retry_count(7)?.clone();
    Ok(cfg)
}

/// Promise: a server retries as often as its own settings allow, with any settings of its client.
/// So an operation towards a client that is gone fails. (The failing test waited for ever on
/// soft-RoCE.)
#[test]
fn a_client_cannot_make_a_server_retry_without_end() -> Result {
    let (_test, peer) = peer_test()?;
    let srq = Srq::new(&peer, &SrqCfg::new())?;
    for srq in [None, Some(&srq)] {
        let mut cfg = ConnCfg::new();
        cfg.set_srq(srq);
        cfg.set_retry_count(1)?;
        cfg.set_ack_timeout(Some(14))?;
        let Pair { client, server } = Pair::with(&peer, &endless()?, &cfg)?;
        write_nothing(&server, 1)?;
        done(&server, 1)?;
        drop(client);
        write_nothing(&server, 2)?;
        let failure = fails(&server)?;
        assert_eq!(failure.status, WcStatus::RETRY_EXC_ERR, "{failure}");
        assert_eq!(event(&server)?, ConnEvent::Closed);
    }
    Ok(())
}

/// Promise: an accepted connection ends with its queue pair, whichever side ends it and how: its
/// receives come back.
#[test]
fn an_accepted_queue_pair_ends_with_its_connection() -> Result {
    let (_test, peer) = peer_test()?;
    for rejected in [false, true] {
        let ep = listen(&peer)?;
        let client = ask(&peer, &ep, &endless()?)?;
        let server = accept(&ep, &ConnCfg::new())?;
        server.recv(MrSlice::EMPTY, 1)?;
        if rejected {
            // It has not taken the answer: that is a reject.
            drop(client);
            let end = event(&server)?;
            if is_iwarp() {
                // Its kernel has taken the answer.
                assert_eq!(end, ConnEvent::Established);
                assert_eq!(event(&server)?, ConnEvent::Closed);
            } else {
                assert!(matches!(end, ConnEvent::Rejected { .. }), "{end:?}");
            }
        } else {
            let _client = client.wait_established(LIMIT)?;
            assert_eq!(event(&server)?, ConnEvent::Established);
            server.disconnect()?;
        }
        let flushed = fails(&server)?;
        assert_eq!(flushed.status, WcStatus::WR_FLUSH_ERR, "{flushed}");
    }
    Ok(())
}

/// Promise: the second in which a completion may still come begins with the end, and not with each
/// wait. Waits with short limits, one after the other, return the end as well.
#[test]
fn short_waits_for_an_operation_see_the_end() -> Result {
    let _test = device_test();
    let (Pair { client, server }, sent) = unheard()?;
    drop(server);
    let begin = Instant::now();
    let ended = loop {
        match client.wait_for(sent, SOON / 10, |_| {}) {
            Err(Error::TimedOut(_)) => assert!(begin.elapsed() < LIMIT, "no end"),
            ended => break ended,
        }
    };
    assert!(matches!(ended, Err(Error::Ended(_))), "{ended:?}");
    Ok(())
}

/// Promise: a completion that is there is found, also long after the end, and also by waits
/// without time: each takes one completion more.
#[test]
fn a_wait_after_the_end_finds_what_is_in_the_queue() -> Result {
    let (_test, peer) = peer_test()?;
    let Pair { client, server } = Pair::new(&peer)?;
    let posted = (0..9).map(|n| write_nothing(&client, n));
    let posted: Vec<_> = posted.collect::<Result<_, _>>()?;
    // All are complete before the end.
    thread::sleep(SOON);
    drop(server);
    assert_eq!(event(&client)?, ConnEvent::Closed);
    thread::sleep(Duration::from_millis(1200));
    let mut others = 0;
    let found = loop {
        match client.wait_for(posted[8], Duration::ZERO, |_| others += 1) {
            Err(Error::TimedOut(_)) => assert!(others < 9, "it is not found"),
            found => break found,
        }
    };
    found?.result()?;
    assert_eq!(others, 8);
    Ok(())
}

/// Promise: a wait for an operation takes no event from a thread that sleeps for events, which
/// would sleep on.
#[test]
fn a_wait_for_an_operation_leaves_events_to_their_waiters() -> Result {
    let _test = device_test();
    let (Pair { client, server }, sent) = unheard()?;
    thread::scope(|scope| {
        let event = scope.spawn(|| client.next_event());
        let waited = scope.spawn(|| client.wait_for(sent, LIMIT, |_| {}));
        thread::sleep(SOON);
        drop(server);
        let event = event.join().expect("no panic");
        assert_eq!(event?, ConnEvent::Closed);
        let waited = waited.join().expect("no panic");
        assert!(matches!(waited, Err(Error::Ended(_))), "{waited:?}");
        Ok(())
    })
}
