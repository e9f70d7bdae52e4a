//! What the library does when a verb fails. In the guest none ever fails by itself, so that an error which
//! is swallowed, or after which something hangs, would not be noticed.
//!
//! `failing.c` beside this stands between the library and libibverbs and librdmacm, and lets the calls fail
//! that a test names: see `support.rs`.

#[path = "../common/mod.rs"]
mod common;
mod freeing;
mod making;
mod posting;
mod support;
mod together;
mod waiting;
