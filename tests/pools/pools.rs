//! What the simulated fabric costs with pools of persistent memory of a real size, of which little
//! is ever touched: `cargo bench --no-default-features --features sim --bench pools`.
//!
//! Each row is one pool, in a process of its own. The columns are processor time for an event that
//! a check visits, for an image of it, for an image that is mapped and read, and for an append (a
//! write and its flush) that nobody watches; and the memory that the process has taken. The last
//! lines have the ratios to the first pool.

#[path = "../common/mod.rs"]
mod common;

use std::fs;
use std::io;
use std::process::Command;

use rpma::pmem::PmemMap;
use rpma::sim::{Fabric, Platform, Pmem, Profile};
use rpma::{Flags, FlushType, Mr, MrRemote, MrUsage};
use rustix::time::{ClockId, clock_gettime};

use common::LIMIT;
use common::Rig;
use common::World;

type Outcome<T = ()> = common::Result<T>;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
/// The bytes that are touched of each pool.
const TOUCHED: usize = MIB;
/// How many appends are timed.
const APPENDS: usize = 200;
const LEN: usize = 64;
/// How many images are made at each event.
const IMAGES: usize = 50;

/// A pool, and whether the touched pages are spread over it.
const POOLS: [(usize, bool); 4] = [
    (MIB, false),
    (1024 * MIB, false),
    (1024 * MIB, true),
    (16 * 1024 * MIB, false),
];

/// Microseconds of the process, and KiB of memory.
const COLUMNS: [&str; 5] = ["event", "image", "mapped image", "append", "KiB"];

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().filter(|arg| arg != "--bench").collect();
    match &args[..] {
        [_, size, spread] => {
            let costs = measure(size.parse()?, spread == "true")?;
            println!("{}", costs.map(|cost| cost.to_string()).join(" "));
            Ok(())
        }
        [program] => table(program),
        _ => Err(io::Error::other("pools [BYTES SPREAD]").into()),
    }
}

fn table(program: &str) -> Outcome {
    let mut rows = Vec::new();
    println!(
        "| pool | {} |\n|---|---|---|---|---|---|",
        COLUMNS.join(" | ")
    );
    for (size, spread) in POOLS {
        let args = [size.to_string(), spread.to_string()];
        let output = Command::new(program).args(args).output()?;
        let said = String::from_utf8(output.stdout)?;
        let costs: Vec<f64> = said.split_whitespace().flat_map(str::parse).collect();
        if costs.len() != COLUMNS.len() {
            let told = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("{size}: {said}{told}")).into());
        }
        let place = if spread { ", 1 MiB of it spread" } else { "" };
        let numbers: Vec<String> = costs.iter().map(|cost| format!("{cost:.1}")).collect();
        println!("| {} MiB{place} | {} |", size / MIB, numbers.join(" | "));
        rows.push(costs);
    }
    for (row, (size, spread)) in rows.iter().zip(POOLS).skip(1) {
        let ratios = row.iter().zip(&rows[0]);
        let ratios: Vec<String> = ratios
            .map(|(one, first)| format!("{:.2}", one / first))
            .collect();
        println!(
            "| {} MiB, spread {spread}, ratio | {} |",
            size / MIB,
            ratios.join(" | ")
        );
    }
    Ok(())
}

fn measure(size: usize, spread: bool) -> Outcome<[f64; 5]> {
    let before = resident()?;
    let world = Pool::new(size)?;
    world.touch(spread)?;
    let append = per_call(APPENDS, || world.append())?;
    let event = world.watched(|_, _| Ok(()))?;
    let image = world.watched(|cut, pmem| {
        (0..IMAGES).for_each(|_| cut.images_up_to(pmem, 1).for_each(drop));
        Ok(())
    })?;
    let mapped = world.watched(|cut, pmem| {
        for image in (0..IMAGES).flat_map(|_| cut.images_up_to(pmem, 1)) {
            PmemMap::open(image.path(), pmem.len())?.read_at(0, &mut [0; LEN])?;
        }
        Ok(())
    })?;
    let of_image = |event_with: f64| (event_with - event) / IMAGES as f64;
    let memory = resident()?.saturating_sub(before) as f64;
    Ok([event, of_image(image), of_image(mapped), append, memory])
}

/// A server's pool, and a client that writes to it.
struct Pool {
    fabric: Fabric,
    pmem: Pmem,
    target: Mr<PmemMap>,
    remote: MrRemote,
    source: Mr<rpma::AlignedBuf>,
    ends: common::Pair,
}

impl Pool {
    fn new(size: usize) -> Outcome<Self> {
        let fabric = Rig::of(&Profile::RXE_6_12).fabric();
        let world = World::on(&fabric);
        world.hosts[1].set_platform(Platform::AdrDdioOn);
        let pmem = world.hosts[1].pmem("pool", size);
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT;
        let map = {
            let _entered = world.hosts[1].enter();
            PmemMap::open(pmem.path(), pmem.len())?
        };
        let target = Mr::reg(&world.peers[1], map, usage)?;
        let memory = rpma::AlignedBuf::zeroed(PAGE)?;
        let source = Mr::reg(&world.peers[0], memory, MrUsage::WRITE_SRC)?;
        let cfg = rpma::ConnCfg::new();
        let ends = world.connect(&cfg, &cfg)?;
        let mut declared = rpma::PeerCfg::new();
        declared.set_durable(rpma::Durable::NativeFlushes);
        ends.client.apply_remote_peer_cfg(&declared);
        Ok(Self {
            ends,
            remote: MrRemote::from_descriptor(&target.get_descriptor())?,
            fabric,
            pmem,
            target,
            source,
        })
    }

    /// Touches a mebibyte, by stores of the server's program.
    fn touch(&self, spread: bool) -> Outcome {
        let pages = TOUCHED / PAGE;
        let step = if spread {
            self.pmem.len() / pages
        } else {
            PAGE
        };
        for page in 0..pages {
            let at = page * step;
            self.target.write_at(at, &[page as u8 | 1; PAGE])?;
            self.target.persist(at..at + PAGE)?;
        }
        Ok(())
    }

    fn append(&self) -> Outcome {
        let conn = &self.ends.client;
        let range = self.remote.slice(..LEN as u64)?;
        let source = self.source.slice(..LEN)?;
        conn.write(range, source, Flags::COMPLETION_ON_ERROR, 0)?;
        let flush = conn.flush(range, FlushType::Persistent, Flags::COMPLETION_ALWAYS, 0)?;
        conn.wait_for(flush, LIMIT, |_| {})?;
        Ok(())
    }

    /// The time of an event with this check.
    fn watched(
        &self,
        check: impl Fn(&rpma::sim::Cut<'_>, &Pmem) -> Outcome + Send + Sync + 'static,
    ) -> Outcome<f64> {
        let (before, began) = (self.fabric.visited().events, process_time());
        let pmem = self.pmem.clone();
        let watched = self.fabric.find_loss(
            move |cut| check(cut, &pmem).expect("a check without a loss"),
            || {
                for _ in 0..APPENDS {
                    self.append().expect("an append");
                }
            },
        );
        watched.map_err(|loss| io::Error::other(loss.to_string()))?;
        let events = self.fabric.visited().events - before;
        Ok((process_time() - began) / events.max(1) as f64)
    }
}

/// The time of a call, in microseconds.
fn per_call(count: usize, mut call: impl FnMut() -> Outcome) -> Outcome<f64> {
    let began = process_time();
    for _ in 0..count {
        call()?;
    }
    Ok((process_time() - began) / count as f64)
}

/// Microseconds of all threads on a processor.
fn process_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// The memory of the process, in KiB.
fn resident() -> Outcome<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.ok_or_else(|| io::Error::other("no VmRSS"))?.parse()?)
}
