//! Stores of programs as events, on eADR.
//!
//! On other platforms a store is in a cache until it is written back. Any word of it may be
//! missing at each event until then, so events between stores would show no other images.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::memory::{Memory, memory_of};
use super::platform::Platform;
use crate::here;
use crate::state::{Shared, State};

/// The number of memories on eADR, so that no lock is taken if it is 0.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Counts a memory on eADR until it is dropped.
#[derive(Debug)]
pub(super) struct Counted;

impl Counted {
    pub(super) fn new(platform: Platform) -> Option<Self> {
        (platform == Platform::Eadr).then(|| {
            COUNT.fetch_add(1, Ordering::Relaxed);
            Self
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

fn is_any_counted() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// Marks a point of a program: it has just stored these bytes through a pointer.
///
/// On [`Platform::Eadr`] a store is durable when it is visible. So the power can fail between two
/// stores, and the call is an event of
/// [`Fabric::on_every_event`](crate::Fabric::on_every_event). The images at this event have all
/// earlier stores, and any of the 8-byte words of these bytes. On other platforms the call has no
/// effect.
///
/// Call it after each store, in the same thread, if the order of the stores matters. `Mr::write_at`,
/// `PmemMap::write_at`, `store_u64` and their like do so by themselves. Without the call, the
/// fabric finds stores through pointers at the next event. It takes them for one store that is
/// complete, so a test finds no mistake in their order.
///
/// The call ignores bytes outside of simulated memory, as [`persisted`](crate::persisted) does.
pub fn stored(start: *const u8, len: usize) {
    if len == 0 || !is_any_counted() {
        return;
    }
    let Some((memory, range)) = memory_of(start, len) else {
        return;
    };
    if let Some((shared, index)) = memory.fabric() {
        shared.lock_quietly().stored(index, &memory, &range);
    }
}

thread_local! {
    /// Whether the event of this thread's check may be left out, and whether it is.
    static OPTIONAL: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Leaves out the event of this thread's check, which would wait for the program. Returns whether
/// that is possible at this event.
pub(crate) fn leave_out() -> bool {
    let is_optional = OPTIONAL.get().is_some();
    if is_optional {
        OPTIONAL.set(Some(true));
    }
    is_optional
}

/// Whether the event of this thread's check is left out. `None` if that is not possible.
pub(super) fn left_out() -> Option<bool> {
    OPTIONAL.get()
}

impl Shared {
    /// The calling thread is about to make a call of [`sync`](crate::sync): the power could fail
    /// before.
    pub(crate) fn before_sync(&self, call: &str) {
        if !is_any_counted() {
            return;
        }
        let Some(host) = here::host_in(self) else {
            return;
        };
        let mut state = self.lock_quietly();
        let mut pmems = state.power.pmems.iter();
        if pmems.any(|pmem| pmem.host == host && pmem.lines.platform == Platform::Eadr) {
            state.visit_between(|state| format!("before {call} on {}", state.hosts[host]));
        }
    }
}

impl State {
    /// The power could fail now, between two stores of a program or before its call of
    /// [`sync`](crate::sync). It may hold a lock there: if the check waits for that, the event is
    /// left out. All other events stay as they are.
    fn visit_between(&mut self, what: impl FnOnce(&Self) -> String) {
        let Some(watch) = &self.power.watch else {
            return;
        };
        let is_due = watch.is_due;
        OPTIONAL.set(Some(false));
        self.visit(what);
        OPTIONAL.set(None);
        if let Some(watch) = &mut self.power.watch {
            watch.is_due = is_due;
        }
    }

    fn stored(&mut self, index: usize, memory: &Memory, range: &Range<usize>) {
        let tracked = &mut self.power.pmems[index];
        let current = tracked.memory.as_deref();
        let is_current = current.is_some_and(|current| std::ptr::eq(current, memory));
        if self.power.watch.is_none() || !is_current || tracked.lines.platform != Platform::Eadr {
            return;
        }
        if !tracked.lines.stored(memory, range) {
            // The same bytes were there.
            return;
        }
        self.visit_between(|state| {
            let tracked = &state.power.pmems[index];
            let (name, host) = (&tracked.name, &state.hosts[tracked.host]);
            let Range { start, end } = range;
            format!("in the middle of a store to bytes {start}..{end} of {name} of {host}")
        });
        self.power.pmems[index].lines.write_back(range);
    }
}
