//! [`Copies`]: commits to several servers, each of which waits for K copies.

use std::collections::VecDeque;
use std::time::Duration;

use rpma::Error;
use rpma::commit::{CommitId, Replicas};

use super::Load;
use crate::client::{Result, failed};
use crate::perf::Bench;
use crate::perf::places::{Places, pointer_at, stride};
use crate::perf::session::writer;
use crate::settings::Setting;

/// A record and its pointer on each server, for each commit.
#[derive(Debug)]
pub(in crate::perf) struct Copies {
    set: Replicas,
    /// The copies that a commit waits for.
    copies: usize,
    record: Vec<u8>,
    places: Places,
    /// The offset of the pointer.
    pointer: u64,
    /// The commits in flight, with their slots, from the oldest on.
    in_flight: VecDeque<(CommitId, u32)>,
}

impl Copies {
    pub(in crate::perf) fn new(bench: &mut Bench, setting: &Setting, lane: u32) -> Result<Self> {
        let depth = setting.depth as usize;
        // A record does not wrap around the ring's end.
        let ring = 2 * depth * stride(setting.size) as usize;
        let mut set = Replicas::new(&bench.peer, ring, depth)?;
        for server in &mut bench.servers {
            let writer = writer(server, &bench.peer, setting)?;
            set.add(writer, server.arena)?;
        }
        Ok(Self {
            set,
            copies: setting.copies.unwrap_or(1) as usize,
            record: vec![0x5a; setting.size as usize],
            places: bench.places(setting, lane)?,
            pointer: pointer_at(lane),
            in_flight: VecDeque::with_capacity(setting.slots() as usize),
        })
    }
}

impl Load for Copies {
    fn post(&mut self, slot: u32) -> Result<bool> {
        let at = self.places.take().at;
        let pointer = Some((self.pointer, u64::from(slot).to_le_bytes()));
        let mut record = match self.set.record(self.record.len()) {
            Ok(record) => record,
            Err(Error::RingFull) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        record.put(0, &self.record)?;
        let id = record.commit(at, pointer, self.copies)?;
        self.in_flight.push_back((id, slot));
        Ok(true)
    }

    fn poll(&mut self, done: &mut impl FnMut(u32)) -> Result {
        self.set.look();
        while let Some((id, slot)) = self.in_flight.front().copied() {
            let Some(outcome) = self.set.settled(id, self.copies) else {
                return Ok(());
            };
            let (copies, wanted) = (outcome.copies(), self.copies);
            if copies < wanted {
                return failed(format!(
                    "{id} has {copies} of {wanted} copies, and can get no more"
                ));
            }
            self.in_flight.pop_front();
            done(slot);
        }
        Ok(())
    }

    fn sleep(&mut self, limit: Duration) -> Result {
        match self.in_flight.front() {
            Some((id, _)) => {
                // The next poll takes the outcome.
                self.set.settle(*id, self.copies, limit);
            }
            None => std::thread::sleep(limit),
        }
        Ok(())
    }
}
