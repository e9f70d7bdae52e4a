//! [`Empty`]: operations that do nothing, for the cost of the measurement itself.

use std::time::Duration;

use super::Load;
use crate::client::Result;

/// Each slot has completed when it was posted.
#[derive(Debug)]
pub(in crate::perf) struct Empty {
    posted: Vec<u32>,
}

impl Empty {
    pub(in crate::perf) fn new(slots: u32) -> Self {
        Self {
            posted: Vec::with_capacity(slots as usize),
        }
    }
}

impl Load for Empty {
    fn post(&mut self, slot: u32) -> Result<bool> {
        self.posted.push(slot);
        Ok(true)
    }

    fn poll(&mut self, done: &mut impl FnMut(u32)) -> Result {
        self.posted.drain(..).for_each(done);
        Ok(())
    }

    fn sleep(&mut self, limit: Duration) -> Result {
        std::thread::sleep(limit);
        Ok(())
    }
}
