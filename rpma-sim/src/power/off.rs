//! A host loses its power, and is started again.
//!
//! The program on it cannot be killed: its threads are of this process. So all objects of the host
//! are dead from then on, and its stores to its mappings are never seen again. A host that was
//! started again has new mappings of its memory.

use std::sync::Arc;

use rustix::io::Errno;

use super::Flow;
use super::image::Plan;
use super::random::Random;
use crate::device;
use crate::fabric::{Fabric, Host};
use crate::state::{Shared, State};

impl Fabric {
    /// Cuts the power of a host: see [`Host::power_cut`].
    ///
    /// # Panics
    ///
    /// If it is a host of another fabric, or has no power already.
    pub fn power_cut(&self, host: &Host) {
        let is_own = Arc::ptr_eq(self.shared(), host.shared());
        assert!(is_own, "a host of another fabric");
        host.power_cut();
    }
}

impl Host {
    /// Cuts the power of the host. Each of its memories then has one of the images that a loss of
    /// power may leave. The [seed](Fabric::set_seed) chooses the image.
    ///
    /// Its peers see a host that does not answer. The objects of its programs are dead: their
    /// calls fail with `ENODEV`, and their waits end with an error, so that their threads can end.
    ///
    /// Requests of its devices may be on their way to other hosts. A prefix of them, chosen at
    /// random, still arrives.
    ///
    /// # Panics
    ///
    /// If it has no power already.
    pub fn power_cut(&self) {
        let was_cut = cut(self.shared(), self.index());
        assert!(was_cut, "the host has no power already");
    }

    /// Kills the programs on it. The host, its devices and its memory go on.
    ///
    /// As the kernel does at the end of a process, it destroys all device objects of the programs.
    /// Their peers get `ConnEvent::Closed`, and requests to them are not answered any more.
    /// Requests that are on their way to other hosts may still land. Memory holds all that
    /// programs and devices have written, durable or not.
    ///
    /// The threads of the killed programs cannot be ended: their calls fail with `ENODEV`, as
    /// after a [power cut](Host::power_cut). A thread that enters the host after this is another
    /// program.
    ///
    /// # Panics
    ///
    /// If it has no power, or the process has no descriptor left.
    pub fn kill(&self) {
        let was_killed = kill(self.shared(), self.index());
        assert!(was_killed, "the host has no power");
    }

    /// Starts it again after a [power cut](Fabric::power_cut): its devices have the same addresses,
    /// and its memory has the contents that were left. Threads enter it anew.
    ///
    /// # Panics
    ///
    /// If it has power, or the process has no descriptor left.
    pub fn restart(&self) {
        let shared = self.shared();
        let mut state = shared.lock();
        assert!(state.is_dead(self.index()), "the host has power");
        state.power.dead.retain(|dead| *dead != self.index());
        for pmem in 0..state.power.pmems.len() {
            if state.power.pmems[pmem].host == self.index() {
                state.attach(shared, pmem);
            }
        }
        drop(state);
        let revived = device::revive(shared, self.index());
        revived.expect("the process has descriptors for its devices");
        shared.changed.notify_all();
    }

    /// Whether it has power.
    #[must_use]
    pub fn has_power(&self) -> bool {
        !self.shared().lock_to_look().is_dead(self.index())
    }
}

/// As [`Host::power_cut`]; `false` if the host has no power.
pub(crate) fn cut(shared: &Shared, index: usize) -> bool {
    let mut state = shared.lock_quietly();
    if state.is_dead(index) {
        return false;
    }
    state.power.cuts.push(index);
    state.power.outages.push(index);
    let cut = format!("the power of {} was cut", state.hosts[index]);
    state.failures.note(cut, None);
    let seed = state.power.seed ^ (state.power.cuts.len() as u64) << 32;
    for pmem in 0..state.power.pmems.len() {
        if state.power.pmems[pmem].host == index {
            state.look(pmem);
            let random = Random::new(seed ^ pmem as u64);
            let left = Plan::any(&state.power.pmems[pmem].lines, random);
            state.detach(pmem, left);
        }
    }
    state.power.dead.push(index);
    state.die(index);
    drop(state);
    shared.changed.notify_all();
    true
}

/// As [`Host::kill`]; `false` if the host has no power.
pub(crate) fn kill(shared: &Arc<Shared>, index: usize) -> bool {
    let mut state = shared.lock_quietly();
    if state.is_dead(index) {
        return false;
    }
    state.power.cuts.push(index);
    let killed = format!("the programs of {} were killed", state.hosts[index]);
    state.failures.note(killed, None);
    state.take_leave_of_all(index);
    state.settle_host(index);
    state.land_on(index);
    for pmem in 0..state.power.pmems.len() {
        if state.power.pmems[pmem].host == index {
            state.look(pmem);
            // Later stores of the killed programs are not seen.
            state.attach(shared, pmem);
        }
    }
    state.die(index);
    drop(state);
    shared.changed.notify_all();
    let revived = device::revive(shared, index);
    revived.expect("the process has descriptors for its devices");
    true
}

impl State {
    pub(crate) fn is_dead(&self, host: usize) -> bool {
        self.power.dead.contains(&host)
    }

    /// The writes that are on their way to a host's memory arrive, as its queue pairs are
    /// destroyed.
    fn settle_host(&mut self, host: usize) {
        let writers = |(number, qp): (u32, &crate::qp::Qp)| {
            (self.nics[qp.nic].host == host)
                .then_some([Flow::Writes(qp.peer.unwrap_or(number)), Flow::Reads(number)])
        };
        for writer in self
            .qps
            .iter()
            .filter_map(writers)
            .flatten()
            .collect::<Vec<_>>()
        {
            self.push(writer, host, None);
        }
    }

    /// How often the programs of a host have ended, with its power or without.
    pub(crate) fn life(&self, host: usize) -> usize {
        self.power.cuts.iter().filter(|of| **of == host).count()
    }

    /// The identity of a host's boot: new after a power cut, and the same after a `kill`.
    pub(crate) fn boot(&self, host: usize) -> [u8; 24] {
        let outages = self.power.outages.iter().filter(|of| **of == host).count();
        boot([self.power.identity, host as u64 + 1, outages as u64])
    }

    fn die(&mut self, host: usize) {
        // A host that is started again is not frozen.
        self.thaw_dead(host);
        self.lose_late(host);
        for nic in self.nics.iter_mut().filter(|nic| nic.host == host) {
            nic.die();
        }
        let on_it = |(number, qp): (u32, &crate::qp::Qp)| {
            (self.nics[qp.nic].host == host).then_some(number)
        };
        for qp in self.qps.iter().filter_map(on_it).collect::<Vec<_>>() {
            self.leave_requests(qp);
            self.qps[qp].peer = None;
            self.fail_qp(qp);
        }
        self.wake_completion_channels(host);
        self.silence(host);
    }
}

pub(crate) const NO_POWER: Errno = Errno::NODEV;

pub(crate) fn boot(numbers: [u64; 3]) -> [u8; 24] {
    let mut bytes = [0; 24];
    for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}
