//! Where the time of a whole run goes: the steps with the longest first, and those whose share has
//! grown since the shares were recorded. Shares are of the sum of all steps, so that they mean the
//! same on a slower machine.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::host::Workspace;

/// The recorded shares, in the clone.
const RECORD: &str = "xtask/steps.txt";
/// Those of the last run, in the folder of logs.
const LAST: &str = "steps.txt";
/// How many steps are printed.
const LONGEST: usize = 12;
/// A share below this, in thousandths, may grow.
const SMALL: u64 = 10;

/// Writes the shares of a run into the folder of logs, and returns the lines to print.
pub(super) fn report(
    workspace: &Workspace,
    steps: &[(String, Duration)],
    run: Duration,
) -> Result<Vec<String>> {
    let of_names = by_name(steps);
    let sum = of_names.values().sum::<Duration>();
    let longest = sorted(&of_names);
    let mut lines = vec![format!(
        "the longest of {} steps ({} s altogether, in {} s):",
        longest.len(),
        sum.as_secs(),
        run.as_secs()
    )];
    for (name, time) in longest.iter().take(LONGEST) {
        lines.push(format!("  {:4} s  {name}", time.as_secs()));
    }
    let path = workspace.root().join(RECORD);
    let recorded = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let recorded = read(&recorded);
    for (name, time) in &longest {
        let (now, before) = (share(*time, sum), recorded.get(name).copied());
        if let Some(before) = before.filter(|before| has_grown(*before, now)) {
            lines.push(format!(
                "  grown: {name} has {now} ‰ of the time, and had {before} ‰"
            ));
        } else if before.is_none() && now >= SMALL && !recorded.is_empty() {
            lines.push(format!("  new: {name} has {now} ‰ of the time"));
        }
    }
    fs::write(workspace.log_file(LAST)?, written(&longest, sum, run))?;
    Ok(lines)
}

/// Steps of one name count together: some guests boot more than once.
fn by_name(steps: &[(String, Duration)]) -> BTreeMap<&str, Duration> {
    let mut all = BTreeMap::new();
    for (name, time) in steps {
        *all.entry(&**name).or_default() += *time;
    }
    all
}

fn sorted<'a>(steps: &BTreeMap<&'a str, Duration>) -> Vec<(&'a str, Duration)> {
    let mut all: Vec<_> = steps.iter().map(|(name, time)| (*name, *time)).collect();
    all.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    all
}

/// In thousandths.
fn share(time: Duration, sum: Duration) -> u64 {
    (1000.0 * time.as_secs_f64() / sum.as_secs_f64().max(1e-9)).round() as u64
}

/// By a quarter or more.
fn has_grown(before: u64, now: u64) -> bool {
    now >= SMALL && 4 * now >= 5 * before
}

/// The text of a record: lines of a share and a name.
fn written(steps: &[(&str, Duration)], sum: Duration, run: Duration) -> String {
    let mut text = format!(
        "# The shares of the steps of `cargo xtask test` in the sum of their times, in thousandths. A whole\n\
         # run writes this file as target/xtask/logs/{LAST}.\n\
         # {}; {} s altogether, in {} s\n",
        machine(),
        sum.as_secs(),
        run.as_secs()
    );
    for (name, time) in steps {
        let _ = writeln!(text, "{:3} {name}", share(*time, sum));
    }
    text
}

fn read(text: &str) -> BTreeMap<&str, u64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let entries = lines.filter_map(|line| line.trim_start().split_once(' '));
    entries
        .filter_map(|(share, name)| Some((name, share.parse().ok()?)))
        .collect()
}

/// The name of the processor, and how many there are.
fn machine() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let name = name.map_or("a machine without a name", |name| {
        name.trim_start_matches([' ', '\t', ':'])
    });
    let count = available_parallelism().map_or(0, usize::from);
    format!("{name}, {count} processors")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, seconds: u64) -> (String, Duration) {
        (name.to_owned(), Duration::from_secs(seconds))
    }

    #[test]
    fn a_record_is_read_as_it_is_written() {
        let steps = [step("a b", 30), step("c", 60), step("a b", 10)];
        let of_names = by_name(&steps);
        let (sum, longest) = (Duration::from_secs(100), sorted(&of_names));
        assert_eq!(longest[0].0, "c");
        let text = written(&longest, sum, Duration::from_secs(70));
        assert!(text.contains("; 100 s altogether, in 70 s\n"), "{text}");
        assert_eq!(read(&text), BTreeMap::from([("a b", 400), ("c", 600)]));
    }

    #[test]
    fn a_share_that_has_grown_by_a_quarter_is_named() {
        assert!(has_grown(40, 50) && has_grown(0, 10));
        assert!(!has_grown(40, 49) && !has_grown(5, 9));
    }
}
