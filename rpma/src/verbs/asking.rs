//! Asking for a connection of iWARP, on a thread.
//!
//! In `rdma_connect`, soft-iWARP connects its TCP stream and waits for it, for as long as TCP tries:
//! about two minutes by default (`siw_connect`). After that, a destroy of the queue pair waits for the
//! peer's answer, up to 10 s (`MPAREQ_TIMEOUT`). No limit of a program ends either wait. So a thread
//! makes the call. If the owner of the queue pair goes before the peer has answered, this thread or
//! another one gets the queue pair, and destroys it.
//!
//! An adapter connects by itself, and the kernel reports a failure as an event (`cma_iw_handler` in
//! drivers/infiniband/core/cma.c). A failure of the call that has the same reason becomes the same
//! event here. It has no descriptor, so the id has one that joins its channel's and an eventfd.
//!
//! The thread is here, below `ConnReq::connect`, so that this call waits on no transport,
//! whichever program calls it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rpma_sys as sys;
use rustix::io::Errno;

use super::check_minus_one;
use super::cm_event::{CmEvent, CmEventKind};
use super::qp::{ConnParam, QueuePair};
use crate::error::{Error, Result};
use crate::joined_fd::JoinedFd;
use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub(crate) const RDMA_CONNECT: &str = "rdma_connect";

/// The most threads of an open device that work for no owner any more. A program that tries again
/// and again to reach a host that is down has no more of them, and is refused.
const MAX_ABANDONED: u32 = 64;

/// The number of these threads.
#[derive(Clone, Debug, Default)]
pub(super) struct Abandoned(Arc<AtomicU32>);

impl Abandoned {
    fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) < MAX_ABANDONED {
            return Ok(());
        }
        Err(Error::provider(RDMA_CONNECT, Errno::AGAIN).with_hint(&[
            "64 connections of this device were given up, and the kernel still waits for their \
             peers, up to two minutes each",
            "Connect again later, and less often",
        ]))
    }

    fn add(&self, queue_pair: QueuePair) -> Leftover {
        self.0.fetch_add(1, Ordering::Relaxed);
        Leftover {
            _queue_pair: Box::new(queue_pair),
            _seat: Seat(self.clone()),
        }
    }
}

/// A queue pair without an owner. A drop may wait.
#[derive(Debug)]
struct Leftover {
    _queue_pair: Box<QueuePair>,
    /// After the queue pair.
    _seat: Seat,
}

#[derive(Debug)]
struct Seat(Abandoned);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The state of an id that may ask for a connection.
#[derive(Debug)]
pub(super) struct Asking {
    fd: JoinedFd,
    stage: Mutex<Stage>,
    changed: Condvar,
    abandoned: Abandoned,
}

#[derive(Debug)]
enum Stage {
    /// It has not asked.
    Before,
    /// The thread is in the call. If the owner is gone, it has the queue pair.
    Calling {
        is_answered: bool,
        abandoned: Option<Leftover>,
    },
    /// The call has succeeded, and there is no answer.
    Asked,
    /// The call has failed, and its event was not taken.
    Failed(Error),
    /// It is answered, or the owner is gone.
    Over,
}

impl Stage {
    fn is_unanswered(&self) -> bool {
        matches!(self, Self::Calling { .. } | Self::Asked)
    }
}

impl Asking {
    /// For an id with this channel, on a device with so many abandoned ones.
    pub(super) fn new(channel: BorrowedFd<'_>, abandoned: &Abandoned) -> Result<Arc<Self>> {
        let fd = JoinedFd::new()?;
        fd.watch(channel)?;
        Ok(Arc::new(Self {
            fd,
            stage: Mutex::new(Stage::Before),
            changed: Condvar::new(),
            abandoned: abandoned.clone(),
        }))
    }

    /// Begins to ask for a connection.
    ///
    /// # Safety
    ///
    /// The id is that of this state, and has a queue pair. Both are destroyed only after
    /// [`hand_over`](Self::hand_over) has returned `false`.
    pub(super) unsafe fn ask(
        self: &Arc<Self>,
        id: *mut sys::rdma_cm_id,
        param: ConnParam<'_>,
        numbers: (u32, bool),
    ) -> Result<()> {
        self.abandoned.check()?;
        let call = Call {
            id,
            private_data: param.private_data.into(),
            param: ConnParam {
                private_data: &[],
                ..param
            },
            numbers,
        };
        *self.stage() = Stage::Calling {
            is_answered: false,
            abandoned: None,
        };
        let asking = Arc::clone(self);
        aside("rpma-connect", move || asking.run(&call)).inspect_err(|_| {
            *self.stage() = Stage::Before;
        })
    }

    fn run(&self, call: &Call) {
        // SAFETY: the stage is `Calling`.
        let called = unsafe { call.make() };
        let mut stage = self.stage();
        let Stage::Calling {
            is_answered,
            abandoned,
        } = std::mem::replace(&mut *stage, Stage::Over)
        else {
            return;
        };
        match called {
            _ if abandoned.is_some() => {}
            Ok(()) if is_answered => {}
            Ok(()) => *stage = Stage::Asked,
            Err(error) => {
                *stage = Stage::Failed(error);
                self.fd.light();
            }
        }
        self.changed.notify_all();
        drop(stage);
        drop(abandoned);
    }

    /// The event of a call that has failed, or its error, once.
    pub(super) fn failure(&self) -> Option<Result<CmEvent>> {
        let mut stage = self.stage();
        match std::mem::replace(&mut *stage, Stage::Over) {
            Stage::Failed(error) => {
                self.fd.put_out();
                let event = error.raw_os_error().and_then(CmEvent::not_connected);
                Some(event.ok_or(error))
            }
            other => {
                *stage = other;
                None
            }
        }
    }

    /// The connection manager has reported this.
    pub(super) fn saw(&self, event: CmEventKind) {
        if matches!(event, CmEventKind::Other(_)) {
            return;
        }
        let mut stage = self.stage();
        match &mut *stage {
            Stage::Calling { is_answered, .. } => *is_answered = true,
            Stage::Asked => *stage = Stage::Over,
            Stage::Before | Stage::Failed(_) | Stage::Over => {}
        }
    }

    /// Whether the thread is in the call, during which the kernel holds its lock of the id
    /// (`ucma_connect`). If the peer has answered already, this waits for the call to return.
    pub(super) fn is_calling(&self) -> bool {
        matches!(*self.settled(), Stage::Calling { .. })
    }

    /// Whether the thread is in the call, or the peer has not answered.
    pub(super) fn is_unanswered(&self) -> bool {
        self.settled().is_unanswered()
    }

    /// Gives a thread the queue pair, if it [is unanswered](Self::is_unanswered). The owner is gone.
    pub(super) fn hand_over(&self, queue_pair: impl FnOnce() -> QueuePair) -> bool {
        let mut stage = self.settled();
        if !stage.is_unanswered() {
            return false;
        }
        let leftover = self.abandoned.add(queue_pair());
        if let Stage::Calling { abandoned, .. } = &mut *stage {
            *abandoned = Some(leftover);
            return true;
        }
        *stage = Stage::Over;
        drop(stage);
        if let Err(error) = aside("rpma-destroy", move || drop(leftover)) {
            log::warn!("{error}: a drop waited for the answer of a peer");
        }
        true
    }

    /// The stage, which is not that of an answered call: such a call returns at once.
    fn settled(&self) -> MutexGuard<'_, Stage> {
        let is_returning = |stage: &mut Stage| match stage {
            Stage::Calling { is_answered, .. } => *is_answered,
            _ => false,
        };
        let settled = self.changed.wait_while(self.stage(), is_returning);
        settled.unwrap_or_else(PoisonError::into_inner)
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        // No code panics with it.
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Asking {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Runs something on a thread of its own. If there is none, it is dropped here.
#[cfg(not(feature = "sim"))]
fn aside(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    let thread = thread.map_err(|error| Error::provider("pthread_create", error))?;
    // It ends by itself.
    drop(thread);
    Ok(())
}

#[cfg(feature = "sim")]
fn aside(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = rpma_sys::sim::thread::aside(name, run);
    thread.map_err(|error| Error::provider("pthread_create", error))
}

/// The call, with its arguments.
struct Call {
    id: *mut sys::rdma_cm_id,
    private_data: Box<[u8]>,
    param: ConnParam<'static>,
    /// The queue pair's number, and whether it has a shared receive queue.
    numbers: (u32, bool),
}

// SAFETY: librdmacm keeps no state of an id in a thread. `make` requires that the id is alive.
unsafe impl Send for Call {}

impl Call {
    /// # Safety
    ///
    /// The id is alive, and has a queue pair, until this returns. Meanwhile other threads only take
    /// its events.
    unsafe fn make(&self) -> Result<()> {
        let param = ConnParam {
            private_data: &self.private_data,
            ..self.param
        };
        let (qp_num, has_srq) = self.numbers;
        let mut raw = param.to_raw(qp_num, has_srq);
        // SAFETY: by `# Safety`, the id and its queue pair are alive. The call copies the
        // parameters, and as much private data as `to_raw` has counted. On iWARP an event of the id
        // changes neither the id nor the queue pair (`rdma_get_cm_event`).
        let ret = unsafe { sys::rdma_connect(self.id, &raw mut raw) };
        check_minus_one(RDMA_CONNECT, ret)
    }
}
