//! [`Control`]: the client's end of the connection for messages.

use std::time::Duration;

use rpma::reconnect::first_that_works;
use rpma::{Conn, ConnEvent, ConnReq, Device, Error, Next, Offer, Peer, Refusal, Side, Wc};

use rustix::io::Errno;

use super::stop::{Clock, Result, Stop};
use crate::args::Endpoint;
use crate::interrupt::Interrupt;
use crate::mailbox::{self, Mailbox};
use crate::problem::{Problem, reason, remedy};
use crate::wire::{Answer, Request, Tag};

/// For an answer of the server.
const LIMIT: Duration = Duration::from_secs(10);

pub(crate) struct Control {
    pub(super) conn: Conn,
    mailbox: Mailbox,
    interrupt: Interrupt,
    server: Endpoint,
}

impl Control {
    /// Asks the server for a session, with this peer or with one of the device through which the
    /// server is reached. Each address of the server's name is tried.
    pub(crate) fn connect(
        peer: Option<&Peer>,
        server: &Endpoint,
        interrupt: &Interrupt,
    ) -> Result<(Peer, Self, Offer)> {
        let attempt = |addr, limit| {
            let peer = match peer {
                Some(peer) => peer.clone(),
                None => Peer::new(&Device::from_socket_addr(addr, Side::Remote)?)?,
            };
            let req = ConnReq::to_addr(&peer, addr, &mailbox::conn_cfg()?)?;
            let mailbox = Mailbox::new(&peer, &req)?;
            let mut offer = Offer::default();
            let data = offer.set_data(&Tag::BEGIN.encode()).encode(Offer::CONNECT);
            let conn = req.connect(&data?)?;
            match Clock::new(interrupt, limit).established_or_end(&conn) {
                Ok(ConnEvent::Established) => Ok((peer, conn, mailbox)),
                Ok(event) => Err(Error::NotEstablished(Box::new(event))),
                Err(_stop) => Err(Error::TimedOut("the server did not answer")),
            }
        };
        let connected = first_that_works(&server.host, server.port, LIMIT, attempt);
        let (peer, conn, mailbox) = match connected {
            Ok(connected) => connected,
            Err(_) if interrupt.is_set() => return Err(Stop::Interrupted),
            Err(Error::NotEstablished(event)) => return Err(Stop::Over(refused(server, &event))),
            Err(Error::TimedOut(_)) => return Err(Stop::Over(no_answer(server))),
            Err(error) => return Err(Stop::Over(unreachable(server, &error))),
        };
        let offer = offer_of(&conn, server)?;
        let control = Self {
            conn,
            mailbox,
            interrupt: interrupt.clone(),
            server: server.clone(),
        };
        Ok((peer, control, offer))
    }

    /// Sends a request, and returns the answer.
    pub(crate) fn request(&mut self, request: &Request) -> Result<Answer> {
        self.ask(request)?;
        self.answer()
    }

    /// Sends a request without a wait for the answer.
    pub(crate) fn ask(&mut self, request: &Request) -> Result {
        let sent = self.mailbox.send(&self.conn, request);
        sent.map_err(|error| self.over(&error))
    }

    /// Waits for the next answer.
    pub(crate) fn answer(&mut self) -> Result<Answer> {
        let clock = Clock::new(&self.interrupt, LIMIT);
        loop {
            let mut wcs = [Wc::default()];
            match clock.within(|limit| self.conn.next(&mut wcs, limit)) {
                Ok(Next::Completions(_)) => {}
                Ok(Next::Event(event)) if !event.is_end() => continue,
                Ok(Next::Event(event)) => return Err(self.over(&event.to_string())),
                Err(Stop::Failed(_)) if self.conn.failure().is_none() => {
                    return Err(Stop::Over(no_answer(&self.server)));
                }
                Err(Stop::Failed(text)) => return Err(self.over(&text)),
                Err(stop) => return Err(stop),
            }
            let taken = self.mailbox.take::<Answer>(&self.conn, &wcs[0]);
            match taken.map_err(|error| self.over(&error))? {
                None => {}
                Some(Answer::Cannot(reason)) => {
                    return Err(Stop::Failed(format!("the server reports: {reason}")));
                }
                Some(answer) => return Ok(answer),
            }
        }
    }

    /// The end of the session.
    pub(crate) fn over(&self, reason: &str) -> Stop {
        Stop::Over(Problem::new(
            format!("the session with {} has ended: {reason}", self.server),
            "The output of `rpma serve` there may have the cause. Start it again, and then this command",
        ))
    }
}

/// The server's offer.
fn offer_of(conn: &Conn, server: &Endpoint) -> Result<Offer> {
    let offer = conn.offer().map_err(|_| "it sent no offer".to_owned());
    let offer = offer.and_then(|offer| match Tag::decode(offer.data()) {
        Ok(_) => Ok(offer),
        Err(no_tag) => Err(format!("its private data are wrong: {no_tag}")),
    });
    offer.map_err(|reason| {
        Stop::Over(Problem::new(
            format!("the program at {server} is no `rpma serve` of this version: {reason}"),
            "Start `rpma serve` there, from the same version of rpma, on a port of its own",
        ))
    })
}

pub(crate) fn unreachable(server: &Endpoint, error: &Error) -> Problem {
    let remedy = match error.raw_os_error() {
        // On iWARP, TCP refuses the connection.
        Some(errno) if errno == Errno::CONNREFUSED.raw_os_error() => START,
        _ => remedy(error).unwrap_or("`rpma doctor` looks at this host"),
    };
    Problem::new(
        format!("no connection to {server}: {}", reason(error)),
        remedy,
    )
}

/// Why no connection was made.
fn refused(server: &Endpoint, event: &ConnEvent) -> Problem {
    let (reason, private_data) = match event {
        ConnEvent::Rejected {
            reason,
            private_data,
        } => (Some(*reason), &private_data[..]),
        _ => (None, &[][..]),
    };
    let remedy = match (reason, Refusal::decode(private_data)) {
        (_, Ok(refusal)) => {
            return Problem::new(format!("{server} refuses: {refusal}"), "");
        }
        (Some(ConnEvent::NO_LISTENER), _) => START,
        _ if matches!(event, ConnEvent::Unreachable { .. }) => LOOK,
        _ => {
            "Look at the output of `rpma serve` on that host. If it has no line about this client, the \
             server listens on another address of its host: use the address of its first line"
        }
    };
    Problem::new(format!("no connection to {server}: {event}"), remedy)
}

fn no_answer(server: &Endpoint) -> Problem {
    Problem::new(
        format!("{server} did not answer within {} s", LIMIT.as_secs()),
        LOOK,
    )
}

const START: &str = "Start `rpma serve` on that host, with this address";

const LOOK: &str = "Look whether `rpma serve` runs there and is not stopped. RoCE needs UDP port 4791 open between \
     the hosts, and iWARP the server's TCP port";
