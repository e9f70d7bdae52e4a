//! [`CompletionChannel`]: where the completion events of queues arrive, and which queues share one.
//!
//! A connection's queues have a channel each, or share one (librpma's shared completion channel).
//! Or they use a channel that the program has made for the queues of many connections.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::looking::BOUND;
use crate::peer::Peer;
use crate::slots::ConnSlots;
use crate::verbs::{CompChannel, Context, CqKind, CqTag, Deadline, Notify};

/// Selects the completion channel to which a connection's queues send their events.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::exhaustive_enums,
    reason = "own, shared by one connection, shared by many"
)]
pub enum ComplChannel {
    /// Each queue has a channel of its own: wait with [`Cq::wait`](crate::Cq::wait).
    ///
    /// Choose this, the default, if the program uses [`Conn::next`](crate::Conn::next) or
    /// [`Conn::wait_for`](crate::Conn::wait_for), or if it serves each queue in its own thread.
    /// Also keep this default in the settings that you give to
    /// [`Place::cfg`](crate::wait::Place::cfg).
    #[default]
    PerCq,
    /// The connection's two queues share one channel: wait with [`Conn::wait`](crate::Conn::wait).
    ///
    /// Choose this if one thread serves both queues of one connection with
    /// [`Conn::wait`](crate::Conn::wait), as in librpma, or with one descriptor
    /// ([`Conn::get_compl_fd`](crate::Conn::get_compl_fd)). [`Conn::next`](crate::Conn::next) and
    /// [`Conn::wait_for`](crate::Conn::wait_for) work as well. If the connection's receives
    /// complete in a shared receive queue's own completion queue, this setting is an error.
    Shared,
    /// The connection's queues use this channel, which other connections may use as well: wait
    /// with [`CompletionChannel::wait`].
    ///
    /// Choose this if one thread waits for the completions of many connections. The channel gives
    /// no [`ConnEvent`](crate::ConnEvent). [`Conn::next`](crate::Conn::next),
    /// [`Conn::wait`](crate::Conn::wait), [`Conn::wait_for`](crate::Conn::wait_for) and
    /// [`Cq::wait`](crate::Cq::wait) return errors then. For completions and events together, use a
    /// [`Wait`](crate::wait::Wait).
    Of {
        /// The channel. It must be on the connection's device.
        channel: CompletionChannel,
        /// The key that the events of this connection carry: [`CompletionChannel::wait`].
        key: u64,
    },
}

/// A completion channel for the queues of many connections. One thread can wait for all of them.
/// With several channels, each thread waits for the completion events of its own connections.
///
/// It reports completions alone. To wait for the events of connections and for endpoints as well,
/// use a [`Wait`](crate::wait::Wait).
///
/// ```no_run
/// use rpma::{CompletionChannel, ComplChannel, Conn, ConnCfg, CqKind, Result, Wc};
///
/// /// The settings of connection number `key`.
/// fn settings(channel: &CompletionChannel, key: u64) -> ConnCfg {
///     let mut cfg = ConnCfg::new();
///     let channel = channel.clone();
///     cfg.set_compl_channel(ComplChannel::Of { channel, key });
///     cfg
/// }
///
/// /// Waits for one connection with completions, and polls its queue until it is empty.
/// fn turn(channel: &CompletionChannel, conns: &[Conn]) -> Result<()> {
///     let (key, kind) = channel.wait()?;
///     let conn = &conns[key as usize];
///     let cq = match kind {
///         CqKind::Main => conn.get_cq(),
///         CqKind::Receive => conn.get_rcq().expect("it has one"),
///     };
///     let mut wcs = [Wc::default(); 16];
///     while cq.get_wc(&mut wcs)? > 0 {}
///     Ok(())
/// }
/// ```
///
/// A key is an index, as here, or a number that the program never uses again. An event that was
/// taken just before its connection was dropped has the key of a connection that is gone. If
/// connections come and go, look keys up in a map, and ignore those that it does not have. Events of
/// a dropped queue that no wait has taken are discarded.
///
/// Clones are handles of the same channel. It lives until all handles and all queues are gone.
///
/// # Threads
///
/// Several threads may wait: each event is taken under a lock and goes to one of them.
#[derive(Clone)]
pub struct CompletionChannel {
    channel: Arc<CompChannel>,
    context: Arc<Context>,
}

impl CompletionChannel {
    /// Makes a channel on the device of `peer`.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `ibv_create_comp_channel` fails.
    pub fn new(peer: &Peer) -> Result<Self> {
        let context = peer.pd().context();
        Ok(Self {
            channel: CompChannel::new(context)?,
            context: Arc::clone(context),
        })
    }

    pub(crate) fn channel(&self) -> &Arc<CompChannel> {
        &self.channel
    }

    /// Waits for the next completion event of any queue on the channel, without a limit. Returns
    /// the queue of the event: the key that the program gave for it ([`ComplChannel::Of`],
    /// [`ConnCfg::set_rcq_channel`](crate::ConnCfg::set_rcq_channel),
    /// [`SrqCfg::set_compl_channel`](crate::SrqCfg::set_compl_channel)), and its kind. The queue
    /// is armed again before this returns: poll it until it is empty.
    ///
    /// With queues that give events for solicited completions only, use
    /// [`wait_timeout`](Self::wait_timeout): see [`Notify::Solicited`].
    ///
    /// # Errors
    ///
    /// [`Error::NoCompletion`] if the descriptor was made non-blocking and there is no event.
    /// [`Error::Provider`] if `ibv_get_cq_event` or `ibv_req_notify_cq` fails.
    pub fn wait(&self) -> Result<(u64, CqKind)> {
        self.wait_until(Deadline::Never)
    }

    /// As [`wait`](Self::wait), for at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait), and [`Error::NoCompletion`] when the limit has passed.
    pub fn wait_timeout(&self, limit: Duration) -> Result<(u64, CqKind)> {
        self.wait_until(Deadline::after(limit))
    }

    fn wait_until(&self, deadline: Deadline) -> Result<(u64, CqKind)> {
        let CqTag { key, kind } = self
            .channel
            .wait(None, deadline)?
            .ok_or(Error::NoCompletion)?;
        Ok((key, kind))
    }

    /// Takes the next completion event, if there is one, and does not wait. Unlike
    /// [`wait`](Self::wait) it arms no queue: the queue of the event gives no other event before
    /// [`Cq::req_notify`](crate::Cq::req_notify). So busy threads can poll the queue without
    /// events, and arm it only before they sleep.
    ///
    /// It makes one system call. The first call makes the descriptor non-blocking
    /// ([`set_nonblocking`](Self::set_nonblocking)), and the program must not make it blocking by
    /// `fcntl`. It does not read the device's asynchronous events, in which an adapter reports
    /// errors of queue pairs. Another wait on the device must read them, such as a
    /// [`Wait`](crate::wait::Wait).
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `ibv_get_cq_event` or the first call's `fcntl` fails.
    #[inline]
    pub fn try_take(&self) -> Result<Option<(u64, CqKind)>> {
        let taken = self.channel.try_take()?;
        Ok(taken.map(|CqTag { key, kind }| (key, kind)))
    }

    /// Returns the channel's descriptor, as [`AsRawFd`] does.
    ///
    /// For `poll`, `epoll` and `fcntl` only: a read from it steals an event.
    #[must_use]
    pub fn get_fd(&self) -> RawFd {
        self.as_raw_fd()
    }

    /// Makes the channel's descriptor non-blocking, or blocking again. In non-blocking mode waits
    /// return [`Error::NoCompletion`] at once if there is no event. Other threads may wait
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `fcntl` fails.
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        self.channel.set_nonblocking(on)
    }

    /// The verbs channel, for a queue on the device of `peer`.
    pub(crate) fn for_peer(&self, peer: &Peer) -> Result<Arc<CompChannel>> {
        let (own, peers) = (&self.context, peer.pd().context());
        if own.is_same(peers) {
            return Ok(Arc::clone(&self.channel));
        }
        Err(Error::invalid(format!(
            "the completion channel was made for the device {}, and the Peer is on {}",
            own.name(),
            peers.name()
        )))
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel")
            .field("channel", &self.channel)
            .finish()
    }
}

/// Waits for an event of a channel with queues that give events according to `notify`. `None`
/// stands for an event that may have been lost: the caller must then look at the queues. After the
/// last event, it returns the error of a connection that is over.
pub(crate) fn wait(
    channel: &CompChannel,
    conn: Option<&ConnSlots>,
    notify: Notify,
    deadline: Deadline,
) -> Result<Option<CqTag>> {
    let bound = match notify {
        Notify::Any => Deadline::Never,
        // The specification counts a failed completion as solicited, but soft-RoCE of Linux 6.12
        // gives no event for requests that it flushes. A wait without a bound would not notice that
        // a connection has failed.
        Notify::Solicited => Deadline::after(BOUND),
    };
    let bell = conn.map(ConnSlots::bell);
    if let Some(tag) = channel.wait(bell, deadline.earlier(bound))? {
        return Ok(Some(tag));
    }
    if let Some(error) = conn.and_then(ConnSlots::end_of_waits) {
        return Err(error);
    }
    if bound.has_passed() && !deadline.has_passed() {
        Ok(None)
    } else {
        Err(Error::NoCompletion)
    }
}
