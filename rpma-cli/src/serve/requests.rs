//! What the server does for each request of a session.

use rpma::{Conn, Flags, MrSlice};

use super::line::{Line, VANISHES};
use super::session::Session;
use super::{DIES_AFTER, GUARDED_SEED, Server};
use crate::args::Fault;
use crate::bytes::{checksum, pattern};
use crate::problem::{Problem, in_words};
use crate::wire::{self, Answer, Expect, MOST_BYTES, MOST_LINES, Part, Request};

type Result<T> = std::result::Result<T, String>;

impl Server {
    /// The answer to a request. `None` if it has to wait, which a late one does no more, and the
    /// reason if it cannot be served.
    pub(super) fn answer(&mut self, request: &Request, is_late: bool) -> Result<Option<Answer>> {
        let done = |()| Answer::Done;
        let answer = match request {
            Request::Begin => self.begun(),
            Request::Fill { part, seed } => {
                let bytes = pattern(*seed, part.len.min(wire::ARENA as u64) as usize);
                self.arena.write(part.at, &bytes).map(done)?
            }
            Request::Zero { word } => self.arena.write(*word, &[0; 8]).map(done)?,
            Request::Sum(part) => Answer::Sum(self.sum(*part)?),
            Request::Bytes(part) if part.len <= MOST_BYTES => {
                Answer::Bytes(self.arena.read(*part)?)
            }
            Request::Bytes(Part { len, .. }) => {
                return Err(format!("{len} bytes are asked for: at most {MOST_BYTES}"));
            }
            Request::Expect(expect) => self.expect(expect).map(done)?,
            Request::Send(send) => {
                let (peer, (line, conn)) = (self.peer.clone(), self.line_and_conn(send.line)?);
                line.check_send(send)?;
                let bytes = pattern(send.seed, send.len as usize);
                let sent = line.send(&peer, conn, &bytes, send.imm);
                sent.map(done).map_err(in_words)?
            }
            Request::Arrived { line, number } => return self.arrived(*line, *number, is_late),
            Request::Ended { line } => match line_of(&mut self.session, *line)?.end.clone() {
                None if !is_late => return Ok(None),
                end => Answer::Ended(end),
            },
            Request::CutOff { line, part } => self.cut_off(*line, *part)?,
            Request::Vanish { line } => return self.vanish(*line, is_late),
            Request::Drop { line } => {
                self.remove_lines(Some(*line));
                Answer::Done
            }
            Request::Clear => {
                self.remove_lines(None);
                Answer::Done
            }
            Request::Spin(_) => return Err("a spin has answers of its own".to_owned()),
        };
        Ok(Some(answer))
    }

    /// Takes the announcement of a connection, if there is room for it.
    fn expect(&mut self, expect: &Expect) -> Result<()> {
        expect.check()?;
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        let is_new = !session.lines.contains_key(&expect.line);
        if is_new && session.lines.len() >= MOST_LINES {
            return Err(format!(
                "a session has at most {MOST_LINES} connections: drop some"
            ));
        }
        session.expected = Some(expect.clone());
        Ok(())
    }

    /// Counts a request. The fault `dies` ends the server in the middle.
    pub(super) fn count_request(&mut self) -> std::result::Result<(), Problem> {
        self.answered = self.answered.saturating_add(1);
        match self.fault {
            Some(Fault::Dies) if self.answered == DIES_AFTER => {
                Err(Problem::new("the server ends, as its --fault asks", ""))
            }
            _ => Ok(()),
        }
    }

    fn begun(&self) -> Answer {
        Answer::Server(Box::new(wire::Server {
            host: self.host.clone(),
            arena: self.arena.descriptor().to_vec(),
            guarded: self.guarded.get_descriptor().to_vec(),
            guarded_seed: GUARDED_SEED,
        }))
    }

    fn sum(&mut self, part: Part) -> Result<u64> {
        let mut bytes = self.arena.read(part)?;
        let spoils = self.fault == Some(Fault::WrongByte) && !self.is_spoiled;
        if let Some(byte) = bytes.get_mut(part.len as usize / 2).filter(|_| spoils) {
            *byte ^= 1;
            self.is_spoiled = true;
            self.arena.write(part.at, &bytes)?;
        }
        Ok(checksum(&bytes))
    }

    fn arrived(&mut self, line: u32, number: u32, is_late: bool) -> Result<Option<Answer>> {
        let line = line_of(&mut self.session, line)?;
        let arrival = line.arrivals.get(number as usize).cloned();
        match &line.end {
            _ if is_late || arrival.is_some() => Ok(Some(Answer::Arrival(arrival))),
            Some(end) => Err(format!("the connection has ended: {end}")),
            None => Ok(None),
        }
    }

    fn cut_off(&mut self, number: u32, part: Part) -> Result<Answer> {
        let member = line_of(&mut self.session, number)?.member.take();
        let conn = member.and_then(|member| self.take_conn(member));
        let conn = conn.ok_or("the connection is gone already")?;
        conn.cut_off().map_err(in_words)?;
        Ok(Answer::Sum(checksum(&self.arena.read(part)?)))
    }

    fn vanish(&mut self, number: u32, is_late: bool) -> Result<Option<Answer>> {
        let (line, conn) = self.line_and_conn(number)?;
        if line.has_vanished {
            return Ok(Some(Answer::Done));
        }
        if !std::mem::replace(&mut line.vanishes, true) {
            // The client has no receive for it. The queue pair fails when the retries end, and no
            // event tells the client.
            let sent = conn.send(MrSlice::EMPTY, Flags::COMPLETION_ALWAYS, VANISHES);
            sent.map_err(in_words)?;
        }
        match is_late {
            true => Err("the server has waited in vain".to_owned()),
            false => Ok(None),
        }
    }

    /// Drops a connection, or all of them.
    pub(super) fn remove_lines(&mut self, one: Option<u32>) {
        let Some(session) = &mut self.session else {
            return;
        };
        session.expected = None;
        let gone: Vec<Line> = match one {
            Some(number) => session.lines.remove(&number).into_iter().collect(),
            None => std::mem::take(&mut session.lines).into_values().collect(),
        };
        gone.into_iter().for_each(|line| self.drop_line(line));
    }

    fn line_and_conn(&mut self, number: u32) -> Result<(&mut Line, &Conn)> {
        let line = line_of(&mut self.session, number)?;
        let conn = line.member.and_then(|member| self.wait.conn(member));
        let conn = conn.ok_or("the connection is gone already")?;
        Ok((line, conn))
    }
}

fn line_of(session: &mut Option<Session>, number: u32) -> Result<&mut Line> {
    let session = session.as_mut();
    let line = session.and_then(|session| session.lines.get_mut(&number));
    line.ok_or_else(|| format!("there is no connection {number}"))
}
