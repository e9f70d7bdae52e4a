//! [`Line`]: a connection of a case, on the server.

use std::time::Duration;

use rpma::wait::Member;
use rpma::{
    AlignedBuf, Conn, ConnCfg, ConnReq, Flags, Mr, MrSlice, MrUsage, Peer, Wc, WcOpcode, WcStatus,
};

use super::arena::Arena;
use crate::bytes::checksum;
use crate::problem::in_words;
use crate::wire::{ARENA, Arrival, Expect, Part, Send};

/// 67 ms, so that a keep-alive of a second or two is possible.
pub(crate) const ACK_TIMEOUT: u8 = 14;
/// Requests that are answered falsely.
const REQUESTS: u32 = 32;
const LONGEST_REQUEST: usize = 288;
/// The `op_context` of the message that fails the queue pair.
pub(super) const VANISHES: u64 = u64::MAX;

/// A connection, and its receives.
#[derive(Default)]
pub(super) struct Line {
    /// Its member of the wait. `None` once it was cut off, or if it was not made.
    pub(super) member: Option<Member>,
    /// How it ended.
    pub(super) end: Option<String>,
    pub(super) arrivals: Vec<Arrival>,
    /// Whether its queue pair is asked to fail.
    pub(super) vanishes: bool,
    /// Whether it has failed for that.
    pub(super) has_vanished: bool,
    /// Whether it answers requests of the server's method without doing the work.
    lies: bool,
    /// Whether each receive is posted again.
    refills: bool,
    watch: Option<Part>,
    receives: Option<Mr<AlignedBuf>>,
    each: usize,
    /// The memory of messages that may be in flight.
    sent: Vec<Mr<AlignedBuf>>,
}

/// The settings of a connection of a case, on both sides.
pub(crate) fn conn_cfg(keep_alive_ms: Option<u64>, fallback: bool) -> rpma::Result<ConnCfg> {
    let mut cfg = ConnCfg::new();
    cfg.set_ack_timeout(Some(ACK_TIMEOUT))?
        .set_rnr_retry_count(6)?
        .set_keep_alive(keep_alive_ms.map(Duration::from_millis))?
        .set_force_fallback(fallback)
        .set_sq_size(64)
        .set_rq_size(16);
    Ok(cfg)
}

impl Line {
    /// A connection that was announced, with the memory of its receives.
    pub(super) fn new(peer: &Peer, expect: &Expect) -> rpma::Result<Self> {
        let (count, each) = (expect.receives.0 as usize, expect.receives.1 as usize);
        let receives = match count * each {
            0 => None,
            len => Some(Mr::reg(peer, AlignedBuf::zeroed(len)?, MrUsage::RECV)?),
        };
        Ok(Self {
            refills: expect.refills,
            watch: expect.watch,
            receives,
            each,
            ..Self::default()
        })
    }

    /// A connection that could not be made.
    pub(super) fn failed(reason: String) -> Self {
        Self {
            end: Some(reason),
            ..Self::default()
        }
    }

    /// Posts all receives before the connection exists.
    pub(super) fn post_receives(&self, req: &ConnReq, count: u32) -> rpma::Result<()> {
        if count == 0 {
            return Ok(());
        }
        let places = (0..u64::from(count)).map(|place| Ok((self.place(place)?, place)));
        req.recv_many(&places.collect::<rpma::Result<Vec<_>>>()?)
    }

    fn place(&self, place: u64) -> rpma::Result<MrSlice<'_>> {
        let at = place as usize * self.each;
        match &self.receives {
            Some(memory) => memory.slice(at..at + self.each),
            None => Ok(MrSlice::EMPTY),
        }
    }

    /// Takes a completion of its queues. What arrived is summed at once, or its receive is posted
    /// again.
    pub(super) fn completed(&mut self, conn: &Conn, wc: &Wc, arena: &Arena) -> Result<(), String> {
        match wc.result() {
            Err(_) if wc.wr_id() == VANISHES => self.has_vanished = true,
            Err(failure) if wc.posted().is_some() || failure.status == WcStatus::WR_FLUSH_ERR => {}
            Err(failure) => self.arrivals.push(Arrival {
                failed: Some(failure.status.to_string()),
                ..Arrival::default()
            }),
            Ok(success) if success.opcode().is_receive() && self.refills => {
                let again = self.place(wc.wr_id());
                let again = again.and_then(|place| conn.recv(place, wc.wr_id()));
                again.map_err(in_words)?;
            }
            Ok(success) if success.opcode().is_receive() => {
                let watched = self.watch.map(|part| arena.read(part)).transpose()?;
                let len = match success.opcode() {
                    WcOpcode::RECV => success.byte_len(),
                    _ => success.written_len(),
                };
                self.arrivals.push(Arrival {
                    len: len.unwrap_or_default(),
                    imm: success.imm_data(),
                    sum: checksum(&self.message(wc.wr_id(), success.byte_len())?),
                    watched: watched.as_deref().map(checksum),
                    failed: None,
                });
            }
            Ok(_sent) => {}
        }
        Ok(())
    }

    /// The bytes of a message. A write with immediate data has none.
    pub(super) fn message(&self, place: u64, len: Option<u32>) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; len.unwrap_or_default() as usize];
        match &self.receives {
            Some(memory) => memory.read_at(place as usize * self.each, &mut bytes),
            None => Ok(()),
        }
        .map(|()| bytes)
        .map_err(in_words)
    }

    /// Refuses a message that is longer than those of any case, or for which there is no memory.
    pub(super) fn check_send(&self, send: &Send) -> Result<(), String> {
        let sent: usize = self.sent.iter().map(Mr::get_size).sum();
        match sent + send.len as usize {
            ..=ARENA => Ok(()),
            _ => Err(format!(
                "a message of {} bytes after {sent}: a connection sends at most {ARENA} bytes",
                send.len
            )),
        }
    }

    pub(super) fn send(
        &mut self,
        peer: &Peer,
        conn: &Conn,
        bytes: &[u8],
        imm: Option<u32>,
    ) -> rpma::Result<()> {
        let src = match bytes {
            [] => MrSlice::EMPTY,
            bytes => {
                let memory = AlignedBuf::zeroed(bytes.len())?;
                // A right to receive makes it writable for this program.
                let memory = Mr::reg(peer, memory, MrUsage::SEND | MrUsage::RECV)?;
                memory.write_at(0, bytes)?;
                self.sent.push(memory);
                self.sent[self.sent.len() - 1].slice(..)?
            }
        };
        let flags = Flags::COMPLETION_ALWAYS;
        match imm {
            Some(imm) => conn.send_with_imm(src, flags, imm, 0),
            None => conn.send(src, flags, 0),
        }
        .map(drop)
    }

    /// Posts receives for requests of the server's method.
    pub(super) fn prepare_lies(&mut self, peer: &Peer, req: &ConnReq) -> rpma::Result<()> {
        (self.lies, self.each) = (true, LONGEST_REQUEST);
        let memory = AlignedBuf::zeroed(REQUESTS as usize * LONGEST_REQUEST)?;
        self.receives = Some(Mr::reg(peer, memory, MrUsage::RECV)?);
        self.post_receives(req, REQUESTS)
    }

    /// If it lies: answers a request of the server's method, and does nothing for it.
    pub(super) fn answer_falsely(
        &mut self,
        peer: &Peer,
        conn: &Conn,
        wc: &Wc,
    ) -> Result<(), String> {
        let asked = wc.result().ok().filter(|_| self.lies);
        let Some(len) = asked.and_then(|success| success.byte_len()) else {
            return Ok(());
        };
        // Bytes 4 to 8 of a request are its number, and those of an answer as well.
        let request = self.message(wc.wr_id(), Some(len))?;
        let answer = [&b"rA\x01\0"[..], request.get(4..8).unwrap_or_default()].concat();
        let sent = self.send(peer, conn, &answer, None);
        sent.map_err(in_words)
    }
}
