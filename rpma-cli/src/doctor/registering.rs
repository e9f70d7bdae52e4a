//! Registering memory: what the limit of locked memory really permits.

use rpma::{AlignedBuf, Mr, MrUsage, Peer};

use super::opened::Opened;
use super::{Exam, remedies};
use crate::facts::LockedMemory;
use crate::report::Finding;

const CHECK: &str = "locked memory";

/// What a usual program registers, and the least that is of use.
const USUAL: usize = 64 << 20;
const LEAST: usize = 1 << 20;

/// Registers ordinary memory on each device, for a moment.
pub(super) fn locked_memory(exam: &mut Exam<'_>) -> Vec<Finding> {
    let limit = describe(exam.host.facts.locked_memory);
    if exam.devices.is_empty() {
        return vec![Finding::unseen(
            CHECK,
            format!("{limit}; no device to register memory with"),
        )];
    }
    let devices = exam.devices.iter();
    devices.map(|device| finding(device, &limit)).collect()
}

fn finding(device: &Opened, limit: &str) -> Finding {
    let name = device.name();
    let mebibytes = |len: usize| len >> 20;
    let Err(error) = register(&device.peer, USUAL) else {
        let found = format!(
            "{} MiB were registered on {name}; {limit}",
            mebibytes(USUAL)
        );
        return Finding::good(CHECK, found);
    };
    let (reason, remedy) = remedies::of_registering(&error, None);
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
