//! A client stands still with writes in flight, and its server cuts it off meanwhile: after the
//! thaw none of its writes lands. Without the cut-off bytes change, so the test can fail.
//!
//! A frozen host's packets are held in it: its device has more in the send queues than it sends at
//! a time. The packets that its neighbour sends to it stay in the link's socket, which has room
//! for the few acknowledgements and the disconnect.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::{LIMIT, Scenario, Test};
use crate::process::Remote;

const SERVER: [&str; 2] = ["10.77.0.2", "7206"];
/// The client writes for so many seconds, unless it is cut off.
const SECONDS: [&str; 2] = ["30", "6"];

pub(super) fn scenarios<'a>() -> [(&'static str, Scenario<'a>); 2] {
    [
        ("a frozen client that is cut off", Test::cuts_off),
        ("a frozen client that is kept", Test::keeps),
    ]
}

impl Test<'_> {
    /// Not a byte changes after the cut-off.
    fn cuts_off(&mut self, _: &str) -> Result<String> {
        let rounds = if self.long { 100 } else { 5 };
        let (server, client) = self.freezes_with_writes(rounds, "cut", SECONDS[0])?;
        let changed = numbers(&server, "changed")?;
        ensure!(changed == vec![0; rounds], "bytes changed: {changed:?}");
        let in_flight = numbers(&client, "in flight")?;
        let truly = in_flight.len() == rounds && !in_flight.contains(&0);
        ensure!(truly, "nothing was in flight: {in_flight:?}");
        let mut took = numbers(&server, "silent")?;
        took.sort_unstable();
        let [median, most] = [rounds / 2, rounds - 1].map(|n| took[n]);
        let ms = |us: u64| format!("{}.{}", us / 1000, us / 100 % 10);
        let (median, most) = (ms(median), ms(most));
        Ok(format!(
            "{rounds} of {rounds}; it took {median} ms, at most {most} ms"
        ))
    }

    /// The same without the cut-off.
    fn keeps(&mut self, _: &str) -> Result<String> {
        let (server, _) = self.freezes_with_writes(1, "keep", SECONDS[1])?;
        let changed = numbers(&server, "changed")?;
        ensure!(changed.first() > Some(&0), "no byte changed");
        Ok(format!("{} bytes changed", changed[0]))
    }

    /// Freezes a client that writes, so many times, and thaws it when the server has taken it for
    /// dead. Returns both programs, which have ended.
    fn freezes_with_writes(
        &mut self,
        rounds: usize,
        does: &str,
        seconds: &str,
    ) -> Result<(Remote, Remote)> {
        // That both hosts are there.
        self.serve()?;
        let count = rounds.to_string();
        let mut server = self.start(
            2,
            "cutter",
            &["cut-off", SERVER[0], SERVER[1], &count, does],
        )?;
        server.wait_for("listening", LIMIT)?;
        let flood = ["flood", SERVER[0], SERVER[1], &count, seconds];
        let mut client = self.start(1, "flood", &flood)?;
        for round in 1..=rounds {
            server.wait_for(&format!("written {round}"), LIMIT)?;
            self.hosts.machines.signal(1, Signal::STOP)?;
            // The line arrives during the freeze: the server's host does not stand still.
            let silent = server.wait_for(&format!("silent {round}:"), LIMIT);
            self.hosts.machines.signal(1, Signal::CONT)?;
            silent?;
            server.wait_for(&format!("changed {round}:"), LIMIT)?;
        }
        server.finish(LIMIT)?;
        client.finish(LIMIT)?;
        Ok((server, client))
    }
}

/// The number of each line that begins with this: after its colon.
fn numbers(program: &Remote, begin: &str) -> Result<Vec<u64>> {
    let said = program.said();
    let lines = said.iter().filter(|line| line.starts_with(begin));
    let numbers = lines.map(|line| {
        let (_, rest) = line.split_once(": ").context("no colon")?;
        let number = rest.split(' ').next().unwrap_or_default();
        Ok(number.parse()?)
    });
    numbers.collect()
}
