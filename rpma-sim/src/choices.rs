//! The one source of a fabric's choices: which thread goes on, and what devices and the network do
//! where verbs leave it open.
//!
//! Every place that has a choice asks [`Choices::choose`]. So a run is the same run again if the
//! answers are the same. A seed gives them, or the script of an exploration.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::explore::Script;
use crate::here;
use crate::order::{Chances, mix};
use crate::qp::Send;
use crate::state::State;

/// The subject of a choice. For each one, 0 is the plain case, except for [`Loss`](Self::Loss).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// Posted requests arrive at once (0), late (1), later than the limits of a program (2), or at
    /// once with all before them (3). One value lasts for longer than one post: [`INTERRUPTED`].
    Arrival,
    /// A device executes a request that it has kept back at the next poll (0), or at its own time
    /// (1).
    Poll,
    /// The completion of a request comes at once (0), late (1), or later than the limits of a
    /// program (2).
    Answer,
    /// The write or message after a request that is kept back is executed before it: 0 or 1.
    Overtake,
    /// The device reads the data of a request when it executes it (0), or begins at the post, with
    /// nothing (1) or a part of it read (2).
    Fetch,
    /// The number of bytes that are read at the post.
    Bytes,
    /// A write becomes visible at once (0) or late (1).
    Visibility,
    /// By when a late write is visible, in sixteenths of the time for which requests are kept back.
    Landing,
    /// The delay of a request, in thousandths of the link's longest.
    Delay,
    /// Whether a request loses a packet: only 0 is a loss.
    Loss,
    /// How many packets arrive before a lost one.
    Packets,
    /// A request of a connection that ends has left the device (0) or not (1).
    Stray,
    /// Which waiting thread a notification wakes.
    Notify,
    /// How likely a thread goes on, compared with others: 0, 1 or 2.
    Weight,
    /// The thread that goes on.
    Thread,
}

/// An arrival later than the limits of a program, also of the host's later posts until then: its
/// network is interrupted.
pub(crate) const INTERRUPTED: u32 = 4;

/// How many fabrics are explored, so that a read has no cost if it is 0.
static EXPLORING: AtomicUsize = AtomicUsize::new(0);

/// The choices of a fabric. Its lock comes after all others.
#[derive(Debug)]
pub(crate) struct Choices {
    source: Mutex<Source>,
    /// Without a lock, for each call.
    explores: bool,
}

#[derive(Debug)]
enum Source {
    Seeded(Seeded),
    Script(Box<Script>),
}

impl Choices {
    /// By a seed. Without one, devices choose the same in each run, and the operating system
    /// chooses the threads.
    pub(crate) fn seeded(seed: Option<u64>) -> Self {
        let source = Source::Seeded(Seeded {
            devices: seed.map_or(0x5EED, mix),
            threads: mix(seed.unwrap_or(0)),
            kept: None,
        });
        Self {
            source: Mutex::new(source),
            explores: false,
        }
    }

    pub(crate) fn scripted(script: Script) -> Self {
        EXPLORING.fetch_add(1, Ordering::Relaxed);
        Self {
            source: Mutex::new(Source::Script(Box::new(script))),
            explores: true,
        }
    }

    pub(crate) fn explores(&self) -> bool {
        self.explores
    }

    fn lock(&self) -> MutexGuard<'_, Source> {
        // It is consistent whenever something could panic.
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the choices of the seed from now on. They are those of another run, as far as that has
    /// them.
    pub(crate) fn keep(&self, chances: Chances) {
        if let Source::Seeded(seeded) = &mut *self.lock() {
            seeded.kept = Some(chances);
        }
    }

    pub(crate) fn kept(&self) -> Chances {
        match &mut *self.lock() {
            Source::Seeded(seeded) => seeded.kept.take().unwrap_or_default(),
            Source::Script(_) => Chances::default(),
        }
    }

    /// A number below `below`, which is not 0. `what` describes the subject, for the report of an
    /// order.
    pub(crate) fn choose(&self, kind: Kind, below: u32, what: impl Fn() -> String) -> u32 {
        match &mut *self.lock() {
            Source::Seeded(seeded) => seeded.choose(kind, below),
            Source::Script(script) => script.choose(kind, below, &what),
        }
    }

    /// One of these threads, each with its weight, after `from` had the turn.
    pub(crate) fn next_thread(
        &self,
        ready: &[(u64, u64)],
        from: u64,
        what: impl Fn(u64) -> String,
    ) -> Option<u64> {
        match &mut *self.lock() {
            Source::Seeded(seeded) => seeded.next_thread(ready),
            Source::Script(script) => script.next_thread(ready, from, &what),
        }
    }

    /// The order of an exploration that runs now, for a text about a run that may never end.
    pub(crate) fn text_of_order(&self) -> String {
        let text = self.with_script(|script| script.text_of_order());
        text.unwrap_or_default()
    }

    pub(crate) fn with_script<T>(&self, act: impl FnOnce(&mut Script) -> T) -> Option<T> {
        if !self.explores {
            return None;
        }
        match &mut *self.lock() {
            Source::Seeded(_) => None,
            Source::Script(script) => Some(act(script)),
        }
    }
}

impl State {
    pub(crate) fn choose(&self, kind: Kind, below: u32, what: impl Fn(&Self) -> String) -> u32 {
        self.note_devices();
        self.choices.choose(kind, below, || what(self))
    }

    pub(crate) fn choose_for(&self, kind: Kind, below: u32, number: u32, send: &Send) -> u32 {
        self.choose(kind, below, |state| state.describe(number, send))
    }
}

impl Drop for Choices {
    fn drop(&mut self) {
        if self.explores {
            EXPLORING.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The calling thread looks at memory to which devices may write.
pub(crate) fn looks_at_memory() {
    if EXPLORING.load(Ordering::Relaxed) > 0 {
        if let Some((shared, _)) = here::place() {
            shared.order.choices.with_script(Script::look);
        }
    }
}

/// Choices by a seed. Devices and threads have a generator each, so that a draw of the one does not
/// shift those of the other.
#[derive(Debug)]
struct Seeded {
    devices: u64,
    threads: u64,
    /// If the run is kept, or is to be like another one.
    kept: Option<Chances>,
}

impl Seeded {
    fn choose(&mut self, kind: Kind, below: u32) -> u32 {
        let seeded = self.draw(kind, below);
        match &mut self.kept {
            Some(kept) if kind != Kind::Weight => kept.choose(kind, below, seeded),
            _ => seeded,
        }
    }

    fn draw(&mut self, kind: Kind, below: u32) -> u32 {
        match kind {
            // Seeds draw these by `next_thread`, or never.
            Kind::Thread | Kind::Poll | Kind::Answer => 0,
            Kind::Notify | Kind::Weight => (self.of_threads() % u64::from(below)) as u32,
            Kind::Overtake | Kind::Arrival => self.of_devices(2),
            Kind::Visibility => 1 - self.of_devices(2),
            // Each further step is half as likely.
            Kind::Fetch => match self.of_devices(2) {
                0 => 0,
                _ => 1 + self.of_devices(2),
            },
            Kind::Stray => u32::from(self.of_devices(2) == 1 && self.of_devices(2) == 1),
            Kind::Bytes | Kind::Landing | Kind::Delay | Kind::Loss | Kind::Packets => {
                self.of_devices(below)
            }
        }
    }

    fn next_thread(&mut self, ready: &[(u64, u64)]) -> Option<u64> {
        let sum: u64 = ready.iter().map(|(_, weight)| weight).sum();
        let mut left = self.of_threads().checked_rem(sum)?;
        let chosen = |(_, weight): &&(u64, u64)| {
            let is_it = left < *weight;
            left = left.saturating_sub(*weight);
            is_it
        };
        ready.iter().find(chosen).map(|(thread, _)| *thread)
    }

    fn of_devices(&mut self, below: u32) -> u32 {
        self.devices = self
            .devices
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (((self.devices >> 32) * u64::from(below)) >> 32) as u32
    }

    fn of_threads(&mut self) -> u64 {
        self.threads = self.threads.wrapping_add(1);
        mix(self.threads)
    }
}
