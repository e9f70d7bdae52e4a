//! [`Session`]: a client's session with `rpma serve`, and the connections that it announces.

use std::net::SocketAddr;
use std::time::Duration;

use rpma::commit::{Writer, WriterCfg};
use rpma::{Conn, ConnCfg, ConnEvent, ConnReq, MrRemote, Offer, Peer};

use super::control::Control;
use super::stop::{Clock, Result, Stop};
use crate::args::Endpoint;
use crate::interrupt::Interrupt;
use crate::wire::{self, Answer, Expect, FIRST, Part, Request, Tag};

/// A session with a server.
pub(crate) struct Session {
    pub(crate) addr: SocketAddr,
    /// What the server has said of itself.
    pub(crate) server: wire::Server,
    pub(crate) offer: Offer,
    /// The server's memory.
    pub(crate) arena: MrRemote,
    pub(crate) clock: Clock,
    control: Control,
    number: u64,
    /// The number of the last connection.
    lines: u32,
}

/// An announcement of a connection that has an offer, and nothing else.
pub(crate) fn plain(line: u32, fallback: bool) -> Expect {
    Expect {
        line,
        fallback,
        ..Expect::default()
    }
}

impl Session {
    /// Begins a session. Returns the peer as well, which is made if there is none yet.
    pub(crate) fn begin(
        peer: Option<&Peer>,
        server: &Endpoint,
        interrupt: &Interrupt,
    ) -> Result<(Peer, Self)> {
        let (peer, mut control, offer) = Control::connect(peer, server, interrupt)?;
        let tag = Tag::decode(offer.data()).map_err(|no_tag| control.over(&no_tag))?;
        let region = offer.regions().first().copied();
        let arena = region.ok_or_else(|| control.over("the server offers no memory"))?;
        let Answer::Server(mut server) = control.request(&Request::Begin)? else {
            return Err(control.over("the server sent another answer than the one to `begin`"));
        };
        server.host = server.host.published();
        let session = Self {
            // After the look-up of its name.
            addr: control.conn.peer_addr()?,
            server: *server,
            offer,
            arena,
            clock: Clock::new(interrupt, Duration::ZERO),
            control,
            number: tag.session,
            lines: 0,
        };
        Ok((peer, session))
    }

    /// A request with the answer "done".
    pub(crate) fn tell(&mut self, request: &Request) -> Result {
        self.ask(request, |answer| (answer == Answer::Done).then_some(()))
    }

    /// A request with an answer of its own. `take` returns `None` for another one.
    pub(crate) fn ask<T>(
        &mut self,
        request: &Request,
        take: impl FnOnce(Answer) -> Option<T>,
    ) -> Result<T> {
        let taken = take(self.control.request(request)?);
        taken.ok_or_else(|| self.control.over(&format!("a wrong answer to {request:?}")))
    }

    /// For a request that has several answers.
    pub(crate) fn control(&mut self) -> &mut Control {
        &mut self.control
    }

    /// The number of the next connection.
    pub(crate) fn next_line(&mut self) -> u32 {
        self.lines += 1;
        self.lines
    }

    /// Tells the server that the next connection is for this session.
    pub(crate) fn expect(&mut self, expect: Expect) -> Result {
        self.tell(&Request::Expect(expect))
    }

    /// The offer of this side for a connection.
    pub(crate) fn own_offer(&self, line: u32) -> Offer {
        let session = self.number;
        let mut offer = Offer::default();
        offer.set_data(&Tag { session, line }.encode());
        offer
    }

    /// Makes the connection of this number, which was announced.
    pub(crate) fn conn(&mut self, peer: &Peer, cfg: &ConnCfg, line: u32) -> Result<Conn> {
        let data = self.own_offer(line).encode(Offer::CONNECT)?;
        let req = ConnReq::to_addr(peer, self.addr, cfg)?;
        let conn = req.connect(&data)?;
        self.wait_established(&conn, line)?;
        // Applies the server's declaration.
        conn.offer()?;
        Ok(conn)
    }

    /// Makes a writer on the connection of this number. `base` has the other settings of it.
    pub(crate) fn writer(
        &mut self,
        peer: &Peer,
        cfg: &WriterCfg,
        base: &ConnCfg,
        line: u32,
    ) -> Result<Writer> {
        let req = ConnReq::to_addr(peer, self.addr, &cfg.conn_cfg(base)?)?;
        let asked = Writer::connect(req, cfg, &self.own_offer(line))?;
        self.wait_established(asked.conn(), line)?;
        Ok(asked.finish()?)
    }

    /// Waits until a connection is established.
    fn wait_established(&mut self, conn: &Conn, line: u32) -> Result {
        match self.clock.established_or_end(conn)? {
            ConnEvent::Established => Ok(()),
            event => Err(self.not_established(line, &event)),
        }
    }

    /// Why a connection was not made. The server may know more.
    pub(crate) fn not_established(&mut self, line: u32, event: &ConnEvent) -> Stop {
        let ended = self.ask(&Request::Ended { line }, |answer| match answer {
            Answer::Ended(end) => Some(end),
            _ => None,
        });
        match ended {
            Err(stop @ (Stop::Over(_) | Stop::Interrupted)) => stop,
            Ok(Some(end)) => Stop::Failed(format!("no connection: {event}; the server: {end}")),
            _ => Stop::Failed(format!("no connection: {event}")),
        }
    }

    /// Asks for an answer, as a sign of life of both sides.
    pub(crate) fn ping(&mut self) -> Result {
        let part = Part { at: FIRST, len: 1 };
        self.control.request(&Request::Bytes(part)).map(drop)
    }

    /// Drops the connections that were made, at the server.
    pub(crate) fn clear(&mut self) -> Result {
        self.tell(&Request::Clear)
    }
}
