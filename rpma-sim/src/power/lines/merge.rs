//! Bounds the number of writes to a line that may be lost.

use super::{Write, put, words_with};

/// Takes the oldest two writes from the same writer and of the same reach for one. A write that
/// came between has overwritten the older one for good, and the two come and stay together. The
/// merged write needs all that one of them needs, and is needed by all that need one of them.
pub(super) fn merge(writes: &mut Vec<Write>) {
    let alike = |old: &Write, new: &Write| {
        let is_late = old.late.is_some() || new.late.is_some();
        !is_late && old.reach == new.reach && old.writer.flow() == new.writer.flow()
    };
    let pair = (0..writes.len()).find_map(|first| {
        let mut later = first + 1..writes.len();
        let second = later.find(|second| alike(&writes[first], &writes[*second]))?;
        Some((first, second))
    });
    if let Some((first, second)) = pair {
        let mut old = writes.remove(first);
        let over = writes[first..second - 1].iter();
        old.mask &= !over.fold(0, |mask, write| mask | write.mask);
        let new = &mut writes[second - 1];
        let mut bytes = old.bytes;
        put(&mut bytes, new.mask, &new.bytes);
        (new.bytes, new.landed) = (bytes, old.landed);
        new.mask |= old.mask;
        new.whole &= old.whole | !words_with(old.mask);
        new.words = words_with(new.mask);
    }
}
