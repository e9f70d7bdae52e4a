//! Unit tests of slots.rs: operations of several requests. They stand here because `tests/loom`
//! includes that file.

use crate::slots::{Look, Slots};

const SUCCEEDS: Result<(), &str> = Ok(());

/// Slots, and the number of an operation whose requests 1 to 3 have its number.
fn with_parts() -> (Slots<(), &'static str, u32>, u64) {
    let slots = Slots::new(1);
    let number = slots.begin(3).expect("a slot is free");
    slots.has_parts(number);
    (slots, number)
}

/// The device may read the sources of the requests after a failed one until they are flushed.
#[test]
fn a_failed_part_keeps_the_sources_of_the_others() {
    let (slots, number) = with_parts();
    assert_eq!(slots.note_last(number, 3), None);
    assert_eq!(slots.settle_failed(number, "refused", 1), None);
    assert_eq!(slots.settle_failed(number, "flushed", 2), None);
    assert_eq!(slots.look(number), Look::Pending);
    let settled = slots.settle_failed(number, "flushed", 3).expect("the last");
    assert_eq!((settled.weight, settled.slept), (3, false));
    assert_eq!(slots.finish(number, false), Err("refused"));
}

/// Another thread may poll all completions before the post has returned, and settle them in any
/// order.
#[test]
fn the_last_part_may_fail_before_it_is_known() {
    let (slots, number) = with_parts();
    for request in [3, 1, 2] {
        assert_eq!(slots.settle_failed(number, "refused", request), None);
    }
    assert_eq!(slots.look(number), Look::Pending);
    assert!(slots.note_last(number, 3).is_some());
    assert_eq!(slots.finish(number, false), Err("refused"));
}

/// The next operation of the slot is settled as usual.
#[test]
fn parts_are_of_one_operation() {
    let (slots, number) = with_parts();
    assert_eq!(slots.note_last(number, 3), None);
    assert!(slots.settle(number, SUCCEEDS).is_some());
    assert_eq!(slots.finish(number, false), Ok(()));
    let next = slots.begin(1).expect("it is free again");
    assert_eq!(slots.settle_failed(number, "flushed", 3), None, "late");
    assert!(slots.settle_failed(next, "refused", 4).is_some());
    assert_eq!(slots.finish(next, false), Err("refused"));
}
