//! Threads of a program, and their orders.

use std::sync::atomic::{AtomicBool, Ordering};

use rpma::sim::Explore;
use rpma::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use rpma::thread;

use crate::common::prelude::*;
use crate::common::share;
use crate::explored::cases::Case;
use crate::explored::programs::{shows, tells};
use crate::explored::replicas::Tail;
use crate::explored::served::two_records;
use crate::power::world::{Way, World, arrives};

const RECORDS: usize = 2;
const SIZE: usize = 4096;

fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Log {
    committed: Mutex<Vec<usize>>,
    grown: Condvar,
}

impl Log {
    /// One thread makes the records of all others durable, and then wakes them. With the fault it
    /// wakes them first.
    fn commit(&self, map: &PmemMap, records: &mpsc::Receiver<usize>, early: bool) -> Result {
        while let Ok(record) = records.recv() {
            map.write_at(8 * record, &[1; 8])?;
            if !early {
                map.persist(..)?;
            }
            locked(&self.committed).push(record);
            self.grown.notify_all();
            if early {
                map.persist(..)?;
            }
        }
        Ok(())
    }

    fn append(&self, record: usize, records: &mpsc::Sender<usize>) {
        records.send(record).expect("the committer");
        let committed = locked(&self.committed);
        let waits = |committed: &mut Vec<usize>| !committed.contains(&record);
        drop(self.grown.wait_while(committed, waits));
    }
}

/// Each record has a thread. A record that was promised must be durable.
fn group(fabric: &Fabric, early: bool) {
    let host = fabric.host("log");
    host.set_platform(Platform::AdrDdioOn);
    let pmem = host.pmem("log", SIZE);
    let _entered = host.enter();
    let (log, promised) = (Log::default(), Mutex::new(Vec::new()));
    fabric.on_every_event(
        |cut| {
            let promised = locked(&promised);
            for image in cut.images(&pmem) {
                for record in promised.iter() {
                    assert_eq!(image.bytes()[8 * record], 1, "record {record} is lost");
                }
            }
        },
        || {
            thread::scope(|scope| {
                let map = PmemMap::open(pmem.path(), SIZE).expect("the memory");
                let (sender, records) = mpsc::channel();
                let (log, promised) = (&log, &promised);
                scope.spawn(move || log.commit(&map, &records, early).expect("committed"));
                for record in 0..RECORDS {
                    let sender = sender.clone();
                    scope.spawn(move || {
                        log.append(record, &sender);
                        locked(promised).push(record);
                    });
                }
            });
        },
    );
    assert_eq!(fabric.why_not_repeatable(), None);
}

pub(crate) fn early() -> Case {
    let fault = "a promise before the persist, by another thread";
    let right = Case::new(&[Profile::STRICT], |fabric| group(fabric, false));
    right.wrong(fault, "is lost", |fabric| group(fabric, true))
}

/// Promise: a promise that another thread makes too early is found with one deviation, which the
/// report names with its threads.
#[test]
fn a_promise_before_the_persist() {
    let explore = Explore::new(&Profile::STRICT)
        .deviations(1)
        .limit(Duration::from_secs(600));
    let explored = explore.run(|fabric| group(fabric, false));
    println!("{explored}");
    assert!(explored.choices.contains_key("thread"), "{explored}");
    let found = explore
        .find(|fabric| group(fabric, true))
        .expect_err("the fault");
    println!("run {} {found}", found.explored.runs());
    assert!(found.text.contains("is lost"), "{found}");
    assert!(found.deviations.len() <= 1, "{found}");
    assert!(
        found
            .deviations
            .iter()
            .all(|it| it.contains("goes on, and not")),
        "{found}"
    );
}

/// Orders that are left out have the sequences of events and the images of others.
fn nothing_is_missed(profile: &Profile, deviations: usize, program: &dyn Fn(&Fabric)) {
    let explore = Explore::new(profile).deviations(deviations);
    let explore = explore.limit(Duration::from_secs(3600));
    let every = explore.clone().every_order().run(program);
    let explored = explore.run(program);
    let (name, runs, all) = (profile.name(), explored.runs(), every.runs());
    println!("{name}: {runs} of {all} runs; {explored}; {every}");
    assert!(runs < all, "{name}: {runs} of {all}");
    for ran in [&explored, &every] {
        assert_eq!((ran.diverged, ran.stopped), (0, None), "{name}: {ran}");
    }
    assert!(explored.saw_the_same(&every), "{name}: {explored}; {every}");
}

fn served(fabric: &Fabric) {
    two_records(fabric, Platform::Eadr);
}

/// Two threads send on one connection. The program takes the first message for that of the first
/// thread, or looks.
fn send(fabric: &Fabric, looks: bool) {
    let world = World::new(fabric, Way::on(Platform::Eadr)).expect("a connection");
    let sent = || -> Result {
        world.source.write_at(0, &[1; 8])?;
        world.source.write_at(8, &[2; 8])?;
        world.far.recv(world.messages.slice(8..)?, 5)?;
        let _on_client = world.client.enter();
        thread::scope(|scope| {
            let send = |at: usize| {
                let bytes = world.source.slice(at..at + 8)?;
                world.conn.send(bytes, Flags::COMPLETION_ON_ERROR, 0)
            };
            let sends = [0, 8].map(|at| scope.spawn(move || send(at)));
            sends.map(|it| it.join().expect("no panic"))
        })
        .into_iter()
        .collect::<rpma::Result<Vec<_>>>()?;
        Ok(arrives(&world.far, 4)?)
    };
    if sent().is_ok() {
        let mut first = [0; 8];
        world.messages.read_at(0, &mut first).expect("inside");
        assert!(looks || first == [1; 8], "another thread was first");
    }
}

pub(crate) fn first() -> Case {
    let fault = "the first message, taken for that of the first thread";
    let right = Case::new(&[Profile::STRICT], |fabric| send(fabric, true));
    right.wrong(fault, "another thread was first", |fabric| {
        send(fabric, false)
    })
}

/// Promise: two threads that post on one connection do so in each order, though nothing comes to
/// persistent memory.
#[test]
fn two_threads_on_one_connection() {
    first().check();
}

/// One thread makes a store durable. Another one promises it, when it has a message. The message
/// comes before the store, or after it.
fn message(fabric: &Fabric, early: bool) {
    let host = fabric.host("log");
    host.set_platform(Platform::AdrDdioOn);
    let pmem = host.pmem("log", SIZE);
    let _entered = host.enter();
    let map = PmemMap::open(pmem.path(), SIZE).expect("the memory");
    let promised = AtomicBool::new(false);
    let check = |cut: &Cut<'_>| {
        for image in cut.images(&pmem) {
            let is_there = image.bytes()[0] == 1;
            assert!(is_there || !promised.load(Ordering::Relaxed), "it is lost");
        }
    };
    fabric.on_every_event(check, || {
        thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            if early {
                sender.send(()).expect("a receiver");
            }
            let (map, promised) = (&map, &promised);
            scope.spawn(move || {
                map.write_at(0, &[1; 8]).expect("inside");
                map.persist(..8).expect("inside");
                let _gone = sender.send(());
            });
            scope.spawn(move || {
                receiver.recv().expect("a message");
                promised.store(true, Ordering::Relaxed);
            });
        });
    });
}

pub(crate) fn announced() -> Case {
    let fault = "a message before the persist that it announces";
    let right = Case::new(&[Profile::STRICT], |fabric| message(fabric, false));
    right.wrong(fault, "it is lost", |fabric| message(fabric, true))
}

/// Promise: a promise is found that comes before an event of another thread, though the promising
/// thread has no event.
#[test]
fn a_promise_beside_events_of_another_thread() {
    announced().check();
}

/// Promise: what is left out is not missed, of programs of one thread and of several.
#[test]
fn what_is_left_out_is_not_missed() {
    nothing_is_missed(&Profile::STRICT, 2, &|fabric| group(fabric, false));
    nothing_is_missed(&Profile::STRICT, 1, &served);
    for profile in [Profile::RXE_6_12, Profile::STRICT] {
        nothing_is_missed(&profile, 2, &|fabric| shows(fabric, Tail::Atomic));
    }
}

/// The same with two deviations, of a log on two replicas with a thread each, and of one without
/// threads.
#[test]
#[ignore = "long: 15 minutes"]
fn two_replicas_miss_nothing() {
    for profile in share("profiles with all orders", 4, Profile::ALL) {
        nothing_is_missed(&profile, 2, &|fabric| tells(fabric, false));
        nothing_is_missed(&profile, 2, &served);
    }
}
