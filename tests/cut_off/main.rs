//! Cutting a peer off: `Conn::cut_off`. Verbs that fail meanwhile are in tests/failing, requests of
//! the server's method in tests/responder.rs, and two hosts in tests/hosts.

#[path = "../common/mod.rs"]
mod common;
mod completions;
#[cfg(feature = "sim")]
mod frozen;
#[cfg(feature = "sim")]
mod limits;
mod states;
mod support;
