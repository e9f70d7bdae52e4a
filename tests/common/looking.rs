//! Where the library allocates: an allocator that looks at the backtrace of each allocation. The
//! program that includes this file has it as its own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};

thread_local! {
    /// Whether allocations of this thread are looked at.
    static LOOKS: Cell<bool> = const { Cell::new(false) };
    /// The places in the library that have allocated.
    static FOUND: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The system's allocator, which looks where an allocation comes from.
struct Looking;

// SAFETY: `System` allocates and frees all memory, with the layouts that are passed here. Beyond
// that, `look` only collects backtraces, for threads between `begin` and `end`.
unsafe impl GlobalAlloc for Looking {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        look();
        // SAFETY: by `# Safety` of `GlobalAlloc::alloc` the layout has bytes, as `System` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `alloc` took the memory of `System`, and by `# Safety` of `GlobalAlloc::dealloc`
        // the layout is the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Looking = Looking;

fn look() {
    // The look itself allocates.
    if !LOOKS
        .try_with(|looks| looks.replace(false))
        .unwrap_or(false)
    {
        return;
    }
    let trace = Backtrace::force_capture().to_string();
    let places = trace.lines().map(str::trim);
    let ours = |place: &&str| {
        let is_of = |part: &str| place.starts_with("at ") && place.contains(part);
        ["rpma/src/", "rpma-async/src/", "rpma-sim/src/", "tests/"]
            .into_iter()
            .any(is_of)
    };
    let mut ours = places.filter(ours);
    // The first ones are this look and the allocator.
    let place = ours.find(|place| !place.contains("common/looking.rs"));
    // If the simulator is on, the library notes the program's lines for its reports.
    let is_library = |place: &&str| {
        let is_async = place.contains("rpma-async/src/");
        is_async || place.contains("rpma/src/") && !place.contains("verbs/caller.rs")
    };
    if let Some(place) = place.filter(is_library) {
        FOUND.with_borrow_mut(|found| found.push(place.to_owned()));
    }
    LOOKS.set(true);
}

/// From now on the allocations of this thread are looked at.
pub(crate) fn begin() {
    LOOKS.set(true);
}

/// The places in the library that have allocated since [`begin`].
pub(crate) fn end() -> Vec<String> {
    LOOKS.set(false);
    FOUND.take()
}
