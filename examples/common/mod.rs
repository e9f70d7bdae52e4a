//! The shared parts of the examples, so that each shows only its own subject.

#![allow(dead_code, reason = "each example uses a part of it")]

pub(crate) mod cli;
pub(crate) mod conn;
pub(crate) mod data;
pub(crate) mod epoll;
pub(crate) mod hello;
pub(crate) mod memory;
pub(crate) mod messages;
pub(crate) mod names;
