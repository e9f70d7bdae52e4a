//! Cuts of the power, at every event of a run.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use super::explain;
use super::files;
use super::image::{Bytes, Images, JointImages, Plan, Share, Shares, Shown, lines_of};
use super::pmem::{Pmem, Tracked};
use super::random::Random;
use super::store::Store;
use super::stores::left_out;
use crate::explore::Script;
use crate::fabric::Fabric;
use crate::here;
use crate::order::Order;
use crate::repeat::number;
use crate::state::State;

/// How many images of a memory [`Cut::images`] gives at most.
const IMAGES: usize = 100;

/// The same between two stores of a program, as there are many of these events.
const IMAGES_BETWEEN: usize = 10;

/// How many of the last events a report has.
const LAST: usize = 8;

/// A moment at which the power may fail: see [`Fabric::on_every_event`].
pub struct Cut<'a> {
    pub(crate) pmems: &'a [Tracked],
    pub(crate) hosts: &'a [String],
    event: u64,
    what: String,
    /// How many images there are at most, if the check does not choose the limit.
    usual: usize,
    seed: u64,
    /// Only these bytes, to find those that matter in an image that failed.
    only: Option<Bytes>,
    /// The bytes of the last image, for each memory.
    shown: RefCell<Bytes>,
    images: Cell<u64>,
    /// How many images of each memory the check was shown.
    shares: RefCell<Shares>,
    /// The hashes of the images that it was shown, if they are counted.
    digests: Option<RefCell<Vec<u64>>>,
}

impl<'a> Cut<'a> {
    /// Returns the number of the event, 1 being the first.
    #[must_use]
    pub fn event(&self) -> u64 {
        self.event
    }

    /// Describes the event that has just happened, or is about to happen.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Returns the contents that a memory may have if the power fails now, at most 100 images. The
    /// limit is 10 at the events of a program's [stores](crate::stored) and of its calls of
    /// [`sync`](crate::sync).
    ///
    /// First come the combinations of the likely outcomes of each line. The likely outcomes of a
    /// line are: no write, each write alone, and each write after all earlier ones, whole or torn.
    /// If the number of these combinations exceeds the limit, the order is another one. First come
    /// an image with no write and one with all writes. Then come images in which some lines have
    /// all writes and the others none, or in which one line has another outcome. The
    /// [seed](Fabric::set_seed) chooses the rest.
    ///
    /// [`joint_images`](Self::joint_images) returns images of several memories that lose their
    /// power together.
    ///
    /// # Panics
    ///
    /// If it is memory of another fabric.
    pub fn images<'c>(&'c self, pmem: &Pmem) -> Images<'c> {
        self.images_up_to(pmem, self.usual)
    }

    /// As [`images`](Self::images), with another limit.
    ///
    /// # Panics
    ///
    /// If it is memory of another fabric, or the limit is 0.
    pub fn images_up_to<'c>(&'c self, pmem: &Pmem, limit: usize) -> Images<'c> {
        let plan = self.plan(&[pmem], limit);
        Images::new(self.shown_to(), pmem.index, plan)
    }

    /// The same for several memories that lose their power at once, such as replicas: an image of
    /// each. There are up to 100 of these sets. First come those in which each memory has all of
    /// its latest writes, or no write of them.
    ///
    /// # Panics
    ///
    /// If one is memory of another fabric, or named twice, or if the list is empty.
    pub fn joint_images<'c>(&'c self, pmems: &[&Pmem]) -> JointImages<'c> {
        self.joint_images_up_to(pmems, self.usual)
    }

    /// As [`joint_images`](Self::joint_images), with another limit.
    ///
    /// # Panics
    ///
    /// As [`joint_images`](Self::joint_images), and if the limit is 0.
    pub fn joint_images_up_to<'c>(&'c self, pmems: &[&Pmem], limit: usize) -> JointImages<'c> {
        let plan = self.plan(pmems, limit);
        JointImages::new(self.shown_to(), indices_of(pmems), plan)
    }

    fn plan(&self, pmems: &[&Pmem], limit: usize) -> Plan {
        let is_own = |pmem: &&Pmem| {
            let own = self.pmems.get(pmem.index);
            own.is_some_and(|own| own.path == pmem.path())
        };
        assert!(pmems.iter().all(is_own), "memory of another fabric");
        assert!(limit > 0 && !pmems.is_empty(), "no images");
        let indices = indices_of(pmems);
        let mut sorted = indices.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert!(sorted.len() == indices.len(), "a memory twice");
        if self.only.is_some() {
            return Plan::default();
        }
        let seed = self.seed ^ self.event << 16 ^ indices[0] as u64;
        let lines = lines_of(self.pmems, &indices);
        Plan::new(&lines, limit, Random::new(seed))
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn name(&self, index: usize) -> String {
        let tracked = &self.pmems[index];
        format!("{} of {}", tracked.name, self.hosts[tracked.host])
    }

    pub(crate) fn shares(&self) -> Shares {
        self.shares.borrow().clone()
    }

    fn shown_to(&self) -> Shown<'_> {
        Shown {
            pmems: self.pmems,
            only: self.only.as_ref(),
            shown: &self.shown,
            images: &self.images,
            shares: &self.shares,
            digests: self.digests.as_ref(),
        }
    }

    fn with(&self, only: Bytes) -> Cut<'a> {
        Cut {
            what: self.what.clone(),
            only: Some(only),
            shown: RefCell::default(),
            images: Cell::new(0),
            shares: RefCell::default(),
            digests: None,
            ..*self
        }
    }
}

fn indices_of(pmems: &[&Pmem]) -> Vec<usize> {
    pmems.iter().map(|pmem| pmem.index).collect()
}

impl fmt::Debug for Cut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cut")
            .field("event", &self.event)
            .field("what", &self.what)
            .finish_non_exhaustive()
    }
}

type Check<'a> = Box<dyn FnMut(&Cut<'_>) + Send + 'a>;

/// A check that is called at every event.
pub(crate) struct Watch {
    check: Check<'static>,
    /// Whether something has happened since it looked.
    pub(super) is_due: bool,
    visited: Visited,
    /// If there is one, the check is called at this event alone.
    only: Option<u64>,
    recent: VecDeque<String>,
    /// When the run began, and how long checks had taken by then.
    began: Instant,
    spent: Duration,
    failed: Option<Loss>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("visited", &self.visited)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// The number of events and images that [`Fabric::on_every_event`] has looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Visited {
    /// The moments at which the power could have failed.
    pub events: u64,
    /// The images that were looked at.
    pub images: u64,
    /// The number of events at which the check did not see all images of a memory. There were too
    /// many ([`Cut::images`]), or the check did not take all of them. At all other events the
    /// check saw all images of each memory that it asked for.
    pub sampled: u64,
}

impl Visited {
    pub(crate) fn add(&mut self, more: Self) {
        self.events += more.events;
        self.images += more.images;
        self.sampled += more.sampled;
    }
}

/// Reports a failed check: the bytes that were lost or came too early, their writers, and the
/// calls that would have saved them.
#[derive(Clone, PartialEq, Eq)]
pub struct Loss {
    report: String,
    event: u64,
    /// The images that the check has failed with, by the names of their memories.
    images: Vec<(String, Store)>,
}

impl Loss {
    /// Adds the event at which the program left the image with which a recovery began.
    pub(crate) fn of_recovery(mut self, event: u64, what: &str) -> Self {
        self.report += &format!(
            "The recovery lost its power as well. It began with an image that the program may leave at event {event}, \
             {what}.\n"
        );
        self.event = event;
        self
    }

    /// Adds the variable that runs its event alone. If that is set, writes the images and adds
    /// their paths.
    pub(crate) fn with_files(mut self, order: &Order) -> Self {
        let also = match order.seed() {
            Some(_) if order.choices.explores() => {
                " A run of explore takes RPMA_SIM_ORDER as well.".to_owned()
            }
            Some(seed) => format!(" A run of repeatable takes RPMA_SIM_SEED={seed} as well."),
            None => String::new(),
        };
        self.report += &match number(files::EVENT) {
            Some(_) => files::write(&self.images),
            None => format!(
                "Run it again with {}={}: the check is called at this event alone, and its image is written to a \
                 file.{also}\n",
                files::EVENT,
                self.event
            ),
        };
        self
    }
}

impl fmt::Debug for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An image may be long.
        f.debug_struct("Loss")
            .field("report", &self.report)
            .field("event", &self.event)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report)
    }
}

impl std::error::Error for Loss {}

thread_local! {
    /// This thread is in a check, and has the lock of a fabric.
    static CHECKING: Cell<bool> = const { Cell::new(false) };
}

/// Panics in a check that calls the fabric, which would wait for itself.
pub(crate) fn assert_not_checking() {
    const WRONG: &str = "a check of on_every_event looks at images: it cannot call the fabric or rpma, except \
                         PmemMap::open of an image's path";
    if is_checking() {
        refuse(WRONG);
    }
}

pub(crate) fn is_checking() -> bool {
    CHECKING.get()
}

/// Ends a check that would wait for itself.
pub(crate) fn refuse(why: &str) -> ! {
    // The panic may be a hidden one, or out of a call that cannot unwind: then the process is
    // aborted.
    eprintln!("{why}");
    panic!("{why}");
}

impl Fabric {
    /// Runs a program, and calls `check` at every event of it at which the power could fail: in the
    /// middle of each access of a device to persistent memory and after it, after each operation,
    /// around each write-back of caches, and between a poll of the program and its next call.
    /// `check` must panic if an image breaks a promise of the program.
    ///
    /// A host with [`Platform::Eadr`](crate::Platform::Eadr) has more events: during each store to
    /// its persistent memory by `write_at`, `store_u64` and their like, at each call of
    /// [`stored`](crate::stored), and before each call of [`sync`](crate::sync). They are no
    /// [steps](Self::steps), and take no time. If `check` would wait for a
    /// [`sync::Mutex`](crate::sync::Mutex) that the program holds, the event is left out.
    ///
    /// Any thread may call `check`, under the lock of the fabric, so that no other event comes
    /// meanwhile. So `check` must not use the fabric or rpma. `PmemMap::open` of an [image's
    /// path](crate::Image::path), and calls of that map, are the exception. Any other use inside of
    /// a call of verbs ends the process.
    ///
    /// `check` must not wait for a lock that the program holds while it calls rpma. Reading from
    /// memory (`read_at`) is also such a call. On eADR, so are stores and calls of `rpma::sync`,
    /// for locks of std. Except at the events that are left out, a check that takes a
    /// [`sync::Mutex`](crate::sync::Mutex) of the program while the program holds it fails, and
    /// the message names the lock.
    ///
    /// From this call on, and also after the run, devices keep flushes, reads and atomic writes
    /// back for some milliseconds. They execute them earlier if a program polls the completion
    /// queue. So the power can fail between a post and its execution.
    ///
    /// The test must record the promises of the program, for instance in a counter that is raised
    /// when an append has returned.
    ///
    /// A failure is reported when the program has ended ([`Loss`]). To find the bytes that matter,
    /// the fabric calls `check` again with parts of the image that failed. So `check` must not
    /// depend on an earlier call of `check`. It must also accept a poisoned lock
    /// (`PoisonError::into_inner`).
    ///
    /// The report names each operation by the program's line that posts it. A library above rpma
    /// names the lines of its callers with [`Place`](crate::Place).
    ///
    /// # One event alone
    ///
    /// With the environment variable `RPMA_SIM_EVENT=17`, the check is called at event 17 alone.
    /// If it fails there, its images are written to files in `RPMA_SIM_IMAGES` (by default the
    /// system's temporary directory), and the report has the paths. The variables hold for the
    /// whole process, so run only one test with them.
    ///
    /// Event 17 is the same event in each run if the fabric has a [seed](Fabric::seeded), or if
    /// the program has one thread.
    ///
    /// # Panics
    ///
    /// If a check fails; if `run` panics; if the fabric is watched already; if `RPMA_SIM_EVENT` is
    /// not a number.
    pub fn on_every_event<'a, T>(
        &self,
        check: impl FnMut(&Cut<'_>) + Send + 'a,
        run: impl FnOnce() -> T,
    ) -> T {
        self.find_loss(check, run).unwrap_or_else(|loss| {
            // Without the backtrace of a panic here, which has no useful information.
            if !explain::is_quiet() {
                eprintln!("{loss}");
            }
            resume_unwind(Box::new(loss.report))
        })
    }

    /// Does the same as [`on_every_event`](Self::on_every_event), and returns the loss, for tests
    /// that expect one.
    ///
    /// # Errors
    ///
    /// The first check that fails.
    ///
    /// # Panics
    ///
    /// If `run` panics and no check has failed; if the fabric is watched already; if
    /// `RPMA_SIM_EVENT` is not a number.
    pub fn find_loss<'a, T>(
        &self,
        check: impl FnMut(&Cut<'_>) + Send + 'a,
        run: impl FnOnce() -> T,
    ) -> Result<T, Loss> {
        let found = self.find_loss_at(number(files::EVENT), check, run);
        found.map_err(|loss| loss.with_files(&self.shared().order))
    }

    /// As [`find_loss`](Self::find_loss), at each event or at one, without files.
    pub(crate) fn find_loss_at<'a, T>(
        &self,
        only: Option<u64>,
        check: impl FnMut(&Cut<'_>) + Send + 'a,
        run: impl FnOnce() -> T,
    ) -> Result<T, Loss> {
        explain::be_able_to_be_quiet();
        let check: Check<'a> = Box::new(check);
        // SAFETY: only the lifetime changes. The check is in `power.watch`, and is called under the
        // lock of the fabric by any thread that finds it there. A panic of `run` is caught, and the
        // check is taken away after it, before this function ends, and with it `'a`.
        let check = unsafe { std::mem::transmute::<Check<'a>, Check<'static>>(check) };
        let mut state = self.shared().lock();
        assert!(state.power.watch.is_none(), "the fabric is watched already");
        state.power.keeps_back = true;
        state.failures.begin_run();
        state.power.watch = Some(Watch {
            check,
            is_due: true,
            visited: Visited::default(),
            only,
            recent: VecDeque::new(),
            began: state.clock.now(),
            spent: state.power.spent,
            failed: None,
        });
        drop(state);
        self.shared().order.watch();
        self.shared().order.choices.with_script(Script::begin);
        let result = catch_unwind(AssertUnwindSafe(run));
        // Not as a call: if there is a seed that may panic, and the check would not be removed.
        let mut state = self.shared().lock_quietly();
        state.visit(|_| "at the end".to_owned());
        let watch = state.power.watch.take().expect("it is still there");
        state.power.visited.add(watch.visited);
        drop(state);
        if let Some(only) = only.filter(|only| *only > watch.visited.events) {
            let (variable, events) = (files::EVENT, watch.visited.events);
            eprintln!(
                "{variable}={only}: the check was never called, as the run had {events} events"
            );
        }
        match (watch.failed, result) {
            (Some(loss), _) => Err(loss),
            (None, Ok(value)) => Ok(value),
            (None, Err(panic)) => resume_unwind(panic),
        }
    }

    /// Returns the numbers of events and images so far.
    #[must_use]
    pub fn visited(&self) -> Visited {
        self.shared().lock_to_look().power.visited
    }

    /// Sets the seed by which images are sampled from now on. The default is the fabric's seed, or
    /// 0x5EED if it has none. The message of a failed check contains the seed.
    pub fn set_seed(&self, seed: u64) {
        self.shared().lock().power.seed = seed;
    }
}

impl State {
    /// Something has happened after which a program may promise more.
    pub(crate) fn stir(&mut self) {
        if let Some(watch) = &mut self.power.watch {
            watch.is_due = true;
        }
    }

    /// The time without that of checks.
    pub(crate) fn program_time(&self) -> Instant {
        let now = self.clock.now();
        now.checked_sub(self.power.spent).unwrap_or(now)
    }

    /// A program makes a call: the power could fail before.
    pub(crate) fn before(&mut self, call: &str, nic: usize) {
        if self.power.watch.as_ref().is_some_and(|watch| watch.is_due) {
            let host = self.nics[nic].host;
            self.visit(|state| format!("before {call} on {}", state.hosts[host]));
        }
    }

    /// The power could fail now.
    pub(crate) fn visit(&mut self, what: impl FnOnce(&Self) -> String) {
        let Some(mut watch) = self.power.watch.take() else {
            if self.choices.explores() {
                self.note_event(&what(self));
            }
            return;
        };
        watch.is_due = false;
        // The fabric's time first: the time until the end of this event is not the program's. So
        // the next one is later.
        let (now, began) = (self.clock.now(), Instant::now());
        if watch.failed.is_none() {
            for index in 0..self.power.pmems.len() {
                self.look(index);
            }
            let what = what(self);
            self.note_event(&what);
            self.check(&mut watch, what, now);
            self.failures.events = watch.visited.events;
        }
        if !self.clock.is_virtual() {
            self.power.spent += began.elapsed();
        }
        self.power.watch = Some(watch);
    }

    fn check(&self, watch: &mut Watch, what: String, now: Instant) {
        watch.visited.events += 1;
        let spent = self.power.spent.saturating_sub(watch.spent);
        let since = now.saturating_duration_since(watch.began);
        let since = Duration::from_micros(since.saturating_sub(spent).as_micros() as u64);
        if watch.recent.len() == LAST {
            watch.recent.pop_front();
        }
        let event = watch.visited.events;
        let text = format!("{event}, after {since:?}: {what}");
        watch.recent.push_back(text);
        if watch.only.is_some_and(|only| only != event) {
            return;
        }
        // In an exploration each sequence of events samples other images. Each history is checked once.
        let seed = match self.choices.with_script(Script::is_new) {
            Some(Some(sequence)) => self.power.seed ^ sequence,
            Some(None) => return,
            None => self.power.seed,
        };
        let cut = Cut {
            pmems: &self.power.pmems,
            hosts: &self.hosts,
            event,
            what,
            usual: match left_out() {
                Some(_) => IMAGES_BETWEEN,
                None => IMAGES,
            },
            seed,
            only: None,
            shown: RefCell::default(),
            images: Cell::new(0),
            shares: RefCell::default(),
            digests: self.choices.explores().then(RefCell::default),
        };
        let shared = self.clock.shared().upgrade();
        let _checking = shared.map(|shared| {
            let thread = here::thread_in(&shared);
            shared.order.begin_check(thread)
        });
        CHECKING.set(true);
        let checked = explain::call(|| (watch.check)(&cut));
        watch.visited.images += cut.images.get();
        if let Some(digests) = &cut.digests {
            self.choices
                .with_script(|script| script.images.extend(digests.take()));
        }
        watch.visited.sampled += u64::from(!cut.shares.borrow().values().all(Share::is_all));
        if let (Err(failed), None | Some(false)) = (checked, left_out()) {
            let images = cut.shown.borrow().clone();
            let named = images
                .iter()
                .map(|(index, store)| (cut.name(*index), store.clone()))
                .collect();
            let mut again = |images: &Bytes| {
                let cut = cut.with(images.clone());
                explain::call(|| (watch.check)(&cut))
            };
            let mut report = explain::report(&cut, self, &failed, images, &mut again);
            report += &explain::history(self, &watch.recent);
            watch.failed = Some(Loss {
                report,
                event,
                images: named,
            });
        }
        CHECKING.set(false);
    }
}
