//! A stall of a fabric is printed: a thread that others wait for sleeps in a lock of std.
//!
//! Each wrong program runs in a process of its own.

use std::env;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use rpma::sim::{now, sleep, wait_readable};
use rpma::sync;

use crate::common::prelude::*;
use crate::common::program::command_alone;

/// Set in a process that runs a wrong program: its name.
const PLANTED: &str = "RPMA_TEST_PLANTED";

const HOUR: Duration = Duration::from_secs(3_600);
const LIMIT: Duration = Duration::from_secs(120);

/// The beginning of a line about a stall.
const LINE: &str = "rpma-sim: ";

/// One mutex, for two threads.
fn one_lock() -> [Arc<Mutex<()>>; 2] {
    let lock = Arc::new(Mutex::new(()));
    [Arc::clone(&lock), lock]
}

/// A check locks a mutex that another thread of the host holds across its calls. Neither can go on.
fn check_locks(fabric: &Fabric) -> Result {
    let host = fabric.host("here");
    let _entered = host.enter();
    let pmem = host.pmem("log", 64);
    let [lock, held] = one_lock();
    let path = pmem.path().to_owned();
    let (sends, receives) = sync::mpsc::channel();
    let check = |_: &Cut<'_>| drop(lock.lock());
    fabric.on_every_event(check, || {
        host.spawn(move || {
            let map = PmemMap::open(&path, 64).expect("the memory");
            let _held = held.lock();
            sends.send(()).expect("a receiver");
            map.persist(..).expect("inside");
        });
        receives.recv()?;
        let map = PmemMap::open(pmem.path(), 64)?;
        map.persist(..)?;
        Ok(())
    })
}

/// A thread waits for a lock, and the owner of the lock waits for that thread.
fn waits_for_each_other(host: &Host) -> Result {
    let [lock, held] = one_lock();
    let (taken, is_taken) = sync::mpsc::channel();
    let (done, is_done) = sync::mpsc::channel::<()>();
    let holds = host.spawn(move || -> Result {
        let _held = held.lock();
        taken.send(())?;
        is_done.recv()?;
        Ok(())
    });
    is_taken.recv()?;
    drop(lock.lock());
    done.send(())?;
    holds.join().expect("no panic")
}

/// A thread sleeps with a lock for which another one waits, so that the clock does not jump.
fn sleeps_with_a_lock(host: &Host) -> Result {
    let [lock, held] = one_lock();
    let (taken, is_taken) = mpsc::channel();
    host.spawn(move || {
        let _held = held.lock();
        taken.send(()).expect("a receiver");
        sleep(HOUR);
    });
    is_taken.recv()?;
    drop(lock.lock());
    Ok(())
}

/// An action at a step locks a mutex of a thread that waits for its turn.
fn action_locks(fabric: &Fabric, host: &Host) -> Result {
    let [lock, held] = one_lock();
    let (taken, is_taken) = sync::mpsc::channel();
    host.spawn(move || {
        let _held = held.lock();
        taken.send(()).expect("a receiver");
        sleep(HOUR);
    });
    is_taken.recv()?;
    let _action = fabric.at_step(fabric.steps() + 1, move || drop(lock.lock()));
    sleep(Duration::ZERO);
    drop(host.name());
    Ok(())
}

/// A thread waits for a lock that the parent of this process releases, and another thread waits for
/// that one.
fn goes_on_in_the_end(host: &Host) -> Result {
    let [lock, held] = one_lock();
    let (taken, is_taken) = mpsc::channel();
    thread::spawn(move || {
        let _held = held.lock();
        taken.send(()).expect("a receiver");
        let _end = io::stdin().read(&mut [0]);
    });
    is_taken.recv()?;
    let waits = host.spawn(move || drop(lock.lock()));
    waits.join().expect("no panic");
    Ok(())
}

/// An async program waits for a request that is under way, on a fabric without a ticking future.
fn is_not_ticked(fabric: &Fabric, host: &Host) -> Result {
    paused::runtime().block_on(async {
        paused::follow(fabric);
        let nobody = host.addr().to_string().replace(".1", ".99") + ":7";
        let _resolving = ConnReq::resolve(&peer()?, nobody.parse()?, &ConnCfg::new())?;
        std::future::pending::<()>().await;
        Ok(())
    })
}

/// A task yields in a loop, so that a paused clock never comes to the end of a sleep.
fn yields() -> Result {
    paused::runtime().block_on(async {
        let fabric = paused::fabric(&Rig::strict());
        let _ticking = paused::tick(&fabric);
        tokio::spawn(async {
            loop {
                tokio::task::yield_now().await;
            }
        });
        tokio::time::sleep(HOUR).await;
        Ok(())
    })
}

/// The same in an exploration.
fn yields_in_an_order() -> Result {
    rpma::sim::explore(&Profile::STRICT, |fabric| {
        paused::runtime().block_on(async {
            paused::follow(fabric);
            let _ticking = paused::tick(fabric);
            loop {
                tokio::task::yield_now().await;
            }
        });
    });
    Ok(())
}

/// Writes without an end, and never sleeps.
async fn load(conn: &Conn, memories: &Memories) -> Result {
    let (from, to) = (memories.source.slice(..)?, memories.to()?);
    loop {
        let posted = conn.write(to, from, Flags::COMPLETION_ALWAYS, 0)?;
        while conn.wait_for(posted, Duration::ZERO, |_| {}).is_err() {
            tokio::task::yield_now().await;
        }
    }
}

/// The line with the post of [`load`].
const LOAD: u32 = line!() - 8;

/// A connection is busy, so that a paused clock never comes to the end of a sleep.
fn is_loaded() -> Result {
    paused::runtime().block_on(async {
        let fabric = paused::fabric(&Rig::strict());
        let _ticking = paused::tick(&fabric);
        let world = World::on(&fabric);
        let pair = world.connect(&ConnCfg::new(), &ConnCfg::new())?;
        let memories = world.memories(8)?;
        tokio::select! {
            ended = load(&pair.client, &memories) => ended,
            () = tokio::time::sleep(HOUR) => Ok(()),
        }
    })
}

/// A thread polls for something that another thread will do after its limit. So the clock does not
/// jump to that limit.
fn polls(host: &Host) -> Result {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    let named = rpma::thread::Builder::new().name("patient".into());
    let waits = named.spawn(move || {
        sleep(HOUR);
        set.store(true, Ordering::Relaxed);
    })?;
    while !flag.load(Ordering::Relaxed) {
        rpma::thread::yield_now();
    }
    waits.join().expect("no panic");
    drop(host.name());
    Ok(())
}

/// A thread looks whether a descriptor is readable, without a limit.
fn looks() -> Result {
    let (quiet, _other) = UnixStream::pair()?;
    while !wait_readable(&[quiet.as_fd()], Some(now()))? {}
    Ok(())
}

#[test]
fn planted() -> Result {
    let Ok(name) = env::var(PLANTED) else {
        return Ok(());
    };
    if ["yields", "an order", "load", "polls", "looks"].contains(&&*name) {
        // It takes a processor until it is killed, and other tests run beside it.
        rustix::process::nice(19)?;
    }
    let fabric = match &*name {
        "a check" | "a jump" | "no tick" => Rig::strict().fabric(),
        _ => Rig::strict().seed(1).fabric(),
    };
    if name == "a check" || name == "a check with a seed" {
        return check_locks(&fabric);
    }
    match &*name {
        "yields" => return yields(),
        "an order" => return yields_in_an_order(),
        "load" => return is_loaded(),
        _ => {}
    }
    let host = fabric.host("here");
    let _entered = host.enter();
    match &*name {
        "polls" => polls(&host)?,
        "looks" => looks()?,
        "a jump" => {
            fabric.jump_over_waits();
            sleeps_with_a_lock(&host)?;
        }
        "no tick" => is_not_ticked(&fabric, &host)?,
        "each other" => waits_for_each_other(&host)?,
        "an action" => action_locks(&fabric, &host)?,
        _ => goes_on_in_the_end(&host)?,
    }
    Ok(())
}

/// A wrong program that runs, and the lines of its errors.
struct Planted {
    child: Child,
    errors: mpsc::Receiver<String>,
}

impl Planted {
    fn start(name: &str) -> Result<Self> {
        let mut command = command_alone(module_path!(), "planted");
        command.env(PLANTED, name);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let errors = BufReader::new(child.stderr.take().ok_or("a pipe")?);
        let (sends, receives) = mpsc::channel();
        thread::spawn(move || {
            let mut lines = errors.lines().map_while(Result::ok);
            lines.try_for_each(|line| sends.send(line))
        });
        Ok(Self {
            child,
            errors: receives,
        })
    }

    /// Waits for the line about a stall.
    fn line(&self) -> Result<String> {
        loop {
            let line = self.errors.recv_timeout(LIMIT)?;
            if line.starts_with(LINE) {
                return Ok(line);
            }
        }
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Each kind of stall is printed while it lasts, although the output of a test is shown at its end.
#[test]
fn a_stall_is_printed() -> Result {
    const CHECK: &str = "a check of on_every_event sleeps";
    const OTHER: &str = "rpma::sync";
    const HERE: &str = "here (last call: ";
    let check = [CHECK, "Unlock it before the call", HERE];
    let programs = [
        ("a check", check),
        ("a check with a seed", check),
        ("each other", ["has lost its turn, and sleeps", OTHER, HERE]),
        ("an action", ["has the turn, and sleeps", OTHER, HERE]),
        ("a jump", ["keeps the clock from a jump", OTHER, HERE]),
        (
            "no tick",
            ["Something is to come", "Fabric::tick", "rdma_resolve_addr"],
        ),
    ];
    assert_printed(programs)
}

/// A clock that stands still while a program goes on is printed, with the calls of that instant:
/// under a paused clock, and where one thread polls with a seed.
#[test]
fn a_clock_that_stands_still_is_printed() -> Result {
    const SLEEP: &str = "tokio::time::sleep";
    const EFFECT: &str = "no call has an effect";
    const CALL: &str = " times the call ";
    const WAIT: &str = " times a wait for an event.";
    const NONE: &str = "so a task goes on outside of rpma.";
    let load = &format!("{}:{LOAD}", file!());
    assert_printed([
        ("yields", ["stands still", "yield_now", SLEEP, NONE]),
        (
            "an order",
            [
                "stands still",
                "RPMA_SIM_ORDER=\"early\"",
                SLEEP,
                "At this instant",
            ],
        ),
        ("load", ["stands still", load, SLEEP, CALL]),
        (
            "polls",
            [
                EFFECT,
                "rpma::thread::yield_now)",
                "patient (last call: ",
                CALL,
            ],
        ),
        (
            "looks",
            [EFFECT, "planted (last call: ", "rpma::thread::sleep", WAIT],
        ),
    ])
}

/// Starts wrong programs, and looks for words in the line of each.
fn assert_printed<const N: usize, const P: usize>(programs: [(&str, [&str; P]); N]) -> Result {
    let programs =
        programs.map(|(name, parts)| (name, parts, Planted::start(name).expect("a pipe")));
    for (name, parts, planted) in programs {
        let line = planted.line()?;
        for part in parts {
            assert!(line.contains(part), "{name}, {part}: {line}");
        }
        println!("{name}: {line}");
    }
    Ok(())
}

/// A stall that ends has been printed once.
#[test]
fn a_stall_is_printed_once() -> Result {
    let mut planted = Planted::start("it goes on")?;
    let line = planted.line()?;
    assert!(line.contains("has lost its turn"), "{line}");
    let mut input = planted.child.stdin.take().ok_or("a pipe")?;
    input.write_all(b"\n")?;
    let ended = planted.child.wait()?;
    let rest: Vec<String> = planted.errors.iter().collect();
    assert!(ended.success(), "{rest:?}");
    assert!(!rest.iter().any(|line| line.starts_with(LINE)), "{rest:?}");
    Ok(())
}
