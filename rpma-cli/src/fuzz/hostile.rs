//! `rpma serve` with hostile clients, whose steps are chosen by bytes: a fuzzer's, or those of the
//! corpus.
//!
//! The steps are on one thread of a fabric with a seed, so that a run is repeated by its bytes.

use std::io;
use std::time::Duration;

use rpma::sim::{Fabric, Host, Profile, sleep};
use rpma::{Conn, ConnCfg, ConnReq, Flags, FlushType, Mr, MrRemote, MrUsage, Offer, Peer, Wc};

use crate::args::Endpoint;
use crate::bytes::{checksum, pattern};
use crate::client::Session;
use crate::fabric::args_of;
use crate::interrupt::Interrupt;
use crate::mailbox::Mailbox;
use crate::report::Output;
use crate::serve::{GUARDED, GUARDED_SEED, Server};
use crate::wire::{
    self, ARENA, Answer, Answers, Asks, Expect, FIRST, Part, Request, Send, Spin, Tag,
};

/// Connections of the hostile client at a time.
const CONNS: usize = 4;
/// The bytes of its memory.
const OWN: usize = 4096;
/// The longest message that it makes up, in bytes.
const MOST: usize = 64;

/// Promise: whatever clients of a server do, it goes on, its guarded memory stays as it was, the next
/// client is served rightly, and nothing is left at the end. The run is the same for the same bytes.
pub fn serve(bytes: &[u8]) {
    assert_eq!(run(bytes), run(bytes), "a run differs from the one before");
}

fn run(bytes: &[u8]) -> String {
    let mut bytes = Bytes(bytes);
    let profile = Profile::ALL[usize::from(bytes.number()) % Profile::ALL.len()].clone();
    let fabric = Fabric::seeded(profile, bytes.number().into());
    let mut site = Site::new(&fabric);
    while !bytes.0.is_empty() {
        site.step(&mut bytes);
        site.turns();
    }
    site.end(&fabric.host("next"));
    let left = fabric.objects();
    assert!(left.is_empty(), "objects are left: {left:?}");
    format!("{:?}", fabric.trace())
}

/// The bytes that choose the steps. After their end come zeros.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn number(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// A number that is small, near an end of the memory, or near the highest one.
    fn far(&mut self) -> u64 {
        let (kind, by) = (self.number(), u64::from(self.number()));
        match kind % 4 {
            0 => by,
            1 => FIRST + 8 * by,
            2 => ARENA as u64 - 8 * by,
            _ => u64::MAX - by,
        }
    }

    fn part(&mut self) -> Part {
        Part {
            at: self.far(),
            len: self.far(),
        }
    }

    fn rest(&mut self, most: usize) -> &'a [u8] {
        let len = usize::from(self.number()) % (most + 1);
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn request(&mut self) -> Request {
        let line = u32::from(self.number() % 4);
        match self.number() % 14 {
            0 => Request::Begin,
            1 => Request::Fill {
                part: self.part(),
                seed: self.far(),
            },
            2 => Request::Zero { word: self.far() },
            3 => Request::Sum(self.part()),
            4 => Request::Bytes(self.part()),
            5 | 6 => Request::Expect(self.expect(line)),
            7 => Request::Send(Send {
                line,
                len: self.far() as u32,
                seed: 1,
                imm: (self.number() % 2 == 0).then_some(7),
            }),
            8 => {
                let number = self.far() as u32;
                // The files of the corpus have another number here.
                self.far();
                Request::Arrived { line, number }
            }
            9 => Request::Ended { line },
            10 => Request::CutOff {
                line,
                part: self.part(),
            },
            11 => Request::Vanish { line },
            12 => match self.number() % 4 {
                0 => Request::Clear,
                _ => Request::Drop { line },
            },
            _ => Request::Spin(Spin {
                word: self.far(),
                last: self.number(),
                data: self.far(),
                data_len: self.far() as u32,
                seed: 1,
            }),
        }
    }

    fn expect(&mut self, line: u32) -> Expect {
        let kind = self.number();
        let len = self.far() as u32;
        Expect {
            line,
            asks: match kind % 4 {
                0 => Asks::Bytes { len, seed: 1 },
                _ => Asks::Offer,
            },
            answers: match kind / 4 % 4 {
                0 => Answers::Accept { len, seed: 1 },
                1 => Answers::Reject { len, seed: 1 },
                _ => Answers::Offer,
            },
            fallback: kind & 16 != 0,
            keep_alive_ms: (kind & 32 != 0).then(|| self.far()),
            receives: (u32::from(self.number() % 8), self.far() as u32),
            refills: kind & 64 != 0,
            watch: (kind & 128 != 0).then(|| self.part()),
        }
    }
}

struct Site {
    host: Host,
    addr: Endpoint,
    server: Server,
    hostile: Hostile,
    /// It is set, so that no spin waits: nothing happens meanwhile.
    interrupt: Interrupt,
    out: Output,
}

/// The clients of a host.
struct Hostile {
    host: Host,
    peer: Peer,
    memory: Mr<Vec<u8>>,
    /// Each may have the receives of a session.
    conns: Vec<(Conn, Option<Mailbox>)>,
    /// The number of a session.
    session: u64,
    /// The descriptors of the server's memory.
    seen: Vec<Vec<u8>>,
}

impl Site {
    fn new(fabric: &Fabric) -> Self {
        let host = fabric.host("server");
        let args = args_of(&host, None);
        let entered = host.enter();
        let server = Server::open(&args).expect("it listens");
        drop(entered);
        let interrupt = Interrupt::default();
        interrupt.set();
        Self {
            hostile: Hostile::new(fabric.host("hostile"), &args.addr),
            addr: args.addr,
            host,
            server,
            interrupt,
            out: Output::to(io::sink()),
        }
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) {
        let step = bytes.number() % 12;
        if step == 0 {
            return sleep(Duration::from_millis(u64::from(bytes.number()).pow(2)));
        }
        let _entered = self.hostile.host.enter();
        self.hostile.step(step, &self.addr, bytes);
    }

    /// The server does what there is to do. Its guarded memory stays as it was.
    fn turns(&mut self) {
        let _entered = self.host.enter();
        for _ in 0..256 {
            let turn = self
                .server
                .turn(Duration::ZERO, &self.interrupt, &mut self.out);
            if !turn.expect("the server goes on") {
                assert_eq!(self.server.guarded(), pattern(GUARDED_SEED, GUARDED));
                return;
            }
        }
        panic!("the server is never idle");
    }

    /// The next client is served.
    fn end(mut self, next: &Host) {
        self.hostile.conns.clear();
        self.turns();
        let (mut server, interrupt) = (self.server, Interrupt::default());
        let (ends, mut out) = (interrupt.clone(), self.out);
        let serves = self
            .host
            .spawn(move || server.serve(&ends, &mut out).map_err(|it| it.to_string()));
        {
            let _entered = next.enter();
            let began = Session::begin(None, &self.addr, &Interrupt::default());
            let (_peer, mut session) = began.expect("the next session begins");
            let part = Part { at: FIRST, len: 64 };
            let told = session.tell(&Request::Fill { part, seed: 7 });
            told.expect("the memory is filled");
            let sum = session.ask(&Request::Sum(part), |answer| match answer {
                Answer::Sum(sum) => Some(sum),
                _ => None,
            });
            assert_eq!(sum.expect("a sum"), checksum(&pattern(7, 64)));
        }
        interrupt.set();
        let served = serves.join().expect("no panic");
        served.expect("the server goes on to its end");
    }
}

impl Hostile {
    fn new(host: Host, addr: &Endpoint) -> Self {
        let entered = host.enter();
        let peer = Peer::toward(&addr.host).expect("a device");
        let usage = MrUsage::all() - MrUsage::FLUSH_TYPE_PERSISTENT;
        let memory = Mr::reg(&peer, vec![0xee; OWN], usage).expect("registered");
        drop(entered);
        Self {
            host,
            peer,
            memory,
            conns: Vec::new(),
            session: 0,
            seen: vec![vec![1; 21]],
        }
    }

    fn step(&mut self, step: u8, addr: &Endpoint, bytes: &mut Bytes<'_>) {
        if step < 3 {
            return self.connects(addr, bytes);
        }
        if self.conns.is_empty() {
            return;
        }
        let place = usize::from(bytes.number()) % self.conns.len();
        match step {
            3 => {
                let (conn, _) = self.conns.swap_remove(place);
                if bytes.number() % 2 == 0 {
                    let _ = conn.disconnect();
                }
            }
            4 => self.looks(place),
            5..=8 => {
                let request = bytes.request();
                self.tells(place, &wire::encode(&request).expect("it is short"));
            }
            9 => {
                let message = bytes.rest(MOST);
                self.tells(place, message);
            }
            step => self.operates(place, step, bytes),
        }
    }

    fn connects(&mut self, addr: &Endpoint, bytes: &mut Bytes<'_>) {
        if self.conns.len() == CONNS {
            drop(self.conns.remove(0));
        }
        let kind = bytes.number();
        let tag = Tag {
            session: self.session,
            line: u32::from(bytes.number() % 4),
        };
        let mut offer = Offer::default();
        offer.set_data(&match kind % 4 {
            0 => Tag::BEGIN.encode(),
            _ => tag.encode(),
        });
        if kind & 4 != 0 {
            offer.set_method(rpma::commit::Method::Server, FlushType::Persistent);
        }
        let mut data = offer.encode(Offer::CONNECT).expect("it fits");
        if kind % 4 == 3 {
            for (at, change) in data.iter_mut().zip(bytes.rest(Offer::CONNECT)) {
                *at ^= change;
            }
        }
        let req = ConnReq::new(&self.peer, &addr.host, addr.port, &ConnCfg::new());
        let req = req.expect("it resolves");
        let mailbox = match kind & 8 {
            0 => Mailbox::new(&self.peer, &req).ok(),
            _ => None,
        };
        if let Ok(conn) = req.connect(&data) {
            self.conns.push((conn, mailbox));
        }
    }

    /// Sees the number of the session, and the descriptors of the server.
    fn looks(&mut self, place: usize) {
        let (conn, mailbox) = &mut self.conns[place];
        let _ = conn.next_event_timeout(Duration::ZERO);
        if let Ok(offer) = conn.offer() {
            if let Ok(tag) = Tag::decode(offer.data()) {
                self.session = tag.session;
            }
        }
        let mut wcs = [Wc::default(); 8];
        let count = conn.get_cq().get_wc(&mut wcs).unwrap_or(0);
        for wc in &wcs[..count] {
            let Some(mailbox) = mailbox.as_ref() else {
                continue;
            };
            if let Ok(Some(Answer::Server(server))) = mailbox.take(conn, wc) {
                self.seen.extend([server.arena, server.guarded]);
            }
        }
    }

    fn tells(&self, place: usize, message: &[u8]) {
        let (conn, _) = &self.conns[place];
        self.memory.write_at(0, message).expect("inside");
        let message = self.memory.slice(..message.len()).expect("inside");
        let _ = conn.send(message, Flags::COMPLETION_ALWAYS, 0);
    }

    /// Writes and reads anywhere, with a descriptor that it has seen, changed or not.
    fn operates(&self, place: usize, step: u8, bytes: &mut Bytes<'_>) {
        let (conn, _) = &self.conns[place];
        let mut descriptor = self.seen[usize::from(bytes.number()) % self.seen.len()].clone();
        for at in [8, 16] {
            let change = bytes.number();
            descriptor[at] ^= change;
        }
        let (from, len) = (bytes.far() % OWN as u64, u64::from(bytes.number()));
        let there = MrRemote::from_descriptor(&descriptor).ok();
        let Some(there) = there.and_then(|there| there.slice(from..from + len).ok()) else {
            return;
        };
        let own = self.memory.slice(..len as usize).expect("inside");
        // Errors are those of the hostile client.
        let _ = match (step, bytes.number() % 2) {
            (10, 0) => conn.post_write(there, own).map(drop),
            (10, _) => conn.post_read(own, there).map(drop),
            _ => conn.post_flush(there, FlushType::Visibility).map(drop),
        };
    }
}
