//! The questions that the program has not answered, in the order in which their limits pass.
//!
//! The program may drop an [`Asked`] at any time, in any thread. Its question then stays here,
//! closed, until the closed ones are the greater part. So a request costs the same beside any number
//! of questions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::asked::{Asked, Question};
use crate::offer::{Identity, Offer};
use crate::request::Request;

/// The key and the instance: a writer keeps both when it asks again, perhaps with another epoch.
type WriterId = (u64, u64);

#[derive(Debug, Default)]
pub(super) struct Questions {
    by_number: BTreeMap<u64, Question>,
    by_writer: BTreeMap<WriterId, u64>,
    next: u64,
    /// Each question that is open has a share.
    open: Arc<()>,
}

impl Questions {
    /// The program is asked, until `at`.
    pub(super) fn ask(
        &mut self,
        request: Request,
        (offer, identity): (Offer, Identity),
        kept: Option<Identity>,
        at: Option<Instant>,
    ) -> Asked {
        /// So many closed ones are no burden.
        const FEW: usize = 16;
        if self.by_number.len() > 2 * self.open() + FEW {
            self.by_number.retain(|_, asks| asks.is_open());
            let by_number = &self.by_number;
            self.by_writer.retain(|_, of| by_number.contains_key(of));
        }
        let (number, share) = (self.next, Arc::clone(&self.open));
        self.next += 1;
        let asked = Asked::new((request, share), (offer, identity), kept, number);
        self.by_number.insert(number, asked.question(at));
        self.by_writer.insert(writer_of(&identity), number);
        asked
    }

    fn open(&self) -> usize {
        Arc::strong_count(&self.open) - 1
    }

    /// How many questions of other writers are open.
    pub(super) fn open_beside(&self, writer: &Identity) -> usize {
        // First: other threads drop questions.
        let open = self.open();
        let own = self.by_writer.get(&writer_of(writer));
        let own = own.and_then(|number| self.by_number.get(number));
        open - usize::from(own.is_some_and(Question::has_share))
    }

    pub(super) fn remove_of(&mut self, writer: &Identity) -> Option<Question> {
        let number = *self.by_writer.get(&writer_of(writer))?;
        self.remove(number)
    }

    /// Takes the request of a question that is one of these, and open.
    pub(super) fn take(&mut self, asked: &Asked) -> Option<Request> {
        let asks = self.by_number.get(&asked.number())?;
        if !asks.is_of(asked) {
            return None;
        }
        self.remove(asked.number());
        asked.take()
    }

    /// Whether none is open.
    pub(super) fn is_empty(&mut self) -> bool {
        self.first().is_none()
    }

    /// Takes out the next question whose limit has passed.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Question> {
        let (number, asks) = self.first()?;
        let is_due = asks.at.is_some_and(|at| at <= now);
        is_due.then(|| self.remove(number)).flatten()
    }

    /// When the next limit passes, of the questions that are open.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let asks = self.by_number.values().find(|asks| asks.is_open());
        asks.and_then(|asks| asks.at)
    }

    /// The first one that is open. Those before it are forgotten.
    fn first(&mut self) -> Option<(u64, &Question)> {
        while let Some((number, asks)) = self.by_number.first_key_value() {
            let number = *number;
            if asks.is_open() {
                break;
            }
            self.remove(number);
        }
        let (number, asks) = self.by_number.first_key_value()?;
        Some((*number, asks))
    }

    fn remove(&mut self, number: u64) -> Option<Question> {
        let asks = self.by_number.remove(&number)?;
        let writer = writer_of(&asks.identity);
        if self.by_writer.get(&writer) == Some(&number) {
            self.by_writer.remove(&writer);
        }
        Some(asks)
    }
}

fn writer_of(identity: &Identity) -> WriterId {
    (identity.key, identity.instance)
}
