//! Asynchronous events of devices (`ibv_get_async_event`): a queue pair in error, a port that goes
//! down, a device that fails.
//!
//! No thread waits for them. Every wait of this library looks at the device's descriptor beside its
//! own, in the same system call, and takes the events. They are logged, and a connection with a
//! queue pair in error takes no more operations. Events are acknowledged as soon as they are read,
//! so that destroying an object, which waits for the acknowledgement of its events, never waits.
//! They are reported later, without any lock: the program's logger may make any call.
//!
//! The device is open once in a process. Other code that uses it, a C library for instance, gets no
//! asynchronous events beside this library, and finds the descriptor non-blocking.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CStr;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use rpma_sys as sys;

use super::nonblocking::set_nonblocking;
use crate::clock::undivided;

/// Held while an event is read and acknowledged: of one device, each event goes to one thread.
static TAKING: Mutex<()> = Mutex::new(());

/// The call to make when a queue pair is in error, with the device's description of the error.
pub(crate) type OnError = Arc<dyn Fn(&dyn fmt::Display) + Send + Sync>;

/// The queue pairs of this library, by their addresses: other code of the process may have queue
/// pairs of the same device.
static QUEUE_PAIRS: LazyLock<Mutex<HashMap<usize, Watch>>> = LazyLock::new(Mutex::default);

/// The state that the events of a queue pair change.
#[derive(Clone)]
struct Watch {
    on_error: OnError,
    last_receive: Arc<AtomicBool>,
}

/// A queue pair with errors that are reported, until this is dropped.
pub(super) struct WatchedQueuePair {
    queue_pair: usize,
    last_receive: Arc<AtomicBool>,
}

impl WatchedQueuePair {
    pub(super) fn new(queue_pair: NonNull<sys::ibv_qp>, on_error: OnError) -> Self {
        let queue_pair = queue_pair.addr().get();
        let last_receive = Arc::new(AtomicBool::new(false));
        let watch = Watch {
            on_error,
            last_receive: Arc::clone(&last_receive),
        };
        with_queue_pairs(|all| all.insert(queue_pair, watch));
        Self {
            queue_pair,
            last_receive,
        }
    }

    /// Whether the device has reported that the queue pair, which has failed, has completed all
    /// receives that it took from a shared queue.
    pub(super) fn had_last_receive(&self) -> bool {
        self.last_receive.load(Ordering::Acquire)
    }
}

impl fmt::Debug for WatchedQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedQueuePair").finish_non_exhaustive()
    }
}

impl Drop for WatchedQueuePair {
    fn drop(&mut self) {
        with_queue_pairs(|all| all.remove(&self.queue_pair));
    }
}

fn with_queue_pairs<T>(run: impl FnOnce(&mut HashMap<usize, Watch>) -> T) -> T {
    // No code panics while it is locked.
    run(&mut QUEUE_PAIRS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// An event of a device itself, which concerns more than one connection:
/// [`Happened::Device`](crate::wait::Happened::Device).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceEventKind {
    /// This port of the device went down (`IBV_EVENT_PORT_ERR`).
    PortDown(u32),
    /// This port of the device came up (`IBV_EVENT_PORT_ACTIVE`).
    PortUp(u32),
    /// The device failed (`IBV_EVENT_DEVICE_FATAL`). Drop everything that belongs to it.
    Fatal,
    /// The device is gone, and reports no more events.
    Gone,
    /// Another event, by the text of `ibv_event_type_str`: a change of addresses or keys, or the
    /// failure of a completion queue or of a shared receive queue.
    Other(&'static str),
}

/// The call to make with an event of a device.
pub(crate) type OnDeviceEvent = Arc<dyn Fn(DeviceEventKind) + Send + Sync>;

/// The callbacks for each device, by the addresses of their contexts.
static WATCHES: Mutex<Vec<(usize, OnDeviceEvent)>> = Mutex::new(Vec::new());

/// A device with events that are handed to a callback, until this is dropped.
pub(crate) struct DeviceWatch(OnDeviceEvent);

impl DeviceWatch {
    pub(super) fn new(context: *mut sys::ibv_context, on_event: OnDeviceEvent) -> Self {
        with_watches(|all| all.push((context.addr(), Arc::clone(&on_event))));
        Self(on_event)
    }
}

impl fmt::Debug for DeviceWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceWatch").finish_non_exhaustive()
    }
}

impl Drop for DeviceWatch {
    fn drop(&mut self) {
        with_watches(|all| all.retain(|(_, on_event)| !Arc::ptr_eq(on_event, &self.0)));
    }
}

fn with_watches<T>(run: impl FnOnce(&mut Vec<(usize, OnDeviceEvent)>) -> T) -> T {
    // No code panics while it is locked.
    run(&mut WATCHES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The events of an open device. The events that were taken are reported when this is dropped, or
/// before.
pub(super) struct DeviceEvents<'device> {
    context: NonNull<sys::ibv_context>,
    taken: RefCell<Vec<Event>>,
    _open: PhantomData<&'device ()>,
}

impl<'device> DeviceEvents<'device> {
    /// # Safety
    ///
    /// The device is open for as long as `'device` lasts.
    pub(super) unsafe fn of(context: NonNull<sys::ibv_context>) -> Self {
        Self {
            context,
            taken: RefCell::default(),
            _open: PhantomData,
        }
    }

    /// Readable when there is an event.
    pub(super) fn fd(&self) -> BorrowedFd<'device> {
        // SAFETY: by `# Safety` of `of` the device is open for `'device`; the field never changes.
        let fd = unsafe { (*self.context.as_ptr()).async_fd };
        // SAFETY: the descriptor is open as long as the device, and so for `'device`: see `of`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    #[cold]
    pub(super) fn take_all(&self) {
        undivided(|| self.take_each());
    }

    fn take_each(&self) {
        let _guard = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
        // For good: other code may have taken them since, and a read that blocks would block us
        // all.
        if set_nonblocking(self.fd()).is_err() {
            return;
        }
        loop {
            let mut event = sys::ibv_async_event {
                element: sys::ibv_async_event__bindgen_ty_1 { port_num: 0 },
                event_type: sys::ibv_event_type::IBV_EVENT_CQ_ERR,
            };
            // SAFETY: by `# Safety` of `of` the device is open. The call fills the event, or leaves
            // it unchanged if there is none.
            if unsafe { sys::ibv_get_async_event(self.context.as_ptr(), &raw mut event) } != 0 {
                return;
            }
            let taken = Event::of(&event, self.context.addr().get());
            self.taken.borrow_mut().push(taken);
            // SAFETY: the event was taken and is acknowledged once.
            unsafe { sys::ibv_ack_async_event(&raw mut event) };
        }
    }

    /// Reports the events that were taken. For a caller that holds no lock.
    pub(super) fn tell(&self) {
        for event in self.taken.take() {
            event.tell();
        }
    }
}

impl Drop for DeviceEvents<'_> {
    fn drop(&mut self) {
        self.tell();
    }
}

/// The queue pair that an event is about, if it is ours.
///
/// # Safety
///
/// The event is one of a queue pair.
unsafe fn watch_of(event: &sys::ibv_async_event) -> Option<Watch> {
    // SAFETY: by `# Safety` the event has a queue pair; only its address is used.
    let queue_pair = unsafe { event.element.qp }.addr();
    with_queue_pairs(|all| all.get(&queue_pair).cloned())
}

/// The part of an event that stays after its acknowledgement.
struct Event {
    kind: sys::ibv_event_type,
    port: Option<i32>,
    /// The callback of the queue pair, if it is ours.
    on_error: Option<OnError>,
    /// The address of the device's context.
    context: usize,
}

impl Event {
    /// The event is not acknowledged yet: its queue pair exists.
    fn of(event: &sys::ibv_async_event, context: usize) -> Self {
        use sys::ibv_event_type as kinds;
        let (mut port, mut on_error) = (None, None);
        match event.event_type {
            kinds::IBV_EVENT_QP_FATAL
            | kinds::IBV_EVENT_QP_REQ_ERR
            | kinds::IBV_EVENT_QP_ACCESS_ERR => {
                // SAFETY: `ibv_get_async_event(3)` gives events of these kinds a queue pair.
                on_error = unsafe { watch_of(event) }.map(|watch| watch.on_error);
            }
            kinds::IBV_EVENT_QP_LAST_WQE_REACHED => {
                // SAFETY: `ibv_get_async_event(3)` gives events of this kind a queue pair.
                if let Some(watch) = unsafe { watch_of(event) } {
                    watch.last_receive.store(true, Ordering::Release);
                }
            }
            kinds::IBV_EVENT_PORT_ERR | kinds::IBV_EVENT_PORT_ACTIVE => {
                // SAFETY: `ibv_get_async_event(3)` gives events of these kinds the number of a
                // port.
                port = Some(unsafe { event.element.port_num });
            }
            _ => {}
        }
        let kind = event.event_type;
        Self {
            kind,
            port,
            on_error,
            context,
        }
    }

    /// The meaning of the event for the device. `None` for events of one queue pair and for those
    /// that are no failure of a queue.
    fn of_device(&self) -> Option<DeviceEventKind> {
        use sys::ibv_event_type as kinds;
        let port = self.port.map(|port| u32::try_from(port).unwrap_or(0));
        match (self.kind, port) {
            (kinds::IBV_EVENT_PORT_ERR, Some(port)) => Some(DeviceEventKind::PortDown(port)),
            (kinds::IBV_EVENT_PORT_ACTIVE, Some(port)) => Some(DeviceEventKind::PortUp(port)),
            (kinds::IBV_EVENT_DEVICE_FATAL, _) => Some(DeviceEventKind::Fatal),
            (
                kinds::IBV_EVENT_CQ_ERR
                | kinds::IBV_EVENT_SRQ_ERR
                | kinds::IBV_EVENT_WQ_FATAL
                | kinds::IBV_EVENT_LID_CHANGE
                | kinds::IBV_EVENT_PKEY_CHANGE
                | kinds::IBV_EVENT_GID_CHANGE
                | kinds::IBV_EVENT_SM_CHANGE
                | kinds::IBV_EVENT_CLIENT_REREGISTER,
                _,
            ) => Some(DeviceEventKind::Other(text(self.kind))),
            _ => None,
        }
    }

    fn tell(self) {
        use sys::ibv_event_type as kinds;
        if let Some(kind) = self.of_device() {
            let all = with_watches(|all| all.clone());
            for (context, on_event) in all {
                if context == self.context {
                    on_event(kind);
                }
            }
        }
        let what = Name(self.kind);
        if let Some(on_error) = self.on_error {
            on_error(&what);
        } else if let Some(port) = self.port {
            log::warn!("{what} (port {port})");
        } else {
            match self.kind {
                kinds::IBV_EVENT_DEVICE_FATAL
                | kinds::IBV_EVENT_CQ_ERR
                | kinds::IBV_EVENT_SRQ_ERR
                | kinds::IBV_EVENT_WQ_FATAL => log::error!("{what}"),
                _ => log::debug!("{what}"),
            }
        }
    }
}

/// The name of an event's kind.
struct Name(sys::ibv_event_type);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "asynchronous event of the device: {}", text(self.0))
    }
}

fn text(kind: sys::ibv_event_type) -> &'static str {
    // SAFETY: the function takes any number, and returns a constant text.
    let text = unsafe { sys::ibv_event_type_str(kind) };
    // SAFETY: it is NUL-terminated, and lives as long as the library, which is never unloaded.
    let text: &'static CStr = unsafe { CStr::from_ptr(text) };
    text.to_str().unwrap_or("an event whose name is no text")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// No device here reports errors of queue pairs: soft-RoCE never does.
    #[test]
    fn an_error_is_told_to_the_connection_of_that_queue_pair() {
        let told = Arc::new(AtomicU32::new(0));
        let watch = |address: usize| {
            let told = Arc::clone(&told);
            let on_error = Arc::new(move |_: &dyn fmt::Display| {
                told.fetch_add(1, Ordering::Relaxed);
            });
            let address = std::ptr::without_provenance_mut(address);
            WatchedQueuePair::new(NonNull::new(address).expect("not 0"), on_error)
        };
        let tell = |kind, address| {
            let qp = std::ptr::without_provenance_mut(address);
            let element = sys::ibv_async_event__bindgen_ty_1 { qp };
            let event = sys::ibv_async_event {
                element,
                event_type: kind,
            };
            Event::of(&event, 0).tell();
            told.swap(0, Ordering::Relaxed)
        };
        let (fatal, established) = (
            sys::ibv_event_type::IBV_EVENT_QP_FATAL,
            sys::ibv_event_type::IBV_EVENT_COMM_EST,
        );
        let watched = watch(8);
        let last = sys::ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED;
        assert_eq!(tell(last, 16), 0, "of another queue pair");
        assert!(!watched.had_last_receive());
        assert_eq!(tell(last, 8), 0, "is no error");
        assert!(watched.had_last_receive());
        assert_eq!(tell(fatal, 8), 1);
        assert_eq!(tell(established, 8), 0, "is no error");
        assert_eq!(tell(fatal, 16), 0, "of a C library, say");
        drop(watched);
        assert_eq!(tell(fatal, 8), 0);
    }

    /// Each wait gets the events of its own devices, whichever thread took them.
    #[test]
    fn an_event_of_a_device_reaches_each_watch_of_that_device() {
        let watch = |address: usize| {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let sees = Arc::clone(&seen);
            let on_event = Arc::new(move |kind| sees.lock().expect("no panic").push(kind));
            let context = std::ptr::without_provenance_mut(address);
            (DeviceWatch::new(context, on_event), seen)
        };
        let tell = |kind, context| {
            let element = sys::ibv_async_event__bindgen_ty_1 { port_num: 1 };
            let event = sys::ibv_async_event {
                element,
                event_type: kind,
            };
            Event::of(&event, context).tell();
        };
        let (first, second, other) = (watch(1008), watch(1008), watch(1016));
        tell(sys::ibv_event_type::IBV_EVENT_PORT_ERR, 1008);
        drop(second.0);
        tell(sys::ibv_event_type::IBV_EVENT_PORT_ACTIVE, 1008);
        tell(sys::ibv_event_type::IBV_EVENT_SQ_DRAINED, 1008);
        let (down, up) = (DeviceEventKind::PortDown(1), DeviceEventKind::PortUp(1));
        assert_eq!(*first.1.lock().expect("no panic"), [down, up]);
        assert_eq!(*second.1.lock().expect("no panic"), [down]);
        assert_eq!(*other.1.lock().expect("no panic"), []);
    }
}
