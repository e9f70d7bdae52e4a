//! [`Remote`]: a server of a measurement, with its session; and the connections that are measured.

use std::net::SocketAddr;
use std::time::Duration;

use rpma::commit::{self, Writer, WriterCfg};
use rpma::{Conn, ConnCfg, ConnEvent, ConnReq, MrRemote, Offer, Peer};

use crate::args::Endpoint;
use crate::client::{Clock, Control, Result, Stop, failed};
use crate::host::Host;
use crate::interrupt::Interrupt;
use crate::settings::{Flush, Method, Op, Setting};
use crate::wire::{Answer, Answers, Asks, Expect, Request, Tag};

/// For a connection to be established.
pub(super) const LIMIT: Duration = Duration::from_secs(10);
/// The receives for each message in flight: the server posts one again after its completion.
pub(super) const RECEIVES: u32 = 2;

/// A session with a server.
pub(super) struct Remote {
    pub(super) host: Host,
    pub(super) memory: MrRemote,
    pub(super) offer: Offer,
    addr: SocketAddr,
    session: u64,
    control: Control,
    /// The number of the last connection.
    lines: u32,
    clock: Clock,
}

impl Remote {
    /// Begins a session. Returns the peer as well, which is made if there is none yet.
    pub(super) fn connect(
        peer: Option<&Peer>,
        server: &Endpoint,
        interrupt: &Interrupt,
    ) -> Result<(Peer, Self)> {
        let (peer, mut control, offer) = Control::connect(peer, server, interrupt)?;
        let tag = Tag::decode(offer.data()).map_err(|no_tag| control.over(&no_tag.to_string()))?;
        let region = offer.regions().first().copied();
        let memory = region.ok_or_else(|| control.over("the server offers no memory"))?;
        let Answer::Server(described) = control.request(&Request::Begin)? else {
            return Err(control.over("the server sent another answer than the one to `begin`"));
        };
        let remote = Self {
            host: described.host.published(),
            memory,
            offer,
            addr: control.peer_addr()?,
            session: tag.session,
            control,
            lines: 0,
            clock: Clock::new(interrupt, LIMIT),
        };
        Ok((peer, remote))
    }

    /// A connection for the operations of a setting.
    pub(super) fn conn(&mut self, peer: &Peer, setting: &Setting) -> Result<Conn> {
        let (number, cfg) = (self.announce(setting)?, conn_cfg(setting)?);
        let req = ConnReq::to_addr(peer, self.addr, &cfg)?;
        let data = self.private_data(number)?.encode(Offer::CONNECT)?;
        let conn = req.connect(&data).map_err(rpma::Error::from)?;
        self.established(&conn, number)?;
        conn.apply_remote_peer_cfg(self.offer.platform());
        Ok(conn)
    }

    /// A writer for the commits of a setting.
    pub(super) fn writer(&mut self, peer: &Peer, setting: &Setting) -> Result<Writer> {
        let number = self.announce(setting)?;
        let mut cfg = WriterCfg::new(method(setting));
        let depth = u16::try_from(setting.depth).unwrap_or(u16::MAX);
        cfg.set_flush_type(flush_type(setting))?
            .set_in_flight(depth)?
            .set_parts(1)?;
        let conn_cfg = cfg.conn_cfg(&conn_cfg(setting)?)?;
        let req = ConnReq::to_addr(peer, self.addr, &conn_cfg)?;
        let asked = Writer::connect(req, &cfg, &self.private_data(number)?);
        let asked = asked.map_err(rpma::Error::from)?;
        self.established(asked.conn(), number)?;
        Ok(asked.finish()?)
    }

    /// What an awaited connection needs: the address and the private data.
    pub(super) fn expect(&mut self, setting: &Setting) -> Result<(SocketAddr, Vec<u8>)> {
        let number = self.announce(setting)?;
        let data = self.private_data(number)?.encode(Offer::CONNECT)?;
        Ok((self.addr, data))
    }

    /// A sign of life: the server ends a session without one.
    pub(super) fn ping(&mut self) -> Result {
        let part = crate::wire::Part {
            at: crate::wire::FIRST,
            len: 1,
        };
        self.control.request(&Request::Bytes(part)).map(drop)
    }

    /// Drops all connections that were made, at the server.
    pub(super) fn clear(&mut self) -> Result {
        self.control.request(&Request::Clear).map(drop)
    }

    /// Tells the server that the next connection is for this session.
    fn announce(&mut self, setting: &Setting) -> Result<u32> {
        self.lines += 1;
        let receives = match setting.op {
            Op::Send => (RECEIVES * setting.depth, setting.size as u32),
            _ => (0, 0),
        };
        let expect = Expect {
            line: self.lines,
            asks: Asks::Offer,
            answers: Answers::Offer,
            fallback: setting.method == Some(Method::Reading),
            keep_alive_ms: None,
            receives,
            refills: true,
            watch: None,
        };
        match self.control.request(&Request::Expect(expect))? {
            Answer::Done => Ok(self.lines),
            other => Err(self.control.over(&format!("a wrong answer: {other:?}"))),
        }
    }

    fn private_data(&self, number: u32) -> Result<Offer> {
        let tag = Tag {
            session: self.session,
            line: number,
        };
        let mut offer = Offer::default();
        offer.set_data(&tag.encode());
        Ok(offer)
    }

    fn established(&mut self, conn: &Conn, number: u32) -> Result {
        self.clock.restart(LIMIT);
        match self.clock.established_or_end(conn)? {
            ConnEvent::Established => Ok(()),
            event => match self.control.request(&Request::Ended { line: number }) {
                Err(stop @ (Stop::Over(_) | Stop::Interrupted)) => Err(stop),
                Ok(Answer::Ended(Some(end))) => {
                    failed(format!("no connection: {event}; the server: {end}"))
                }
                _ => failed(format!("no connection: {event}")),
            },
        }
    }
}

/// The settings of a connection. The time until a loss is noticed is the library's default.
pub(super) fn conn_cfg(setting: &Setting) -> Result<ConnCfg> {
    let mut cfg = ConnCfg::new();
    let flushes = match setting.op {
        Op::WriteFlush => setting.depth / setting.batch,
        _ => 0,
    };
    cfg.set_force_fallback(setting.method == Some(Method::Reading))
        .set_sq_size(setting.depth + flushes)
        .set_rq_size(1);
    Ok(cfg)
}

/// The library's name of a setting's method. A setting without one has no commits.
pub(super) fn method(setting: &Setting) -> commit::Method {
    match setting.method {
        Some(Method::Native) | None => commit::Method::Native,
        Some(Method::Reading) => commit::Method::Reading,
        Some(Method::Server) => commit::Method::Server,
    }
}

pub(super) fn flush_type(setting: &Setting) -> rpma::FlushType {
    match setting.flush {
        Some(Flush::Durable) => rpma::FlushType::Persistent,
        Some(Flush::Visible) | None => rpma::FlushType::Visibility,
    }
}
