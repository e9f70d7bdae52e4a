//! How many system calls the library makes, counted by strace, under which each test starts itself
//! again.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;
use std::{env, fs, thread};

use rpma::commit::{Limits, Method, Replicas, Writer, WriterCfg};
use rpma::serve::{self, Layout, Server};
use rpma::wait::{Wait, Waker};
use rpma_async::Reactor;
use rpma_log::format::RING;
use rpma_log::{Log, LogCfg, blocking};

use crate::common::prelude::*;
use crate::common::program::alone;

const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;

/// Set for the test under strace.
const COUNTED: &str = "RPMA_TEST_COUNTED";

/// A system call, and its result.
type Call = (String, i64);

/// Runs a test twice: under strace, with `measured`; and then `check` with the names of the system
/// calls of each [`counted`] part, by its name.
fn with_strace(
    name: &str,
    measured: impl FnOnce() -> Result,
    check: impl FnOnce(&dyn Fn(&str) -> Vec<String>),
) -> Result {
    with_results(name, measured, |calls| {
        check(&|part| calls(part).into_iter().map(|(name, _)| name).collect());
    })
}

/// As [`with_strace`], with the results of the system calls.
fn with_results(
    name: &str,
    measured: impl FnOnce() -> Result,
    check: impl FnOnce(&dyn Fn(&str) -> Vec<Call>),
) -> Result {
    with_trace(name, measured, |trace| check(&|part| calls(trace, part)))
}

/// As [`with_strace`], with the output of strace.
fn with_trace(name: &str, measured: impl FnOnce() -> Result, check: impl FnOnce(&str)) -> Result {
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
    check(&fs::read_to_string(&trace)?);
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
fn calls(trace: &str, part: &str) -> Vec<Call> {
    let [begins, ends] = ["begin", "end"].map(|edge| format!("\"/{edge} {part}\""));
    let begin = trace.lines().find(|line| line.contains(&begins));
    let thread = begin.and_then(|line| line.split_whitespace().next());
    let thread = thread.unwrap_or_else(|| panic!("{part} is there"));
    let of_thread = trace.lines().filter_map(|line| {
        let (pid, call) = line.split_once(' ')?;
        (pid == thread).then(|| call.trim_start())
    });
    let of_part = of_thread
        .skip_while(|call| !call.contains(&begins))
        .skip(1)
        .take_while(|call| !call.contains(&ends));
    let mut calls: Vec<Call> = Vec::new();
    for call in of_part {
        let result = call.rsplit_once(" = ").and_then(|(_, result)| {
            let number = result.split_whitespace().next()?;
            number.parse().ok()
        });
        // One that another thread's stands in the middle of has two lines.
        if !call.starts_with("<...") {
            let name = call.split(['(', ' ']).next().unwrap_or_default();
            calls.push((name.to_owned(), result.unwrap_or(-1)));
        } else if let Some(last) = calls.last_mut() {
            last.1 = result.unwrap_or(last.1);
        }
    }
    calls
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

/// Promise (docs/performance.md): `Wait::next` makes 5 system calls if a completion event is
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

/// The calls with which soft-RoCE posts and arms a queue.
const OF_PROVIDER: [&str; 2] = ["write", "ioctl"];

/// A connection's send queue waits for the receive of a message. So a commit after it completes when
/// the peer posts that receive.
fn hold(conn: &Conn) {
    let sent = conn.send(MrSlice::EMPTY, Flags::COMPLETION_ON_ERROR, 0);
    sent.expect("posted");
}

/// Posts the receives when the thread sleeps in `poll(2)`: the file has its system call.
fn release_a_sleeper(system_call: &str, servers: &[Conn]) {
    let sleeps = [libc::SYS_poll, libc::SYS_ppoll].map(|number| format!("{number} "));
    let is_asleep = || {
        let current = fs::read_to_string(system_call).expect("a thread of this process");
        sleeps.iter().any(|number| current.starts_with(number))
    };
    while !is_asleep() {
        thread::yield_now();
    }
    for server in servers {
        server.recv(MrSlice::EMPTY, 0).expect("posted");
    }
}

/// Each sleep that reported descriptors is followed by one read for each, and by nothing else. A
/// sleep that reported none is a silence, after which the wait looks. Returns the numbers of sleeps
/// that reported something, and of silences.
fn sleeps(part: &str, calls: &[Call]) -> (usize, usize) {
    let own = calls
        .iter()
        .filter(|(name, _)| !OF_PROVIDER.contains(&name.as_str()));
    let (mut left, mut sleeps, mut silences) = (0, 0, 0);
    for (name, result) in own {
        match (name.as_str(), left) {
            ("poll" | "ppoll", 0) => {
                left = *result;
                sleeps += usize::from(*result > 0);
                silences += usize::from(*result == 0);
            }
            ("read", 1..) => left -= 1,
            _ => panic!("{part}: {name} with {left} to read: {calls:?}"),
        }
    }
    assert_eq!(left, 0, "{part}: {calls:?}");
    (sleeps, silences)
}

/// Promise (docs/performance.md): a wait of a writer or a set whose commit is there makes no system
/// call, but for a look that is due. One that sleeps makes one for each sleep, and one for each
/// descriptor that a sleep reports. Those of soft-RoCE itself are not among them.
#[test]
fn a_commit_that_sleeps_is_one_poll_and_a_read_for_each_descriptor() -> Result {
    let measured = || {
        let peer = peer()?;
        let memories: Vec<_> = (0..4)
            .map(|_| Memories::new(&peer, &peer, 1024))
            .collect::<Result<_>>()?;
        let (mut servers, mut writers) = (vec![], vec![]);
        for memories in &memories {
            let (server, writer) = committing(&peer, &memories.target)?;
            servers.push(server);
            writers.push(writer);
        }
        let mut writer = writers.pop().ok_or("four writers")?;
        let far = writer.offer().regions()[0];
        let mut set = Replicas::new(&peer, 1024, 4)?;
        set.permit_one_host();
        for writer in writers {
            let far = writer.offer().regions()[0];
            set.add(writer, far)?;
        }
        let task = fs::read_link("/proc/thread-self")?;
        let system_call = format!("/proc/{}/syscall", task.display());
        let (of_set, of_writer) = servers.split_at(3);
        // The first ones look up symbols, and make descriptors.
        for round in 0..3 {
            let name = |part: &str| format!("{part} {round}");
            let part = [part_of(&far, &memories[3].source, 0, 64)];
            let there = writer.commit(&part, None)?;
            thread::sleep(Duration::from_millis(300));
            counted(&name("writer, there"), || writer.wait(there, LIMIT, drop))?;
            hold(writer.conn());
            let late = writer.commit(&part, None)?;
            thread::scope(|scope| {
                scope.spawn(|| release_a_sleeper(&system_call, of_writer));
                counted(&name("writer, sleeps"), || writer.wait(late, LIMIT, drop))
            })?;

            let there = set.record(64)?.commit(0, None, 3)?;
            thread::sleep(Duration::from_millis(300));
            let settled = counted(&name("set, there"), || set.settle(there, 3, LIMIT));
            assert_eq!(settled.copies(), 3);
            set.writers().for_each(|writer| hold(writer.conn()));
            let late = set.record(64)?.commit(0, None, 3)?;
            let settled = thread::scope(|scope| {
                scope.spawn(|| release_a_sleeper(&system_call, of_set));
                counted(&name("set, sleeps"), || set.settle(late, 3, LIMIT))
            });
            assert_eq!(settled.copies(), 3);
        }
        Ok(())
    };
    let name = "a_commit_that_sleeps_is_one_poll_and_a_read_for_each_descriptor";
    with_results(name, measured, |calls| {
        for (of, members) in [("writer", 1), ("set", 3)] {
            let part = format!("{of}, sleeps 2");
            let (sleeps, silences) = sleeps(&part, &calls(&part));
            // On a loaded machine all completions may come at the end of a silence: its look takes
            // them.
            let least = usize::from(silences == 0);
            assert!(
                (least..=members).contains(&sleeps),
                "{part}: {sleeps} sleeps"
            );
            // A look polls until nothing is left.
            let part = format!("{of}, there 2");
            let looks = calls(&part);
            let own = looks
                .iter()
                .filter(|(name, _)| !OF_PROVIDER.contains(&name.as_str()));
            assert!(own.count() <= 3 * members, "{part}: {looks:?}");
        }
    })
}

/// A writer of this region, and the server's end.
fn committing(peer: &Peer, region: &Mr<Memory>) -> Result<(Conn, Writer)> {
    let ep = listen(peer)?;
    let mut cfg = WriterCfg::new(Method::Reading);
    cfg.set_flush_type(FlushType::Visibility)?;
    let req = resolve(peer, &ep, &cfg.conn_cfg(&ConnCfg::new())?)?;
    let connecting = Writer::connect(req, &cfg, &Offer::default())?;
    let mut offer = Offer::new(&PeerCfg::new());
    offer.add_region(region);
    let server = request(&ep, &ConnCfg::new())?.connect(&offer.encode(Offer::ACCEPT)?)?;
    let writer = connecting.wait(LIMIT)?;
    Ok((server.wait_established(LIMIT)?, writer))
}

/// The records that each appender appends.
const RECORDS: usize = 16;
const APPENDERS: usize = 16;

/// Three servers of a log, in parts of one memory.
struct Servers {
    cfg: LogCfg,
    running: Vec<(Waker, JoinHandle<rpma::Result<()>>)>,
}

impl Servers {
    fn new() -> Result<Self> {
        let ring = 1 << 20;
        let layout = Layout::new(1, RING as usize + ring)?;
        let (len, at) = (4 << 20, addr().parse::<std::net::IpAddr>()?);
        let all = PmemMap::open(devdax(), 3 * len)?;
        let mut addrs = Vec::new();
        let mut running = Vec::new();
        for n in 0..3 {
            let memory = all.part(n * len..(n + 1) * len)?;
            memory.write_at(0, &vec![0; layout.len()])?;
            // Any host's platform will do.
            let mut platform = PeerCfg::new();
            platform.set_direct_write_to_pmem(true);
            let mut cfg = serve::ServerCfg::new();
            cfg.set_platform(&platform);
            cfg.set_commits(Some(Limits::new(16, 1, 64 << 10)?));
            let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT;
            let mut server = Server::listen((at, 0).into(), &memory, &layout, usage, &cfg)?;
            addrs.push((at, server.get_port()).into());
            let waker = server.waker();
            running.push((waker, thread::spawn(move || server.serve(drop))));
        }
        let mut cfg = LogCfg::new(&addrs, 2, 1);
        cfg.set_ring(ring as u64).set_create(true).permit_one_host();
        Ok(Self { cfg, running })
    }

    fn stop(self) -> Result {
        for (waker, thread) in self.running {
            waker.wake();
            thread.join().expect("no panic")?;
        }
        Ok(())
    }
}

/// The system calls of all threads in `part`, by their names. A `wake-up` writes to an eventfd;
/// the other writes are soft-RoCE's.
fn of_all_threads(trace: &str, part: &str) -> BTreeMap<String, usize> {
    let [begins, ends] = ["begin", "end"].map(|edge| format!("\"/{edge} {part}\""));
    let calls = trace.lines().skip_while(|call| !call.contains(&begins));
    let calls = calls.skip(1).take_while(|call| !call.contains(&ends));
    let mut counts = BTreeMap::new();
    for call in calls.filter_map(|line| Some(line.split_once(' ')?.1.trim_start())) {
        let is_wake_up = call.contains(r#""\1\0\0\0\0\0\0\0", 8"#);
        let name = match call.split(['(', ' ']).next().unwrap_or_default() {
            // The second line of one that another thread's stands in the middle of.
            "<..." => continue,
            "write" if is_wake_up => "wake-up",
            name => name,
        };
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

fn is_whole(log: &Log) -> bool {
    log.state().servers.iter().all(|of| of.durable.is_some())
}

/// Counts the system calls of one appender and of many, after some that are not counted.
fn appends(how: &str, append: impl Fn(usize) -> Result) -> Result {
    append(1)?;
    for appenders in [1, APPENDERS] {
        counted(&format!("{how} {appenders}"), || append(appenders))?;
    }
    Ok(())
}

fn appends_awaited() -> Result {
    let servers = Servers::new()?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build()?;
    let entered = runtime.enter();
    let reactor = Reactor::spawn(&peer()?)?;
    let log = runtime.block_on(Log::open(&reactor, &servers.cfg))?;
    while !is_whole(&log) {
        runtime.block_on(tokio::time::sleep(Duration::from_millis(10)));
    }
    appends("awaited", |appenders| {
        let append = |log: Log| async move {
            for _ in 0..RECORDS {
                log.append(&[1; 64]).await.expect("appended");
            }
        };
        let tasks = (0..appenders).map(|_| tokio::spawn(append(log.clone())));
        for task in Vec::from_iter(tasks) {
            runtime.block_on(task)?;
        }
        Ok(())
    })?;
    runtime.block_on(log.close())?;
    drop((log, reactor, entered));
    drop(runtime);
    servers.stop()
}

fn appends_blocking() -> Result {
    let servers = Servers::new()?;
    let log = blocking::Log::open(&peer()?, &servers.cfg)?;
    while !is_whole(&log) {
        thread::sleep(Duration::from_millis(10));
    }
    appends("blocking", |appenders| {
        thread::scope(|scope| {
            for _ in 0..appenders {
                scope.spawn(|| {
                    for _ in 0..RECORDS {
                        log.append(&[1; 64]).expect("appended");
                    }
                });
            }
        });
        Ok(())
    })?;
    log.close()?;
    drop(log);
    servers.stop()
}

/// The calls of the library in which a thread waits, takes events, and wakes the driver.
const OF_WAITS: [&str; 6] = [
    "epoll_pwait",
    "epoll_wait",
    "poll",
    "ppoll",
    "read",
    "wake-up",
];

/// Promise (docs/performance.md): an append to a log makes at most so many system calls as three
/// copies that come one after the other. For each of them the driver is woken, waits by two calls
/// and reads the event, and a look makes up to three calls for each of three connections.
#[test]
fn an_append_to_a_log_waits_for_three_copies_at_most() -> Result {
    const MOST: usize = 3 * (1 + 2 + 1 + 3 * 3);
    let name = "an_append_to_a_log_waits_for_three_copies_at_most";
    let measured = || appends_awaited().and_then(|()| appends_blocking());
    with_trace(name, measured, |trace| {
        for (how, appenders) in ["awaited", "blocking"]
            .map(|how| [(how, 1), (how, APPENDERS)])
            .concat()
        {
            let part = format!("{how} {appenders}");
            let counts = of_all_threads(trace, &part);
            println!("{part}: {counts:?}");
            let of_waits = OF_WAITS.iter().filter_map(|name| counts.get(*name));
            let (calls, records) = (of_waits.sum::<usize>(), appenders * RECORDS);
            assert!(calls > 0 && calls <= records * MOST, "{part}: {counts:?}");
        }
    })
}
