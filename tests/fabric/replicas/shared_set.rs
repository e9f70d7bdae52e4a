//! A set that threads share: no append waits for another append's sleep, and none is lost.

use std::sync::atomic::{AtomicBool, Ordering};

use rpma::commit::SharedReplicas;
use rpma::sync::Mutex;
use rpma::thread;

use crate::looking;
use crate::replicas::cluster::Cluster;
use crate::replicas::prelude::*;

const SECOND: Duration = Duration::from_secs(1);
const DELAY: Duration = Duration::from_millis(1);
/// A wait takes less. A completion without a wake-up would be found after 50 ms.
const SOON: Duration = Duration::from_millis(30);

/// Appends records in one order, as the documentation shows.
struct Log {
    set: SharedReplicas,
    next: Mutex<u64>,
}

impl Log {
    fn new(set: Replicas) -> Self {
        Self {
            set: SharedReplicas::new(set),
            next: Mutex::new(0),
        }
    }

    /// Commits the next record, as soon as there is room.
    fn append(&self, k: usize) -> rpma::Result<CommitId> {
        loop {
            let mut next = self.next.lock().expect("no panic");
            let at = START + *next * LEN as u64;
            let tail = (0, (*next + 1).to_le_bytes());
            match self.set.commit(record(*next), at, Some(tail), k) {
                Err(Error::RingFull) => drop(next),
                Err(error) => return Err(error),
                Ok(id) => {
                    *next += 1;
                    return Ok(id);
                }
            }
            self.set.wait_room(LEN, LIMIT)?;
        }
    }

    /// Waits, and returns the copies, and how long that took.
    fn settle(&self, id: CommitId, k: usize, limit: Duration) -> (usize, Duration) {
        let from = now();
        let copies = self.set.settle(id, k, limit).copies();
        (copies, now() - from)
    }
}

fn way(method: Method) -> Way {
    Way {
        method,
        flush_type: match method {
            Method::Server => FlushType::Persistent,
            _ => FlushType::Visibility,
        },
        ..Way::visible().sending(2, 7)
    }
}

fn links(fabric: &Fabric, of: &Cluster) -> Vec<Link> {
    let hosts = of.hosts.iter();
    hosts.map(|host| fabric.between(&of.client, host)).collect()
}

/// Promise: each of several threads learns that its commits are on `k` replicas as soon as they
/// are, in every order of the threads, and each replica has all records in their order.
#[test]
fn each_thread_learns_of_its_commits() {
    const THREADS: usize = 4;
    const EACH: u64 = 4;
    with_seeds(200, |seed| {
        let profile = &Profile::EVERY[seed as usize % Profile::EVERY.len()];
        let methods = [methods(profile), vec![Method::Server]].concat();
        let method = methods[seed as usize / Profile::EVERY.len() % methods.len()];
        let fabric = Rig::of(profile).seed(seed).fabric();
        // The ring has room for fewer records than threads.
        let of = Cluster::new(&fabric, way(method), 3).expect("connected");
        links(&fabric, &of).iter().for_each(|link| {
            link.delay(DELAY);
        });
        let log = Log::new(of.log);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let log = &log;
                scope.spawn(move || {
                    for _ in 0..EACH {
                        let k = 2 + thread % 2;
                        let id = log.append(k).expect("posted");
                        let (copies, took) = log.settle(id, k, LIMIT);
                        assert!(copies >= k && took < SOON, "{copies} after {took:?}");
                    }
                });
            }
        });
        // The third copies of the last ones may be missing.
        let last = log.append(3).expect("posted");
        assert_eq!(log.settle(last, 3, LIMIT).0, 3);
        for pmem in &of.pmems {
            let bytes = pmem.bytes();
            assert_eq!(whole(&bytes), THREADS as u64 * EACH + 1);
        }
    });
}

/// Promise: no append waits for another append's sleep.
#[test]
fn a_commit_waits_for_no_sleep() -> Result {
    for profile in Profile::EVERY {
        let set = Set::new(&Rig::of(&profile).seed(5), Way::visible().sending(8, 7), 9)?;
        let links: Vec<_> = (0..3)
            .map(|n| set.fabric.between(&set.client, &set.servers[n].host))
            .collect();
        links.iter().for_each(Link::hold);
        let log = Log::new(set.log);
        let has_slept = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let id = log.append(3).expect("posted");
                    assert_eq!(log.settle(id, 3, LIMIT).0, 3);
                    has_slept.store(true, Ordering::Relaxed);
                });
            }
            // The clock moves when both sleep.
            sleep(SECOND / 10);
            for _ in 2..8 {
                let from = now();
                log.append(3).expect("posted");
                let took = now() - from;
                assert!(took < DELAY, "{took:?}");
            }
            assert!(!has_slept.load(Ordering::Relaxed), "both sleep on");
            links.iter().for_each(Link::release);
        });
    }
    Ok(())
}

/// Promise: the thread that sleeps for all, and sleeps on, tells each other thread as soon as that
/// one's commit is settled.
#[test]
fn the_others_are_told_by_a_thread_that_sleeps_on() -> Result {
    for profile in Profile::EVERY {
        let set = Set::new(&Rig::of(&profile).seed(5), Way::visible().sending(8, 7), 9)?;
        let link = |n: usize| set.fabric.between(&set.client, &set.servers[n].host);
        let held = link(2);
        held.hold();
        link(0).delay(DELAY);
        link(1).delay(DELAY);
        let log = Log::new(set.log);
        let first = log.append(3)?;
        thread::scope(|scope| {
            let sleeps_on = scope.spawn(|| log.settle(first, 3, LIMIT));
            sleep(SECOND / 10);
            let others = [(); 2].map(|()| {
                scope.spawn(|| {
                    let id = log.append(2).expect("posted");
                    log.settle(id, 2, LIMIT)
                })
            });
            for other in others {
                let (copies, took) = other.join().expect("no panic");
                assert!(copies == 2 && took < SOON, "{copies} after {took:?}");
            }
            held.release();
            assert_eq!(sleeps_on.join().expect("no panic").0, 3);
        });
    }
    Ok(())
}

/// Promise: limits hold, and the others go on.
#[test]
fn a_limit_holds_and_the_others_go_on() -> Result {
    for profile in Profile::EVERY {
        let set = Set::new(&Rig::of(&profile).seed(5), Way::visible().sending(8, 7), 9)?;
        let link = set.fabric.between(&set.client, &set.servers[2].host);
        link.hold();
        let log = Log::new(set.log);
        let id = log.append(3)?;
        thread::scope(|scope| {
            let log = &log;
            let settle = |limit: Duration| {
                let (copies, took) = log.settle(id, 3, limit);
                (copies, took.saturating_sub(limit))
            };
            let limits = [SECOND, SECOND / 2, SECOND / 4, Duration::ZERO];
            let late = limits.map(|limit| {
                let thread = scope.spawn(move || settle(limit));
                sleep(SECOND / 20);
                thread
            });
            let waiting = scope.spawn(move || settle(LIMIT));
            for thread in late {
                let (copies, late) = thread.join().expect("no panic");
                assert!(copies == 2 && late < SOON, "{copies}, {late:?}");
            }
            link.release();
            assert_eq!(waiting.join().expect("no panic").0, 3);
        });
    }
    Ok(())
}

/// Promise: a replica is set aside while threads sleep beside its connection. They go on with the
/// others, and a new replica takes part in their sleeps.
#[test]
fn replicas_come_and_go_while_threads_sleep() {
    with_seeds(40, |seed| {
        let profile = &Profile::EVERY[seed as usize % Profile::EVERY.len()];
        let way = Way::visible().sending(2, 7);
        let set = Set::new(&Rig::of(profile).seed(seed), way, 3).expect("connected");
        set.servers[1].host.freeze();
        let frozen = set.ids[1];
        let mut fourth = Server::new(&set.fabric, "d", way).expect("a server");
        let writer = fourth.writer(&set.peer, way).expect("connected");
        let log = Log::new(set.log);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..4 {
                        let id = log.append(2).expect("posted");
                        // The ring fills, because a frozen replica holds it.
                        assert!(log.settle(id, 2, LIMIT).0 >= 2);
                    }
                });
            }
            sleep(SECOND / 5);
            let from = now();
            log.set
                .set_aside(frozen, SECOND / 5)
                .expect("it is destroyed");
            let took = now() - from;
            assert!(took < SECOND, "{took:?}");
            log.set.set_aside(frozen, SECOND).expect("it was set aside");
            let region = writer.offer().regions()[0];
            log.set.add(writer, region).expect("added");
        });
        assert_eq!(log.set.with(Replicas::able), 3);
        let id = log.append(3).expect("posted");
        let (copies, took) = log.settle(id, 3, LIMIT);
        assert!(copies == 3 && took < SOON, "{copies} after {took:?}");
        let set = log.set.into_replicas().expect("the last handle");
        assert!(!set.is_able(frozen));
    });
}

/// Promise: threads learn at once that a commit cannot have its copies any more, when replicas are
/// set aside.
#[test]
fn an_outcome_that_cannot_be_reached_is_told() -> Result {
    for profile in Profile::EVERY {
        let set = Set::new(&Rig::of(&profile).seed(5), Way::visible().sending(8, 7), 9)?;
        set.servers.iter().for_each(|server| server.host.freeze());
        let ids = set.ids;
        let log = Log::new(set.log);
        thread::scope(|scope| {
            let waits = [(); 3].map(|()| {
                scope.spawn(|| {
                    let id = log.append(2).expect("posted");
                    log.settle(id, 2, 3600 * SECOND)
                })
            });
            sleep(SECOND / 10);
            for id in &ids[..2] {
                log.set
                    .set_aside(*id, SECOND / 10)
                    .expect("it is destroyed");
            }
            for wait in waits {
                let (copies, took) = wait.join().expect("no panic");
                assert!(copies == 0 && took < 2 * SECOND, "{copies}, {took:?}");
            }
        });
    }
    Ok(())
}

/// Promise: all threads that wait learn the end of a replica's connection from its event, when the
/// time for late acknowledgements is over. A commit that still has its copies goes on.
#[test]
fn an_end_is_everybodys() -> Result {
    for profile in Profile::EVERY {
        let set = Set::new(&Rig::of(&profile).seed(5), Way::visible().sending(8, 7), 9)?;
        set.fabric.between(&set.client, &set.servers[2].host).hold();
        let log = Log::new(set.log);
        thread::scope(|scope| {
            let waits = [3, 3, 2].map(|k| {
                let log = &log;
                scope.spawn(move || {
                    let id = log.append(k).expect("posted");
                    let (copies, took) = log.settle(id, k, 3600 * SECOND);
                    assert!(copies == 2 && took < 3 * SECOND, "{copies}, {took:?}");
                })
            });
            sleep(SECOND / 10);
            set.servers[2].ends[0].disconnect().expect("it asks");
            for wait in waits {
                wait.join().expect("no panic");
            }
        });
        assert!(!log.set.with(|log| log.is_able(set.ids[2])));
    }
    Ok(())
}

/// Promise: the threads that wait for room go on as soon as a replica's program is killed, although
/// its device would repeat its requests for seconds.
#[test]
fn a_killed_replica_stops_no_thread() {
    with_seeds(20, |seed| {
        let profile = &Profile::EVERY[seed as usize % Profile::EVERY.len()];
        let way = Way::visible().sending(2, 7);
        let set = Set::new(&Rig::of(profile).seed(seed), way, 3).expect("connected");
        let link = set.fabric.between(&set.client, &set.servers[1].host);
        link.block();
        let log = Log::new(set.log);
        thread::scope(|scope| {
            let threads = [(); 4].map(|()| {
                scope.spawn(|| {
                    for _ in 0..3 {
                        let id = log.append(2).expect("posted");
                        assert_eq!(log.settle(id, 2, LIMIT).0, 2);
                    }
                    now()
                })
            });
            sleep(SECOND / 5);
            set.servers[1].host.kill();
            let from = now();
            for thread in threads {
                let took = thread.join().expect("no panic") - from;
                assert!(took < SOON, "{took:?}");
            }
        });
        assert!(!log.set.with(|log| log.is_able(set.ids[1])));
    });
}

/// Promise: threads that make room at the same time keep `k` replicas together, and one of them
/// goes on.
#[test]
fn threads_that_make_room_keep_enough_replicas() {
    with_seeds(100, |seed| {
        let profile = &Profile::EVERY[seed as usize % Profile::EVERY.len()];
        let way = Way::visible().sending(4, 7);
        let set = Set::new(&Rig::of(profile).seed(seed), way, 4).expect("connected");
        let mut log = set.log;
        set.servers[1].host.freeze();
        for number in 0..4 {
            if number == 2 {
                set.servers[2].host.freeze();
            }
            let id = append(&mut log, number, 1).expect("room");
            let k = if number < 2 { 2 } else { 1 };
            assert!(log.settle(id, k, LIMIT).copies() >= k);
        }
        let log = SharedReplicas::new(log);
        let made = AtomicBool::new(false);
        thread::scope(|scope| {
            for n in 0..3 {
                let (log, made) = (&log, &made);
                scope.spawn(move || match log.make_room((1 + n) * LEN, 2, SECOND / 5) {
                    Ok(()) => made.store(true, Ordering::Relaxed),
                    Err(Error::RingFull) => {}
                    Err(error) => panic!("{error}"),
                });
            }
        });
        assert!(made.load(Ordering::Relaxed));
        assert_eq!(log.with(Replicas::able), 2);
        let refused = log.make_room(LEN, 0, SECOND);
        assert!(
            matches!(refused, Err(Error::InvalidArgument(_))),
            "{refused:?}"
        );
    });
}

/// Promise: a set that is closed has all commits of all threads everywhere, and takes no more of
/// another handle.
#[test]
fn a_closed_set_has_all_commits_of_all_threads() {
    with_seeds(40, |seed| {
        let profile = &Profile::EVERY[seed as usize % Profile::EVERY.len()];
        let set = Set::new(
            &Rig::of(profile).seed(seed),
            Way::visible().sending(2, 7),
            9,
        );
        let set = set.expect("connected");
        let link = set.fabric.between(&set.client, &set.servers[2].host);
        link.delay(10 * DELAY);
        let log = Log::new(set.log);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..4 {
                        let id = log.append(2).expect("posted");
                        assert!(log.settle(id, 2, LIMIT).0 >= 2);
                    }
                });
            }
        });
        let other = log.set.clone();
        log.set.close(LIMIT).expect("all of them");
        let refused = other.commit(record(8), START, None, 1);
        assert!(matches!(
            refused,
            Err(Error::TooFewReplicas {
                able: 0,
                k: 1,
                present: 0
            })
        ));
        set.fabric.settle();
        for server in &set.servers {
            assert_eq!(whole(&server.bytes().expect("mapped")), 8);
        }
    });
}

/// Promise: the keep-alive of a replica is watched while threads sleep, also if the device sends
/// requests again without an end.
#[test]
fn a_keep_alive_watches_while_threads_wait() -> Result {
    let keep_alive = 20 * SECOND;
    for profile in Profile::EVERY {
        let way = Way {
            keep_alive: Some(keep_alive),
            ..Way::visible().sending(8, 7)
        };
        let set = Set::new(&Rig::of(&profile).seed(5), way, 9)?;
        set.servers[2].host.freeze();
        let log = Log::new(set.log);
        thread::scope(|scope| {
            let waits = [(); 3].map(|()| {
                scope.spawn(|| {
                    let id = log.append(3).expect("posted");
                    log.settle(id, 3, 3600 * SECOND)
                })
            });
            for wait in waits {
                let (copies, took) = wait.join().expect("no panic");
                let is_late = took >= keep_alive + 2 * SECOND;
                assert!(copies == 2 && !is_late, "{}: {took:?}", profile.name());
            }
        });
    }
    Ok(())
}

/// Promise: commits and waits of threads do not allocate, after one more thread has
/// waited at the same time.
#[test]
fn shared_commits_allocate_nothing() -> Result {
    for profile in share("profiles", 4, Profile::EVERY) {
        for method in [methods(&profile), vec![Method::Server]].concat() {
            let fabric = Rig::of(&profile).seed(1).fabric();
            let of = Cluster::new(&fabric, way(method), 3)?;
            let links = links(&fabric, &of);
            links.iter().for_each(Link::hold);
            let log = Log::new(of.log);
            let append = |times: u64| {
                for _ in 0..times {
                    let id = log.append(2).expect("posted");
                    assert!(log.settle(id, 2, LIMIT).0 >= 2);
                }
            };
            thread::scope(|scope| {
                // One more has waited.
                scope.spawn(|| append(1));
                let threads = [(); 3].map(|()| {
                    scope.spawn(|| {
                        append(1);
                        sleep(SECOND);
                        looking::begin();
                        append(4);
                        looking::end()
                    })
                });
                sleep(SECOND / 10);
                for link in &links {
                    link.release();
                    link.delay(DELAY);
                }
                for thread in threads {
                    let found = thread.join().expect("no panic");
                    assert!(found.is_empty(), "{method}: {found:#?}");
                }
            });
        }
    }
    Ok(())
}
