//! The memory that was given: its kind, its alignment, and its registration.

use std::path::Path;

use rpma::pmem::{Domain, Platform, PmemKind, PmemMap};
use rpma::{Mr, MrUsage, Peer};

use super::opened::Opened;
use super::{Exam, remedies};
use crate::args::Range;
use crate::facts::{self, DaxSize, Facts, release_number};
use crate::report::Finding;

const CHECK: &str = "memory";

/// The most that is registered of it.
const PART: usize = 64 << 20;
/// Since then, the kernel pins no ordinary file for writing.
const NO_FILES: (u32, u32) = (6, 5);

/// Maps the memory, and looks at it. Nothing is written.
pub(super) fn open(exam: &mut Exam<'_>) -> Vec<Finding> {
    let Some(path) = exam.args.memory.as_deref() else {
        return vec![not_given(exam)];
    };
    let map = match map(path, exam.args.range) {
        Ok(map) => map,
        Err(finding) => return vec![finding],
    };
    let mut findings = vec![kind(exam, path, &map)];
    findings.extend(alignment(exam, path));
    let domain = match Platform::detect(&map) {
        Ok(platform) => {
            findings.push(persistence_domain(&platform));
            findings.extend(unsafe_shutdowns(&platform, map.kind()));
            platform.domain()
        }
        Err(error) => {
            findings.push(Finding::unseen("persistence domain", error.to_string()));
            Domain::Unknown
        }
    };
    findings.extend(registrations(exam, &map));
    exam.domain = Some(domain);
    findings
}

/// Maps all of it, and then only the range: so a wrong path is no wrong range.
fn map(path: &Path, range: Option<Range>) -> Result<PmemMap, Finding> {
    let all = PmemMap::open(path, 1).map_err(|error| {
        let (reason, remedy) = remedies::of_mapping(&error, &path.display().to_string());
        Finding::bad(CHECK, reason, remedy)
    })?;
    let Some(Range { start, end }) = range else {
        return Ok(all);
    };
    PmemMap::open_range(path, start..end)
        .map_err(|error| Finding::bad(CHECK, error.to_string(), remedies::ALIGNMENT))
}

fn not_given(exam: &Exam<'_>) -> Finding {
    let found = "not looked at: ordinary memory loses its data with the power";
    match facts::dax_devices(&exam.host.files).first() {
        Some(path) => {
            let remedy = format!("rpma doctor --memory {path}");
            Finding::note(CHECK, found).with_remedy(remedy)
        }
        None => Finding::note(CHECK, format!("{found}. This host shows no device-DAX"))
            .with_remedy(remedies::DEVICE_DAX),
    }
}

fn kind(exam: &Exam<'_>, path: &Path, map: &PmemMap) -> Finding {
    let found = format!(
        "{} is {} ({} bytes)",
        path.display(),
        article(map.kind()),
        map.len()
    );
    match map.kind() {
        PmemKind::DeviceDax | PmemKind::FsDax => Finding::good(CHECK, found),
        _ => file(&exam.host.facts, found),
    }
}

fn article(kind: PmemKind) -> String {
    match kind {
        PmemKind::DeviceDax => "a device-DAX".into(),
        PmemKind::FsDax => "a file on a DAX file system".into(),
        other => format!("an {other}"),
    }
}

/// An ordinary file is not registered for writing here: before Linux 6.5 that could give it blocks,
/// and afterwards it fails.
fn file(facts: &Facts, found: String) -> Finding {
    let release = facts.kernel.as_deref().and_then(release_number);
    match release.is_some_and(|release| release < NO_FILES) {
        true => {
            let found = format!("{found}: newer kernels than 6.4 do not register it for writing");
            Finding::note(CHECK, found).with_remedy(remedies::DEVICE_DAX)
        }
        false => {
            let found = format!("{found}: Linux 6.5 and newer do not register it for writing");
            Finding::bad(CHECK, found, remedies::DEVICE_DAX)
        }
    }
}

/// Only a device-DAX has one that programs must know.
fn alignment(exam: &Exam<'_>, path: &Path) -> Option<Finding> {
    const CHECK: &str = "alignment";
    let DaxSize { size, align } = facts::dax_size(&exam.host.files, path)?;
    let found = format!("mappings begin and end at multiples of {align} bytes");
    Some(match size % align {
        0 => Finding::good(CHECK, found),
        rest => Finding::note(
            CHECK,
            format!("{found}: the last {rest} bytes cannot be mapped"),
        ),
    })
}

fn persistence_domain(platform: &Platform) -> Finding {
    const CHECK: &str = "persistence domain";
    let found = format!("{}: {}", platform.domain(), platform.source());
    match platform.domain() {
        Domain::CpuCaches | Domain::MemoryController => Finding::good(CHECK, found),
        Domain::Unknown => Finding::note(CHECK, found).with_remedy(remedies::OTHER_DOMAIN),
        _ => Finding::note(CHECK, found),
    }
}

fn unsafe_shutdowns(platform: &Platform, kind: PmemKind) -> Option<Finding> {
    const CHECK: &str = "unsafe shutdowns";
    if !kind.is_pmem() {
        return None;
    }
    Some(match platform.unsafe_shutdowns() {
        Some(count) => {
            Finding::good(CHECK, format!("{count} until now")).with_remedy(remedies::SHUTDOWNS)
        }
        None => Finding::unseen(
            CHECK,
            "its modules show no count, so no program can trust data that was in use",
        ),
    })
}

/// Registers a part of it on each device, for a moment. That changes nothing in persistent memory.
fn registrations(exam: &Exam<'_>, map: &PmemMap) -> Vec<Finding> {
    if exam.devices.is_empty() {
        let found = "no device to register the memory with";
        return vec![Finding::unseen("registration", found)];
    }
    let devices = exam.devices.iter();
    devices
        .filter_map(|device| registration(device, map))
        .collect()
}

fn registration(device: &Opened, map: &PmemMap) -> Option<Finding> {
    const CHECK: &str = "registration";
    if !map.is_pmem() {
        return None;
    }
    let writing = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
    let name = device.name();
    if let Err(error) = register(&device.peer, map, writing) {
        let (reason, remedy) = remedies::of_registering(&error);
        let found = format!("{name} cannot register the memory for writing: {reason}");
        return Some(Finding::bad(CHECK, found, remedy));
    }
    let persistent = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
    Some(match register(&device.peer, map, persistent) {
        Ok(()) => {
            let found =
                format!("{name} can register the memory for writing and for persistent flushes");
            Finding::good(CHECK, found)
        }
        Err(error) => {
            let (reason, remedy) = remedies::of_registering(&error);
            let found = format!(
                "{name} can register the memory for writing, but not for persistent flushes: {reason}"
            );
            Finding::note(CHECK, found).with_remedy(remedy)
        }
    })
}

fn register(peer: &Peer, map: &PmemMap, usage: MrUsage) -> rpma::Result<()> {
    let part = map.part(..map.len().min(PART))?;
    Mr::reg(peer, part, usage)?.dereg()?;
    Ok(())
}
