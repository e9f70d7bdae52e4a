//! The counters, without a device.

use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::*;
use crate::error::Error;
use crate::failure::{Failure, NotConnected};
use crate::status::WcFailure;
use crate::verbs::{CallFailed, Wc};

/// A connection to a device that takes every request, and completes those that the test names.
struct Device {
    slots: ConnSlots,
    taken: Mutex<Vec<u64>>,
}

impl Device {
    fn new(depth: u32) -> Self {
        let slots = ConnSlots::new(depth, 0);
        slots.open();
        Self {
            slots,
            taken: Mutex::default(),
        }
    }

    fn post(&self, count: u32, signaled: bool) -> Result<()> {
        post_send(&self.slots, (count, signaled), 7, |first| {
            let mut taken = self.taken.lock().expect("no panic");
            taken.extend((0..u64::from(count)).map(|n| first + n));
            Ok(())
        })
    }

    /// The completion of the request that was posted before `back` others.
    fn complete(&self, back: usize) {
        let taken = self.taken.lock().expect("no panic");
        let number = taken[taken.len() - 1 - back];
        assert_eq!(complete(&self.slots, Kind::Send, number), Some(7));
    }

    fn fill(&self, signaled: bool) -> u32 {
        (0..).take_while(|_| self.post(1, signaled).is_ok()).count() as u32
    }
}

/// As the library posts: without a wait first.
fn post_send(
    slots: &ConnSlots,
    (count, signaled): (u32, bool),
    op_context: u64,
    mut post: impl FnMut(u64) -> Result<(), PostError>,
) -> Result<()> {
    let wanted = Wanted::one_operation(count, signaled);
    let mut give = |mut entries: Entries<'_>| -> Result<u32, PostError> {
        let first = entries.take(op_context);
        for _ in 1..count {
            entries.take(op_context);
        }
        post(first)?;
        Ok(wanted.signaled)
    };
    let posted = slots.post_sends::<false>(wanted, 0, &mut give);
    outcome(posted)
        .unwrap_or_else(|| waited(slots.post_sends::<true>(wanted, 0, give)))
        .map(drop)
        .map_err(|refusal| {
            ended_after(slots, refusal.of_send());
            slots.send_refused(refusal, "operation", count)
        })
}

/// A failed call ends the connection.
fn ended_after(slots: &ConnSlots, failure: Option<Failure>) {
    if let Some(failure) = failure {
        slots.fail(failure);
    }
}

/// The outcome of a post; `None` if it would have to wait.
fn outcome(posted: PostResult) -> Option<Result<u64, PostRefusal>> {
    posted.map(|posted| posted.map_err(PostRefusal::from))
}

/// A post that waits, to an open queue.
fn post_to<E>(
    ring: &Ring,
    wanted: Wanted,
    post: impl FnOnce(Entries<'_>) -> Result<u32, NotTaken<E>>,
) -> Result<u64, NotPosted<E>> {
    ring.post::<true, E>(wanted, 10, || true, post)
        .expect("it waits")
}

/// Completes a request, and returns its `op_context`.
fn complete(slots: &ConnSlots, kind: Kind, number: u64) -> Option<u64> {
    let mut wc = Wc::for_test(kind.wr_id(number), WcStatus::SUCCESS);
    slots.complete(&mut wc, kind, number).then(|| wc.wr_id())
}

fn post_receive(
    slots: &ConnSlots,
    op_context: u64,
    mut post: impl FnMut(u64) -> Result<(), PostError>,
) -> Result<()> {
    let mut give = |mut entries: Entries<'_>| -> Result<u32, PostError> {
        post(Kind::Receive.wr_id(entries.take(op_context)))?;
        Ok(1)
    };
    let posted = slots.post_receives::<false>(1, &mut give);
    outcome(posted)
        .unwrap_or_else(|| waited(slots.post_receives::<true>(1, give)))
        .map(drop)
        .map_err(|refusal| {
            ended_after(slots, refusal.of_receive());
            slots.receive_refused(refusal, 1)
        })
}

#[test]
fn a_queue_takes_as_many_as_it_has_slots() {
    for depth in [0, 1, 10, 63, 64, 1000] {
        assert_eq!(Device::new(depth).fill(true), depth);
        let device = Device::new(depth);
        let kept = depth.min(1);
        assert_eq!(device.fill(false), depth - kept);
        assert_eq!(device.fill(true), kept, "one is kept for a completion");
    }
}

#[test]
fn a_polled_completion_frees_its_slot_and_all_before_it() {
    let device = Device::new(4);
    for signaled in [false, false, true, false] {
        device.post(1, signaled).expect("a slot");
    }
    let error = device.post(1, true).expect_err("full");
    let Error::QueueFull { queue, depth } = error else {
        panic!("{error:?}")
    };
    assert_eq!((queue, depth), (Queue::Send, 4));
    device.complete(1);
    assert_eq!(device.fill(true), 3, "slot 4 is still taken");
}

/// Polling helps only if a completion is due, and a program that polls on `QueueFull` would poll
/// for ever.
#[test]
fn polling_is_not_the_advice_where_it_cannot_help() {
    let due = |device: &Device, count, signaled| match device.post(count, signaled) {
        Err(Error::QueueFull { .. }) => true,
        Err(Error::NoCompletionDue { depth: 10 }) => false,
        other => panic!("{other:?}"),
    };
    let device = Device::new(10);
    assert_eq!(device.fill(false), 9);
    assert!(!due(&device, 1, false), "nothing gives a completion");
    assert!(
        !due(&device, 2, true),
        "neither will this one, if it does not fit"
    );
    device.post(1, true).expect("the slot that is kept");
    assert!(due(&device, 1, false));
    assert!(due(&device, 2, true));
    device.complete(0);
    assert_eq!(device.fill(false), 9, "they all came back");
    assert!(!due(&device, 1, false));
    // A failed one gives a completion with any flags.
    device.complete(3);
    assert_eq!(device.fill(false), 6);
}

#[test]
fn what_can_never_be_posted_is_refused_for_good() {
    for (depth, count, signaled) in [(1, 1, false), (4, 5, true), (4, 4, false), (0, 1, true)] {
        let error = Device::new(depth)
            .post(count, signaled)
            .expect_err("refused");
        let Error::InvalidArgument(text) = error else {
            panic!("{error:?}")
        };
        assert!(text.contains("set_sq_size"), "{text}");
    }
    Device::new(4).post(4, true).expect("all of them");
    Device::new(4).post(3, false).expect("all but one");
}

/// A number names one request for ever: also when a queue has had more than 32 bits can count.
#[test]
fn no_number_comes_again() {
    let near_the_end = u64::from(u32::MAX) - 7;
    let ring = Ring::starting_at(near_the_end, 5, 0);
    let mut numbers = Vec::new();
    for context in 0..100 {
        let wanted = Wanted::one_operation(3, true);
        let posted = post_to(&ring, wanted, |mut entries| -> Result<_, NotTaken<()>> {
            entries.take(0);
            entries.take(0);
            numbers.push(entries.take(context));
            Ok(wanted.signaled)
        });
        posted.expect("a slot");
        let full = post_to(&ring, wanted, |_| Err(NotTaken::Failed(())));
        assert_eq!(full, Err(NotPosted::Full));
        let last = *numbers.last().expect("posted");
        assert_eq!(ring.complete(last), context);
    }
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    assert!(*numbers.last().expect("posted") > u64::from(u32::MAX));
}

/// After the last one with a completion there may be others: they come back with a later one's.
#[test]
fn a_batch_has_its_last_completion_anywhere() {
    let device = Device::new(6);
    let post = |count, signaled| {
        let wanted = Wanted { count, signaled };
        let posted = device.slots.post_sends::<true>(wanted, 0, |mut entries| {
            let mut taken = device.taken.lock().expect("no panic");
            taken.extend((0..count).map(|_| entries.take(7)));
            Ok(signaled)
        });
        waited(posted).map_err(|refusal| refusal.bits())
    };
    post(6, 4).expect("all of them");
    assert_eq!(post(1, 1), Err(PostRefusal::FULL));
    device.complete(2);
    // Four came back; one is kept as long as no completion is due.
    let kept = Err(PostRefusal::NO_COMPLETION_DUE);
    assert_eq!(post(4, 0), kept);
    post(3, 0).expect("three are free");
    post(1, 1).expect("the one that was kept");
    device.complete(0);
    assert_eq!(device.fill(true), 6);
}

#[test]
fn a_batch_that_does_not_fit_takes_nothing() {
    let device = Device::new(3);
    device.post(1, true).expect("a slot");
    let none = |_: Entries<'_>| panic!("the device is not asked");
    let four = Wanted {
        count: 4,
        signaled: 4,
    };
    let refused = waited(device.slots.post_sends::<true>(four, 0, none));
    let refused = refused.map_err(|refusal| refusal.bits());
    assert_eq!(refused, Err(PostRefusal::TOO_LONG));
    let three = Wanted {
        count: 3,
        signaled: 3,
    };
    let refused = waited(device.slots.post_sends::<true>(three, 0, none));
    let refused = refused.map_err(|refusal| refusal.bits());
    assert_eq!(refused, Err(PostRefusal::FULL));
    assert_eq!(device.fill(true), 2);
}

/// A device that repeats a completion, or invents one, does not move the counters backwards.
#[test]
fn what_was_not_posted_completes_nothing() {
    let device = Device::new(2);
    assert_eq!(device.fill(true), 2);
    device.complete(0);
    for number in [0, 1, u64::from(u32::MAX), 1 << 60] {
        complete(&device.slots, Kind::Send, number);
    }
    assert_eq!(device.fill(true), 2);
}

#[test]
fn what_the_device_refused_has_no_slot() {
    let device = Device::new(2);
    let refused = post_send(&device.slots, (1, true), 0, |_| Err(PostError::Full));
    assert!(
        matches!(refused, Err(Error::QueueFull { .. })),
        "{refused:?}"
    );
    assert_eq!(device.fill(true), 2);
}

/// A device on a connection that has posted already, or not yet.
fn each_way() -> impl Iterator<Item = (Device, u64)> {
    [0, 1].into_iter().map(|before| {
        let device = Device::new(4);
        for _ in 0..before {
            device.post(1, true).expect("posts");
        }
        (device, before)
    })
}

/// It is unknown whether the device has it: the connection takes no more requests, and the slot
/// stays taken.
#[test]
fn a_failed_post_ends_the_connection() {
    for (device, before) in each_way() {
        let failed = PostError::Failed(CallFailed::for_test(Errno::NOMEM));
        let error = post_send(&device.slots, (1, true), 0, |_| Err(failed)).expect_err("failed");
        assert!(error.is_errno(Errno::NOMEM), "{error:?}");
        let refused = device.post(1, true);
        assert!(
            matches!(refused, Err(Error::NotConnected(_))),
            "{refused:?}"
        );
        let refused = post_receive(&device.slots, 0, |_| Ok(()));
        assert!(
            matches!(refused, Err(Error::NotConnected(_))),
            "{refused:?}"
        );
        assert_eq!(
            complete(&device.slots, Kind::Send, before),
            Some(0),
            "it may complete"
        );
    }
}

/// If the device refuses a post, only its bytes count. If the post failed, the request counts too:
/// the device may have it. Counts wrap around.
#[test]
fn a_failed_post_counts_and_a_refused_one_does_not() {
    let ring = Ring::new(4, 0);
    let count = |posted: Result<u32, NotTaken<()>>| {
        // Its result is the outcome of the numbers.
        let _ = post_to(&ring, Wanted::one_operation(1, true), |_| posted);
        (ring.next_number(), ring.bytes())
    };
    assert_eq!(count(Ok(1)), (1, 10));
    assert_eq!(count(Err(NotTaken::NoRoom)), (1, 20));
    assert_eq!(count(Err(NotTaken::Failed(()))), (2, 30));
}

/// The device must not be made to look again, even by a thread that waited for the lock meanwhile.
#[test]
fn nobody_posts_behind_a_failed_post() {
    for (device, before) in each_way() {
        thread::scope(|scope| {
            let (failing, started) = mpsc::channel();
            let device = &device;
            scope.spawn(move || {
                let failed = post_send(&device.slots, (1, true), 0, |_| {
                    failing.send(()).expect("wanted");
                    // The other one comes to the lock now. If it comes later it is refused anyway.
                    thread::sleep(Duration::from_millis(50));
                    Err(PostError::Failed(CallFailed::for_test(Errno::NOMEM)))
                });
                failed.expect_err("the device has failed");
            });
            started.recv().expect("it posts");
            let refused = device.post(1, true);
            assert!(
                matches!(refused, Err(Error::NotConnected(_))),
                "{refused:?}"
            );
        });
        let taken = device.taken.lock().expect("no panic").len();
        assert_eq!(taken, before as usize);
    }
}

/// Promise: after a failed post no thread posts, even before the connection has ended.
#[test]
fn nobody_posts_before_a_failed_post_has_ended_the_connection() {
    let device = Device::new(4);
    device.post(1, true).expect("posts");
    let failed = PostError::Failed(CallFailed::for_test(Errno::NOMEM));
    let wanted = Wanted::one_operation(1, true);
    let posted = device.slots.post_sends::<false>(wanted, 0, |_| Err(failed));
    let refused = outcome(posted).expect("it need not wait");
    for count in [1, 2] {
        let refused = device.post(count, true);
        assert!(
            matches!(refused, Err(Error::NotConnected(_))),
            "{refused:?}"
        );
    }
    assert_eq!(device.taken.lock().expect("no panic").len(), 1);
    let error = refused.map_err(|refusal| device.slots.send_refused(refusal, "operation", 1));
    assert!(error.expect_err("failed").is_errno(Errno::NOMEM));
}

#[test]
fn a_refused_receive_ends_nothing() {
    let slots = ConnSlots::new(1, 4);
    let refused = PostError::Refused(CallFailed::for_test(Errno::INVAL));
    for _ in 0..2 {
        let error = post_receive(&slots, 0, |_| Err(refused)).expect_err("refused");
        assert!(error.is_errno(Errno::INVAL), "{error:?}");
    }
    for _ in 0..4 {
        post_receive(&slots, 0, |_| Ok(())).expect("each slot is there");
    }
}

/// A device that reports requests as done that it never got neither opens a connection nor makes
/// its queue longer.
#[test]
fn a_device_that_is_ahead_opens_nothing() {
    let ended = |ahead_first: bool| {
        let device = Device::new(10);
        device.post(1, true).expect("posts");
        if ahead_first {
            complete(&device.slots, Kind::Send, 5);
        }
        device.slots.end(ConnState::Closed);
        if !ahead_first {
            complete(&device.slots, Kind::Send, 5);
        }
        device.slots
    };
    let connecting = ConnSlots::new(10, 0);
    complete(&connecting, Kind::Send, 5);
    for slots in [ended(true), ended(false), connecting] {
        let refused = post_send(&slots, (1, true), 0, |_| Ok(()));
        assert!(
            matches!(refused, Err(Error::NotConnected(_))),
            "{refused:?}"
        );
    }
    let device = Device::new(4);
    device.post(1, true).expect("posts");
    complete(&device.slots, Kind::Send, 4);
    assert!(device.fill(true) <= 3);
}

#[test]
fn a_queue_of_nothing_is_not_full() {
    let slots = ConnSlots::new(1, 0);
    let refused = post_receive(&slots, 0, |_| Ok(()));
    assert!(
        matches!(refused, Err(Error::InvalidArgument(_))),
        "{refused:?}"
    );
    let pool = Pool::new(0);
    let posted: Result<(), NotPosted<()>> = pool.post(pool.lock(), 1, |_| Ok(()));
    assert_eq!(posted, Err(NotPosted::TooLong));
}

#[test]
fn nothing_is_posted_before_and_after_the_connection() {
    let reason = |slots: &ConnSlots| match post_send(slots, (1, true), 0, |_| Ok(())) {
        Err(Error::NotConnected(reason)) => reason,
        other => panic!("{other:?}"),
    };
    let slots = ConnSlots::new(10, 0);
    assert_eq!(reason(&slots), NotConnected::NotYet);
    slots.open();
    post_send(&slots, (1, true), 0, |_| Ok(())).expect("open");
    slots.end(ConnState::Failed);
    slots.end(ConnState::Closed);
    slots.open();
    assert_eq!(reason(&slots), NotConnected::Failed);
}

#[test]
fn a_receive_queue_takes_as_many_as_it_has_slots() {
    let slots = ConnSlots::new(1, 3);
    let mut posted = Vec::new();
    for round in 0..10 {
        for n in 0..3 {
            let post = |wr_id| {
                posted.push(Kind::of(wr_id).expect("ours"));
                Ok(())
            };
            post_receive(&slots, 3 * round + n, post).expect("before the connection is there");
        }
        let error = post_receive(&slots, 0, |_| Ok(())).expect_err("full");
        let Error::QueueFull { queue, depth } = error else {
            panic!("{error:?}")
        };
        assert_eq!((queue, depth), (Queue::Receive, 3));
        for (n, (kind, number)) in (0..).zip(posted.drain(..)) {
            assert_eq!(complete(&slots, kind, number), Some(3 * round + n));
        }
    }
    assert_eq!(slots.end(ConnState::Closed), ConnState::Connecting);
    let refused = post_receive(&slots, 0, |_| Ok(()));
    assert!(
        matches!(refused, Err(Error::NotConnected(_))),
        "{refused:?}"
    );
}

/// Polling would not help.
#[test]
fn a_full_receive_queue_of_an_ended_connection_is_not_full() {
    for depth in [0, 2] {
        let slots = ConnSlots::new(1, depth);
        for n in 0..depth {
            post_receive(&slots, n.into(), |_| Ok(())).expect("a slot");
        }
        slots.end(ConnState::Failed);
        let refused = post_receive(&slots, 0, |_| Ok(()));
        assert!(
            matches!(refused, Err(Error::NotConnected(_))),
            "{refused:?}"
        );
    }
}

/// A long operation for which there is no room does not let short ones in.
#[test]
fn nothing_opens_a_connection_that_has_ended() {
    for ended in [true, false] {
        let device = Device {
            slots: ConnSlots::new(10, 0),
            taken: Mutex::default(),
        };
        if ended {
            device.slots.open();
            device.post(8, true).expect("open");
            device.slots.end(ConnState::Closed);
        }
        for count in [3, 11] {
            for count in [count, 1] {
                let refused = device.post(count, true);
                assert!(
                    matches!(refused, Err(Error::NotConnected(_))),
                    "{refused:?}"
                );
            }
        }
    }
}

/// Receives of several connections complete in any order, and each gives its own number back, once.
#[test]
fn a_shared_receive_queue_counts_in_any_order() {
    let pool = Pool::new(3);
    let post = |context| {
        let mut number = None;
        let posted: Result<_, NotPosted<()>> = pool.post(pool.lock(), 1, |entries| {
            number = Some(entries.take(context));
            Ok(())
        });
        posted.map(|()| number.expect("taken"))
    };
    let numbers: Vec<_> = (10..13)
        .map(|context| post(context).expect("a slot"))
        .collect();
    assert_eq!(post(13), Err(NotPosted::Full));
    assert_eq!(pool.returning().complete(numbers[1].into()), Some(11));
    assert_eq!(
        pool.returning().complete(numbers[1].into()),
        None,
        "not twice"
    );
    assert_eq!(
        pool.returning().complete(99),
        None,
        "not what was never posted"
    );
    post(14).expect("one slot is back");
    assert_eq!(post(15), Err(NotPosted::Full));
    assert_eq!(pool.returning().complete(numbers[2].into()), Some(12));
    assert_eq!(pool.returning().complete(numbers[0].into()), Some(10));
}

#[test]
fn a_completion_says_what_it_is_of() {
    for kind in Kind::ALL {
        for number in [0, (1 << 61) - 1] {
            assert_eq!(Kind::of(kind.wr_id(number)), Some((kind, number)));
        }
    }
    for foreign in [7 << 61, u64::MAX] {
        assert_eq!(Kind::of(foreign), None);
    }
}

#[test]
fn the_failure_is_the_one_that_explains_the_others() {
    let (flushed, access) = (WcStatus::WR_FLUSH_ERR, WcStatus::REM_ACCESS_ERR);
    let length = WcStatus::LOC_LEN_ERR;
    let first = |failures: &[(u64, WcStatus)]| {
        let slots = ConnSlots::new(1, 1);
        for &(wr_id, status) in failures {
            slots.fail(WcFailure::for_test(wr_id, status));
        }
        slots.failure().map(|failure| match failure {
            Failure::Operation(failure) => failure.wr_id,
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(first(&[]), None);
    assert_eq!(first(&[(1, flushed), (2, flushed)]), Some(1));
    assert_eq!(first(&[(1, flushed), (2, length)]), Some(2));
    assert_eq!(first(&[(1, access), (2, flushed), (3, length)]), Some(1));

    // The device's own word explains the flushed operations, and no more.
    let slots = ConnSlots::new(1, 1);
    slots.fail(WcFailure::for_test(1, flushed));
    slots.fail(Failure::Device);
    assert_eq!(slots.failure(), Some(Failure::Device));
    slots.fail(WcFailure::for_test(2, access));
    assert!(matches!(slots.failure(), Some(Failure::Operation(failure)) if failure.wr_id == 2));
}

#[test]
fn a_failed_call_is_the_same_in_a_word() {
    for call in CallFailed::each_for_test(Errno::ACCESS) {
        let text = Error::from(call).to_string();
        for error in [NotPosted::Refused(call), NotPosted::Failed(call)] {
            let slots = ConnSlots::new(1, 1);
            for error in [
                slots.send_refused(error.into(), "operation", 1),
                slots.receive_refused(error.into(), 1),
            ] {
                assert!(error.to_string().starts_with(&text), "{error}, {text}");
                let hints = ["fork", "A later request was refused"]
                    .map(|hint| error.to_string().contains(hint));
                assert_eq!(hints, [!call.in_the_middle, call.in_the_middle], "{error}");
            }
        }
    }
}

/// Settling at once stops at a failure and at a completion that is not the program's. It frees the
/// slots of exactly those before.
#[test]
fn completions_are_settled_up_to_a_failure_or_a_marker() {
    const DEPTH: u32 = 8;
    let unlike = [
        (Kind::Send, WcStatus::REM_ACCESS_ERR),
        (Kind::AllSent, WcStatus::SUCCESS),
        (Kind::SharedReceive, WcStatus::SUCCESS),
    ];
    for (kind, status) in unlike {
        for like in 0..=5 {
            let slots = ConnSlots::new(DEPTH, DEPTH);
            slots.open();
            for n in 0..DEPTH {
                let context = u64::from(n) + 100;
                post_send(&slots, (1, true), context, |_| Ok(())).expect("a slot");
            }
            let mut wcs: Vec<_> = (0..like)
                .map(|n| Wc::for_test(Kind::Send.wr_id(n), WcStatus::SUCCESS))
                .collect();
            wcs.push(Wc::for_test(kind.wr_id(like), status));
            assert_eq!(slots.settle(&mut wcs), 1, "{like} {kind:?}");
            for (n, wc) in (0..like).zip(&wcs) {
                assert_eq!(wc.wr_id(), n + 100);
                assert_eq!(wc.posted(), Some(slots.name(n, true)));
            }
            assert_eq!(wcs[like as usize].wr_id(), kind.wr_id(like), "not touched");
            let again = |_: &u32| post_send(&slots, (1, true), 0, |_| Ok(())).is_ok();
            assert_eq!((0..).take_while(again).count() as u64, like);
        }
    }
}

/// Sends, receives and those of a shared queue in every order of eight: each gets its own context,
/// and all slots come back. Also with a failure among them, which is left with all after it.
#[test]
fn completions_of_three_queues_are_settled_in_turn() {
    const COUNT: u32 = 8;
    for order in 0..3u64.pow(COUNT) {
        let kinds: Vec<_> = (0..COUNT)
            .map(|n| {
                [Kind::Send, Kind::Receive, Kind::SharedReceive][(order / 3u64.pow(n) % 3) as usize]
            })
            .collect();
        // At most one of them has failed.
        let failed = (order % u64::from(COUNT + 1)) as usize;
        let pool = Arc::new(Pool::new(COUNT));
        let slots = ConnSlots::new(COUNT, COUNT).sharing(Some(Arc::clone(&pool)));
        slots.open();
        let mut wcs = Vec::new();
        for (n, kind) in (0u64..).zip(&kinds) {
            let mut number = 0;
            match kind {
                Kind::Send => post_send(&slots, (1, true), n, |given| {
                    number = given;
                    Ok(())
                })
                .expect("a slot"),
                Kind::Receive => post_receive(&slots, n, |wr_id| {
                    number = Kind::of(wr_id).expect("ours").1;
                    Ok(())
                })
                .expect("a slot"),
                _ => pool
                    .post(pool.lock(), 1, |entries| -> Result<(), NotTaken<()>> {
                        number = entries.take(n).into();
                        Ok(())
                    })
                    .expect("a slot"),
            }
            let status = if wcs.len() == failed {
                WcStatus::LOC_PROT_ERR
            } else {
                WcStatus::SUCCESS
            };
            wcs.push(Wc::for_test(kind.wr_id(number), status));
        }
        let left = slots.settle(&mut wcs);
        assert_eq!(left, wcs.len() - failed.min(wcs.len()), "{kinds:?}");
        for (n, wc) in (0..).zip(&wcs[..wcs.len() - left]) {
            assert_eq!(wc.wr_id(), n, "{kinds:?}");
        }
        let settled = |kind| {
            kinds[..kinds.len() - left]
                .iter()
                .filter(|now| **now == kind)
                .count()
        };
        let posted = |kind| kinds.iter().filter(|now| **now == kind).count();
        let free = |kind| COUNT as usize - posted(kind) + settled(kind);
        let again = |_: &u32| post_receive(&slots, 0, |_| Ok(())).is_ok();
        assert_eq!(
            (0..).take_while(again).count(),
            free(Kind::Receive),
            "{kinds:?}"
        );
        let again = |_: &u32| {
            let posted: Result<(), NotPosted<()>> = pool.post(pool.lock(), 1, |entries| {
                entries.take(0);
                Ok(())
            });
            posted.is_ok()
        };
        assert_eq!(
            (0..).take_while(again).count(),
            free(Kind::SharedReceive),
            "{kinds:?}"
        );
    }
}

/// If a device refuses receives, their slots come back. If it may have them, all slots stay taken.
#[test]
fn a_shared_queue_takes_back_what_was_refused() {
    let pool = Pool::new(4);
    let post = |count, answer: Result<(), NotTaken<()>>| {
        pool.post(pool.lock(), count, |entries| {
            for _ in 0..count {
                entries.take(9);
            }
            answer
        })
    };
    post(1, Ok(())).expect("a slot");
    assert_eq!(post(3, Err(NotTaken::NoRoom)), Err(NotPosted::Full));
    assert_eq!(
        post(3, Err(NotTaken::Refused(()))),
        Err(NotPosted::Refused(()))
    );
    assert_eq!(pool.returning().complete(1), None, "it is free");
    assert_eq!(
        post(2, Err(NotTaken::Failed(()))),
        Err(NotPosted::Failed(()))
    );
    assert_eq!(post(2, Ok(())), Err(NotPosted::Full), "one is left");
    for number in 0..3 {
        assert_eq!(pool.returning().complete(number), Some(9));
    }
    assert_eq!(post(5, Ok(())), Err(NotPosted::TooLong));
    post(4, Ok(())).expect("all have come back");
}

/// A connection that has ended keeps one receive at most, and only one that was posted before its
/// end.
#[test]
fn receives_that_may_be_kept_are_counted() {
    let pool = Pool::new(4);
    let post = || {
        let mut taken = None;
        let posted = pool.post(pool.lock(), 1, |entries| -> Result<(), NotTaken<()>> {
            taken = Some(entries.take(7));
            Ok(())
        });
        assert!(posted.is_ok(), "there is room");
        taken.expect("an entry")
    };
    let first = [post(), post()];
    assert_eq!(pool.kept(), 0);
    pool.may_keep();
    assert_eq!(pool.kept(), 1, "one of two");
    let later = [post(), post()];
    (0..3).for_each(|_| pool.may_keep());
    assert_eq!(pool.kept(), 4, "four connections, and four receives");
    assert_eq!(pool.returning().complete(first[0].into()), Some(7));
    assert_eq!(pool.returning().complete(first[1].into()), Some(7));
    assert_eq!(pool.kept(), 2, "those that are missing");
    let again = post();
    assert_eq!(pool.returning().complete(later[0].into()), Some(7));
    assert_eq!(
        pool.kept(),
        1,
        "the newest is of no connection that has ended"
    );
    assert_eq!(pool.returning().complete(later[1].into()), Some(7));
    assert_eq!(pool.kept(), 0);
    assert_eq!(pool.returning().complete(again.into()), Some(7));
    assert_eq!(pool.returning().complete(again.into()), None, "it is free");
}

/// A probe that was flushed never reached the peer: it ends the connection, and is not a lost one.
#[test]
fn a_flushed_probe_is_not_lost() {
    for (status, lost) in [(WcStatus::WR_FLUSH_ERR, 0), (WcStatus::RETRY_EXC_ERR, 1)] {
        let device = Device::new(4);
        let taken = Mutex::new(0);
        let posted = device.slots.post_probe(|wr_id| {
            *taken.lock().expect("no panic") = wr_id;
            Ok(())
        });
        assert!(posted.is_ok());
        let wr_id = *taken.lock().expect("no panic");
        let (kind, number) = Kind::of(wr_id).expect("the library's own");
        assert_eq!(kind, Kind::Probe);
        device.slots.probe_came(number, status);
        assert!(device.slots.is_silent());
        assert_eq!(device.slots.counters().probes_lost, lost, "{status}");
    }
}
