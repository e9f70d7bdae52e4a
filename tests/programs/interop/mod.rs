//! Interoperability with the C library: its programs talk to this one, which plays the client and
//! the server, in each kind of operation and with each descriptor.
//!
//! The C programs (`*.c` beside this) are compiled by the tests and linked with the installed
//! librpma, which has native flush and native atomic write. They report their findings, which are
//! judged here.

mod connections;
mod messages;
mod prelude;
mod remote_memory;
mod support;
