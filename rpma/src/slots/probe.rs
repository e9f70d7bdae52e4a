//! The probe of the keep-alive, and the signs of a peer that lives.
//!
//! At most one probe is in flight. It has an entry of the send queue beside those of the program:
//! a full queue does not keep it from being posted, and it takes no room from the program. No
//! program gets its completion.

use std::sync::atomic::Ordering;

use super::outcome::PostRefusal;
use super::ring::NotTaken;
use super::{ConnSlots, ConnState, Kind};
use crate::failure::Failure;
use crate::status::WcStatus;
use crate::verbs::PostError;

/// How far the completions of a connection have been polled that are signs of its peer. It changes
/// with each completion of its own queues, so polling them has no further cost for it. On iWARP, an
/// operation completes without an answer: there only probes and receives change it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signs {
    pub(crate) sends: u64,
    pub(crate) receives: u64,
}

impl ConnSlots {
    pub(crate) fn signs(&self) -> Signs {
        let answers = self.answers.as_ref();
        Signs {
            sends: answers.map_or_else(|| self.send.done(), |of| of.load(Ordering::Acquire)),
            receives: self.receive.done(),
        }
    }

    /// Whether every operation that was posted has completed, and its completion was polled.
    pub(crate) fn are_sends_done(&self) -> bool {
        self.send.is_idle()
    }

    /// Posts a probe, unless one is in flight. An error ends the connection.
    pub(crate) fn post_probe(
        &self,
        post: impl FnOnce(u64) -> Result<(), PostError>,
    ) -> Result<(), Failure> {
        if self.is_probing.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let posted = self.send.post_beside(|mut entries| {
            let number = entries.take(0);
            post(Kind::Probe.wr_id(number)).map_err(NotTaken::from)
        });
        let Err(error) = posted else {
            return Ok(());
        };
        self.is_probing.store(false, Ordering::Release);
        match PostRefusal::from(error).of_send() {
            Some(failure) => Err(failure),
            // The device has no room. The operations in flight ask the same question.
            None => Ok(()),
        }
    }

    /// A probe has completed. Its failure ends the connection. For the holder of the completion
    /// queue's lock.
    #[cold]
    pub(crate) fn probe_came(&self, number: u64, status: WcStatus) {
        self.send.beside_is_done(number);
        self.is_probing.store(false, Ordering::Release);
        if let (WcStatus::SUCCESS, Some(answers)) = (status, &self.answers) {
            answers.fetch_add(1, Ordering::Release);
        }
        if status != WcStatus::SUCCESS && self.life.state() == ConnState::Open {
            // A flushed one never reached the peer: the queue pair was in the error state before.
            if status != WcStatus::WR_FLUSH_ERR {
                self.count_lost_probe();
            }
            self.fail(Failure::Probe { status });
            // The wait of the connection returns its end, whichever thread has polled this.
            self.bell().call();
        }
    }
}
