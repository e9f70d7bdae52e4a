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
    let facts = &exam.host.facts;
    let limit = describe(facts.locked_memory);
    if exam.devices.is_empty() {
        return without_device(facts, &limit);
    }
    let devices = exam.devices.iter();
    Finding::of_devices(
        devices
            .map(|device| finding(device, facts, &limit))
            .collect(),
    )
}

/// A limit that is too low is known before a device is.
fn without_device(facts: &Facts, limit: &str) -> Vec<Finding> {
    let too_low_for = |len| facts.locked_memory.too_low_for(len).is_some();
    let remedy = remedies::memlock(facts);
    let finding = if too_low_for(LEAST) {
        let found = format!("{limit}. Not even {} MiB can be registered", LEAST >> 20);
        Finding::bad(CHECK, found, remedy)
    } else if too_low_for(USUAL) {
        Finding::note(CHECK, limit).with_remedy(remedy)
    } else {
        return Vec::new();
    };
    vec![finding]
}

fn finding(device: &Opened, facts: &Facts, limit: &str) -> Finding {
    let (name, usual, least) = (device.name(), USUAL >> 20, LEAST >> 20);
    let Err(error) = register(&device.peer, USUAL) else {
        let found = format!("{usual} MiB were registered on {name}; {limit}");
        return Finding::good(CHECK, found);
    };
    let (reason, remedy) = remedies::of_registering(&error, None, facts);
    let found = format!("{usual} MiB cannot be registered on {name}; {limit}: {reason}");
    match register(&device.peer, LEAST) {
        Ok(()) => Finding::note(CHECK, found).with_remedy(remedy),
        Err(_) => {
            let found = format!("{found}. Not even {least} MiB can be");
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
    match locked.limit {
        _ if locked.ignored => "no limit (CAP_IPC_LOCK)".into(),
        None => "no limit".into(),
        Some(bytes) => format!("the limit is {} KiB", bytes >> 10),
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
            (Some(64 << 10), false, Some(Verdict::Bad)),
            (Some(8 << 20), false, Some(Verdict::Note)),
            (Some(1 << 30), false, None),
            (Some(64 << 10), true, None),
            (None, false, None),
        ] {
            let facts = Facts {
                locked_memory: LockedMemory { limit, ignored },
                ..Facts::default()
            };
            let found = without_device(&facts, "the limit");
            let verdicts: Vec<_> = found.iter().map(|finding| finding.verdict).collect();
            assert_eq!(verdicts, Vec::from_iter(verdict), "{limit:?}");
            let remedy = Some(remedies::memlock(&facts));
            assert!(found.iter().all(|finding| finding.remedy == remedy));
        }
    }
}
