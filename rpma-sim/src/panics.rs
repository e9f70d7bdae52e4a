//! The panics of a fabric's threads, for the report of a test. The panic of a task or a thread ends
//! in its handle, and a program may have dropped that. Then only the panic hook gets it.

use std::panic::PanicHookInfo;
use std::sync::{Mutex, PoisonError};

use crate::fabric::Fabric;
use crate::here;
use crate::power::{be_able_to_be_quiet, text_of};

/// The most panics that are kept.
const KEPT: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Panics(Mutex<Option<Vec<String>>>);

impl Fabric {
    /// Keeps the texts of panics from now on.
    #[doc(hidden)]
    pub fn keep_panics(&self) {
        be_able_to_be_quiet();
        let panics = self.shared().panics.0.lock();
        panics
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_default();
    }

    /// The panics of threads on this fabric, each with its place.
    #[doc(hidden)]
    #[must_use]
    pub fn panics(&self) -> Vec<String> {
        let panics = self.shared().panics.0.lock();
        let panics = panics.unwrap_or_else(PoisonError::into_inner);
        panics.clone().unwrap_or_default()
    }
}

/// Called by the panic hook.
pub(crate) fn note(info: &PanicHookInfo<'_>) {
    for shared in here::fabrics() {
        let panics = shared.panics.0.lock();
        let mut panics = panics.unwrap_or_else(PoisonError::into_inner);
        let Some(panics) = &mut *panics else { continue };
        let text = text_of(info.payload()).unwrap_or("a panic without a text");
        let place = info.location().map(|at| format!(", at {at}"));
        let text = format!("{text}{}", place.unwrap_or_default());
        if panics.len() < KEPT && !panics.contains(&text) {
            panics.push(text);
        }
    }
}
