//! Requests for connections: which one is accepted, as what, and why others are refused.

use rpma::commit::Method;
use rpma::wait::Member;
use rpma::{Identity, Offer, Refusal, RefusalCode, Request};

use super::Server;
use super::line::{self, Line};
use super::session::Session;
use crate::args::Fault;
use crate::bytes::pattern;
use crate::mailbox::{self, Mailbox};
use crate::problem::{Result, in_words};
use crate::report::Output;
use crate::wire::{Answers, Asks, Expect, Tag};

/// As what a request is accepted.
enum Admitted {
    Session,
    Line(Expect),
}

impl Server {
    pub(super) fn admit(&mut self, request: Request, out: &mut Output) -> Result {
        let from = match request.peer_addr() {
            Ok(addr) => addr.ip().to_string(),
            Err(error) => in_words(error),
        };
        match self.judge(request.private_data()) {
            Err(refusal) => {
                out.line(format!("{from} is refused: {}", refusal.words()))?;
                let rejected = request.reject(&refusal.encode());
                rejected.or_else(|error| out.line(format!("{from}: {}", in_words(error))))
            }
            Ok(Admitted::Session) => match self.begin(request, from.clone()) {
                Ok(()) => out.line(format!("a session of {from} begins")),
                Err(error) => out.line(format!("{from}: {error}")),
            },
            Ok(Admitted::Line(expect)) => {
                self.accept(request, &expect);
                Ok(())
            }
        }
    }

    /// The words have at most 134 characters.
    fn judge(&self, data: &[u8]) -> Result<Admitted, Refusal> {
        let expected = self.session.as_ref().and_then(|of| of.expected.as_ref());
        if let Some(expect) = expected.filter(|expect| is_announced(expect.asks, data)) {
            return Ok(Admitted::Line(expect.clone()));
        }
        let refused = |code, words: String| Err(Refusal::new(code, &words));
        let tag = match Offer::decode(data) {
            Ok(offer) => Tag::decode(offer.data()),
            Err(error) => return refused(RefusalCode::Broken, in_words(error)),
        };
        match (tag, &self.session, expected) {
            (Err(no_tag), ..) => refused(RefusalCode::Broken, format!("private data: {no_tag}")),
            (Ok(Tag::BEGIN), None, _) => Ok(Admitted::Session),
            (Ok(Tag::BEGIN), Some(session), _) => refused(
                RefusalCode::Full,
                format!("the server is busy with {}", session.from),
            ),
            (Ok(tag), Some(session), Some(expect))
                if (tag.session, tag.line) == (session.number, expect.line)
                    && expect.asks == Asks::Offer =>
            {
                Ok(Admitted::Line(expect.clone()))
            }
            (Ok(_), ..) => refused(
                RefusalCode::Refused,
                "this connection was not announced, or its session is over".to_owned(),
            ),
        }
    }

    /// Accepts the connection for messages.
    fn begin(&mut self, request: Request, from: String) -> Result {
        // The library's instances are random.
        let number = Identity::new(1, 0)?.instance.max(1);
        self.arena.begin()?;
        let place = self.wait.place();
        let cfg = place.cfg(&self.peer, &mailbox::conn_cfg()?)?;
        let req = request.into_req(&self.peer, &cfg)?;
        let mailbox = Mailbox::new(&self.peer, &req)?;
        let conn = req.connect(&self.encode_offer(number, 0)?)?;
        let control = self.wait.add(place, conn)?;
        self.session = Some(Session::new(number, from, control, mailbox));
        Ok(())
    }

    /// Accepts or rejects a connection that was announced. The client asks for the reason of a
    /// failure.
    fn accept(&mut self, request: Request, expect: &Expect) {
        if let Answers::Reject { len, seed } = expect.answers {
            let rejected = request.reject(&pattern(seed, len as usize));
            if let Err(error) = rejected {
                self.replace_line(expect.line, Line::failed(in_words(error)));
            }
        } else {
            let made = self.make_line(request, expect);
            let line = made.unwrap_or_else(|error| Line::failed(in_words(error)));
            self.replace_line(expect.line, line);
        }
        if let Some(session) = &mut self.session {
            session.expected = None;
        }
    }

    fn make_line(&mut self, request: Request, expect: &Expect) -> rpma::Result<Line> {
        let client = match expect.asks {
            Asks::Offer => Offer::decode(request.private_data())?.method(),
            Asks::Bytes { .. } => None,
        };
        let by_server = client.is_some_and(|(method, _)| method == Method::Server);
        let mut cfg = line::conn_cfg(expect.keep_alive_ms, expect.fallback)?;
        cfg.set_rq_size(cfg.get_rq_size().max(expect.receives.0));
        if expect.refills {
            // For ever: a measurement has its own limit, and this server may be busy.
            cfg.set_rnr_retry_count(7)?;
        }
        if by_server {
            cfg = self.responder.conn_cfg(&cfg)?;
        }
        let place = self.wait.place();
        let req = request.into_req(&self.peer, &place.cfg(&self.peer, &cfg)?)?;
        let mut line = Line::new(&self.peer, expect)?;
        line.post_receives(&req, expect.receives.0)?;
        let slots = match self.arena.persistent() {
            _ if !by_server => None,
            _ if self.fault == Some(Fault::Lies) => {
                line.prepare_lies(&self.peer, &req)?;
                None
            }
            Some(memory) => Some(self.responder.prepare(&req, memory, ..)?),
            None => None,
        };
        let conn = req.connect(&self.answer_of(expect)?)?;
        let member = self.wait.add(place, conn)?;
        if let Some(slots) = slots {
            self.responder.add(member, slots);
        }
        line.member = Some(member);
        Ok(line)
    }

    /// The private data of the answer.
    fn answer_of(&self, expect: &Expect) -> rpma::Result<Vec<u8>> {
        let session = self.session.as_ref().map_or(0, |session| session.number);
        match expect.answers {
            Answers::Accept { len, seed } => Ok(pattern(seed, len as usize)),
            _ => self.encode_offer(session, expect.line),
        }
    }

    fn encode_offer(&self, session: u64, line: u32) -> rpma::Result<Vec<u8>> {
        let mut offer = self.offer();
        offer.set_data(&Tag { session, line }.encode());
        let mut bytes = offer.encode(Offer::ACCEPT)?;
        let has_all_rights = self.fault == Some(Fault::Refuses);
        self.arena.describe(&mut bytes, has_all_rights);
        Ok(bytes)
    }

    pub(super) fn replace_line(&mut self, number: u32, line: Line) {
        let session = self.session.as_mut();
        if let Some(old) = session.and_then(|session| session.lines.insert(number, line)) {
            self.drop_line(old);
        }
    }

    /// Drops a connection, and forgets its requests.
    pub(super) fn drop_line(&mut self, line: Line) {
        if let Some(member) = line.member {
            drop(self.take_conn(member));
        }
    }

    /// Takes a line's connection out of the wait.
    pub(super) fn take_conn(&mut self, member: Member) -> Option<rpma::Conn> {
        self.responder.remove(member);
        self.wait.remove(member)
    }
}

/// Whether these private data were announced. The transport pads them with zeros.
fn is_announced(asks: Asks, data: &[u8]) -> bool {
    match asks {
        Asks::Offer => false,
        Asks::Bytes { len, seed } => {
            let expected = pattern(seed, len as usize);
            data.strip_prefix(&expected[..])
                .is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
        }
    }
}
