//! [`Asks`]: the writer's half of the server's method, with the memory of requests and answers.
//!
//! Each commit in flight has a place with a request and an answer. Answers come in the order of the
//! requests, and each takes the receive that was posted first.
//!
//! A writer that connects again has the same memory as the one before ([`Messages`]): registering
//! takes time, and pins pages. The memory is free for the next writer when the queue pair of the
//! last one is destroyed.

use std::sync::{Arc, Weak};

use super::cfg::WriterCfg;
use crate::commit::wire::{ANSWER, MAX_RANGES, MAX_REQUEST, Request, WRITTEN, answer};
use crate::conn::{Conn, Part, Pointer, check_parts};
use crate::conn_req::ConnReq;
use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::method::Limits;
use crate::mr::{Mr, MrUsage, RemoteSlice};
use crate::posted::Posted;
use crate::verbs::{AlignedBuf, Wc};

/// The bytes of a place: a request, and then an answer.
const PLACE: usize = 320;
const _: () = assert!(MAX_REQUEST + ANSWER <= PLACE);

#[derive(Debug)]
pub(super) struct Asks {
    memory: Arc<Mr<AlignedBuf>>,
    places: usize,
}

/// The memory of the messages of writers that follow each other.
#[derive(Debug)]
pub(crate) struct Messages {
    memory: Arc<Mr<AlignedBuf>>,
    /// The mark of the queue pair that uses it.
    user: Weak<()>,
}

impl Messages {
    /// The memory, if neither a writer nor a queue pair has it.
    fn free(mut self) -> Option<Arc<Mr<AlignedBuf>>> {
        let is_used = self.user.strong_count() > 0 || Arc::get_mut(&mut self.memory).is_none();
        (!is_used).then_some(self.memory)
    }
}

impl Asks {
    /// Posts a receive for each answer, before the peer can answer. It takes the memory of the
    /// writer `before`, if that is free, and leaves its own there for the next one.
    pub(super) fn prepare(
        req: &ConnReq,
        cfg: &WriterCfg,
        before: &mut Option<Messages>,
    ) -> Result<Self> {
        let places = usize::from(cfg.in_flight());
        let memory = match before.take().and_then(Messages::free) {
            Some(memory) => memory,
            None => {
                let memory = AlignedBuf::zeroed(places * PLACE)?;
                let usage = MrUsage::SEND | MrUsage::RECV;
                Arc::new(Mr::reg(req.peer(), memory, usage)?)
            }
        };
        *before = Some(Messages {
            memory: Arc::clone(&memory),
            user: req.alive(),
        });
        let asks = Self { memory, places };
        let receives = (0..places).map(|place| Ok((asks.answer_of(place)?, place as u64)));
        req.recv_many(&receives.collect::<Result<Vec<_>>>()?)?;
        Ok(asks)
    }

    fn answer_of(&self, place: usize) -> Result<crate::mr::MrSlice<'_>> {
        let at = place * PLACE + MAX_REQUEST;
        self.memory.slice(at..at + ANSWER)
    }

    /// Posts the writes of a commit and its request together, or returns an error and posts no part
    /// of them.
    #[cfg_attr(feature = "sim", track_caller)]
    pub(super) fn commit(
        &self,
        conn: &Conn,
        limits: Limits,
        number: u64,
        parts: &[Part<'_>],
        pointer: Option<Pointer>,
    ) -> Result<Posted> {
        check(limits, parts, pointer.as_ref())?;
        let ranges = parts.iter().map(|(dst, _)| (dst.ends().0, dst.len()));
        let pointer = pointer.map(|(to, bytes)| (to.ends().0, bytes));
        let (bytes, len) = Request::new(number as u32, pointer, ranges).encode();
        // The place is free: its last answer is here, and its last request is sent.
        let at = (number as usize % self.places) * PLACE;
        self.memory.write_at(at, &bytes[..len])?;
        let mut batch = conn.batch::<{ MAX_RANGES + 1 }>();
        for (dst, src) in parts {
            batch.write(*dst, *src, Flags::COMPLETION_ON_ERROR, number)?;
        }
        let request = self.memory.slice(at..at + len)?;
        batch.send(request, Flags::COMPLETION_ALWAYS, number)?;
        batch.post()
    }

    /// Takes an answer, which must be that to request `number`, and posts its receive again.
    pub(super) fn take(&self, conn: &Conn, wc: &Wc, number: u64) -> Result<()> {
        let len = wc.result()?.byte_len();
        let place = wc.wr_id() as usize;
        let mut bytes = [0; ANSWER];
        if place < self.places {
            self.memory
                .read_at(place * PLACE + MAX_REQUEST, &mut bytes)?;
        }
        if len != Some(ANSWER as u32) || bytes != answer(number as u32) {
            return Err(Error::invalid(format!(
                "the peer sent {bytes:?} ({len:?} bytes) where the answer to commit {number} is due"
            )));
        }
        conn.recv(self.answer_of(place)?, place as u64)
    }
}

pub(super) fn check(limits: Limits, parts: &[Part<'_>], pointer: Option<&Pointer>) -> Result<()> {
    check_parts(parts, pointer)?;
    check_limits(limits, parts)?;
    if let Some((to, _)) = pointer {
        check_pointer(to)?;
    }
    let places = parts.iter().map(|(dst, _)| dst);
    let mut places = places.chain(pointer.map(|(to, _)| to));
    if places.any(|place| !place.usage().contains(WRITTEN)) {
        return Err(Error::not_supported(
            "the region of a commit by the server's method allows no writes, or no persistent \
             flushes: the peer registers it with MrUsage::WRITE_DST and FLUSH_TYPE_PERSISTENT",
        ));
    }
    Ok(())
}

fn check_limits(limits: Limits, parts: &[Part<'_>]) -> Result<()> {
    let sum = parts
        .iter()
        .fold(0u64, |sum, (dst, _)| sum.saturating_add(dst.len()));
    if parts.len() > usize::from(limits.ranges()) || sum > u64::from(limits.bytes()) {
        return Err(Error::invalid(format!(
            "a commit of {} parts with {sum} bytes: the server takes up to {} parts with {} bytes",
            parts.len(),
            limits.ranges(),
            limits.bytes()
        )));
    }
    Ok(())
}

/// Refuses a pointer that the server could not store at once.
fn check_pointer(to: &RemoteSlice) -> Result<()> {
    let (first, _) = to.ends();
    if to.len() != 8 || first % 8 != 0 {
        return Err(Error::invalid(format!(
            "the pointer has {} bytes at {first:#x}: it must have 8 bytes, at a multiple of 8",
            to.len()
        )));
    }
    Ok(())
}
