//! What the library does when a verb fails. In the guest none ever fails by itself, so that an error which
//! is swallowed, or after which something hangs, would not be noticed.
//!
//! Each test names the calls that fail: see `support.rs`.

#[path = "../common/mod.rs"]
mod common;
mod cutting_off;
mod freeing;
mod making;
mod posting;
#[cfg(not(feature = "sim"))]
mod preloaded;
#[cfg(feature = "sim")]
mod simulated;
mod support;
mod together;
mod waiting;
