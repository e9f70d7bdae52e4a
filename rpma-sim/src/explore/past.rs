//! The past of a run, up to the order of independent steps: two runs with equal pasts go on equally.
//!
//! A thread's past has its calls, and the completions, events and messages that they returned.
//! Devices have no past: their queues are looked at as they are. A host's past has the calls that
//! make, connect and end objects there, in their order. The steps at locks and channels of the
//! program are in one order, because they guard data that only the program knows. So are the events,
//! with the bytes of the memories and with the pasts of the threads that may have promised
//! something: a check sees all of this.
//!
//! The time that is left until a timer is a part of the state, because later work may come before
//! or after the timer. A thread that loads memory observes all events. An atomic or a `static`
//! that threads share without a lock is not seen.

use std::collections::{BTreeMap, BTreeSet};

use crate::order::mix;

/// Where threads meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    Host(usize),
    /// The locks and channels of the program.
    Shared,
}

#[derive(Debug, Default)]
pub(crate) struct Past {
    threads: BTreeMap<u64, u64>,
    hosts: BTreeMap<usize, u64>,
    shared: u64,
    /// The sequence of events, and the same with the threads that may have promised something.
    sequence: u64,
    events: u64,
    /// The threads that have posted something, have got a completion, or have met others.
    may_promise: BTreeSet<u64>,
}

impl Past {
    /// A thread does or observes something.
    pub(crate) fn step(&mut self, thread: u64, step: u64) {
        let of_thread = self.threads.entry(thread).or_default();
        *of_thread = mix(*of_thread ^ mix(step));
    }

    /// The same, of a thread that may promise more after it.
    pub(crate) fn work(&mut self, thread: u64, step: u64) {
        self.may_promise.insert(thread);
        self.step(thread, step);
    }

    pub(crate) fn may_promise(&self, thread: u64) -> bool {
        self.may_promise.contains(&thread)
    }

    /// A thread takes a step where it meets others, and observes their steps there.
    pub(crate) fn meet(&mut self, thread: u64, at: Meeting, step: u64) {
        let of_all = match at {
            Meeting::Host(host) => self.hosts.entry(host).or_default(),
            Meeting::Shared => {
                self.may_promise.insert(thread);
                &mut self.shared
            }
        };
        let of_thread = self.threads.entry(thread).or_default();
        let joined = mix(mix(*of_thread ^ step) ^ *of_all);
        (*of_thread, *of_all) = (joined, joined);
    }

    /// A thread sends something to a host, and observes nothing.
    pub(crate) fn tell(&mut self, thread: u64, host: usize) {
        let of_thread = self.threads.get(&thread).copied().unwrap_or_default();
        let of_host = self.hosts.entry(host).or_default();
        *of_host = mix(*of_host ^ of_thread);
    }

    /// An event, with the bytes that it leaves.
    pub(crate) fn event(&mut self, event: u64) {
        let promised = self.may_promise.iter();
        let promised = promised.map(|thread| self.threads.get(thread).copied().unwrap_or_default());
        let promised = promised.fold(0, |hash, of_thread| mix(hash ^ of_thread));
        self.sequence = mix(self.sequence ^ event);
        self.events = mix(self.events ^ mix(event) ^ promised);
    }

    /// A thread looks at memory to which devices write.
    pub(crate) fn look(&mut self, thread: u64) {
        self.step(thread, self.events);
    }

    /// Identifies the events until now, with all that checks can see at them.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// Identifies the events until now, whatever other steps came between them.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn hash(&self) -> u64 {
        let of = |(key, of): (u64, u64)| mix(mix(key) ^ of);
        let threads = self
            .threads
            .iter()
            .map(|(thread, past)| of((*thread, *past)));
        let hosts = self
            .hosts
            .iter()
            .map(|(host, past)| of((1 << 40 | *host as u64, *past)));
        let both = threads.chain(hosts).fold(0, |hash, past| hash ^ past);
        both ^ of((1 << 41, self.shared)) ^ of((1 << 42, self.events))
    }
}

pub(crate) fn hash_of(text: &str) -> u64 {
    text.bytes()
        .fold(7, |hash, byte| mix(hash ^ u64::from(byte)))
}
