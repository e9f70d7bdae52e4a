//! The stores of a program as events: on eADR, where a store is durable when it is visible.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use rpma::sim::{Visited, stored};
use rpma::sync::{Condvar, Mutex, mpsc};
use rpma::thread;

use crate::common::prelude::*;
use crate::power::world::{PLATFORMS, Ran, Way, World, register, under_every_cut, word};

const SIZE: usize = 4096;
const RECORD: [u8; 64] = [7; 64];
const AT: usize = 64;

struct Own {
    fabric: Fabric,
    host: Host,
    pmem: Pmem,
}

impl Own {
    fn on(platform: Platform) -> Self {
        Self::of(&Rig::of(&Profile::STRICT).seed(1).fabric(), platform)
    }

    fn of(fabric: &Fabric, platform: Platform) -> Self {
        let fabric = fabric.clone();
        let host = fabric.host("host");
        host.set_platform(platform);
        let pmem = host.pmem("log", SIZE);
        Self { fabric, host, pmem }
    }

    fn map(&self) -> PmemMap {
        let _on = self.host.enter();
        PmemMap::open(self.pmem.path(), SIZE).expect("its memory")
    }

    /// Runs a program under every cut. The check gets an image and the last promise.
    fn run<T>(
        &self,
        check: impl Fn(&[u8], u64) + Send,
        run: impl FnOnce(&PmemMap, &dyn Fn(u64)) -> T,
    ) -> Result<T, Loss> {
        let map = self.map();
        let _on = self.host.enter();
        under_every_cut(&self.fabric, &self.pmem, check, |tell| run(&map, tell))
    }
}

/// A log of one record: the word at the beginning is 1 if it is there.
fn check_record(image: &[u8], told: u64) {
    let tail = word(image);
    assert!(tail >= told, "{told} is told, and {tail} is there");
    assert!(tail == 0 || image[AT..][..64] == RECORD, "a torn record");
}

/// How a program stores bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    WriteAt,
    StoreWords,
    Region,
    Pointer,
}

pub(crate) const WAYS: [By; 4] = [By::WriteAt, By::StoreWords, By::Region, By::Pointer];

/// Stores through a pointer, as a program does that has its own structures there.
fn store_by_pointer(map: &PmemMap, at: usize, bytes: &[u8]) {
    assert!(at + bytes.len() <= map.len());
    let to = map.as_ptr().wrapping_add(at);
    // SAFETY: inside the map, by the assertion. No reference points there, and the checks of this
    // test run on this thread.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

/// Appends the record in this way. With `tail_first` it is wrong.
fn append(own: &Own, by: By, tail_first: bool) -> std::result::Result<((), Visited), Loss> {
    let _on = own.host.enter();
    let region = register(
        &own.host,
        &Peer::at(&own.host.addr().to_string()).expect("a peer"),
        &own.pmem,
        MrUsage::WRITE_DST,
    )
    .expect("a region");
    let found = own.run(check_record, |map, tell| {
        let words = |at: usize, bytes: &[u8]| {
            let words = bytes.chunks(8).map(|word| word.try_into().expect("8"));
            for (number, word) in words.map(u64::from_le_bytes).enumerate() {
                map.store_u64(at + 8 * number, word).expect("inside");
            }
        };
        let store = |at: usize, bytes: &[u8]| match by {
            By::WriteAt => map.write_at(at, bytes).expect("inside"),
            By::Region => region.write_at(at, bytes).expect("inside"),
            By::StoreWords => words(at, bytes),
            By::Pointer => {
                store_by_pointer(map, at, bytes);
                stored(map.as_ptr().wrapping_add(at), bytes.len());
            }
        };
        let mut parts = [(AT, &RECORD[..]), (0, &1_u64.to_le_bytes())];
        if tail_first {
            parts.reverse();
        }
        parts.into_iter().for_each(|(at, bytes)| store(at, bytes));
        tell(1);
    });
    found.map(|()| ((), own.fabric.visited()))
}

pub(crate) fn append_on(fabric: &Fabric, by: By, tail_first: bool) -> Ran {
    append(&Own::of(fabric, Platform::Eadr), by, tail_first)?;
    Ok(Ok(()))
}

/// The power fails between two stores, in each way to store.
#[test]
fn a_tail_before_its_record_is_found_on_eadr() -> Result {
    for by in WAYS {
        let own = Own::on(Platform::Eadr);
        let loss = append(&own, by, true).expect_err("it is wrong");
        let report = loss.to_string();
        assert_says(
            &report,
            &[
                "a torn record",
                "in the middle of a store to bytes",
                "There already: bytes 0..8 of log of host, stored, by the program's own stores.",
                "On eADR a store is durable at once",
            ],
        );
        let (_, visited) = append(&Own::on(Platform::Eadr), by, false)?;
        let stores = if matches!(by, By::StoreWords) { 9 } else { 2 };
        // The deregistration, and the end.
        assert_eq!(visited.events, stores + 1, "{by:?}");
    }
    Ok(())
}

/// Counts up. The last promise comes before its store, or after it.
fn count(own: &Own, early: bool) -> std::result::Result<(), Loss> {
    let check = |image: &[u8], told| {
        let there = word(image);
        assert!(there >= told, "{told} is told, and {there} is there");
    };
    own.run(check, |map, tell| {
        for number in 1..4 {
            if early && number == 3 {
                tell(number);
            }
            map.store_u64(0, number).expect("inside");
            tell(number);
        }
    })
}

pub(crate) fn count_on(fabric: &Fabric, early: bool) -> Ran {
    count(&Own::of(fabric, Platform::Eadr), early)?;
    Ok(Ok(()))
}

/// A promise before its store is found, though no call is between the two.
#[test]
fn a_promise_before_its_store_is_found_on_eadr() {
    let count = |early| count(&Own::on(Platform::Eadr), early);
    count(false).expect("it is right");
    let report = count(true).expect_err("it is wrong").to_string();
    assert_says(
        &report,
        &[
            "3 is told, and 2 is there",
            "Lost: bytes 0..8 of log of host, not stored yet, by the program's own stores.",
            "On eADR a store is durable when it is made, and the power can fail before.",
        ],
    );
}

/// A long store is torn between its words, and a word is not.
#[test]
fn a_long_store_comes_in_parts_on_eadr() {
    let mut images = std::collections::BTreeSet::new();
    let own = Own::on(Platform::Eadr);
    let map = own.map();
    let _on = own.host.enter();
    let check = |cut: &Cut<'_>| {
        images.extend(cut.images_up_to(&own.pmem, 300).map(|image| {
            let words = image.bytes()[..24].chunks(8).map(<[u8]>::to_vec);
            words.collect::<Vec<_>>()
        }));
    };
    own.fabric
        .on_every_event(check, || map.write_at(0, &RECORD[..24]).expect("inside"));
    assert_eq!(images.len(), 8);
    let words = images.iter().flatten();
    assert!(
        words
            .into_iter()
            .all(|word| *word == [7; 8] || *word == [0; 8])
    );
}

/// On other platforms, and off the memory, stores and calls of `sync` are no events.
#[test]
fn only_eadr_has_events_of_stores() {
    let events = |platform: Platform| {
        let own = Own::on(platform);
        let other = own.fabric.host("on eADR");
        other.set_platform(Platform::Eadr);
        let _other = other.pmem("log", SIZE);
        let result = own.run(
            |_, _| {},
            |map, _| {
                let lock = Mutex::new(0);
                map.write_at(AT, &RECORD).expect("inside");
                map.store_u64(0, 1).expect("inside");
                stored(map.as_ptr(), 8);
                stored([0_u8; 8].as_ptr(), 8);
                *lock.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                map.persist(..).expect("inside");
                let _elsewhere = own.fabric.host("another").enter();
                *lock.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            },
        );
        result.expect("nothing is checked");
        (
            own.fabric.visited().events,
            own.fabric.trace().steps,
            own.fabric.steps(),
            own.fabric.now(),
        )
    };
    // Before and after the write-back, and at the end.
    let [on, off, eadr] = PLATFORMS.map(events);
    assert_eq!(on.0, 3);
    assert_eq!(off.0, 3);
    // Two stores, and a lock. The bytes of the third store are there already.
    assert_eq!(eadr.0, 3 + 3);
    // The order and the steps are the same.
    assert_eq!((on.1, on.2), (eadr.1, eadr.2));
}

/// Appends the record by pointers, with a call of `sync` after each store.
fn send(own: &Own, tail_first: bool) -> std::result::Result<(), Loss> {
    let (sender, receiver) = mpsc::channel();
    own.run(check_record, |map, _| {
        let mut parts = [(AT, &RECORD[..]), (0, &1_u64.to_le_bytes())];
        if tail_first {
            parts.reverse();
        }
        for (at, bytes) in parts {
            store_by_pointer(map, at, bytes);
            sender.send(()).expect("it is there");
        }
        drop(receiver);
    })
}

pub(crate) fn send_on(fabric: &Fabric, tail_first: bool) -> Ran {
    send(&Own::of(fabric, Platform::Eadr), tail_first)?;
    Ok(Ok(()))
}

/// A call of `sync` is an event, for stores through pointers.
#[test]
fn a_call_of_sync_is_an_event_on_eadr() {
    let run = |tail_first| send(&Own::on(Platform::Eadr), tail_first);
    run(false).expect("it is right");
    let report = run(true).expect_err("it is wrong").to_string();
    assert_says(&report, &["before Sender::send on host", "a torn record"]);
}

/// A program that stores under the lock of its check, or waits with it, is no wrong program: the
/// check is called where the lock is free.
#[test]
fn a_lock_of_the_check_leaves_the_event_out() {
    let own = Own::on(Platform::Eadr);
    let map = own.map();
    let _on = own.host.enter();
    let (told, grown) = (Mutex::new(0_u64), Condvar::new());
    let checked = AtomicU64::new(0);
    let check = |cut: &Cut<'_>| {
        let told = *told.lock().unwrap_or_else(PoisonError::into_inner);
        for image in cut.images(&own.pmem) {
            assert!(word(image.bytes()) >= told);
        }
        checked.fetch_add(1, Ordering::Relaxed);
    };
    own.fabric.on_every_event(check, || {
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..4 {
                    let mut told = told.lock().expect("no panic");
                    map.store_u64(0, number).expect("inside");
                    *told = number;
                    grown.notify_all();
                }
            });
            let told = told.lock().expect("no panic");
            drop(grown.wait_while(told, |told| *told < 3).expect("no panic"));
        });
    });
    assert_eq!(own.fabric.why_not_repeatable(), None);
    let visited = own.fabric.visited();
    let checked = checked.into_inner();
    assert!(
        checked > 1 && checked < visited.events,
        "{checked} of {visited:?}"
    );
}

/// A recovery of a counter that stores two words, in the right order or not.
fn recover(own: &Own, right: bool) -> std::result::Result<Visited, Loss> {
    let memory = own.pmem.clone();
    let map = own.map();
    let _on = own.host.enter();
    // The word 1 is that of the last state, the word 0 of the state before.
    let recover = |path: &std::path::Path| {
        let map = PmemMap::open(path, SIZE).expect("the memory");
        let [before, last] = [0, 8].map(|at| map.load_u64(at).expect("inside"));
        if last % 2 == 1 {
            let order = if right { [8, 0] } else { [0, 8] };
            for at in order {
                map.store_u64(at, last + 1).expect("inside");
            }
        }
        (before, last)
    };
    let check = |_: &(), (before, last): &(u64, u64)| assert!(before <= last);
    own.fabric.find_loss_in_recovery(
        &memory,
        || (),
        recover,
        check,
        || {
            map.store_u64(8, 1).expect("inside");
        },
    )
}

pub(crate) fn recover_on(fabric: &Fabric, right: bool) -> Ran {
    recover(&Own::of(fabric, Platform::Eadr), right)?;
    Ok(Ok(()))
}

/// The recovery is cut between its stores.
#[test]
fn a_recovery_is_cut_between_its_stores_on_eadr() {
    let run = |right| recover(&Own::on(Platform::Eadr), right);
    run(true).expect("it is right");
    run(false).expect_err("it is wrong");
}

/// The other events on eADR are the same with stores and calls of `sync` as without.
#[test]
fn other_events_stay_as_they_are() -> Result {
    let run = |with_stores: bool| -> Result<Vec<String>> {
        let way = Way::on(Platform::Eadr);
        let world = World::new(&Rig::strict().seed(1).fabric(), way)?;
        let _on = world.server.enter();
        let (mut events, lock) = (Vec::new(), Mutex::new(0));
        let check = |cut: &Cut<'_>| events.push(cut.what().to_owned());
        world.fabric.on_every_event(check, || -> Result {
            for number in 0..3 {
                world.write(0, &[number; 8])?;
                world.flush(0, 8)?;
                // Between a poll and the next call.
                if with_stores {
                    world.target.write_at(64, &[number + 1; 64])?;
                    *lock.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                }
            }
            Ok(())
        })?;
        Ok(events)
    };
    let with = run(true)?;
    let is_new = |event: &String| event.contains("a store to bytes") || event.contains("Mutex");
    let (new, others): (Vec<_>, Vec<_>) = with.into_iter().partition(is_new);
    assert_eq!(new.len(), 6, "{new:?}");
    assert_eq!(others, run(false)?);
    Ok(())
}
