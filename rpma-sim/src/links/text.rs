//! The texts of the network's faults, for reports.

use std::fmt;

use super::{Armed, Delay, LinkFault};
use crate::qp::Send;
use crate::state::State;

impl fmt::Display for LinkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "it is lost",
            Self::Acknowledgement => "its acknowledgement is lost",
            Self::AllAcknowledgements => "its acknowledgement and all later ones are lost",
            Self::Packet => "a packet of it is lost, and it is sent again",
            Self::Answer => "its acknowledgement is lost once, and it is sent again",
            Self::Rest { placed } => return write!(f, "only its first {placed} bytes are placed"),
            Self::Receive => "it takes a receive, and is never complete",
        })
    }
}

impl State {
    /// Lists the armed faults of the network and the lasting ones.
    pub(crate) fn network_faults(&self) -> Vec<String> {
        let links = &self.links;
        let name = |host: usize| &self.hosts[host];
        let way = |(from, to): (usize, usize)| format!("from {} to {}", name(from), name(to));
        let armed = links.armed.iter().map(|armed| {
            let Armed {
                from,
                to,
                fault,
                before,
            } = armed;
            let what = match fault {
                LinkFault::Rest { .. } => "write",
                LinkFault::Receive => "message",
                _ => "request",
            };
            let way = match (*from, *to) {
                (Some(from), Some(to)) => way((from, to)),
                (None, Some(to)) => format!("to {}", name(to)),
                _ => "on any way".to_owned(),
            };
            format!("armed: {what} {} from now, {way}: {fault}", before + 1)
        });
        let frozen = links.frozen.iter();
        let frozen = frozen.map(|host| format!("{} is frozen", name(*host)));
        let parted = links.parted.iter();
        let parted = parted.map(|pair| format!("nothing arrives {}", way(*pair)));
        let held = links.held.iter();
        let held = held.map(|pair| format!("requests {} are held", way(*pair)));
        let delays = links.delays.iter().map(|(pair, delay)| match delay {
            Delay::Always(delay) => format!("requests {} take {delay:?}", way(*pair)),
            Delay::UpTo(most) => format!("requests {} take up to {most:?}", way(*pair)),
        });
        let loses = links.loses.iter();
        let loses = loses
            .map(|(pair, one_in)| format!("one request in {one_in} {} loses a packet", way(*pair)));
        armed
            .chain(frozen)
            .chain(parted)
            .chain(held)
            .chain(delays)
            .chain(loses)
            .collect()
    }

    /// Names a connection, by the hosts of its requester and of its target.
    pub(crate) fn connection(&self, number: u32) -> String {
        match self.links.ends.get(&number) {
            Some((from, to)) => {
                let [from, to] = [from, to].map(|host| &self.hosts[*host]);
                format!("connection {number} of {from} to {to}")
            }
            None => format!("connection {number}"),
        }
    }

    /// Keeps a fault of a request for reports.
    pub(crate) fn note_fault(&mut self, number: u32, send: &Send, fault: LinkFault) {
        let request = self.describe(number, send);
        self.failures.note(format!("{request}: {fault}"), None);
    }
}
