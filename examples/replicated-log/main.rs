//! A log in the persistent memory of three hosts. A record is acknowledged when two of them have it.
//!
//! ```text
//! replicated-log serve <address:port> <pmem-path>
//! replicated-log append <address:port> <address:port> <address:port>
//! replicated-log verify <pmem-path>
//! ```
//!
//! docs/building-a-log.md explains each decision. `log.rs` has the log, `replica.rs` the writer's
//! side of a replica, `server.rs` the program of a replica, `format.rs` the bytes; `blocking.rs` and
//! `task.rs` are front ends for programs with threads and for tokio.

#![allow(
    dead_code,
    reason = "its tests call everything, and its commands a part"
)]

pub(crate) mod blocking;
pub(crate) mod error;
pub(crate) mod fault;
pub(crate) mod format;
pub(crate) mod log;
mod replica;
pub(crate) mod server;
pub(crate) mod task;

use std::io::{self, BufRead};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, ValueEnum};
use rpma::commit::Method;
use rpma::pmem::{Ddio, PmemMap};
use rpma::{Device, Peer, Side};

pub(crate) use self::error::LogError;
pub(crate) use self::fault::Fault;
use self::format::{Found, RING};
use self::log::LogCfg;
use self::server::{Replica, Settings};

/// The position of a record in the log, in bytes from its beginning.
pub(crate) type Lsn = u64;

/// A log in the persistent memory of three hosts.
#[derive(Debug, Parser)]
enum Command {
    /// Offers the memory of a replica, until ctrl-c.
    Serve {
        addr: SocketAddr,
        #[command(flatten)]
        memory: Memory,
        /// Writes of the adapter bypass the processor's caches.
        #[arg(long)]
        ddio_off: bool,
    },
    /// Appends each line of the standard input, and prints its position.
    Append {
        #[arg(num_args = 3)]
        replicas: Vec<SocketAddr>,
        #[arg(long, default_value_t = 1)]
        key: u64,
        /// Above that of each earlier writer.
        #[arg(long, default_value_t = 1)]
        epoch: u64,
        /// Raises the epoch if another writer has it.
        #[arg(long)]
        take_over: bool,
        /// Makes the log. The replicas have none.
        #[arg(long)]
        create: bool,
        #[arg(long, value_enum, default_value_t = By::Reading)]
        method: By,
        /// The bytes of the ring.
        #[arg(long, default_value_t = 1 << 20)]
        ring: u64,
        /// On tokio, in the place of threads.
        #[arg(long)]
        tokio: bool,
    },
    /// Looks at the memory of a replica that does not run: prints its records.
    Verify {
        #[command(flatten)]
        memory: Memory,
        #[arg(long, default_value_t = 1)]
        key: u64,
    },
}

#[derive(Debug, Args)]
struct Memory {
    /// A device-DAX, or a file.
    path: PathBuf,
    /// The keys that have memory: from 1 to this one.
    #[arg(long, default_value_t = 8)]
    keys: u64,
    /// The bytes of each key: those of the ring, and 256.
    #[arg(long, default_value_t = (1 << 20) + RING as usize)]
    bytes: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    Native,
    Reading,
    Server,
}

impl From<By> for Method {
    fn from(by: By) -> Self {
        match by {
            By::Native => Self::Native,
            By::Reading => Self::Reading,
            By::Server => Self::Server,
        }
    }
}

const LIMIT: Duration = Duration::from_secs(30);
/// Soft-RoCE and adapters with the kernel's time-out need at least 8.6 s on older kernels.
const SILENCE: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    env_logger::init();
    match Command::parse() {
        Command::Serve {
            addr,
            memory,
            ddio_off,
        } => serve(addr, &memory, ddio_off),
        Command::Verify { memory, key } => verify(&memory, key),
        Command::Append {
            replicas,
            key,
            epoch,
            take_over,
            create,
            method,
            ring,
            tokio,
        } => {
            let mut cfg = LogCfg {
                replicas: [replicas[0], replicas[1], replicas[2]],
                key,
                epoch,
                method: method.into(),
                ring,
                create,
                limit: LIMIT,
                silence: SILENCE,
                fault: Fault::Nothing,
            };
            loop {
                match if tokio {
                    on_tokio(&cfg)
                } else {
                    on_threads(&cfg)
                } {
                    Err(LogError::Fenced { epoch }) if take_over && epoch >= cfg.epoch => {
                        cfg.epoch = epoch + 1
                    }
                    appended => return Ok(appended?),
                }
            }
        }
    }
}

fn settings(memory: &Memory, addr: SocketAddr) -> Settings {
    Settings {
        addr,
        keys: memory.keys,
        len: memory.bytes,
        platform: None,
        ddio: Ddio::On,
        silence: SILENCE,
    }
}

fn serve(addr: SocketAddr, memory: &Memory, ddio_off: bool) -> Result<()> {
    let mut settings = settings(memory, addr);
    if ddio_off {
        settings.ddio = Ddio::Off;
    }
    let replica = Replica::open(&memory.path, &settings)?;
    let stop = replica.stopper();
    let mut signals = signal_hook::iterator::Signals::new([libc::SIGINT, libc::SIGTERM])?;
    std::thread::spawn(move || signals.forever().for_each(|_| stop.stop()));
    println!("serving on {}", addr.ip());
    replica.serve()
}

fn verify(memory: &Memory, key: u64) -> Result<()> {
    let all = settings(memory, ([0, 0, 0, 0], 0).into());
    let map = PmemMap::open(&memory.path, all.place(memory.keys).end)?;
    let mut bytes = vec![0; all.place(key).len()];
    map.read_at(all.place(key).start, &mut bytes)?;
    let found = Found::decode(&bytes, memory.bytes as u64 - RING)?;
    for (at, record) in found.records() {
        println!("{at} {}", String::from_utf8_lossy(record));
    }
    println!("head {}, {:?}, {:?}", found.head, found.tail, found.header);
    Ok(())
}

/// The domain of trust of a client.
fn peer(cfg: &LogCfg) -> Result<Peer, LogError> {
    let server = cfg.replicas[0].ip().to_string();
    Ok(Peer::new(&Device::from_addr(&server, Side::Remote)?)?)
}

fn on_threads(cfg: &LogCfg) -> Result<(), LogError> {
    let log = blocking::Log::open(&peer(cfg)?, cfg)?;
    for line in lines() {
        println!("{}", log.append(line.as_bytes())?);
    }
    log.close()
}

fn on_tokio(cfg: &LogCfg) -> Result<(), LogError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let log = task::Log::open(&peer(cfg)?, cfg).await?;
        for line in lines() {
            println!("{}", log.append(line.as_bytes()).await?);
        }
        log.close().await
    })
}

fn lines() -> impl Iterator<Item = String> {
    io::stdin().lock().lines().map_while(Result::ok)
}
