//! [`Commits`]: commits of a writer, by any method.

use std::collections::VecDeque;
use std::time::Duration;

use rpma::commit::{Ticket, Writer};
use rpma::{AlignedBuf, Error, Mr, RemoteSlice};

use super::Load;
use crate::client::{Result, failed};
use crate::perf::Bench;
use crate::perf::places::{Places, pointer_at};
use crate::perf::session::writer;
use crate::problem::in_words;
use crate::settings::Setting;

/// A record and its pointer, for each commit.
#[derive(Debug)]
pub(in crate::perf) struct Commits {
    writer: Writer,
    local: Mr<AlignedBuf>,
    places: Places,
    pointer: RemoteSlice,
    /// The commits in flight, with their slots. They complete in this order.
    in_flight: VecDeque<(Ticket, u32)>,
}

impl Commits {
    pub(in crate::perf) fn new(bench: &mut Bench, setting: &Setting, lane: u32) -> Result<Self> {
        let writer = writer(&mut bench.servers[0], &bench.peer, setting)?;
        let at = pointer_at(lane);
        Ok(Self {
            writer,
            local: bench.memory(setting)?,
            places: bench.places(setting, lane)?,
            pointer: bench.servers[0].arena.slice(at..at + 8)?,
            in_flight: VecDeque::with_capacity(setting.slots() as usize),
        })
    }
}

impl Load for Commits {
    fn post(&mut self, slot: u32) -> Result<bool> {
        if self.writer.room() == 0 && !self.writer.is_over() {
            return Ok(false);
        }
        let group = self.places.take();
        let at = slot as usize * self.places.stride();
        let record = (group.all, self.local.slice(at..at + self.places.len())?);
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
        if !self.writer.is_over() {
            return Ok(());
        }
        failed(match self.writer.conn().reason() {
            Some(reason) => in_words(reason),
            None => "the connection is over".to_owned(),
        })
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
