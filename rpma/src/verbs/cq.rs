//! Completion channels and completion queues (`struct ibv_comp_channel`, `struct ibv_cq`).

use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rpma_sys as sys;
use rustix::event::PollFd;
use rustix::io::Errno;

use super::deadline::Deadline;
use super::device_events::{DeviceWatch, OnDeviceEvent};
use super::nonblocking::let_block;
use super::waiting::{Beside, Turns, any_readable, readable_now, take_event};
use super::{Context, Wc, check_errno, check_non_null, log_leak};
use crate::bell::Bell;
use crate::error::{Error, Result};
use crate::lock::{Held, Lock};

/// Where the completion events of one or more queues arrive.
///
/// Its lock serialises taking an event with destroying a queue. So an event is never taken for a
/// queue that is being destroyed, and destroying never waits for an acknowledgement: each event is
/// acknowledged before the lock is released.
pub(crate) struct CompChannel {
    raw: NonNull<sys::ibv_comp_channel>,
    turns: Turns,
    /// The descriptor was made non-blocking here. Written under the lock.
    is_nonblocking: AtomicBool,
    context: Arc<Context>,
    released: bool,
}

// SAFETY: no thread owns a channel. Of the fields behind `raw` only `refcnt` changes, with the
// mutex of the context held (`ibv_create_cq`, `ibv_destroy_cq`).
unsafe impl Send for CompChannel {}
// SAFETY: events are taken with `turns` held, and `is_nonblocking` is atomic. The other fields
// change only in `release`, which takes `&mut self`.
unsafe impl Sync for CompChannel {}

impl CompChannel {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        // SAFETY: `context` is borrowed, and its id keeps it open.
        let raw = unsafe { sys::ibv_create_comp_channel(context.as_ptr()) };
        let raw = check_non_null("ibv_create_comp_channel", raw)?;
        Ok(Arc::new(Self {
            raw,
            turns: Turns::default(),
            is_nonblocking: AtomicBool::new(false),
            context: Arc::clone(context),
            released: false,
        }))
    }

    /// Destroys the channel if this is its last owner. A failure leaves it open.
    pub(crate) fn destroy(self: Arc<Self>) -> Result<()> {
        Arc::into_inner(self).map_or(Ok(()), |mut channel| channel.release())
    }

    fn release(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.released, true) {
            return Ok(());
        }
        // SAFETY: every queue on this channel holds an `Arc` of it, so none is left, and `released`
        // means that it is open.
        let ret = unsafe { sys::ibv_destroy_comp_channel(self.raw.as_ptr()) };
        check_errno("ibv_destroy_comp_channel", ret)
    }

    /// Takes one completion event: gets it, arms its queue again, notes its queue, and acknowledges
    /// it as the last touch. Returns the tag that the queue was made with. Returns `None` if
    /// `deadline` passes first or the bell has rung, or at once if the user made the descriptor
    /// non-blocking.
    ///
    /// The caller must then poll the queue until it is empty: the completions that came before the
    /// queue was armed again give no further event.
    pub(crate) fn wait(&self, bell: Option<&Bell>, deadline: Deadline) -> Result<Option<CqTag>> {
        let device = &self.context.device_events();
        let beside = Beside {
            device: Some(device),
            bell,
        };
        take_event(self.as_fd(), beside, &self.turns, deadline, |sure| {
            if !sure && !readable_now(self.as_fd(), Some(device))? {
                return Ok(None);
            }
            let (tag, armed) = self.get_event(|_| true)?;
            armed?;
            Ok(Some(tag))
        })
    }

    #[inline]
    pub(crate) fn gone(&self) -> u64 {
        self.turns.gone()
    }

    /// Takes an event as [`wait`](Self::wait) does, without a sleep, if one is there. The
    /// descriptor was readable after [`gone`](Self::gone) had returned `before`.
    pub(crate) fn take_seen(&self, before: u64) -> Result<bool> {
        let turn = self.turns.acquire();
        // Otherwise another thread may have taken the event.
        if self.turns.gone() != before && !readable_now(self.as_fd(), None)? {
            return Ok(false);
        }
        let taken = self.get_event(|_| true);
        turn.took();
        taken.and_then(|(_tag, armed)| armed.map(|()| true))
    }

    /// Takes the events that are there, at most `most`, and does not sleep. Each is acknowledged at
    /// once. `arms` gets the tag of each queue, and returns whether to arm that queue again. The
    /// tags go to `taken`, each with the result of arming.
    pub(crate) fn take_each(
        &self,
        most: u32,
        arms: impl Fn(CqTag) -> bool,
        taken: &mut Vec<(CqTag, Result<()>)>,
    ) -> Result<()> {
        let _guard = self.turns.hold();
        for _ in 0..most {
            if !readable_now(self.as_fd(), None)? {
                return Ok(());
            }
            taken.push(self.get_event(&arms)?);
        }
        Ok(())
    }

    /// Takes one event, if there is one, without arming a queue. The first call makes the
    /// descriptor non-blocking, so that no other system call is needed to learn whether an event is
    /// there.
    pub(crate) fn try_take(&self) -> Result<Option<CqTag>> {
        let _guard = self.turns.hold();
        if !self.is_nonblocking.load(Ordering::Relaxed) {
            self.let_block(false)?;
        }
        let taken = self.try_get_event(|_| false)?;
        Ok(taken.map(|(tag, _not_armed)| tag))
    }

    /// Gets an event that is there, arms its queue again if `arms` returns true for it, and
    /// acknowledges the event as the last touch. The caller holds the lock.
    #[inline]
    fn get_event(&self, arms: impl FnOnce(CqTag) -> bool) -> Result<(CqTag, Result<()>)> {
        let none = || Error::provider("ibv_get_cq_event", io::Error::from(Errno::AGAIN));
        self.try_get_event(arms)?.ok_or_else(none)
    }

    /// As [`get_event`](Self::get_event), on a descriptor that may be non-blocking. `None` if no
    /// event is there.
    fn try_get_event(
        &self,
        arms: impl FnOnce(CqTag) -> bool,
    ) -> Result<Option<(CqTag, Result<()>)>> {
        let (mut cq, mut state) = (ptr::null_mut::<sys::ibv_cq>(), ptr::null_mut::<c_void>());
        // SAFETY: only `release` destroys the channel, for its last owner. The call does not block:
        // the descriptor is non-blocking, or an event is there, and another waiter or a queue's
        // destruction, which could take it away, needs the lock.
        let ret = unsafe { sys::ibv_get_cq_event(self.raw.as_ptr(), &raw mut cq, &raw mut state) };
        if ret != 0 {
            let cause = io::Error::last_os_error();
            return if cause.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) {
                Ok(None)
            } else {
                Err(Error::provider("ibv_get_cq_event", cause))
            };
        }
        // SAFETY: `release` destroys a queue and frees its state with the lock of this channel,
        // which the caller holds. The queue was made with the address of its state.
        let state = unsafe { &*state.cast_const().cast::<CqState>() };
        let tag = state.tag;
        let armed = match arms(tag) {
            // SAFETY: `release` destroys a queue only with the lock that the caller holds, and
            // `state` is the queue's own.
            true => unsafe { arm(cq, state) },
            false => Ok(()),
        };
        // SAFETY: `release` destroys a queue only with the lock that the caller holds. The event is
        // acknowledged once, even when arming failed.
        unsafe { sys::ibv_ack_cq_events(cq, 1) };
        Ok(Some((tag, armed)))
    }
}

impl CompChannel {
    pub(crate) fn set_nonblocking(&self, on: bool) -> Result<()> {
        let _guard = self.turns.hold();
        self.let_block(!on)
    }

    /// The caller holds the lock.
    fn let_block(&self, block: bool) -> Result<()> {
        let_block(self.as_fd(), block)?;
        self.is_nonblocking.store(!block, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn device_fd(&self) -> BorrowedFd<'_> {
        self.context.device_events().fd()
    }

    pub(crate) fn device_name(&self) -> &str {
        self.context.name()
    }

    pub(crate) fn take_device_events(&self) {
        let events = self.context.device_events();
        events.take_all();
        events.tell();
    }

    /// Calls `on_event` with each later event of the channel's device, until the result is dropped.
    pub(crate) fn watch_device(&self, on_event: OnDeviceEvent) -> DeviceWatch {
        DeviceWatch::new(self.context.as_ptr(), on_event)
    }

    /// Sleeps until one of these can be read, or something has happened to the device; `false` if
    /// `deadline` passed first. The first one is [`device_fd`](Self::device_fd).
    pub(crate) fn sleep(&self, fds: &mut [PollFd<'_>], deadline: Deadline) -> Result<bool> {
        any_readable(fds, &self.context.device_events(), deadline)
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: only `release` destroys the channel, for its last owner, so `raw` leads to it as
        // long as `self` is borrowed.
        let fd = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: `ibv_destroy_comp_channel` closes the descriptor, and only `release` calls that,
        // after the borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl fmt::Debug for CompChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompChannel")
            .field("fd", &self.as_fd().as_raw_fd())
            .finish()
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        log_leak(self.release());
    }
}

fn unarmed(error: Error) -> Error {
    error.with_hint(&[
        "The queue gives no event until it is armed again",
        "call Cq::req_notify for the queues that were waited for, and poll them",
    ])
}

/// Names one of a connection's two completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a connection has these two")]
pub enum CqKind {
    /// The main queue, for operations. Receives complete here if there is no other queue for them.
    Main,
    /// The queue for receives.
    Receive,
}

/// Selects the completions that give an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "verbs has these two")]
pub enum Notify {
    /// Every completion.
    #[default]
    Any,
    /// Receives of messages that were sent with [`Flags::SOLICITED`](crate::Flags::SOLICITED), and
    /// failures.
    ///
    /// The specification counts every failure as solicited, but soft-RoCE gives no event for
    /// failures, not even for receives that it flushes at the end of a connection. So
    /// [`Cq::wait`](crate::Cq::wait) and [`Conn::wait`](crate::Conn::wait) on such a queue return
    /// after a second at the latest, as if there had been an event. On a
    /// [`CompletionChannel`](crate::CompletionChannel), and with `poll` and `epoll`, set a limit,
    /// and poll the queues when it has passed.
    Solicited,
}

impl Notify {
    fn solicited_only(self) -> c_int {
        c_int::from(self == Self::Solicited)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CqTag {
    pub(crate) key: u64,
    pub(crate) kind: CqKind,
}

/// The state that an event finds through its queue.
struct CqState {
    tag: CqTag,
    solicited: AtomicBool,
}

impl CqState {
    fn notify(&self) -> Notify {
        if self.solicited.load(Ordering::Relaxed) {
            Notify::Solicited
        } else {
            Notify::Any
        }
    }
}

/// Arms a queue for the events that were asked for last.
///
/// # Safety
///
/// The queue is alive, and the state is its own.
unsafe fn arm(cq: *mut sys::ibv_cq, state: &CqState) -> Result<()> {
    let mut notify = state.notify();
    loop {
        // SAFETY: by `# Safety` the queue is alive.
        let ret = unsafe { sys::ibv_req_notify_cq(cq, notify.solicited_only()) };
        check_errno("ibv_req_notify_cq", ret).map_err(unarmed)?;
        // Another thread may have asked for something else, and its request came before this one:
        // on some devices the last one counts. By the same fence in that thread one of the two sees
        // the other's.
        fence(Ordering::SeqCst);
        match state.notify() {
            now if now == notify => return Ok(()),
            now => notify = now,
        }
    }
}

/// A completion queue, armed from its creation on.
pub(crate) struct CompletionQueue {
    raw: NonNull<sys::ibv_cq>,
    /// From a box, which is freed when the queue is gone.
    state: NonNull<CqState>,
    channel: Arc<CompChannel>,
    /// `ibv_poll_cq`, looked up once.
    poll: PollCq,
    polling: Lock,
    released: bool,
}

type PollCq = unsafe extern "C" fn(*mut sys::ibv_cq, c_int, *mut sys::ibv_wc) -> c_int;

// SAFETY: no thread owns a queue: the provider locks it while it is polled or armed. `state` is
// atomic or constant.
unsafe impl Send for CompletionQueue {}
// SAFETY: `polling` and the provider's own lock serialise polls, and libibverbs lets any thread
// arm. `state` is atomic or constant, and the other fields change only in `release`, which takes
// `&mut self`.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A queue with room for at least `entries` completions.
    pub(crate) fn new(
        channel: &Arc<CompChannel>,
        entries: u32,
        tag: CqTag,
        notify: Notify,
    ) -> Result<Arc<Self>> {
        // SAFETY: `channel` is borrowed, and its `context` has an id that keeps the device open.
        let poll = unsafe { (*channel.context.as_ptr()).ops }.poll_cq;
        let poll = poll.ok_or_else(|| Error::not_supported("the provider cannot poll"))?;
        let entries = c_int::try_from(entries)
            .map_err(|_| Error::invalid(format!("a completion queue of {entries} is too large")))?;
        let solicited = AtomicBool::new(notify == Notify::Solicited);
        let state = NonNull::from(Box::leak(Box::new(CqState { tag, solicited })));
        let (context, raw_channel) = (channel.context.as_ptr(), channel.raw.as_ptr());
        // SAFETY: `channel` is borrowed and keeps its `context`. `state` is freed only when the
        // queue is gone, in `release`, or below if none was made. Vector 0 always exists.
        let raw = unsafe {
            sys::ibv_create_cq(
                context,
                entries.max(1),
                state.as_ptr().cast(),
                raw_channel,
                0,
            )
        };
        let raw = check_non_null("ibv_create_cq", raw).inspect_err(|_| {
            // SAFETY: `state` came from the box above, and there is no queue that refers to it.
            drop(unsafe { Box::from_raw(state.as_ptr()) });
        })?;
        let queue = Self {
            raw,
            state,
            channel: Arc::clone(channel),
            poll,
            polling: Lock::new(),
            released: false,
        };
        queue.req_notify(notify)?;
        Ok(Arc::new(queue))
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }

    pub(crate) fn entries(&self) -> usize {
        // SAFETY: only `release` destroys the queue, for its last owner. The field is constant: the
        // queue is never resized.
        let entries = unsafe { (*self.raw.as_ptr()).cqe };
        usize::try_from(entries).unwrap_or(1)
    }

    pub(crate) fn channel(&self) -> &Arc<CompChannel> {
        &self.channel
    }

    pub(crate) fn tag(&self) -> CqTag {
        self.state().tag
    }

    pub(crate) fn notify(&self) -> Notify {
        self.state().notify()
    }

    /// Asks for one event when the next completion of the kind arrives; after an event the queue is
    /// armed in the same way again.
    pub(crate) fn req_notify(&self, notify: Notify) -> Result<()> {
        self.state()
            .solicited
            .store(notify == Notify::Solicited, Ordering::Relaxed);
        // SAFETY: only `release` destroys the queue, for its last owner. `self.state` is the state
        // that it was made with.
        unsafe { arm(self.raw.as_ptr(), self.state()) }
    }

    fn state(&self) -> &CqState {
        // SAFETY: only `release` frees the state. `destroy` and `drop` call it for the last owner,
        // and no other method runs after it.
        unsafe { self.state.as_ref() }
    }

    /// For a caller that polls and has something to do with the completions before another one
    /// polls.
    #[inline(always)]
    pub(crate) fn lock_polling(&self) -> Held<'_> {
        self.polling.acquire()
    }

    /// Moves completions into `wcs`, as many as there are and fit. Returns their number. A negative
    /// value is an error, for [`check_poll`](super::check_poll).
    #[inline(always)]
    pub(crate) fn poll(&self, wcs: &mut [Wc]) -> c_int {
        let entries = wcs.len().min(c_int::MAX as usize) as c_int;
        // SAFETY: `ibv_poll_cq` of the queue's own context. Only `release` destroys the queue, for
        // its last owner. The slice has room for `entries` completions: `Wc` is a transparent
        // `ibv_wc`.
        unsafe { (self.poll)(self.raw.as_ptr(), entries, wcs.as_mut_ptr().cast()) }
    }

    /// Destroys the queue if this is its last owner, and then its channel, if it was the last on
    /// it. Objects that cannot be destroyed stay allocated; the first failure is returned.
    pub(crate) fn destroy(self: Arc<Self>) -> Result<()> {
        let Some(mut queue) = Arc::into_inner(self) else {
            return Ok(());
        };
        let released = queue.release();
        let channel = Arc::clone(&queue.channel);
        drop(queue);
        released.and(channel.destroy())
    }

    fn release(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.released, true) {
            return Ok(());
        }
        let _guard = self.channel.turns.hold();
        // SAFETY: every queue pair that uses this queue holds an `Arc` of it, so none is left, and
        // `released` means that it is alive. Under the lock every event that was taken is
        // acknowledged, so that the call does not wait.
        let ret = unsafe { sys::ibv_destroy_cq(self.raw.as_ptr()) };
        check_errno("ibv_destroy_cq", ret)?;
        // SAFETY: `state` came from a box in `new`. The queue that referred to it is gone, and
        // `released` lets this run once.
        drop(unsafe { Box::from_raw(self.state.as_ptr()) });
        Ok(())
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        log_leak(self.release());
    }
}
