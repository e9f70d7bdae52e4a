//! [`Verbs`]: single operations of a connection, and batches of them.

use std::time::Duration;

use rpma::{
    AlignedBuf, Batch, Conn, ConnEvent, Error, Flags, FlushType, Mr, MrSlice, Next, RemoteSlice, Wc,
};

use super::Load;
use crate::client::{Result, failed};
use crate::perf::places::{Group, Places};
use crate::problem::in_words;
use crate::settings::Op;

/// The most operations of a batch, without its flush.
pub(in crate::perf) const MOST: usize = 64;

/// The bytes of each atomic write.
static WORD: [u8; 8] = [0x5a; 8];

/// Operations of one kind on a connection.
#[derive(Debug)]
pub(in crate::perf) struct Verbs<'a> {
    conn: &'a Conn,
    op: Op,
    flush: FlushType,
    /// The local memory of each slot: one part for each operation.
    local: Vec<MrSlice<'a>>,
    /// The server's memory, in turn.
    places: Places,
    batch: usize,
    wcs: [Wc; 32],
    /// The completions that a sleep has returned.
    polled: usize,
}

impl<'a> Verbs<'a> {
    /// `memory` has a part for each operation in flight.
    pub(in crate::perf) fn new(
        conn: &'a Conn,
        memory: &'a Mr<AlignedBuf>,
        (op, flush): (Op, FlushType),
        places: Places,
        slots: u32,
    ) -> Result<Self> {
        let (batch, stride, len) = (places.batch(), places.stride(), places.len());
        let parts = (0..slots as usize * batch).map(|part| {
            let at = part * stride;
            memory.slice(at..at + len)
        });
        Ok(Self {
            conn,
            op,
            flush,
            local: parts.collect::<rpma::Result<_>>()?,
            places,
            batch,
            wcs: [Wc::default(); 32],
            polled: 0,
        })
    }

    fn post_one(&self, group: &Group, slot: u32) -> rpma::Result<()> {
        let (remote, local) = (group.operations[0], self.local[slot as usize]);
        let (conn, flags, context) = (self.conn, Flags::COMPLETION_ALWAYS, slot.into());
        match self.op {
            Op::Read => conn.read(local, remote, flags, context),
            Op::Send => conn.send(local, flags, context),
            Op::AtomicWrite => conn.atomic_write(remote, &WORD, flags, context),
            _ => conn.write(remote, local, flags, context),
        }
        .map(drop)
    }

    /// Only the last operation has a completion.
    fn post_all<const N: usize>(&self, group: &Group, slot: u32) -> rpma::Result<()> {
        let mut batch = self.conn.batch::<N>();
        let flushes = self.op == Op::WriteFlush;
        let first = slot as usize * self.batch;
        let parts = self.local[first..first + self.batch].iter();
        for (number, (remote, local)) in group.operations.iter().zip(parts).enumerate() {
            let is_last = number + 1 == self.batch && !flushes;
            let flags = if is_last {
                Flags::COMPLETION_ALWAYS
            } else {
                Flags::COMPLETION_ON_ERROR
            };
            self.add(&mut batch, *remote, *local, flags, slot.into())?;
        }
        if flushes {
            let flags = Flags::COMPLETION_ALWAYS;
            batch.flush(group.all, self.flush, flags, slot.into())?;
        }
        batch.post().map(drop)
    }

    fn add<const N: usize>(
        &self,
        batch: &mut Batch<'a, N>,
        remote: RemoteSlice,
        local: MrSlice<'a>,
        flags: Flags,
        context: u64,
    ) -> rpma::Result<()> {
        match self.op {
            Op::Read => batch.read(local, remote, flags, context),
            Op::Send => batch.send(local, flags, context),
            Op::AtomicWrite => batch.atomic_write(remote, &WORD, flags, context),
            _ => batch.write(remote, local, flags, context),
        }
    }
}

impl Load for Verbs<'_> {
    fn post(&mut self, slot: u32) -> Result<bool> {
        let number = self.places.take();
        let Some(group) = self.places.group(number) else {
            return Ok(false);
        };
        let posted = match (self.op, self.batch) {
            (Op::WriteFlush, 1) => self.post_all::<2>(group, slot),
            (_, 1) => self.post_one(group, slot),
            (_, ..=15) => self.post_all::<16>(group, slot),
            _ => self.post_all::<{ MOST + 1 }>(group, slot),
        };
        posted?;
        Ok(true)
    }

    fn poll(&mut self, done: &mut impl FnMut(u32)) -> Result {
        loop {
            let polled = match std::mem::take(&mut self.polled) {
                0 => self.conn.get_cq().get_wc(&mut self.wcs)?,
                polled => polled,
            };
            for wc in &self.wcs[..polled] {
                if let Err(failure) = wc.result() {
                    return failed(in_words(failure));
                }
                done(wc.wr_id() as u32);
            }
            if polled < self.wcs.len() {
                return Ok(());
            }
        }
    }

    fn sleep(&mut self, limit: Duration) -> Result {
        match self.conn.next(&mut self.wcs, limit) {
            Ok(Next::Completions(count)) => self.polled = count,
            Ok(Next::Event(event)) if event.is_end() => return ended(&event),
            Ok(Next::Event(_notice)) => {}
            Err(Error::TimedOut(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

fn ended(event: &ConnEvent) -> Result {
    failed(format!("the connection has ended: {event}"))
}
