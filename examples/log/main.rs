//! Where the log goes: the library hands its messages to the `log` crate, and the program chooses
//! their destination. Here an ordinary logger gets them first, and then one of our own.
//!
//! ```text
//! log
//! ```
//!
//! # Differences from librpma's
//!
//! * No message goes to syslog, and the lines about syslog are not printed.
//! * The level NOTICE is `info`, and the numbers of levels are those of the `log` crate.
//! * A message names its module. In C, it names its function.

use std::process::ExitCode;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, anyhow};
use log::{LevelFilter, Log, Metadata, Record};
use rpma::PeerCfg;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    log::set_logger(&*LOGGER).map_err(|error| anyhow!("{error}"))?;
    // More detailed messages are not even made. Without this there are no messages.
    log::set_max_level(LevelFilter::Debug);

    println!("Let's write messages to stderr");
    do_something()?;

    println!("Let's use custom log function to write messages to stderr");
    LOGGER.custom.store(true, Ordering::Relaxed);
    do_something()
}

fn do_something() -> Result<()> {
    // The program's own message …
    log::info!("Just a notice");
    log::warn!("Important warning about value: {}", 720401);
    log::error!("Error due to order {:x}", 102);

    // … and the library's: the declaration of a peer is worth a line.
    PeerCfg::from_descriptor(&PeerCfg::new().get_descriptor())?;
    Ok(())
}

/// A process has one logger for all its life. This one can change its mind.
static LOGGER: LazyLock<Logger> = LazyLock::new(|| Logger {
    ordinary: env_logger::Builder::new()
        .filter_level(LevelFilter::Debug)
        .format_timestamp(None)
        .build(),
    custom: AtomicBool::new(false),
});

struct Logger {
    ordinary: env_logger::Logger,
    /// Whether messages go to [`custom_log`] instead.
    custom: AtomicBool,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.ordinary.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        match self.custom.load(Ordering::Relaxed) {
            true => custom_log(record),
            false => self.ordinary.log(record),
        }
    }

    fn flush(&self) {}
}

/// Writes a message in our own way. Its level is 1 (error) to 5.
fn custom_log(record: &Record<'_>) {
    eprintln!("Custom log handling:");
    if let (Some(file), Some(line), Some(module)) =
        (record.file(), record.line(), record.module_path())
    {
        eprintln!("{file} {line:4} {module}:");
    }
    eprintln!("level: {} {}", record.level() as usize, record.args());
}
