//! Hosts of the replicated log that lose their power, and boot again.

use anyhow::{Context, Result, ensure};

use super::{LONG, Log, METHODS, PATIENCE, READING, REPLICAS, SERVER, SHORT, Test, Writer};

/// The hosts that lose their power, and where the writer is meanwhile.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// Host 2, with two replicas: the writer waits for them.
    Quorum,
    /// Host 1, with one replica: the writer goes on without it.
    One,
    /// Host 1, with one replica and the writer: the next writer goes on without it.
    Writer,
    /// Both, and all that runs there.
    All,
}

/// The records of a writer, as many as a pipe has room for. At most half of them are awaited before
/// the power is cut.
const RECORDS: u64 = 600;
const CUTS: [Cut; 4] = [Cut::Quorum, Cut::One, Cut::Writer, Cut::All];
/// Five power cuts each.
const ROUNDS: u64 = 10;

/// By one method the writer loses two replicas, and its limit passes before they are back. By the
/// other one it loses one, and no call fails.
pub(super) fn one(test: &mut Test<'_>, method: &str) -> Result<String> {
    let mut log = test.new_log(method)?;
    if method == READING {
        unknown(test, &mut log)?;
    } else {
        cut(test, &mut log, Cut::One, 30)?;
    }
    test.check_log(&mut log, 1)?;
    Ok(format!("{} records", log.acknowledged.len()))
}

/// The outcome of the record that waits for two copies is unknown.
fn unknown(test: &mut Test<'_>, log: &mut Log) -> Result<()> {
    let mut writer = test.writer(log, 1, SHORT)?;
    log.feed(&mut writer, RECORDS)?;
    writer.wait(50)?;
    test.hosts.machines.cut(2)?;
    writer.program.wait_for("is unknown", PATIENCE)?;
    log.note(&writer);
    test.boot(2)?;
    test.start_replicas()
}

/// Cuts the power in the middle of a writer's work, when so many records are acknowledged. In the
/// end all hosts are back, and all replicas serve.
fn cut(test: &mut Test<'_>, log: &mut Log, which: Cut, after: usize) -> Result<()> {
    let on = if let Cut::One = which { 2 } else { 1 };
    let mut writer = test.writer(log, on, LONG)?;
    log.feed(&mut writer, RECORDS)?;
    writer.wait(after)?;
    let off: &[u8] = match which {
        Cut::Quorum => &[2],
        Cut::One | Cut::Writer => &[1],
        Cut::All => &[1, 2],
    };
    off.iter()
        .try_for_each(|host| test.hosts.machines.cut(*host))?;
    let survivor = match which {
        Cut::Quorum => Some(writer),
        Cut::One => Some(goes_on(log, writer)?),
        Cut::Writer => Some(next_writer(test, log, &writer)?),
        Cut::All => {
            log.note(&writer);
            None
        }
    };
    off.iter().try_for_each(|host| test.boot(*host))?;
    test.start_replicas()?;
    if let Some(mut writer) = survivor {
        log.append(&mut writer, 20)?;
        log.note(&writer);
        // The first one of a host that was away.
        let back = REPLICAS.iter().position(|(host, ..)| off.contains(host));
        test.wait_for_replica(log, back.context("it has one")?)?;
        log.close(writer)?;
    }
    Ok(())
}

/// Two replicas are there.
fn goes_on(log: &mut Log, mut writer: Writer) -> Result<Writer> {
    log.append(&mut writer, 50)?;
    Ok(writer)
}

/// The records are all on the two replicas that are there.
fn next_writer(test: &mut Test<'_>, log: &mut Log, dead: &Writer) -> Result<Writer> {
    log.note(dead);
    test.check_log(log, 2)?;
    let writer = test.writer(log, 2, LONG)?;
    goes_on(log, writer)
}

/// Fifty power cuts of one log, at places that differ, and at least 10,000 acknowledged records. Each
/// time the next writer finds all.
pub(super) fn fifty(test: &mut Test<'_>, _: &str) -> Result<String> {
    let mut log = test.new_log(SERVER)?;
    let (mut cuts, mut records) = (0, 0);
    for round in 0..ROUNDS {
        METHODS[round as usize % 2].clone_into(&mut log.method);
        for (n, which) in (0..).zip(CUTS) {
            let after = (4 * round + n) * 37 % (RECORDS / 2) + 1;
            cut(test, &mut log, which, after as usize)?;
            cuts += if let Cut::All = which { 2 } else { 1 };
            test.check_log(&mut log, 1 + (round % 2) as u8)?;
        }
        records += log.acknowledged.len();
        // The ring has room for two rounds, and is used again after that.
        test.check_and(&mut log, 2, &["--truncate"])?;
        log.acknowledged.clear();
    }
    let counts = (cuts, records);
    ensure!(
        cuts == 50 && records >= 10_000,
        "{counts:?} cuts and records"
    );
    Ok(format!(
        "{cuts} cuts, {records} records acknowledged, 0 lost"
    ))
}
