//! What the examples share, so that each shows only what it is about.

#![allow(dead_code, reason = "each example uses a part of it")]

pub(crate) mod cli;
pub(crate) mod conn;
pub(crate) mod data;
pub(crate) mod epoll;
pub(crate) mod hello;
pub(crate) mod memory;
pub(crate) mod messages;
pub(crate) mod names;
