//! Promises of `rpma::sync` and `rpma::thread`: they are std's, and on a simulated host
//! their waits are in the order and in the time of the fabric.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SendError, TryRecvError, TrySendError};

use rpma::sim::{now, sleep};
use rpma::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError, mpsc};
use rpma::thread;

use crate::common::prelude::*;
use crate::order::run;
use crate::power::world::{under_every_cut, word};

const HOUR: Duration = Duration::from_secs(3_600);
/// Much less than any limit that a test waits for.
const SOON: Duration = Duration::from_secs(60);

/// A program that uses all of them, with the types of one crate.
macro_rules! program {
    ($name:ident, $of:ident) => {
        mod $name {
            use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
            use std::time::Duration;

            use $of::sync::mpsc::{
                self, Receiver, RecvError, RecvTimeoutError, SendError, Sender, SyncSender,
                TryRecvError, TrySendError,
            };
            use $of::sync::{Arc, Condvar, LockResult, Mutex, MutexGuard, PoisonError};
            use $of::sync::{TryLockError, WaitTimeoutResult};
            use $of::thread::{self, Builder, JoinHandle, Scope, ScopedJoinHandle};

            static COUNT: Mutex<u32> = Mutex::new(0);
            static GROWN: Condvar = Condvar::new();
            const SHORT: Duration = Duration::from_millis(2);
            const LONG: Duration = Duration::from_secs(600);

            fn traits() {
                fn is_send<T: Send + UnwindSafe>() {}
                fn is_shared<T: Send + Sync>() {}
                is_shared::<Mutex<std::cell::Cell<u8>>>();
                is_shared::<Condvar>();
                is_shared::<Sender<u8>>();
                is_shared::<SyncSender<u8>>();
                is_shared::<JoinHandle<u8>>();
                is_send::<Mutex<std::cell::Cell<u8>>>();
                is_send::<Receiver<u8>>();
                fn is_ref<T: RefUnwindSafe>() {}
                is_ref::<Mutex<std::cell::Cell<u8>>>();
                is_ref::<Condvar>();
            }

            /// Starts a thread. The scope's type is in the signature.
            fn start<'scope>(
                scope: &'scope Scope<'scope, '_>,
                from: &'scope Mutex<u32>,
            ) -> ScopedJoinHandle<'scope, u32> {
                scope.spawn(move || {
                    let nested = scope.spawn(move || *from.lock().expect("no panic"));
                    nested.join().expect("no panic") + 1
                })
            }

            fn locks() {
                let lock = Mutex::new(vec![1]);
                lock.lock().expect("no panic").push(2);
                let held: LockResult<MutexGuard<'_, Vec<i32>>> = lock.lock();
                let held = held.expect("no panic");
                assert!(matches!(lock.try_lock(), Err(TryLockError::WouldBlock)));
                assert_eq!(format!("{held:?}"), "[1, 2]");
                drop(held);
                let panicked = catch_unwind(AssertUnwindSafe(|| {
                    let _held = lock.lock();
                    panic!("as it should");
                }));
                assert!(panicked.is_err() && lock.is_poisoned());
                let held = lock.lock().unwrap_or_else(PoisonError::into_inner);
                assert_eq!(held.len(), 2);
                drop(held);
                assert!(matches!(lock.try_lock(), Err(TryLockError::Poisoned(_))));
                lock.clear_poison();
                assert_eq!(*lock.lock().expect("it is cleared"), [1, 2]);
                let mut lock = lock;
                lock.get_mut().expect("no panic").clear();
                assert!(lock.into_inner().expect("no panic").is_empty());
                let unsized_lock: Box<Mutex<[u8]>> = Box::new(Mutex::new([0; 3]));
                assert_eq!(unsized_lock.lock().expect("no panic").len(), 3);
                assert_eq!(
                    format!("{:?}", Mutex::new(7)),
                    format!("{:?}", std::sync::Mutex::new(7))
                );
                assert_eq!(*Mutex::from(3).lock().expect("no panic"), 3);
                assert_eq!(*Mutex::<u8>::default().lock().expect("no panic"), 0);
            }

            fn conditions() {
                let (lock, changed) = (Mutex::new(0), Condvar::new());
                // A notification before a wait is lost.
                changed.notify_one();
                changed.notify_all();
                let held = lock.lock().expect("no panic");
                let waited: LockResult<(MutexGuard<'_, i32>, WaitTimeoutResult)> =
                    changed.wait_timeout_while(held, SHORT, |_| true);
                let (held, result) = waited.expect("no panic");
                assert!(result.timed_out());
                let (held, result) = changed
                    .wait_timeout_while(held, LONG, |_| false)
                    .expect("no panic");
                assert!(!result.timed_out());
                drop(held);
                thread::scope(|scope| {
                    let waits = [(); 2].map(|()| {
                        scope.spawn(|| {
                            let held = lock.lock().expect("no panic");
                            let held = changed.wait_while(held, |it| *it == 0).expect("no panic");
                            let waited = changed.wait_timeout_while(held, LONG, |it| *it == 1);
                            let (held, result) = waited.expect("no panic");
                            assert!(!result.timed_out());
                            *held
                        })
                    });
                    for _ in 0..2 {
                        *lock.lock().expect("no panic") += 1;
                        changed.notify_all();
                    }
                    for wait in waits {
                        assert_eq!(wait.join().expect("no panic"), 2);
                    }
                    let waits = scope.spawn(|| {
                        let mut held = lock.lock().unwrap_or_else(PoisonError::into_inner);
                        while *held == 2 {
                            held = changed.wait(held).unwrap_or_else(PoisonError::into_inner);
                        }
                        let waited = changed.wait_timeout(held, Duration::ZERO);
                        let (held, _) = waited.unwrap_or_else(PoisonError::into_inner);
                        *held
                    });
                    let panics = scope.spawn(|| {
                        let mut held = lock.lock().expect("no panic");
                        *held = 3;
                        changed.notify_one();
                        panic!("with the lock held");
                    });
                    assert!(panics.join().is_err());
                    assert_eq!(waits.join().expect("no panic"), 3);
                });
                assert!(lock.is_poisoned());
            }

            fn channels() {
                let (sends, receives) = mpsc::channel();
                assert_eq!(receives.try_recv(), Err(TryRecvError::Empty));
                assert_eq!(receives.recv_timeout(SHORT), Err(RecvTimeoutError::Timeout));
                let other = sends.clone();
                let sending =
                    thread::spawn(move || (1..4).for_each(|it| other.send(it).expect("taken")));
                assert_eq!(receives.recv(), Ok(1));
                assert_eq!(receives.recv_timeout(LONG), Ok(2));
                sending.join().expect("no panic");
                assert_eq!(receives.try_iter().collect::<Vec<_>>(), [3]);
                sends.send(4).expect("a receiver");
                drop(sends);
                assert_eq!(receives.iter().collect::<Vec<_>>(), [4]);
                assert_eq!((&receives).into_iter().count(), 0);
                assert_eq!(receives.recv(), Err(RecvError));
                assert_eq!(receives.try_recv(), Err(TryRecvError::Disconnected));
                assert_eq!(
                    receives.recv_timeout(LONG),
                    Err(RecvTimeoutError::Disconnected)
                );
                assert_eq!(receives.into_iter().count(), 0);

                let (sends, receives) = mpsc::sync_channel(1);
                assert_eq!(sends.send(1), Ok(()));
                assert_eq!(sends.try_send(2), Err(TrySendError::Full(2)));
                let other = sends.clone();
                let sending = thread::spawn(move || other.send(3));
                assert_eq!(receives.recv(), Ok(1));
                assert_eq!(receives.recv(), Ok(3));
                assert_eq!(sending.join().expect("no panic"), Ok(()));
                assert_eq!(sends.send(4), Ok(()));
                let sending = thread::spawn(move || (sends.send(5), sends.try_send(6)));
                drop(receives);
                let failed = sending.join().expect("no panic");
                assert_eq!(
                    failed,
                    (Err(SendError(5)), Err(TrySendError::Disconnected(6)))
                );

                let (sends, receives) = mpsc::sync_channel(0);
                assert_eq!(sends.try_send(1), Err(TrySendError::Full(1)));
                let other = sends.clone();
                let sending = thread::spawn(move || other.send(2));
                assert_eq!(receives.recv_timeout(LONG), Ok(2));
                assert_eq!(sending.join().expect("no panic"), Ok(()));
                let sending = thread::spawn(move || sends.send(3));
                drop(receives);
                assert_eq!(sending.join().expect("no panic"), Err(SendError(3)));
            }

            fn threads() {
                let lock = Mutex::new(1);
                let sum = thread::scope(|scope| {
                    let builder = Builder::new().name("named".to_owned()).stack_size(1 << 20);
                    let named =
                        builder.spawn_scoped(scope, || thread::current().name().map(str::to_owned));
                    let named = named.expect("a thread").join().expect("no panic");
                    assert_eq!(named.as_deref(), Some("named"));
                    let started = start(scope, &lock);
                    let _is_known = started.thread().id();
                    // It is not joined.
                    scope.spawn(|| *COUNT.lock().expect("no panic") += 1);
                    started.join().expect("no panic")
                });
                assert_eq!(sum, 2);
                assert_eq!(*COUNT.lock().expect("no panic"), 1);
                *COUNT.lock().expect("no panic") = 0;
                GROWN.notify_all();
                let panicked = catch_unwind(|| {
                    thread::scope(|scope| {
                        scope.spawn(|| panic!("as it should"));
                    })
                });
                assert!(panicked.is_err());
                let thread = Builder::new().spawn(|| 7).expect("a thread");
                while !thread.is_finished() {
                    thread::yield_now();
                    thread::sleep(SHORT);
                }
                assert_eq!(thread.join().expect("no panic"), 7);
                assert!(!thread::panicking() && Arc::new(()).eq(&Arc::new(())));
            }

            pub(super) fn run() {
                // It has statics.
                static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
                let _one = ONE_AT_A_TIME.lock();
                traits();
                locks();
                conditions();
                channels();
                threads();
            }
        }
    };
}

program!(of_std, std);
program!(of_rpma, rpma);

/// The same program compiles with both, and finds the same.
#[test]
fn the_same_program_runs_with_std_and_off_a_host() {
    of_std::run();
    of_rpma::run();
}

/// A host of each of the three kinds of fabrics: in real time, with a clock that jumps, and with a
/// seed.
fn hosts() -> [(Fabric, Host); 3] {
    let rig = Rig::strict();
    [rig.clone(), rig.clone().jumping(), rig.seed(5)].map(|rig| {
        let (fabric, [host]) = rig.hosts(["here"]);
        (fabric, host)
    })
}

#[test]
fn the_same_program_runs_on_a_host() {
    for (fabric, host) in hosts() {
        let _entered = host.enter();
        of_rpma::run();
        assert_eq!(fabric.why_not_repeatable(), None);
    }
}

#[test]
fn the_same_program_is_repeated_by_its_seed() {
    let traces = (0..20).map(|seed| {
        let [first, again] = [(); 2].map(|()| run(&Profile::STRICT, seed, |_| of_rpma::run()).1);
        assert_eq!(first, again, "seed {seed}");
        first.hash
    });
    assert!(traces.collect::<BTreeSet<_>>().len() > 10);
}

/// On a fabric with a clock that jumps, and on one with a seed.
fn with_virtual_time(test: impl Fn(&Fabric, &Host) -> Result) -> Result {
    for (fabric, host) in hosts().into_iter().skip(1) {
        let real = Instant::now();
        let entered = host.enter();
        test(&fabric, &host)?;
        drop(entered);
        assert!(real.elapsed() < SOON);
        assert_eq!(fabric.why_not_repeatable(), None);
    }
    Ok(())
}

#[test]
fn limits_are_virtual() -> Result {
    with_virtual_time(|fabric, _| {
        let (lock, changed) = (Mutex::new(0), Condvar::new());
        let (_sends, receives) = mpsc::channel::<u8>();
        let before = fabric.now();
        let waited = changed.wait_timeout(lock.lock().expect("no panic"), HOUR);
        assert!(waited.expect("no panic").1.timed_out());
        let waited = changed.wait_timeout_while(lock.lock().expect("no panic"), HOUR, |_| true);
        assert!(waited.expect("no panic").1.timed_out());
        let received = receives.recv_timeout(HOUR);
        assert_eq!(received, Err(RecvTimeoutError::Timeout));
        sleep(HOUR);
        let passed = fabric.now() - before;
        assert!(passed >= 4 * HOUR && passed < 5 * HOUR, "{passed:?}");
        Ok(())
    })
}

/// A thread that was woken goes on before the clock jumps to another thread's limit.
#[test]
fn the_clock_does_not_jump_past_a_notification() -> Result {
    with_virtual_time(|fabric, _| {
        let (lock, changed) = (Mutex::new(0), Condvar::new());
        let (sends, receives) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let held = lock.lock().expect("no panic");
                let waited = changed.wait_timeout_while(held, HOUR, |it| *it == 0);
                assert!(!waited.expect("no panic").1.timed_out());
                sends.send(now()).expect("a receiver");
            });
            sleep(Duration::from_secs(1));
            for number in 1..100 {
                *lock.lock().expect("no panic") = number;
                changed.notify_all();
            }
            let notified = fabric.now();
            sleep(HOUR / 2);
            let woken = receives.recv_timeout(HOUR)?;
            assert!(woken < notified + HOUR / 4);
            Ok(())
        })
    })
}

/// The clock jumps while a thread holds a lock and another one waits for it.
#[test]
fn a_lock_that_is_held_across_a_wait_lets_the_clock_jump() -> Result {
    with_virtual_time(|fabric, host| {
        let before = fabric.now();
        let lock = Arc::new(Mutex::new(0));
        let threads = [(); 3].map(|()| {
            let lock = Arc::clone(&lock);
            host.spawn(move || {
                let mut held = lock.lock().expect("no panic");
                sleep(HOUR);
                *held += 1;
            })
        });
        joined(threads);
        assert_eq!(*lock.lock().expect("no panic"), 3);
        assert!(fabric.now() - before >= 3 * HOUR);
        Ok(())
    })
}

/// For each seed: the test's result, twice the same.
fn by_seed<T: Ord + std::fmt::Debug>(test: impl Fn(&Host) -> T) -> BTreeSet<T> {
    let both = (0..30).map(|seed| {
        let [first, again] = [(); 2].map(|()| run(&Profile::STRICT, seed, &test));
        assert_eq!(first, again, "seed {seed}");
        first.0
    });
    both.collect()
}

/// Three threads wait, and are woken one after the other.
#[test]
fn the_seed_chooses_who_is_woken() {
    let orders = by_seed(|_| {
        let (waiting, changed, order) = (Mutex::new(0), Condvar::new(), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for number in 0..3 {
                let (waiting, changed, order) = (&waiting, &changed, &order);
                scope.spawn(move || {
                    sleep(Duration::from_secs(number));
                    let mut held = waiting.lock().expect("no panic");
                    *held += 1;
                    drop(changed.wait(held).expect("no panic"));
                    order.lock().expect("no panic").push(number);
                });
            }
            sleep(HOUR);
            for woken in 1..=3 {
                changed.notify_one();
                sleep(HOUR);
                let so_far = order.lock().expect("no panic").len();
                assert_eq!(so_far, woken, "one at a time");
            }
        });
        order.into_inner().expect("no panic")
    });
    assert_eq!(orders.len(), 6, "{orders:?}");
}

#[test]
fn the_seed_chooses_who_gets_a_lock() {
    let orders = by_seed(|_| {
        let order = Mutex::new(Vec::new());
        let held = order.lock().expect("no panic");
        thread::scope(|scope| {
            for number in 0..3 {
                let order = &order;
                scope.spawn(move || order.lock().expect("no panic").push(number));
            }
            sleep(HOUR);
            drop(held);
        });
        order.into_inner().expect("no panic")
    });
    assert_eq!(orders.len(), 6, "{orders:?}");
}

/// A flag that is set without the lock, between a thread's look at it and its wait: with some
/// seeds the thread sleeps for ever, and a panic reports it.
#[test]
fn a_lost_notification_is_found() {
    let ends = |seed| {
        let _here = Rig::strict().seed(seed).here();
        let (lock, changed, is_set) = (Mutex::new(()), Condvar::new(), AtomicBool::new(false));
        let ended = catch_unwind(AssertUnwindSafe(|| {
            thread::scope(|scope| {
                scope.spawn(|| {
                    is_set.store(true, Ordering::Relaxed);
                    changed.notify_one();
                });
                let mut held = lock.lock().expect("no panic");
                while !is_set.load(Ordering::Relaxed) {
                    held = changed.wait(held).expect("no panic");
                }
            });
        }));
        ended.map_err(text_of)
    };
    let found = (0..40).filter_map(|seed| Some((seed, ends(seed).err()?)));
    let found: Vec<_> = found.collect();
    assert!(!found.is_empty() && found.len() < 40, "{}", found.len());
    let (seed, text) = &found[0];
    assert_says(text, &["every thread of the fabric waits"]);
    assert_says(text, &["was last in Condvar::wait"]);
    assert_eq!(ends(*seed).as_ref(), Err(text));
}

/// Threads that wait for each other end with a panic that has their last calls, with a seed and
/// without.
#[test]
fn a_deadlock_is_told() {
    for (_fabric, host) in hosts().into_iter().skip(1) {
        let _entered = host.enter();
        let (sends, receives) = mpsc::sync_channel::<u8>(0);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let (one, other) = (&Mutex::new(()), &Mutex::new(()));
            let both = |first: &Mutex<()>, second: &Mutex<()>| {
                let _first = first.lock().expect("no panic");
                sleep(HOUR);
                // The other thread may have panicked with it.
                let _second = second.lock().unwrap_or_else(PoisonError::into_inner);
            };
            thread::scope(|scope| {
                let both = &both;
                scope.spawn(move || both(one, other));
                let receives = receives;
                scope.spawn(move || receives.recv().is_ok());
                both(other, one);
            });
        }));
        drop(sends);
        assert!(ended.is_err(), "one of them panics");
    }
    // The text is that of the first thread that panics: here there is one.
    let _here = Rig::strict().seed(1).here();
    let (_sends, receives) = mpsc::channel::<u8>();
    let text = panic_of(|| receives.recv());
    assert_says(&text, &["was last in Receiver::recv"]);
}

/// A thread on no host wakes one on a host, and the other way round. If there is a seed the fabric
/// reports it.
#[test]
fn threads_on_no_host_wake_and_are_woken() {
    for (fabric, host) in hosts() {
        let _entered = host.enter();
        let shared = Arc::new((Mutex::new(0), Condvar::new()));
        let (there, is_repeated) = (Arc::clone(&shared), fabric.seed().is_none());
        let outside = std::thread::spawn(move || {
            let (lock, changed) = &*there;
            for number in [1, 3] {
                let held = lock.lock().expect("no panic");
                let mut held = changed
                    .wait_while(held, |it| *it != number - 1)
                    .expect("no panic");
                *held = number;
                changed.notify_all();
            }
        });
        let (lock, changed) = &*shared;
        let held = lock.lock().expect("no panic");
        let mut held = changed.wait_while(held, |it| *it != 1).expect("no panic");
        *held = 2;
        changed.notify_all();
        let held = changed.wait_while(held, |it| *it != 3).expect("no panic");
        drop(held);
        outside.join().expect("no panic");
        let why = fabric.why_not_repeatable();
        assert_eq!(why.is_none(), is_repeated, "{why:?}");
    }
}

/// A lock with an owner on another fabric, or on none, is waited for in real time; it outlives both
/// fabrics.
#[test]
fn a_lock_is_shared_between_fabrics() {
    let lock = Arc::new(Mutex::new(0));
    let adds = |(_fabric, host): (Fabric, Host)| {
        let lock = Arc::clone(&lock);
        std::thread::spawn(move || {
            let _entered = host.enter();
            for _ in 0..50 {
                let mut held = lock.lock().expect("no panic");
                std::thread::sleep(Duration::from_micros(50));
                *held += 1;
                drop(held);
                sleep(Duration::from_millis(1));
            }
        })
    };
    let seeded = || {
        let lock = Arc::clone(&lock);
        std::thread::spawn(move || {
            let _here = Rig::strict().seed(1).here();
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for _ in 0..25 {
                            let mut held = lock.lock().expect("no panic");
                            sleep(HOUR);
                            *held += 1;
                        }
                    });
                }
            });
        })
    };
    let [real, jumping, _] = hosts();
    let threads = [adds(real), adds(jumping), seeded(), seeded()];
    let _ended = threads.map(|thread| thread.join().expect("no panic"));
    assert_eq!(*lock.lock().expect("no panic"), 200);
}

/// A guard that is dropped by a panic poisons the lock for the threads that wait for it.
#[test]
fn a_panic_poisons_for_threads_that_wait() -> Result {
    with_virtual_time(|_, host| {
        let lock = Arc::new(Mutex::new(0));
        let held = Arc::clone(&lock);
        let panics = host.spawn(move || {
            let _held = held.lock().expect("no panic yet");
            sleep(HOUR);
            panic!("as it should");
        });
        sleep(HOUR / 2);
        let poisoned = lock.lock().map(drop).map_err(drop);
        assert_eq!(poisoned, Err(()));
        assert!(matches!(lock.try_lock(), Err(TryLockError::Poisoned(_))));
        assert!(panics.join().is_err());
        Ok(())
    })
}

/// A persistent word that a thread counts up, and how the check gets the count.
fn count_up(
    fabric: &Fabric,
    host: &Host,
    check: impl Fn(u64) + Send,
    count: impl Fn(&dyn Fn(u64)),
) -> Result<(), String> {
    let pmem = host.pmem("count", 64);
    let check = move |image: &[u8], _| check(word(image));
    let found = under_every_cut(fabric, &pmem, check, |_| {
        let map = PmemMap::open(pmem.path(), 64).expect("the memory");
        count(&|number: u64| {
            map.write_at(0, &number.to_le_bytes()).expect("inside");
            map.persist(..8).expect("inside");
        });
    });
    found.map_err(|loss| loss.to_string())
}

/// A check locks a mutex that the program holds only between its calls, and keeps the turn.
#[test]
fn a_check_locks_and_reads_channels() {
    for (fabric, host) in hosts() {
        let _entered = host.enter();
        let (told, (sends, receives)) = (Mutex::new(0), mpsc::channel());
        let told = &told;
        let check = move |found| {
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            *told = receives.try_iter().last().unwrap_or(*told);
            assert!(found >= *told, "{told} was told, {found} is there");
        };
        let found = count_up(&fabric, &host, check, |store| {
            for number in 1..4 {
                store(number);
                sends.send(number).expect("a receiver");
            }
        });
        assert_eq!(found, Ok(()));
        assert_eq!(fabric.why_not_repeatable(), None);
    }
}

/// A check that waits for the program is an error with a reason, and no wait for ever.
#[test]
fn a_check_does_not_wait_for_the_program() -> Result {
    for (fabric, host) in hosts() {
        let _entered = host.enter();
        let lock = Mutex::new(0);
        let check = |_| drop(lock.lock().unwrap_or_else(PoisonError::into_inner));
        let found = count_up(&fabric, &host, check, |store| {
            let _held = lock.lock();
            store(1);
        });
        let report = found.expect_err("the check cannot have the lock");
        assert_says(&report, &["holds while it calls rpma"]);

        // Of another thread.
        if fabric.seed().is_some() {
            continue;
        }
        let host = fabric.host("other");
        let _entered = host.enter();
        let (taken, is_taken) = std::sync::mpsc::channel();
        let (ends, is_over) = std::sync::mpsc::channel::<()>();
        let check = |_| drop(lock.lock().unwrap_or_else(PoisonError::into_inner));
        thread::scope(|scope| -> Result {
            let lock = &lock;
            scope.spawn(move || {
                let _held = lock.lock();
                taken.send(()).expect("a receiver");
                let _ = is_over.recv();
            });
            is_taken.recv()?;
            let found = count_up(&fabric, &host, check, |store| store(1));
            drop(ends);
            let report = found.expect_err("the check cannot have the lock");
            assert_says(&report, &["holds while it calls rpma"]);
            Ok(())
        })?;
    }
    let here = Rig::strict().seed(1).here();
    let (_sends, receives) = mpsc::channel::<u8>();
    let receives = Mutex::new(receives);
    let check = |_| {
        let receives = receives.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = receives.recv();
    };
    let found = count_up(&here.fabric, &here.host, check, |store| store(1));
    let report = found.expect_err("nothing comes");
    assert_says(&report, &["waits for the program"]);
    Ok(())
}

/// Threads are where those are that start them: also of a host that has lost its power meanwhile.
#[test]
fn threads_are_on_the_host_of_the_thread_that_starts_them() {
    fn name() -> Option<String> {
        Host::current().map(|host| host.name())
    }
    let spawned = || thread::spawn(name).join().expect("no panic");
    for (fabric, one) in hosts() {
        let other = fabric.host("other");
        let entered = one.enter();
        let both = thread::spawn(move || (name(), spawned()));
        thread::scope(|scope| {
            let on_one = scope.spawn(name);
            let _on_other = other.enter();
            let on_other = scope.spawn(name);
            assert_eq!(on_one.join().expect("no panic").as_deref(), Some("here"));
            assert_eq!(on_other.join().expect("no panic").as_deref(), Some("other"));
        });
        let (outer, inner) = both.join().expect("no panic");
        assert_eq!(outer.as_deref(), Some("here"));
        assert_eq!(inner.as_deref(), Some("here"));

        one.power_cut();
        assert_eq!(spawned(), None);
        one.restart();
        assert_eq!(spawned(), None, "of the host's earlier life");
        let again = one.enter();
        assert_eq!(spawned().as_deref(), Some("here"));
        drop((again, entered));
        assert_eq!(spawned(), None);
        assert_eq!(fabric.why_not_repeatable(), None);
    }
    assert_eq!(spawned(), None);
}

/// Whether a thread has ended is repeated, and a loop that asks for it ends.
#[test]
fn an_end_is_repeated() {
    let counts = by_seed(|_| {
        let thread = thread::spawn(|| (0..3).for_each(|_| sleep(Duration::ZERO)));
        let mut asked = 0;
        while !thread.is_finished() {
            asked += 1;
        }
        thread.join().expect("no panic");
        asked
    });
    assert!(counts.len() > 3, "{counts:?}");
}

/// Threads of a scope that are not joined end before it, in virtual time.
#[test]
fn a_scope_ends_with_its_threads() -> Result {
    with_virtual_time(|fabric, _| {
        let (before, ended) = (fabric.now(), AtomicU64::new(0));
        thread::scope(|scope| {
            for number in 1..4 {
                let ended = &ended;
                scope.spawn(move || {
                    sleep(number * HOUR);
                    scope.spawn(move || {
                        sleep(HOUR);
                        ended.fetch_add(1, Ordering::Relaxed);
                    });
                });
            }
        });
        assert_eq!(ended.into_inner(), 3);
        let passed = fabric.now() - before;
        assert!(passed >= 4 * HOUR && passed < 5 * HOUR, "{passed:?}");
        Ok(())
    })
}

/// Locks, conditions and channels outlive their fabric.
#[test]
fn locks_outlive_their_fabric() {
    let (lock, changed) = (Mutex::new(0), Condvar::new());
    let (sends, receives) = mpsc::sync_channel(1);
    for (_fabric, host) in hosts() {
        let _entered = host.enter();
        thread::scope(|scope| {
            scope.spawn(|| {
                *lock.lock().expect("no panic") += 1;
                changed.notify_one();
                sends.send(1).expect("a receiver");
            });
            let held = lock.lock().expect("no panic");
            drop(changed.wait_timeout_while(held, HOUR, |it| *it == 0));
            assert_eq!(receives.recv(), Ok(1));
        });
    }
    assert_eq!(*lock.lock().expect("no panic"), 3);
    let waited = changed.wait_timeout(lock.lock().expect("no panic"), Duration::from_millis(1));
    assert!(waited.expect("no panic").1.timed_out());
    assert_eq!(sends.try_send(2), Ok(()));
    assert_eq!(sends.try_send(3), Err(TrySendError::Full(3)));
    assert_eq!(receives.try_recv(), Ok(2));
    assert_eq!(receives.try_recv(), Err(TryRecvError::Empty));
    drop(receives);
    assert_eq!(sends.send(4), Err(SendError(4)));
}
