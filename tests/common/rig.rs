//! The rig: it makes the simulated fabrics of all tests, with their hosts and their time.
//!
//! A test begins with its scenario: `Rig::new().world()` are two hosts with their peers and the link
//! between them, and `Rig::of(&profile).seed(7).hosts(["client", "server"])` are hosts in the order
//! and the time of a seed. Subjects extend it with the memory and the programs that they share.

use std::ops::Deref;
use std::panic::resume_unwind;
use std::thread;

use rpma::sim::{Entered, Fabric, Host, JoinHandle, Profile};

use super::{World, profile};

/// A fabric that is not made yet.
#[derive(Clone, Debug)]
#[must_use = "it makes no fabric by itself"]
pub(crate) struct Rig {
    profile: Profile,
    clock: Clock,
}

#[derive(Clone, Copy, Debug)]
enum Clock {
    Real,
    Jumping,
    Seeded(u64),
}

impl Rig {
    /// The devices that this run is about ([`profile`]), in real time.
    pub(crate) fn new() -> Self {
        Self::of(&profile())
    }

    /// These devices, in real time.
    pub(crate) fn of(profile: &Profile) -> Self {
        Self {
            profile: profile.clone(),
            clock: Clock::Real,
        }
    }

    /// An adapter that does no more than the specification guarantees, in real time.
    pub(crate) fn strict() -> Self {
        Self::of(&Profile::STRICT)
    }

    /// The clock jumps over waits.
    pub(crate) fn jumping(self) -> Self {
        Self {
            clock: Clock::Jumping,
            ..self
        }
    }

    /// Virtual time, and the order of threads by this seed: the load of the machine makes no
    /// difference.
    pub(crate) fn seed(self, seed: u64) -> Self {
        Self {
            clock: Clock::Seeded(seed),
            ..self
        }
    }

    pub(crate) fn fabric(&self) -> Fabric {
        let profile = self.profile.clone();
        match self.clock {
            Clock::Real => Fabric::new(profile),
            Clock::Jumping => {
                let fabric = Fabric::new(profile);
                fabric.jump_over_waits();
                fabric
            }
            Clock::Seeded(seed) => Fabric::seeded(profile, seed),
        }
    }

    /// A fabric that must have no objects when this is dropped.
    pub(crate) fn emptied(&self) -> Emptied {
        Emptied(self.fabric())
    }

    /// A fabric with these hosts.
    pub(crate) fn hosts<const N: usize>(&self, names: [&str; N]) -> (Fabric, [Host; N]) {
        let fabric = self.fabric();
        let hosts = names.map(|name| fabric.host(name));
        (fabric, hosts)
    }

    /// A fabric with one host, on which the calling thread is.
    pub(crate) fn here(&self) -> Here {
        let (fabric, [host]) = self.hosts(["here"]);
        Here {
            _entered: host.enter(),
            host,
            fabric,
        }
    }

    /// Two hosts that connect.
    pub(crate) fn world(&self) -> World {
        World::on(&self.fabric())
    }
}

/// The calling thread is on a host for as long as this lives.
pub(crate) struct Here {
    pub(crate) host: Host,
    pub(crate) fabric: Fabric,
    _entered: Entered,
}

/// A fabric without objects in the end: this is dropped after all of them.
pub(crate) struct Emptied(Fabric);

impl Deref for Emptied {
    type Target = Fabric;

    fn deref(&self) -> &Fabric {
        &self.0
    }
}

impl Drop for Emptied {
    fn drop(&mut self) {
        let objects = self.0.objects();
        assert!(thread::panicking() || objects.is_empty(), "{objects:?}");
    }
}

/// The result of a thread. Its panic goes on here.
pub(crate) fn join<T>(thread: JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}
