//! The bytes of live allocations: of the whole process, and those that the library made.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes of all live allocations.
static LIVE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether new allocations of this thread are attributed.
    static LOOKS: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread has attributed allocations, and does not change their list now.
    static IS_KEPT: Cell<bool> = const { Cell::new(false) };
    /// The live allocations of the library that were attributed: address and bytes.
    static OWN: RefCell<BTreeMap<usize, usize>> = const { RefCell::new(BTreeMap::new()) };
}

/// The system's allocator, which counts.
struct Counting;

// SAFETY: `System` allocates and frees all memory, with the layouts that are passed here. Beyond
// that, a number changes, and `aside` notes addresses without using them.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by `# Safety` of `GlobalAlloc::alloc` the layout has bytes, as `System` requires.
        let memory = unsafe { System.alloc(layout) };
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        aside(|own| {
            if LOOKS.get() && is_own() {
                own.insert(memory.addr(), layout.size());
            }
        });
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        aside(|own| {
            own.remove(&memory.addr());
        });
        // SAFETY: `alloc` took the memory of `System`, and by `# Safety` of `GlobalAlloc::dealloc`
        // the layout is the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Changes the list of attributed allocations, if this thread has one. What `change` itself
/// allocates and frees is not in it.
fn aside(change: impl FnOnce(&mut BTreeMap<usize, usize>)) {
    // A thread that ends has no such value any more.
    let is_kept = IS_KEPT.try_with(|kept| kept.replace(false));
    if is_kept.unwrap_or(false) {
        // At the end of a thread the list may be gone first.
        let changed = OWN.try_with(|own| change(&mut own.borrow_mut()));
        IS_KEPT.set(changed.is_ok());
    }
}

/// Whether the library asks for memory, and not the simulated fabric that it has called.
fn is_own() -> bool {
    let trace = Backtrace::force_capture().to_string();
    let functions = trace.lines().filter_map(|line| line.split_once(": "));
    let crates = functions.map(|(_, function)| function.trim_start_matches('<'));
    let mut ours = crates.filter(|name| name.starts_with("rpma::") || name.starts_with("rpma_sim"));
    ours.next().is_some_and(|name| name.starts_with("rpma::"))
}

/// The bytes of all live allocations of this process.
pub(crate) fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// From now on the new allocations of this thread are attributed, or not.
pub(crate) fn attribute(looks: bool) {
    LOOKS.set(looks);
    if looks {
        IS_KEPT.set(true);
    }
}

/// The bytes of the live allocations that were attributed to the library.
pub(crate) fn own() -> usize {
    OWN.with_borrow(|own| own.values().sum())
}
