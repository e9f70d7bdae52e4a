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
use crate::commit::Limits;
use crate::commit::wire::{ANSWER, MAX_REQUEST, Request, WRITTEN, answer};
use crate::conn::Conn;
use crate::conn_req::ConnReq;
use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::mr::{Mr, MrSlice, MrUsage};
use crate::pmem::PmemMap;
use crate::posted::Posted;
use crate::range;
use crate::verbs::{AlignedBuf, Wc, WcStatus};

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
    slots: Vec<Slot>,
    /// Slots with a request that is not served, in the order of the requests.
    waiting: VecDeque<usize>,
    /// Slots with a receive to post.
    free: VecDeque<usize>,
    /// How many answers are under way.
    answering: usize,
    /// The number of the last request that was served.
    served: u32,
    /// Why the client is refused.
    refused: Option<Error>,
    /// It is in the list of those that have something to do.
    is_listed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
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
        let slot = Slot {
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
            refused: None,
            is_listed: false,
        };
        let receives = (0..count).map(|slot| Ok((slots.request_of(slot)?, slot as u64)));
        req.recv_many(&receives.collect::<Result<Vec<_>>>()?)?;
        Ok(slots)
    }

    /// Refuses memory with a usage that does not let clients commit.
    pub(crate) fn check(memory: &Mr<PmemMap>) -> Result<()> {
        match memory.get_usage().contains(WRITTEN) {
            true => Ok(()),
            false => Err(Error::not_supported(
                "commits by the server's method need memory that is registered with \
                 MrUsage::WRITE_DST and FLUSH_TYPE_PERSISTENT",
            )),
        }
    }

    fn request_of(&self, slot: usize) -> Result<MrSlice<'_>> {
        let at = slot * PLACE;
        self.messages.slice(at..at + RECEIVED)
    }

    /// Takes a completion; whether it is one of these slots.
    pub(super) fn handle(&mut self, wc: &Wc) -> bool {
        if let Some(posted) = wc.posted() {
            let is_it = |slot: &Slot| slot.answer == Some(posted);
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
        if !is_flushed && at < self.slots.len() && self.refused.is_none() {
            match self.request(at, wc) {
                Ok(request) => {
                    self.slots[at].request = Some(request);
                    self.waiting.push_back(at);
                }
                Err(error) => self.refused = Some(error),
            }
        }
        true
    }

    /// The request in a slot.
    fn request(&self, slot: usize, wc: &Wc) -> Result<Request> {
        let mut bytes = [0; RECEIVED];
        let len = wc.result()?.byte_len().unwrap_or(0) as usize;
        let received = bytes.get_mut(..len).unwrap_or_default();
        self.messages.read_at(slot * PLACE, received)?;
        let request = Request::decode(received)?;
        let due = self.served.wrapping_add(self.waiting.len() as u32 + 1);
        match request.number == due {
            true => Ok(request),
            false => Err(Error::invalid(format!(
                "a persist request with the number {}, where {due} is due",
                request.number
            ))),
        }
    }

    /// Whether it is to be listed, because there is something to do now.
    pub(super) fn becomes_ready(&mut self) -> bool {
        !self.is_listed && self.stays_ready()
    }

    /// Whether it is to be listed again after a turn.
    pub(super) fn stays_ready(&mut self) -> bool {
        self.is_listed = self.is_ready();
        self.is_listed
    }

    fn is_ready(&self) -> bool {
        let can_answer = self.answering < self.limits.credits().into();
        self.refused.is_some() || !self.free.is_empty() || can_answer && !self.waiting.is_empty()
    }

    /// Serves up to `most` requests, and posts the receives that are due. It returns how many were
    /// served.
    ///
    /// All of them are checked before the first byte is made durable.
    #[cfg_attr(feature = "sim", track_caller)]
    pub(super) fn serve(&mut self, conn: &Conn, most: usize) -> Result<usize> {
        let room = usize::from(self.limits.credits()) - self.answering;
        let count = most.min(room).min(self.waiting.len());
        let base = self.memory.get_ptr().addr() as u64;
        let offered = Offered {
            base,
            bytes: base + self.offered.start as u64..base + self.offered.end as u64,
            limits: self.limits,
        };
        let mut work = Work::default();
        for &slot in self.waiting.iter().take(count) {
            if let Some(request) = &self.slots[slot].request {
                offered.check(request)?;
                work.add(request, &offered);
            }
        }
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        work.execute(&self.memory)?;
        for _ in 0..count {
            self.answer(conn)?;
        }
        while let Some(&slot) = self.free.front() {
            conn.recv(self.request_of(slot)?, slot as u64)?;
            self.free.pop_front();
        }
        Ok(count)
    }

    /// Answers the oldest request.
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
        self.slots[slot] = Slot {
            request: None,
            answer: Some(posted),
        };
        self.answering += 1;
        self.served = number;
        Ok(())
    }
}
