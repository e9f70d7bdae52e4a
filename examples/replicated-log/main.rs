//! A log in the persistent memory of three hosts. A record is acknowledged when two of them have
//! it.
//!
//! ```text
//! replicated-log serve  <address:port> <pmem-path>
//! replicated-log append <address:port> <address:port> <address:port>
//! replicated-log read   <address:port> <address:port> <address:port>
//! replicated-log verify <address:port> <pmem-path>
//! ```
//!
//! docs/building-a-log.md explains each decision. `log.rs` has the log, `replica.rs` the writer's
//! side of a replica, `server.rs` the program of a replica, `format.rs` the bytes, and
//! `blocking.rs` the calls for programs with threads.

#![allow(dead_code, reason = "only its tests call everything")]

pub(crate) mod blocking;
pub(crate) mod error;
pub(crate) mod fault;
pub(crate) mod format;
pub(crate) mod log;
mod replica;
pub(crate) mod server;

use std::io::{self, BufRead};

use anyhow::{Context, Result};
use clap::Parser;
use rpma::pmem::PmemMap;
use rpma::{Device, Peer, Side};
use rpma_async::Reactor;

pub(crate) use self::error::LogError;
pub(crate) use self::fault::Fault;
use self::format::Found;
use self::log::LogCfg;
use self::server::Settings;

/// The position of a record in the log, in bytes from its beginning.
pub(crate) type Lsn = u64;

/// A log in the persistent memory of three hosts.
#[derive(Debug, Parser)]
enum Command {
    /// Offers the memory of a replica, until ctrl-c.
    Serve(Settings),
    /// Appends each line of the standard input, and prints its position.
    Append {
        #[command(flatten)]
        cfg: LogCfg,
        /// On tokio, in the place of threads.
        #[arg(long)]
        tokio: bool,
    },
    /// Opens the log as its next writer, and prints its records.
    Read {
        #[command(flatten)]
        cfg: LogCfg,
        /// Then forgets them.
        #[arg(long)]
        truncate: bool,
    },
    /// Prints the records of a replica that does not run.
    Verify {
        #[command(flatten)]
        settings: Settings,
        #[arg(long, default_value_t = 1)]
        key: u64,
    },
}

fn main() -> Result<()> {
    env_logger::init();
    match Command::parse() {
        Command::Serve(settings) => serve(&settings),
        Command::Verify { settings, key } => verify(&settings, key),
        Command::Append { cfg, tokio } => write(cfg, if tokio { on_tokio } else { on_threads }),
        Command::Read { cfg, truncate } => write(cfg, |cfg| read(cfg, truncate)),
    }
}

/// Runs a writer; with `--take-over` again, with a higher epoch, if another one has the log.
fn write(mut cfg: LogCfg, run: impl Fn(&LogCfg) -> Result<(), LogError>) -> Result<()> {
    loop {
        match run(&cfg) {
            Err(LogError::Fenced { epoch }) if cfg.take_over => cfg.epoch = epoch + 1,
            ended => return Ok(ended?),
        }
    }
}

fn serve(settings: &Settings) -> Result<()> {
    let mut server = settings.open()?;
    let waker = server.waker();
    let mut signals = signal_hook::iterator::Signals::new([libc::SIGINT, libc::SIGTERM])?;
    std::thread::spawn(move || signals.forever().for_each(|_| waker.wake()));
    println!("serving on {}", settings.addr);
    server.serve(|served| ::log::info!("{served}"))?;
    Ok(())
}

fn verify(settings: &Settings, key: u64) -> Result<()> {
    let layout = settings.layout()?;
    let place = layout.part(key).context("the replica has no such key")?;
    let mut bytes = vec![0; place.len()];
    PmemMap::open(&settings.path, layout.len())?.read_at(place.start, &mut bytes)?;
    let found = Found::decode(&bytes, settings.ring)?;
    for (at, record) in found.records() {
        print(at, record);
    }
    println!("head {}, {:?}, {:?}", found.head, found.tail, found.header);
    Ok(())
}

fn print(at: Lsn, record: &[u8]) {
    println!("{at} {}", String::from_utf8_lossy(record));
}

/// The domain of trust of a client. Its device reaches a replica that is up.
fn peer(cfg: &LogCfg) -> Result<Peer, LogError> {
    let to = |n: usize| Device::from_socket_addr(cfg.replicas[n], Side::Remote);
    let device = to(0).or_else(|_| to(1)).or_else(|_| to(2));
    Ok(Peer::new(&device?)?)
}

fn read(cfg: &LogCfg, truncate: bool) -> Result<(), LogError> {
    let log = blocking::Log::open(&peer(cfg)?, cfg)?;
    let (mut at, end) = log.bounds();
    while let Some((record, next)) = log.read(at)? {
        print(next - format::size_of(record.len()), &record);
        at = next;
    }
    if truncate {
        log.truncate(end)?;
    }
    log.close()
}

fn on_threads(cfg: &LogCfg) -> Result<(), LogError> {
    let log = blocking::Log::open(&peer(cfg)?, cfg)?;
    for line in lines() {
        println!("{}", log.append(line.as_bytes())?);
    }
    log.close()
}

fn on_tokio(cfg: &LogCfg) -> Result<(), LogError> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let log = log::Log::open(&Reactor::spawn(&peer(cfg)?)?, cfg).await?;
        for line in lines() {
            println!("{}", log.append(line.as_bytes()).await?);
        }
        log.close().await
    })
}

fn lines() -> impl Iterator<Item = String> {
    io::stdin().lock().lines().map_while(Result::ok)
}
