//! The shared parts of the examples, so that each shows only its own subject.
//!
//! # Differences from librpma's
//!
//! These hold for all examples. The head of each `main.rs` has those of its example, and
//! `memory.rs`, `messages.rs` and `gpspm.rs` those of the examples that use them.
//!
//! * One program has the roles `client` and `server`. librpma has two programs.
//! * The exit status is 255 for an argument that cannot be used, and 1 for every other failure.
//!   librpma's programs exit with the library's error codes, 254 or 255, and with 0 after many
//!   failures: empty private data, too large a region, an unexpected event, a response to another
//!   request.
//! * An argument that must be a number is refused if it is not one. In C, `12x` is 12 and `x` is 0.
//!   An argument that is not UTF-8 ends the program with status 255. In C, it may have any bytes.
//! * Text that is not UTF-8 is printed with U+FFFD for its invalid bytes. In C, its bytes are
//!   printed.
//! * A wait for a completion also watches the connection, so it ends within about a second, with
//!   status 1, if the program at the other side ends or is killed. librpma's programs wait for ever
//!   for a message, and for an operation until the device has given up its retries. The other side
//!   of a client of 02, 04, 05 or 07, and of the server of 03, ends with 0 as in C, because it
//!   cannot distinguish a killed program from one that has finished. The same holds for a client of
//!   09 or 09scch after its request has been served.
//! * A client waits for 30 seconds for the answer to its connection request, and then gives the
//!   server up. librpma's waits until the kernel gives up.
//! * As in librpma's programs, servers wait for clients without a limit, and both sides for
//!   messages. A host that vanishes causes no event, so such a wait does not end. A live program
//!   that posts no receive keeps the sender waiting as well. Here `ConnCfg::set_rnr_retry_count`
//!   would limit that.
//! * Each completion is identified, and all are polled after an event. In C, the next completion is
//!   taken for the expected one.
//! * Offsets, sizes and messages from the peer are checked before they are used.
//! * Each object is freed by its type, after success and after failure. After a failure the program
//!   does not wait for the peer, as librpma's may.

#![allow(dead_code, reason = "each example uses a part of it")]

pub(crate) mod cli;
pub(crate) mod conn;
pub(crate) mod data;
pub(crate) mod epoll;
pub(crate) mod hello;
pub(crate) mod memory;
pub(crate) mod messages;
pub(crate) mod names;
