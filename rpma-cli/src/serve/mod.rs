//! `rpma serve`: the other side of `rpma check` and `rpma perf`.
//!
//! One thread with one [`Wait`] does everything. A session has a connection for messages, and any
//! number of connections that its client announces ([`Line`]).

mod admit;
mod arena;
mod contents;
mod line;
mod requests;
mod session;
mod spin;

use std::time::Duration;

use rpma::commit::{Limits, Responder, Turn};
use rpma::wait::{Happened, Member, Wait};
use rpma::{AlignedBuf, ConnEvent, Durable, Ep, Mr, MrUsage, Offer, Peer, PeerCfg, Wc};

use self::arena::Arena;
pub(crate) use self::line::conn_cfg;
use self::session::Session;
use crate::args::{Fault, Serve};
use crate::bytes::pattern;
use crate::host::Host;
use crate::interrupt::Interrupt;
use crate::problem::{Result, in_words};
#[cfg(any(test, not(feature = "sim")))]
use crate::report::Outcome;
use crate::report::Output;

/// The longest sleep before the interrupt and the limits are looked at.
const TICK: Duration = Duration::from_millis(100);
/// A session without a request for so long ends.
pub(crate) const SILENCE: Duration = Duration::from_secs(120);
/// The commits in flight of a connection, by the server's method.
const CREDITS: u16 = 64;
/// The bytes of the region that nobody may write to.
pub(crate) const GUARDED: usize = 4096;
pub(crate) const GUARDED_SEED: u64 = 0x6775_6172;
/// After so many requests the fault `dies` ends the server.
const DIES_AFTER: u32 = 40;
/// `ENODEV`: the device is gone.
const NO_DEVICE: i32 = 19;

/// Answers clients until the interrupt. On a fabric, the clients have their own server.
#[cfg(any(test, not(feature = "sim")))]
pub(crate) fn run(args: &Serve, interrupt: &Interrupt, out: &mut Output) -> Result<Outcome> {
    let mut server = Server::open(args)?;
    out.line(format!("listening on {}; ctrl-c ends it", args.addr))?;
    if let Some(memory) = &server.host.memory {
        out.line(format!("memory: {memory}"))?;
    }
    server.serve(interrupt, out)?;
    Ok(Outcome::Good)
}

/// A server of one session at a time.
pub(crate) struct Server {
    // Before the memory that its connections use.
    session: Option<Session>,
    wait: Wait,
    peer: Peer,
    arena: Arena,
    guarded: Mr<AlignedBuf>,
    /// What this host declares.
    platform: PeerCfg,
    responder: Responder<Member>,
    /// Whether commits by the server's method are served.
    serves_commits: bool,
    host: Host,
    fault: Option<Fault>,
    /// The requests of all sessions.
    answered: u32,
    /// Whether the fault `wrong-byte` has changed its byte.
    is_spoiled: bool,
}

impl Server {
    /// Listens, with all memory registered.
    pub(crate) fn open(args: &Serve) -> Result<Self> {
        let addr = &args.addr;
        let peer = Peer::at(&addr.host)?;
        let (arena, mut platform, memory) = Arena::open(&peer, args)?;
        let ep = Ep::listen(&peer, &addr.host, addr.port)?;
        let mut wait = Wait::new()?;
        wait.add_ep(ep)?;
        let guarded = Mr::reg(&peer, AlignedBuf::zeroed(GUARDED)?, GUARDED_USAGE)?;
        guarded.write_at(0, &pattern(GUARDED_SEED, GUARDED))?;
        // The processor of this host makes commits durable there.
        let mut serves_commits = arena.persistent().is_some()
            && memory.not_persistent.is_none()
            && platform.get_processor_persists();
        let mut host = Host::of(&peer);
        host.memory = Some(memory);
        if args.fault == Some(Fault::Lies) {
            // It declares everything that a client could wish for.
            platform.set_durable(Durable::DirectWrites);
            (host.native_flush, host.native_atomic_write) = (true, true);
            serves_commits = true;
        }
        Ok(Self {
            session: None,
            wait,
            peer,
            arena,
            guarded,
            platform,
            responder: Responder::new(Limits::new(CREDITS, 2, 1 << 20)?),
            serves_commits,
            host,
            fault: args.fault,
            answered: 0,
            is_spoiled: false,
        })
    }

    /// Answers clients until the interrupt. After an error, the memory keeps its mark.
    pub(crate) fn serve(&mut self, interrupt: &Interrupt, out: &mut Output) -> Result {
        while !interrupt.is_set() {
            self.turn(TICK, interrupt, out)?;
        }
        self.end(out)
    }

    /// Does what there is to do, or waits for it until the limit. Returns whether something happened.
    pub(crate) fn turn(
        &mut self,
        limit: Duration,
        interrupt: &Interrupt,
        out: &mut Output,
    ) -> Result<bool> {
        let mut wcs = [Wc::default(); 16];
        let happened = self.wait.next(&mut wcs, limit)?;
        let is_idle = happened.is_none();
        if let Some(happened) = happened {
            self.take(happened, &wcs, out)?;
        }
        self.serve_commits(out)?;
        self.answer_waiting(interrupt, out)?;
        self.end_silent(out)?;
        Ok(!is_idle)
    }

    /// Ends the session, and clears the memory after it. A closed output does not keep it from that.
    fn end(&mut self, out: &mut Output) -> Result {
        let ended = self.end_session("the server ends", out);
        let left = self.arena.end()?;
        ended?;
        left.map_or(Ok(()), |line| out.line(line))
    }

    fn take(&mut self, happened: Happened, wcs: &[Wc], out: &mut Output) -> Result {
        match happened {
            Happened::Request(_, request) => self.admit(request, out),
            Happened::Completions(member, count) => wcs[..count]
                .iter()
                .try_for_each(|wc| self.completed(member, wc, out)),
            Happened::Event(_, event) if !event.is_end() => Ok(()),
            Happened::Event(member, ConnEvent::Closed) => {
                self.ended(member, "the client has closed it", out)
            }
            Happened::Event(member, event) => self.ended(member, &event.to_string(), out),
            Happened::Failed(_, error) if error.raw_os_error() == Some(NO_DEVICE) => {
                Err(error.into())
            }
            Happened::Failed(member, error) if self.wait.ep(member).is_some() => {
                out.line(format!("a request failed: {}", in_words(error)))
            }
            Happened::Failed(member, error) => self.ended(member, &in_words(error), out),
            _ => Ok(()),
        }
    }

    fn completed(&mut self, member: Member, wc: &Wc, out: &mut Output) -> Result {
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        if session.control == member {
            return self.message(wc, out);
        }
        if self.responder.handle(member, wc) {
            return Ok(());
        }
        let (Some(line), Some(conn)) = (session.line_of(member), self.wait.conn(member)) else {
            return Ok(());
        };
        let taken = line.completed(conn, wc, &self.arena);
        let taken = taken.and_then(|()| line.answer_falsely(&self.peer, conn, wc));
        taken.or_else(|error| self.ended(member, &error, out))
    }

    /// A connection ended: the session, or one of its lines.
    fn ended(&mut self, member: Member, reason: &str, out: &mut Output) -> Result {
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        if session.control == member {
            return self.end_session(reason, out);
        }
        if let Some(line) = session.line_of(member) {
            line.end.get_or_insert_with(|| reason.to_owned());
        }
        Ok(())
    }

    /// Serves the requests of commits that have arrived.
    fn serve_commits(&mut self, out: &mut Output) -> Result {
        loop {
            match self.responder.turn(|client| self.wait.conn(client)) {
                Turn::Idle => return Ok(()),
                Turn::Misused(client, error) | Turn::Failed(client, error) => {
                    self.ended(client, &in_words(error), out)?;
                }
                _ => {}
            }
        }
    }

    /// The bytes of the region that nobody may write to.
    #[cfg(all(feature = "sim", any(test, fuzzing)))]
    pub(crate) fn guarded(&self) -> Vec<u8> {
        let mut bytes = vec![0; GUARDED];
        let read = self.guarded.read_at(0, &mut bytes);
        read.map(|()| bytes).expect("all of it")
    }

    /// The offer to each client.
    fn offer(&self) -> Offer {
        let mut offer = Offer::new(&self.platform);
        self.arena.add_to(&mut offer);
        if self.serves_commits {
            offer.set_limits(self.responder.limits());
        }
        offer
    }
}

const GUARDED_USAGE: MrUsage = MrUsage::READ_SRC.union(MrUsage::FLUSH_TYPE_VISIBILITY);
