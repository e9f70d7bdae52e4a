//! rpma

#![deny(unsafe_code)]

mod error;
pub mod pmem;
mod verbs;

pub use crate::error::{Error, Queue, Result};
