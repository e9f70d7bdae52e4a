//! Calls that fail because a test wants it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rustix::io::Errno;

use crate::caller::caller;
use crate::fabric::Host;
use crate::here;
use crate::origin::Origin;
use crate::state::Shared;

/// The calls that can fail, by their C names.
pub(crate) const CALLS: [&str; 40] = [
    "ibv_advise_mr",
    "ibv_alloc_pd",
    "ibv_create_comp_channel",
    "ibv_create_cq",
    "ibv_create_srq",
    "ibv_dealloc_pd",
    "ibv_dereg_mr",
    "ibv_destroy_comp_channel",
    "ibv_destroy_cq",
    "ibv_destroy_qp",
    "ibv_destroy_srq",
    "ibv_get_cq_event",
    "ibv_modify_qp",
    "ibv_poll_cq",
    "ibv_post_recv",
    "ibv_post_send",
    "ibv_post_srq_recv",
    "ibv_query_device_ex",
    "ibv_query_port",
    "ibv_query_qp",
    "ibv_reg_mr",
    "ibv_req_notify_cq",
    "ibv_wr_complete",
    "rdma_accept",
    "rdma_ack_cm_event",
    "rdma_bind_addr",
    "rdma_connect",
    "rdma_create_event_channel",
    "rdma_create_id",
    "rdma_create_qp",
    "rdma_destroy_id",
    "rdma_disconnect",
    "rdma_get_cm_event",
    "rdma_init_qp_attr",
    "rdma_listen",
    "rdma_migrate_id",
    "rdma_reject",
    "rdma_resolve_addr",
    "rdma_resolve_route",
    "rdma_set_option",
];

/// Those that return an object or an event, or no value that could be an error. A caller that gets
/// an error from them has no object to destroy or to acknowledge, so the object must not be there.
const OBJECTS: [&str; 11] = [
    "ibv_alloc_pd",
    "ibv_create_comp_channel",
    "ibv_create_cq",
    "ibv_create_srq",
    "ibv_get_cq_event",
    "ibv_reg_mr",
    "rdma_ack_cm_event",
    "rdma_create_event_channel",
    "rdma_create_id",
    "rdma_create_qp",
    "rdma_get_cm_event",
];

const POSTS: [&str; 3] = ["ibv_post_recv", "ibv_post_send", "ibv_post_srq_recv"];

/// How a call fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum How {
    /// The call has no effect. A call that posts returns the first request of its chain as
    /// refused.
    #[default]
    Refused,
    /// The call has its full effect, and then returns the error. Calls that return an object or an
    /// event cannot fail in this way.
    Done,
    /// For a call that posts: it takes all requests of a chain except the last one, and returns
    /// that as refused.
    LastRefused,
    /// As [`LastRefused`](Self::LastRefused), but it returns 0, as siw's provider does if it has
    /// taken some requests of a chain.
    LastDropped,
}

/// Whether a call fails, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    failure: Option<(Errno, How)>,
}

impl Fate {
    pub(crate) fn refused(errno: Errno) -> Self {
        let failure = Some((errno, How::Refused));
        Self { failure }
    }

    /// Ends a call that is to have no effect.
    pub(crate) fn begin(self) -> Result<Self, Errno> {
        match self.failure {
            Some((errno, How::Refused)) => Err(errno),
            _ => Ok(self),
        }
    }

    /// The error of a call that has done everything.
    pub(crate) fn end(self) -> Result<(), Errno> {
        match self.failure {
            Some((errno, How::Done)) => Err(errno),
            _ => Ok(()),
        }
    }

    /// As [`begin`](Self::begin), of a call that returns an object or an event.
    pub(crate) fn object(self) -> Result<(), Errno> {
        self.failure.map_or(Ok(()), |(errno, _)| Err(errno))
    }

    /// For a call that posts: returns the result for the last request of its chain, which it does
    /// not take, when it has taken so many.
    pub(crate) fn last(self, taken: usize) -> Option<Result<(), Errno>> {
        match self.failure {
            Some((_, How::LastDropped)) if taken > 0 => Some(Ok(())),
            Some((errno, How::LastRefused | How::LastDropped)) => Some(Err(errno)),
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Failures {
    armed: Vec<Armed>,
    calls: BTreeMap<&'static str, u64>,
    next: u64,
    happened: VecDeque<Happened>,
    /// The number of the run's last event.
    pub(crate) events: u64,
    /// Failures keep the lines of the program.
    pub(crate) keeps_origins: bool,
}

#[derive(Debug)]
struct Happened {
    /// The number of the last event before it.
    events: u64,
    what: String,
    host: Option<usize>,
    origin: Option<Origin>,
}

/// The number of them in a report.
const LAST: usize = 8;

#[derive(Debug)]
struct Armed {
    number: u64,
    call: &'static str,
    host: Option<usize>,
    /// How many calls are left before the one that fails.
    before: u32,
    errno: Errno,
    how: How,
}

impl Failures {
    pub(crate) fn call(&mut self, call: &'static str, host: usize) -> Fate {
        *self.calls.entry(call).or_default() += 1;
        here::calls(call);
        let mut failure = None;
        self.armed.retain_mut(|armed| {
            if armed.call != call || armed.host.is_some_and(|only| only != host) {
                return true;
            }
            if armed.before > 0 {
                armed.before -= 1;
                return true;
            }
            if failure.is_some() {
                return true;
            }
            failure = Some((armed.errno, armed.how));
            false
        });
        if let Some((errno, _)) = failure {
            let operation = caller().filter(|_| is_post(call));
            let named = operation.map_or(String::new(), |of| format!(" ({of})"));
            self.note(format!("{call}{named} failed: {errno}"), Some(host));
            if let Some(last) = self.happened.back_mut().filter(|_| operation.is_some()) {
                // It has its line.
                last.origin = None;
            }
        }
        Fate { failure }
    }

    pub(crate) fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.calls.clone()
    }

    /// A run begins. Its events are counted.
    pub(crate) fn begin_run(&mut self) {
        self.events = 0;
        self.happened.iter_mut().for_each(|one| one.events = 0);
    }

    /// Keeps a failure or a fault for reports.
    pub(crate) fn note(&mut self, what: String, host: Option<usize>) {
        let origin = self.keeps_origins && host.is_some();
        if self.happened.len() == LAST {
            self.happened.pop_front();
        }
        self.happened.push_back(Happened {
            events: self.events,
            what,
            host,
            origin: origin.then(Origin::here),
        });
    }

    /// Lists the failures and faults that have happened, with lines of the program, for a sweep.
    pub(crate) fn with_origins(&self, hosts: &[String]) -> Vec<String> {
        let happened = self.happened.iter().map(|happened| {
            let Happened { what, host, .. } = happened;
            let line = happened.origin.as_ref().and_then(Origin::line);
            let line = line.map_or(String::new(), |line| format!(", at {line}"));
            format!("{}{what}{line}", on(*host, hosts))
        });
        happened.collect()
    }

    /// Lists the failures and faults that have happened, and the armed failures.
    pub(crate) fn texts(&self, hosts: &[String]) -> Vec<String> {
        let on = |host| on(host, hosts);
        let happened = self.happened.iter().map(|happened| {
            let Happened {
                events, what, host, ..
            } = happened;
            format!("before event {}: {}{what}", events + 1, on(*host))
        });
        let armed = self.armed.iter().map(|armed| {
            let (nth, host, errno) = (armed.before + 1, on(armed.host), armed.errno);
            let call = armed.call;
            format!("armed: {host}call {nth} of {call} from now fails: {errno}")
        });
        happened.chain(armed).collect()
    }
}

/// Whether a call posts operations of the program.
fn is_post(call: &str) -> bool {
    POSTS.contains(&call) || call == "ibv_wr_complete"
}

fn on(host: Option<usize>, hosts: &[String]) -> String {
    host.map_or(String::new(), |host| format!("on {}, ", hosts[host]))
}

/// A call that is to fail, once: see [`Fabric::fail`](crate::Fabric::fail).
///
/// Dropping it has no effect; [`disarm`](Self::disarm) takes the failure back.
#[derive(Debug)]
pub struct Failing {
    shared: Arc<Shared>,
    call: &'static str,
    host: Option<usize>,
    how: How,
    number: Option<u64>,
}

impl Failing {
    /// # Panics
    ///
    /// If there is no such call.
    pub(crate) fn new(shared: &Arc<Shared>, call: &str) -> Self {
        let known = CALLS.iter().find(|name| **name == call);
        let Some(call) = known else {
            panic!("no call `{call}` can fail. These calls can: {CALLS:?}");
        };
        Self {
            shared: Arc::clone(shared),
            call,
            host: None,
            how: How::default(),
            number: None,
        }
    }

    /// Counts only calls on this host, and makes only these fail.
    ///
    /// # Panics
    ///
    /// If it is a host of another fabric, or the failure is armed already.
    #[must_use = "`next` or `nth` arms it"]
    pub fn on(mut self, host: &Host) -> Self {
        assert!(
            Arc::ptr_eq(&self.shared, host.shared()),
            "a host of another fabric"
        );
        assert!(self.number.is_none(), "{} is armed already", self.call);
        self.host = Some(host.index());
        self
    }

    /// Sets how the call fails. The default is [`How::Refused`].
    ///
    /// # Panics
    ///
    /// If the failure is armed already.
    #[must_use = "`next` or `nth` arms it"]
    pub fn how(mut self, how: How) -> Self {
        assert!(self.number.is_none(), "{} is armed already", self.call);
        self.how = how;
        self
    }

    /// Makes the next call fail.
    pub fn next(self, errno: Errno) -> Self {
        self.nth(1, errno)
    }

    /// Makes the `nth` call from now on fail, 1 being the next one.
    ///
    /// # Panics
    ///
    /// If `nth` is 0, if the failure is armed already, or if the call cannot fail in that
    /// [way](Self::how).
    pub fn nth(mut self, nth: u32, errno: Errno) -> Self {
        assert!(nth > 0, "the first call is number 1");
        assert!(self.number.is_none(), "{} is armed already", self.call);
        let fits = match self.how {
            How::Refused => true,
            How::Done => !OBJECTS.contains(&self.call),
            How::LastRefused | How::LastDropped => POSTS.contains(&self.call),
        };
        assert!(
            fits,
            "{} cannot fail in that way: {:?}",
            self.call, self.how
        );
        let mut state = self.shared.lock();
        let failures = &mut state.failures;
        failures.next += 1;
        let armed = Armed {
            number: failures.next,
            call: self.call,
            host: self.host,
            before: nth - 1,
            errno,
            how: self.how,
        };
        self.number = Some(armed.number);
        failures.armed.push(armed);
        drop(state);
        self
    }

    /// Returns whether the call is still to come.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        let state = self.shared.lock();
        let own = |armed: &Armed| Some(armed.number) == self.number;
        state.failures.armed.iter().any(own)
    }

    /// Takes the failure back if the call has not come yet. Returns whether it has taken it back.
    pub fn disarm(&self) -> bool {
        let mut state = self.shared.lock();
        let before = state.failures.armed.len();
        state
            .failures
            .armed
            .retain(|armed| Some(armed.number) != self.number);
        state.failures.armed.len() < before
    }
}
