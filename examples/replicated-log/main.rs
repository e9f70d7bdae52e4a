//! A log in the persistent memory of several hosts, with the crate `rpma-log`.
//!
//! ```text
//! replicated-log serve   <address:port> <pmem-path>
//! replicated-log append  <address:port> <address:port> <address:port>
//! replicated-log read    <address:port> <address:port> <address:port>
//! replicated-log replace <old>=<new> <address:port> <address:port> <address:port>
//! replicated-log verify  <address:port> <pmem-path>
//! ```

use std::io::{self, BufRead};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser};
use rpma::Peer;
use rpma::commit::Method;
use rpma::pmem::Ddio;
use rpma_async::Reactor;
use rpma_log::{Fault, Log, LogCfg, LogError, ServerCfg, blocking};

/// A log in the persistent memory of several hosts.
#[derive(Debug, Parser)]
enum Command {
    /// Offers the memory of a server, until ctrl-c.
    Serve(Server),
    /// Appends each line of the standard input, and prints its position.
    Append {
        #[command(flatten)]
        writer: Writer,
        /// On tokio, in the place of threads.
        #[arg(long)]
        tokio: bool,
        /// Replaces a server meanwhile: the old one by the new one.
        #[arg(long, value_parser = pair, value_name = "OLD=NEW", conflicts_with = "tokio")]
        replace: Option<Pair>,
    },
    /// Opens the log as its next writer, and replaces a server.
    Replace {
        #[arg(value_parser = pair, value_name = "OLD=NEW")]
        servers: Pair,
        #[command(flatten)]
        writer: Writer,
    },
    /// Opens the log as its next writer, and prints its records.
    Read {
        #[command(flatten)]
        writer: Writer,
        /// Then forgets them.
        #[arg(long)]
        truncate: bool,
    },
    /// Prints the records of a server that does not run.
    Verify {
        #[command(flatten)]
        server: Server,
        #[arg(long, default_value_t = 1)]
        key: u64,
    },
}

#[derive(Clone, Debug, Args)]
struct Writer {
    /// The servers.
    #[arg(required = true)]
    servers: Vec<SocketAddr>,
    /// So many copies make a record acknowledged.
    #[arg(long, default_value_t = 2)]
    copies: usize,
    #[arg(long, default_value_t = 1)]
    key: u64,
    /// Above that of every earlier writer.
    #[arg(long, default_value_t = 1)]
    epoch: u64,
    /// Raises the epoch if another writer has it.
    #[arg(long)]
    take_over: bool,
    /// native, reading or server.
    #[arg(long, default_value = "reading")]
    method: Method,
    /// The bytes of the ring, on each server.
    #[arg(long, default_value_t = 1 << 20)]
    ring: u64,
    /// Makes the log. The servers have none.
    #[arg(long)]
    create: bool,
    /// Follows the list of servers that the log has, if one was replaced.
    #[arg(long)]
    follow: bool,
    /// Permits servers on one host, for demonstrations: a loss of power ends all of them.
    #[arg(long)]
    one_host: bool,
    /// Of each call, and of each step towards a server: in seconds.
    #[arg(long, value_parser = seconds, default_value = "30")]
    limit: Duration,
    /// Puts a fault in, to see what it breaks.
    #[arg(long = "break", default_value = "nothing")]
    fault: Fault,
}

#[derive(Clone, Debug, Args)]
struct Server {
    addr: SocketAddr,
    /// A device-DAX, or a file.
    path: PathBuf,
    /// The keys that have memory: from 1 to this one.
    #[arg(long, default_value_t = 8)]
    keys: u32,
    /// The bytes of each key's ring.
    #[arg(long, default_value_t = 1 << 20)]
    ring: u64,
    /// Writes of the adapter bypass the processor's caches.
    #[arg(long)]
    ddio_off: bool,
    /// Puts a fault in, to see what it breaks.
    #[arg(long = "break", default_value = "nothing")]
    fault: Fault,
}

/// A server, and the one that takes its place.
type Pair = (SocketAddr, SocketAddr);

fn pair(text: &str) -> Result<Pair> {
    let (old, new) = text.split_once('=').context("OLD=NEW is missing")?;
    Ok((old.parse()?, new.parse()?))
}

fn seconds(text: &str) -> Result<Duration, std::num::ParseIntError> {
    text.parse().map(Duration::from_secs)
}

impl Writer {
    fn cfg(&self) -> LogCfg {
        let mut cfg = LogCfg::new(&self.servers, self.copies, self.epoch);
        cfg.set_key(self.key)
            .set_method(self.method)
            .set_ring(self.ring)
            .set_create(self.create)
            .set_follow(self.follow)
            .set_limit(self.limit)
            .set_fault(self.fault);
        if self.one_host {
            cfg.permit_one_host();
        }
        cfg
    }

    /// The domain of trust of a client. Its device reaches a server that is up.
    fn peer(&self) -> Result<Peer, LogError> {
        Ok(Peer::toward_any(&self.servers)?)
    }

    /// Runs with the log; with `--take-over` again, with a higher epoch, if another one has it.
    fn run(mut self, run: impl Fn(&Self) -> Result<(), LogError>) -> Result<()> {
        loop {
            match run(&self) {
                Err(LogError::Fenced { epoch }) if self.take_over => self.epoch = epoch + 1,
                ended => return Ok(ended?),
            }
        }
    }

    fn open(&self) -> Result<blocking::Log, LogError> {
        blocking::Log::open(&self.peer()?, &self.cfg())
    }

    fn on_threads(&self, pair: Option<Pair>) -> Result<(), LogError> {
        let log = self.open()?;
        std::thread::scope(|scope| {
            let log = &log;
            let replaced = pair.map(|pair| scope.spawn(move || replace(log, pair)));
            for line in lines() {
                println!("{}", log.append(line.as_bytes())?);
            }
            replaced.map_or(Ok(()), |thread| thread.join().expect("no panic"))
        })?;
        log.close()
    }

    fn replace(&self, pair: Pair) -> Result<(), LogError> {
        let log = self.open()?;
        replace(&log, pair)?;
        log.close()
    }

    fn on_tokio(&self) -> Result<(), LogError> {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let log = Log::open(&Reactor::spawn(&self.peer()?)?, &self.cfg()).await?;
            for line in lines() {
                println!("{}", log.append(line.as_bytes()).await?);
            }
            log.close().await
        })
    }

    fn read(&self, truncate: bool) -> Result<(), LogError> {
        let log = self.open()?;
        let (mut at, end) = log.bounds();
        while let Some(record) = log.read(at)? {
            print(record.at, &record.bytes);
            at = record.next;
        }
        if truncate {
            log.truncate(end)?;
        }
        log.close()
    }
}

impl Server {
    fn cfg(&self) -> ServerCfg {
        let mut cfg = ServerCfg::new(self.addr, &self.path);
        cfg.set_keys(self.keys)
            .set_ring(self.ring)
            .set_fault(self.fault);
        if self.ddio_off {
            cfg.set_ddio(Ddio::Off);
        }
        cfg
    }

    fn serve(&self) -> Result<()> {
        let mut server = self.cfg().listen()?;
        let waker = server.waker();
        let mut signals = signal_hook::iterator::Signals::new([libc::SIGINT, libc::SIGTERM])?;
        std::thread::spawn(move || signals.forever().for_each(|_| waker.wake()));
        println!("serving on {}", self.addr);
        server.serve(|served| log::info!("{served}"))?;
        Ok(())
    }

    fn verify(&self, key: u64) -> Result<()> {
        let stored = self.cfg().stored(key)?;
        for (at, record) in stored.records() {
            print(at, record);
        }
        let (head, tail, header) = (stored.head, stored.tail, stored.header);
        let list = stored.list;
        println!("head {head}, {tail:?}, {header:?}, {list:?}");
        Ok(())
    }
}

fn main() -> Result<()> {
    env_logger::init();
    match Command::parse() {
        Command::Serve(server) => server.serve(),
        Command::Verify { server, key } => server.verify(key),
        Command::Append {
            writer,
            tokio: true,
            ..
        } => writer.run(Writer::on_tokio),
        Command::Append {
            writer,
            tokio: false,
            replace,
        } => writer.run(|writer| writer.on_threads(replace)),
        Command::Replace { writer, servers } => writer.run(|writer| writer.replace(servers)),
        Command::Read { writer, truncate } => writer.run(|writer| writer.read(truncate)),
    }
}

fn replace(log: &blocking::Log, (old, new): Pair) -> Result<(), LogError> {
    log.replace(old, new)?;
    println!("replaced {old} by {new}");
    Ok(())
}

fn print(at: u64, record: &[u8]) {
    println!("{at} {}", String::from_utf8_lossy(record));
}

fn lines() -> impl Iterator<Item = String> {
    io::stdin().lock().lines().map_while(Result::ok)
}
