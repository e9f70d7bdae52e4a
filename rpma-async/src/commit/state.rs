//! The state of a [`Writer`](super::Writer), which its handles share with the driver.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use rpma::commit::{self, Method, Ticket};
use rpma::sync::Mutex;
use rpma::{Error, MrSlice, NotConnected, Offer, RemoteSlice, Result};

use super::lock;
use super::reading::Reads;
use crate::clock;
use crate::conn::{Held, Sources};
use crate::driver::Member;
use crate::error::{self, Refused};
use crate::pool::Frozen;
use crate::watched::{Look, SILENCE, Watched, unless_pending};

pub(super) struct WriterShared {
    /// Before the writer: the reactor forgets it first.
    pub(super) watched: Watched,
    pub(super) offer: Offer,
    pub(super) state: Mutex<WriterState>,
}

pub(super) struct WriterState {
    /// `None` when it is being dropped, or was given back.
    pub(super) writer: Option<commit::Writer>,
    /// The sources of commits that are not released, with the commits' numbers.
    pub(super) sources: VecDeque<(u64, Frozen)>,
    pub(super) reads: Reads,
    /// The last commit.
    pub(super) last: Option<Ticket>,
    /// The time of the last event or completion.
    pub(super) silent: Instant,
}

impl WriterState {
    pub(super) fn writer(&mut self) -> &mut commit::Writer {
        // Taken without handles and reads, of which this is one.
        self.writer.as_mut().expect("the writer is there")
    }

    /// The waits of tasks depend on it, and blocks that are free.
    pub(super) fn marks(&self) -> Option<(u64, u64, u64, bool)> {
        let writer = self.writer.as_ref()?;
        let (durable, released) = (writer.durable(), writer.released());
        let completed = self.reads.completed();
        Some((durable, released, completed, writer.is_over()))
    }

    /// Takes all events and completions, if the writer is there. An error is the end of the
    /// connection, and the waits return it.
    pub(super) fn look(&mut self) {
        let Self { writer, reads, .. } = self;
        let Some(writer) = writer else {
            return;
        };
        if let Err(error) = writer.look(|wc| reads.settle(&wc)) {
            log::debug!("{error}");
        }
    }

    /// A block that the device has released, and for which no task waits.
    pub(super) fn free(&mut self) -> Option<Held> {
        let released = self.writer.as_ref()?.released();
        let is_free = self.sources.front().is_some_and(|of| of.0 <= released);
        let source = is_free.then(|| self.sources.pop_front()).flatten();
        match source {
            Some((_, source)) => Some(Held::Frozen(source)),
            None => self.reads.free().map(Held::Lease),
        }
    }

    /// Whether the connection has been over for so long that no completion comes any more.
    pub(super) fn is_quiet(&mut self) -> bool {
        let quiet = self.writer().conn().quiet_from();
        quiet.is_some_and(|quiet| clock::now() >= quiet)
    }

    /// Why the connection is over.
    pub(super) fn why_over(&mut self) -> Error {
        let reason = self.writer().conn().reason().map(error::unnumbered);
        reason.unwrap_or(Error::NotConnected(NotConnected::Closed))
    }

    /// After a look that found no event: asks whether the server is there, when it is time.
    /// Returns the time of the next look, if no event comes before.
    pub(super) fn wait(&mut self) -> Option<Instant> {
        let silent = self.silent;
        let writer = self.writer();
        let due = writer.conn().keep_alive().ok().flatten();
        let is_over = writer.is_over();
        let is_asked =
            writer.cfg().method() == Method::Server && writer.durable() < writer.posted();
        if !is_over && !is_asked {
            return due;
        }
        let mut at = silent + SILENCE;
        if at <= clock::now() {
            // A failure is one of the connection, which the next look finds.
            if let (false, Err(error)) = (is_over, writer.probe()) {
                log::debug!("{error}");
            }
            // After the probe: a slow one must not be due again at once, without a pause for
            // others.
            self.silent = clock::now();
            at = self.silent + SILENCE;
        }
        Some(due.map_or(at, |due| due.min(at)))
    }
}

impl WriterState {
    pub(super) fn commit<const N: usize>(
        &mut self,
        to: [RemoteSlice; N],
        sources: Sources<N>,
        pointer: Option<(RemoteSlice, [u8; 8])>,
    ) -> Result<Ticket, Refused<Sources<N>>> {
        // Completions that no task has waited for give room.
        if self.writer().room() == 0 {
            self.look();
        }
        let writer = self.writer();
        let before = writer.posted();
        let posted = parts(to, &sources).and_then(|parts| writer.commit(&parts, pointer));
        let number = writer.posted();
        let is_asked = writer.cfg().method() == Method::Server;
        if number == before {
            return posted.map_err(|error| Refused {
                error,
                memory: Some(sources),
            });
        }
        self.sources
            .extend(sources.into_iter().map(|source| (number, source)));
        if is_asked {
            self.silent = clock::now();
        }
        let ticket = posted.map_err(|error| Refused {
            error,
            memory: None,
        })?;
        self.last = Some(ticket);
        Ok(ticket)
    }
}

/// The parts of a commit.
fn parts<const N: usize>(
    to: [RemoteSlice; N],
    sources: &Sources<N>,
) -> Result<[(RemoteSlice, MrSlice<'_>); N]> {
    let mut parts = [(RemoteSlice::EMPTY, MrSlice::EMPTY); N];
    for ((part, to), from) in parts.iter_mut().zip(to).zip(sources.0.iter().flatten()) {
        *part = (to, from.region()?);
    }
    Ok(parts)
}

impl WriterShared {
    pub(super) fn watched(&self) -> &Watched {
        &self.watched
    }

    pub(super) fn state(&self) -> &Mutex<WriterState> {
        &self.state
    }

    /// Calls `run` with the writer. Afterwards, without the lock, blocks go back to their pools,
    /// and tasks that may go on are woken.
    pub(super) fn with<T>(&self, run: impl FnOnce(&mut WriterState) -> T) -> T {
        let mut state = lock(&self.state);
        let before = state.marks();
        let result = run(&mut state);
        if state.marks() == before {
            return result;
        }
        state.silent = clock::now();
        let mut freed = state.free();
        drop(state);
        while let Some(block) = freed {
            drop(block);
            freed = lock(&self.state).free();
        }
        self.watched.wake_all();
        result
    }

    /// Waits with one of the writer's waits, that does not sleep.
    pub(super) async fn wait<T>(
        &self,
        mut wait: impl FnMut(&mut commit::Writer, &mut Reads) -> Result<T> + Unpin,
    ) -> Result<T> {
        let look = || {
            self.with(|state| {
                let WriterState { writer, reads, .. } = state;
                // A handle waits.
                let writer = writer.as_mut().expect("the writer is there");
                match unless_pending(wait(writer, reads)) {
                    Some(Ok(result)) => Look::Ready(Ok(result)),
                    Some(Err(error)) => Look::Ready(Err(error::unnumbered(error))),
                    None => Look::Until(state.wait()),
                }
            })
        };
        self.watched.wait(look).await?
    }
}

impl WriterShared {
    /// Takes all events, and wakes the tasks that can go on.
    pub(super) fn take_events(&self) {
        self.with(WriterState::look);
    }
}

impl Member for WriterShared {
    fn event(self: Arc<Self>) {
        self.take_events();
    }

    fn look(self: Arc<Self>) {
        self.take_events();
    }

    fn wake_everybody(&self) {
        self.watched.wake_all();
    }
}

impl Drop for WriterShared {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        let sources = mem::take(&mut state.sources);
        let reads = mem::replace(&mut state.reads, Reads::new(0));
        let writer = state.writer.take();
        drop(state);
        if let Some(Err(error)) = writer.map(commit::Writer::delete) {
            // The device may still use them.
            log::error!("{error}; the memory of its commits and reads is leaked");
            mem::forget((sources, reads));
        }
    }
}
