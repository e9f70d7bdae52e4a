//! The server's method under every cut: the data that an answer acknowledges is there, and no
//! pointer without its data. On every device, and also on a platform with flushes that do not make
//! data durable.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use rpma::commit::{Fate, Limits, Method, Responder, Ticket, Turn, Writer, WriterCfg};
use rpma::sim::{self, Visited};

use crate::common::prelude::*;
use crate::power::protocols::{LEN, assert_log, record};
use crate::power::world::{LIMIT, Ran, SIZE, fabric, on_each_platform, register, under_every_cut};

const RECORDS: u64 = 10;
/// Longer than devices keep anything back.
const SOON: Duration = Duration::from_millis(20);
const HEAD: usize = 40;
const START: usize = 128;
const FAR: usize = SIZE / 2;

/// A writer, and the server of its memory, in one thread.
struct Served {
    client: Host,
    server: Host,
    pmem: Pmem,
    writer: Writer,
    source: Mr<Vec<u8>>,
    /// The server's end, unless a thread has it.
    far: Option<(Conn, Responder<u8>)>,
}

/// How records are written.
#[derive(Clone, Copy, Debug)]
struct Log {
    in_flight: usize,
    /// Two pointers in two cache lines, which a recovery reads both.
    two_pointers: bool,
}

/// One commit at a time, and one pointer.
const SIMPLE: Log = Log {
    in_flight: 1,
    two_pointers: false,
};

/// Where the bytes of a record go: their offsets, and the ranges of the record.
fn places(number: u64) -> [(usize, Range<usize>); 2] {
    let number = number as usize;
    [
        (START + number * HEAD, 0..HEAD),
        (FAR + number * (LEN - HEAD), HEAD..LEN),
    ]
}

impl Served {
    fn new(fabric: &Fabric, platform: Platform) -> Result<Self> {
        let [client, server] = ["client", "server"].map(|name| fabric.host(name));
        server.set_platform(platform);
        let pmem = server.pmem("log", SIZE);
        let _on_client = client.enter();
        let mut responder = Responder::new(Limits::new(4, 2, 4096)?);
        let peer = peer_of(&server);
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT;
        let log = Arc::new(register(&server, &peer, &pmem, usage)?);
        let addr = server.addr().to_string();
        let ep = Ep::listen(&peer, &addr, 0)?;

        let peer = peer_of(&client);
        let source = Mr::reg(&peer, vec![0; SIZE], MrUsage::WRITE_SRC)?;
        let cfg = WriterCfg::new(Method::Server);
        let settings = cfg.conn_cfg(&ConnCfg::new())?;
        let req = ConnReq::new(&peer, &addr, ep.get_port(), &settings)?;
        let connecting = Writer::connect(req, &cfg, &Offer::default())?;

        let settings = responder.conn_cfg(&ConnCfg::new())?;
        let req = ep.next_conn_req_timeout(&settings, LIMIT)?;
        responder.add(0, responder.prepare(&req, &log, ..)?);
        // Only the server's method is promised.
        let mut offer = Offer::new(&PeerCfg::new());
        offer.add_region(&log).set_limits(responder.limits());
        let far = req.connect(&offer.encode(Offer::ACCEPT)?)?;
        Ok(Self {
            writer: connecting.wait(LIMIT)?,
            client,
            server,
            pmem,
            source,
            far: Some((far.wait_established(LIMIT)?, responder)),
        })
    }

    /// One round of both sides.
    fn step(&mut self) -> Result<()> {
        let Some((far, responder)) = &mut self.far else {
            return Ok(());
        };
        let mut wcs = [Wc::default(); 8];
        let count = far.get_cq().get_wc(&mut wcs)?;
        for wc in &wcs[..count] {
            responder.handle(0, wc);
        }
        if let Turn::Misused(_, error) | Turn::Failed(_, error) = responder.turn(|_| Some(&*far)) {
            return Err(error.into());
        }
        Ok(self.writer.look(|_| {})?)
    }

    fn wait(&mut self, is_so: impl Fn(&Writer) -> bool) -> Result<()> {
        let begin = sim::now();
        while !is_so(&self.writer) {
            self.step()?;
            sim::sleep(Duration::from_micros(100));
            anyhow::ensure!(sim::now() - begin < SOON, "it does not happen");
        }
        Ok(())
    }

    fn append(&mut self, log: Log, number: u64) -> Result<Ticket> {
        let bytes = record(number);
        let far = self.writer.offer().regions()[0];
        let mut parts = Vec::new();
        for (at, range) in places(number) {
            let len = range.len();
            self.source.write_at(at, &bytes[range])?;
            let dst = far.slice(at as u64..(at + len) as u64)?;
            parts.push((dst, self.source.slice(at..at + len)?));
        }
        // In turn: the second line is one less, or equal.
        let at = if log.two_pointers && number % 2 == 1 {
            64
        } else {
            0
        };
        let tail = (far.slice(at..at + 8)?, (number + 1).to_ne_bytes());
        Ok(self.writer.commit(&parts, Some(tail))?)
    }
}

impl Log {
    fn check(self, image: &[u8], acknowledged: u64) {
        let word = |at: usize| u64::from_ne_bytes(image[at..at + 8].try_into().expect("8 bytes"));
        let tail = word(0).max(word(64));
        if self.two_pointers && tail > 1 {
            let other = word(0).min(word(64));
            assert_eq!(other, tail - 1, "a pointer has passed another");
        }
        assert_log(tail, acknowledged, |number| {
            let mut parts = places(number).into_iter();
            parts.all(|(at, range)| image[at..].starts_with(&record(number)[range]))
        });
    }

    fn run(self, profile: &Profile, platform: Platform, seed: u64) -> Result<Visited, Loss> {
        let fabric = fabric(profile);
        fabric.set_seed(seed);
        self.run_on(&fabric, platform, RECORDS)?.expect("durable");
        Ok(fabric.visited())
    }

    fn run_on(self, fabric: &Fabric, platform: Platform, records: u64) -> Ran {
        let mut served = Served::new(fabric, platform).expect("a connection");
        let pmem = served.pmem.clone();
        let check = |image: &[u8], acknowledged| self.check(image, acknowledged);
        under_every_cut(fabric, &pmem, check, |tell| {
            for number in 0..records {
                served.append(self, number)?;
                let due = (number + 1).saturating_sub(self.in_flight as u64 - 1);
                served.wait(|writer| writer.durable() >= due && writer.room() > 0)?;
                tell(served.writer.durable());
            }
            served.wait(|writer| writer.durable() == records)?;
            tell(records);
            Ok(())
        })
    }
}

#[test]
fn an_answered_commit_survives_every_cut() {
    const SEEDS: u64 = 3;
    on_each_platform(|platform| {
        let mut events = 0;
        for profile in Profile::EVERY {
            for in_flight in [1, 3] {
                for two_pointers in [false, true] {
                    for seed in 0..SEEDS {
                        let log = Log {
                            in_flight,
                            two_pointers,
                        };
                        let ran = log.run(&profile, platform, seed);
                        let ran = ran.unwrap_or_else(|loss| {
                            panic!("{}, {platform}, {log:?}: {loss}", profile.name())
                        });
                        events += ran.events;
                    }
                }
            }
        }
        assert!(events > 1_000, "{platform}: {events}");
    });
}

/// The server's program, until its client has left.
fn serve(far: &Conn, mut responder: Responder<u8>) -> Result<()> {
    let mut wcs = [Wc::default(); 8];
    while let Next::Completions(count) = far.next(&mut wcs, LIMIT)? {
        for wc in &wcs[..count] {
            responder.handle(0, wc);
        }
        while let Turn::Served(_) = responder.turn(|_| Some(far)) {}
    }
    Ok(())
}

/// The server has a thread of its own, and the seed chooses the order: an answer that is sent
/// before its bytes are durable would be seen by the client in between.
#[test]
fn an_answer_comes_after_the_bytes_are_durable() -> Result<()> {
    for profile in Profile::EVERY {
        for seed in 0..10 {
            let fabric = Rig::of(&profile).seed(seed).fabric();
            let mut served = Served::new(&fabric, Platform::AdrDdioOn)?;
            let pmem = served.pmem.clone();
            let check = |image: &[u8], acknowledged| SIMPLE.check(image, acknowledged);
            let found = under_every_cut(&fabric, &pmem, check, |tell| {
                let (far, responder) = served.far.take().expect("the server's end");
                let serving = served.server.spawn(move || serve(&far, responder));
                let _entered = served.client.enter();
                for number in 0..4 {
                    let ticket = served.append(SIMPLE, number).expect("posted");
                    served.writer.wait(ticket, LIMIT, |_| {}).expect("durable");
                    tell(number + 1);
                }
                served.writer.conn().disconnect().expect("disconnects");
                serving.join().expect("no panic").expect("served");
            });
            found.unwrap_or_else(|loss| panic!("{}, seed {seed}: {loss}", profile.name()));
            assert_eq!(fabric.why_not_repeatable(), None);
        }
    }
    Ok(())
}

/// A server with a host that is gone after it took the request: the wait ends without an answer.
#[test]
fn a_wait_for_an_answer_ends_when_the_host_is_gone() -> Result<()> {
    for profile in Profile::ALL {
        let fabric = fabric(&profile);
        let mut served = Served::new(&fabric, Platform::AdrDdioOn)?;
        let ticket = served.append(SIMPLE, 0)?;
        // The request is taken, and not served.
        served.writer.look(|_| {})?;
        let begin = sim::now();
        while served.writer.released() == 0 {
            served.writer.look(|_| {})?;
            sim::sleep(Duration::from_millis(1));
            assert!(sim::now() - begin < LIMIT);
        }
        fabric.power_cut(&served.server);
        let begin = sim::now();
        let hour = Duration::from_secs(3600);
        let error = served.writer.wait(ticket, hour, |_| {});
        let error = error.expect_err("nobody answers");
        let took = sim::now() - begin;
        assert!(took < Duration::from_secs(120), "{error}: {took:?}");
        assert_eq!(served.writer.fate(ticket)?, Fate::Unknown);
    }
    Ok(())
}

/// Two records, which the program promises when they are durable, or when they are posted.
pub(crate) fn two_records_on(fabric: &Fabric, early: bool) -> Ran {
    if !early {
        return SIMPLE.run_on(fabric, Platform::AdrDdioOn, 2);
    }
    let mut served = Served::new(fabric, Platform::AdrDdioOn).expect("a connection");
    let pmem = served.pmem.clone();
    let check = |image: &[u8], posted| SIMPLE.check(image, posted);
    under_every_cut(fabric, &pmem, check, |tell| {
        for number in 0..2 {
            let ticket = served.append(SIMPLE, number)?;
            tell(ticket.number());
            served.wait(|writer| writer.durable() == ticket.number())?;
        }
        Ok(())
    })
}

/// A report names lines of the program, not of the library that posts for it.
#[test]
fn a_loss_of_the_servers_method_names_the_programs_line() -> Result<()> {
    for profile in Profile::ALL {
        let fabric = fabric(&profile);
        let found = two_records_on(&fabric, true);
        let loss = found.expect_err("it is found");
        let text = loss.to_string();
        assert_says(&text, &["tests/fabric/power/served.rs:"]);
        assert!(!text.contains("rpma/src/commit"), "{text}");
    }
    Ok(())
}
