//! [`Empty`]: operations that do nothing, for the cost of the measurement itself.

use std::time::Duration;

use super::Load;
use crate::client::Result;

/// Each slot has completed when it was posted.
#[derive(Debug, Default)]
pub(in crate::perf) struct Empty(Vec<u32>);

impl Load for Empty {
    fn post(&mut self, slot: u32) -> Result<bool> {
        self.0.push(slot);
        Ok(true)
    }

    fn poll(&mut self, done: &mut impl FnMut(u32)) -> Result {
        self.0.drain(..).for_each(done);
        Ok(())
    }

    fn sleep<'a>(&mut self, _: impl Iterator<Item = &'a mut Self>, limit: Duration) -> Result {
        std::thread::sleep(limit);
        Ok(())
    }
}
