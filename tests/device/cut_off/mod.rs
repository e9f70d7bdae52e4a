//! Cutting a peer off: `Conn::cut_off`. Verbs that fail meanwhile are in tests/device/failing, requests of
//! the server's method in tests/device/responder.rs, and two hosts in tests/hosts.

mod completions;
#[cfg(feature = "sim")]
mod frozen;
#[cfg(feature = "sim")]
mod limits;
mod states;
mod support;
