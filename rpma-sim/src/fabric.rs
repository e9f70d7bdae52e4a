//! The test's view: a fabric, its hosts, and the host of a thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Instant;

use rustix::io::Errno;

use crate::call::Result;
use crate::device;
use crate::fail::Failing;
use crate::handle::of_context;
use crate::order::{Member, Trace};
use crate::profile::Profile;
use crate::state::Shared;
use crate::thread::{JoinHandle, Of};
use crate::types::ibv_context;

/// How many fabrics are alive.
static ALIVE: AtomicUsize = AtomicUsize::new(0);

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

/// A fabric is there.
#[derive(Debug, Default)]
struct Alive {
    /// The place of the thread that has made it, if there is a seed, or that has let it follow a
    /// clock.
    place: OnceLock<usize>,
}

impl Fabric {
    /// A fabric without hosts. All its devices are of one kind.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self::of(profile, None)
    }

    /// Makes a fabric on which the seed chooses the order of threads: see
    /// [`repeatable`](crate::repeatable), which makes one for a test. The calling thread is one of
    /// them, until the fabric is dropped.
    #[must_use]
    pub fn seeded(profile: Profile, seed: u64) -> Self {
        Self::of(profile, Some(seed))
    }

    fn of(profile: Profile, seed: Option<u64>) -> Self {
        ALIVE.fetch_add(1, Ordering::Relaxed);
        let shared = Shared::new(profile, seed);
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
        let place = || put(&self.shared, None, None, None);
        self.alive.place.get_or_init(place);
    }

    /// Lets the fabric's clock jump over waits inside of `rpma`, and in [`sync`](crate::sync) and
    /// [`thread`](crate::thread). Everything else is real time: [`std::thread::sleep`],
    /// [`Instant::now`] in the program, other locks and channels, `poll` and `epoll` in the
    /// program, and threads that are on no host.
    ///
    /// A thread on a host that waits in one of these ways counts as busy. While a thread is busy,
    /// the fabric's clock runs like the system's. A thread on no host never keeps the clock from
    /// jumping, and its limits are real time. So stay on a host while you start threads.
    ///
    /// From now on, the clock jumps when all threads on hosts of the fabric wait inside `rpma` or
    /// these modules, and no event is there to take. It jumps to the end of the next limit, or to
    /// the next retry of a device. So an hour's limit passes at once. [`now`](Self::now) returns
    /// the fabric's time.
    ///
    /// One thread panics if all of them wait without a limit, no event can come, and no thread
    /// calls the fabric for 5 seconds of real time. Its message has the places of all threads.
    ///
    /// A fabric with a [seed](Self::seeded) does that from the beginning, and so does one that
    /// [follows](Self::follow) the program's clock.
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

    /// Returns the reason for which the same seed may give another run, if there is one. Events
    /// outside of the fabric's control are such reasons: a thread waited in another library,
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
    /// connect. The order of operations is that of the device that executes them.
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
    /// The kinds: `pd`, `mr`, `comp_channel`, `cq`, `srq`, `qp`, `cm_id`.
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

    /// Lets a call fail once, for instance
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
        if let Some(place) = self.place.get() {
            leave(*place);
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
    /// How many objects there are of each kind on this host: as [`Fabric::objects`].
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
    fn quiet_name(&self) -> String {
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

    /// Puts the calling thread on this host, until the returned value is dropped. Then the thread
    /// is where it was before. After a [restart](Self::restart) of the host, a thread must enter
    /// it again.
    ///
    /// Two calls use the host of the thread: opening a device (`Device::from_addr`) and opening
    /// persistent memory (`PmemMap::open`). All other calls use the host of their objects. An
    /// endpoint or a connection is on the host of its `Peer`, whichever thread makes it. So both
    /// ends of a connection can be tasks of one thread.
    pub fn enter(&self) -> Entered {
        self.enter_as(None)
    }

    fn enter_as(&self, member: Option<Arc<Member>>) -> Entered {
        Entered {
            number: put(&self.shared, Some(self.clone()), None, member),
            _of_this_thread: PhantomData,
        }
    }

    /// Starts a thread on this host. The fabric controls its waits from the start.
    ///
    /// # Panics
    ///
    /// If the system cannot start a thread.
    pub fn spawn<T: Send + 'static>(
        &self,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let (host, name) = (self.clone(), self.name().replace('\0', ""));
        let member = Member::new(&self.shared, name.clone(), false, None);
        let of = Of {
            shared: Arc::clone(&self.shared),
            number: member.number,
        };
        let thread = thread::Builder::new().name(name).spawn(move || {
            let _entered = host.enter_as(Some(member));
            run()
        });
        let thread = thread.expect("the system has a thread");
        JoinHandle::new(thread, Some(of))
    }

    /// Returns the host that the calling thread is on. `None` if the thread is on no host, or if
    /// the host has lost its power since the thread entered it.
    #[must_use]
    pub fn current() -> Option<Self> {
        let here = |places: &Vec<Place>| {
            let place = places.iter().rev().find(|place| place.host.is_some())?;
            Some((place.host.clone()?, place.life))
        };
        let (host, life) = PLACES.with_borrow(here)?;
        let is_alive = host.shared.lock_quietly().life(host.index) == life;
        is_alive.then_some(host)
    }

    /// Whether it is this host of this fabric.
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

/// Keeps a thread on a host until it is dropped: see [`Host::enter`].
#[derive(Debug)]
#[must_use = "the thread is on the host until this is dropped"]
pub struct Entered {
    number: usize,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        leave(self.number);
    }
}

/// Where a thread is.
struct Place {
    number: usize,
    host: Option<Host>,
    /// How often the host had lost its power then.
    life: usize,
    /// The thread, as a member of its fabric. A thread's places on one fabric share it.
    member: Arc<Member>,
}

impl Place {
    fn is_in(&self, shared: &Shared) -> bool {
        ptr::eq(self.member.shared.as_ptr(), shared)
    }
}

thread_local! {
    /// Where this thread is, the innermost place last.
    static PLACES: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
}

/// Puts the calling thread on a fabric; the number of its place. Without a life the host is as it
/// is now.
fn put(
    shared: &Arc<Shared>,
    host: Option<Host>,
    life: Option<usize>,
    member: Option<Arc<Member>>,
) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let known = PLACES.with_borrow(|places| {
        let place = places.iter().find(|place| place.is_in(shared));
        place.map(|place| Arc::clone(&place.member))
    });
    let begins = known.is_none();
    let member = known.or(member).unwrap_or_else(|| {
        let thread = thread::current();
        Member::new(
            shared,
            thread.name().unwrap_or("without a name").to_owned(),
            true,
            None,
        )
    });
    let thread = member.number;
    let life = life.unwrap_or_else(|| {
        host.as_ref().map_or(0, |host| {
            let state = host.shared.lock_quietly();
            state.life(host.index)
        })
    });
    let place = Place {
        number,
        host,
        life,
        member,
    };
    PLACES.with_borrow_mut(|places| places.push(place));
    if begins {
        shared.begin(thread);
    }
    number
}

/// A thread that the calling one is about to start, in the same place.
pub(crate) struct Birth {
    host: Option<Host>,
    life: usize,
    shared: Arc<Shared>,
    member: Arc<Member>,
}

/// If the calling thread is on a host or on a fabric, a thread that will be there as well.
pub(crate) fn birth(name: Option<String>, scope: Option<usize>) -> Option<Birth> {
    let (host, life, shared) = PLACES
        .try_with(|places| {
            let places = places.borrow();
            let on_host = places.iter().rev().find(|place| place.host.is_some());
            let place = on_host.or(places.last())?;
            let shared = place.member.shared.upgrade()?;
            Some((place.host.clone(), place.life, shared))
        })
        .ok()??;
    let name = name
        .or_else(|| host.as_ref().map(Host::quiet_name))
        .unwrap_or_else(|| "without a name".to_owned());
    let member = Member::new(&shared, name, false, scope);
    Some(Birth {
        host,
        life,
        shared,
        member,
    })
}

impl Birth {
    pub(crate) fn of(&self) -> Of {
        Of {
            shared: Arc::clone(&self.shared),
            number: self.member.number,
        }
    }

    /// The calling thread is the one that was started.
    pub(crate) fn enter(self) -> Entered {
        Entered {
            number: put(&self.shared, self.host, Some(self.life), Some(self.member)),
            _of_this_thread: PhantomData,
        }
    }
}

/// Takes the calling thread from a place, if it is there.
fn leave(number: usize) {
    // At the end of a thread the list may be gone.
    let gone = PLACES.try_with(|places| {
        let mut places = places.borrow_mut();
        let at = places.iter().position(|place| place.number == number);
        at.map(|at| places.remove(at))
    });
    // It may end here, with the borrow over.
    drop(gone);
}

/// The number that the calling thread has in a fabric, if it is there.
pub(crate) fn thread_in(shared: &Shared) -> Option<u64> {
    let place = PLACES.try_with(|places| {
        let places = places.borrow();
        let place = places.iter().find(|place| place.is_in(shared));
        place.map(|place| place.member.number)
    });
    place.ok().flatten()
}

/// The fabric that the calling thread is on, and its number there.
pub(crate) fn place() -> Option<(Arc<Shared>, u64)> {
    let place = PLACES.try_with(|places| {
        let places = places.borrow();
        let member = &places.last()?.member;
        Some((member.shared.upgrade()?, member.number))
    });
    place.ok().flatten()
}

/// The calling thread makes a call.
pub(crate) fn calls(call: &'static str) {
    let _gone = PLACES.try_with(|places| {
        if let Some(place) = places.borrow().last() {
            place.member.calls(call);
        }
    });
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

thread_local! {
    /// The device that an id is made for.
    static FOR_DEVICE: RefCell<Option<(Arc<Shared>, usize)>> = const { RefCell::new(None) };
}

/// Runs `make`. The ids and event channels that it makes are on the host of an open device,
/// wherever the calling thread is. librdmacm has no such call, because a process is on one host.
///
/// # Safety
///
/// The device was opened by this crate, and is still open.
#[doc(hidden)]
pub unsafe fn for_device<T>(device: *mut ibv_context, make: impl FnOnce() -> T) -> T {
    struct Before(Option<(Arc<Shared>, usize)>);
    impl Drop for Before {
        fn drop(&mut self) {
            // The old value is dropped with the borrow over.
            let _own = FOR_DEVICE.replace(self.0.take());
        }
    }
    // SAFETY: the caller promises it.
    let device = unsafe { of_context(device) };
    let _before = Before(FOR_DEVICE.replace(Some(device)));
    make()
}

/// The host of the device that the calling thread makes an id for; otherwise the one that the
/// thread is on.
pub(crate) fn host_of_ids() -> Result<(Arc<Shared>, usize)> {
    match FOR_DEVICE.with_borrow(Option::clone) {
        Some((shared, nic)) => {
            let state = shared.lock_quietly();
            let host = (!state.nics[nic].is_dead()).then_some(state.nics[nic].host);
            drop(state);
            Ok((shared, host.ok_or(Errno::NODEV)?))
        }
        None => {
            let host = Host::current().ok_or(Errno::NODEV)?;
            Ok((host.shared, host.index))
        }
    }
}

/// Why the calling thread finds no device.
#[doc(hidden)]
pub fn why_no_device() -> &'static str {
    if FOR_DEVICE.with_borrow(Option::is_some) {
        return match host_of_ids() {
            Ok(_) => "The host of the peer has devices",
            Err(_) => {
                "The simulated host of the peer's device has lost its power, or its programs were killed, since the \
                 device was opened: open it again, and make another Peer"
            }
        };
    }
    if Host::current().is_some() {
        "The thread is on a simulated host, which has devices"
    } else if ALIVE.load(Ordering::Relaxed) == 0 {
        "This program is built with rpma's feature `sim`, and no simulated Fabric is alive: make one \
         (rpma::sim::Fabric), or build without that feature for real devices"
    } else {
        "This thread is on no simulated host, or on one that has lost its power since: start it with \
         rpma::sim::Host::spawn, or call Host::enter in it"
    }
}
