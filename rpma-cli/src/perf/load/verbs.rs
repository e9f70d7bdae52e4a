//! [`Verbs`]: single operations of a connection, and batches of them.

use std::time::Duration;

use rpma::{AlignedBuf, Conn, Error, Flags, FlushType, Mr, MrSlice, Next, Wc};

use super::Load;
use crate::client::{Result, failed};
use crate::perf::Bench;
use crate::perf::places::{Group, Places};
use crate::perf::session::{conn, flush_type};
use crate::problem::in_words;
use crate::settings::{Op, Setting};

/// The most operations of a batch, without its flush.
pub(in crate::perf) const MOST: usize = 64;

/// The bytes of each atomic write.
static WORD: [u8; 8] = [0x5a; 8];

/// Operations of one kind on a connection.
#[derive(Debug)]
pub(in crate::perf) struct Verbs {
    conn: Conn,
    op: Op,
    flush: FlushType,
    /// A part for each operation in flight.
    local: Mr<AlignedBuf>,
    /// The server's memory, in turn.
    places: Places,
    wcs: [Wc; 32],
    /// The completions that a sleep has returned.
    polled: usize,
}

impl Verbs {
    pub(in crate::perf) fn new(bench: &mut Bench, setting: &Setting, lane: u32) -> Result<Self> {
        Ok(Self {
            conn: conn(&mut bench.servers[0], &bench.peer, setting)?,
            op: setting.op,
            flush: flush_type(setting),
            local: bench.memory(setting)?,
            places: bench.places(setting, lane)?,
            wcs: [Wc::default(); 32],
            polled: 0,
        })
    }

    /// The local memory of an operation.
    fn local(&self, number: usize) -> rpma::Result<MrSlice<'_>> {
        let at = number * self.places.stride();
        self.local.slice(at..at + self.places.len())
    }

    fn post_one(&self, group: &Group, slot: u32) -> rpma::Result<()> {
        let (remote, local) = (group.operations[0], self.local(slot as usize)?);
        let (conn, flags, context) = (&self.conn, Flags::COMPLETION_ALWAYS, slot.into());
        match (self.op, group.number % 2) {
            // The writes and reads of a bidirectional load take turns.
            (Op::Read, _) | (Op::ReadWrite, 1) => conn.read(local, remote, flags, context),
            (Op::Send, _) => conn.send(local, flags, context),
            (Op::AtomicWrite, _) => conn.atomic_write(remote, &WORD, flags, context),
            _ => conn.write(remote, local, flags, context),
        }
        .map(drop)
    }

    /// Only the last operation has a completion.
    fn post_all<const N: usize>(&self, group: &Group, slot: u32) -> rpma::Result<()> {
        let mut batch = self.conn.batch::<N>();
        let (always, on_error) = (Flags::COMPLETION_ALWAYS, Flags::COMPLETION_ON_ERROR);
        let flushes = self.op == Op::WriteFlush;
        let count = group.operations.len();
        for (number, remote) in group.operations.iter().enumerate() {
            let is_last = number + 1 == count && !flushes;
            let flags = if is_last { always } else { on_error };
            let local = self.local(slot as usize * count + number)?;
            match self.op {
                Op::Read => batch.read(local, *remote, flags, slot.into()),
                Op::Send => batch.send(local, flags, slot.into()),
                Op::AtomicWrite => batch.atomic_write(*remote, &WORD, flags, slot.into()),
                _ => batch.write(*remote, local, flags, slot.into()),
            }?;
        }
        if flushes {
            batch.flush(group.all, self.flush, always, slot.into())?;
        }
        batch.post().map(drop)
    }
}

impl Load for Verbs {
    fn post(&mut self, slot: u32) -> Result<bool> {
        let group = self.places.take();
        match (self.op, group.operations.len()) {
            (Op::WriteFlush, 1) => self.post_all::<2>(&group, slot),
            (_, 1) => self.post_one(&group, slot),
            (_, ..=15) => self.post_all::<16>(&group, slot),
            _ => self.post_all::<{ MOST + 1 }>(&group, slot),
        }?;
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
            Ok(Next::Event(event)) if event.is_end() => {
                return failed(format!("the connection has ended: {event}"));
            }
            Ok(Next::Event(_)) | Err(Error::TimedOut(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
