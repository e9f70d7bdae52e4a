//! The fabric and the host that the calling thread is on, and the device for which it makes an id.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::io::Errno;

use crate::call::Result;
use crate::fabric::{self, Host};
use crate::handle::of_context;
use crate::order::ThreadEntry;
use crate::state::{Shared, State};
use crate::thread::{JoinHandle, ThreadOfFabric};
use crate::types::ibv_context;

impl Host {
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

    fn enter_as(&self, member: Option<Arc<ThreadEntry>>) -> Entered {
        Entered {
            number: put(self.shared(), Some(self.clone()), None, member),
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
        let member = ThreadEntry::new(self.shared(), name.clone(), false, None);
        let of = ThreadOfFabric {
            shared: Arc::clone(self.shared()),
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
        let (host, life) = innermost()?;
        let is_alive = host.shared().lock_quietly().life(host.index()) == life;
        is_alive.then_some(host)
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

/// A thread's stay on a fabric, and on a host of it.
struct Stay {
    number: usize,
    host: Option<Host>,
    /// How often the host had lost its power then.
    life: usize,
    /// The thread, as a member of its fabric. The stays of a thread on one fabric share it.
    member: Arc<ThreadEntry>,
}

impl Stay {
    fn is_in(&self, shared: &Shared) -> bool {
        ptr::eq(self.member.shared.as_ptr(), shared)
    }
}

thread_local! {
    /// The stays of this thread, the innermost one last.
    static STAYS: RefCell<Vec<Stay>> = const { RefCell::new(Vec::new()) };
}

/// The host that the calling thread has entered last, and the host's life then.
fn innermost() -> Option<(Host, usize)> {
    STAYS.with_borrow(|stays| {
        let stay = stays.iter().rev().find(|stay| stay.host.is_some())?;
        Some((stay.host.clone()?, stay.life))
    })
}

/// Puts the calling thread on a fabric, and returns the number of its stay. Without a life the host
/// is as it is now.
pub(crate) fn put(
    shared: &Arc<Shared>,
    host: Option<Host>,
    life: Option<usize>,
    member: Option<Arc<ThreadEntry>>,
) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let known = STAYS.with_borrow(|stays| {
        let stay = stays.iter().find(|stay| stay.is_in(shared));
        stay.map(|stay| Arc::clone(&stay.member))
    });
    let begins = known.is_none();
    let member = known.or(member).unwrap_or_else(|| {
        let thread = thread::current();
        ThreadEntry::new(
            shared,
            thread.name().unwrap_or("without a name").to_owned(),
            true,
            None,
        )
    });
    let thread = member.number;
    let life = life.unwrap_or_else(|| {
        host.as_ref().map_or(0, |host| {
            let state = host.shared().lock_quietly();
            state.life(host.index())
        })
    });
    let stay = Stay {
        number,
        host,
        life,
        member,
    };
    STAYS.with_borrow_mut(|stays| stays.push(stay));
    if begins {
        shared.begin(thread);
    }
    number
}

/// A thread that the calling one is about to start, on the same fabric and host.
pub(crate) struct Birth {
    host: Option<Host>,
    life: usize,
    shared: Arc<Shared>,
    member: Arc<ThreadEntry>,
}

/// If the calling thread is on a host or on a fabric, a thread that will be there as well.
pub(crate) fn birth(name: Option<String>, scope: Option<usize>) -> Option<Birth> {
    let (host, life, shared) = STAYS
        .try_with(|stays| {
            let stays = stays.borrow();
            let on_host = stays.iter().rev().find(|stay| stay.host.is_some());
            let stay = on_host.or(stays.last())?;
            let shared = stay.member.shared.upgrade()?;
            Some((stay.host.clone(), stay.life, shared))
        })
        .ok()??;
    let name = name
        .or_else(|| host.as_ref().map(Host::quiet_name))
        .unwrap_or_else(|| "without a name".to_owned());
    let member = ThreadEntry::new(&shared, name, false, scope);
    Some(Birth {
        host,
        life,
        shared,
        member,
    })
}

impl Birth {
    pub(crate) fn of(&self) -> ThreadOfFabric {
        ThreadOfFabric {
            shared: Arc::clone(&self.shared),
            number: self.member.number,
        }
    }

    pub(crate) fn enter(self) -> Entered {
        Entered {
            number: put(&self.shared, self.host, Some(self.life), Some(self.member)),
            _of_this_thread: PhantomData,
        }
    }
}

/// Ends a stay of the calling thread, if it has not ended.
pub(crate) fn leave(number: usize) {
    // At the end of a thread the list may be gone.
    let gone = STAYS.try_with(|stays| {
        let mut stays = stays.borrow_mut();
        let at = stays.iter().position(|stay| stay.number == number);
        at.map(|at| stays.remove(at))
    });
    // It may end here, with the borrow over.
    drop(gone);
}

pub(crate) fn thread_in(shared: &Shared) -> Option<u64> {
    let stay = STAYS.try_with(|stays| {
        let stays = stays.borrow();
        let stay = stays.iter().find(|stay| stay.is_in(shared));
        stay.map(|stay| stay.member.number)
    });
    stay.ok().flatten()
}

pub(crate) fn host_in(shared: &Shared) -> Option<usize> {
    let host = STAYS.try_with(|stays| {
        let stays = stays.borrow();
        let mut stays = stays.iter().rev().filter(|stay| stay.is_in(shared));
        stays.find_map(|stay| stay.host.as_ref().map(Host::index))
    });
    host.ok().flatten()
}

pub(crate) fn place() -> Option<(Arc<Shared>, u64)> {
    let stay = STAYS.try_with(|stays| {
        let stays = stays.borrow();
        let member = &stays.last()?.member;
        Some((member.shared.upgrade()?, member.number))
    });
    stay.ok().flatten()
}

/// The fabrics that the calling thread is on, also in the middle of a panic.
pub(crate) fn fabrics() -> Vec<Arc<Shared>> {
    let fabrics = STAYS.try_with(|stays| {
        let stays = stays.try_borrow().ok()?;
        let fabrics = stays.iter().filter_map(|stay| stay.member.shared.upgrade());
        Some(fabrics.collect())
    });
    fabrics.ok().flatten().unwrap_or_default()
}

pub(crate) fn calls(call: &'static str) {
    let _gone = STAYS.try_with(|stays| {
        if let Some(stay) = stays.borrow().last() {
            stay.member.calls(call);
        }
    });
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
    // SAFETY: by `# Safety` the device is of this crate and open.
    let device = unsafe { of_context(device) };
    let _before = Before(FOR_DEVICE.replace(Some(device)));
    make()
}

/// The host on which the calling thread makes ids: that of a device, or the thread's own.
pub(crate) struct HostOfIds {
    pub(crate) shared: Arc<Shared>,
    of: Whose,
}

enum Whose {
    Nic(usize),
    Host { index: usize, life: usize },
}

impl HostOfIds {
    /// Before the call's step.
    pub(crate) fn find() -> Result<Self> {
        if let Some((shared, nic)) = FOR_DEVICE.with_borrow(Option::clone) {
            return Ok(Self {
                shared,
                of: Whose::Nic(nic),
            });
        }
        let (host, life) = innermost().ok_or(Errno::NODEV)?;
        Ok(Self {
            shared: Arc::clone(host.shared()),
            of: Whose::Host {
                index: host.index(),
                life,
            },
        })
    }

    /// The host, if the thread's program lives. The caller has locked the state: the action at the
    /// call's step may have killed the program.
    pub(crate) fn alive(&self, state: &State) -> Result<usize> {
        let (host, is_alive) = match self.of {
            Whose::Nic(nic) => (state.nics[nic].host, !state.nics[nic].is_dead()),
            Whose::Host { index, life } => (index, state.life(index) == life),
        };
        is_alive.then_some(host).ok_or(Errno::NODEV)
    }
}

/// Why the calling thread finds no device.
#[doc(hidden)]
pub fn why_no_device() -> &'static [&'static str; 2] {
    if FOR_DEVICE.with_borrow(Option::is_some) {
        let found = HostOfIds::find();
        return match found.and_then(|of| of.alive(&of.shared.lock_quietly())) {
            Ok(_) => &["The host of the peer has devices", ""],
            Err(_) => &[
                "The simulated host of the peer's device has lost its power, or its programs were killed, since the \
                 device was opened",
                "open it again, and make another Peer",
            ],
        };
    }
    if Host::current().is_some() {
        &["The thread is on a simulated host, which has devices", ""]
    } else if !fabric::is_any_alive() {
        &[
            "This program is built with rpma's feature `sim`, and no simulated Fabric is alive",
            "make one (rpma::sim::Fabric), or build without that feature for real devices",
        ]
    } else {
        &[
            "This thread is on no simulated host, or on one that has lost its power since",
            "start it with rpma::sim::Host::spawn, or call Host::enter in it",
        ]
    }
}
