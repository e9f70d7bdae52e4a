//! Messages: send and receive, immediate data, operations of 0 bytes, gathered and inline data, and
//! messages without a receive, or with too small a one.

mod arriving;
mod parts;
mod queues;
mod receives;
mod regions;
mod support;
