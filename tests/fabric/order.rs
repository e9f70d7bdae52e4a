//! The promises of `rpma::sim` about time and the order of threads: a clock that jumps over waits,
//! and runs that a seed repeats.

use std::collections::BTreeSet;
use std::env;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use rpma::sim::{Trace, now, repeatable, sleep};

use crate::common::prelude::*;
use crate::common::program::command_alone;

const HOUR: Duration = Duration::from_secs(3_600);
const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;

/// Two ends of a connection, both on the host that the thread is on.
fn pair() -> (Conn, Conn) {
    Pair::new(&peer().expect("a peer on the test device"))
        .expect("established")
        .ends()
}

/// A write of no bytes, until it is done.
fn write(conn: &Conn) {
    let posted = conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 1);
    let done = conn.wait_for(posted.expect("posted"), LIMIT, |_| {});
    done.expect("it succeeds");
}

/// With a clock that jumps.
fn jumping() -> Here {
    Rig::of(&Profile::RXE_6_12).jumping().here()
}

/// With a seed.
fn seeded() -> Here {
    Rig::of(&Profile::RXE_6_12).seed(1).here()
}

/// Time as such is not measured: an hour would be noticed.
#[test]
fn an_hour_passes_at_once() {
    let here = jumping();
    let (fabric, host) = (&here.fabric, &here.host);
    let (conn, server) = pair();
    let (real, before) = (Instant::now(), fabric.now());
    let waited = conn.get_cq().wait_timeout(HOUR);
    assert!(matches!(waited, Err(Error::NoCompletion)), "{waited:?}");
    let passed = fabric.now() - before;
    assert!(passed >= HOUR, "{passed:?}");

    // The shorter limit is the first to come, also if a thread waits for another one's end.
    let waiting = host.spawn(move || {
        let next = server.next(&mut [Wc::default()], HOUR / 2);
        (matches!(next, Err(Error::TimedOut(_))), now(), server)
    });
    sleep(HOUR);
    let (timed_out, at, server) = waiting.join().expect("no panic");
    assert!(timed_out && at < now());
    let waiting = host.spawn(move || {
        sleep(HOUR);
        drop(server);
    });
    waiting.join().expect("no panic");
    assert!(fabric.now() - before >= 3 * HOUR);
    assert!(real.elapsed() < HOUR / 2);
}

/// The retries of a device take their whole time, and no thread waits for it.
#[test]
fn retries_take_virtual_seconds() -> Result {
    let here = jumping();
    let fails = |conn: &Conn, status: WcStatus| -> Result {
        let before = here.fabric.now();
        // Its end is an event, which comes first.
        let mut wcs = [Wc::default()];
        while let Next::Event(_) = conn.next(&mut wcs, HOUR)? {}
        assert_eq!(wcs[0].status(), status);
        let took = here.fabric.now() - before;
        assert!(took > Duration::from_secs(3) && took < HOUR, "{took:?}");
        Ok(())
    };
    // A peer without a receive: 6 times 655.36 ms.
    let mut cfg = ConnCfg::new();
    cfg.set_rnr_retry_count(6)?.set_min_rnr_timer(Some(0))?;
    let peer = peer()?;
    let Pair { client, server } = Pair::with(&peer, &cfg, &cfg)?;
    client.send(MrSlice::EMPTY, ALWAYS, 1)?;
    fails(&client, WcStatus::RNR_RETRY_EXC_ERR)?;
    drop((client, server));

    // A peer that has destroyed its queue pair: 7 times 537 ms.
    let Pair { client, server } = Pair::new(&peer)?;
    drop(server);
    client.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 1)?;
    fails(&client, WcStatus::RETRY_EXC_ERR)
}

/// The clock does not jump over the work of a thread that is on a host.
#[test]
fn no_jump_while_a_thread_is_busy() -> Result {
    let here = jumping();
    let (client, server) = pair();
    server.recv(MrSlice::EMPTY, 7)?;
    let sending = here.host.spawn(move || -> Result<_> {
        // A wait of the program: the fabric does not see it.
        thread::sleep(Duration::from_millis(50));
        client.send(MrSlice::EMPTY, ALWAYS, 1)?;
        Ok(client)
    });
    let before = here.fabric.now();
    let limit = Duration::from_secs(10);
    let next = server.next(&mut [Wc::default()], limit);
    assert!(matches!(next, Ok(Next::Completions(1))), "{next:?}");
    assert!(here.fabric.now() - before < limit);
    sending.join().expect("no panic")?;
    Ok(())
}

/// A thread on no host has the system's time, and those who wait for it too.
#[test]
fn off_a_host_time_is_real() {
    let here = jumping();
    sleep(HOUR);
    assert!(now() > Instant::now() + HOUR / 2);
    let fabric = here.fabric.clone();
    drop(here);
    assert!(now() < Instant::now() + HOUR / 2);
    assert!(fabric.now() > Instant::now() + HOUR / 2);
}

/// The outcome of a run on a host of a fabric with a seed.
pub(crate) fn run<T>(profile: &Profile, seed: u64, test: impl FnOnce(&Host) -> T) -> (T, Trace) {
    let here = Rig::of(profile).seed(seed).here();
    let result = test(&here.host);
    let fabric = here.fabric.clone();
    drop(here);
    assert_eq!(fabric.why_not_repeatable(), None);
    assert!(fabric.objects().is_empty(), "{:?}", fabric.objects());
    (result, fabric.trace())
}

/// Each seed twice: the findings of the runs, and how many ways they went.
fn twice<T: Ord + std::fmt::Debug>(
    seeds: u64,
    test: impl Fn(&Host) -> T,
) -> (BTreeSet<T>, BTreeSet<u64>) {
    let (mut results, mut traces) = (BTreeSet::new(), BTreeSet::new());
    for profile in [Profile::RXE_6_12, Profile::STRICT] {
        for seed in 0..seeds {
            let [first, again] = [(); 2].map(|()| run(&profile, seed, &test));
            assert_eq!(first, again, "seed {seed}");
            results.insert(first.0);
            traces.insert(first.1.hash);
        }
    }
    (results, traces)
}

/// Two threads with a connection each. They note when they have written.
fn race(host: &Host) -> Vec<u32> {
    let order = Arc::new(Mutex::new(Vec::new()));
    let conns = [0, 1].map(|number| (number, pair()));
    let threads = conns.map(|(number, (conn, server))| {
        let order = Arc::clone(&order);
        host.spawn(move || {
            for _ in 0..2 {
                write(&conn);
                order.lock().expect("no panic").push(number);
            }
            drop(server);
        })
    });
    joined(threads);
    let order = order.lock().expect("no panic");
    order.clone()
}

#[test]
fn a_seed_repeats_a_race() {
    let (orders, traces) = twice(50, race);
    assert!(orders.contains(&vec![0, 0, 1, 1]), "{orders:?}");
    assert!(orders.contains(&vec![1, 1, 0, 0]), "{orders:?}");
    assert!(traces.len() > 25, "{}", traces.len());
}

/// Threads that use one connection wait for rpma's own locks, too.
#[test]
fn a_seed_repeats_threads_of_one_connection() {
    let shares = |host: &Host| {
        let (client, server) = pair();
        let client = Arc::new(client);
        let posting = [1, 2].map(|number| {
            let client = Arc::clone(&client);
            host.spawn(move || {
                for _ in 0..3 {
                    let posted = client.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, number);
                    posted.expect("posted");
                }
            })
        });
        let waiting = [(); 2].map(|()| {
            let client = Arc::clone(&client);
            host.spawn(move || {
                let (mut got, mut wcs) = (Vec::new(), [Wc::default(); 2]);
                while let Ok(Next::Completions(count)) = client.next(&mut wcs, LIMIT) {
                    got.extend(wcs[..count].iter().map(Wc::wr_id));
                }
                got
            })
        });
        joined(posting);
        let got = joined(waiting);
        assert_eq!(got[0].len() + got[1].len(), 6, "{got:?}");
        drop(client);
        let end = event(&server);
        assert!(matches!(end, Ok(ConnEvent::Closed)), "{end:?}");
        got
    };
    let (got, traces) = twice(30, shares);
    assert!(got.len() > 5, "{got:?}");
    assert!(traces.len() > 10, "{}", traces.len());
}

/// Two threads add 1 to a number at the peer, in three steps each: the number that they find at
/// the end.
fn add_twice(host: &Host) -> u64 {
    let owner = peer().expect("a peer on the test device");
    let usage = MrUsage::READ_SRC | MrUsage::WRITE_DST;
    let number = region(&owner, 8, usage).expect("registers");
    let to = remote(&number).slice(..).expect("all");
    let conns = [(); 2].map(|()| Pair::new(&owner).expect("established").ends());
    let adding = conns.map(|(conn, server)| {
        let owner = owner.clone();
        host.spawn(move || {
            let usage = MrUsage::READ_DST | MrUsage::WRITE_SRC;
            let own = region(&owner, 8, usage).expect("registers");
            let own_part = own.slice(..).expect("all");
            let done = |posted: Result<Posted, Error>| {
                let done = conn.wait_for(posted.expect("posted"), LIMIT, |_| {});
                done.expect("it succeeds");
            };
            done(conn.read(own_part, to, ALWAYS, 1));
            let sum = own.load_u64(0).expect("8 bytes") + 1;
            own.store_u64(0, sum).expect("8 bytes");
            done(conn.write(to, own_part, ALWAYS, 1));
            drop(server);
        })
    });
    joined(adding);
    number.load_u64(0).expect("8 bytes")
}

/// Asks for the next test, which fails with some seeds.
const PLANTED: &str = "RPMA_TEST_PLANTED";

#[test]
fn planted() {
    if env::var_os(PLANTED).is_some() {
        repeatable(Profile::RXE_6_12, |fabric| {
            let host = fabric.host("here");
            let _entered = host.enter();
            assert_eq!(add_twice(&host), 2, "an addition is lost");
        });
    }
}

#[test]
fn a_bug_is_found_again() -> Result {
    let finds = |seed| run(&Profile::RXE_6_12, seed, add_twice).0 != 2;
    let found: Vec<u64> = (0..50).filter(|seed| finds(*seed)).collect();
    assert!(!found.is_empty() && found.len() < 50, "{found:?}");
    let other = (0..50).find(|seed| !found.contains(seed));
    for (seed, fails) in [(found[0], true), (other.ok_or("one")?, false)] {
        let output = command_alone(module_path!(), "planted")
            .env(PLANTED, "")
            .env("RPMA_SIM_SEED", seed.to_string())
            .output()?;
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(!output.status.success(), fails, "{told}");
        let again = format!("seed {seed}: run again with RPMA_SIM_SEED={seed}\n");
        assert_eq!(told.contains(&again), fails, "{told}");
        assert!(!told.contains("may not repeat the run"), "{told}");
    }
    Ok(())
}

/// A thread that waits for a lock of the program has the turn, and comes back when the one goes on
/// that has the lock.
#[test]
fn a_lock_of_the_program_is_told() -> Result {
    let here = seeded();
    let lock = Arc::new(Mutex::new(0));
    let own = Arc::clone(&lock);
    let (conn, _server) = pair();
    let holding = here.host.spawn(move || {
        let mut held = own.lock().expect("no panic");
        // Across calls, and long enough for the other one to come.
        sleep(Duration::from_secs(1));
        write(&conn);
        *held += 1;
    });
    let waiting = here.host.spawn(move || {
        sleep(Duration::from_millis(500));
        *lock.lock().expect("no panic") += 1;
        write(&pair().0);
        *lock.lock().expect("no panic")
    });
    holding.join().expect("no panic");
    assert_eq!(waiting.join().expect("no panic"), 2);
    let why = here.fabric.why_not_repeatable().ok_or("it was away")?;
    assert_says(&why, &["did not come back", "lock"]);
    Ok(())
}

/// A thread that sleeps elsewhere until its end keeps the others waiting, and not in vain.
#[test]
fn a_thread_that_ends_elsewhere_has_ended() -> Result {
    let here = seeded();
    let ends = here.host.spawn(|| thread::sleep(Duration::from_secs(3)));
    ends.join().expect("no panic");
    let why = here.fabric.why_not_repeatable().ok_or("it was away")?;
    assert_says(&why, &["did not come back"]);
    Ok(())
}

/// An event that comes at a time of its own is reported as well.
#[test]
fn what_is_not_ordered_is_told() -> Result {
    let rig = Rig::of(&Profile::RXE_6_12).seed(1);
    let (fabric, [host]) = rig.hosts(["here"]);
    let there = host.clone();
    let by_itself = thread::spawn(move || drop(there.enter()));
    // It comes when this thread gives the turn away.
    while fabric.why_not_repeatable().is_none() {
        let _entered = host.enter();
        sleep(Duration::from_millis(1));
    }
    by_itself.join().expect("no panic");
    let why = fabric.why_not_repeatable().ok_or("it came")?;
    assert_says(&why, &["Host::spawn"]);

    let (fabric, [host]) = rig.hosts(["here"]);
    let called = thread::spawn(move || host.name()).join();
    assert_eq!(called.expect("no panic"), "here");
    let why = fabric.why_not_repeatable().ok_or("it called")?;
    assert_says(&why, &["none of its hosts"]);
    Ok(())
}

/// A panic is one thread's, and threads may be started by threads.
#[test]
fn threads_come_and_go() {
    let test = |host: &Host| {
        let outer = host.clone();
        let panics = host.spawn(|| {
            let _conns = pair();
            panic!("as it should");
        });
        let starts = host.spawn(move || {
            let inner = outer.spawn(|| write(&pair().0));
            write(&pair().0);
            let entered = outer.enter();
            inner.join().expect("no panic");
            drop(entered);
            Host::current().is_some()
        });
        assert!(panics.join().is_err());
        starts.join().expect("no panic")
    };
    assert_eq!(twice(5, test).0, BTreeSet::from([true]));
}

/// A wait without an end, which no other thread ends: the places of the threads are reported.
#[test]
fn a_wait_in_vain_is_told() {
    let text = panic_of(|| {
        let _here = seeded();
        let (conn, _server) = pair();
        // It is tried again for ever.
        conn.send(MrSlice::EMPTY, ALWAYS, 1).expect("posted");
        drop(conn.get_cq().wait());
    });
    assert_says(&text, &["nothing is to come", "was last in"]);
}

/// Virtual time goes with calls and jumps: the same in each run.
#[test]
fn time_is_repeated() {
    let (times, _) = twice(3, |host| {
        let began = now();
        let (conn, _server) = pair();
        let waiting = host.spawn(move || {
            let waited = conn.get_cq().wait_timeout(HOUR);
            assert!(matches!(waited, Err(Error::NoCompletion)), "{waited:?}");
        });
        waiting.join().expect("no panic");
        let passed = now() - began;
        assert!(passed >= HOUR && passed < 2 * HOUR, "{passed:?}");
        passed
    });
    assert!(!times.is_empty());
}

/// Waits that can never end are reported, and do not hang the test.
#[test]
fn a_wait_in_vain_is_told_without_a_seed() -> Result {
    let here = jumping();
    let ep = listen(&peer()?)?;
    let waiting = here
        .host
        .spawn(move || ep.next_conn_req(&ConnCfg::new()).map(drop));
    // Either of the two threads panics.
    let text = panic_of(|| waiting.join().unwrap_or_else(|panic| resume_unwind(panic)));
    assert_says(&text, &["every thread of the fabric waits"]);
    Ok(())
}

/// A thread that is long in giving its turn away, because something else has the fabric's lock, is
/// not taken for one that is away: it would never go on.
#[test]
fn who_gives_the_turn_away_slowly_is_not_away() -> Result {
    let here = Rig::strict().seed(1).here();
    let pmem = here.host.pmem("log", 1);
    let map = PmemMap::open(pmem.path(), 1)?;
    let (begins, has_begun) = mpsc::channel();
    let check = move |_: &Cut<'_>| {
        // The first check is that of the thread on no host.
        let _ = begins.send(());
        thread::sleep(Duration::from_secs(3));
    };
    here.fabric.on_every_event(check, || {
        let waiting = here.host.spawn(|| sleep(HOUR));
        let outside = thread::spawn(move || map.persist(..));
        has_begun.recv()?;
        // The lock is taken: to give the turn away takes three seconds.
        waiting.join().expect("it ends");
        outside.join().expect("it ends")?;
        Ok(())
    })
}
