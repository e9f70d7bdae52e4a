//! A replica of the replicated log is replaced under load, and hosts lose their power meanwhile.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;

use super::{LIMIT, LONG, METHODS, PATIENCE, REPLICAS, SHORT, SPARE, Test};

/// As many records as a pipe has room for.
const RECORDS: u64 = 600;
/// The last replica is replaced. It is on host 2.
const OLD: &str = REPLICAS[2].1;
const ROUNDS: u64 = 20;
/// The power is cut at most so long after the begin of the change: it takes less, and some cuts come
/// after it.
const LATEST: u64 = 2_000;

/// Without a power cut: each record is acknowledged, and the last ones without the old replica.
pub(super) fn once(test: &mut Test<'_>, method: &str) -> Result<String> {
    let mut log = test.new_log(method)?;
    start_spare(test)?;
    let mut writer = test.writer(&mut log, 1, LONG)?;
    log.append(&mut writer, 20)?;
    log.close(writer)?;
    let mut writer = test.writer_with(&mut log, 1, LONG, &["--replace", &change()])?;
    log.feed(&mut writer, RECORDS)?;
    writer.program.wait_for("replaced ", PATIENCE)?;
    test.kill(2, &format!("replicated-log serve {OLD}"))?;
    test.replicas.running[2] = None;
    log.append(&mut writer, 50)?;
    log.close(writer)?;
    test.check_and(&mut log, 2, &["--follow"])?;
    Ok(format!("{} records", log.acknowledged.len()))
}

/// Host 2 with two replicas, or both hosts, lose their power at another moment of each change. The
/// next writer finds each acknowledged record, and the change is finished or undone.
pub(super) fn twenty(test: &mut Test<'_>, _: &str) -> Result<String> {
    let mut records = 0;
    for round in 0..ROUNDS {
        let mut log = test.new_log(METHODS[round as usize % 2])?;
        start_spare(test)?;
        let mut writer = test.writer(&mut log, 1, LONG)?;
        log.append(&mut writer, 20)?;
        log.close(writer)?;
        let mut writer = test.writer_with(&mut log, 1, SHORT, &["--replace", &change()])?;
        log.feed(&mut writer, RECORDS)?;
        writer.wait(1)?;
        sleep(Duration::from_millis(round * 739 % LATEST));
        let off: &[u8] = if round % 2 == 0 { &[2] } else { &[2, 1] };
        off.iter()
            .try_for_each(|host| test.hosts.machines.cut(*host))?;
        log.note(&writer);
        drop(writer);
        off.iter().try_for_each(|host| test.boot(*host))?;
        test.start_replicas()?;
        start_spare(test)?;
        // A writer that still runs is cut off.
        test.check_and(&mut log, 2, &["--follow"])?;
        let mut writer = test.writer_with(&mut log, 1, LONG, &["--follow"])?;
        log.append(&mut writer, 20)?;
        log.close(writer)?;
        test.check_and(&mut log, 1, &["--follow"])?;
        records += log.acknowledged.len();
    }
    Ok(format!(
        "{ROUNDS} changes, {records} records acknowledged, 0 lost"
    ))
}

fn change() -> String {
    format!("{OLD}={}", SPARE.1)
}

fn start_spare(test: &mut Test<'_>) -> Result<()> {
    if test.replicas.spare.is_none() {
        let mut spare = test.start_replica(SPARE)?;
        spare.wait_for("serving on", LIMIT)?;
        test.replicas.spare = Some(spare);
    }
    Ok(())
}
