//! The device tests of one process: on a device, and on a simulated fabric. Each module is about
//! one subject.

#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "sim")]
#[path = "../common/looking.rs"]
mod looking;

mod atomic;
mod awaited;
mod batch;
mod commit;
mod connect;
mod counters;
mod cut_off;
mod ending;
mod event_loop;
mod events;
mod failing;
mod input;
mod keep_alive;
mod messages;
mod next;
mod plain;
mod reconnect;
mod responder;
mod security;
mod serve;
mod srq;
mod teardown;
mod transfer;
mod wait;
mod ways;
mod writer;
