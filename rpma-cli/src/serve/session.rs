//! [`Session`]: one client of the server.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rpma::Wc;
use rpma::wait::Member;

use super::line::Line;
use super::{SILENCE, Server, spin};
use crate::interrupt::Interrupt;
use crate::mailbox::Mailbox;
use crate::problem::Result;
use crate::report::Output;
use crate::time::now;
use crate::wire::{Answer, Expect, Request};

/// How long a client's request waits for what it asks for.
const WAITS: Duration = Duration::from_secs(5);

/// A client, and its connections.
pub(super) struct Session {
    pub(super) number: u64,
    /// The client's address.
    pub(super) from: String,
    /// The connection for messages.
    pub(super) control: Member,
    pub(super) mailbox: Mailbox,
    pub(super) lines: BTreeMap<u32, Line>,
    /// The connection that the client has announced.
    pub(super) expected: Option<Expect>,
    /// A request that waits, and until when.
    waiting: Option<(Request, Instant)>,
    heard: Instant,
}

impl Session {
    pub(super) fn new(number: u64, from: String, control: Member, mailbox: Mailbox) -> Self {
        Self {
            number,
            from,
            control,
            mailbox,
            lines: BTreeMap::new(),
            expected: None,
            waiting: None,
            heard: now(),
        }
    }

    pub(super) fn line_of(&mut self, member: Member) -> Option<&mut Line> {
        self.lines
            .values_mut()
            .find(|line| line.member == Some(member))
    }
}

impl Server {
    /// Takes a completion of the connection for messages. A request waits for the end of the turn.
    pub(super) fn message(&mut self, wc: &Wc, out: &mut Output) -> Result {
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        let Some(conn) = self.wait.conn(session.control) else {
            return Ok(());
        };
        match session.mailbox.take::<Request>(conn, wc) {
            Ok(None) => Ok(()),
            Ok(Some(request)) => {
                session.heard = now();
                session.waiting = Some((request, now() + WAITS));
                self.count_request()
            }
            Err(error) => self.end_session(&error, out),
        }
    }

    /// Answers the request that waits, if it can be answered or its time has passed.
    pub(super) fn answer_waiting(&mut self, interrupt: &Interrupt, out: &mut Output) -> Result {
        let session = self.session.as_mut();
        let Some((request, until)) = session.and_then(|session| session.waiting.take()) else {
            return Ok(());
        };
        let answer = match &request {
            Request::Spin(spin) => {
                self.send(&Answer::Spins, out)?;
                let spun = spin::spin(&self.arena, spin, interrupt);
                spun.map(|spun| Some(Answer::Spun(spun)))
            }
            request => self.answer(request, now() >= until),
        };
        match answer {
            Ok(Some(answer)) => return self.send(&answer, out),
            Err(reason) => return self.send(&Answer::Cannot(reason), out),
            Ok(None) => {}
        }
        if let Some(session) = &mut self.session {
            session.waiting = Some((request, until));
        }
        Ok(())
    }

    fn send(&mut self, answer: &Answer, out: &mut Output) -> Result {
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        let sent = match self.wait.conn(session.control) {
            Some(conn) => session.mailbox.send(conn, answer),
            None => Ok(()),
        };
        sent.or_else(|error| self.end_session(&error, out))
    }

    /// Ends the session of a client that stands still.
    pub(super) fn end_silent(&mut self, out: &mut Output) -> Result {
        match &self.session {
            Some(session) if now() - session.heard > SILENCE => {
                let reason = format!("no request came for {} s", SILENCE.as_secs());
                self.end_session(&reason, out)
            }
            _ => Ok(()),
        }
    }

    /// Drops all connections of the session.
    pub(super) fn end_session(&mut self, reason: &str, out: &mut Output) -> Result {
        self.remove_lines(None);
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        drop(self.wait.remove(session.control));
        out.line(format!(
            "the session of {} has ended: {reason}",
            session.from
        ))
    }
}
