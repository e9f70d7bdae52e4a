//! iWARP: an operation completes without the peer, and only a read is answered. The device is
//! soft-iWARP of the simulator.

use std::os::fd::AsFd;

use rpma::sim::{Errno, Profile, now};
use rpma_async::{Pool, Reactor, Setup, block_on};

use crate::common::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn world() -> World {
    Rig::of(&Profile::SIW_6_12).jumping().world()
}

fn connected(world: &World) -> Result<Pair> {
    world.connect(&ConnCfg::new(), &ConnCfg::new())
}

/// Promise: `close` is `Ok` only if the peer's device has every operation. A message to a host that
/// stands still completes, and may be lost.
#[test]
fn a_close_waits_for_an_answer() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let Pair { client, server } = connected(&both)?;
    receive_nothing(&server, 1..2)?;
    let sent = client.post_send(MrSlice::EMPTY)?;
    assert_eq!(client.close(LIMIT)?.len(), 1, "{sent:?}");
    assert_eq!(completion(&server)?.wr_id(), 1);

    let Pair { client, server } = connected(&both)?;
    receive_nothing(&server, 1..2)?;
    both.hosts[1].freeze();
    let sent = client.post_send(MrSlice::EMPTY)?;
    client.wait_for(sent, SECOND, |_| {})?;
    let began = now();
    let lost = client.close(2 * SECOND).expect_err("nobody answers");
    assert_timed_out(Err::<(), _>(lost.error));
    assert!(now() < began + 3 * SECOND);
    both.hosts[1].thaw();
    drop(server);
    Ok(())
}

/// Promise: a keep-alive notices a host that stands still, also while writes to it complete. The
/// connection ends once.
#[test]
fn a_silent_peer_is_noticed_while_writes_complete() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let mut cfg = ConnCfg::new();
    cfg.set_keep_alive(Some(16 * SECOND))?;
    let Pair { client, server } = both.connect(&cfg, &ConnCfg::new())?;
    let memory = both.memories(64)?;
    let mut wcs = [Wc::default(); 4];
    // For a minute, nothing ends.
    let began = now();
    while now() < began + 60 * SECOND {
        memory.write(&client, 1)?;
        assert_eq!(client.next(&mut wcs, LIMIT)?, Next::Completions(1));
        assert_timed_out(client.next(&mut wcs, SECOND));
    }
    both.hosts[1].freeze();
    let began = now();
    let silent = loop {
        assert!(now() < began + 60 * SECOND, "it is not noticed");
        if let Err(error) = memory.write(&client, 2) {
            break error;
        }
        // Until nothing comes: a wait that finds a completion at once looks for nothing else.
        while let Ok(Next::Completions(_)) = client.next(&mut wcs, SECOND) {}
    };
    assert!(matches!(silent, Error::NotConnected(NotConnected::Silent)));
    assert!(now() < began + 16 * SECOND, "{:?}", now() - began);
    // The stream is closed as well, which is no second end.
    assert_eq!(client.wait_ended(LIMIT)?, ConnEvent::Lost { status: -110 });
    both.hosts[1].thaw();
    assert_eq!(server.wait_ended(LIMIT)?, ConnEvent::Closed);
    let more = client.next_event_timeout(SECOND);
    assert!(matches!(more, Err(Error::NoEvent)), "{more:?}");
    drop(server);
    Ok(())
}

/// Promise: immediate data is refused before anything is posted, and the connection lives.
#[test]
fn immediate_data_is_refused() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let Pair { client, server } = connected(&both)?;
    let memory = both.memories(64)?;
    let (to, from) = (memory.to()?, memory.source.slice(..)?);
    let mut batch = client.batch::<2>();
    for refused in [
        client.write_with_imm(to, from, ALWAYS, 7, 1).map(drop),
        client.send_with_imm(from, ALWAYS, 7, 1).map(drop),
        batch.write_with_imm(to, from, ALWAYS, 7, 1),
        batch.send_with_imm(from, ALWAYS, 7, 1),
    ] {
        assert_says(&not_supported(refused), &["immediate data", "iWARP"]);
    }
    client.post_write(to, from)?;
    let flushed = client.post_flush(to, FlushType::Visibility)?;
    client.wait_for(flushed, LIMIT, |_| {})?;
    assert_eq!(contents(&memory.target)?, contents(&memory.source)?);
    drop(server);
    Ok(())
}

/// Promise: a receive of 0 bytes takes a message, in each way of posting it.
#[test]
fn receives_without_a_buffer() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let Pair { client, server } = connected(&both)?;
    server.recv(MrSlice::EMPTY, 1)?;
    server.recv_many(&[(MrSlice::EMPTY, 2), (MrSlice::EMPTY, 3)])?;
    for number in 1..=3 {
        let sent = client.post_send(MrSlice::EMPTY)?;
        client.wait_for(sent, LIMIT, |_| {})?;
        assert_eq!(completion(&server)?.wr_id(), number);
    }

    let srq = Srq::new(&both.peers[1], SrqCfg::new().set_rcq_size(0))?;
    let shared = ConnCfg::new().set_srq(Some(&srq)).clone();
    let Pair { client, server } = both.connect(&ConnCfg::new(), &shared)?;
    srq.recv(MrSlice::EMPTY, 1)?;
    srq.recv_many(&[(MrSlice::EMPTY, 2), (MrSlice::EMPTY, 3)])?;
    for number in 1..=3 {
        let sent = client.post_send(MrSlice::EMPTY)?;
        client.wait_for(sent, LIMIT, |_| {})?;
        assert_eq!(completion(&server)?.wr_id(), number);
    }
    Ok(())
}

/// Promise: a cut-off does not wait for completions that never come, and has those that do.
#[test]
fn a_cut_off_is_prompt() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let Pair { client, server } = connected(&both)?;
    receive_nothing(&server, 1..4)?;
    let began = now();
    let flushed = server.cut_off()?;
    assert!(now() < began + Duration::from_millis(100));
    assert_eq!(numbers(&flushed), [1, 2, 3]);
    drop(client);

    // The peer has ended it, and a receive was posted before this side knew.
    let Pair { client, server } = connected(&both)?;
    client.disconnect()?;
    rpma::sim::sleep(SECOND);
    receive_nothing(&server, 1..2)?;
    let began = now();
    server.cut_off()?;
    assert!(now() < began + Duration::from_millis(100));
    Ok(())
}

/// Promise: operations complete in the order of their posts, also behind a read that is answered
/// late: a completion shows that everything before it is done.
#[test]
fn completions_come_in_order_behind_a_read() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let Pair { client, server } = connected(&both)?;
    let memory = both.memories(64)?;
    both.link.delay(SECOND);
    let flushed = client.post_flush(memory.to()?, FlushType::Visibility)?;
    let written = memory.write(&client, 7)?;
    let mut others = Vec::new();
    client.wait_for(flushed, LIMIT, |wc| others.push(wc))?;
    assert!(others.is_empty(), "{others:?}");
    client.wait_for(written, LIMIT, |wc| others.push(wc))?;
    assert!(others.is_empty(), "{others:?}");
    drop(server);
    Ok(())
}

/// Requests whose server's host does not answer from now on.
fn unanswered<const N: usize>(both: &World) -> Result<(Ep, [ConnReq; N])> {
    let server = both.listen()?;
    let reqs = [(); N].map(|()| both.resolve(&server, &ConnCfg::new()).expect("a request"));
    both.link.partition();
    Ok((server, reqs))
}

/// Promise: to ask for a connection does not wait, and a limit holds, although the kernel's call
/// waits for two minutes. After that, nothing is left of the connection.
#[test]
fn a_host_that_does_not_answer_keeps_nobody() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let (_server, [first, second]) = unanswered(&both)?;
    let began = now();
    let conn = first.connect(&[])?;
    let busy = conn.disconnect().expect_err("the kernel still asks");
    assert_says(&busy, &["rdma_disconnect", "drop it"]);
    assert_timed_out(conn.wait_established(SECOND));
    second.connect(&[])?.cut_off()?;
    assert!(now() < began + 2 * SECOND, "{:?}", now() - began);
    assert_eq!(both.hosts[0].objects()["qp"], 2);
    rpma::sim::sleep(140 * SECOND);
    assert_eq!(both.hosts[0].objects().get("qp"), None);
    Ok(())
}

/// Promise: the kernel's answers to the call that asks are events, as they are for an adapter, and
/// each comes once, in each kind of wait.
#[test]
fn a_call_that_fails_is_an_event() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let refused = |reason| match reason {
        Ok(Next::Event(event @ ConnEvent::Rejected { .. })) => event,
        other => panic!("{other:?}"),
    };
    for way in 0..3 {
        let server = both.listen()?;
        let req = both.resolve(&server, &ConnCfg::new())?;
        drop(server);
        let conn = req.connect(&[])?;
        let event = match way {
            0 => conn.next_event_timeout(LIMIT)?,
            1 => refused(conn.next(&mut [Wc::default()], LIMIT)),
            _ => {
                let fd = conn.get_next_fd()?;
                assert!(rpma::sim::wait_readable(&[fd], Some(now() + SECOND))?);
                refused(conn.next(&mut [Wc::default()], Duration::ZERO))
            }
        };
        let reason = ConnEvent::NO_LISTENER;
        let private_data = Box::default();
        assert_eq!(
            event,
            ConnEvent::Rejected {
                reason,
                private_data
            }
        );
        assert!(matches!(
            conn.next_event_timeout(SECOND),
            Err(Error::NoEvent)
        ));
        let fd = [conn.as_fd()];
        assert!(!rpma::sim::wait_readable(&fd, Some(now()))?, "it was taken");
        assert_eq!(conn.ended(), Some(&event));
    }
    let (_server, [req]) = unanswered(&both)?;
    let event = req.connect(&[])?.next_event_timeout(140 * SECOND)?;
    assert_eq!(event, ConnEvent::Unreachable { status: -110 });
    Ok(())
}

/// Promise: a program that gives up again and again is refused when 64 of its calls wait, with the
/// reason. It may ask again when they have ended.
#[test]
fn connections_that_were_given_up_have_a_bound() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let (_server, reqs) = unanswered::<65>(&both)?;
    let mut reqs = reqs.into_iter();
    for req in reqs.by_ref().take(64) {
        drop(req.connect(&[])?);
    }
    let last = reqs.next().ok_or("one more")?;
    let refused = last.connect(&[]).expect_err("64 wait").error;
    assert_says(&refused, &["rdma_connect", "64 connections", "later"]);
    assert_eq!(both.hosts[0].objects()["qp"], 64);
    rpma::sim::sleep(140 * SECOND);
    both.link.heal();
    connected(&both)?;
    Ok(())
}

/// The two ends of a connection of `rpma-async`, the client's first.
fn awaited(both: &World) -> Result<[rpma_async::Conn; 2]> {
    let reactor = |side: usize| {
        let _entered = both.hosts[side].enter();
        Reactor::on_thread(&both.peers[side])
    };
    let (near, far) = (reactor(0)?, reactor(1)?);
    let listener = far.listen((both.hosts[1].addr(), 0).into())?;
    let at = (both.hosts[1].addr(), listener.port()).into();
    let setup = Setup::default();
    let ends = async {
        tokio::join!(near.connect(at, &setup, &[]), async {
            let asks = listener.accept().await.expect("a request");
            asks.accept(&setup, &[]).await
        })
    };
    let (client, server) = block_on(ends, LIMIT).ok_or("in time")?;
    Ok([client?, server?])
}

/// Promise of `rpma-async`: a read lands in its lease also on iWARP, where the destination of a read
/// has a right of the peers to write: the bytes land beside the block, and are copied. If that
/// memory cannot be registered, the lease comes back, and the connection lives.
#[test]
fn a_read_lands_in_its_lease() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let memory = both.memories(64)?;
    let target = pattern(64, 3);
    memory.target.write_at(0, &target)?;
    let [client, _server] = awaited(&both)?;
    let from = |range| remote(&memory.target).slice(range);
    let pool = Pool::new(&both.peers[0], 50, 3)?;
    let lease = |len| {
        let mut lease = pool.try_lease().expect("a block is free");
        lease.fill(0xEE);
        lease.truncate(len);
        lease
    };
    let failing = both.fabric.fail("ibv_reg_mr").next(Errno::NOMEM);
    let refused = client.read(lease(8), from(0..8)?);
    let refused = refused.expect_err("no memory");
    assert!(!failing.is_pending());
    assert!(matches!(refused.error, Error::Provider { .. }), "{refused}");
    assert_eq!(*refused.memory.ok_or("nothing was posted")?, [0xEE; 8]);

    let mut reads = Vec::new();
    for part in [0..50, 20..27, 63..64_usize] {
        let src = from(part.start as u64..part.end as u64)?;
        reads.push((client.read(lease(part.len()), src)?, part));
    }
    assert_eq!(pool.available(), 0);
    for (read, part) in reads {
        assert_eq!(*read.wait(LIMIT)?, target[part]);
    }
    assert_eq!(pool.available(), 3);
    Ok(())
}

/// Promise of `rpma-async`: no write of a peer reaches the bytes that a lease lends, also if the
/// lease was the destination of a read, with any key of the device.
#[test]
fn no_peer_writes_to_a_lease() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let memory = both.memories(8)?;
    let [client, _server] = awaited(&both)?;
    // The keys of the simulated device follow each other at one distance: one byte is apart.
    let open = || region(&both.peers[0], 8, MrUsage::WRITE_DST);
    let key_of = |mr: &Mr<Memory>| -> [u8; 4] {
        let descriptor = mr.get_descriptor();
        descriptor[16..20].try_into().expect("4 bytes")
    };
    let [first, second] = [open()?, open()?];
    let after = |n: u32| {
        let [near, far] = [&first, &second].map(|mr| u32::from_le_bytes(key_of(mr)));
        let number = (near >> 8) + n * ((far >> 8) - (near >> 8));
        let last = (n as u8).wrapping_mul((far as u8).wrapping_sub(near as u8));
        (number << 8 | u32::from((near as u8).wrapping_add(last))).to_le_bytes()
    };
    let pool = Pool::new(&both.peers[0], 8, 1)?;
    let lease = pool.try_lease().ok_or("free")?;
    let to = remote(&memory.target).slice(..)?;
    let lease = client.read(lease, to)?.wait(LIMIT)?;
    let last = open()?;
    assert_eq!(after(4), key_of(&last), "the pool has two regions");

    let source = region(&both.peers[1], 8, MrUsage::WRITE_SRC)?;
    source.write_at(0, b"attacker")?;
    let attack = |at: *const u8, key: [u8; 4]| -> Result {
        let place = forged(&first, |bytes| {
            bytes[..8].copy_from_slice(&(at.addr() as u64).to_le_bytes());
            bytes[16..20].copy_from_slice(&key);
        });
        let Pair { client, server } = connected(&both)?;
        server.post_write(place.slice(..)?, source.slice(..)?)?;
        // It arrives, whether it is refused or not.
        drop(server.close(LIMIT));
        drop(client);
        Ok(())
    };
    let before = lease.to_vec();
    for key in [2, 3].map(after) {
        attack(lease.as_ptr(), key)?;
    }
    assert_eq!(*lease, before);
    // The same attack reaches a region with the right.
    attack(last.get_ptr(), after(4))?;
    assert_eq!(contents(&last)?, b"attacker");
    Ok(())
}
