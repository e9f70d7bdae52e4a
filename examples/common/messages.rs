//! The messages of the ping-pong examples: a counter of 8 bytes, in the byte order of the host.
//!
//! # Differences from librpma's
//!
//! * A client waits until its last message is acknowledged, and then disconnects. librpma's
//!   disconnects at once, and may discard the message. Then both sides hang. librpma's server
//!   disconnects as soon as it has the message, so the acknowledgement may be lost. Then the client
//!   here ends with status 1.
//! * At its end the server gives its clients a second to disconnect. Then it disconnects those that
//!   remain, and waits for their answers. librpma's disconnects at once, and those of 08srq and 13
//!   wait for no answer.
//! * If a client loses its last message, as librpma's may, the servers of 08, 12 and 12scch end at
//!   once with status 1. librpma's wait for ever.
//! * There is at least one round, and a client does not send the counter 2⁶⁴ − 1, which is the
//!   message for the end. In C, 0 rounds are 2⁶⁴ rounds (08, 12).

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use rpma::wait::{Member, Wait};
use rpma::{Conn, Wc, WcOpcode};

use super::cli::{BadArgument, number};
use super::conn;

pub(crate) const SIZE: usize = 8;
/// A client sends it in place of a counter when it is done.
pub(crate) const DONE: u64 = u64::MAX;

/// Distinguish sends from receives; any numbers would do.
pub(crate) const SEND_ID: u64 = 1;
pub(crate) const RECV_ID: u64 = 2;

pub(crate) const CLIENT_USAGE: &str = "<server_address> <port> <seed> <rounds> [<sleep>]";
pub(crate) const CLIENT_NOTES: &str = "\
where <seed> is the first value of the counter, and <sleep> a pause after each round in µs
";

/// The arguments of a client.
pub(crate) struct ClientArgs {
    pub(crate) seed: u64,
    pub(crate) rounds: u64,
    pub(crate) sleep: Duration,
}

impl ClientArgs {
    pub(crate) fn parse(args: &[String]) -> Result<Self> {
        let [seed, rounds, more @ ..] = args else {
            bail!(BadArgument("the seed or the rounds are missing".to_owned()));
        };
        let sleep = more.first().map_or(Ok(0), |sleep| number("sleep", sleep))?;
        let args = Self {
            seed: number("seed", seed)?,
            rounds: number("number of rounds", rounds)?,
            sleep: Duration::from_micros(sleep),
        };
        match args.rounds {
            0 => bail!(BadArgument("at least 1 round is needed".to_owned())),
            _ => Ok(args),
        }
    }
}

/// Refuses a counter that would be taken for the end.
pub(crate) fn check_counter(counter: u64) -> Result<()> {
    ensure!(
        counter != DONE,
        "the counter has reached {DONE}, which is the message that ends the exchange"
    );
    Ok(())
}

/// Refuses a completion that is not one of a message of the right size.
pub(crate) fn check_message(wc: &Wc) -> Result<()> {
    let received = wc.result()?;
    ensure!(
        received.opcode() == WcOpcode::RECV && received.byte_len() == Some(SIZE as u32),
        "the completion is not one of a message of {SIZE} bytes: {wc:?}"
    );
    Ok(())
}

/// Where completions come from.
enum Source<'a> {
    Conn(&'a Conn),
    /// A wait, and its only connection.
    Wait(&'a mut Wait, Member),
}

/// The completions of a connection's sends and receives. They come in either order: the answer to a
/// message can be here before the acknowledgement of that message.
pub(crate) struct Completions<'a> {
    source: Source<'a>,
    /// Completed operations that no call has waited for yet.
    sent: u32,
    received: VecDeque<Wc>,
}

impl<'a> Completions<'a> {
    /// Those of a connection, in whichever of its queues they come.
    pub(crate) fn new(conn: &'a Conn) -> Self {
        Self::of(Source::Conn(conn))
    }

    /// The same of a wait: also receives that complete in the queue of a shared receive queue.
    pub(crate) fn of_wait(wait: &'a mut Wait, client: Member) -> Self {
        Self::of(Source::Wait(wait, client))
    }

    fn of(source: Source<'a>) -> Self {
        Self {
            source,
            sent: 0,
            received: VecDeque::new(),
        }
    }

    pub(crate) fn conn(&self) -> Result<&Conn> {
        match &self.source {
            Source::Conn(conn) => Ok(conn),
            Source::Wait(wait, client) => conn::member(wait, *client),
        }
    }

    /// Waits until a message is sent. Before that its memory must not change.
    pub(crate) fn wait_for_send(&mut self) -> Result<()> {
        while self.sent == 0 {
            self.next()?;
        }
        self.sent -= 1;
        Ok(())
    }

    /// Waits until a message is here.
    pub(crate) fn wait_for_message(&mut self) -> Result<Wc> {
        loop {
            if let Some(wc) = self.received.pop_front() {
                check_message(&wc)?;
                return Ok(wc);
            }
            self.next()?;
        }
    }

    fn next(&mut self) -> Result<()> {
        let wc = match &mut self.source {
            Source::Conn(conn) => conn::next_completion(conn)?,
            Source::Wait(wait, client) => conn::next_completion_of(wait, *client)?,
        };
        match wc.result()?.opcode() {
            WcOpcode::SEND => self.sent += 1,
            _ => self.received.push_back(wc),
        }
        Ok(())
    }
}
