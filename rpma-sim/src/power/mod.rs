//! Persistent memory, and losses of power.
//!
//! * [`lines`] has the rules: which bytes of a memory survive. [`outcomes`] lists the possible
//!   outcomes of a line.
//! * [`memory`] has the mappings ([`map`]), by paths that `PmemMap::open` takes.
//! * [`store`] has the bytes, of which few are ever written, and [`present`] finds the pages that a
//!   program has touched.
//! * [`pmem`] is the fabric's work on a host's memory, and a test's view of it.
//! * [`stores`] makes events of a program's stores on eADR.
//! * [`mod@cut`] visits every event of a run; [`image`] is the possible contents then, and
//!   [`explain`] finds the faults in it.
//! * [`mod@executed`] counts the operations that devices have executed, for reports.
//! * [`files`] writes an image that failed to a file.
//! * [`off`] cuts the power of a host, and starts it again.

mod base;
mod cut;
mod executed;
mod explain;
mod files;
mod image;
mod lines;
mod map;
mod memory;
mod off;
mod outcomes;
mod platform;
mod pmem;
mod present;
mod random;
mod recovery;
mod store;
mod stores;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use self::cut::Watch;
pub use self::cut::{Cut, Loss, Visited};
pub(crate) use self::cut::{assert_not_checking, is_checking, refuse};
use self::executed::Executed;
pub(crate) use self::explain::{be_able_to_be_quiet, is_alike, quietly, text_of};
pub use self::image::{Image, Images, JointImages};
pub(crate) use self::lines::Flow;
pub use self::memory::{Memory, boot_here, memory_at, persisted, seen};
pub(crate) use self::off::{NO_POWER, cut, kill};
pub use self::platform::Platform;
pub use self::pmem::Pmem;
use self::pmem::Tracked;
pub(crate) use self::stores::leave_out;
pub use self::stores::stored;
use crate::order::mix;

#[derive(Debug)]
pub(crate) struct Power {
    pmems: Vec<Tracked>,
    /// By host, of those that are not as they are by default.
    platforms: Vec<(usize, Platform)>,
    watch: Option<Watch>,
    executed: Executed,
    visited: Visited,
    /// By which images are sampled.
    seed: u64,
    /// The host of each power cut and each `kill`.
    cuts: Vec<usize>,
    /// The host of each power cut.
    outages: Vec<usize>,
    dead: Vec<usize>,
    /// A test has watched, so that devices keep back requests that they could execute later.
    pub(crate) keeps_back: bool,
    /// How long checks have taken, where time is real.
    pub(crate) spent: Duration,
    /// The number of the fabric.
    number: usize,
    /// The part of the fabric in identities: with a seed, they follow from it.
    identity: u64,
}

impl Power {
    /// A hash of the bytes of all memories: as programs see them, and as they always survive.
    pub(crate) fn digest(&self) -> u64 {
        self.pmems.iter().fold(0, |hash, pmem| {
            mix(hash ^ pmem.lines.newest().digest()) ^ pmem.lines.durable().digest()
        })
    }

    pub(crate) fn new(seed: Option<u64>) -> Self {
        let number = next_number();
        Self {
            number,
            identity: seed.unwrap_or(!(number as u64)),
            pmems: Vec::new(),
            platforms: Vec::new(),
            watch: None,
            executed: Executed::default(),
            visited: Visited::default(),
            seed: seed.unwrap_or(0x5EED),
            cuts: Vec::new(),
            outages: Vec::new(),
            dead: Vec::new(),
            keeps_back: false,
            spent: Duration::ZERO,
        }
    }
}

fn next_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
