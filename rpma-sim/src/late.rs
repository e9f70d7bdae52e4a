//! Writes that a device has executed, and that the programs of its host do not see yet.
//!
//! A device acknowledges a write before the bytes are in memory, and verbs orders completions and
//! not placement. On a device that reorders, some plain writes therefore wait here, by the rules
//! of [`Profile::STRICT`](crate::Profile::STRICT).
//!
//! The device owns the bytes meanwhile, and they land before their region is deregistered. So no
//! write reaches freed memory.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, Weak};

use crate::choices::{Kind, looks_at_memory};
use crate::fabric::Fabric;
use crate::memory::Part;
use crate::order::mix;
use crate::power::{Flow, is_checking};
use crate::qp::Send;
use crate::state::{Shared, State};
use crate::timer::Timer;

/// The fabrics on which a write is visible before an older one.
static FABRICS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// The number of these, so that a read has no cost if it is 0.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn with_fabrics<T>(run: impl FnOnce(&mut Vec<Weak<Shared>>) -> T) -> T {
    let mut fabrics = FABRICS.lock().unwrap_or_else(PoisonError::into_inner);
    let result = run(&mut fabrics);
    COUNT.store(fabrics.len(), Ordering::Relaxed);
    result
}

/// How many reads are kept for [`Fabric::early_reads`].
const MOST: usize = 100;

#[derive(Debug, Default)]
pub(crate) struct LateWrites {
    /// Oldest first.
    waiting: Vec<Write>,
    /// Those that are visible before an older one of the same queue pair.
    overtaking: Vec<Write>,
    next: u64,
    /// One of [`FABRICS`], while it is.
    shared: Option<Weak<Shared>>,
    early_reads: Vec<String>,
}

#[derive(Clone, Debug)]
struct Write {
    /// Which one came first.
    number: u64,
    /// The queue pair that has sent it, and the host that it came to.
    from: u32,
    host: usize,
    part: Part,
    bytes: Vec<u8>,
    send: Send,
    is_seen: bool,
}

impl LateWrites {
    /// All that waits, for a comparison with another run.
    pub(crate) fn hash_into(&self, hash: &mut impl Hasher) {
        for write in &self.waiting {
            (write.from, write.host, write.send.wr_id).hash(hash);
        }
    }

    /// Identifies a write that waits, in each run.
    pub(crate) fn hash_of(&self, number: u64) -> u64 {
        let mut waiting = self.waiting.iter();
        let write = waiting.find(|write| write.number == number);
        // The numbers themselves count the writes to all hosts.
        write.map_or(
            0,
            |write| mix(u64::from(write.from) ^ mix(write.send.wr_id)),
        )
    }

    fn is_late(&self, write: &Write) -> bool {
        let mut waiting = self.waiting.iter();
        waiting.any(|late| late.from == write.from && late.number < write.number)
    }

    fn overtakes(&mut self, write: Write, shared: &Weak<Shared>) {
        self.overtaking.push(write);
        if self.shared.is_none() {
            self.shared = Some(Weak::clone(shared));
            with_fabrics(|all| all.push(Weak::clone(shared)));
        }
    }

    /// Forgets those that have no more writes to overtake.
    fn clean(&mut self) {
        let mut all = std::mem::take(&mut self.overtaking);
        all.retain(|write| self.is_late(write));
        self.overtaking = all;
        if self.overtaking.is_empty() {
            self.leave();
        }
    }

    fn leave(&mut self) {
        if let Some(shared) = self.shared.take() {
            with_fabrics(|all| all.retain(|other| !other.ptr_eq(&shared)));
        }
    }
}

impl Drop for LateWrites {
    fn drop(&mut self) {
        self.leave();
    }
}

fn overlap(one: Part, other: Part) -> bool {
    let (start, other_start) = (one.address.addr(), other.address.addr());
    start < other_start + other.len && other_start < start + one.len
}

impl State {
    /// A responder executes a plain write.
    pub(crate) fn write(
        &mut self,
        bytes: &[u8],
        part: Part,
        (from, peer): (u32, u32),
        send: &Send,
    ) {
        let host = self.nics[self.qps[peer].nic].host;
        self.late.next += 1;
        let write = Write {
            number: self.late.next,
            from,
            host,
            part: Part {
                len: bytes.len(),
                ..part
            },
            bytes: bytes.to_vec(),
            send: send.clone(),
            is_seen: false,
        };
        if self.profile_of(peer).reorders && self.choose_for(Kind::Visibility, 2, from, send) == 1 {
            let number = write.number;
            let what = self.describe(from, send);
            self.take(bytes, write.part, (Flow::Writes(from), number), what);
            self.late.waiting.push(write);
            return self.put_off_late(number, from, send);
        }
        self.place(bytes, part, Flow::Writes(from), |state| {
            state.describe(from, send)
        });
        if self.late.is_late(&write) {
            self.late.overtakes(write, self.clock.shared());
        }
    }

    /// As [`place_now`](Self::place_now), after all that is late for the same bytes.
    pub(crate) fn place(
        &mut self,
        bytes: &[u8],
        part: Part,
        flow: Flow,
        what: impl FnOnce(&Self) -> String,
    ) {
        self.land(|late| overlap(late.part, part));
        self.place_now(bytes, part, flow, what);
    }

    fn put_off_late(&mut self, number: u64, from: u32, send: &Send) {
        const STEPS: u32 = 16;
        let steps = 1 + self.choose_for(Kind::Landing, STEPS, from, send);
        let delay = self.kept_back() * steps / STEPS;
        self.clock.after(delay, Timer::Late { number });
    }

    pub(crate) fn late_lands(&mut self, number: u64) {
        let waiting = self.late.waiting.iter();
        let Some(late) = waiting.clone().find(|late| late.number == number) else {
            return;
        };
        // It lands when the host goes on.
        if self.is_host_frozen(late.host) {
            return;
        }
        self.land(|late| late.number == number);
        self.visit(|_| "after a write that was late is visible".to_owned());
    }

    /// The writes of a queue pair to a host become visible to its programs: all, or those in a
    /// part.
    pub(crate) fn land_of(&mut self, from: u32, host: usize, part: Option<Part>) {
        self.land(|late| {
            late.from == from
                && late.host == host
                && part.is_none_or(|part| overlap(late.part, part))
        });
    }

    pub(crate) fn land_on(&mut self, host: usize) {
        self.land(|late| late.host == host);
    }

    /// The late writes to a part of memory become visible: it may be freed.
    pub(crate) fn land_in(&mut self, part: Part) {
        self.land(|late| overlap(late.part, part));
    }

    /// Late writes become visible, and before each of them the older ones to the same bytes.
    fn land(&mut self, which: impl Fn(&Write) -> bool) {
        if self.late.waiting.is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut self.late.waiting);
        let mut lands = vec![false; waiting.len()];
        for at in (0..waiting.len()).rev() {
            let mut newer = waiting.iter().zip(&lands).skip(at + 1);
            let is_needed =
                newer.any(|(newer, lands)| *lands && overlap(newer.part, waiting[at].part));
            lands[at] = is_needed || which(&waiting[at]);
        }
        let (mut landing, mut left) = (Vec::new(), Vec::new());
        for (write, lands) in waiting.into_iter().zip(lands) {
            let to = if lands { &mut landing } else { &mut left };
            to.push(write);
        }
        self.late.waiting = left;
        for write in landing {
            self.reveal(&write.bytes, write.part, write.number);
            if self.late.is_late(&write) {
                self.late.overtakes(write, self.clock.shared());
            }
        }
        self.late.clean();
    }

    pub(crate) fn lose_late(&mut self, host: usize) {
        self.late.waiting.retain(|late| late.host != host);
        self.late.clean();
    }

    fn is_read(&mut self, part: Part) {
        let late = &self.late;
        let mut pairs = late.waiting.iter().filter_map(|missing| {
            let is_later = |seen: &&Write| {
                seen.is_seen && seen.from == missing.from && seen.number > missing.number
            };
            let seen = late.overtaking.iter().find(is_later)?;
            overlap(missing.part, part).then_some((seen, missing))
        });
        let text = pairs.next().map(|(seen, missing)| {
            format!(
                "a program on {} has read {}, and now reads old bytes. An earlier write is not visible yet: {}. The two \
                 are not ordered. A read, a flush, a message or immediate data after the earlier write orders them. So \
                 does a native atomic write.",
                self.hosts[seen.host],
                self.describe(seen.from, &seen.send),
                self.describe(missing.from, &missing.send),
            )
        });
        for write in &mut self.late.overtaking {
            write.is_seen |= overlap(write.part, part);
        }
        let Some(text) = text else {
            return;
        };
        let known = &mut self.late.early_reads;
        if known.len() < MOST && !known.contains(&text) {
            if known.is_empty() {
                eprintln!("rpma-sim: {text}");
            }
            known.push(text);
        }
    }
}

impl Fabric {
    /// Lets devices do the work that they keep back for some time, and makes all writes visible
    /// that they have executed. Use it in a test that looks at a peer's memory without a message
    /// from the peer.
    pub fn settle(&self) {
        let mut state = self.shared().lock();
        state.run_all_deferred();
        state.land(|_| true);
    }

    /// Returns early reads of programs, as text for people.
    ///
    /// A connection posts two writes, for instance data and then a flag. A program reads the new
    /// bytes of the second write, and then the old bytes in the place of the first one. This is an
    /// early read: the device had executed both writes, and the first one was not visible yet.
    /// There are up to 100 different texts. The first one is also printed.
    ///
    /// An early read is harmless if the program checks that all data is there, for instance by a
    /// checksum. It is a fault if the program relies on a flag.
    ///
    /// Early reads happen on devices that [reorder](crate::Profile::STRICT). The fabric finds
    /// those that the program makes with `read_at` or `load_u64`, or reports by
    /// [`seen`](crate::seen).
    #[must_use]
    pub fn early_reads(&self) -> Vec<String> {
        self.shared().lock_to_look().late.early_reads.clone()
    }
}

/// The calling thread has read bytes.
pub(crate) fn read(start: *const u8, len: usize) {
    // A check looks at images.
    if is_checking() {
        return;
    }
    looks_at_memory();
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let part = Part {
        address: start.cast_mut(),
        len,
    };
    let fabrics = with_fabrics(|fabrics| fabrics.clone());
    for shared in fabrics.iter().filter_map(Weak::upgrade) {
        shared.lock_quietly().is_read(part);
    }
}
