//! A client that stands still with writes in flight, and a server that cuts it off meanwhile.
//!
//! The client comes back after each round, which shows the server that it stood still no more.

use rpma::AlignedBuf;

use crate::prelude::*;

/// Writes in flight: more packets than soft-RoCE sends without an acknowledgement.
const WRITES: usize = 512;
/// The bytes of a write: one packet. With writes of 64 packets, one connection in 59 failed by
/// itself (`REM_INV_REQ_ERR`): soft-RoCE had to send a packet in the middle of a message again.
const LEN: usize = 1 << 10;
/// Completions of one look.
const AT_ONCE: usize = 64;
/// For a client to come, and for each side to answer.
const CONNECT: Duration = Duration::from_secs(50);
/// A client that writes no byte for so long stands still.
const SILENCE: Duration = Duration::from_secs(1);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the client's device goes on after the program has learnt of the end.
const TRIES: Duration = Duration::from_millis(500);

/// Serves a client for so many rounds. In each it cuts the client off when it has stopped writing
/// (`does`: `cut`), or keeps its connection (`keep`). Prints how many bytes have changed until the
/// client came back.
pub(crate) fn serve(addr: &str, port: &str, rounds: &str, does: &str) -> Result<()> {
    let cuts_off = does == "cut";
    let peer = Peer::at(addr)?;
    let memory = Mr::reg(&peer, AlignedBuf::zeroed(WRITES * LEN)?, MrUsage::WRITE_DST)?;
    let mut offer = Offer::new(&PeerCfg::new());
    offer.add_region(&memory);
    let offer = offer.encode(Offer::ACCEPT)?;
    let ep = Ep::listen(&peer, addr, port.parse()?)?;
    println!("listening");
    let mut asks = ep.next_conn_req_timeout(&ConnCfg::new(), CONNECT)?;
    for round in 1..=rounds.parse()? {
        let conn = asks.connect(&offer)?.wait_established(CONNECT)?;
        let (begin, accepted) = (bytes(&memory)?, Instant::now());
        while bytes(&memory)? == begin {
            if accepted.elapsed() > CONNECT {
                return Err("the client writes nothing".into());
            }
            thread::sleep(PAUSE);
        }
        println!("written {round}");
        let (mut before, mut since) = (bytes(&memory)?, Instant::now());
        while since.elapsed() < SILENCE {
            thread::sleep(PAUSE);
            let now = bytes(&memory)?;
            if now != before {
                (before, since) = (now, Instant::now());
            }
        }
        let started = Instant::now();
        let kept = match cuts_off {
            true => {
                conn.cut_off()?;
                None
            }
            false => Some(conn),
        };
        let took = started.elapsed().as_micros();
        let before = bytes(&memory)?;
        println!("silent {round}: {took} us");
        let mut changed = 0;
        asks = loop {
            let now = bytes(&memory)?;
            let differ = before.iter().zip(&now).filter(|(a, b)| a != b).count();
            changed = changed.max(differ);
            match ep.next_conn_req_timeout(&ConnCfg::new(), PAUSE) {
                Ok(asks) => break asks,
                Err(Error::NoEvent) => {}
                Err(error) => return Err(error.into()),
            }
        };
        drop(kept);
        println!("changed {round}: {changed} bytes");
    }
    asks.reject(&[])?;
    Ok(())
}

fn bytes(memory: &Mr<AlignedBuf>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; WRITES * LEN];
    memory.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Writes all the time, for so many rounds of so many seconds or until the connection ends, and
/// prints how many writes were in flight then.
pub(crate) fn flood(addr: &str, port: &str, rounds: &str, seconds: &str) -> Result<()> {
    let peer = Peer::toward(addr)?;
    let source = Mr::reg(&peer, AlignedBuf::zeroed(WRITES * LEN)?, MrUsage::WRITE_SRC)?;
    let mut cfg = ConnCfg::new();
    // It never gives up by itself: on soft-RoCE 7 is without end.
    cfg.set_ack_timeout(Some(14))?.set_retry_count(7)?;
    cfg.set_sq_size(WRITES as u32).set_cq_size(WRITES as u32);
    let ask = || -> Result<Conn> {
        let req = ConnReq::new(&peer, addr, port.parse()?, &cfg)?;
        Ok(req.connect(&[])?)
    };
    for round in 1..=rounds.parse()? {
        let conn = ask()?.wait_established(CONNECT)?;
        let until = Instant::now() + Duration::from_secs(seconds.parse()?);
        let flood = Flood::new(&conn, &source)?;
        let (in_flight, why) = flood.write(until)?;
        println!("in flight {round}: {in_flight} writes, {why}");
        thread::sleep(TRIES);
    }
    match ask()?.wait_established(CONNECT) {
        Err(Error::NotEstablished(_)) => Ok(()),
        other => Err(format!("{other:?} in the place of a reject").into()),
    }
}

struct Flood<'a> {
    conn: &'a Conn,
    source: &'a Mr<AlignedBuf>,
    target: MrRemote,
    posted: u64,
}

impl<'a> Flood<'a> {
    fn new(conn: &'a Conn, source: &'a Mr<AlignedBuf>) -> Result<Self> {
        let offer = conn.offer()?;
        let target = offer.memory(0)?;
        Ok(Self {
            conn,
            source,
            target,
            posted: 0,
        })
    }

    /// Writes until then, or until the connection ends. Returns how many writes are in flight.
    fn write(mut self, until: Instant) -> Result<(u64, String)> {
        let mut wcs = [Wc::default(); AT_ONCE];
        let mut done = 0;
        loop {
            while self.posted < done + WRITES as u64 {
                self.post()?;
            }
            if Instant::now() >= until {
                return Ok((self.posted - done, "and goes on".to_owned()));
            }
            match self.conn.next(&mut wcs, Duration::from_secs(1)) {
                Ok(Next::Completions(count)) => {
                    for wc in &wcs[..count] {
                        match wc.result() {
                            Ok(_) => done += 1,
                            Err(failure) => {
                                return Ok((self.posted - done, failure.to_string()));
                            }
                        }
                    }
                }
                Ok(Next::Event(ConnEvent::Established)) | Err(Error::TimedOut(_)) => {}
                Ok(Next::Event(event)) => return Ok((self.posted - done, event.to_string())),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes other bytes to the next place. The write before it there is complete.
    fn post(&mut self) -> Result<()> {
        let at = self.posted as usize % WRITES * LEN;
        let round = self.posted / WRITES as u64;
        let bytes = [(round % 251) as u8 + 1; LEN];
        self.source.write_at(at, &bytes)?;
        let from = self.source.slice(at..at + LEN)?;
        let to = self.target.slice(at as u64..(at + LEN) as u64)?;
        self.conn.write(to, from, Flags::COMPLETION_ALWAYS, 0)?;
        self.posted += 1;
        Ok(())
    }
}
