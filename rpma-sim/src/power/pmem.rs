//! Persistent memory of hosts, and the fabric's work on it.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};

use super::NO_POWER;
use super::base::Base;
use super::lines::{Flow, Lines, Writer};
use super::memory::{Finders, Memory, Owner, ROOT, align, publish, withdraw};
use super::platform::Platform;
use super::store::Store;
use super::stores::Counted;
use crate::call::Result;
use crate::fabric::Host;
use crate::memory::{Part, copy};
use crate::profile::Profile;
use crate::state::{Shared, State};

/// Persistent memory of a host: see [`Host::pmem`]. Clones are the same memory.
#[derive(Clone, Debug)]
pub struct Pmem {
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: usize,
    path: PathBuf,
    len: usize,
}

impl Pmem {
    /// The name, the devices and the platform of its host.
    pub(crate) fn kind_of_host(&self) -> (String, Profile, Platform) {
        let state = self.shared.lock_to_look();
        let host = state.power.pmems[self.index].host;
        let name = state.hosts[host].clone();
        (name, state.profiles[host].clone(), state.platform(host))
    }

    /// Returns the path by which programs of the host open the memory, like `/dev/dax0.0`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes that a program of the host would read now; without power, those that the power cut
    /// has left.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes_in(self.shared.lock_to_look())
    }

    /// As [`bytes`](Self::bytes), for a report: the order of threads is the same as without it.
    #[doc(hidden)]
    #[must_use]
    pub fn bytes_quietly(&self) -> Vec<u8> {
        self.bytes_in(self.shared.lock_quietly())
    }

    fn bytes_in(&self, mut state: MutexGuard<'_, State>) -> Vec<u8> {
        state.look(self.index);
        state.power.pmems[self.index].lines.seen().to_vec()
    }
}

/// The fabric's state of a persistent memory.
#[derive(Debug)]
pub(crate) struct Tracked {
    pub(crate) host: usize,
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// `None` while the host has no power.
    pub(crate) memory: Option<Arc<Memory>>,
    pub(crate) lines: Lines,
    /// For the mappings of images.
    pub(crate) base: Base,
    _counted: Option<Counted>,
}

impl Drop for Tracked {
    fn drop(&mut self) {
        withdraw(&self.path);
    }
}

impl Host {
    /// Sets which bytes of this host's memory survive when its power fails. The default is
    /// [`Platform::AdrDdioOn`].
    ///
    /// # Panics
    ///
    /// If the host has persistent memory already.
    pub fn set_platform(&self, platform: Platform) {
        let mut state = self.shared().lock();
        let mut pmems = state.power.pmems.iter();
        assert!(
            pmems.all(|pmem| pmem.host != self.index()),
            "the platform comes first, then its memory"
        );
        state
            .power
            .platforms
            .retain(|(host, _)| *host != self.index());
        state.power.platforms.push((self.index(), platform));
    }

    /// Returns which bytes of this host's memory survive when its power fails.
    #[must_use]
    pub fn platform(&self) -> Platform {
        self.shared().lock_to_look().platform(self.index())
    }

    /// Returns whether the host may declare with `PeerCfg::set_direct_write_to_pmem` that a
    /// device's writes go straight to persistent memory. It depends on the platform, on the
    /// device, and on whether the client flushes natively. The page `docs/persistence.md` of rpma
    /// has the table.
    #[must_use]
    pub fn may_promise_direct_write(&self, client_flushes_natively: bool) -> bool {
        let state = self.shared().lock_to_look();
        match state.platform(self.index()) {
            Platform::Volatile => false,
            Platform::Eadr => true,
            _ if client_flushes_natively => true,
            Platform::AdrDdioOff => !state.profiles[self.index()].copies,
            Platform::AdrDdioOn => false,
        }
    }

    /// Adds persistent memory of at least `len` bytes to this host, filled with zeros.
    /// `PmemMap::open` of [`Pmem::path`] maps it, in a thread of this host, as device-DAX. A region
    /// of it can be registered for persistent flushes. There is one exception: a device with a
    /// native flush refuses memory of [`Platform::Volatile`].
    ///
    /// The [rules](Platform#what-a-loss-of-power-leaves) decide which bytes are lost when the power
    /// fails. A program need not report its stores. At each event the fabric compares the pages
    /// that were touched, which takes some 20 ms for 1 MiB of them in an unoptimised build. Pages
    /// that no program and no device has touched cost nothing, so the memory may be larger than
    /// that of the machine. A program that reads all of a large memory makes each later event
    /// slower. (On Linux before 6.7 the fabric compares all of the memory.) If a program writes its
    /// caches back by itself, it calls [`persisted`](crate::persisted).
    ///
    /// # Panics
    ///
    /// If `len` is 0, or the name has a `/` in it or is taken on this host.
    pub fn pmem(&self, name: &str, len: usize) -> Pmem {
        assert!(len > 0, "memory of no bytes");
        let len = len.next_multiple_of(align(len));
        self.pmem_of(name, Store::zeros(len))
    }

    /// Adds persistent memory as [`pmem`](Self::pmem) does, with these durable contents, like a
    /// device that was used before. Zeros follow them up to a whole page.
    ///
    /// # Panics
    ///
    /// As [`pmem`](Self::pmem).
    pub fn pmem_filled(&self, name: &str, bytes: &[u8]) -> Pmem {
        assert!(!bytes.is_empty(), "memory of no bytes");
        let len = bytes.len().next_multiple_of(align(bytes.len()));
        let mut store = Store::zeros(len);
        store.fill(bytes);
        self.pmem_of(name, store)
    }

    pub(crate) fn pmem_of(&self, name: &str, bytes: Store) -> Pmem {
        let len = bytes.len();
        assert!(
            !name.is_empty() && !name.contains('/'),
            "{name:?} is no name"
        );
        let shared = self.shared();
        let mut state = shared.lock();
        let own = |pmem: &Tracked| pmem.host == self.index() && pmem.name == name;
        assert!(!state.power.pmems.iter().any(own), "{name} is taken");
        let number = state.power.number;
        let host = state.hosts[self.index()].clone();
        let path = PathBuf::from(format!("{ROOT}/{number}/{}-{host}/{name}", self.index()));
        let (platform, copies) = (
            state.platform(self.index()),
            state.profiles[self.index()].copies,
        );
        let index = state.power.pmems.len();
        state.power.pmems.push(Tracked {
            host: self.index(),
            name: name.to_owned(),
            path: path.clone(),
            memory: None,
            lines: Lines::new(platform, copies, bytes),
            base: Base::default(),
            _counted: Counted::new(platform),
        });
        if state.is_dead(self.index()) {
            state.out_of_reach(index)
        } else {
            state.attach(shared, index)
        }
        Pmem {
            shared: Arc::clone(shared),
            index,
            path,
            len,
        }
    }
}

impl State {
    fn platform(&self, host: usize) -> Platform {
        let mut platforms = self.power.platforms.iter();
        let own = platforms.find(|(of, _)| *of == host);
        own.map_or_else(Platform::default, |(_, platform)| *platform)
    }

    pub(crate) fn persistence_domain(&self, index: usize) -> Option<&'static str> {
        match self.platform(self.power.pmems[index].host) {
            Platform::AdrDdioOn | Platform::AdrDdioOff => Some("memory_controller"),
            Platform::Eadr => Some("cpu_cache"),
            Platform::Volatile => None,
        }
    }

    /// Lets programs find a memory, which holds the bytes that survived.
    pub(crate) fn attach(&mut self, shared: &Arc<Shared>, index: usize) {
        let tracked = &mut self.power.pmems[index];
        let owner = Owner::Host {
            shared: Arc::downgrade(shared),
            pmem: index,
        };
        let memory = Arc::new(Memory::new(tracked.lines.seen(), owner));
        tracked.memory = Some(Arc::clone(&memory));
        let finders = Finders {
            shared: Arc::downgrade(shared),
            host: tracked.host,
            name: self.hosts[tracked.host].clone(),
        };
        publish(&tracked.path, Some(memory), Some(finders));
    }

    /// A memory is out of reach until the host is started again, and holds the bytes that are left
    /// then.
    pub(crate) fn detach(&mut self, index: usize, left: Store) {
        let tracked = &mut self.power.pmems[index];
        let copies = self.profiles[tracked.host].copies;
        tracked.memory = None;
        tracked.lines = Lines::new(tracked.lines.platform, copies, left);
        self.out_of_reach(index);
    }

    /// No program finds a memory: its host has no power.
    fn out_of_reach(&self, index: usize) {
        let tracked = &self.power.pmems[index];
        let host = tracked.host;
        let finders = Finders {
            shared: std::sync::Weak::new(),
            host,
            name: self.hosts[host].clone(),
        };
        publish(&tracked.path, None, Some(finders));
    }

    pub(crate) fn look(&mut self, index: usize) -> bool {
        let tracked = &mut self.power.pmems[index];
        match &tracked.memory {
            Some(memory) => tracked.lines.look(memory),
            None => false,
        }
    }

    fn pmem_at(&self, part: Part) -> Option<(usize, Range<usize>)> {
        let mut pmems = self.power.pmems.iter().enumerate();
        pmems.find_map(|(index, tracked)| {
            let memory = tracked.memory.as_ref()?;
            let range = memory.range_of(part.address.addr(), part.len)?;
            Some((index, range))
        })
    }

    /// Whether it is persistent memory that has bytes at this place, and keeps them.
    pub(crate) fn is_persistent(&self, part: Part) -> bool {
        let found = self.pmem_at(part);
        found.is_some_and(|(index, _)| self.power.pmems[index].lines.platform.is_persistent())
    }

    /// A device places bytes, by a request of a flow.
    pub(crate) fn place_now(
        &mut self,
        bytes: &[u8],
        part: Part,
        flow: Flow,
        what: impl FnOnce(&Self) -> String,
    ) {
        let of = Part {
            len: bytes.len(),
            ..part
        };
        let Some((index, range)) = self.pmem_at(of) else {
            return copy(bytes, part);
        };
        self.look(index);
        copy(bytes, part);
        let what = format!("{}, to bytes {}..{}", what(self), range.start, range.end);
        let tracked = &mut self.power.pmems[index];
        if let Some(memory) = &tracked.memory {
            let during = format!("in the middle of {what}");
            let writer = Writer::Device { flow, what };
            tracked.lines.placed(memory, &range, writer);
            if tracked.lines.copies {
                self.visit(|_| during);
                self.power.pmems[index].lines.landed(flow, &range);
            }
        }
    }

    /// A device takes bytes, which it will place later.
    pub(crate) fn take(
        &mut self,
        bytes: &[u8],
        part: Part,
        (flow, late): (Flow, u64),
        what: String,
    ) {
        let Some((index, range)) = self.pmem_at(part) else {
            return;
        };
        self.look(index);
        let what = format!("{what}, to bytes {}..{}", range.start, range.end);
        let writer = Writer::Device { flow, what };
        let lines = &mut self.power.pmems[index].lines;
        lines.taken(bytes, &range, late, writer);
    }

    /// A device places bytes that it took before.
    pub(crate) fn reveal(&mut self, bytes: &[u8], part: Part, late: u64) {
        let Some((index, range)) = self.pmem_at(part) else {
            return copy(bytes, part);
        };
        self.look(index);
        copy(bytes, part);
        let tracked = &mut self.power.pmems[index];
        if let Some(memory) = &tracked.memory {
            tracked.lines.shown(memory, &range, late);
        }
    }

    /// The bytes of a flow to a host become visible: all, or those in a part.
    pub(crate) fn push(&mut self, flow: Flow, host: usize, part: Option<Part>) {
        if let Flow::Writes(qp) = flow {
            self.land_of(qp, host, part);
        }
        self.before_push(flow);
        let found = part.map(|part| self.pmem_at(part));
        match found {
            Some(None) => {}
            Some(Some((index, range))) => self.power.pmems[index].lines.push(flow, Some(&range)),
            None => {
                let own = self.power.pmems.iter_mut().filter(|pmem| pmem.host == host);
                own.for_each(|pmem| pmem.lines.push(flow, None));
            }
        }
    }

    /// A region is deregistered: no data arrives there any more, if no other one is at the same
    /// place.
    pub(crate) fn settle_region(&mut self, part: Part) {
        if self.mrs.iter().any(|(_, other)| other.overlaps(part)) {
            return;
        }
        if let Some((index, range)) = self.pmem_at(part) {
            if self.power.pmems[index].lines.is_on_way(&range) {
                self.visit(|_| "before a region is deregistered".to_owned());
            }
            self.power.pmems[index].lines.push_all(&range);
        }
    }

    /// The reads of a queue pair into its own host's memory become visible.
    pub(crate) fn push_read(&mut self, qp: u32) {
        let host = self.nics[self.qps[qp].nic].host;
        if self.power.pmems.iter().any(|pmem| pmem.host == host) {
            self.push(Flow::Reads(qp), host, None);
        }
    }

    /// The power could fail while something of a flow is on its way: its program may have
    /// promised it since it was placed, and a message is placed and pushed at once.
    fn before_push(&mut self, flow: Flow) {
        if self
            .power
            .pmems
            .iter()
            .any(|pmem| pmem.lines.has_on_way(flow))
        {
            let (what, qp) = match flow {
                Flow::Writes(qp) => ("writes", qp),
                Flow::Reads(qp) => ("reads", qp),
            };
            self.visit(|state| format!("before {what} of {} become visible", state.connection(qp)));
        }
    }

    pub(crate) fn flush_pmem(
        &mut self,
        flow: Flow,
        part: Part,
        what: impl FnOnce(&Self) -> String,
    ) {
        if let Some((index, range)) = self.pmem_at(part) {
            self.visit(|state| format!("before {}", what(state)));
            self.look(index);
            self.power.pmems[index].lines.flush(flow, &range);
        }
    }

    /// A device reads bytes, for any queue pair: the program that gets them has seen them.
    pub(crate) fn read_out(&mut self, part: Part) {
        let Some((index, range)) = self.pmem_at(part) else {
            return;
        };
        let tracked = &self.power.pmems[index];
        if tracked.lines.is_on_way(&range) {
            let host = tracked.host;
            self.visit(|state| format!("before a device reads on {}", state.hosts[host]));
            self.power.pmems[index].lines.push_all(&range);
        }
    }

    pub(crate) fn seen(&mut self, index: usize, memory: &Memory, range: &Range<usize>) {
        let tracked = &self.power.pmems[index];
        let current = tracked.memory.as_deref();
        let is_current = current.is_some_and(|current| std::ptr::eq(current, memory));
        if is_current && tracked.lines.is_on_way(range) {
            // A program may have promised it since it was placed.
            let host = tracked.host;
            self.visit(|state| format!("before a program reads on {}", state.hosts[host]));
            self.power.pmems[index].lines.push_all(range);
        }
    }

    /// A program has written caches back.
    ///
    /// It fails if the memory is of a program that was killed, or of a host that has lost its power
    /// since.
    pub(crate) fn written_back(
        &mut self,
        index: usize,
        memory: &Memory,
        range: &Range<usize>,
    ) -> Result<()> {
        let current = self.power.pmems[index].memory.as_deref();
        if !current.is_some_and(|current| std::ptr::eq(current, memory)) {
            return Err(NO_POWER);
        }
        let host = self.power.pmems[index].host;
        let on = |state: &Self| format!("a write-back of caches on {}", state.hosts[host]);
        self.look(index);
        self.visit(|state| format!("before {}", on(state)));
        self.power.pmems[index].lines.write_back(range);
        self.visit(|state| format!("after {}", on(state)));
        Ok(())
    }
}
