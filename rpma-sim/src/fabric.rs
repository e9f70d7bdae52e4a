//! What a test sees: a fabric, its hosts, and which host a thread is on.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use rustix::io::Errno;

use crate::call::Result;
use crate::device;
use crate::fail::Failing;
use crate::profile::Profile;
use crate::state::Shared;

/// How many fabrics are alive.
static ALIVE: AtomicUsize = AtomicUsize::new(0);

/// A network of hosts with RDMA devices, apart from all others.
///
/// Its hosts, and what was made in it, stay usable when it is dropped.
#[derive(Debug)]
pub struct Fabric {
    shared: Arc<Shared>,
}

impl Fabric {
    /// A fabric without hosts, all of whose devices are of one kind.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        ALIVE.fetch_add(1, Ordering::Relaxed);
        Self {
            shared: Shared::new(profile),
        }
    }

    /// Adds a host with one device.
    ///
    /// # Panics
    ///
    /// If the process has no descriptor left.
    pub fn host(&self, name: &str) -> Host {
        let mut state = self.shared.lock();
        let index = state.hosts.len();
        state.hosts.push(name.to_owned());
        drop(state);
        let nic = Nic::add(&self.shared, index);
        Host {
            shared: Arc::clone(&self.shared),
            index,
            nic,
        }
    }

    /// How many objects there are of each kind, on all hosts; kinds without any are left out.
    ///
    /// The kinds: `pd`, `mr`, `comp_channel`, `cq`, `srq`, `qp`, `cm_id`.
    #[must_use]
    pub fn objects(&self) -> BTreeMap<&'static str, usize> {
        self.shared.lock().objects()
    }

    /// How often each call was made on a host of it, by the names that C knows them by: of the calls that can be made to
    /// [fail](Self::fail).
    #[must_use]
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.shared.lock().failures.calls()
    }

    /// Lets a call fail once, for instance `fabric.fail("ibv_reg_mr").on(&host).nth(3, Errno::NOMEM)`.
    ///
    /// `call` is the name that C knows it by. Which call an operation makes:
    ///
    /// | | |
    /// |---|---|
    /// | making things | `rdma_create_id`, `ibv_alloc_pd`, `ibv_reg_mr`, `ibv_create_cq`, `ibv_create_srq`, `rdma_create_qp` |
    /// | connecting | `rdma_resolve_addr`, `rdma_resolve_route`, `rdma_connect`, `rdma_get_cm_event`, `rdma_accept` |
    /// | operations | `ibv_post_send`, `ibv_post_recv`, `ibv_post_srq_recv`; native flushes and atomic writes `ibv_wr_complete` |
    /// | completions | `ibv_poll_cq` (which tells no errno), `ibv_get_cq_event`, `ibv_req_notify_cq` |
    /// | ending | `rdma_disconnect`, `ibv_destroy_qp`, `ibv_destroy_cq`, `ibv_dereg_mr`, `rdma_destroy_id` |
    ///
    /// For a post `ENOMEM` says that the queue is full, as on a device: take another errno for a failure.
    ///
    /// # Panics
    ///
    /// If no call of that name can fail. The message says which can.
    pub fn fail(&self, call: &str) -> Failing {
        Failing::new(&self.shared, call)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
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
    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        self.shared.lock().hosts[self.index].clone()
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

    /// Puts the calling thread on this host, as it is since it was [started](Self::restart), until the returned value is dropped; then it is where it was before.
    pub fn enter(&self) -> Entered {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let life = self.shared.lock().life(self.index);
        let place = Place {
            number,
            life,
            host: self.clone(),
        };
        CURRENT.with_borrow_mut(|places| places.push(place));
        Entered {
            number,
            _of_this_thread: PhantomData,
        }
    }

    /// Starts a thread on this host.
    ///
    /// # Panics
    ///
    /// If the system has no thread.
    pub fn spawn<T: Send + 'static>(
        &self,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let host = self.clone();
        let thread = thread::Builder::new().name(self.name().replace('\0', ""));
        let thread = thread.spawn(move || {
            let _entered = host.enter();
            run()
        });
        thread.expect("the system has a thread")
    }

    /// The host that the calling thread is on: none if it has lost its power since.
    #[must_use]
    pub fn current() -> Option<Self> {
        let last = |places: &Vec<Place>| places.last().map(|last| (last.host.clone(), last.life));
        let (host, life) = CURRENT.with_borrow(last)?;
        let is_alive = host.shared.lock().life(host.index) == life;
        is_alive.then_some(host)
    }

    /// Whether it is this host of this fabric.
    pub(crate) fn is(&self, shared: &Weak<Shared>, index: usize) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.shared), shared.as_ptr()) && self.index == index
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

/// That a thread is on a host: see [`Host::enter`].
#[derive(Debug)]
#[must_use = "the thread is on the host until this is dropped"]
pub struct Entered {
    number: usize,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // At the end of a thread there may be nothing left.
        let _gone = CURRENT.try_with(|places| {
            places
                .borrow_mut()
                .retain(|place| place.number != self.number);
        });
    }
}

/// Where a thread is.
#[derive(Debug)]
struct Place {
    number: usize,
    /// How often the host had lost its power then.
    life: usize,
    host: Host,
}

thread_local! {
    /// The hosts that this thread is on, the innermost last.
    static CURRENT: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
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

/// The host that the calling thread is on, for what begins without any object.
pub(crate) fn current() -> Result<Host> {
    Host::current().ok_or(Errno::NODEV)
}

/// Why the calling thread finds no device.
#[doc(hidden)]
pub fn why_no_device() -> &'static str {
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
