//! Idle connections with a keep-alive, each host a client and a server of the other one, with
//! retries that have no end.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::{LIMIT, Test};
use crate::process::{Remote, poll};
use crate::vm::NUMBERS;

pub(super) const NAME: &str = "silent peers are noticed, and idle ones are not dropped";
pub(super) const NAME_OVER_IWARP: &str = "a silent peer is noticed over soft-iWARP";

/// The keep-alive.
const SECONDS: u64 = 6;
/// For the lines of a program to come from its guest.
const REPORTED: Duration = Duration::from_secs(2);
/// The connections of each host: two as a client, two as a server.
const CONNECTIONS: usize = 4;
const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
/// The same hosts' soft-iWARP (init.sh).
const OVER_IWARP: [&str; 2] = ["10.79.0.1", "10.79.0.2"];
const PORT: &str = "7206";

impl Test<'_> {
    /// In a while without traffic no connection ends. Then a host stands still, the network carries
    /// no packets, and a host loses its power. Each connection of a host that is there ends in
    /// time, by its keep-alive, in each kind of wait.
    pub(super) fn keep_alive(&mut self, _: &str) -> Result<String> {
        let idle = if self.long { 600 } else { 2 * SECONDS };
        let frozen = self.frozen(ADDRESSES, idle)?;

        let mut sides = self.hold(ADDRESSES)?;
        for number in NUMBERS {
            self.hosts.machines.net(number, "loss 100%")?;
        }
        // The login for the last one takes a second of silence already.
        let started = Instant::now();
        let parted = silent(&sides, started);
        for number in NUMBERS {
            self.hosts.machines.net(number, "off")?;
        }
        let parted = parted.context("partition")?;
        for side in &mut sides {
            side.finish(LIMIT)?;
        }

        let sides = self.hold(ADDRESSES)?;
        let started = Instant::now();
        self.hosts.machines.cut(2)?;
        let no_power = silent(&sides[..1], started).context("no power")?;
        let dropped = slowest_drop(&sides[0])?;
        Ok(format!(
            "none of {} in {idle} s; noticed after {frozen:.1} s (frozen), {parted:.1} s \
             (partition), {no_power:.1} s (no power) of {SECONDS} s; a drop after that took up to \
             {dropped} ms",
            2 * CONNECTIONS
        ))
    }

    /// As [`keep_alive`](Self::keep_alive), of a host that stands still. There each write and each
    /// message would complete.
    pub(super) fn keep_alive_over_iwarp(&mut self, _: &str) -> Result<String> {
        let frozen = self.frozen(OVER_IWARP, 2 * SECONDS)?;
        Ok(format!("after {frozen:.1} s of {SECONDS} s"))
    }

    /// After so many seconds without traffic, in which no connection ends, a host stands still.
    /// Returns after how many seconds the other one has noticed it.
    fn frozen(&mut self, addresses: [&str; 2], idle: u64) -> Result<f64> {
        self.all_up()?;
        let mut sides = self.hold(addresses)?;
        sleep(Duration::from_secs(idle));
        for side in &sides {
            let gone = ends_of(side);
            ensure!(gone.is_empty(), "while it was idle: {gone:?}");
        }
        let started = Instant::now();
        self.hosts.machines.signal(2, Signal::STOP)?;
        let frozen = silent(&sides[..1], started);
        self.hosts.machines.signal(2, Signal::CONT)?;
        let frozen = frozen.context("frozen")?;
        for side in &mut sides {
            side.finish(LIMIT)?;
        }
        Ok(frozen)
    }

    /// Starts both sides, and waits until all connections are there.
    fn hold(&mut self, addresses: [&str; 2]) -> Result<[Remote; 2]> {
        let seconds = SECONDS.to_string();
        let args = |own: usize| {
            [
                "keep-alive",
                addresses[own],
                addresses[1 - own],
                PORT,
                &seconds,
            ]
        };
        let one = self.start(1, "holder", &args(0))?;
        let two = self.start(2, "holder", &args(1))?;
        for side in [&one, &two] {
            lines(side, "connected: ", LIMIT)?;
        }
        Ok([one, two])
    }
}

/// Waits until every connection of these sides has ended, and sees that each of them did so for
/// silence. Returns after how many seconds.
fn silent(sides: &[Remote], started: Instant) -> Result<f64> {
    let limit = Duration::from_secs(SECONDS) + REPORTED;
    for side in sides {
        lines(side, "gone: ", limit.saturating_sub(started.elapsed()))?;
    }
    let took = started.elapsed().as_secs_f64();
    for line in sides.iter().flat_map(ends_of) {
        let is_silent = line.contains("Silent") && line.contains("timed out");
        ensure!(is_silent, "another reason: {line}");
    }
    Ok(took)
}

/// Waits until a side has dropped its connections, each client's apart and the server's together,
/// and returns the milliseconds of the longest drop.
fn slowest_drop(side: &Remote) -> Result<u64> {
    let drops = CONNECTIONS / 2 + 1;
    let times = || -> Vec<u64> {
        let said = side.said();
        let times = said
            .iter()
            .filter_map(|line| line.strip_prefix("dropped: "));
        times.filter_map(|time| time.parse().ok()).collect()
    };
    let all = poll(LIMIT, || {
        Ok(Some(times()).filter(|times| times.len() == drops))
    })?;
    let all = all.with_context(|| format!("{:?}, and not {drops} drops", side.said()))?;
    Ok(all.into_iter().max().unwrap_or(0))
}

/// Waits until a side has said so of each of its connections.
fn lines(side: &Remote, what: &str, limit: Duration) -> Result<()> {
    let count = || {
        side.said()
            .iter()
            .filter(|line| line.starts_with(what))
            .count()
    };
    let all = poll(limit, || Ok((count() == CONNECTIONS).then_some(())))?;
    all.with_context(|| format!("{:?}, and not {CONNECTIONS} times \"{what}\"", side.said()))
}

fn ends_of(side: &Remote) -> Vec<String> {
    let mut said = side.said();
    said.retain(|line| line.starts_with("gone: "));
    said
}
