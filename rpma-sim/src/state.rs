//! The parts of a fabric, under its one lock.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::{Index, IndexMut};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use crate::choices::Choices;
use crate::cm::Id;
use crate::cq::{Channel, Cq};
use crate::device::Nic;
use crate::fail::{Failures, Fate};
use crate::late::LateWrites;
use crate::links::Links;
use crate::memory::{Mr, Pd};
use crate::order::{Effects, Order};
use crate::panics::Panics;
use crate::power::{NO_POWER, Power, assert_not_checking};
use crate::profile::Profile;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::steps::Steps;
use crate::timer::{Clock, Timer};

/// A fabric. Every id and every host keeps it, so that it lives as long as anything that was made
/// in it is used.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Something has changed that a call waits for: an acknowledgement, or the end of a stream.
    pub(crate) changed: Changed,
    pub(crate) order: Arc<Order>,
    pub(crate) steps: Steps,
    pub(crate) panics: Panics,
}

#[derive(Debug, Default)]
pub(crate) struct Changed {
    count: AtomicU64,
    /// Threads that wait for `told`. They count themselves under the lock of the state.
    waiting: AtomicU64,
    told: Condvar,
}

impl Changed {
    pub(crate) fn notify_all(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.told.notify_all();
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl Shared {
    pub(crate) fn new(profile: Profile, seed: Option<u64>, choices: Choices) -> Arc<Self> {
        let order = Arc::new(Order::new(seed, choices));
        if seed.is_some() {
            order.watch();
        }
        let steps = Steps::default();
        Arc::new_cyclic(|weak: &Weak<Self>| Self {
            state: Mutex::new(State {
                clock: Clock::new(Weak::clone(weak), Arc::clone(&order.time)),
                usual: profile,
                profiles: Vec::new(),
                hosts: Vec::new(),
                nics: Vec::new(),
                pds: Table::starting_at(1),
                mrs: Table::starting_at(1),
                channels: Table::starting_at(1),
                cqs: Table::starting_at(1),
                srqs: Table::starting_at(1),
                qps: Table::starting_at(17),
                ids: Table::starting_at(1),
                failures: Failures::default(),
                power: Power::new(seed),
                links: Links::default(),
                late: LateWrites::default(),
                steps: steps.counter(),
                effects: Arc::clone(&order.effects),
                choices: Arc::clone(&order.choices),
            }),
            changed: Changed::default(),
            order,
            steps,
            panics: Panics::default(),
        })
    }

    /// For a call, which begins here: see [`Shared::point`].
    #[track_caller]
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        assert_not_checking();
        self.point(Location::caller());
        self.lock_quietly()
    }

    /// As [`lock`](Self::lock), for a test that looks at the fabric: no step, at which something
    /// happens.
    #[track_caller]
    pub(crate) fn lock_to_look(&self) -> MutexGuard<'_, State> {
        assert_not_checking();
        self.let_others_go_on(Location::caller());
        self.lock_quietly()
    }

    /// As [`lock`](Self::lock), in the middle of a step or in the background.
    pub(crate) fn lock_quietly(&self) -> MutexGuard<'_, State> {
        assert_not_checking();
        // Who panics under it has found a wrong use of verbs: the others go on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits, with the lock given back meanwhile, until `until` holds.
    pub(crate) fn wait_until<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        mut until: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'a, State> {
        while !until(&mut state) {
            let Some(thread) = self.waits_in_order() else {
                self.changed.waiting.fetch_add(1, Ordering::Relaxed);
                let told = self.changed.told.wait(state);
                state = told.unwrap_or_else(PoisonError::into_inner);
                self.changed.waiting.fetch_sub(1, Ordering::Relaxed);
                continue;
            };
            let seen = self.changed.count();
            drop(state);
            self.await_change(thread, seen);
            state = self.lock_quietly();
        }
        state
    }
}

#[derive(Debug)]
pub(crate) struct State {
    /// The profile of hosts that are added without one.
    pub(crate) usual: Profile,
    /// The profile of each host.
    pub(crate) profiles: Vec<Profile>,
    pub(crate) clock: Clock,
    /// Their names.
    pub(crate) hosts: Vec<String>,
    pub(crate) nics: Vec<Nic>,
    pub(crate) pds: Table<Pd>,
    pub(crate) mrs: Table<Mr>,
    pub(crate) channels: Table<Channel>,
    pub(crate) cqs: Table<Cq>,
    pub(crate) srqs: Table<Srq>,
    pub(crate) qps: Table<Qp>,
    pub(crate) ids: Table<Id>,
    pub(crate) failures: Failures,
    pub(crate) power: Power,
    pub(crate) links: Links,
    pub(crate) late: LateWrites,
    /// Counts the requests that were executed, with the calls.
    pub(crate) steps: Arc<AtomicU64>,
    pub(crate) effects: Arc<Effects>,
    pub(crate) choices: Arc<Choices>,
}

// SAFETY: a pointer inside leads to an object that stays until its call has taken it from the
// table. It is followed under the lock of the state, for fields that the caller does not touch at
// the same time, or compared.
unsafe impl Send for State {}

impl State {
    /// A call is made on the host of a device.
    pub(crate) fn call(&mut self, call: &'static str, nic: usize) -> Fate {
        self.before(call, nic);
        self.note_call(call, self.nics[nic].host);
        let nic = &self.nics[nic];
        if nic.is_dead() && !works_without_power(call) {
            Fate::refused(NO_POWER)
        } else {
            self.failures.call(call, nic.host)
        }
    }

    pub(crate) fn profile(&self, nic: usize) -> &Profile {
        &self.profiles[self.nics[nic].host]
    }

    pub(crate) fn profile_of(&self, qp: u32) -> &Profile {
        self.profile(self.qps[qp].nic)
    }

    pub(crate) fn nic_of(&self, addr: IpAddr) -> Option<usize> {
        self.nics.iter().position(|nic| nic.has(addr))
    }

    /// The host that has an address, with power or without.
    pub(crate) fn host_of_addr(&self, addr: IpAddr) -> Option<usize> {
        let mut nics = self.nics.iter();
        nics.find(|nic| nic.had(addr)).map(|nic| nic.host)
    }

    pub(crate) fn objects(&self, host: Option<usize>) -> BTreeMap<&'static str, usize> {
        let is = |of: usize| host.is_none_or(|host| host == of);
        let on = |nic: usize| is(self.nics[nic].host);
        let of_pd = |pd: u32| self.pds.get(pd).is_some_and(|pd| on(pd.nic));
        let counts = [
            ("pd", self.pds.count(|pd| on(pd.nic))),
            ("mr", self.mrs.count(|mr| of_pd(mr.pd))),
            (
                "comp_channel",
                self.channels.count(|channel| on(channel.nic)),
            ),
            ("cq", self.cqs.count(|cq| on(cq.nic))),
            ("srq", self.srqs.count(|srq| of_pd(srq.pd))),
            ("qp", self.qps.count(|qp| on(qp.nic))),
            ("cm_id", self.ids.count(|id| is(id.host))),
        ];
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Does the work that was put off until now; `true` if there was some.
    pub(crate) fn run_due(&mut self) -> bool {
        let mut ran = false;
        // Work that becomes due meanwhile waits, so that other threads get the lock: retries may
        // take longer than their time-out.
        let now = self.clock.now();
        while let Some(timer) = self.clock.due(now) {
            self.alarm(timer);
            ran = true;
        }
        if ran {
            self.clock.set_alarm();
        }
        self.note_devices();
        ran
    }

    fn alarm(&mut self, timer: Timer) {
        self.effects
            .happens(|| format!("the timer of {}", timer.name()));
        match timer {
            Timer::Try { qp, attempt } => self.try_again(qp, attempt),
            Timer::Unresolved { id } => self.unresolved(id),
            Timer::Timewait { id } => self.timewait_is_over(id),
            Timer::Unanswered { id, stage } => self.unanswered(id, stage),
            Timer::LastReceive { qp } => self.last_receive(qp),
            Timer::Arrival { qp, delay } => self.arrived(qp, Some(delay)),
            Timer::Late { number } => self.late_lands(number),
            Timer::Wake => {}
        }
    }
}

/// Objects by their numbers. No number is given twice.
#[derive(Debug)]
pub(crate) struct Table<T> {
    next: u32,
    objects: BTreeMap<u32, T>,
}

impl<T> Table<T> {
    fn starting_at(next: u32) -> Self {
        Self {
            next,
            objects: BTreeMap::new(),
        }
    }

    /// Adds the object, made with its own number.
    pub(crate) fn add(&mut self, make: impl FnOnce(u32) -> T) -> u32 {
        let number = self.next;
        self.next += 1;
        self.objects.insert(number, make(number));
        number
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.objects.get(&number)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.objects.get_mut(&number)
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        self.objects.remove(&number)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.objects
            .iter()
            .map(|(number, object)| (*number, object))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.objects.values_mut()
    }

    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    fn count(&self, is: impl Fn(&T) -> bool) -> usize {
        self.objects.values().filter(|object| is(object)).count()
    }
}

/// For objects that a caller has a pointer to, and that so exist.
impl<T> Index<u32> for Table<T> {
    type Output = T;

    fn index(&self, number: u32) -> &T {
        self.get(number).expect(DESTROYED)
    }
}

impl<T> IndexMut<u32> for Table<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        self.get_mut(number).expect(DESTROYED)
    }
}

/// Whether a call only takes leave of a device.
fn works_without_power(call: &str) -> bool {
    call.starts_with("ibv_destroy")
        || matches!(
            call,
            "ibv_dealloc_pd" | "ibv_dereg_mr" | "ibv_poll_cq" | "ibv_modify_qp"
        )
}

const DESTROYED: &str = "a call is given an object that was destroyed";
