//! How many system calls the library makes, counted by strace, under which each test starts itself
//! again.

use std::path::Path;
use std::process::Command;
use std::{env, fs, thread};

use rpma::wait::Wait;

use crate::common::prelude::*;
use crate::common::program::alone;

const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;

/// Set for the test under strace.
const COUNTED: &str = "RPMA_TEST_COUNTED";

/// Runs a test twice: under strace, with `measured`; and then `check` with the system calls of each
/// [`counted`] part, by its name.
fn with_strace(
    name: &str,
    measured: impl FnOnce() -> Result,
    check: impl FnOnce(&dyn Fn(&str) -> Vec<String>),
) -> Result {
    if env::var_os(COUNTED).is_some() {
        let _test = device_test();
        return measured();
    }
    // Without a device, this panics with the remedy.
    addr();
    let dir = tempfile::tempdir()?;
    let trace = dir.path().join("trace");
    let output = Command::new("strace")
        .args(["-f", "-o"])
        .arg(&trace)
        .args(alone(module_path!(), name))
        .env(COUNTED, "1")
        .output()?;
    let [said, errors] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    assert!(output.status.success(), "{said}\n{errors}");
    let trace = fs::read_to_string(&trace)?;
    check(&|part| calls(&trace, part));
    Ok(())
}

/// Marks the counted calls by two system calls that fail: the thread's calls in between are `part`.
fn counted<T>(part: &str, what: impl FnOnce() -> T) -> T {
    let [begin, end] = ["begin", "end"].map(|edge| format!("/{edge} {part}"));
    assert!(!Path::new(&begin).exists());
    let result = what();
    assert!(!Path::new(&end).exists());
    result
}

/// The system calls that the thread made in `part`.
fn calls(trace: &str, part: &str) -> Vec<String> {
    let [begins, ends] = ["begin", "end"].map(|edge| format!("\"/{edge} {part}\""));
    let begin = trace.lines().find(|line| line.contains(&begins));
    let thread = begin.and_then(|line| line.split_whitespace().next());
    let thread = thread.unwrap_or_else(|| panic!("{part} is there"));
    let of_thread = trace.lines().filter_map(|line| {
        let (pid, call) = line.split_once(' ')?;
        (pid == thread).then(|| call.trim_start())
    });
    of_thread
        .skip_while(|call| !call.contains(&begins))
        .skip(1)
        .take_while(|call| !call.contains(&ends))
        // One that another thread's stands in the middle of has two lines.
        .filter(|call| !call.starts_with("<..."))
        .map(|call| call.split(['(', ' ']).next().unwrap_or_default().to_owned())
        .collect()
}

fn write(conn: &Conn, op_context: u64) {
    let posted = conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, op_context);
    posted.expect("posted");
}

/// Promise (docs/performance.md): a wait is 3 system calls if there is an event, 5 if it has to
/// wait for one; polling makes no system call.
#[test]
fn a_wait_makes_three_or_five_system_calls() -> Result {
    let measured = || {
        let pair = Pair::new(&peer()?)?;
        let (conn, cq) = (&pair.client, pair.client.get_cq());
        let mut wcs = [Wc::default()];
        // The first ones look up symbols, which libc does by calls of its own.
        for round in 0..3 {
            let name = |part: &str| format!("{part} {round}");
            write(conn, 1);
            completion(conn)?;
            counted(&name("ready"), || cq.wait_timeout(LIMIT))?;
            thread::scope(|scope| -> Result {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(300));
                    write(conn, 2);
                });
                counted(&name("blocks"), || cq.wait_timeout(LIMIT))?;
                Ok(())
            })?;
            let polled = counted(&name("polls"), || cq.get_wc(&mut wcs))?;
            assert_eq!(polled, 1, "the event's completion");
        }
        Ok(())
    };
    let name = "a_wait_makes_three_or_five_system_calls";
    with_strace(name, measured, |calls| {
        for (part, count) in [("ready 2", 3), ("blocks 2", 5), ("polls 2", 0)] {
            let calls = calls(part);
            assert_eq!(calls.len(), count, "{part}: {calls:?}");
        }
    })
}

/// Promise (docs/completion-events.md): `Wait::next` makes 5 system calls if a completion event is
/// there, and 7 if it has to wait for one, beside one member or fifty. It makes one if no event is
/// there and the limit is 0.
#[test]
fn a_wait_of_many_members_makes_five_or_seven_system_calls() -> Result {
    let measured = || {
        for idle in [1, 50] {
            let peer = peer()?;
            let ep = listen(&peer)?;
            let mut wait = Wait::new()?;
            let (mut members, mut clients, mut wcs) = (vec![], vec![], [Wc::default()]);
            for _ in 0..idle {
                let place = wait.place();
                let cfg = place.cfg(&peer, &ConnCfg::new())?;
                clients.push(ask(&peer, &ep, &ConnCfg::new())?);
                let conn = accept(&ep, &cfg)?;
                members.push(wait.add(place, conn)?);
                event(&clients[clients.len() - 1])?;
                assert!(wait.next(&mut wcs, LIMIT)?.is_some());
            }
            for round in 0..3 {
                let name = |part: &str| format!("{part} {idle} {round}");
                let came = counted(&name("nothing"), || wait.next(&mut wcs, Duration::ZERO));
                assert!(came?.is_none());
                write(wait.conn(members[0]).ok_or("a member")?, 1);
                thread::sleep(Duration::from_millis(100));
                let came = counted(&name("ready"), || wait.next(&mut wcs, LIMIT));
                assert!(came?.is_some());
                assert!(wait.next(&mut wcs, Duration::ZERO)?.is_none());
                let conn = wait.conn(members[0]).ok_or("a member")?;
                conn.recv(MrSlice::EMPTY, 1)?;
                let client = &clients[0];
                thread::scope(|scope| -> Result {
                    scope.spawn(|| {
                        thread::sleep(Duration::from_millis(300));
                        client.send(MrSlice::EMPTY, ALWAYS, 1).expect("posted");
                    });
                    let came = counted(&name("blocks"), || wait.next(&mut wcs, LIMIT));
                    assert!(came?.is_some());
                    Ok(())
                })?;
                completion(client)?;
                assert!(wait.next(&mut wcs, Duration::ZERO)?.is_none());
            }
        }
        Ok(())
    };
    let name = "a_wait_of_many_members_makes_five_or_seven_system_calls";
    with_strace(name, measured, |calls| {
        for idle in [1, 50] {
            for (part, count) in [("nothing", 1), ("ready", 5), ("blocks", 7)] {
                let part = format!("{part} {idle} 2");
                let calls = calls(&part);
                assert_eq!(calls.len(), count, "{part}: {calls:?}");
            }
        }
    })
}

/// Promise (`Batch`, `Conn::commit`): over soft-RoCE a doorbell is a system call. A batch is one
/// doorbell, with either way to flush, and so is a commit; a batch with a gather beside a native
/// flush is two. Receives make no system call.
#[test]
fn a_batch_is_one_system_call() -> Result {
    let measured = || {
        let peer = peer()?;
        let usage = MrUsage::all().difference(MrUsage::FLUSH_TYPE_PERSISTENT);
        let memory = region(&peer, 1024, usage)?;
        let far = remote(&memory);
        for fallback in [false, true] {
            let way = if fallback { "fallback" } else { "native" };
            let name = |part: &str| format!("{part} {way}");
            let mut cfg = ConnCfg::new();
            cfg.set_sq_size(40).set_rq_size(40).set_cq_size(80);
            cfg.set_max_send_sge(2)?;
            cfg.set_force_fallback(fallback);
            let pair = Pair::with(&peer, &cfg, &cfg)?;
            let conn = &pair.client;
            let part = |at: usize| memory.slice(at..at + 32).expect("inside");
            let there = |at: u64, len: u64| far.slice(at..at + len).expect("inside");
            for round in 0..2 {
                let name = |part: &str| name(&format!("{part} {round}"));
                counted(&name("16 and a flush"), || {
                    let mut batch = conn.batch::<17>();
                    for n in 0..16 {
                        let to = there(n * 32, 32);
                        batch
                            .write(to, part(512), Flags::COMPLETION_ON_ERROR, n)
                            .expect("added");
                    }
                    let flush = batch.flush(there(0, 512), FlushType::Visibility, ALWAYS, 16);
                    flush.expect("added");
                    batch.post().expect("posted");
                });
                completion(conn)?;
                counted(&name("one by one"), || {
                    for n in 0..3 {
                        write(conn, n);
                    }
                });
                completions(conn, 3)?;
                counted(&name("a gather and a flush"), || {
                    let mut batch = conn.batch::<4>();
                    let parts = [part(0), part(32)];
                    batch
                        .write_gather(there(0, 64), &parts, ALWAYS, 1)
                        .expect("added");
                    let flush = batch.flush(there(0, 64), FlushType::Visibility, ALWAYS, 2);
                    flush.expect("added");
                    batch.post().expect("posted");
                });
                completions(conn, 2)?;
                counted(&name("a commit"), || {
                    let parts = [0, 128, 64].map(|at| (there(at, 32), part(512)));
                    let pointer = Some((there(1000, 8), [7; 8]));
                    let commit = conn.commit(&parts, pointer, FlushType::Visibility, 3);
                    commit.expect("posted");
                });
                completion(conn)?;
            }
            let receives: Vec<_> = (0..40).map(|n| (MrSlice::EMPTY, n)).collect();
            counted(&name("receives"), || pair.server.recv_many(&receives))?;
        }
        Ok(())
    };
    with_strace("a_batch_is_one_system_call", measured, |calls| {
        // Headers without the native flush leave one chain.
        let gather = if cfg!(native_flush) { 2 } else { 1 };
        for (how, gather) in [("native", gather), ("fallback", 1)] {
            for (part, count) in [
                ("16 and a flush 1", 1),
                ("one by one 1", 3),
                ("a gather and a flush 1", gather),
                ("a commit 1", 1),
                ("receives", 0),
            ] {
                let calls = calls(&format!("{part} {how}"));
                // The allocator's are not the library's, which does not allocate here.
                assert_eq!(calls.len(), count, "{part}, {how}: {calls:?}");
            }
        }
    })
}
