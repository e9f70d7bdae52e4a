//! Registering memory: what the limit of locked memory really permits.

use rpma::{AlignedBuf, Mr, MrUsage, Peer};

use super::opened::Opened;
use super::{Exam, remedies};
use crate::facts::{Facts, LockedMemory};
use crate::report::Finding;

const CHECK: &str = "locked memory";

/// What a usual program registers, and the least that is of use.
const USUAL: usize = 64 << 20;
const LEAST: usize = 1 << 20;

/// Registers ordinary memory on each device, for a moment.
pub(super) fn locked_memory(exam: &mut Exam<'_>) -> Vec<Finding> {
    let limit = describe(exam.host.facts.locked_memory);
    if exam.devices.is_empty() {
        return vec![without_device(&exam.host.facts, &limit)];
    }
    let devices = exam.devices.iter();
    Finding::of_devices(
        devices
            .map(|device| finding(device, &exam.host.facts, &limit))
            .collect(),
    )
}

/// The limit is known before a device is.
fn without_device(facts: &Facts, limit: &str) -> Finding {
    let found = format!("{limit}; no device to register memory with");
    let too_low_for = |len| facts.locked_memory.too_low_for(len).is_some();
    if too_low_for(LEAST) {
        let found = format!("{found}. Not even {} MiB can be registered", LEAST >> 20);
        Finding::bad(CHECK, found, remedies::memlock(facts))
    } else if too_low_for(USUAL) {
        Finding::note(CHECK, found).with_remedy(remedies::memlock(facts))
    } else {
        Finding::unseen(CHECK, found)
    }
}

fn finding(device: &Opened, facts: &Facts, limit: &str) -> Finding {
    let name = device.name();
    let mebibytes = |len: usize| len >> 20;
    let Err(error) = register(&device.peer, USUAL) else {
        let found = format!(
            "{} MiB were registered on {name}; {limit}",
            mebibytes(USUAL)
        );
        return Finding::good(CHECK, found);
    };
    let (reason, remedy) = remedies::of_registering(&error, None, facts);
    let found = format!(
        "{} MiB cannot be registered on {name}; {limit}: {reason}",
        mebibytes(USUAL)
    );
    match register(&device.peer, LEAST) {
        Ok(()) => Finding::note(CHECK, found).with_remedy(remedy),
        Err(_) => {
            let found = format!("{found}. Not even {} MiB can be", mebibytes(LEAST));
            Finding::bad(CHECK, found, remedy)
        }
    }
}

fn register(peer: &Peer, len: usize) -> rpma::Result<()> {
    let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
    Mr::reg(peer, AlignedBuf::zeroed(len)?, usage)?.dereg()?;
    Ok(())
}

fn describe(locked: LockedMemory) -> String {
    match locked {
        LockedMemory { ignored: true, .. } => "no limit (CAP_IPC_LOCK)".into(),
        LockedMemory { limit: None, .. } => "no limit".into(),
        LockedMemory {
            limit: Some(bytes), ..
        } => format!("the limit is {} KiB", bytes >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;

    /// Promise: a limit that is too low is found without a device.
    #[test]
    fn the_limit_is_judged_without_a_device() {
        for (limit, ignored, verdict) in [
            (Some(64 << 10), false, Verdict::Bad),
            (Some(8 << 20), false, Verdict::Note),
            (Some(1 << 30), false, Verdict::Unseen),
            (Some(64 << 10), true, Verdict::Unseen),
            (None, false, Verdict::Unseen),
        ] {
            let facts = Facts {
                locked_memory: LockedMemory { limit, ignored },
                ..Facts::default()
            };
            let finding = without_device(&facts, "the limit");
            assert_eq!(finding.verdict, verdict, "{limit:?}");
            let has_remedy = finding.remedy == Some(remedies::memlock(&facts));
            assert_eq!(has_remedy, verdict != Verdict::Unseen, "{limit:?}");
        }
    }
}
