//! Channels of the program, as those of [`std::sync::mpsc`], with its errors.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::{Duration, Instant};

use super::{Waiters, begin, deadline, own};

/// As [`std::sync::mpsc::channel`], for threads of a fabric.
#[must_use]
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let channel = Arc::new(Channel::new(None));
    let sender = Sender {
        channel: Arc::clone(&channel),
    };
    (sender, Receiver::new(channel))
}

/// As [`std::sync::mpsc::sync_channel`], for threads of a fabric. If the bound is 0, each send
/// waits until its value is taken.
#[must_use]
pub fn sync_channel<T>(bound: usize) -> (SyncSender<T>, Receiver<T>) {
    let channel = Arc::new(Channel::new(Some(bound)));
    let sender = SyncSender {
        channel: Arc::clone(&channel),
    };
    (sender, Receiver::new(channel))
}

struct Channel<T> {
    state: StdMutex<State<T>>,
    /// The receiver, for a value.
    receiver: Waiters,
    /// Senders, for room.
    senders: Waiters,
    bound: Option<usize>,
}

struct State<T> {
    /// Each with its number.
    values: VecDeque<(u64, T)>,
    next: u64,
    senders: usize,
    has_receiver: bool,
}

impl<T> Channel<T> {
    fn new(bound: Option<usize>) -> Self {
        Self {
            state: StdMutex::new(State {
                values: VecDeque::new(),
                next: 0,
                senders: 1,
                has_receiver: true,
            }),
            receiver: Waiters::new(),
            senders: Waiters::new(),
            bound,
        }
    }

    fn add_sender(self: &Arc<Self>) -> Arc<Self> {
        own(&self.state).senders += 1;
        Arc::clone(self)
    }

    fn remove_sender(&self) {
        let mut state = own(&self.state);
        state.senders -= 1;
        let is_last = state.senders == 0;
        drop(state);
        if is_last {
            self.receiver.wake_all();
        }
    }

    /// Sends it if there is room now; the number that it has there.
    fn try_send(&self, value: T) -> Result<u64, TrySendError<T>> {
        let mut state = own(&self.state);
        if !state.has_receiver {
            return Err(TrySendError::Disconnected(value));
        }
        let has_room = match self.bound {
            None => true,
            // A receiver that waits takes it at once.
            Some(0) => state.values.is_empty() && !self.receiver.is_empty(),
            Some(bound) => state.values.len() < bound,
        };
        if !has_room {
            return Err(TrySendError::Full(value));
        }
        Ok(self.push(&mut state, value))
    }

    fn push(&self, state: &mut State<T>, value: T) -> u64 {
        let number = state.next;
        state.next += 1;
        state.values.push_back((number, value));
        self.receiver.wake_all();
        number
    }

    fn send(&self, mut value: T) -> Result<(), SendError<T>> {
        if self.bound == Some(0) {
            return self.hand_over(value);
        }
        loop {
            // Before it looks, so that no room is missed.
            let entry = self.senders.enter();
            match self.try_send(value) {
                Ok(_) => return Ok(()),
                Err(TrySendError::Disconnected(value)) => return Err(SendError(value)),
                Err(TrySendError::Full(again)) => value = again,
            }
            entry.wait(None);
        }
    }

    /// Sends it, and waits until the receiver has taken it.
    fn hand_over(&self, value: T) -> Result<(), SendError<T>> {
        let mut state = own(&self.state);
        if !state.has_receiver {
            return Err(SendError(value));
        }
        let number = self.push(&mut state, value);
        loop {
            let entry = self.senders.enter();
            drop(state);
            entry.wait(None);
            state = own(&self.state);
            let mut values = state.values.iter();
            let Some(at) = values.position(|(other, _)| *other == number) else {
                return Ok(());
            };
            if !state.has_receiver {
                let (_, value) = state.values.remove(at).expect("it is there");
                return Err(SendError(value));
            }
        }
    }

    fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = own(&self.state);
        let Some((_, value)) = state.values.pop_front() else {
            return Err(match state.senders {
                0 => TryRecvError::Disconnected,
                _ => TryRecvError::Empty,
            });
        };
        drop(state);
        self.senders.wake_all();
        Ok(value)
    }

    fn recv_until(&self, deadline: Option<Instant>) -> Result<T, RecvTimeoutError> {
        let mut is_over = false;
        loop {
            // Before it looks, so that no value is missed.
            let entry = (!is_over).then(|| self.receiver.enter());
            match self.try_recv() {
                Ok(value) => return Ok(value),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => {}
            }
            let Some(entry) = entry else {
                return Err(RecvTimeoutError::Timeout);
            };
            is_over = !entry.wait(deadline);
        }
    }
}

/// The sending half of [`channel`], as [`std::sync::mpsc::Sender`].
pub struct Sender<T> {
    channel: Arc<Channel<T>>,
}

impl<T> Sender<T> {
    /// As [`std::sync::mpsc::Sender::send`].
    ///
    /// # Errors
    ///
    /// The value, if there is no receiver.
    #[track_caller]
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        begin("Sender::send", Location::caller());
        self.channel.send(value)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self {
            channel: self.channel.add_sender(),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.channel.remove_sender();
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

/// The sending half of [`sync_channel`], as [`std::sync::mpsc::SyncSender`].
pub struct SyncSender<T> {
    channel: Arc<Channel<T>>,
}

impl<T> SyncSender<T> {
    /// As [`std::sync::mpsc::SyncSender::send`].
    ///
    /// # Errors
    ///
    /// The value, if there is no receiver.
    ///
    /// # Panics
    ///
    /// If every thread of the fabric waits and no event can come.
    #[track_caller]
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        begin("SyncSender::send", Location::caller());
        self.channel.send(value)
    }

    /// As [`std::sync::mpsc::SyncSender::try_send`].
    ///
    /// # Errors
    ///
    /// The value, if there is no room, or no receiver.
    #[track_caller]
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        begin("SyncSender::try_send", Location::caller());
        self.channel.try_send(value).map(drop)
    }
}

impl<T> Clone for SyncSender<T> {
    fn clone(&self) -> Self {
        Self {
            channel: self.channel.add_sender(),
        }
    }
}

impl<T> Drop for SyncSender<T> {
    fn drop(&mut self) {
        self.channel.remove_sender();
    }
}

impl<T> fmt::Debug for SyncSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncSender").finish_non_exhaustive()
    }
}

/// The receiving half of a channel, as [`std::sync::mpsc::Receiver`].
pub struct Receiver<T> {
    channel: Arc<Channel<T>>,
    /// As std's it is not shared between threads.
    _not_shared: PhantomData<Cell<()>>,
}

impl<T> Receiver<T> {
    fn new(channel: Arc<Channel<T>>) -> Self {
        Self {
            channel,
            _not_shared: PhantomData,
        }
    }

    /// As [`std::sync::mpsc::Receiver::recv`].
    ///
    /// # Errors
    ///
    /// If the channel is empty and there is no sender.
    ///
    /// # Panics
    ///
    /// If every thread of the fabric waits and no event can come.
    #[track_caller]
    pub fn recv(&self) -> Result<T, RecvError> {
        begin("Receiver::recv", Location::caller());
        self.channel.recv_until(None).map_err(|_| RecvError)
    }

    /// As [`std::sync::mpsc::Receiver::recv_timeout`].
    ///
    /// # Errors
    ///
    /// If no value has come within the limit; if the channel is empty and there is no sender.
    #[track_caller]
    pub fn recv_timeout(&self, limit: Duration) -> Result<T, RecvTimeoutError> {
        begin("Receiver::recv_timeout", Location::caller());
        self.channel.recv_until(deadline(limit))
    }

    /// As [`std::sync::mpsc::Receiver::try_recv`].
    ///
    /// # Errors
    ///
    /// `Empty` if the channel is empty and has a sender. `Disconnected` if the channel is empty and
    /// has no sender.
    #[track_caller]
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        begin("Receiver::try_recv", Location::caller());
        self.channel.try_recv()
    }

    /// As [`std::sync::mpsc::Receiver::iter`].
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { receiver: self }
    }

    /// As [`std::sync::mpsc::Receiver::try_iter`].
    pub fn try_iter(&self) -> TryIter<'_, T> {
        TryIter { receiver: self }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = own(&self.channel.state);
        state.has_receiver = false;
        let values = match self.channel.bound {
            // Those are still their senders'.
            Some(0) => VecDeque::new(),
            _ => std::mem::take(&mut state.values),
        };
        drop(state);
        self.channel.senders.wake_all();
        // Without the lock: a value may be a sender of this channel.
        drop(values);
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

impl<T> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        IntoIter { receiver: self }
    }
}

impl<'a, T> IntoIterator for &'a Receiver<T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

/// Values until there is no sender: see [`Receiver::iter`].
#[derive(Debug)]
pub struct Iter<'a, T: 'a> {
    receiver: &'a Receiver<T>,
}

impl<T> Iterator for Iter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.receiver.recv().ok()
    }
}

/// Values that are there: see [`Receiver::try_iter`].
#[derive(Debug)]
pub struct TryIter<'a, T: 'a> {
    receiver: &'a Receiver<T>,
}

impl<T> Iterator for TryIter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.receiver.try_recv().ok()
    }
}

/// Values until there is no sender, of a receiver that it owns.
#[derive(Debug)]
pub struct IntoIter<T> {
    receiver: Receiver<T>,
}

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.receiver.recv().ok()
    }
}
