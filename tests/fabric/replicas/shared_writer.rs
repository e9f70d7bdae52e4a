//! A writer that threads share: no append waits for another append's sleep, and none is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rpma::commit::{Fate, SharedWriter, Ticket};
use rpma::thread;

use crate::looking;
use crate::replicas::prelude::*;
use crate::replicas::served::Served;

const SECOND: Duration = Duration::from_secs(1);
/// The time of a request on the network.
const DELAY: Duration = Duration::from_millis(1);
/// A wait takes less, after the last of its commits has an answer. A completion without a wake-up
/// would be found after 50 ms, or after a second.
const SOON: Duration = Duration::from_millis(30);
/// The bytes of a record, and where it goes.
const RECORD: u64 = 16;

/// A shared writer, its region at the server, and everything that both need.
struct Made {
    writer: SharedWriter,
    to: MrRemote,
    source: Mr<Memory>,
    link: Link,
    server: Host,
    fabric: Fabric,
    ends: (Vec<Server>, Option<Conn>),
}

impl Made {
    /// The calling thread is on the client for as long as the second value lives.
    fn new(fabric: &Fabric, way: Way) -> Result<(Self, Entered)> {
        let client = fabric.host("client");
        if way.method == Method::Server {
            return Self::served(fabric, client);
        }
        let server = Server::new(fabric, "server", way)?;
        let entered = client.enter();
        let peer = peer()?;
        let (writer, far) = server.connect(&peer, way, &server.target)?;
        let made = Self {
            to: writer.offer().regions()[0],
            writer: SharedWriter::new(writer),
            source: region(&peer, RECORD as usize, MrUsage::WRITE_SRC)?,
            link: fabric.between(&client, &server.host),
            server: server.host.clone(),
            fabric: fabric.clone(),
            ends: (vec![server], Some(far)),
        };
        Ok((made, entered))
    }

    /// By the server's method: its program runs by itself.
    fn served(fabric: &Fabric, client: Host) -> Result<(Self, Entered)> {
        let server = fabric.host("server");
        let entered = client.enter();
        let peer = peer()?;
        let (served, writer) = Served::new(&server, &peer, 7)?;
        drop(server.spawn(move || served.serve()));
        let made = Self {
            to: writer.offer().regions()[0],
            writer: SharedWriter::new(writer),
            source: region(&peer, RECORD as usize, MrUsage::WRITE_SRC)?,
            link: fabric.between(&client, &server),
            server,
            fabric: fabric.clone(),
            ends: (Vec::new(), None),
        };
        Ok((made, entered))
    }

    fn commit(&self, number: u64) -> rpma::Result<Ticket> {
        let at = START + number * RECORD;
        let parts = [(self.to.slice(at..at + RECORD)?, self.source.slice(..)?)];
        let pointer = (self.to.slice(..8)?, number.to_le_bytes());
        self.writer.commit(&parts, Some(pointer))
    }

    /// Commits, as soon as there is room.
    fn append(&self, number: u64) -> rpma::Result<Ticket> {
        loop {
            match self.commit(number) {
                Err(Error::QueueFull { .. }) => self.writer.wait_room(LIMIT)?,
                posted => return posted,
            }
        }
    }

    /// Waits, and returns how long that took.
    fn wait(&self, ticket: Ticket, limit: Duration) -> (rpma::Result<()>, Duration) {
        let from = now();
        let waited = self.writer.wait(ticket, limit);
        (waited, now() - from)
    }
}

/// The ways of a profile, with so many commits in flight.
fn ways(profile: &Profile, in_flight: u16) -> Vec<Way> {
    let of = |method| Way {
        method,
        ..Way::visible().sending(in_flight, 7)
    };
    let methods = [methods(profile), vec![Method::Server]].concat();
    methods.into_iter().map(of).collect()
}

/// Runs this for a share of so many seeds, for each profile and method in turn.
fn with_ways(seeds: u64, in_flight: u16, run: impl Fn(&Made) -> Result) {
    with_seeds(seeds, |seed| {
        let profile = &Profile::EVERY[seed as usize % Profile::EVERY.len()];
        let ways = ways(profile, in_flight);
        let way = ways[seed as usize / Profile::EVERY.len() % ways.len()];
        let fabric = Rig::of(profile).seed(seed).fabric();
        let (made, _entered) = Made::new(&fabric, way).expect("connected");
        let what = |error| panic!("{}, {}: {error:?}", profile.name(), way.method);
        run(&made).unwrap_or_else(what);
    });
}

/// Promise: each of several threads learns that its commits are durable as soon as they are, in
/// every order of the threads. A wait for room is woken as well.
#[test]
fn each_thread_learns_of_its_commits() {
    const THREADS: u64 = 4;
    const EACH: u64 = 4;
    with_ways(200, 3, |made| {
        made.link.delay(DELAY);
        let append = |thread: u64| {
            for n in 0..EACH {
                let ticket = made.append(thread * EACH + n).expect("posted");
                let (waited, took) = made.wait(ticket, LIMIT);
                assert!(waited.is_ok() && took < SOON, "{waited:?} after {took:?}");
                assert_eq!(made.writer.fate(ticket).expect("its own"), Fate::Durable);
            }
        };
        thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || append(thread));
            }
        });
        assert_eq!(made.writer.durable(), THREADS * EACH);
        Ok(())
    });
}

/// Promise: no append waits for another append's sleep. A commit takes no time while one thread
/// sleeps for the connection, and another one on its seat.
#[test]
fn a_commit_waits_for_no_sleep() {
    with_ways(40, 8, |made| {
        made.link.hold();
        let has_slept = AtomicBool::new(false);
        thread::scope(|scope| {
            for number in 0..2 {
                let has_slept = &has_slept;
                scope.spawn(move || {
                    let ticket = made.commit(number).expect("posted");
                    let (waited, _) = made.wait(ticket, LIMIT);
                    waited.expect("it is durable in the end");
                    has_slept.store(true, Ordering::Relaxed);
                });
            }
            // The clock moves when both sleep.
            sleep(SECOND / 10);
            for number in 2..8 {
                let from = now();
                let posted = made.commit(number);
                let took = now() - from;
                // A server may take two.
                let is_full = matches!(posted, Err(Error::QueueFull { .. }));
                assert!((posted.is_ok() || is_full) && took < DELAY, "{took:?}");
            }
            assert!(!has_slept.load(Ordering::Relaxed), "both sleep on");
            made.link.release();
        });
        Ok(())
    });
}

/// Promise: a limit holds, for the thread that sleeps for all and for one on a seat, and the others
/// learn of their commits after it.
#[test]
fn a_limit_holds_and_the_others_go_on() {
    with_ways(60, 8, |made| {
        made.link.hold();
        thread::scope(|scope| {
            let tickets = [0, 1].map(|number| made.commit(number).expect("posted"));
            let wait = |ticket: Ticket, limit: Duration| {
                let (waited, took) = made.wait(ticket, limit);
                (waited, took.saturating_sub(limit))
            };
            let limits = [SECOND, SECOND / 2, SECOND / 4, Duration::ZERO];
            let late = limits.map(|limit| {
                let thread = scope.spawn(move || wait(tickets[0], limit));
                // In this order they wait.
                sleep(SECOND / 20);
                thread
            });
            let waiting = scope.spawn(move || wait(tickets[1], LIMIT));
            for thread in late {
                let (waited, late) = thread.join().expect("no panic");
                assert!(matches!(waited, Err(Error::TimedOut(_))), "{waited:?}");
                assert!(late < SOON, "{late:?}");
            }
            made.link.release();
            let released = now();
            let (waited, _) = waiting.join().expect("no panic");
            assert!(
                waited.is_ok() && now() - released < SECOND / 2,
                "{waited:?}"
            );
        });
        Ok(())
    });
}

/// Promise: the thread that sleeps for all stands still, at any of its steps and for longer than the
/// limit of another thread. That thread finds its commit nevertheless.
#[test]
fn a_thread_that_stands_still_costs_nobody_a_commit() {
    const STANDS: Duration = Duration::from_secs(30);
    let run = |at: Option<u64>| {
        let fabric = Rig::strict().seed(1).fabric();
        let (made, _entered) = Made::new(&fabric, Way::visible()).expect("connected");
        made.link.delay(SECOND / 2);
        let from = fabric.steps();
        let stood = Arc::new(AtomicBool::new(false));
        thread::scope(|scope| {
            let made = &made;
            let lookout = thread::Builder::new().name("lookout".to_owned());
            let [first, second] = [0, 1].map(|number| made.commit(number).expect("posted"));
            let waiting = lookout.spawn_scoped(scope, move || made.wait(second, LIMIT).0);
            sleep(DELAY);
            let stands = at.map(|step| {
                let stood = Arc::clone(&stood);
                fabric.at_step(fabric.steps() + step, move || {
                    if thread::current().name() == Some("lookout") {
                        stood.store(true, Ordering::Relaxed);
                        sleep(STANDS);
                    }
                })
            });
            let (waited, _) = made.wait(first, SECOND);
            assert!(waited.is_ok(), "a standstill at {at:?}: {waited:?}");
            let waiting = waiting.expect("a thread").join().expect("no panic");
            assert!(waiting.is_ok(), "a standstill at {at:?}: {waiting:?}");
            drop(stands);
        });
        (fabric.steps() - from, stood.load(Ordering::Relaxed))
    };
    let (steps, _) = run(None);
    let stood = (1..=steps).filter(|at| run(Some(*at)).1).count();
    assert!(stood >= 4, "{stood} of {steps}");
}

/// Promise: when the server's host is gone, all threads that wait learn the reason, long before
/// their limits; those that wait for room, and those that come later, as well.
#[test]
fn an_end_is_everybodys() {
    let hour = 3600 * SECOND;
    for profile in Profile::ALL {
        for mut way in ways(&profile, 2) {
            way.retries = 2;
            if way.method == Method::Server {
                // Its retries have no end.
                continue;
            }
            let fabric = Rig::of(&profile).seed(7).fabric();
            let (made, _entered) = Made::new(&fabric, way).expect("connected");
            made.server.freeze();
            let from = now();
            thread::scope(|scope| {
                let tickets = [0, 1].map(|number| made.commit(number).expect("posted"));
                let made = &made;
                let waits = tickets.map(|ticket| scope.spawn(move || made.wait(ticket, hour).0));
                let room = scope.spawn(move || made.writer.wait_room(hour));
                let waits = waits.into_iter().chain([room]);
                for wait in waits {
                    let waited = wait.join().expect("no panic");
                    let is_late = matches!(waited, Ok(()) | Err(Error::TimedOut(_)));
                    assert!(!is_late, "{}: {waited:?}", profile.name());
                }
                assert!(made.wait(tickets[0], hour).0.is_err());
                assert!(made.writer.is_over() && made.commit(2).is_err());
            });
            assert!(now() - from < hour / 60, "{}", profile.name());
        }
    }
}

/// Promise: all threads that wait learn the end from the peer's disconnect, when the time for late
/// acknowledgements is over.
#[test]
fn a_disconnect_is_everybodys() -> Result {
    for profile in Profile::EVERY {
        let fabric = Rig::of(&profile).seed(7).fabric();
        let (made, _entered) = Made::new(&fabric, Way::visible())?;
        made.link.hold();
        thread::scope(|scope| {
            let waits = [0, 1, 2].map(|number| {
                let ticket = made.commit(number).expect("posted");
                let made = &made;
                scope.spawn(move || made.wait(ticket, 3600 * SECOND))
            });
            sleep(SECOND / 10);
            let far = made.ends.1.as_ref().expect("the server's end");
            far.disconnect().expect("it asks");
            for wait in waits {
                let (waited, took) = wait.join().expect("no panic");
                let is_late = matches!(waited, Ok(()) | Err(Error::TimedOut(_)));
                assert!(!is_late && took < 3 * SECOND, "{waited:?} after {took:?}");
            }
        });
    }
    Ok(())
}

/// Promise: a thread that waits for the release of its source may write to it then. With the
/// server's method the answer can come first, and otherwise a durable commit is released.
#[test]
fn a_source_is_released() -> Result {
    let mut later = 0;
    for profile in Profile::EVERY {
        for way in ways(&profile, 2) {
            let fabric = Rig::of(&profile).seed(7).fabric();
            let (made, _entered) = Made::new(&fabric, way)?;
            let is_server = way.method == Method::Server;
            if is_server {
                made.link.lose_acknowledgements(1);
            }
            let ticket = made.commit(1)?;
            made.wait(ticket, LIMIT).0?;
            if !is_server {
                assert_eq!(made.writer.released(), ticket.number());
            } else if made.writer.released() < ticket.number() {
                later += 1;
                let waited = made.writer.wait_released(ticket, SOON);
                assert!(matches!(waited, Err(Error::TimedOut(_))), "{waited:?}");
                made.server.kill();
            }
            made.writer.wait_released(ticket, LIMIT)?;
            assert_eq!(made.writer.released(), ticket.number());
        }
    }
    assert!(later > 0, "an answer comes first");
    Ok(())
}

/// Promise: the end of the connection releases the sources of all commits at once, although the
/// device would repeat its requests for seconds; and the peer's program learns of a failure.
#[test]
fn an_end_releases_all_sources() -> Result {
    for profile in Profile::EVERY {
        let fabric = Rig::of(&profile).seed(7).fabric();
        let (made, _entered) = Made::new(&fabric, Way::visible().sending(2, 7))?;
        made.link.block();
        let ticket = made.commit(1)?;
        made.server.kill();
        let from = now();
        made.writer.wait_released(ticket, LIMIT)?;
        let took = now() - from;
        assert!(took < SOON, "{took:?}");
        assert!(made.wait(ticket, LIMIT).0.is_err());
    }
    // On iWARP the flushed request comes before its cause.
    for profile in Profile::ALL {
        let fabric = Rig::of(&profile).seed(8).fabric();
        let (made, _entered) = Made::new(&fabric, Way::visible().sending(2, 7))?;
        made.link.lose_request(1);
        let ticket = made.commit(1)?;
        let failed = made.wait(ticket, LIMIT).0.expect_err("it is lost");
        made.writer.look();
        let far = made.ends.1.as_ref().ok_or("the server's end")?;
        assert_eq!(far.wait_ended(LIMIT)?, ConnEvent::Closed);
        let reason = made.wait(ticket, LIMIT).0.expect_err("it is lost");
        assert_eq!(reason.to_string(), failed.to_string());
    }
    Ok(())
}

/// Promise: a keep-alive ends the waits of all threads, also if the device sends requests again without
/// an end.
#[test]
fn a_keep_alive_watches_while_threads_wait() -> Result {
    let keep_alive = 20 * SECOND;
    for profile in Profile::EVERY {
        let way = Way {
            keep_alive: Some(keep_alive),
            ..Way::visible().sending(2, 7)
        };
        let fabric = Rig::of(&profile).seed(7).fabric();
        let (made, _entered) = Made::new(&fabric, way)?;
        made.server.freeze();
        let from = now();
        thread::scope(|scope| {
            let waits = [0, 1].map(|number| {
                let ticket = made.commit(number).expect("posted");
                let made = &made;
                scope.spawn(move || made.wait(ticket, 3600 * SECOND).0)
            });
            let room = scope.spawn(|| made.writer.wait_room(3600 * SECOND));
            for wait in waits.into_iter().chain([room]) {
                let waited = wait.join().expect("no panic");
                let is_late = matches!(waited, Ok(()) | Err(Error::TimedOut(_)));
                assert!(!is_late, "{}: {waited:?}", profile.name());
            }
        });
        let took = now() - from;
        assert!(
            took < keep_alive + 2 * SECOND,
            "{}: {took:?}",
            profile.name()
        );
    }
    Ok(())
}

/// Promise: a server that has taken the requests, and whose host is gone, leaves nothing in flight
/// that would fail. The thread that sleeps asks for it, and all threads learn the end.
#[test]
fn a_silent_server_is_asked() -> Result {
    for profile in Profile::ALL {
        let (fabric, [client, host]) = Rig::of(&profile).seed(5).hosts(["client", "server"]);
        let _entered = client.enter();
        let peer = peer()?;
        // Its program does not run.
        let (_served, writer) = Served::new(&host, &peer, 2)?;
        let to = writer.offer().regions()[0];
        let writer = SharedWriter::new(writer);
        let source = region(&peer, RECORD as usize, MrUsage::WRITE_SRC)?;
        let commit = |number: u64| {
            let at = START + number * RECORD;
            writer.commit(&[(to.slice(at..at + RECORD)?, source.slice(..)?)], None)
        };
        let tickets = [commit(0)?, commit(1)?];
        while writer.released() < 2 {
            writer.look();
            sleep(DELAY);
        }
        fabric.power_cut(&host);
        let from = now();
        thread::scope(|scope| {
            let writer = &writer;
            let wait = |ticket| scope.spawn(move || writer.wait(ticket, 3600 * SECOND));
            for thread in tickets.map(wait) {
                let waited = thread.join().expect("no panic");
                let is_late = matches!(waited, Ok(()) | Err(Error::TimedOut(_)));
                assert!(!is_late, "{}: {waited:?}", profile.name());
            }
        });
        assert!(now() - from < LIMIT, "{}", profile.name());
    }
    Ok(())
}

/// Promise: the writer comes back from its last handle, with its tickets, and goes on.
#[test]
fn the_last_handle_gives_the_writer_back() -> Result {
    let way = Way::visible().sending(2, 7);
    let (made, _entered) = Made::new(&Rig::strict().seed(3).fabric(), way)?;
    let ticket = made.append(0)?;
    made.writer.wait(ticket, LIMIT)?;
    let Made {
        writer,
        to,
        source,
        fabric: _fabric,
        ends: _ends,
        ..
    } = made;
    let other = writer.clone();
    let writer = writer.into_writer().expect_err("it has another handle");
    drop(writer);
    let mut writer = other.into_writer().expect("the last handle");
    assert_eq!(writer.fate(ticket)?, Fate::Durable);
    let parts = [(to.slice(START..START + RECORD)?, source.slice(..)?)];
    let ticket = writer.commit(&parts, None)?;
    writer.wait(ticket, LIMIT, drop)?;
    let shared = SharedWriter::new(writer);
    assert_eq!(shared.durable(), 2);
    let writer = shared.into_writer().expect("the last handle");
    writer.delete()?;
    Ok(())
}

/// Promise: another writer's commit is an error at once.
#[test]
fn a_commit_of_another_writer_is_refused() -> Result {
    let way = Way::visible();
    let rig = Rig::strict().seed(3);
    let set = Set::new(&rig, way, 1)?;
    let writer = |n: usize| set.servers[n].connect(&set.peer, way, &set.servers[n].target);
    let ((one, _far), (other, _other_far)) = (writer(0)?, writer(1)?);
    let source = region(&set.peer, 8, MrUsage::WRITE_SRC)?;
    let to = one.offer().regions()[0].slice(..8)?;
    let (one, other) = (SharedWriter::new(one), SharedWriter::new(other));
    let ticket = one.commit(&[(to, source.slice(..)?)], None)?;
    assert_invalid(other.wait(ticket, LIMIT), &["another writer"]);
    assert_invalid(other.fate(ticket), &["another writer"]);
    one.wait(ticket, LIMIT)?;
    Ok(())
}

/// Promise: commits and waits of threads do not allocate, after one more thread has
/// waited at the same time.
#[test]
fn shared_commits_allocate_nothing() {
    with_ways(8, 4, |made| {
        made.link.hold();
        let append = |number| -> Result {
            let ticket = made.append(number)?;
            made.writer.wait(ticket, LIMIT)?;
            Ok(())
        };
        thread::scope(|scope| {
            // One more has waited.
            scope.spawn(move || append(3).expect("durable"));
            let threads = [0, 1, 2].map(|thread| {
                scope.spawn(move || {
                    append(thread).expect("durable");
                    sleep(SECOND);
                    looking::begin();
                    (0..4).for_each(|n| append(4 * thread + n).expect("durable"));
                    looking::end()
                })
            });
            sleep(SECOND / 10);
            made.link.release();
            made.link.delay(DELAY);
            for thread in threads {
                let found = thread.join().expect("no panic");
                assert!(found.is_empty(), "{found:#?}");
            }
        });
        Ok(())
    });
}
