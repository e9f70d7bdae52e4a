//! Batches: every kind of operation among others, with one doorbell, all of them or no operation;
//! and many receives at once.

use crate::common::prelude::*;

const VISIBLE: FlushType = FlushType::Visibility;

/// Both ways to flush, with room for everything below.
fn configurations() -> [ConnCfg; 2] {
    both_ways().map(|mut cfg| {
        cfg.set_sq_size(40).set_rq_size(40).set_cq_size(80);
        cfg.set_max_inline_data(64);
        cfg.set_max_send_sge(3).expect("three parts").clone()
    })
}

fn all_usages() -> MrUsage {
    MrUsage::all().difference(MrUsage::FLUSH_TYPE_PERSISTENT)
}

fn part(mr: &Mr<Memory>, at: usize, len: usize) -> Result<MrSlice<'_>> {
    Ok(mr.slice(at..at + len)?)
}

fn there(mr: &MrRemote, at: u64, len: u64) -> RemoteSlice {
    mr.slice(at..at + len).expect("inside")
}

/// A batch has only one completion: 16 records and their flush.
#[test]
fn records_and_their_flush() -> Result {
    let (_test, peer) = peer_test()?;
    let source = region(&peer, 1024, MrUsage::WRITE_SRC)?;
    source.write_at(0, &pattern(1024, 3))?;
    for pair in Pair::each(&peer, configurations()) {
        let target = region(&peer, 1024, all_usages())?;
        let far = remote(&target);
        let mut batch = pair.client.batch::<17>();
        // Twice with the same one: posting empties it.
        for at in [0, 512] {
            for n in 0..16 {
                let at = at + n * 32;
                let to = there(&far, at as u64, 32);
                batch.write(to, part(&source, at, 32)?, ON_ERROR, 1)?;
            }
            batch.flush(there(&far, at as u64, 512), VISIBLE, ALWAYS, 2)?;
            assert_eq!(batch.len(), 17);
            batch.post()?;
            assert!(batch.is_empty());
            completion(&pair.client)?.result()?;
            let half = contents(&target)?[at..at + 512].to_vec();
            assert_eq!(half, contents(&source)?[at..at + 512], "all of it is there");
        }
        no_completion(&pair.client)?;
    }
    Ok(())
}

/// The word of the atomic write below.
const WORD: [u8; 8] = 0x0102_0304_0506_0708_u64.to_le_bytes();

/// Adds every kind of operation, with the numbers from 1 on.
fn add_every_kind<'a>(batch: &mut Batch<'a, 24>, source: &'a Mr<Memory>, far: &MrRemote) -> Result {
    let parts = [
        part(source, 300, 10)?,
        part(source, 500, 0)?,
        part(source, 700, 20)?,
    ];
    let (inline, fenced) = (ALWAYS | Flags::INLINE, ALWAYS | Flags::FENCE);
    batch.write(there(far, 0, 100), part(source, 0, 100)?, ALWAYS, 1)?;
    batch.write(there(far, 100, 50), part(source, 100, 50)?, inline, 2)?;
    batch.write_with_imm(there(far, 150, 8), part(source, 150, 8)?, ALWAYS, 77, 3)?;
    batch.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 4)?;
    batch.flush(there(far, 0, 158), VISIBLE, ALWAYS, 5)?;
    batch.write_gather(there(far, 200, 30), &parts, ALWAYS, 6)?;
    batch.atomic_write(there(far, 240, 8), &WORD, ALWAYS, 7)?;
    batch.send(part(source, 1000, 40)?, ALWAYS, 8)?;
    batch.send_with_imm(part(source, 1100, 40)?, inline, 78, 9)?;
    batch.send_gather(&parts, ALWAYS, 10)?;
    batch.send(MrSlice::EMPTY, ALWAYS | Flags::SOLICITED, 11)?;
    batch.flush(there(far, 200, 48), VISIBLE, ALWAYS, 12)?;
    batch.read(part(source, 2000, 100)?, there(far, 0, 100), ALWAYS, 13)?;
    batch.write(there(far, 300, 4), part(source, 300, 4)?, fenced, 14)?;
    batch.write_gather(there(far, 310, 20), &[parts[2]], inline, 15)?;
    assert_eq!(batch.len(), 15);
    Ok(())
}

/// The kinds of the completions of these operations, in order.
fn kinds_of(client: &Conn) -> [WcOpcode; 15] {
    let flush = flush_opcode(client);
    let word = if client.has_native_atomic_write() {
        WcOpcode::ATOMIC_WRITE
    } else {
        WcOpcode::RDMA_WRITE
    };
    let (write, send, read) = (WcOpcode::RDMA_WRITE, WcOpcode::SEND, WcOpcode::RDMA_READ);
    [
        write, write, write, write, flush, write, word, send, send, send, send, flush, read, write,
        write,
    ]
}

/// The messages and the notice of these operations have arrived, in order.
fn check_received(server: &Conn) -> Result {
    let received = completions(server, 5)?;
    assert_done(&received, 100..105)?;
    let (message, notice) = (WcOpcode::RECV, WcOpcode::RECV_RDMA_WITH_IMM);
    for (wc, expected) in received.iter().zip([
        (notice, Some(77)),
        (message, None),
        (message, Some(78)),
        (message, None),
        (message, None),
    ]) {
        let received = wc.result()?;
        assert_eq!((received.opcode(), received.imm_data()), expected);
    }
    Ok(())
}

/// The bytes of these operations are where they belong.
fn check_bytes(from: &[u8], to: &[u8], inbox: &[u8]) {
    assert_eq!(to[..158], from[..158], "writes");
    let gathered = [&from[300..310], &from[700..720]].concat();
    assert_eq!(to[200..230], gathered, "the gathered write");
    assert_eq!(to[240..248], WORD, "the atomic write");
    assert_eq!(to[300..304], from[300..304], "the fenced write");
    assert_eq!(to[310..330], from[700..720], "the gathered inline write");
    assert_eq!(from[2000..2100], from[..100], "the read");
    assert_eq!(inbox[100..140], from[1000..1040], "a message");
    assert_eq!(inbox[200..240], from[1100..1140], "an inline message");
    assert_eq!(inbox[300..330], gathered, "a gathered message");
}

/// Every operation has its place: data, order and `op_context`. Gathers, and operations that a
/// chain does not have, take turns with others, and there is an operation without any bytes.
#[test]
fn every_kind_of_operation_among_others() -> Result {
    let (_test, peer) = peer_test()?;
    for pair in Pair::each(&peer, configurations()) {
        let source = region(&peer, 4096, all_usages())?;
        source.write_at(0, &pattern(4096, 5))?;
        let target = region(&peer, 4096, all_usages())?;
        let inbox = region(&peer, 4096, MrUsage::RECV)?;
        let far = remote(&target);
        for n in 0..6 {
            pair.server
                .recv(part(&inbox, n * 100, 100)?, 100 + n as u64)?;
        }
        let mut batch = pair.client.batch::<24>();
        add_every_kind(&mut batch, &source, &far)?;
        batch.post()?;
        let sent = completions(&pair.client, 15)?;
        for (n, (wc, kind)) in sent.iter().zip(kinds_of(&pair.client)).enumerate() {
            assert_eq!(opcode_of(wc, n as u64 + 1)?, kind, "{n}");
        }
        check_received(&pair.server)?;
        check_bytes(&contents(&source)?, &contents(&target)?, &contents(&inbox)?);
    }
    Ok(())
}

/// A wrong operation is refused when it is added, and a batch that is not posted sends no
/// operation.
#[test]
fn what_is_wrong_is_refused_and_the_rest_stays() -> Result {
    let _test = device_test();
    let (peer, other) = (peer()?, peer()?);
    for pair in Pair::each(&peer, configurations()) {
        let source = region(&peer, 100, all_usages())?;
        let elsewhere = region(&other, 100, all_usages())?;
        let target = region(&peer, 100, all_usages())?;
        let write_only = region(&peer, 100, MrUsage::WRITE_DST)?;
        let far = remote(&target);
        let conn = &pair.client;

        let mut batch = conn.batch::<3>();
        let to = there(&far, 0, 8);
        batch.write(to, part(&source, 0, 8)?, ALWAYS, 1)?;
        let text = invalid(batch.write(to, part(&elsewhere, 0, 8)?, ALWAYS, 2));
        assert!(text.contains("another Peer"), "{text}");
        let text = invalid(batch.write(to, part(&source, 0, 9)?, ALWAYS, 2));
        assert!(text.contains("has 9 bytes and the remote part 8"), "{text}");
        let unreadable = there(&remote(&write_only), 0, 8);
        invalid(batch.read(part(&source, 0, 8)?, unreadable, ALWAYS, 2));
        invalid(batch.send(part(&elsewhere, 0, 8)?, ALWAYS, 2));
        invalid(batch.send(part(&source, 0, 65)?, ALWAYS | Flags::INLINE, 2));
        invalid(batch.flush(RemoteSlice::EMPTY, VISIBLE, ALWAYS, 2));
        not_supported(batch.flush(to, FlushType::Persistent, ALWAYS, 2));
        invalid(batch.atomic_write(there(&far, 4, 8), &[0; 8], ALWAYS, 2));
        let parts = [part(&source, 0, 2)?; 4];
        invalid(batch.write_gather(there(&far, 0, 8), &parts, ALWAYS, 2));

        // One of several parts takes the room of two.
        let two = [part(&source, 0, 2)?; 2];
        let four = there(&far, 0, 4);
        batch.write_gather(four, &two, ALWAYS, 2)?;
        let third = batch.write_gather(four, &two, ALWAYS, 2);
        assert_invalid(third, &["no room", " 3 "]);
        invalid(batch.flush(to, VISIBLE, ALWAYS, 3));
        invalid(batch.atomic_write(to, &[0; 8], ALWAYS, 3));
        invalid(batch.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 3));
        assert_eq!(batch.len(), 2);

        // Not sent: it is dropped, or taken back. An open one holds no lock and no slot:
        // another operation is posted.
        write_nothing(conn, 9)?;
        assert_eq!(completion(conn)?.wr_id(), 9);
        drop(batch);
        let mut batch = conn.batch::<3>();
        batch.flush(to, VISIBLE, ALWAYS, 1)?;
        batch.clear();
        assert_invalid(batch.post(), &["empty"]);
        no_completion(conn)?;
        assert_eq!(contents(&target)?, [0; 100]);
    }
    Ok(())
}

/// Promise: each operation that a batch takes can be executed once it is posted. Before the
/// connection is established it is unknown whether the peer serves reads. So operations that need
/// reads are refused until then, as the post of a single one is.
#[test]
fn nothing_that_reads_is_added_before_the_connection() -> Result {
    let (_test, peer) = peer_test()?;
    for cfg in configurations() {
        let memory = region(&peer, 64, all_usages())?;
        let far = there(&remote(&memory), 0, 8);
        let ep = listen(&peer)?;
        let client = ask(&peer, &ep, &cfg)?;
        let server = accept(&ep, &cfg)?;
        let mut batch = client.batch::<2>();
        assert_not_connected(batch.read(part(&memory, 8, 8)?, far, ALWAYS, 1));
        assert_not_connected(client.read(part(&memory, 8, 8)?, far, ALWAYS, 1));
        established(&client, &server)?;
        batch.read(part(&memory, 8, 8)?, far, ALWAYS, 1)?;
        batch.post()?;
        assert_eq!(completion(&client)?.wr_id(), 1);
    }
    Ok(())
}

/// All of a batch has slots, or no part of it; it can be posted again when completions were polled.
#[test]
fn a_batch_waits_for_slots_as_a_whole() -> Result {
    let (_test, peer) = peer_test()?;
    for mut cfg in configurations() {
        cfg.set_sq_size(4);
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        let conn = &pair.client;
        let empty = |flags, id| conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, flags, id);
        let target = region(&peer, 8, all_usages())?;
        let far = remote(&target);

        let mut five = conn.batch::<5>();
        for n in 0..5 {
            five.flush(there(&far, 0, 8), VISIBLE, ALWAYS, n)?;
        }
        assert_invalid(five.post(), &["the batch takes 5 slots", "has 4"]);

        let mut four = conn.batch::<4>();
        for n in 0..4 {
            four.atomic_write(there(&far, 0, 8), &[7; 8], ON_ERROR, n)?;
        }
        assert_invalid(four.post(), &["an operation with that flag"]);

        let mut three = conn.batch::<3>();
        for n in 0..3 {
            three.flush(there(&far, 0, 8), VISIBLE, ALWAYS, n)?;
        }
        empty(ALWAYS, 10)?;
        empty(ON_ERROR, 11)?;
        assert_eq!(full(three.post()), (Queue::Send, 4));
        assert_eq!(completion(conn)?.wr_id(), 10);
        three.post()?;
        assert_eq!(numbers(&completions(conn, 3)?), [0, 1, 2]);

        // Without any completion they would fill the queue for ever: one slot is kept.
        for _ in 0..3 {
            empty(ON_ERROR, 1)?;
        }
        let mut one = conn.batch::<1>();
        one.flush(there(&far, 0, 8), VISIBLE, ON_ERROR, 20)?;
        let kept = one.post();
        let is_kept = matches!(kept, Err(Error::NoCompletionDue { depth: 4 }));
        assert!(is_kept, "{kept:?}");
        one.clear();
        one.flush(there(&far, 0, 8), VISIBLE, ALWAYS, 21)?;
        one.post()?;
        assert_eq!(completion(conn)?.wr_id(), 21);
    }
    Ok(())
}

/// Data that travels inside a request is read when the batch is posted, and then it may change.
#[test]
fn inline_data_is_read_when_it_is_posted() -> Result {
    let (_test, peer) = peer_test()?;
    for pair in Pair::each(&peer, configurations()) {
        let source = region(&peer, 64, all_usages())?;
        let target = region(&peer, 64, all_usages())?;
        let far = remote(&target);
        let mut batch = pair.client.batch::<3>();
        let bytes = part(&source, 0, 64)?;
        batch.write(there(&far, 0, 64), bytes, ON_ERROR | Flags::INLINE, 1)?;
        batch.flush(there(&far, 0, 64), VISIBLE, ALWAYS, 2)?;
        source.write_at(0, &[1; 64])?;
        batch.post()?;
        source.write_at(0, &[2; 64])?;
        completion(&pair.client)?.result()?;
        assert_eq!(contents(&target)?, [1; 64]);
    }
    Ok(())
}

/// One that fails fails alone: those before it have succeeded, those after it are flushed, each
/// with its own `op_context`.
#[test]
fn a_failure_in_the_middle_of_a_batch() -> Result {
    let (_test, peer) = peer_test()?;
    for pair in Pair::each(&peer, configurations()) {
        let source = region(&peer, 8, all_usages())?;
        let target = region(&peer, 8, all_usages())?;
        let far = remote(&target);
        let gone = remote(&region(&peer, 8, all_usages())?);
        let mut batch = pair.client.batch::<5>();
        for (n, to) in [far, far, gone, far, far].iter().enumerate() {
            let to = there(to, 0, 8);
            batch.write(to, part(&source, 0, 8)?, ON_ERROR, n as u64)?;
        }
        batch.post()?;
        let failed = completions(&pair.client, 3)?;
        assert_eq!(numbers(&failed), [2, 3, 4]);
        let (access, flushed) = (WcStatus::REM_ACCESS_ERR, WcStatus::WR_FLUSH_ERR);
        let statuses = failed.iter().map(Wc::status);
        assert!(statuses.eq([access, flushed, flushed]), "{failed:?}");
        batch.flush(there(&far, 0, 8), VISIBLE, ALWAYS, 9)?;
        assert_not_connected(batch.post());
    }
    Ok(())
}

/// A batch and single operations of two threads: no completion is lost, and none comes twice.
#[test]
fn batches_beside_single_operations() -> Result {
    let (_test, peer) = peer_test()?;
    for pair in Pair::each(&peer, configurations()) {
        let target = region(&peer, 8, all_usages())?;
        let far = remote(&target);
        let conn = &pair.client;
        let wcs = std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..50 {
                    let mut batch = conn.batch::<7>();
                    for k in 0..7 {
                        let added = batch.flush(there(&far, 0, 8), VISIBLE, ALWAYS, n * 7 + k);
                        added.expect("added");
                    }
                    until_posted(|| batch.post());
                }
            });
            scope.spawn(|| {
                for n in 1000..1200 {
                    until_posted(|| write_nothing(conn, n));
                }
            });
            completions(conn, 550)
        })?;
        let numbers = numbers(&wcs).into_iter();
        let (batches, singles): (Vec<_>, Vec<_>) = numbers.partition(|number| *number < 1000);
        assert!(batches.into_iter().eq(0..350), "each once, in order");
        assert!(singles.into_iter().eq(1000..1200), "each once, in order");
    }
    Ok(())
}

/// So many receives of 8 bytes.
fn receives(inbox: &Mr<Memory>, count: usize) -> Result<Vec<(MrSlice<'_>, u64)>> {
    let receive = |n| Ok((part(inbox, n * 8, 8)?, n as u64));
    (0..count).map(receive).collect()
}

/// Many receives with one call: on a request, a connection and a shared queue; messages take them
/// in order.
#[test]
fn many_receives_at_once() -> Result {
    let (_test, peer) = peer_test()?;
    let cfg = &configurations()[0];
    let inbox = region(&peer, 40 * 8, MrUsage::RECV)?;
    let source = region(&peer, 8, all_usages())?;
    let receives = receives(&inbox, 40)?;
    // Before there is a connection, and on it.
    let ep = listen(&peer)?;
    let client = ask(&peer, &ep, cfg)?;
    let req = request(&ep, cfg)?;
    req.recv_many(&receives[..17])?;
    let server = req.connect(&[])?;
    established(&client, &server)?;
    server.recv_many(&receives[17..])?;
    assert_eq!(full(server.recv_many(&receives[..1])), (Queue::Receive, 40));
    for n in 0..40 {
        source.store_u64(0, n + 1)?;
        client.send(part(&source, 0, 8)?, ALWAYS | Flags::INLINE, n)?;
    }
    assert_done(&completions(&client, 40)?, 0..40)?;
    assert_done(&completions(&server, 40)?, 0..40)?;
    for n in 0..40 {
        assert_eq!(inbox.load_u64(n * 8)?, n as u64 + 1, "message {n}");
    }

    // All receives, or no receive.
    server.recv(receives[0].0, 1)?;
    full(server.recv_many(&receives));
    server.recv_many(&receives[1..])?;
    assert_invalid(server.recv_many(&[]), &["no receives"]);
    let twice = server.recv_many(&[&receives[..], &receives].concat());
    assert_invalid(twice, &["80 receives at once", "40 slots"]);
    let no_right = region(&peer, 8, MrUsage::WRITE_SRC)?;
    let text = invalid(server.recv_many(&[receives[0], (part(&no_right, 0, 8)?, 1)]));
    assert!(text.contains("receive 2 of 2"), "{text}");
    Ok(())
}

/// The same for a shared queue, with numbers that come back in any order.
#[test]
fn many_receives_of_a_shared_queue() -> Result {
    let (_test, peer) = peer_test()?;
    let srq = Srq::new(&peer, SrqCfg::new().set_rq_size(20))?;
    let server = ConnCfg::new().set_srq(Some(&srq)).clone();
    let client = ConnCfg::new().set_sq_size(20).clone();
    let pair = Pair::with(&peer, &client, &server)?;
    let inbox = region(&peer, 20 * 8, MrUsage::RECV)?;
    let source = region(&peer, 8, all_usages())?;
    let receives = receives(&inbox, 20)?;

    let text = invalid(pair.server.recv_many(&receives[..2]));
    assert!(text.contains("shared receive queue"), "{text}");
    let rcq = srq.get_rcq().ok_or("its own")?;
    for _ in 0..3 {
        srq.recv_many(&receives[..3])?;
        srq.recv_many(&receives[3..20])?;
        assert_eq!(
            full(srq.recv_many(&receives[..1])),
            (Queue::SharedReceive, 20)
        );
        for _ in 0..20 {
            pair.client.send(part(&source, 0, 8)?, ALWAYS, 0)?;
        }
        for wr_id in 0..20 {
            assert_eq!(next_completion(rcq)?.wr_id(), wr_id);
        }
        assert_empty(rcq)?;
        completions(&pair.client, 20)?;
    }
    let twice = [&receives[..], &receives].concat();
    assert_invalid(srq.recv_many(&twice), &["40 receives at once"]);
    invalid(srq.recv_many(&[]));
    Ok(())
}
