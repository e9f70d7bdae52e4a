//! Commits: data, its flush, a pointer, its flush; one post and one completion. Their durability is
//! in tests/fabric/power.

use std::thread;

use crate::common::prelude::*;

const VISIBLE: FlushType = FlushType::Visibility;
/// The size of the memory, and how far apart parts can be: a native flush does not cover all of it.
const SIZE: usize = 64 * 1024;
/// Where the pointer is.
const POINTER: usize = SIZE - 8;

fn configurations() -> [ConnCfg; 2] {
    both_ways().map(|mut cfg| cfg.set_sq_size(40).clone())
}

fn target_usage() -> MrUsage {
    MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY
}

/// Parts of `len` bytes, so far apart, from the same places of the source.
fn parts<'a>(
    far: &MrRemote,
    source: &'a Mr<Memory>,
    (count, len, apart): (usize, usize, usize),
) -> Vec<(RemoteSlice, MrSlice<'a>)> {
    let part = |n| part_of(far, source, n * apart, len);
    (0..count).map(part).collect()
}

#[test]
fn everything_is_there_with_one_completion() -> Result {
    let (_test, peer) = peer_test()?;
    let source = region(&peer, SIZE, MrUsage::WRITE_SRC)?;
    source.write_at(0, &pattern(SIZE, 5))?;
    for cfg in configurations() {
        // One part, parts side by side, with small gaps, and far apart; with a pointer and
        // without.
        for shape in [
            (1, 1, 1),
            (2, 64, 64),
            (16, 100, 128),
            (3, 200, 20_000),
            (16, 8, 4000),
        ] {
            for pointer in [None, Some(7u64.to_ne_bytes())] {
                let target = region(&peer, SIZE, target_usage())?;
                let far = remote(&target);
                let pair = Pair::with(&peer, &cfg, &cfg)?;
                let parts = parts(&far, &source, shape);
                let to = far.slice(POINTER as u64..)?;
                let pointer = pointer.map(|bytes| (to, bytes));
                for op_context in [1, 2] {
                    let posted = pair.client.commit(&parts, pointer, VISIBLE, op_context)?;
                    let wc = completion(&pair.client)?;
                    wc.result()?;
                    assert_eq!((wc.posted(), wc.wr_id()), (Some(posted), op_context));
                    assert_empty(pair.client.get_cq())?;
                }
                let mut expected = vec![0; SIZE];
                for n in 0..shape.0 {
                    let range = n * shape.2..n * shape.2 + shape.1;
                    expected[range.clone()].copy_from_slice(&contents(&source)?[range]);
                }
                if pointer.is_some() {
                    expected[POINTER..].copy_from_slice(&7u64.to_ne_bytes());
                }
                assert!(contents(&target)? == expected, "{shape:?}, {pointer:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn parts_of_several_regions() -> Result {
    let (_test, peer) = peer_test()?;
    let source = region(&peer, 256, MrUsage::WRITE_SRC)?;
    source.write_at(0, &pattern(256, 6))?;
    for cfg in configurations() {
        let targets = [0, 1, 2].map(|_| region(&peer, 256, target_usage()).expect("registers"));
        let far = targets.each_ref().map(remote);
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        let parts = [(0, 0), (1, 32), (0, 64)].map(|(n, at)| part_of(&far[n], &source, at, 32));
        let pointer = (far[2].slice(8..16)?, [9; 8]);
        let posted = pair.client.commit(&parts, Some(pointer), VISIBLE, 3);
        assert_eq!(completion(&pair.client)?.posted(), Some(posted?));
        assert_empty(pair.client.get_cq())?;
        // Three writes, a flush of each of their two regions, and the pointer with its flush.
        let few = cfg.clone().set_sq_size(6).clone();
        let small = Pair::with(&peer, &few, &few)?;
        let text = invalid(small.client.commit(&parts, Some(pointer), VISIBLE, 3));
        assert!(text.contains("commit takes 7 slots"), "{text}");
        let bytes = contents(&source)?;
        assert_eq!(contents(&targets[0])?[..32], bytes[..32]);
        assert_eq!(contents(&targets[0])?[64..96], bytes[64..96]);
        assert_eq!(contents(&targets[1])?[32..64], bytes[32..64]);
        assert_eq!(contents(&targets[2])?[8..16], [9; 8]);
    }
    Ok(())
}

/// The commit is not posted, and the error names the part.
#[test]
fn what_is_wrong_is_refused() -> Result {
    let _test = device_test();
    let (peer, other) = (peer()?, peer()?);
    let source = region(&peer, 1024, MrUsage::WRITE_SRC)?;
    let unread = region(&peer, 64, MrUsage::RECV)?;
    let others = region(&other, 64, MrUsage::WRITE_SRC)?;
    let readable = region(&peer, 64, MrUsage::WRITE_SRC | MrUsage::READ_SRC)?;
    let target = region(&peer, 1024, target_usage())?;
    let unwritable = region(&peer, 64, MrUsage::READ_SRC)?;
    let unflushed = region(&peer, 64, MrUsage::WRITE_DST)?;
    let far = remote(&target);
    let (read_only, unflushed) = (remote(&unwritable), remote(&unflushed));
    let there = |at: u64, len: u64| far.slice(at..at + len);
    let here = |len: usize| source.slice(..len);
    let good = (there(0, 32)?, here(32)?);
    let pointer = |at, len| -> Result<_> { Ok(Some((there(at, len)?, [1; 8]))) };
    for pair in Pair::each(&peer, configurations()) {
        let conn = &pair.client;
        let refused = |parts: &[_], pointer, words: &[&str]| {
            assert_invalid(conn.commit(parts, pointer, VISIBLE, 1), words);
        };
        refused(&[], pointer(512, 8)?, &["0 parts", "1 to 16"]);
        refused(&[good; 17], None, &["17 parts", "1 to 16"]);
        let empty = (there(64, 0)?, here(0)?);
        let second = &["part 2 of 2", "0 bytes"];
        refused(&[good, empty], pointer(512, 8)?, second);
        refused(&[empty, good], None, &["part 1 of 2", "0 bytes"]);
        let longer = (there(64, 33)?, here(32)?);
        refused(&[good, longer], None, &["part 2 of 2", "32", "33"]);
        let part = (there(64, 32)?, unread.slice(..32)?);
        refused(&[good, part, good], None, &["part 2 of 3", "WRITE_SRC"]);
        let part = (there(64, 32)?, others.slice(..32)?);
        refused(&[part], None, &["another Peer"]);
        refused(&[good, part], None, &["part 2 of 2", "another Peer"]);
        let part = (read_only.slice(..32)?, here(32)?);
        refused(&[good, part], None, &["part 2 of 2", "WRITE_DST"]);
        refused(&[good], pointer(516, 8)?, &["the pointer", "multiple of 8"]);
        refused(&[good], pointer(512, 16)?, &["the pointer", "8 bytes"]);
        refused(&[good], pointer(24, 8)?, &["the pointer", "part 1 of 1"]);
        // Between two parts it is right.
        let parts = [good, (there(64, 32)?, here(32)?)];
        conn.commit(&parts, pointer(40, 8)?, VISIBLE, 1)?;
        completion(conn)?.result()?;
        // Their sources may have other usages beside the one that counts.
        let part = (there(64, 32)?, readable.slice(..32)?);
        let posted = conn.commit(&[good, part], None, VISIBLE, 1);
        assert_eq!(completion(conn)?.posted(), Some(posted?));
        // The rights are those of each region.
        let part = (read_only.slice(..32)?, here(32)?);
        refused(&[part], None, &["WRITE_DST"]);
        let at = |region: &MrRemote| -> Result<_> { Ok(Some((region.slice(..8)?, [1; 8]))) };
        refused(&[good], at(&read_only)?, &["the pointer", "WRITE_DST"]);
        let part = (unflushed.slice(..32)?, here(32)?);
        for result in [
            conn.commit(&[part], None, VISIBLE, 1),
            conn.commit(&[good, part], None, VISIBLE, 1),
            conn.commit(&[good], at(&unflushed)?, VISIBLE, 1),
            conn.commit(&[good], pointer(512, 8)?, FlushType::Persistent, 1),
        ] {
            not_supported(result);
        }
        assert_empty(conn.get_cq())?;
    }
    Ok(())
}

/// A pointer may touch a part, and has no byte of it.
#[test]
fn a_pointer_beside_its_data_is_right() -> Result {
    let (_test, peer) = peer_test()?;
    let source = region(&peer, 64, MrUsage::WRITE_SRC)?;
    let target = region(&peer, 64, target_usage())?;
    let far = remote(&target);
    let pointer = Some((far.slice(24..32)?, [1; 8]));
    let part = |start, end| [part_of(&far, &source, start, end - start)];
    for pair in Pair::each(&peer, configurations()) {
        for (start, end) in [(31, 40), (16, 25), (27, 28), (0, 64)] {
            let beside = pair.client.commit(&part(start, end), pointer, VISIBLE, 1);
            assert_invalid(beside, &["the pointer"]);
        }
        for (start, end) in [(32, 40), (16, 24), (0, 24), (63, 64)] {
            let parts = part(start, end);
            pair.client.commit(&parts, pointer, VISIBLE, 1)?;
            // A read of the region's last byte reads no more than that byte.
            done(&pair.client, 1)?;
        }
    }
    Ok(())
}

/// The peer's declaration decides, and not the rights of its region alone.
#[test]
fn a_durable_commit_needs_the_peers_promise() -> Result {
    let (_test, peer) = peer_test()?;
    let source = region(&peer, 64, MrUsage::WRITE_SRC)?;
    let target = region(&peer, 64, target_usage())?;
    // No program may register volatile memory so.
    let persistent = MrUsage::FLUSH_TYPE_PERSISTENT.bits();
    let far = forged(&target, |bytes| bytes[20] |= persistent);
    let part = [part_of(&far, &source, 0, 8)];
    let pointer = Some((far.slice(8..16)?, [1; 8]));
    for cfg in configurations() {
        for (durable, promised) in [
            (None, [false, false]),
            (Some(Durable::Nothing), [false, false]),
            (Some(Durable::NativeFlushes), [true, false]),
            (Some(Durable::DirectWrites), [true, true]),
        ] {
            let pair = Pair::with(&peer, &cfg, &cfg)?;
            if let Some(durable) = durable {
                let platform = *PeerCfg::new().set_durable(durable);
                pair.client.apply_remote_peer_cfg(&platform);
            }
            let by_reading = !pair.client.has_native_flush();
            let posted = pair.client.commit(&part, pointer, FlushType::Persistent, 1);
            if promised[usize::from(by_reading)] {
                posted?;
            } else {
                drop(not_supported(posted));
            }
        }
    }
    Ok(())
}

#[test]
fn a_commit_takes_a_slot_for_each_request() -> Result {
    let (_test, peer) = peer_test()?;
    let source = region(&peer, SIZE, MrUsage::WRITE_SRC)?;
    let target = region(&peer, 1024, target_usage())?;
    let far = remote(&target);
    let spread = region(&peer, SIZE, target_usage())?;
    let wide = remote(&spread);
    for mut cfg in configurations() {
        cfg.set_sq_size(9);
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        let conn = &pair.client;
        let pointer = Some((far.slice(1016..)?, [2; 8]));
        let commit = |count| {
            let parts = parts(&far, &source, (count, 32, 32));
            conn.commit(&parts, pointer, VISIBLE, 4)
        };
        // Seven parts and three more are more than it ever has.
        assert!(invalid(commit(7)).contains("takes 10 slots"));
        // Natively each of four parts that are far apart has a flush of its own.
        let distant = parts(&wide, &source, (4, 8, 8192));
        let posted = conn.commit(&distant, pointer, VISIBLE, 4);
        match conn.has_native_flush() {
            true => assert_invalid(posted, &["commit takes 10 slots"]),
            false => {
                posted?;
                done(conn, 4)?;
            }
        }
        commit(1)?;
        commit(2)?;
        assert_eq!(full(commit(1)), (Queue::Send, 9));
        next_completion(conn.get_cq())?.result()?;
        commit(1)?;
        assert_done(&completions(conn, 2)?, [4, 4])?;
    }
    Ok(())
}

/// Two threads commit on one connection. A completion is that of its own commit: when it comes, the
/// bytes of this commit are there, and the pointer is that of this commit or of a later one.
#[test]
fn commits_of_two_threads_stay_apart() -> Result {
    const COMMITS: usize = 50;
    /// Of each commit its own: two parts of 8 bytes, with those of the other thread between them.
    const PLACE: usize = 32;
    let (_test, peer) = peer_test()?;
    let len = COMMITS * PLACE;
    let source = region(&peer, len, MrUsage::WRITE_SRC)?;
    source.write_at(0, &pattern(len, 7))?;
    for pair in Pair::each(&peer, configurations()) {
        let target = region(&peer, len + 16, target_usage())?;
        let far = remote(&target);
        let conn = &pair.client;
        let starts = |thread, number| [0, 16].map(|at| number * PLACE + at + 8 * thread);
        let commit = |thread: usize, number: usize| {
            let parts = starts(thread, number).map(|at| part_of(&far, &source, at, 8));
            let at = (len + 8 * thread) as u64;
            let pointer = far.slice(at..at + 8).expect("inside");
            let pointer = Some((pointer, (number as u64 + 1).to_ne_bytes()));
            let context = (2 * number + thread) as u64;
            until_posted(|| conn.commit(&parts, pointer, VISIBLE, context))
        };
        let commit = &commit;
        let (posted, polled) = thread::scope(|scope| -> Result<_> {
            let threads = [0, 1].map(|thread| {
                scope.spawn(move || {
                    let commits = (0..COMMITS).map(|number| commit(thread, number));
                    commits.collect::<Vec<_>>()
                })
            });
            let mut polled = [const { Vec::new() }; 2];
            for _ in 0..2 * COMMITS {
                let wc = next_completion(conn.get_cq())?;
                wc.result()?;
                let (number, thread) = (wc.wr_id() as usize / 2, wc.wr_id() as usize % 2);
                assert_eq!(number, polled[thread].len(), "in order");
                polled[thread].push(wc.posted().ok_or("named")?);
                // Word by word: the device writes the others meanwhile.
                let found = |at| target.load_u64(at);
                for at in starts(thread, number) {
                    let data = source.load_u64(at)?;
                    assert_eq!(found(at)?, data, "data of {number}");
                }
                let shown = found(len + 8 * thread)?;
                assert!(shown > number as u64, "the pointer is {shown}");
            }
            let posted = threads.map(|thread| thread.join().expect("no panic"));
            Ok((posted, polled))
        })?;
        // Each thread has the names of its own commits.
        assert_eq!(posted, polled);
    }
    Ok(())
}

/// The pointer is not written after a part that fails, and each completion has the program's
/// number.
#[test]
fn a_failed_part_shows_nothing() -> Result {
    let (_test, peer) = peer_test()?;
    let source = region(&peer, 64, MrUsage::WRITE_SRC)?;
    for pair in Pair::each(&peer, configurations()) {
        let target = region(&peer, 64, target_usage())?;
        let far = remote(&target);
        let gone = remote(&region(&peer, 64, target_usage())?);
        let parts = [
            part_of(&far, &source, 0, 16),
            part_of(&gone, &source, 16, 16),
        ];
        let pointer = Some((far.slice(56..)?, [3; 8]));
        let posted = pair.client.commit(&parts, pointer, VISIBLE, 5)?;
        let next = || next_completion(pair.client.get_cq());
        let mut failed = next()?;
        assert_eq!(failed.status(), refused());
        while failed.posted() != Some(posted) {
            assert_eq!(failed.wr_id(), 5);
            failed = next()?;
        }
        assert_eq!(failed.status(), WcStatus::WR_FLUSH_ERR);
        assert_eq!(contents(&target)?[56..], [0; 8], "the pointer");
    }
    Ok(())
}
