//! The host that writes.

use std::thread;
use std::time::{Duration, Instant};

use rpma::{
    Conn, ConnCfg, ConnReq, Device, Flags, FlushType, Mr, MrRemote, MrUsage, Peer, PeerCfg, Posted,
    Side,
};

use crate::Result;
use crate::log::{RECORD, TAIL, offset, record};

/// So many waits of one second each may bring nothing: with the default settings a peer is given up after
/// 4 s, and the kernel is some times slower than it should be. (One wait of 20 s would be over at once when
/// this host itself stands still for longer.)
const STALL: u32 = 20;
/// For a peer that does not answer to a request for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Before the next try.
const PAUSE: Duration = Duration::from_millis(200);

const SILENT: Flags = Flags::COMPLETION_ON_ERROR;

/// The connection, and what it reaches.
struct Target {
    conn: Conn,
    remote: MrRemote,
}

/// What is counted.
#[derive(Default)]
struct Counts {
    acknowledged: u64,
    connections: u64,
    failures: u64,
    longest: Duration,
}

pub(crate) fn append(
    addr: &str,
    port: &str,
    seconds: &str,
    group: &str,
    method: &str,
    tail_first: bool,
) -> Result<()> {
    let (port, group) = (port.parse()?, group.parse()?);
    let until = Instant::now() + Duration::from_secs(seconds.parse()?);
    let peer = Peer::new(&Device::from_addr(addr, Side::Remote)?)?;
    let mut cfg = ConnCfg::new();
    cfg.set_sq_size(32).set_force_fallback(method != "native");
    if method == "tight" {
        // 67 ms, three times.
        cfg.set_ack_timeout(Some(14))?.set_retry_count(2)?;
    }
    let local = Mr::reg(
        &peer,
        vec![0; 16 * RECORD],
        MrUsage::WRITE_SRC | MrUsage::READ_DST,
    )?;

    let mut counts = Counts::default();
    while Instant::now() < until {
        let started = Instant::now();
        let worked = connect(&peer, addr, port, &cfg).and_then(|target| {
            counts.connections += 1;
            let mut tail = target.tail(&local)?;
            println!("connected: {tail} records");
            while Instant::now() < until {
                let started = Instant::now();
                match tail_first {
                    false => target.append(&local, tail, group)?,
                    true => target.append_wrongly(&local, tail, group)?,
                }
                counts.longest = counts.longest.max(started.elapsed());
                tail += group;
                counts.acknowledged = tail;
                println!("acknowledged {tail}");
            }
            Ok(())
        });
        if let Err(error) = worked {
            counts.failures += 1;
            println!("failed after {} ms: {error}", started.elapsed().as_millis());
            if error.to_string().contains("stall") {
                return Err(error);
            }
            thread::sleep(PAUSE);
        }
    }
    println!(
        "acknowledged {}, connections {}, failures {}, longest {} ms",
        counts.acknowledged,
        counts.connections,
        counts.failures,
        counts.longest.as_millis()
    );
    Ok(())
}

/// Looks at the log all the time while another client appends: what the tail shows is whole.
pub(crate) fn watch(addr: &str, port: &str, seconds: &str) -> Result<()> {
    let port = port.parse()?;
    let until = Instant::now() + Duration::from_secs(seconds.parse()?);
    let peer = Peer::new(&Device::from_addr(addr, Side::Remote)?)?;
    let local = Mr::reg(&peer, vec![0; RECORD], MrUsage::READ_DST)?;
    let target = connect(&peer, addr, port, &ConnCfg::new())?;
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
            if found != record(number) {
                return Err(format!("record {number} of {tail} is damaged: {found:02x?}").into());
            }
        }
        looks += 1;
        if looks == 1 {
            println!("watching");
        }
    }
    println!("looks {looks}, tail {last}");
    Ok(())
}

fn connect(peer: &Peer, addr: &str, port: u16, cfg: &ConnCfg) -> Result<Target> {
    let req = ConnReq::new(peer, addr, port, cfg)?;
    let conn = req.connect(&[])?.wait_established(CONNECT)?;
    let offer = conn.get_private_data();
    let remote = MrRemote::from_descriptor(offer)?;
    conn.apply_remote_peer_cfg(&PeerCfg::from_descriptor(&offer[21..])?);
    Ok(Target { conn, remote })
}

impl Target {
    fn tail(&self, local: &Mr<Vec<u8>>) -> Result<u64> {
        let (dst, src) = (local.slice(..TAIL)?, self.remote.slice(..TAIL as u64)?);
        let read = self.conn.read(dst, src, Flags::COMPLETION_ALWAYS, 0)?;
        self.wait(read)?;
        Ok(local.load_u64(0)?)
    }

    fn append(&self, local: &Mr<Vec<u8>>, first: u64, group: u64) -> Result<()> {
        self.records(local, first, group, SILENT)?;
        let shown = self.show(first + group)?;
        self.wait(shown)
    }

    /// A power cut between the two leaves a tail that shows what is not there.
    fn append_wrongly(&self, local: &Mr<Vec<u8>>, first: u64, group: u64) -> Result<()> {
        let shown = self.show(first + group)?;
        self.wait(shown)?;
        println!("the tail is {}", first + group);
        thread::sleep(Duration::from_secs(1));
        let flushed = self.records(local, first, group, Flags::COMPLETION_ALWAYS)?;
        self.wait(flushed)
    }

    fn records(&self, local: &Mr<Vec<u8>>, first: u64, group: u64, flags: Flags) -> Result<Posted> {
        for (at, number) in (first..first + group).enumerate() {
            local.write_at(at * RECORD, &record(number))?;
            let src = local.slice(at * RECORD..(at + 1) * RECORD)?;
            let dst = offset(number) as u64;
            let dst = self.remote.slice(dst..dst + RECORD as u64)?;
            self.conn.write(dst, src, SILENT, number)?;
        }
        let all = offset(first) as u64..offset(first + group) as u64;
        let all = self.remote.slice(all)?;
        Ok(self.conn.flush(all, FlushType::Persistent, flags, 0)?)
    }

    fn show(&self, tail: u64) -> Result<Posted> {
        let dst = self.remote.slice(..TAIL as u64)?;
        self.conn
            .atomic_write(dst, &tail.to_le_bytes(), SILENT, 0)?;
        let flags = Flags::COMPLETION_ALWAYS;
        Ok(self.conn.flush(dst, FlushType::Persistent, flags, 0)?)
    }

    /// Waits for this operation; the failure of an earlier one is an error, too.
    fn wait(&self, posted: Posted) -> Result<()> {
        for _ in 0..STALL {
            match self.conn.wait_for(posted, Duration::from_secs(1), |_| {}) {
                Err(rpma::Error::TimedOut(_)) => {}
                ended => return Ok(ended.map(drop)?),
            }
        }
        Err(format!("stall: no completion in {STALL} s").into())
    }
}
