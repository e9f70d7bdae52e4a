//! Persistent memory, and losses of power.
//!
//! * [`lines`] has the rules: what of a memory survives.
//! * [`memory`] has the bytes, by paths that `PmemMap::open` takes.
//! * [`pmem`] is what the fabric does with a host's memory, and what a test sees of it.
//! * [`cut`] visits every event of a run, and makes images; [`explain`] says what was wrong with one.
//! * [`off`] cuts the power of a host, and starts it again.

mod cut;
mod explain;
mod lines;
mod memory;
mod off;
mod platform;
mod pmem;
mod random;

pub(crate) use self::cut::assert_not_checking;
pub use self::cut::{Cut, Image, Images, Loss, Visited};
pub use self::memory::{Memory, memory_at, persisted, seen};
pub(crate) use self::off::NO_POWER;
pub use self::platform::Platform;
pub use self::pmem::Pmem;
pub(crate) use self::pmem::{Power, READS};
