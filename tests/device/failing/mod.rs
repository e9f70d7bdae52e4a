//! The library's behaviour when a verb fails. In the guest no verb ever fails by itself, so that a
//! swallowed error, or a wait that hangs after one, would not be noticed.
//!
//! Each test names the calls that fail: see `support.rs`.

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
