//! Hostile clients of a server, whose steps are chosen by bytes. They have the descriptors of all
//! memory, as if they had seen the messages of others.

use std::net::SocketAddr;
use std::time::Duration;

use rpma::commit::Method;
use rpma::sim::Host;
use rpma::{
    Conn, ConnCfg, ConnReq, Flags, FlushType, Identity, Mr, MrRemote, MrUsage, Offer, Peer, Wc,
};

use super::bytes::Bytes;

/// Their connections at a time.
const CONNS: usize = 4;
/// The bytes of their own memory.
const PART: usize = 256;
const FLUSHED: MrUsage = MrUsage::FLUSH_TYPE_PERSISTENT.union(MrUsage::FLUSH_TYPE_VISIBILITY);

/// The clients of one host.
pub(super) struct Hostile {
    pub(super) host: Host,
    peer: Peer,
    memory: Mr<Vec<u8>>,
    pub(super) conns: Vec<Conn>,
    /// The descriptors of all parts.
    pub(super) seen: Vec<Vec<u8>>,
}

impl Hostile {
    pub(super) fn new(host: Host, addr: SocketAddr, seen: Vec<Vec<u8>>) -> Self {
        let entered = host.enter();
        let peer = Peer::toward(&addr.ip().to_string()).expect("a device");
        let memory =
            Mr::reg(&peer, vec![0xee; PART], MrUsage::all() - FLUSHED).expect("registered");
        drop(entered);
        Self {
            host,
            peer,
            memory,
            conns: Vec::new(),
            seen,
        }
    }

    /// The steps 4 and 5 connect, and the others, up to 11, are those of a connection.
    pub(super) fn step(&mut self, step: u8, addr: SocketAddr, bytes: &mut Bytes<'_>) {
        if step < 6 {
            return self.connects(addr, bytes);
        }
        if self.conns.is_empty() {
            return;
        }
        let place = usize::from(bytes.next()) % self.conns.len();
        if step == 11 {
            let conn = self.conns.swap_remove(place);
            if bytes.next() % 2 == 0 {
                let _ = conn.disconnect();
            }
            return;
        }
        let conn = &self.conns[place];
        let (from, len) = (u64::from(bytes.next()), u64::from(bytes.next()));
        let own = self
            .memory
            .slice(..(len as usize).min(PART))
            .expect("inside");
        // Errors are those of the hostile client.
        match step {
            6 => {
                let _ = conn.next_event_timeout(Duration::ZERO);
                let _ = conn.get_cq().get_wc(&mut [Wc::default(); 8]);
                let _ = conn.recv(own, 0);
            }
            9 => {
                let message = bytes.take(PART);
                self.memory.write_at(0, message).expect("inside");
                let message = self.memory.slice(..message.len()).expect("inside");
                let _ = conn.send(message, Flags::COMPLETION_ALWAYS, 0);
            }
            _ => {
                let Some(there) = self
                    .there(bytes)
                    .and_then(|it| it.slice(from..from + len).ok())
                else {
                    return;
                };
                let _ = match step {
                    7 => conn.post_write(there, own).map(drop),
                    8 => conn.post_read(own, there).map(drop),
                    _ if len == 8 => conn.post_atomic_write(there, &[0xee; 8]).map(drop),
                    _ => conn.post_flush(there, FlushType::Visibility).map(drop),
                };
            }
        }
    }

    /// The descriptor of a region: one that it has seen, changed or not.
    fn there(&self, bytes: &mut Bytes<'_>) -> Option<MrRemote> {
        let place = usize::from(bytes.next());
        let mut descriptor = self.seen[place % self.seen.len()].clone();
        for at in [8, 16] {
            let change = bytes.next();
            descriptor[at] ^= change;
        }
        MrRemote::from_descriptor(&descriptor).ok()
    }

    pub(super) fn connects(&mut self, addr: SocketAddr, bytes: &mut Bytes<'_>) {
        if self.conns.len() == CONNS {
            drop(self.conns.remove(0));
        }
        let kind = bytes.next();
        let mut offer = Offer::default();
        offer.set_identity(Identity {
            key: u64::from(bytes.next() % 8),
            epoch: u64::from(bytes.next()),
            instance: u64::from(bytes.next()),
        });
        if kind & 1 != 0 {
            offer.set_method(Method::Server, FlushType::Persistent);
        }
        let mut data = offer.encode(Offer::CONNECT).expect("it fits");
        if kind & 2 != 0 {
            for (at, change) in data.iter_mut().zip(bytes.take(Offer::CONNECT)) {
                *at ^= change;
            }
        }
        let req = ConnReq::to_addr(&self.peer, addr, &ConnCfg::new());
        if let Ok(conn) = req.expect("it resolves").connect(&data) {
            self.conns.push(conn);
        }
    }
}
