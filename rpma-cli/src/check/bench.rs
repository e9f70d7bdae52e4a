//! [`Bench`]: what every case has: the session, the memory of both sides, and its connections.

use std::ops::{Deref, DerefMut};

use rpma::{
    AlignedBuf, Conn, ConnCfg, Failure, Flags, FlushType, Mr, MrSlice, MrUsage, Peer, Posted,
    RemoteSlice, Wc, WcOpcode, WcSuccess,
};

use crate::args::Endpoint;
use crate::bytes::{checksum, pattern};
use crate::client::{Clock, InStep, Result, Stop, failed, not_possible};
use crate::client::{Session, plain, unreachable};
use crate::host::Host;
use crate::interrupt::Interrupt;
use crate::problem::in_words;
use crate::serve::conn_cfg;
use crate::wire::{ARENA, Answer, Arrival, Expect, FIRST, MOST_BYTES, Part, Request};

/// A session with a server, and the memory of this side.
pub(crate) struct Bench {
    pub(crate) peer: Peer,
    /// Memory of this side, as long as the server's.
    pub(crate) local: Mr<AlignedBuf>,
    session: Session,
    /// Why there is no native flush.
    not_native: Option<&'static str>,
}

/// A case asks the session through its bench.
impl Deref for Bench {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl DerefMut for Bench {
    fn deref_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

/// A connection of a case.
pub(crate) struct Line {
    pub(crate) conn: Conn,
    pub(crate) number: u32,
    pub(crate) clock: Clock,
}

/// A connection for messages, with the number of the server's receives and their size.
pub(crate) fn receives(count: usize, len: usize) -> Expect {
    Expect {
        receives: (count as u32, len as u32),
        ..plain(0, false)
    }
}

impl Bench {
    /// Begins a session. `fallback`: no case uses native operations, except to say so.
    pub(crate) fn connect(
        server: &Endpoint,
        fallback: bool,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let over = |error| Stop::Over(unreachable(server, &error));
        let (peer, session) = Session::begin(None, server, interrupt)?;
        let usage = MrUsage::WRITE_SRC | MrUsage::READ_DST | MrUsage::SEND | MrUsage::RECV;
        let local = AlignedBuf::zeroed(ARENA).and_then(|all| Ok(Mr::reg(&peer, all, usage)?));
        Ok(Self {
            local: local.map_err(over)?,
            not_native: not_native(&peer, &session.server.host, fallback),
            session,
            peer,
        })
    }

    /// The end of a case that needs a native flush.
    pub(crate) fn needs_native(&self) -> Result {
        self.not_native.map_or(Ok(()), not_possible)
    }

    /// Fills a part of the server's memory.
    pub(crate) fn fill(&mut self, at: u64, len: usize, seed: u64) -> Result {
        let part = Part::new(at, len);
        self.tell(&Request::Fill { part, seed })
    }

    /// Makes a connection for native operations, or for those in their place.
    pub(crate) fn line_by(&mut self, native: bool) -> Result<Line> {
        if native {
            self.needs_native()?;
        }
        self.line(plain(0, !native))
    }

    /// Makes a connection.
    pub(crate) fn line(&mut self, expect: Expect) -> Result<Line> {
        let number = self.next_line();
        let cfg = self.announce(number, expect)?;
        let conn = self.session.conn(&self.peer, &cfg, number)?;
        self.line_of(conn, number)
    }

    /// Announces the next connection to the server: it is for a case, in the place of one with the
    /// same number. Returns the settings of this side.
    pub(crate) fn announce(&mut self, line: u32, expect: Expect) -> Result<ConnCfg> {
        let fallback = expect.fallback || self.not_native.is_some();
        let mut cfg = conn_cfg(expect.keep_alive_ms, fallback)?;
        self.expect(Expect {
            line,
            fallback,
            ..expect
        })?;
        cfg.set_max_send_sge(4)?.set_max_inline_data(8);
        Ok(cfg)
    }

    /// A connection that is established. On iWARP, waits until the server has accepted.
    ///
    /// soft-iWARP does not see operations that arrive while it accepts, until more arrive
    /// (`siw_accept` sends its answer, and then calls `siw_qp_socket_assoc`). The server has one
    /// thread, so its answer to a request comes after that.
    pub(crate) fn line_of(&mut self, conn: Conn, number: u32) -> Result<Line> {
        if self.peer.is_iwarp() {
            self.ping()?;
        }
        let clock = self.clock.clone();
        Ok(Line {
            conn,
            number,
            clock,
        })
    }

    /// The receive of this number, when it has completed at the server.
    pub(crate) fn arrival(&mut self, line: &Line, number: u32) -> Result<Arrival> {
        let request = Request::Arrived {
            line: line.number,
            number,
        };
        let arrival = self.ask(&request, |answer| match answer {
            Answer::Arrival(arrival) => Some(arrival),
            _ => None,
        })?;
        arrival.map_or_else(
            || failed("no receive has completed at the server in time"),
            Ok,
        )
    }

    /// The checksum that answers a request, as the server's processor sees the bytes.
    pub(crate) fn sum(&mut self, request: &Request) -> Result<u64> {
        self.ask(request, |answer| match answer {
            Answer::Sum(sum) => Some(sum),
            _ => None,
        })
    }

    /// Compares the server's bytes, as its processor sees them, with the expected ones.
    pub(crate) fn compare(&mut self, at: u64, expected: &[u8]) -> Result {
        let all = Part::new(at, expected.len());
        if self.sum(&Request::Sum(all))? == checksum(expected) {
            return Ok(());
        }
        let mut found = Vec::new();
        for chunk in expected.chunks(MOST_BYTES as usize) {
            let part = Part::new(at + found.len() as u64, chunk.len());
            found.extend(self.ask(&Request::Bytes(part), |answer| match answer {
                Answer::Bytes(bytes) => Some(bytes),
                _ => None,
            })?);
        }
        same(&found, expected)?;
        failed("the bytes are there now, and were not when the server's processor summed them")
    }

    /// Compares bytes of this side with the expected ones.
    pub(crate) fn compare_local(&self, at: usize, expected: &[u8]) -> Result {
        let mut found = vec![0; expected.len()];
        self.local.read_at(at, &mut found)?;
        same(&found, expected)
    }

    /// Puts the bytes of a seed into the memory of this side.
    pub(crate) fn put(&self, at: usize, seed: u64, len: usize) -> Result<Vec<u8>> {
        let bytes = pattern(seed, len);
        self.local.write_at(at, &bytes)?;
        Ok(bytes)
    }

    /// A part of this side's memory. A message of 0 bytes needs none.
    pub(crate) fn own(&self, at: usize, len: usize) -> Result<MrSlice<'_>> {
        match len {
            0 => Ok(MrSlice::EMPTY),
            len => Ok(self.local.slice(at..at + len)?),
        }
    }

    /// Parts of this side's memory: the offsets and lengths.
    pub(crate) fn gathered(&self, parts: &[(usize, usize)]) -> Result<Vec<MrSlice<'_>>> {
        parts.iter().map(|(at, len)| self.own(*at, *len)).collect()
    }

    /// A part of the server's memory.
    pub(crate) fn remote(&self, at: u64, len: usize) -> Result<RemoteSlice> {
        Ok(self.arena.slice(at..at + len as u64)?)
    }
}

impl Line {
    /// Waits for an operation.
    pub(crate) fn wait(&self, posted: Posted) -> Result<Wc> {
        self.clock
            .within(|limit| self.conn.wait_for(posted, limit, |_| {}))
    }

    /// Posts a write from this side's memory, which completes only if it fails.
    pub(crate) fn write(&self, bench: &Bench, from: usize, to: u64, len: usize) -> Result {
        let (dst, src) = (bench.remote(to, len)?, bench.own(from, len)?);
        self.conn.write(dst, src, Flags::COMPLETION_ON_ERROR, 0)?;
        Ok(())
    }

    /// Flushes to visibility, and waits for it.
    pub(crate) fn show(&self, bench: &Bench, at: u64, len: usize) -> Result {
        self.flush(bench.remote(at, len)?, FlushType::Visibility)
    }

    /// Flushes, and waits for it.
    pub(crate) fn flush(&self, range: RemoteSlice, flush_type: FlushType) -> Result {
        let flags = Flags::COMPLETION_ALWAYS;
        let flushed = self.conn.flush(range, flush_type, flags, 0)?;
        self.wait(flushed).map(drop)
    }

    /// Waits for an operation that the server's device has to refuse. Returns the status, or on
    /// iWARP the end of the connection.
    pub(crate) fn is_refused(&self, bench: &Bench, posted: Posted) -> Result<String> {
        if bench.peer.is_iwarp() {
            return self.is_ended_by(bench, posted);
        }
        match (self.wait(posted), self.conn.failure()) {
            (Ok(_), _) => failed("the server's device executed it, and an error was expected"),
            (Err(Stop::Failed(_)), Some(Failure::Operation(failure))) => {
                Ok(failure.status.to_string())
            }
            (Err(stop), _) => Err(stop),
        }
    }

    /// As [`is_refused`](Self::is_refused), on iWARP. A write or a message completes without an
    /// answer there, so a read follows it. The server's device cannot answer this read.
    fn is_ended_by(&self, bench: &Bench, posted: Posted) -> Result<String> {
        if let Ok(wc) = self.outcome(posted)? {
            let is_read = |success: WcSuccess| success.opcode() == WcOpcode::RDMA_READ;
            if wc.result().is_ok_and(is_read) {
                return failed("the server's device executed it, and an error was expected");
            }
            if self.is_answered(bench)? {
                return failed(
                    "the server's device answered a read after it, and the end of the connection was expected",
                );
            }
        }
        let event = self
            .clock
            .within(|limit| self.conn.wait_ended(limit))
            .step(|| "the end of the connection".to_owned())?;
        Ok(match self.conn.failure() {
            Some(failure) if !failure.is_flushed() => in_words(failure),
            _ => format!("the connection has ended, and no completion has the reason: {event}"),
        })
    }

    /// Whether the server's device answers a read of 8 bytes. If it does not, the connection has
    /// ended.
    pub(crate) fn is_answered(&self, bench: &Bench) -> Result<bool> {
        let (dst, src) = (bench.own(0, 8)?, bench.remote(FIRST, 8)?);
        match self.conn.read(dst, src, Flags::COMPLETION_ALWAYS, 0) {
            Ok(read) => Ok(self.outcome(read)?.is_ok()),
            Err(_) if self.conn.reason().is_some() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for an operation, or for the end of the connection.
    pub(crate) fn outcome(&self, posted: Posted) -> Result<std::result::Result<Wc, String>> {
        match self.wait(posted) {
            Ok(wc) => Ok(Ok(wc)),
            Err(Stop::Failed(text)) if self.conn.reason().is_some() => Ok(Err(text)),
            Err(stop) => Err(stop),
        }
    }
}

/// Fails with the first byte that differs.
fn same(found: &[u8], expected: &[u8]) -> Result {
    let mut pairs = found.iter().zip(expected).enumerate();
    match pairs.find(|(_, (found, expected))| found != expected) {
        None => Ok(()),
        Some((at, (found, right))) => failed(format!(
            "byte {at} of {} is {found:#04x}, and {right:#04x} was expected",
            expected.len()
        )),
    }
}

/// Why the two hosts cannot flush natively.
fn not_native(peer: &Peer, server: &Host, fallback: bool) -> Option<&'static str> {
    let own = peer.is_native_flush_capable() && peer.is_native_atomic_write_capable();
    let others = server.native_flush && server.native_atomic_write;
    match (fallback, own, others) {
        (true, ..) => Some("--fallback is given"),
        (_, false, _) => Some("this host's device has no native flush and atomic write"),
        (.., false) => Some("the server's device has no native flush and atomic write"),
        _ => None,
    }
}
