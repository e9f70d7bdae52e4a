//! [`Commits`]: commits of a writer, by any method.

use std::collections::VecDeque;
use std::time::Duration;

use rpma::commit::{Ticket, Writer};
use rpma::{AlignedBuf, Error, Mr, MrSlice, RemoteSlice};

use super::Load;
use crate::client::{Result, failed};
use crate::perf::places::Places;
use crate::problem::in_words;

/// A record and its pointer, for each commit.
#[derive(Debug)]
pub(in crate::perf) struct Commits<'a> {
    writer: Writer,
    local: Vec<MrSlice<'a>>,
    places: Places,
    pointer: RemoteSlice,
    /// The commits in flight, with their slots. They complete in this order.
    in_flight: VecDeque<(Ticket, u32)>,
}

impl<'a> Commits<'a> {
    pub(in crate::perf) fn new(
        writer: Writer,
        memory: &'a Mr<AlignedBuf>,
        places: Places,
        pointer: RemoteSlice,
        slots: u32,
    ) -> Result<Self> {
        let parts = (0..slots as usize).map(|slot| {
            let at = slot * places.stride();
            memory.slice(at..at + places.len())
        });
        Ok(Self {
            writer,
            local: parts.collect::<rpma::Result<_>>()?,
            places,
            pointer,
            in_flight: VecDeque::with_capacity(slots as usize),
        })
    }
}

impl Load for Commits<'_> {
    fn post(&mut self, slot: u32) -> Result<bool> {
        if self.writer.room() == 0 && !self.writer.is_over() {
            return Ok(false);
        }
        let number = self.places.take();
        let Some(group) = self.places.group(number) else {
            return Ok(false);
        };
        let record = (group.all, self.local[slot as usize]);
        let pointer = (self.pointer, u64::from(slot).to_le_bytes());
        let ticket = self.writer.commit(&[record], Some(pointer))?;
        self.in_flight.push_back((ticket, slot));
        Ok(true)
    }

    fn poll(&mut self, done: &mut impl FnMut(u32)) -> Result {
        self.writer.look(|_| {})?;
        let durable = self.writer.durable();
        while let Some((ticket, slot)) = self.in_flight.front().copied() {
            if ticket.number() > durable {
                break;
            }
            self.in_flight.pop_front();
            done(slot);
        }
        if self.writer.is_over() {
            failed(over(&self.writer))
        } else {
            Ok(())
        }
    }

    fn sleep(&mut self, limit: Duration) -> Result {
        let slept = match self.in_flight.front() {
            Some((ticket, _)) => self.writer.wait(*ticket, limit, |_| {}),
            None => {
                std::thread::sleep(limit);
                Ok(())
            }
        };
        match slept {
            Ok(()) | Err(Error::TimedOut(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Why a writer's connection is over.
pub(super) fn over(writer: &Writer) -> String {
    let reason = writer.conn().reason();
    reason.map_or_else(|| "the connection is over".to_owned(), in_words)
}
