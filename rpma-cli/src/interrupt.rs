//! [`Interrupt`]: a request to end, by ctrl-c or SIGTERM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::problem::{Problem, Result};

/// A flag that every loop looks at. Clones are the same flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Sets the flag at the first signal. The second signal ends the process, in case the command
    /// is in a call that takes long.
    pub(crate) fn install() -> Result<Self> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM] {
            // The order counts: at the first signal the flag is not set yet.
            flag::register_conditional_default(signal, Arc::clone(&interrupt.0))
                .and_then(|_| flag::register(signal, Arc::clone(&interrupt.0)))
                .map_err(|error| Problem::new(format!("ctrl-c cannot be caught: {error}"), ""))?;
        }
        Ok(interrupt)
    }

    /// Whether the command has to end.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Asks the command to end, as ctrl-c does.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
