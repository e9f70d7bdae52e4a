//! The test's view of a fabric: the fabric, its hosts, and their devices. The host of a thread:
//! [`crate::here`].

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use crate::choices::Choices;
use crate::device;
use crate::explore::Script;
use crate::fail::Failing;
use crate::here;
use crate::order::Trace;
use crate::profile::Profile;
use crate::state::Shared;

static ALIVE: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn is_any_alive() -> bool {
    ALIVE.load(Ordering::Relaxed) > 0
}

/// A network of hosts with RDMA devices, separate from all others.
///
/// Clones are the same fabric. Its hosts, and the objects made in it, stay usable when it is
/// dropped.
#[derive(Clone, Debug)]
pub struct Fabric {
    shared: Arc<Shared>,
    /// Dropped with the last clone.
    alive: Arc<Alive>,
}

#[derive(Debug, Default)]
struct Alive {
    /// The stay of the thread that has made it, if there is a seed, or that has let it follow a
    /// clock.
    stay: OnceLock<usize>,
}

impl Fabric {
    /// Makes a fabric without hosts. [`host`](Self::host) adds hosts with this profile.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self::of(profile, None, Choices::seeded(None))
    }

    /// Makes a fabric on which the seed chooses the order of threads: see
    /// [`repeatable`](crate::repeatable), which makes one for a test. The calling thread is one of
    /// these threads, until the fabric is dropped.
    #[must_use]
    pub fn seeded(profile: Profile, seed: u64) -> Self {
        Self::of(profile, Some(seed), Choices::seeded(Some(seed)))
    }

    pub(crate) fn scripted(profile: Profile, script: Script) -> Self {
        Self::of(profile, Some(1), Choices::scripted(script))
    }

    fn of(profile: Profile, seed: Option<u64>, choices: Choices) -> Self {
        ALIVE.fetch_add(1, Ordering::Relaxed);
        let shared = Shared::new(profile, seed, choices);
        let fabric = Self {
            shared,
            alive: Arc::new(Alive::default()),
        };
        if seed.is_some() {
            fabric.be_here();
        }
        fabric
    }

    /// The calling thread is on the fabric until the last clone is dropped, once.
    pub(crate) fn be_here(&self) {
        let stay = || here::put(&self.shared, None, None, None);
        self.alive.stay.get_or_init(stay);
    }

    /// Lets the fabric's clock jump over waits inside of `rpma`, and in [`sync`](crate::sync) and
    /// [`thread`](crate::thread). Everything else is real time: [`std::thread::sleep`],
    /// [`Instant::now`] in the program, other locks and channels, `poll` and `epoll` in the
    /// program, and threads that are on no host.
    ///
    /// A thread on a host that waits in real time counts as busy. While a thread is busy, the
    /// fabric's clock runs like the system's. A thread on no host never keeps the clock from
    /// jumping, and its limits are real time. So the thread that starts the others must be on a
    /// host. Otherwise the clock may jump before it has started all of them.
    ///
    /// From now on, the clock jumps when all threads on hosts of the fabric wait inside `rpma` or
    /// these modules, and no event is there to take. It jumps to the end of the next limit, or to
    /// the next retry of a device.
    ///
    /// One thread panics if all of them wait without a limit, no event can come, and no thread
    /// calls the fabric for 5 seconds of real time. Its message has the places of all threads.
    ///
    /// The clock of a fabric with a [seed](Self::seeded) jumps from the beginning. A fabric that
    /// [follows](Self::follow) the program's clock jumps over calls that block.
    pub fn jump_over_waits(&self) {
        self.shared.order.jump_over_waits();
    }

    /// Returns the fabric's time. By default it is the system's time plus all jumps. With a seed
    /// it is virtual: 1 µs for each call, plus all jumps. A fabric that [follows](Self::follow)
    /// the program's clock has that clock's time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.shared.order.time.now()
    }

    /// Its seed, if it has one. Use it for the other random choices of the test.
    #[must_use]
    pub fn seed(&self) -> Option<u64> {
        self.shared.order.seed()
    }

    /// Returns a summary of the calls until now, of their threads and their order. The trace is
    /// empty without a seed.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.shared.order.trace()
    }

    /// Returns the reason why another run with the same seed may differ from this one, or `None`.
    /// The reason is an event outside of the fabric's control: a thread waited in another library,
    /// entered a host by itself, or is on no host.
    #[must_use]
    pub fn why_not_repeatable(&self) -> Option<String> {
        self.shared.order.why_not()
    }

    /// Adds a host with one device, of the fabric's profile.
    ///
    /// # Panics
    ///
    /// If the process has no descriptor left.
    pub fn host(&self, name: &str) -> Host {
        let usual = self.shared.lock().usual.clone();
        self.host_with(name, usual)
    }

    /// Adds a host with another profile than the fabric's. Hosts with different devices can
    /// connect, except that iWARP connects to iWARP alone. The profile of the target decides in
    /// which order operations are executed.
    ///
    /// # Panics
    ///
    /// As [`host`](Self::host).
    pub fn host_with(&self, name: &str, profile: Profile) -> Host {
        let mut state = self.shared.lock();
        let index = state.hosts.len();
        state.hosts.push(name.to_owned());
        state.profiles.push(profile);
        drop(state);
        let nic = Nic::add(&self.shared, index);
        Host {
            shared: Arc::clone(&self.shared),
            index,
            nic,
        }
    }

    /// Returns the number of objects of each kind, on all hosts. Kinds without any are left out.
    ///
    /// The kinds: `pd`, `mr`, `comp_channel`, `cq`, `srq`, `qp`, `cm_id`. A `Peer` has a `pd` and a
    /// `cm_id`. On soft-iWARP a connection that was dropped before its answer is freed by a thread,
    /// up to 131 s later if the other host does not answer ([`sleep`](crate::sleep) until then).
    #[must_use]
    pub fn objects(&self) -> BTreeMap<&'static str, usize> {
        self.shared.lock_to_look().objects(None)
    }

    /// Returns the number of calls of each C function on all hosts. It counts the functions that
    /// can be made to [fail](Self::fail).
    #[must_use]
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.shared.lock_to_look().failures.calls()
    }

    /// Makes a call fail once, for instance
    /// `fabric.fail("ibv_reg_mr").on(&host).nth(3, Errno::NOMEM)`.
    ///
    /// `call` is the C name. Which call an operation makes:
    ///
    /// | | |
    /// |---|---|
    /// | making things | `rdma_create_id`, `ibv_alloc_pd`, `ibv_reg_mr`, `ibv_create_cq`, `ibv_create_srq`, `rdma_create_qp` |
    /// | connecting | `rdma_resolve_addr`, `rdma_resolve_route`, `rdma_connect`, `rdma_get_cm_event`, `rdma_init_qp_attr`, `rdma_accept` |
    /// | operations | `ibv_post_send`, `ibv_post_recv`, `ibv_post_srq_recv`; native flushes and atomic writes `ibv_wr_complete` |
    /// | completions | `ibv_poll_cq` (which returns no errno), `ibv_get_cq_event`, `ibv_req_notify_cq` |
    /// | ending | `rdma_disconnect`, `ibv_destroy_qp`, `ibv_destroy_cq`, `ibv_dereg_mr`, `rdma_destroy_id` |
    ///
    /// For a post `ENOMEM` means that the queue is full, as on a device: take another errno for a
    /// failure.
    ///
    /// # Panics
    ///
    /// If no call of that name can fail. The message lists the calls that can.
    #[must_use = "`next` or `nth` arms it"]
    pub fn fail(&self, call: &str) -> Failing {
        Failing::new(&self.shared, call)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
        if let Some(stay) = self.stay.get() {
            here::leave(*stay);
        }
    }
}

/// A host of a fabric. Clones are the same host.
#[derive(Clone, Debug)]
pub struct Host {
    shared: Arc<Shared>,
    index: usize,
    nic: Nic,
}

impl Host {
    /// Counts the objects on this host, as [`Fabric::objects`] does.
    #[must_use]
    pub fn objects(&self) -> BTreeMap<&'static str, usize> {
        self.shared.lock_to_look().objects(Some(self.index))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        self.shared.lock().hosts[self.index].clone()
    }

    /// Its name, in the middle of something: as no call.
    pub(crate) fn quiet_name(&self) -> String {
        self.shared.lock_quietly().hosts[self.index].clone()
    }

    /// The IPv4 address of its first device.
    #[must_use]
    pub fn addr(&self) -> Ipv4Addr {
        self.nic.addr
    }

    /// The IPv6 address of its first device.
    #[must_use]
    pub fn addr6(&self) -> Ipv6Addr {
        self.nic.addr6
    }

    /// Gives it one more device.
    ///
    /// # Panics
    ///
    /// If the process has no descriptor left.
    pub fn add_nic(&self) -> Nic {
        Nic::add(&self.shared, self.index)
    }

    pub(crate) fn is(&self, shared: &Weak<Shared>, index: usize) -> bool {
        ptr::eq(Arc::as_ptr(&self.shared), shared.as_ptr()) && self.index == index
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

/// A device of a host, with its addresses.
#[derive(Clone, Debug)]
pub struct Nic {
    name: String,
    addr: Ipv4Addr,
    addr6: Ipv6Addr,
}

impl Nic {
    fn add(shared: &Arc<Shared>, host: usize) -> Self {
        let (name, addr, addr6) =
            device::add(shared, host).expect("the process has descriptors for a device");
        Self { name, addr, addr6 }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its IPv4 address.
    #[must_use]
    pub fn addr(&self) -> Ipv4Addr {
        self.addr
    }

    /// Its IPv6 address.
    #[must_use]
    pub fn addr6(&self) -> Ipv6Addr {
        self.addr6
    }
}
