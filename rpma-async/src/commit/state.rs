//! The state of a [`Writer`](super::Writer), which its handles share with the driver.

use std::collections::VecDeque;
use std::mem;
use std::time::Instant;

use rpma::commit::{self, Method, Ticket};
use rpma::{Error, MrSlice, NotConnected, RemoteSlice, Result};

use super::reading::Reads;
use crate::clock;
use crate::conn::{Held, Sources};
use crate::error::{self, Refused};
use crate::pool::Frozen;
use crate::tasks::Tasks;
use crate::watched::Object;

pub(super) struct WriterState {
    /// `None` when it is being dropped, or was given back.
    writer: Option<commit::Writer>,
    /// The sources of commits that are not released, with the commits' numbers.
    pub(super) sources: VecDeque<(u64, Frozen)>,
    pub(super) reads: Reads,
    pub(super) last: Option<Ticket>,
    /// The last look began when no completion could come any more.
    pub(super) was_quiet: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Wanted {
    Durable(Ticket),
    /// A place for a commit.
    Room,
    /// The completion of a read.
    Read(u64),
    /// The release of the sources of all commits.
    Released,
    /// The end of the connection.
    End,
}

impl WriterState {
    pub(super) fn new(writer: commit::Writer) -> Self {
        let cfg = writer.cfg();
        let sources = usize::from(cfg.in_flight()) * usize::from(cfg.parts());
        Self {
            sources: VecDeque::with_capacity(sources),
            reads: Reads::new(writer.slots_beside()),
            writer: Some(writer),
            last: None,
            was_quiet: false,
        }
    }

    #[inline]
    pub(super) fn writer(&self) -> &commit::Writer {
        // Taken without handles and reads, of which this is one.
        self.writer.as_ref().expect("the writer is there")
    }

    /// Whether the device has released all sources, and no read is in flight.
    pub(super) fn is_released(&self) -> bool {
        let is_released = |of: &commit::Writer| of.released() == of.posted();
        !self.reads.is_one_in_flight() && self.writer.as_ref().is_some_and(is_released)
    }

    pub(super) fn take_writer(&mut self) -> Option<commit::Writer> {
        self.writer.take()
    }

    pub(super) fn why_over(&self) -> Error {
        let reason = self.writer().conn().reason().map(error::unnumbered);
        reason.unwrap_or(Error::NotConnected(NotConnected::Closed))
    }

    /// Whether there is room for a commit, or why there will be none.
    pub(super) fn room(&self) -> Option<Result<()>> {
        let writer = self.writer();
        if writer.is_over() {
            return Some(Err(self.why_over()));
        }
        (writer.room() > 0).then_some(Ok(()))
    }
}

impl Object for WriterState {
    type Wanted = Wanted;
    type Mark = (u64, u64, u64);
    /// The event of the end may follow the failure.
    type Ends = (bool, bool);

    fn mark(&self) -> Self::Mark {
        let Some(writer) = &self.writer else {
            return (0, 0, 0);
        };
        let completed = self.reads.completed();
        (writer.durable(), writer.released(), completed)
    }

    fn ends(&self) -> (bool, bool) {
        let is_over = |writer: &commit::Writer| (writer.is_over(), writer.conn().ended().is_some());
        self.writer.as_ref().map_or((true, true), is_over)
    }

    fn is_end(wanted: Wanted) -> bool {
        matches!(wanted, Wanted::End)
    }

    fn is_there(&self, wanted: Wanted) -> bool {
        let Some(writer) = &self.writer else {
            return false;
        };
        let is_over = writer.is_over();
        match wanted {
            Wanted::Durable(ticket) => writer.settled(ticket).is_some(),
            Wanted::Room => is_over || writer.room() > 0,
            Wanted::Read(number) => self.reads.is_complete(number) || self.was_quiet,
            Wanted::Released => is_over || self.is_released(),
            Wanted::End => is_over,
        }
    }

    fn is_single(wanted: Wanted) -> bool {
        matches!(wanted, Wanted::Room)
    }

    #[inline]
    fn poll(&mut self) -> Result<()> {
        let Self { writer, reads, .. } = self;
        let Some(writer) = writer else {
            return Ok(());
        };
        writer.poll(|wc| reads.settle(&wc))
    }

    fn look(&mut self) -> Result<()> {
        let Self {
            writer,
            reads,
            was_quiet,
            ..
        } = self;
        let Some(writer) = writer else {
            return Ok(());
        };
        // Before the look: the last completion comes after the grace.
        let quiet = writer.conn().quiet_from();
        let is_quiet = quiet.is_some_and(|quiet| clock::now() >= quiet);
        let looked = writer.look(|wc| reads.settle(&wc));
        *was_quiet = is_quiet;
        looked.map_err(error::unnumbered)
    }

    fn keep_alive(&self, _asks: bool) -> Option<Instant> {
        let writer = self.writer.as_ref()?;
        writer.conn().keep_alive().ok().flatten()
    }

    /// With the server's method a commit asks. After the end its event may come late.
    fn asks(&self, _tasks: &Tasks<Wanted>) -> bool {
        self.writer.as_ref().is_some_and(|writer| {
            let is_server = writer.cfg().method() == Method::Server;
            writer.is_over() || is_server && writer.durable() < writer.posted()
        })
    }

    fn probe(&mut self) {
        if let Some(writer) = self.writer.as_mut().filter(|writer| !writer.is_over()) {
            // A failure is one of the connection, which the next look finds.
            let probed = writer.probe();
            probed.unwrap_or_else(|error| log::debug!("{error}"));
        }
    }

    #[inline]
    fn free(&mut self) -> Option<Frozen> {
        if !self.is_source_free() {
            return None;
        }
        self.sources.pop_front().map(|(_, source)| source)
    }

    #[inline]
    fn is_more_free(&self) -> bool {
        self.is_source_free() || self.reads.is_one_free()
    }

    fn free_any(&mut self) -> Option<Held> {
        let source = self.free().map(Held::Frozen);
        source.or_else(|| self.reads.free())
    }
}

impl WriterState {
    #[inline]
    fn is_source_free(&self) -> bool {
        let released = self.writer.as_ref().map_or(0, commit::Writer::released);
        let is_free = |(number, _): &(u64, Frozen)| *number <= released;
        self.sources.front().is_some_and(is_free)
    }

    /// Posts a commit. The sources stay here if the device has them.
    #[inline]
    pub(super) fn commit<const N: usize>(
        &mut self,
        sources: [(RemoteSlice, Frozen); N],
        pointer: Option<(RemoteSlice, [u8; 8])>,
    ) -> Result<Ticket, Refused<Sources<N>>> {
        let writer = self.writer.as_mut().expect("the writer is there");
        let before = writer.posted();
        let posted = parts(&sources).and_then(|parts| writer.commit(&parts, pointer));
        let number = writer.posted();
        if number == before {
            return posted.map_err(|error| refused(error, Some(sources)));
        }
        for (_, source) in sources {
            self.sources.push_back((number, source));
        }
        let ticket = posted.map_err(|error| refused(error, None))?;
        self.last = Some(ticket);
        Ok(ticket)
    }
}

#[inline]
fn parts<const N: usize>(
    sources: &[(RemoteSlice, Frozen); N],
) -> Result<[(RemoteSlice, MrSlice<'_>); N]> {
    let mut parts = [(RemoteSlice::EMPTY, MrSlice::EMPTY); N];
    for (part, (to, from)) in parts.iter_mut().zip(sources) {
        *part = (*to, from.region()?);
    }
    Ok(parts)
}

#[cold]
fn refused<const N: usize>(
    error: Error,
    sources: Option<[(RemoteSlice, Frozen); N]>,
) -> Refused<Sources<N>> {
    let memory = sources.map(|sources| Sources(sources.map(|(_, from)| Some(from))));
    Refused { error, memory }
}

impl Drop for WriterState {
    fn drop(&mut self) {
        let sources = mem::take(&mut self.sources);
        let reads = mem::replace(&mut self.reads, Reads::new(0));
        if let Some(Err(error)) = self.writer.take().map(commit::Writer::delete) {
            // The device may still use them.
            log::error!("{error}; the memory of its commits and reads is leaked");
            mem::forget((sources, reads));
        }
    }
}
