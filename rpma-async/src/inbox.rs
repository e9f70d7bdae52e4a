//! [`Inbox`]: the messages of the peer, and the receives in which they land.
//!
//! The receives have memory in a pool of the connection's own. The program gets its blocks as
//! [`Message`]s, and a message's drop posts its receive again. Receives that the device still has
//! go with the pool: its region is deregistered before its memory is freed.
//!
//! Messages take receives in the order of the posts. Several threads poll the queue, and one of
//! them may be late to note a message. So messages are returned in the order of the posts.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use rpma::sync::{Mutex, MutexGuard, PoisonError};
use rpma::{Peer, Result, Wc};

use crate::conn::Shared;
use crate::error::invalid;
use crate::pool::{Lease, Pool};
use crate::told::{Look, Wait};
use crate::waiters::Waiters;

#[derive(Debug)]
pub(crate) struct Receives {
    state: Mutex<InboxState>,
    waiters: Waiters,
    is_taken: AtomicBool,
}

#[derive(Debug)]
struct InboxState {
    /// By their numbers.
    receives: Box<[Receive]>,
    /// The numbers of those that are posted, and of messages, in the order of their posts.
    order: VecDeque<u32>,
}

#[derive(Debug)]
enum Receive {
    /// The program has it, as a message.
    Taken,
    /// The device has it.
    Posted(Lease),
    Arrived(Lease, Option<u32>),
    /// The device has returned it: the connection is at its end.
    Flushed,
}

#[derive(Debug)]
struct Arrived {
    number: u32,
    memory: Lease,
    imm: Option<u32>,
}

impl Receives {
    /// Memory for `count` receives of `size` bytes.
    pub(crate) fn new(peer: &Peer, (count, size): (u32, usize)) -> Result<Self> {
        let pool = Pool::new(peer, size, count as usize)?;
        let memory = (0..count).map_while(|_| pool.try_lease());
        Ok(Self {
            state: Mutex::new(InboxState {
                receives: memory.map(Receive::Posted).collect(),
                order: VecDeque::with_capacity(count as usize),
            }),
            waiters: Waiters::default(),
            is_taken: AtomicBool::new(false),
        })
    }

    /// Takes the lock, which is held across posts.
    fn state(&self) -> MutexGuard<'_, InboxState> {
        // A panic under it leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts all of them, before the connection is there.
    pub(crate) fn post(&self, req: &rpma::ConnReq) -> Result<()> {
        let mut state = self.state();
        let receives = state.receives.iter().zip(0_u64..);
        let regions = receives.filter_map(|(receive, number)| match receive {
            Receive::Posted(memory) => Some(memory.region().map(|region| (region, number))),
            _ => None,
        });
        let regions = regions.collect::<Result<Vec<_>>>()?;
        req.recv_many(&regions)?;
        let all = 0..regions.len() as u32;
        state.order.extend(all);
        Ok(())
    }

    pub(crate) fn settle(&self, wc: &Wc) {
        let mut state = self.state();
        let Some(receive) = state.receives.get_mut(wc.wr_id() as usize) else {
            return;
        };
        match (mem::replace(receive, Receive::Flushed), wc.result()) {
            (Receive::Posted(mut memory), Ok(success)) => {
                memory.truncate(success.byte_len().map_or(0, |len| len as usize));
                *receive = Receive::Arrived(memory, success.imm_data());
            }
            (Receive::Posted(_), Err(_)) => {}
            // It is no receive that the device has.
            (other, _) => *receive = other,
        }
        drop(state);
        if self.waiters.any() {
            self.waiters.wake_all();
        }
    }

    /// Whether a task waits for a message.
    pub(crate) fn is_waited(&self) -> bool {
        self.waiters.any()
    }

    /// Something else has changed. The lock of the waits orders this and their look at it.
    pub(crate) fn wake_all(&self) {
        self.waiters.wake_all();
    }

    /// The next message, if it was noted. Otherwise whether no message will come any more,
    /// because the device has no receive.
    fn take(&self) -> Result<Arrived, bool> {
        let mut state = self.state();
        while let Some(&number) = state.order.front() {
            let receive = &mut state.receives[number as usize];
            match mem::replace(receive, Receive::Taken) {
                Receive::Arrived(memory, imm) => {
                    state.order.pop_front();
                    return Ok(Arrived {
                        number,
                        memory,
                        imm,
                    });
                }
                posted @ Receive::Posted(_) => {
                    *receive = posted;
                    return Err(false);
                }
                Receive::Flushed | Receive::Taken => {
                    state.order.pop_front();
                }
            }
        }
        Err(true)
    }

    /// Whether the device has one of them.
    pub(crate) fn is_one_posted(&self) -> bool {
        let is_posted = |receive: &Receive| matches!(receive, Receive::Posted(_));
        self.state().receives.iter().any(is_posted)
    }

    fn post_again(&self, conn: &rpma::Conn, number: u32, mut memory: Lease) -> Result<()> {
        memory.restore();
        let mut state = self.state();
        // If it is not posted its memory goes with the pool.
        let Some(receive) = state.receives.get_mut(number as usize) else {
            return Ok(());
        };
        let region = memory.region()?;
        let posted = conn.recv(region, u64::from(number));
        // After a failure the device may have it all the same.
        *receive = Receive::Posted(memory);
        posted?;
        state.order.push_back(number);
        Ok(())
    }
}

/// The messages of a connection's peer, in the order in which they arrived:
/// [`Conn::inbox`](crate::Conn::inbox).
///
/// It is a [`Stream`] that ends with the connection.
///
/// A server is a loop that accepts, and a task for each client. Set a keep-alive
/// ([`rpma::ConnCfg::set_keep_alive`]), or the inbox of a lost client waits for ever.
///
/// ```no_run
/// # #[cfg(feature = "tokio")]
/// # mod server {
/// use std::time::Duration;
///
/// use rpma::ConnCfg;
/// use rpma_async::{Conn, Incoming, Listener, Pool, Setup};
///
/// /// Answers each message with its own bytes, until the client ends.
/// async fn echo(conn: Conn, pool: Pool) -> rpma::Result<()> {
///     let mut inbox = conn.inbox()?;
///     while let Some(message) = inbox.next().await? {
///         let mut answer = pool.lease().await;
///         answer[..message.len()].copy_from_slice(&message);
///         answer.truncate(message.len());
///         // Its receive is posted again.
///         drop(message);
///         conn.ready(1).await?;
///         conn.send(answer.freeze())?.await?;
///     }
///     Ok(())
/// }
///
/// async fn serve_one(incoming: Incoming, setup: Setup, pool: Pool) -> rpma::Result<()> {
///     echo(incoming.accept(&setup, &[]).await?, pool).await
/// }
///
/// async fn serve(listener: Listener, pool: Pool) -> rpma::Result<()> {
///     let mut cfg = ConnCfg::new();
///     cfg.set_keep_alive(Some(Duration::from_secs(30)))?;
///     let setup = Setup::new(&cfg).with_receives(8, 64);
///     loop {
///         match listener.accept().await {
///             Ok(incoming) => {
///                 let serving = serve_one(incoming, setup.clone(), pool.clone());
///                 tokio::spawn(async move {
///                     if let Err(error) = serving.await {
///                         eprintln!("a client: {error}");
///                     }
///                 });
///             }
///             // The next request may succeed.
///             Err(error) => {
///                 eprintln!("the listener: {error}");
///                 tokio::time::sleep(Duration::from_millis(100)).await;
///             }
///         }
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Inbox {
    shared: Arc<Shared>,
    wait: Wait,
}

impl Inbox {
    pub(crate) fn new(shared: &Arc<Shared>) -> Result<Self> {
        let Some(receives) = shared.receives() else {
            return Err(invalid(
                "the connection has no receives: ask for them with Setup::with_receives",
            ));
        };
        if receives.is_taken.swap(true, Ordering::AcqRel) {
            return Err(invalid(
                "the connection's inbox is in use: it has one at a time",
            ));
        }
        Ok(Self {
            shared: Arc::clone(shared),
            wait: Wait::default(),
        })
    }

    /// Waits for the next message. `None` when the connection is over and all messages that
    /// arrived before were returned.
    ///
    /// It returns `Result<Option<_>>`, for `while let Some(message) = inbox.next().await?`. The
    /// [`Stream`] and [`poll_next`](Self::poll_next) have `Option<Result<_>>`, for combinators of
    /// streams.
    ///
    /// # Cancel safety
    ///
    /// A message is taken only when it is returned: the future may be dropped at any time.
    ///
    /// # Errors
    ///
    /// [`rpma::Error::InvalidArgument`] if the driver is gone. The first failure of the connection,
    /// if the connection failed before an event ended it. Messages that arrived before the failure
    /// come first. Then each call returns this error. [`rpma::Error::NotConnected`] if the device
    /// gave the connection up. [`rpma::Error::Provider`] if the reactor gave it up, because a call
    /// failed.
    #[expect(clippy::should_implement_trait, reason = "it is awaited")]
    pub fn next(&mut self) -> impl Future<Output = Result<Option<Message>>> + Unpin {
        poll_fn(|cx| self.poll_next(cx).map(Option::transpose))
    }

    /// Does the same as [`next`](Self::next), for futures that are written by hand.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Message>>> {
        let Self { shared, wait } = self;
        let Some(receives) = shared.receives() else {
            return Poll::Ready(None);
        };
        if shared.turn().ends_before(cx) {
            return Poll::Pending;
        }
        let arrived = match receives.take() {
            Ok(arrived) => {
                wait.leave(&receives.waiters);
                Ok(Some(arrived))
            }
            Err(_) => {
                let tasks = (shared.reactor(), &receives.waiters);
                let look = || Look::from(look(shared, receives));
                ready!(wait.poll(tasks, cx, look)).and_then(|arrived| arrived)
            }
        };
        let message = |arrived: Arrived| Message {
            shared: Arc::clone(shared),
            number: arrived.number,
            imm: arrived.imm,
            memory: Some(arrived.memory),
        };
        Poll::Ready(arrived.map(|arrived| arrived.map(message)).transpose())
    }
}

/// The next message, or the end. The task has left its waker.
fn look(shared: &Shared, receives: &Receives) -> Option<Result<Option<Arrived>>> {
    let drained = shared.receive_queue().arm_and_drain(shared);
    // The end counts when the device has no receive any more: another thread may have polled a
    // message, and not noted it yet.
    let is_complete = match receives.take() {
        Ok(arrived) => return Some(Ok(Some(arrived))),
        Err(is_complete) => is_complete || shared.has_stuck_receives(),
    };
    if is_complete && shared.end().is_some() {
        return Some(Ok(None));
    }
    let cause = is_complete.then(|| shared.cause_without_event()).flatten();
    let given_up = || shared.given_up();
    let error = cause
        .or_else(|| drained.err().map(|error| *error))
        .or_else(given_up);
    error.map(Err)
}

impl Stream for Inbox {
    type Item = Result<Message>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Self::poll_next(&mut self, cx)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        if let Some(receives) = self.shared.receives() {
            self.wait.leave(&receives.waiters);
            receives.is_taken.store(false, Ordering::Release);
        }
    }
}

/// Holds a message of the peer, and derefs to its bytes. Dropping the message posts its receive
/// again.
pub struct Message {
    shared: Arc<Shared>,
    number: u32,
    imm: Option<u32>,
    /// `None` when it is being dropped.
    memory: Option<Lease>,
}

impl Message {
    /// Returns the immediate data: 4 bytes that the peer added to its message or write.
    #[must_use]
    pub fn imm(&self) -> Option<u32> {
        self.imm
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_deref().unwrap_or_default()
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("len", &self.len())
            .field("imm", &self.imm)
            .finish_non_exhaustive()
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        let (Some(receives), Some(memory)) = (self.shared.receives(), self.memory.take()) else {
            return;
        };
        if let Err(error) = receives.post_again(self.shared.conn(), self.number, memory) {
            // The connection is at its end, or is it now.
            log::debug!("{error}");
            self.shared.failed();
        }
    }
}
