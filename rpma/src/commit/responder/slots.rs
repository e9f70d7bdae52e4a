//! [`Slots`]: the requests and answers of one client.
//!
//! A slot is a receive and an answer. It takes a new request when the send of its last answer has
//! completed. There are twice as many slots as credits, and at most as many answers under way as
//! credits. So a client that keeps to its credits always finds a receive. No other client can take
//! memory with answers that it leaves unread.

use std::collections::VecDeque;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use super::checks::{Offered, Work};
use crate::commit::wire::{ANSWER, MAX_REQUEST, Request, WRITTEN, answer};
use crate::conn::Conn;
use crate::conn_req::ConnReq;
use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::method::Limits;
use crate::mr::{Mr, MrSlice, MrUsage};
use crate::pmem::PmemMap;
use crate::posted::Posted;
use crate::range;
use crate::status::WcStatus;
use crate::verbs::{AlignedBuf, Wc};

/// The bytes of a slot: a request, one byte more, which shows a longer message, and an answer.
const PLACE: usize = 320;
const ANSWER_AT: usize = PLACE - ANSWER;
const RECEIVED: usize = MAX_REQUEST + 1;
const _: () = assert!(RECEIVED <= ANSWER_AT);

/// How many slots for sends and for receives a client's connection needs.
pub(super) fn needed(limits: Limits) -> (u32, u32) {
    let credits = u32::from(limits.credits());
    (credits, 2 * credits)
}

/// The receives and answers of one client, and the memory that its requests may name:
/// [`Responder::prepare`](super::Responder::prepare).
#[derive(Debug)]
pub struct Slots {
    limits: Limits,
    memory: Arc<Mr<PmemMap>>,
    offered: Range<usize>,
    messages: Mr<AlignedBuf>,
    slots: Vec<RequestSlot>,
    /// Slots with a request that is not served, in the order of the requests.
    waiting: VecDeque<usize>,
    /// Slots with a receive to post.
    free: VecDeque<usize>,
    answering: usize,
    /// The number of the last request that was answered.
    served: u32,
    /// The first ones of those that wait whose bytes are durable: they are only to be answered. A
    /// second execution would store an older pointer over a newer one.
    executed: usize,
    /// The send queue had no room for an answer, and no completion has come since.
    is_full: bool,
    /// Why the client is served no more.
    fault: Option<RequestFault>,
    /// It is in the list of those that have something to do.
    is_listed: bool,
}

/// The reason for which a client is served no more, by the side that caused it.
#[derive(Debug)]
pub(super) enum RequestFault {
    /// The client has sent something that is refused.
    Misused(Error),
    /// A call of this side failed, or the connection takes no answers.
    Failed(Error),
}

/// The work of one turn for one client.
#[derive(Debug)]
pub(super) struct RequestsServed {
    pub(super) answers: usize,
    pub(super) worked: bool,
    /// The send queue has no room for the next answer.
    pub(super) full: Option<Error>,
}

#[derive(Clone, Copy, Debug)]
struct RequestSlot {
    request: Option<Request>,
    answer: Option<Posted>,
}

impl Slots {
    /// Posts a receive for each slot.
    pub(super) fn prepare(
        limits: Limits,
        req: &ConnReq,
        memory: &Arc<Mr<PmemMap>>,
        offered: impl RangeBounds<usize>,
    ) -> Result<Self> {
        let offered = range::resolve_local(&offered, memory.get_size(), "local memory region")?;
        Self::check(memory)?;
        req.check_slots(needed(limits), "Responder::conn_cfg")?;
        let count = 2 * usize::from(limits.credits());
        let messages = AlignedBuf::zeroed(count * PLACE)?;
        let messages = Mr::reg(req.peer(), messages, MrUsage::SEND | MrUsage::RECV)?;
        let slot = RequestSlot {
            request: None,
            answer: None,
        };
        let slots = Self {
            limits,
            memory: Arc::clone(memory),
            offered,
            messages,
            slots: vec![slot; count],
            waiting: VecDeque::with_capacity(count),
            free: VecDeque::with_capacity(count),
            answering: 0,
            served: 0,
            executed: 0,
            is_full: false,
            fault: None,
            is_listed: false,
        };
        let receives = (0..count).map(|slot| Ok((slots.request_of(slot)?, slot as u64)));
        req.recv_many(&receives.collect::<Result<Vec<_>>>()?)?;
        Ok(slots)
    }

    /// Refuses memory with a usage that does not let clients commit.
    pub(crate) fn check(memory: &Mr<PmemMap>) -> Result<()> {
        if memory.get_usage().contains(WRITTEN) {
            Ok(())
        } else {
            Err(Error::not_supported(
                "commits by the server's method need memory that is registered with \
                 MrUsage::WRITE_DST and FLUSH_TYPE_PERSISTENT",
            ))
        }
    }

    fn request_of(&self, slot: usize) -> Result<MrSlice<'_>> {
        let at = slot * PLACE;
        self.messages.slice(at..at + RECEIVED)
    }

    /// Takes a completion; whether it is one of these slots.
    pub(super) fn handle(&mut self, wc: &Wc) -> bool {
        // Any completion may have set room free.
        self.is_full = false;
        if let Some(posted) = wc.posted() {
            let is_it = |slot: &RequestSlot| slot.answer == Some(posted);
            let Some(at) = self.slots.iter().position(is_it) else {
                return false;
            };
            self.slots[at].answer = None;
            self.answering -= 1;
            self.free.push_back(at);
            return true;
        }
        let at = wc.wr_id() as usize;
        // Receives are flushed after the connection's end, which the program hears of by itself.
        let is_flushed = wc.status() == WcStatus::WR_FLUSH_ERR;
        if !is_flushed && at < self.slots.len() && self.fault.is_none() {
            match self.request(at, wc) {
                Ok(request) => {
                    self.slots[at].request = Some(request);
                    self.waiting.push_back(at);
                }
                Err(fault) => self.fault = Some(fault),
            }
        }
        true
    }

    fn request(&self, slot: usize, wc: &Wc) -> Result<Request, RequestFault> {
        let mut bytes = [0; RECEIVED];
        let len = match wc.result() {
            Ok(wc) => wc.byte_len().unwrap_or(0) as usize,
            // The message is longer than the receive.
            Err(failure) if failure.status == WcStatus::LOC_LEN_ERR => {
                return Err(RequestFault::Misused(failure.into()));
            }
            Err(failure) => return Err(RequestFault::Failed(failure.into())),
        };
        let received = bytes.get_mut(..len).unwrap_or_default();
        let read = self.messages.read_at(slot * PLACE, received);
        read.map_err(RequestFault::Failed)?;
        let request = Request::decode(received).map_err(RequestFault::Misused)?;
        let due = self.served.wrapping_add(self.waiting.len() as u32 + 1);
        if request.number == due {
            Ok(request)
        } else {
            Err(RequestFault::Misused(Error::invalid(format!(
                "a persist request with the number {}, where {due} is due",
                request.number
            ))))
        }
    }

    /// As if it had served so many requests.
    #[cfg(all(test, feature = "sim"))]
    pub(super) fn start_after(&mut self, requests: u32) {
        assert_eq!(self.served, 0);
        self.served = requests;
    }

    /// Whether it is to be listed, because there is something to do now.
    pub(super) fn becomes_ready(&mut self) -> bool {
        !self.is_listed && self.stays_ready()
    }

    /// Whether it is to be listed although no completion has come since the send queue was full.
    pub(super) fn is_tried_again(&mut self) -> bool {
        self.is_full = false;
        self.becomes_ready()
    }

    /// Whether it is to be listed again after a turn.
    pub(super) fn stays_ready(&mut self) -> bool {
        self.is_listed = self.is_ready();
        self.is_listed
    }

    fn is_ready(&self) -> bool {
        let can_answer = self.answering < self.limits.credits().into() && !self.is_full;
        self.fault.is_some() || !self.free.is_empty() || can_answer && !self.waiting.is_empty()
    }

    /// Serves up to `most` requests, and posts the receives that are due.
    ///
    /// All of them are checked before the first byte is made durable. If the send queue is full of
    /// the program's own operations, the answers wait for room.
    #[cfg_attr(feature = "sim", track_caller)]
    pub(super) fn serve(
        &mut self,
        conn: &Conn,
        most: usize,
    ) -> Result<RequestsServed, RequestFault> {
        let room = usize::from(self.limits.credits()) - self.answering;
        let count = most.min(room).min(self.waiting.len());
        let mut served = RequestsServed {
            answers: 0,
            worked: count > self.executed || !self.free.is_empty(),
            full: None,
        };
        self.execute(count)?;
        while served.answers < count {
            match self.answer(conn) {
                Ok(()) => served.answers += 1,
                Err(full @ (Error::QueueFull { .. } | Error::NoCompletionDue { .. })) => {
                    self.is_full = true;
                    served.full = Some(full);
                    break;
                }
                Err(error) => return Err(RequestFault::Failed(error)),
            }
        }
        self.receive(conn).map_err(RequestFault::Failed)?;
        served.worked |= served.answers > 0;
        Ok(served)
    }

    /// Makes the bytes of the first `count` requests durable, and then their pointers.
    fn execute(&mut self, count: usize) -> Result<(), RequestFault> {
        let base = self.memory.get_ptr().addr() as u64;
        let offered = Offered {
            base,
            bytes: base + self.offered.start as u64..base + self.offered.end as u64,
            limits: self.limits,
        };
        let mut work = Work::default();
        for &slot in self.waiting.iter().take(count).skip(self.executed) {
            if let Some(request) = &self.slots[slot].request {
                offered.check(request).map_err(RequestFault::Misused)?;
                work.add(request, &offered);
            }
        }
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        work.execute(&self.memory).map_err(RequestFault::Failed)?;
        self.executed = self.executed.max(count);
        Ok(())
    }

    /// Posts the receives that are due.
    fn receive(&mut self, conn: &Conn) -> Result<()> {
        while let Some(&slot) = self.free.front() {
            conn.recv(self.request_of(slot)?, slot as u64)?;
            self.free.pop_front();
        }
        Ok(())
    }

    #[cfg_attr(feature = "sim", track_caller)]
    fn answer(&mut self, conn: &Conn) -> Result<()> {
        let Some(&slot) = self.waiting.front() else {
            return Ok(());
        };
        let number = self.served.wrapping_add(1);
        let at = slot * PLACE + ANSWER_AT;
        self.messages.write_at(at, &answer(number))?;
        let message = self.messages.slice(at..at + ANSWER)?;
        let posted = conn.send(message, Flags::COMPLETION_ALWAYS, number.into())?;
        self.waiting.pop_front();
        self.slots[slot] = RequestSlot {
            request: None,
            answer: Some(posted),
        };
        self.answering += 1;
        self.executed -= 1;
        self.served = number;
        Ok(())
    }
}
