//! The counting of slots of rpma's queues: lock.rs, and contexts.rs, ring.rs and pool.rs of slots/.
//!
//! The device is a queue in the order of posting, which completes everything. The models check in
//! every order: each request's number leads to its own `op_context`, never is more outstanding than
//! there are slots, every slot comes back, and no thread gets stuck.

use std::collections::VecDeque;

use loom::sync::atomic::AtomicBool;
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::primitives::Ordering;
use crate::ring::{Entries, NotPosted, NotTaken, Ring, Wanted};
use crate::{lock, model, pool};

/// The context of a request beside those of the program.
const BESIDE: u64 = u64::MAX;

/// A queue, its device, and the completion queue's lock.
struct Queue {
    ring: Ring,
    /// The posted requests: the number, whether it completes, and the context.
    device: Mutex<VecDeque<(u64, bool, u64)>>,
    polling: Mutex<Vec<u64>>,
    depth: usize,
}

impl Queue {
    fn new(first: u64, depth: u32) -> Arc<Self> {
        Self::with_extra(first, depth, 0)
    }

    fn with_extra(first: u64, depth: u32, extra: u32) -> Arc<Self> {
        Arc::new(Self {
            ring: Ring::starting_at(first, depth, extra),
            device: Mutex::new(VecDeque::new()),
            polling: Mutex::new(Vec::new()),
            depth: depth as usize,
        })
    }

    /// As the library does: without a wait for the lock first.
    fn post(&self, signaled: bool, context: u64) -> Result<(), NotPosted<()>> {
        let give = |number| {
            // The poster may be stopped here for as long as it takes.
            thread::yield_now();
            let mut device = self.device.lock().unwrap();
            device.push_back((number, signaled, context));
            let of_program = device.iter().filter(|(.., of)| *of != BESIDE).count();
            assert!(of_program <= self.depth, "more than the queue has slots");
        };
        let wanted = Wanted::one_operation(1, signaled);
        self.post_all(wanted, |mut entries| give(entries.take(context)))
    }

    /// Without a wait first.
    fn post_all(
        &self,
        wanted: Wanted,
        mut give: impl FnMut(Entries<'_>),
    ) -> Result<(), NotPosted<()>> {
        let mut post = |entries: Entries<'_>| {
            give(entries);
            Ok(wanted.signaled)
        };
        let posted = self.ring.post::<false, ()>(wanted, 0, || true, &mut post);
        let posted = posted.unwrap_or_else(|| self.wait_to_post(wanted, post));
        posted.map(drop)
    }

    /// Of an open connection.
    fn wait_to_post(
        &self,
        wanted: Wanted,
        post: impl FnOnce(Entries<'_>) -> Result<u32, NotTaken<()>>,
    ) -> Result<u64, NotPosted<()>> {
        let posted = self.ring.post::<true, ()>(wanted, 0, || true, post);
        posted.expect("it waits")
    }

    /// Posts two together. The last one completes: as a batch.
    fn post_two(&self, context: u64) -> Result<(), NotPosted<()>> {
        let wanted = Wanted::one_operation(2, true);
        let give = |mut entries: Entries<'_>| {
            let numbers = [entries.take(0), entries.take(context)];
            thread::yield_now();
            let mut device = self.device.lock().unwrap();
            device.push_back((numbers[0], false, 0));
            device.push_back((numbers[1], true, context));
            assert!(device.len() <= self.depth, "more than the queue has slots");
        };
        self.post_all(wanted, give)
    }

    /// Polls one completion, if there is one: the device is done with all up to a signaled request.
    fn poll(&self) -> bool {
        let mut polled = self.polling.lock().unwrap();
        let mut device = self.device.lock().unwrap();
        let Some(end) = device.iter().position(|(_, signaled, _)| *signaled) else {
            return false;
        };
        let (number, _, context) = device.drain(..=end).next_back().unwrap();
        drop(device);
        if context == BESIDE {
            self.ring.beside_is_done(number);
            return true;
        }
        assert_eq!(self.ring.complete(number), context, "another one's context");
        polled.push(context);
        true
    }

    /// Polls the rest. All posted requests have completed then, each once.
    fn check_polled(&self, mut posted: Vec<u64>) {
        while self.poll() {}
        let mut polled = self.polling.lock().unwrap().clone();
        polled.sort_unstable();
        posted.sort_unstable();
        assert_eq!(polled, posted);
    }

    /// And all slots are back, of a queue that has not ended.
    fn check(&self, posted: Vec<u64>) {
        self.check_polled(posted);
        for _ in 0..self.depth {
            self.post(true, 0).expect("every slot has come back");
        }
        assert_eq!(self.post(true, 0), Err(NotPosted::Full));
    }
}

/// Posts those for which there is a slot.
fn poster(queue: &Arc<Queue>, contexts: [u64; 2]) -> thread::JoinHandle<Vec<u64>> {
    let queue = Arc::clone(queue);
    thread::spawn(move || {
        let posted = |context: &u64| queue.post(true, *context).is_ok();
        contexts.into_iter().filter(posted).collect()
    })
}

fn poller(queue: &Arc<Queue>, times: usize) -> thread::JoinHandle<()> {
    let queue = Arc::clone(queue);
    thread::spawn(move || {
        for _ in 0..times {
            queue.poll();
        }
    })
}

/// One at a time, and no thread sleeps for ever: a lost wake-up is a deadlock, which loom reports.
#[test]
fn three_threads_and_a_lock() {
    model(2, || {
        let shared = Arc::new((lock::Lock::new(), AtomicBool::new(false)));
        let enter = |shared: &Arc<(lock::Lock, AtomicBool)>| {
            let (lock, inside) = &**shared;
            let held = lock.acquire();
            assert!(!inside.swap(true, Ordering::Relaxed), "two inside");
            inside.store(false, Ordering::Relaxed);
            drop(held);
        };
        let others = [(); 2].map(|()| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || enter(&shared))
        });
        enter(&shared);
        if let Some(held) = shared.0.try_acquire() {
            assert!(!shared.1.load(Ordering::Relaxed), "somebody is inside");
            drop(held);
        }
        for other in others {
            other.join().unwrap();
        }
        assert!(shared.0.try_acquire().is_some(), "it is free at the end");
    });
}

/// After the end a post is refused, even if another thread waited for the lock just then.
#[test]
fn the_short_way_ends_with_the_connection() {
    model(3, || {
        let queue = Queue::new(0, 4);
        let ended = Arc::new(AtomicBool::new(false));
        let ending = {
            let (queue, ended) = (Arc::clone(&queue), Arc::clone(&ended));
            thread::spawn(move || {
                ended.store(true, Ordering::Release);
                queue.ring.end();
            })
        };
        let wanted = Wanted::one_operation(1, true);
        // As the library does: the state is looked at under the lock, where entries are looked for.
        let is_open = || !ended.load(Ordering::Acquire);
        let post = |_: Entries<'_>| -> Result<u32, NotTaken<()>> { Ok(1) };
        let _ = queue.ring.post::<true, ()>(wanted, 0, is_open, post);
        ending.join().unwrap();
        // Nor does one that has no room open it again.
        let long = Wanted::one_operation(5, true);
        let refused = queue.wait_to_post(long, |_| Ok(5));
        assert_eq!(refused, Err(NotPosted::Ended));
        let posted = queue.ring.post::<false, ()>(wanted, 0, || true, |_| Ok(1));
        assert_eq!(posted, None, "posted behind the end");
    });
}

/// Two post, one polls: over more than a lap, and from any number on.
#[test]
fn two_posters_over_a_lap() {
    for first in [0, 7] {
        model(3, move || {
            let queue = Queue::new(first, 1);
            let posters = [poster(&queue, [1, 2]), poster(&queue, [3, 4])];
            queue.poll();
            queue.poll();
            let posted = posters.map(|poster| poster.join().unwrap()).concat();
            queue.check(posted);
        });
    }
}

/// Completions go to one poller each, and no entry is overwritten before it is read.
#[test]
fn two_pollers() {
    model(3, || {
        let queue = Queue::new(0, 2);
        let pollers = [poller(&queue, 2), poller(&queue, 1)];
        let posted = (1..=4).filter(|context| queue.post(true, *context).is_ok());
        let posted = posted.collect();
        for poller in pollers {
            poller.join().unwrap();
        }
        queue.check(posted);
    });
}

/// The last slot is kept for a request with a completion: no thread gets stuck after those without.
#[test]
fn posters_without_completions_do_not_fill_the_queue() {
    model(3, || {
        let queue = Queue::new(0, 2);
        let silent = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let _ = queue.post(false, 1);
                let _ = queue.post(false, 2);
            })
        };
        let mut posted = Vec::new();
        for context in [3, 4] {
            match queue.post(true, context) {
                Ok(()) => posted.push(context),
                Err(error) => assert_eq!(error, NotPosted::Full, "then polling helps"),
            }
            queue.poll();
        }
        silent.join().unwrap();
        while queue.poll() {}
        // It frees requests without a completion.
        queue.post(true, 5).expect("the slot that is kept");
        posted.push(5);
        queue.check(posted);
    });
}

/// A request that the device refuses leaves no hole, and no slot taken.
#[test]
fn a_refused_post() {
    model(3, || {
        let queue = Queue::new(0, 2);
        let refused = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let wanted = Wanted::one_operation(1, true);
                let full = queue.wait_to_post(wanted, |_| Err(NotTaken::NoRoom));
                assert_eq!(full, Err(NotPosted::Full));
            })
        };
        for context in [1, 2] {
            queue.post(true, context).expect("a slot");
        }
        refused.join().unwrap();
        queue.check(vec![1, 2]);
    });
}

/// After a request that failed, and that the device may have, there is no post that would make it
/// look. The requests that it has still complete with their own contexts.
#[test]
fn nothing_is_posted_behind_a_failure() {
    model(3, || {
        let queue = Queue::new(0, 3);
        let ended = Arc::new(AtomicBool::new(false));
        let post = |context, fails: bool| {
            let (queue, ended) = (Arc::clone(&queue), Arc::clone(&ended));
            thread::spawn(move || {
                let wanted = Wanted::one_operation(1, true);
                let posted = queue.wait_to_post(wanted, |mut entries| {
                    let number = entries.take(context);
                    if ended.load(Ordering::Acquire) {
                        return Err(NotTaken::Refused(()));
                    }
                    let mut device = queue.device.lock().unwrap();
                    device.push_back((number, true, context));
                    drop(device);
                    if fails {
                        ended.store(true, Ordering::Release);
                        return Err(NotTaken::Failed(()));
                    }
                    Ok(1)
                });
                match posted {
                    Err(NotPosted::Refused(()) | NotPosted::Ended) => None,
                    _ => Some(context),
                }
            })
        };
        let posters = [post(1, true), post(2, false)];
        queue.poll();
        let posted = posters.map(|poster| poster.join().unwrap());
        let posted: Vec<u64> = posted.into_iter().flatten().collect();
        let last = queue
            .device
            .lock()
            .unwrap()
            .back()
            .map(|(_, _, context)| *context);
        assert!(
            last.is_none_or(|context| context == 1),
            "posted behind the failure"
        );
        queue.check_polled(posted);
    });
}

/// Requests that are posted together have an entry each, also after the last one that gives a
/// completion; and a marker has one of its own.
#[test]
fn several_at_once_and_markers() {
    model(3, || {
        let queue = Queue::with_extra(7, 3, 1);
        let poller = poller(&queue, 1);
        let wanted = Wanted {
            count: 3,
            signaled: 2,
        };
        let posted = queue.wait_to_post(wanted, |mut entries| {
            let mut device = queue.device.lock().unwrap();
            for (index, signaled) in [false, true, false].into_iter().enumerate() {
                let context = 7 + index as u64;
                let number = entries.take(context);
                device.push_back((number, signaled, context));
            }
            Ok(wanted.signaled)
        });
        posted.expect("all slots");
        // Now or later one completion brings two entries back; the third request is still there.
        let more = Wanted {
            count: 3,
            signaled: 3,
        };
        let refused = queue.wait_to_post(more, |_| Ok(3));
        assert!(matches!(
            refused,
            Err(NotPosted::Full | NotPosted::NoCompletionDue)
        ));
        let marker: Result<u64, NotPosted<()>> = queue.ring.post_extra(|mut entries| {
            let number = entries.take(0);
            queue.device.lock().unwrap().push_back((number, true, 0));
            Ok(())
        });
        marker.expect("a slot of its own");
        poller.join().unwrap();
        queue.check(vec![0, 8]);
    });
}

/// A request beside the program's takes no slot, and leaves no slot taken when it is done, whenever
/// it is posted and polled.
#[test]
fn a_request_beside_the_programs() {
    model(2, || {
        let queue = Queue::with_extra(5, 2, 1);
        queue.post(true, 0).expect("a slot");
        let beside = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let posted: Result<u64, NotPosted<()>> = queue.ring.post_beside(|mut entries| {
                    let number = entries.take(BESIDE);
                    let mut device = queue.device.lock().unwrap();
                    device.push_back((number, true, BESIDE));
                    Ok(())
                });
                posted.expect("it has an entry of its own");
            })
        };
        let poller = poller(&queue, 2);
        queue.post(true, 1).expect("the second slot");
        let third = queue.post(true, 2).is_ok();
        beside.join().unwrap();
        poller.join().unwrap();
        let posted = if third { vec![0, 1, 2] } else { vec![0, 1] };
        queue.check(posted);
    });
}

/// Batches beside single operations, while completions are polled: numbers are in the order of the
/// device, and no entry is another request's.
#[test]
fn batches_and_single_operations() {
    model(3, || {
        let queue = Queue::new(u64::MAX >> 3, 4);
        // The entries are open from the first post on.
        queue.post(true, 1).expect("a slot");
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.post_two(2).is_ok())
        };
        let polling = poller(&queue, 2);
        let single = queue.post(true, 3).is_ok();
        let mut posted = vec![1];
        posted.extend(other.join().unwrap().then_some(2));
        posted.extend(single.then_some(3));
        polling.join().unwrap();
        queue.check(posted);
    });
}

/// A shared receive queue: entries of two connections come back in any order.
#[test]
fn a_shared_queue_of_two_connections() {
    model(3, || {
        let pool = Arc::new(pool::Pool::new(2));
        let device = Arc::new(Mutex::new(Vec::new()));
        let post = |pool: &pool::Pool, device: &Mutex<Vec<(u32, u64)>>, context| {
            let posted: Result<(), NotPosted<()>> = pool.post(pool.lock(), 1, |entries| {
                let number = entries.take(context);
                device.lock().unwrap().push((number, context));
                Ok(())
            });
            posted
        };
        for context in [1, 2] {
            post(&pool, &device, context).expect("a slot");
        }
        let poller = {
            let (pool, device) = (Arc::clone(&pool), Arc::clone(&device));
            thread::spawn(move || {
                let (number, context) = device.lock().unwrap().swap_remove(0);
                assert_eq!(pool.returning().complete(number.into()), Some(context));
            })
        };
        let _ = post(&pool, &device, 3);
        poller.join().unwrap();
        let mut rest = std::mem::take(&mut *device.lock().unwrap());
        assert!(rest.len() <= 2);
        for (number, context) in rest.drain(..) {
            assert_eq!(pool.returning().complete(number.into()), Some(context));
        }
        for context in [4, 5] {
            post(&pool, &device, context).expect("all are back");
        }
        assert_eq!(post(&pool, &device, 6), Err(NotPosted::Full));
    });
}

/// The same for a post that does not wait. Only the ring has the failure until the connection has
/// ended.
#[test]
fn nothing_is_posted_behind_a_failure_of_the_short_way() {
    model(3, || {
        let queue = Queue {
            ring: Ring::starting_at(0, 3, 0),
            device: Mutex::new(VecDeque::new()),
            polling: Mutex::new(Vec::new()),
            depth: 3,
        };
        let queue = Arc::new(queue);
        let failing = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let wanted = Wanted::one_operation(1, true);
                let _ = queue.wait_to_post(wanted, |mut entries| {
                    let mut device = queue.device.lock().unwrap();
                    device.push_back((entries.take(1), true, 1));
                    Err(NotTaken::Failed(()))
                });
            })
        };
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.post(true, 2))
        };
        queue.poll();
        failing.join().unwrap();
        let _ = other.join().unwrap();
        let device = queue.device.lock().unwrap();
        let contexts: Vec<_> = device.iter().map(|(_, _, context)| *context).collect();
        assert_ne!(contexts, [1, 2], "posted behind the failure");
        drop(device);
        while queue.poll() {}
        let polled = queue.polling.lock().unwrap().clone();
        assert!([&[1][..], &[2], &[2, 1]].contains(&&*polled), "{polled:?}");
    });
}
