//! librpma's examples with one side in C: for each pair a client of the C library and this
//! repository's server, and the other way round.
//!
//! The C sides (`tests/peers`) speak the examples' protocols through the installed librpma. They
//! report the bytes that they see. Those are judged here, together with the output of the Rust side
//! and how it ends.

mod gpspm;
mod immediate;
mod log;
mod memory;
mod messages;
mod multiple;
mod nothing;
mod prelude;
mod support;
