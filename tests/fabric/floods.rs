//! A peer that keeps sending, and a program that handles each message slowly: no public wait that
//! takes completions is held longer than its limit and one look. In virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rpma::commit::{Method, Replicas, Writer, WriterCfg};
use rpma::sim::{JoinHandle, now, sleep};
use rpma::wait::Wait;
use rpma_async::{Reactor, block_on};

use crate::common::prelude::*;

/// The limit of each wait.
const LIMIT: Duration = Duration::from_millis(50);
/// The time that the program takes for each message.
const HANDLED: Duration = Duration::from_micros(300);
/// The peer sends a message more often.
const EVERY: Duration = Duration::from_micros(50);
/// The entries of a completion queue here.
const ENTRIES: u32 = 32;
/// Two looks take no longer, with the calls that they make: the queue has room for the receives as
/// well.
const LOOKS: Duration = Duration::from_millis(100);

/// A client with a shared receive queue, whose server floods it. Requests of the client do not
/// arrive.
struct Flood {
    fabric: Fabric,
    near: Host,
    peer: Peer,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

fn slowly(_: Wc) {
    sleep(HANDLED);
}

/// Sends messages until the test is over.
fn flood(conn: &Conn, is_over: &AtomicBool) {
    let mut wcs = [Wc::default(); 16];
    while !is_over.load(Ordering::Relaxed) {
        let _ = conn.send(MrSlice::EMPTY, Flags::COMPLETION_ALWAYS, 0);
        let _ = conn.get_cq().get_wc(&mut wcs);
        sleep(EVERY);
    }
}

/// Posts receives again, until the test is over.
fn receive(srq: &Srq, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        while srq.recv(MrSlice::EMPTY, 0).is_ok() {}
        sleep(EVERY);
    }
}

impl Flood {
    /// Makes as many flooded writers.
    fn new(count: usize) -> Result<(Self, Vec<Writer>)> {
        let (fabric, [near]) = Rig::of(&Profile::RXE_6_12).seed(1).hosts(["client"]);
        let _entered = near.enter();
        let mut flood = Self {
            fabric: fabric.clone(),
            near: near.clone(),
            peer: peer()?,
            is_over: Arc::default(),
            threads: Vec::new(),
        };
        let srq = Srq::new(&flood.peer, SrqCfg::new().set_rq_size(64).set_rcq_size(0))?;
        let mut writers = Vec::new();
        for number in 0..count {
            let far = fabric.host(&format!("server {number}"));
            writers.push(flood.connect(&far, &srq)?);
        }
        let is_over = Arc::clone(&flood.is_over);
        let receiving = near.spawn(move || receive(&srq, &is_over));
        flood.threads.push(receiving);
        Ok((flood, writers))
    }

    fn connect(&mut self, far: &Host, srq: &Srq) -> Result<Writer> {
        let addr = far.addr().to_string();
        let peer = peer_of(far);
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
        let offered = region(&peer, 4096, usage)?;
        let ep = Ep::listen(&peer, &addr, 0)?;
        let mut cfg = WriterCfg::new(Method::Reading);
        let visible = FlushType::Visibility;
        cfg.set_flush_type(visible)?.set_in_flight(2)?;
        let mut conn_cfg = ConnCfg::new();
        conn_cfg.set_srq(Some(srq)).set_cq_size(ENTRIES);
        let req = ConnReq::new(&self.peer, &addr, ep.get_port(), &cfg.conn_cfg(&conn_cfg)?)?;
        let asking = Writer::connect(req, &cfg, &Offer::default())?;
        let offer = Offer::default()
            .add_region(&offered)
            .encode(Offer::ACCEPT)?;
        let server = request(&ep, &ConnCfg::new())?.connect(&offer)?;
        let writer = asking.wait(10 * LIMIT)?;
        let server = server.wait_established(10 * LIMIT)?;
        self.link_to(far).hold();
        let is_over = Arc::clone(&self.is_over);
        self.threads.push(far.spawn(move || {
            flood(&server, &is_over);
            drop(offered);
        }));
        Ok(writer)
    }

    fn link_to(&self, far: &Host) -> Link {
        self.fabric.between(&self.near, far)
    }

    /// Runs a wait on the client's host. It keeps this limit.
    fn within<T>(&self, name: &str, limit: Duration, wait: impl FnOnce() -> T) -> T {
        let _entered = self.near.enter();
        // The flood is there.
        sleep(LIMIT);
        let begin = now();
        let result = wait();
        let took = now() - begin;
        assert!(took <= limit + LOOKS, "{name} took {took:?}");
        result
    }

    fn end(mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(join);
    }
}

fn timed_out<T: std::fmt::Debug>(name: &str, result: rpma::Result<T>) {
    let is_late = matches!(result, Err(Error::TimedOut(_)));
    assert!(is_late, "{name}: {result:?}");
}

/// A commit of a writer that does not become durable.
fn commit(writer: &mut Writer, source: &Mr<Memory>) -> rpma::Result<rpma::commit::Ticket> {
    let to = writer.offer().regions()[0];
    writer.commit(&[(to.slice(..8)?, source.slice(..)?)], None)
}

fn write(conn: &Conn) -> rpma::Result<Posted> {
    let always = Flags::COMPLETION_ALWAYS;
    conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, always, 1)
}

/// Promise: a wait of one connection that has a limit keeps it under a flood, and a wait whose
/// condition holds takes nothing.
#[test]
fn waits_of_one_connection() -> Result {
    type Case = fn(&mut Writer, &Mr<Memory>) -> Result;
    const ZERO: Duration = Duration::ZERO;
    let cases: [(&str, Duration, Case); 9] = [
        ("Writer::look", ZERO, |writer, _| Ok(writer.look(slowly)?)),
        ("Writer::wait_room, with room", ZERO, |writer, _| {
            Ok(writer.wait_room(LIMIT, |_| panic!("there is room"))?)
        }),
        ("Writer::wait_room", LIMIT, |writer, source| {
            for _ in 0..2 {
                commit(writer, source)?;
            }
            timed_out("no room", writer.wait_room(LIMIT, slowly));
            Ok(())
        }),
        ("Writer::wait", LIMIT, |writer, source| {
            let ticket = commit(writer, source)?;
            timed_out("not durable", writer.wait(ticket, LIMIT, slowly));
            Ok(())
        }),
        ("Conn::wait_for", LIMIT, |writer, _| {
            let posted = write(writer.conn())?;
            timed_out("held", writer.conn().wait_for(posted, LIMIT, slowly));
            Ok(())
        }),
        ("Conn::wait_ended", LIMIT, |writer, _| {
            timed_out("established", writer.conn().wait_ended(LIMIT));
            Ok(())
        }),
        ("Conn::next_event_timeout", LIMIT, |writer, _| {
            let event = writer.conn().next_event_timeout(LIMIT);
            assert!(matches!(event, Err(Error::NoEvent)), "{event:?}");
            Ok(())
        }),
        ("Conn::next", ZERO, |writer, _| {
            writer.conn().next(&mut [Wc::default(); 8], LIMIT)?;
            Ok(())
        }),
        ("Cq::wait_timeout", ZERO, |writer, _| {
            writer.conn().get_cq().wait_timeout(LIMIT)?;
            Ok(())
        }),
    ];
    for (name, limit, case) in cases {
        let (flood, mut writers) = Flood::new(1)?;
        let source = region(&flood.peer, 8, MrUsage::WRITE_SRC)?;
        let result = flood.within(name, limit, || case(&mut writers[0], &source));
        result.map_err(|error| format!("{name}: {error:?}"))?;
        flood.end();
    }
    Ok(())
}

/// Promise: the waits of a set keep their limits, while each of its replicas floods this host.
#[test]
fn waits_of_a_set() -> Result {
    let (flood, writers) = Flood::new(3)?;
    let entered = flood.near.enter();
    let mut set = Replicas::new(&flood.peer, 64, 4)?;
    let mut ids = Vec::new();
    for writer in writers {
        let region = writer.offer().regions()[0];
        ids.push(set.add(writer, region)?);
    }
    drop(entered);
    let three = 3 * LOOKS;
    flood.within("Replicas::look", three, || set.look());
    let name = "Replicas::wait_room, with room";
    flood.within(name, Duration::ZERO, || set.wait_room(64, LIMIT))?;
    let id = set.record(64)?.commit(0, None, 2)?;
    let limit = LIMIT + three;
    let outcome = flood.within("Replicas::settle", limit, || set.settle(id, 2, LIMIT));
    let unknown = mask(set.unknown(outcome));
    assert_eq!((outcome.copies(), unknown), (0, 0b111));
    let room = flood.within("Replicas::wait_room", limit, || set.wait_room(64, LIMIT));
    assert!(matches!(room, Err(Error::RingFull)), "{room:?}");
    let aside = || set.set_aside(ids[0], LIMIT);
    flood.within("Replicas::set_aside", limit, aside)?;
    drop(set);
    flood.end();
    Ok(())
}

/// Promise: a wait for many connections returns under a flood.
#[test]
fn waits_for_many() -> Result {
    let (flood, _writers) = Flood::new(1)?;
    let mut wait = Wait::new()?;
    let next = || wait.next(&mut [Wc::default()], LIMIT);
    assert!(flood.within("Wait::next", LIMIT, next)?.is_none());
    flood.end();
    Ok(())
}

/// Promise: the awaited waits keep their limits.
#[test]
fn awaited_waits() -> Result {
    let (flood, writers) = Flood::new(4)?;
    let entered = flood.near.enter();
    let reactor = Reactor::on_thread(&flood.peer)?;
    let mut writers = writers.into_iter();
    let one = rpma_async::Writer::new(&reactor, writers.next().ok_or("a writer")?)?;
    let set = Replicas::new(&flood.peer, 64, 4)?;
    let set = rpma_async::Replicas::new(&reactor, set)?;
    let mut ids = Vec::new();
    for writer in writers {
        let region = writer.offer().regions()[0];
        ids.push(set.add(writer, region)?);
    }
    drop(entered);
    let three = 3 * LOOKS;
    let within = |name: &str, limit, run: &mut dyn FnMut()| flood.within(name, limit, run);
    within("room, with room", three, &mut || {
        block_on(one.room(), LIMIT).expect("in time").expect("room");
    });
    within("closed", LIMIT + three, &mut || {
        assert!(block_on(one.closed(), LIMIT).is_none());
    });
    within("gone", LIMIT + three, &mut || {
        assert!(block_on(set.gone(ids[0]), LIMIT).is_none());
    });
    let name = "settle, everywhere and room of a set";
    within(name, 3 * (LIMIT + three), &mut || {
        let room = block_on(set.room(64, LIMIT), Duration::MAX);
        room.expect("it returns").expect("room");
        let id = set.commit(0, &[&[1; 64]], None, 2).expect("committed");
        let settled = block_on(set.settle(id, 2, LIMIT), Duration::MAX);
        let outcome = settled.expect("it returns").expect("an outcome");
        let unknown = mask(set.unknown(outcome));
        assert_eq!((outcome.copies(), unknown), (0, 0b111));
        assert!(block_on(set.everywhere(id), LIMIT).is_none());
        let room = block_on(set.room(64, LIMIT), Duration::MAX).expect("it returns");
        assert!(matches!(room, Err(Error::RingFull)), "{room:?}");
    });
    drop((one, set, reactor));
    flood.end();
    Ok(())
}
