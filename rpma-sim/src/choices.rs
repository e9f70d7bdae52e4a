//! The one source of a fabric's choices: which thread goes on, and what devices and the network do
//! where verbs leave it open.
//!
//! Every place that has a choice asks [`Choices::choose`]. So a run is the same run again if the
//! answers are the same, whoever gives them: a seed, or the script of an exploration.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::order::{Chances, mix};

/// The subject of a choice. For each one, 0 is the plain case: in order, at once, without a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// The write or message after a request that is kept back is executed before it: 0 or 1.
    Overtake,
    /// The device reads the data of a request when it executes it (0), or begins at the post, with
    /// nothing (1) or a part of it read (2).
    Fetch,
    /// The number of bytes that are read at the post.
    Bytes,
    /// A write becomes visible at once (0) or late (1).
    Late,
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
}

/// The choices of a fabric. Its lock comes after all others.
#[derive(Debug)]
pub(crate) struct Choices(Mutex<Seeded>);

impl Choices {
    /// By a seed. Without one, devices choose the same in each run, and the operating system
    /// chooses the threads.
    pub(crate) fn seeded(seed: Option<u64>) -> Self {
        Self(Mutex::new(Seeded {
            devices: seed.map_or(0x5EED, mix),
            threads: mix(seed.unwrap_or(0)),
            kept: None,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Seeded> {
        // It is consistent whenever something could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the choices from now on. They are those of another run, as far as that has them.
    pub(crate) fn keep(&self, chances: Chances) {
        self.lock().kept = Some(chances);
    }

    /// The choices that were kept.
    pub(crate) fn kept(&self) -> Chances {
        self.lock().kept.take().unwrap_or_default()
    }

    /// A number below `below`, which is not 0.
    pub(crate) fn choose(&self, kind: Kind, below: u32) -> u32 {
        self.lock().choose(kind, below)
    }

    /// One of these threads, each with its weight.
    pub(crate) fn next_thread(&self, ready: &[(u64, u64)]) -> Option<u64> {
        self.lock().next_thread(ready)
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
            Kind::Notify | Kind::Weight => (self.of_threads() % u64::from(below)) as u32,
            Kind::Overtake => self.of_devices(2),
            Kind::Late => 1 - self.of_devices(2),
            // Each further step is half as likely.
            Kind::Fetch => match (self.of_devices(2), below) {
                (0, _) => 0,
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
