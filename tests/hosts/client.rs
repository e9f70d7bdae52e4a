//! The host that writes.

use std::collections::VecDeque;

use rpma::commit::{Ticket, Writer, WriterCfg};
use rpma::reconnect::{Reconnect, ReconnectCfg, ToWriter};
use rpma::{Posted, commit};

use crate::log::{RECORD, TAIL, is_whole, offset, record};
use crate::prelude::*;

/// So many waits of one second each may bring no event. With the default settings a peer is given
/// up after 4 s, and the kernel is some times slower than it should be. (One wait of 20 s would be
/// over at once when this host itself stands still for longer.)
const STALL: u32 = 20;
/// For a peer that does not answer to a request for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// The first wait between two tries, and the longest one.
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(1);

/// Commits of one connection that do not wait for each other.
const IN_FLIGHT: u16 = 4;

/// More records than clients have in flight: after a power cut those may be there.
const NEVER: u64 = 1000;

/// The counted events.
#[derive(Default)]
struct Counts {
    acknowledged: u64,
    failures: u64,
    longest: Duration,
}

/// Appends groups of so many records, by this method.
pub(crate) fn append(addr: &str, port: &str, seconds: &str, how: [&str; 2]) -> Result<()> {
    let [group, method] = how;
    let until = Instant::now() + Duration::from_secs(seconds.parse()?);
    let method = Method::of(method)?;
    let log = Log::new(addr, port)?;
    let group: u64 = group.parse()?;
    let source = Source::new(&log.peer, group)?;
    let mut counts = Counts::default();
    let mut server = log.server(&method)?;
    let mut limits = ReconnectCfg::new();
    limits.set_answer_limit(CONNECT).set_waits(PAUSE, LONGEST)?;
    while Instant::now() < until {
        let started = Instant::now();
        server.set_cfg(limits.set_limit(until - started));
        let mut writer = match server.connect(&method.settings) {
            Ok(writer) => writer,
            Err(gave_up @ Error::GaveUp(_)) => {
                println!("not connected: {gave_up}");
                break;
            }
            Err(gave_up) => return Err(gave_up.into()),
        };
        let tail = Target::of(writer.conn(), writer.offer())?.tail(&source.tail);
        let worked = tail.and_then(|tail| {
            println!("connected: {tail} records");
            source.append(&mut writer, tail, until, &mut counts)
        });
        if let Err(error) = worked {
            counts.failures += 1;
            println!("failed after {} ms: {error}", started.elapsed().as_millis());
            if error.to_string().contains("stall") {
                return Err(error);
            }
        }
    }
    let longest = counts.longest.as_millis();
    let (connected, tries) = (server.connected(), server.tries());
    print!("acknowledged {}, ", counts.acknowledged);
    print!("connections {connected} of {tries} tries, ");
    println!("failures {}, longest {longest} ms", counts.failures);
    Ok(())
}

/// How a client commits.
struct Method {
    commits: WriterCfg,
    settings: ConnCfg,
}

impl Method {
    fn of(name: &str) -> Result<Self> {
        let mut commits = WriterCfg::new(match name {
            "native" => commit::Method::Native,
            "fallback" | "tight" => commit::Method::Reading,
            "server" => commit::Method::Server,
            _ => return Err(format!("there is no method {name}").into()),
        });
        commits.set_in_flight(IN_FLIGHT)?.set_parts(1)?;
        let mut settings = ConnCfg::new();
        if name == "tight" {
            // 67 ms, three times.
            settings.set_ack_timeout(Some(14))?.set_retry_count(2)?;
        }
        Ok(Self { commits, settings })
    }
}

/// The memory of the groups in flight. A place is free when its commit has left the writer.
struct Source {
    records: Mr<Vec<u8>>,
    tail: Mr<Vec<u8>>,
    group: u64,
}

impl Source {
    fn new(peer: &Peer, group: u64) -> Result<Self> {
        let all = vec![0; usize::from(IN_FLIGHT) * group as usize * RECORD];
        Ok(Self {
            records: Mr::reg(peer, all, MrUsage::WRITE_SRC)?,
            tail: Mr::reg(peer, vec![0; TAIL], MrUsage::READ_DST)?,
            group,
        })
    }

    /// Appends groups until then, several at a time, and prints each that is acknowledged.
    fn append(
        &self,
        writer: &mut Writer,
        mut tail: u64,
        until: Instant,
        counts: &mut Counts,
    ) -> Result<()> {
        let mut flights = VecDeque::new();
        loop {
            let is_over = Instant::now() >= until;
            if !is_over && writer.room() > 0 {
                let ticket = self.commit(writer, tail)?;
                tail += self.group;
                flights.push_back((ticket, tail, Instant::now()));
                continue;
            }
            match flights.pop_front() {
                Some((ticket, shown, started)) => {
                    patiently(|limit| writer.wait(ticket, limit, drop))?;
                    counts.longest = counts.longest.max(started.elapsed());
                    counts.acknowledged = shown;
                    println!("acknowledged {shown}");
                }
                None if is_over => return Ok(()),
                None => patiently(|limit| writer.wait_room(limit, drop))?,
            }
        }
    }

    /// Commits the group that begins with this record.
    fn commit(&self, writer: &mut Writer, first: u64) -> Result<Ticket> {
        let place = (writer.posted() % u64::from(IN_FLIGHT)) as usize * self.group as usize;
        for (at, number) in (first..first + self.group).enumerate() {
            let at = (place + at) * RECORD;
            self.records.write_at(at, &record(number))?;
        }
        let log = writer.offer().regions()[0];
        let src = place * RECORD..(place + self.group as usize) * RECORD;
        let dst = log.slice(offset(first) as u64..offset(first + self.group) as u64)?;
        let parts = [(dst, self.records.slice(src)?)];
        let tail = (first + self.group).to_le_bytes();
        let pointer = (log.slice(..TAIL as u64)?, tail);
        Ok(writer.commit(&parts, Some(pointer))?)
    }
}

/// Appends wrongly: a power cut finds a tail that shows records that are not there.
pub(crate) fn tail_first(addr: &str, port: &str) -> Result<()> {
    let log = Log::new(addr, port)?;
    let local = Mr::reg(&log.peer, vec![0; TAIL], MrUsage::READ_DST)?;
    let (conn, offer) = log.reader()?;
    let target = Target::of(&conn, &offer)?;
    let tail = target.tail(&local)? + NEVER;
    let dst = target.remote.slice(..TAIL as u64)?;
    conn.atomic_write(dst, &tail.to_le_bytes(), Flags::COMPLETION_ON_ERROR, 0)?;
    let flags = Flags::COMPLETION_ALWAYS;
    target.wait(conn.flush(dst, FlushType::Persistent, flags, 0)?)?;
    println!("the tail is {tail}");
    thread::sleep(Duration::from_secs(60));
    Ok(())
}

/// Looks at the log all the time while another client appends: the records up to the tail are
/// whole.
pub(crate) fn watch(addr: &str, port: &str, seconds: &str) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(seconds.parse()?);
    let log = Log::new(addr, port)?;
    let local = Mr::reg(&log.peer, vec![0; RECORD], MrUsage::READ_DST)?;
    let (conn, offer) = log.reader()?;
    let target = Target::of(&conn, &offer)?;
    let (mut looks, mut last) = (0u64, 0);
    while Instant::now() < until {
        let tail = target.tail(&local)?;
        if tail < last {
            return Err(format!("the tail was {last} and is {tail}").into());
        }
        last = tail;
        if let Some(number) = tail.checked_sub(1) {
            let at = offset(number) as u64;
            let src = target.remote.slice(at..at + RECORD as u64)?;
            let flags = Flags::COMPLETION_ALWAYS;
            let read = target.conn.read(local.slice(..)?, src, flags, 0)?;
            target.wait(read)?;
            let mut found = [0; RECORD];
            local.read_at(0, &mut found)?;
            is_whole(&found, number, tail)?;
        }
        looks += 1;
        if looks == 1 {
            println!("watching");
        }
    }
    println!("looks {looks}, tail {last}");
    Ok(())
}

/// The log, seen from here.
struct Log<'a> {
    peer: Peer,
    addr: &'a str,
    port: u16,
}

impl<'a> Log<'a> {
    fn new(addr: &'a str, port: &str) -> Result<Self> {
        Ok(Self {
            peer: Peer::toward(addr)?,
            addr,
            port: port.parse()?,
        })
    }

    /// Connections that commit, one after the other.
    fn server(&self, method: &Method) -> Result<Reconnect<ToWriter>> {
        let (offer, to_writer) = (Offer::default(), ToWriter::new(&method.commits));
        let server = Reconnect::new(&self.peer, self.addr, self.port, offer, to_writer);
        Ok(server?)
    }

    /// A connection that names no method.
    fn reader(&self) -> Result<(Conn, Offer)> {
        let req = ConnReq::new(&self.peer, self.addr, self.port, &ConnCfg::new())?;
        let asked = req.connect(&Offer::default().encode(Offer::CONNECT)?)?;
        let conn = asked.wait_established(CONNECT)?;
        let offer = conn.offer()?;
        Ok((conn, offer))
    }
}

/// A connection, and the log that it reaches.
struct Target<'a> {
    conn: &'a Conn,
    remote: MrRemote,
}

impl<'a> Target<'a> {
    fn of(conn: &'a Conn, offer: &Offer) -> Result<Self> {
        let remote = offer.memory(TAIL as u64)?;
        Ok(Self { conn, remote })
    }

    fn tail(&self, local: &Mr<Vec<u8>>) -> Result<u64> {
        let (dst, src) = (local.slice(..TAIL)?, self.remote.slice(..TAIL as u64)?);
        let read = self.conn.read(dst, src, Flags::COMPLETION_ALWAYS, 0)?;
        self.wait(read)?;
        Ok(local.load_u64(0)?)
    }

    /// Waits for this operation; the failure of an earlier one is an error, too.
    fn wait(&self, posted: Posted) -> Result<()> {
        patiently(|limit| self.conn.wait_for(posted, limit, drop).map(drop))
    }
}

/// Waits [`STALL`] times.
fn patiently(mut wait: impl FnMut(Duration) -> rpma::Result<()>) -> Result<()> {
    for _ in 0..STALL {
        match wait(Duration::from_secs(1)) {
            Err(Error::TimedOut(_)) => {}
            ended => return Ok(ended?),
        }
    }
    Err(format!("stall: nothing in {STALL} s").into())
}
