//! The keep-alive of a connection ([`ConnCfg::set_keep_alive`]): notices when the host of a peer is
//! gone.
//!
//! It has no thread and no descriptor, because a timerfd would not stand still with a simulated
//! clock. A call that waits for the connection, or the program, asks it whether something is due,
//! after the queues were polled. [`Rule`] decides from the time and the [`Signs`] alone. The rest
//! of this file carries its decisions out.
//!
//! The end has two steps. First the queue pair goes to the error state, so that everything in
//! flight completes. When these completions have been polled, or after a second, the event of the
//! end is kept for the calls that return events. So a program gets the completions first.
//!
//! The signs of life are the numbers of the last completions in the two queues, which the rings
//! have in any case. So the data path has no work for a keep-alive.
//!
//! [`ConnCfg::set_keep_alive`]: crate::ConnCfg::set_keep_alive

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::Conn;
use crate::clock;
use crate::error::{Error, Result};
use crate::event::ConnEvent;
use crate::failure::Failure;
use crate::slots::{ConnState, Signs};
use crate::status::WcStatus;

const PAUSE: Duration = Duration::from_millis(1);

/// When the peer is asked, and when it is gone.
///
/// It looks at steps of 3/16 of the keep-alive D. A step without a sign posts a probe. Three steps
/// later without a sign the peer is gone:
///
/// | | after the last sign, in steps | of D |
/// |---|---|---|
/// | a step begins | at most 1 | 3/16 |
/// | the probe is posted | 1 to 2 | 3/16 to 6/16 |
/// | the end | 4 to 5 | 12/16 to 15/16 |
///
/// So the answer to a probe may take 9/16 of D, and a pause of D/2 ends no connection. The rest up
/// to D is for a thread that runs late. With steps of D/4, a pause of D/2 would end at the moment
/// of the last look.
///
/// The last two looks decide, and lie a step apart. An answer that was here already, because this
/// host or the program stood still, is found between them. If the last look itself comes a step too
/// late, this happened again, and it is repeated once.
#[derive(Debug)]
struct Rule {
    step: Duration,
    due: Instant,
    stage: Stage,
    signs: Signs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// There was a sign, within the last step.
    Alive,
    /// A probe was posted then.
    Asked(Instant),
    /// No answer came in two steps.
    Overdue,
    /// As `Overdue`, and the look after it came too late.
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// To look again at this time.
    Look(Instant),
    /// A probe, and to look again at this time.
    Probe(Instant),
    /// The end.
    End,
}

impl Rule {
    fn new(keep_alive: Duration, now: Instant, signs: Signs) -> Self {
        let step = step(keep_alive);
        Self {
            step,
            due: now + step,
            stage: Stage::Alive,
            signs,
        }
    }

    /// Returns the step that is due now. The caller has polled the queues just before.
    fn look(&mut self, now: Instant, signs: Signs) -> Step {
        if now < self.due {
            return Step::Look(self.due);
        }
        let is_late = now >= self.due + self.step;
        if self.signs != signs {
            self.signs = signs;
            self.stage = Stage::Alive;
            // The sign may have come just after the last look: the steps do not drift.
            self.due = if is_late { now } else { self.due } + self.step;
            return Step::Look(self.due);
        }
        let stage = self.stage;
        self.stage = match stage {
            Stage::Alive => Stage::Asked(now),
            Stage::Asked(since) if now < since + 2 * self.step => stage,
            Stage::Asked(_) => Stage::Overdue,
            Stage::Overdue if is_late => Stage::Late,
            Stage::Overdue | Stage::Late => return Step::End,
        };
        self.due = match stage {
            Stage::Asked(since) if stage == self.stage => since + 2 * self.step,
            _ => now + self.step,
        };
        match stage {
            Stage::Alive => Step::Probe(self.due),
            _ => Step::Look(self.due),
        }
    }
}

fn step(keep_alive: Duration) -> Duration {
    /// The clock can express an instant that lies so far ahead.
    const LONGEST: Duration = Duration::from_secs(1 << 32);
    (keep_alive / 16).min(LONGEST) * 3
}

#[derive(Debug)]
pub(super) struct KeepAlive {
    limit: Duration,
    /// [`ConnEvent::Established`] was taken. An accepting side can post before that, but the peer
    /// may not have taken the answer.
    is_established: AtomicBool,
    /// It ends the connection, or has ended it: set before the queue pair goes to the error state.
    is_ending: AtomicBool,
    phase: Mutex<Phase>,
}

#[derive(Debug)]
enum Phase {
    /// The connection is not established.
    Before,
    Watching(Rule),
    /// See [`KeepAlive::is_ending`].
    Ending,
    /// The connection ended otherwise.
    Over,
}

#[derive(Debug)]
enum PeerState {
    /// It is to be looked at again then, if at all.
    Until(Option<Instant>),
    /// The peer is gone, for this reason.
    Gone(Failure),
    /// The connection has ended with this event, which is kept.
    Ended(ConnEvent),
}

impl KeepAlive {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            is_established: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            phase: Mutex::new(Phase::Before),
        }
    }

    pub(super) fn established(&self) {
        self.is_established.store(true, Ordering::Release);
    }
}

impl Conn {
    /// Keeps watch over the peer ([`ConnCfg::set_keep_alive`](crate::ConnCfg::set_keep_alive)), and
    /// returns the time of the next call. `None`: the connection has no keep-alive, or the
    /// connection ended, but not by its keep-alive.
    ///
    /// For an event loop that waits for the descriptors of the connection and its queues itself.
    /// At the returned time, or earlier, the loop polls the queues until they are empty and then
    /// calls this. Completions that stay in a queue are no sign of life, so a loop that never
    /// polls loses a connection to a live peer. [`next`](Self::next) and
    /// [`Wait::next`](crate::wait::Wait::next) keep watch themselves. A loop around
    /// [`get_next_fd`](Self::get_next_fd) calls this only to get the time of its next call of
    /// `next`.
    ///
    /// A late call never ends the connection of a live peer. If the peer is gone and every call is
    /// late, the fourth call ends the connection.
    ///
    /// ```no_run
    /// # use std::time::Instant;
    /// # use rpma::{Conn, Error, Result, Wc};
    /// # fn serve(wc: &Wc) {}
    /// # fn sleep_until_readable(conn: &Conn, until: Option<Instant>) {}
    /// fn serve_one(conn: &Conn) -> Result<()> {
    ///     conn.set_nonblocking(true)?;
    ///     conn.get_cq().set_nonblocking(true)?;
    ///     let mut wcs = [Wc::default(); 16];
    ///     loop {
    ///         // Takes the queue's event, if there is one, and arms the queue.
    ///         match conn.get_cq().wait() {
    ///             Ok(()) | Err(Error::NoCompletion) => {}
    ///             Err(error) => return Err(error),
    ///         }
    ///         loop {
    ///             let count = conn.get_cq().get_wc(&mut wcs)?;
    ///             if count == 0 {
    ///                 break;
    ///             }
    ///             wcs[..count].iter().for_each(serve);
    ///         }
    ///         let until = conn.keep_alive()?;
    ///         match conn.next_event() {
    ///             // Sleeps for the descriptors of the connection and of its queue.
    ///             Err(Error::NoEvent) => sleep_until_readable(conn, until),
    ///             Ok(event) if !event.is_end() => {}
    ///             ended => return ended.map(drop),
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Ended`] in each call after the keep-alive has ended the connection. The operations
    /// in flight have completed before. [`next_event`](Self::next_event) returns the same event, or
    /// has done so.
    pub fn keep_alive(&self) -> Result<Option<Instant>> {
        let due = self.watch_peer();
        match self.ended() {
            Some(event) if self.is_ended_by_keep_alive() && due.is_none() => {
                Err(Error::Ended(Box::new(event.clone())))
            }
            _ => Ok(due),
        }
    }

    /// Takes the steps that are due, and returns the time of the next one. For a caller that has
    /// just polled the queues until they were empty. The event of the end is one of the kept
    /// events.
    pub(crate) fn watch_peer(&self) -> Option<Instant> {
        let of = self.keep_alive.as_ref()?;
        loop {
            match self.advance(of) {
                PeerState::Until(due) => return due,
                PeerState::Gone(failure) => self.queues.end_after(Some(failure)),
                PeerState::Ended(event) => {
                    self.log(&event);
                    return None;
                }
            }
        }
    }

    pub(crate) fn has_keep_alive(&self) -> bool {
        self.keep_alive.is_some()
    }

    /// Whether the keep-alive has ended it, or ends it now.
    pub(crate) fn is_ended_by_keep_alive(&self) -> bool {
        // A probe that fails ends it before its next turn.
        self.has_keep_alive() && (self.queues.slots.is_silent() || self.keep_alive_ends_it())
    }

    /// Whether the keep-alive's own event is the end that is reported. On iWARP, the error state of
    /// the queue pair closes the stream, and the connection manager reports that at once.
    pub(super) fn keep_alive_ends_it(&self) -> bool {
        let is_ending = |of: &KeepAlive| of.is_ending.load(Ordering::Acquire);
        self.keep_alive.as_deref().is_some_and(is_ending)
    }

    /// As [`watch_peer`](Self::watch_peer), for a caller that has not polled: it only completes an
    /// end that has begun.
    pub(super) fn watch_the_end(&self) -> Option<Instant> {
        if self.is_ended_by_keep_alive() {
            self.watch_peer()
        } else {
            None
        }
    }

    /// Under the lock. The caller logs, because a program's logger may call anything.
    fn advance(&self, of: &KeepAlive) -> PeerState {
        let mut phase = clock::lock(&of.phase);
        let (slots, now) = (&self.queues.slots, clock::now());
        if let Phase::Before = *phase {
            let may_come = matches!(slots.state(), ConnState::Connecting | ConnState::Open);
            if may_come && !of.is_established.load(Ordering::Acquire) {
                return PeerState::Until(Some(now + step(of.limit)));
            }
            *phase = Phase::Watching(Rule::new(of.limit, now, slots.signs()));
        }
        match &mut *phase {
            Phase::Watching(rule) => {
                let failure = match slots.state() {
                    ConnState::Open => match rule.look(now, slots.signs()) {
                        Step::Look(due) => return PeerState::Until(Some(due)),
                        Step::Probe(due) => match self.post_probe() {
                            Ok(()) => return PeerState::Until(Some(due)),
                            Err(failure) => Some(failure),
                        },
                        Step::End => Some(Failure::Silent {
                            keep_alive: of.limit,
                        }),
                    },
                    // A probe has failed.
                    _ if slots.is_silent() => slots.failure(),
                    _ => None,
                };
                let Some(failure) = failure else {
                    *phase = Phase::Over;
                    return PeerState::Until(None);
                };
                // A thread that finds the phase finds the failure.
                slots.fail(failure);
                of.is_ending.store(true, Ordering::Release);
                *phase = Phase::Ending;
                PeerState::Gone(failure)
            }
            Phase::Ending if slots.end_of_waits().and(slots.event()).is_some() => {
                PeerState::Until(None)
            }
            Phase::Ending if !slots.are_sends_done() && !slots.is_quiet() => {
                PeerState::Until(Some(now + PAUSE))
            }
            Phase::Ending => {
                let status = slots.failure().map_or(0, status_of);
                let event = ConnEvent::Lost { status };
                let is_first = slots.ended_with(&event);
                if is_first {
                    self.push_event(event.clone());
                }
                // Threads that sleep elsewhere, now that the event is there.
                slots.end_waits();
                if is_first {
                    PeerState::Ended(event)
                } else {
                    PeerState::Until(None)
                }
            }
            Phase::Before | Phase::Over => PeerState::Until(None),
        }
    }

    fn post_probe(&self) -> Result<(), Failure> {
        let Self { queues, .. } = self;
        queues
            .slots
            .post_probe(|wr_id| queues.qp.post(&mut queues.question(), wr_id))
    }
}

/// The status of the event with which a connection ends for this reason.
fn status_of(failure: Failure) -> i32 {
    match failure {
        Failure::Silent { .. }
        | Failure::Probe {
            status: WcStatus::RETRY_EXC_ERR,
        } => -Errno::TIMEDOUT.raw_os_error(),
        Failure::Post { errno, .. } => -errno,
        // The queue pair was in the error state before, or the device's reason is no errno.
        Failure::Probe { .. } | Failure::Operation(_) | Failure::Device => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: Duration = Duration::from_secs(16);
    const STEP: Duration = Duration::from_secs(3);

    /// A peer, seen by a program that looks when something is due.
    struct Seen {
        rule: Rule,
        start: Instant,
        now: Instant,
        signs: Signs,
        probes: u32,
    }

    impl Seen {
        fn new() -> Self {
            let start = Instant::now();
            Self {
                rule: Rule::new(D, start, Signs::default()),
                start,
                now: start,
                signs: Signs::default(),
                probes: 0,
            }
        }

        fn sign(&mut self) {
            self.signs.sends += 1;
        }

        fn look(&mut self, seconds: f64) -> Step {
            self.now = self.start + Duration::from_secs_f64(seconds);
            let step = self.rule.look(self.now, self.signs);
            self.probes += u32::from(matches!(step, Step::Probe(_)));
            step
        }

        /// Looks each time that something is due, until the end; the seconds until then.
        fn until_the_end(&mut self) -> f64 {
            loop {
                let due = self.rule.due - self.start;
                if self.look(due.as_secs_f64()) == Step::End {
                    return (self.now - self.start).as_secs_f64();
                }
            }
        }
    }

    /// Promise: silence of D ends the connection, and it ends after three quarters of D at the
    /// earliest, whenever the last sign came.
    #[test]
    fn the_end_comes_between_three_quarters_of_the_limit_and_the_limit() {
        for tenths in 0..30 {
            let last = f64::from(tenths) / 10.0;
            let mut seen = Seen::new();
            seen.look(last);
            seen.sign();
            let silent = seen.until_the_end() - last;
            assert!((12.0..=15.0).contains(&silent), "{silent} after {last}");
            assert_eq!(seen.probes, 1);
        }
    }

    /// Promise: an answer that comes within half of D after the probe is in time, and a connection
    /// that answers lives for ever. It is asked once in two steps.
    #[test]
    fn an_answer_after_half_the_limit_is_in_time() {
        let mut seen = Seen::new();
        let mut at = 3.0;
        for _ in 0..1_000 {
            let Step::Probe(_) = seen.look(at) else {
                panic!("{seen:?}", seen = seen.rule);
            };
            // The looks at 3 and 6 seconds find no sign, that at 9 seconds finds it.
            for after in [3.0, 6.0] {
                assert!(matches!(seen.look(at + after), Step::Look(_)));
            }
            seen.sign();
            assert!(matches!(seen.look(at + 9.0), Step::Look(_)));
            at += 12.0;
        }
        let mut seen = Seen::new();
        while seen.now < seen.start + 100 * D {
            let due = (seen.rule.due - seen.start).as_secs_f64();
            if let Step::Probe(_) = seen.look(due) {
                seen.sign();
            }
        }
        assert_eq!(seen.probes, 100 * 16 / 6 + 1);
    }

    /// Promise: a look that comes too early has no effect.
    #[test]
    fn looks_before_the_time_change_nothing() {
        let mut seen = Seen::new();
        for tenths in 0..200 {
            let at = f64::from(tenths) / 10.0;
            if seen.look(at) == Step::End {
                assert_eq!(seen.now - seen.start, 4 * STEP);
                return;
            }
        }
        panic!("it never ends: {:?}", seen.rule);
    }

    /// Promise: after an absence of the program or of this host it looks again, a step later,
    /// before it gives up. So an answer that lay there, or that comes just after, is found,
    /// whenever the absence began.
    #[test]
    fn after_an_absence_it_looks_again() {
        for absent_from in 1..12 {
            let absent = f64::from(absent_from);
            let mut seen = Seen::new();
            let back = loop {
                let due = (seen.rule.due - seen.start).as_secs_f64();
                if due >= absent {
                    break absent + 500.0;
                }
                assert_ne!(seen.look(due), Step::End);
            };
            let (Step::Look(due) | Step::Probe(due)) = seen.look(back) else {
                panic!("ended at once, absent from {absent}");
            };
            assert!(due - seen.now >= STEP, "absent from {absent}");
            seen.sign();
            let step = seen.look((due - seen.start).as_secs_f64());
            assert!(matches!(step, Step::Look(_)), "absent from {absent}");
            assert_eq!(seen.rule.stage, Stage::Alive);
        }
    }

    /// Promise: a program that looks only now and then notices at its fourth look.
    #[test]
    fn a_program_that_looks_seldom_notices_at_the_fourth_look() {
        let mut seen = Seen::new();
        let looks = [60.0, 120.0, 180.0].map(|at| seen.look(at));
        assert!(matches!(looks[0], Step::Probe(_)), "{looks:?}");
        assert!(looks[1..].iter().all(|look| matches!(look, Step::Look(_))));
        assert_eq!(seen.look(240.0), Step::End);
    }

    /// Promise: no limit is too long for the clock.
    #[test]
    fn the_longest_limit_is_possible() {
        let now = Instant::now();
        let mut rule = Rule::new(Duration::MAX, now, Signs::default());
        assert!(matches!(rule.look(now, Signs::default()), Step::Look(_)));
        let due = rule.due;
        assert!(matches!(rule.look(due, Signs::default()), Step::Probe(_)));
    }
}
