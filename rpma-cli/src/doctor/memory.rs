//! The memory that was given: its kind, and its registration.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use rpma::pmem::{Ddio, PmemKind, PmemMap};
use rpma::{Error, Mr, MrUsage};
use rustix::io::Errno;
use rustix::param::page_size;
use rustix::process::geteuid;

use super::opened::Opened;
use super::{Exam, durable, remedies};
use crate::facts::{DaxState, release_number};
use crate::problem::{self, in_words};
use crate::report::{Finding, Verdict};

const CHECK: &str = "memory";
const REGISTRATION: &str = "registration";

/// The most that is registered of it.
const PART: usize = 64 << 20;
/// Since then, the kernel pins few ordinary files for writing.
const FILES_REFUSED: (u32, u32) = (6, 5);
const WRITING: MrUsage = MrUsage::WRITE_DST.union(MrUsage::FLUSH_TYPE_VISIBILITY);
const PERSISTENT: MrUsage = MrUsage::WRITE_DST.union(MrUsage::FLUSH_TYPE_PERSISTENT);

/// Maps the memory, and looks at it. Nothing is written.
pub(super) fn open(exam: &mut Exam<'_>) -> Vec<Finding> {
    let Some(path) = exam.args.memory.as_deref() else {
        let found = "no --memory is given, and ordinary memory loses its data with the power";
        return vec![Finding::note(CHECK, found).with_remedy(exam.other_memory())];
    };
    if let Some(unusable) = unusable(exam, path) {
        return vec![unusable];
    }
    let map = match PmemMap::open(path, 1) {
        Ok(map) => map,
        Err(error) => return vec![not_mapped(exam, path, &error)],
    };
    let mut findings = vec![kind(exam, path, &map), persistence_domain(exam, &map)];
    let registrations = registrations(exam, &map);
    for (index, device) in exam.devices.iter_mut().enumerate() {
        let finding = registrations.get(index).or(registrations.last());
        device.refuses = finding.is_some_and(|finding| finding.verdict == Verdict::Bad);
    }
    findings.extend(Finding::of_devices(registrations));
    exam.memory = Some(map);
    findings
}

/// The modules of memory with a fault. It is bad for the memory that was given.
pub(super) fn modules(exam: &Exam<'_>) -> Vec<Finding> {
    const MODULE: &str = "memory module";
    let facts = &exam.host.facts;
    let path = exam.args.memory.as_deref();
    let region = path.and_then(|path| facts.pmem.device(path)?.region.as_ref());
    let mut findings = Vec::new();
    for dimm in facts
        .pmem
        .dimms
        .iter()
        .filter(|dimm| !dimm.faults.is_empty())
    {
        let (name, faults) = (&dimm.name, dimm.faults.join(", "));
        let found =
            format!("{name} reports {faults}: it may lose data with the power, or has lost some");
        findings.push(
            match region.is_some_and(|region| dimm.regions.contains(region)) {
                true => Finding::bad(MODULE, found, remedies::MODULE),
                false => Finding::note(MODULE, found).with_remedy(remedies::MODULE),
            },
        );
    }
    findings
}

/// A device of the dax bus that no program can map.
fn unusable(exam: &Exam<'_>, path: &Path) -> Option<Finding> {
    let dax = exam.host.facts.pmem.device(path)?;
    let why = match dax.state {
        // The library opens it.
        DaxState::Usable => return None,
        DaxState::NoFile => "has no file in /dev",
        DaxState::SystemRam => {
            "is ordinary memory of the kernel (mode system-ram, driver kmem), and no program can map it"
        }
        DaxState::NotLoaded => {
            "cannot be mapped without the driver device_dax, which is not loaded"
        }
        DaxState::Disabled => "is disabled: no driver has it",
        DaxState::Empty => "is the empty seed of a region, and has no memory",
        DaxState::Gone => "is a file without a device",
    };
    let found = format!("{} {why}", dax.path());
    Some(Finding::bad(CHECK, found, exam.other_memory()))
}

fn not_mapped(exam: &Exam<'_>, path: &Path, error: &Error) -> Finding {
    let (facts, name) = (&exam.host.facts, path.display().to_string());
    let reason = problem::reason(error);
    let (found, remedy) = match remedies::kind(error) {
        // The rest is the library's remedy, which does not depend on this host.
        None => {
            let found = reason.split(": ").next().unwrap_or(&reason).to_owned();
            let file = remedies::file_with_size(facts, &exam.wanted_memory(), path);
            (found, file)
        }
        Some(ErrorKind::NotFound) => (format!("{name} does not exist"), None),
        Some(ErrorKind::PermissionDenied) => {
            let user = geteuid().as_raw().to_string();
            let opened = File::options().read(true).write(true).open(path);
            let rule = Some(Errno::PERM.raw_os_error());
            let by_rule = opened.is_err_and(|error| error.raw_os_error() == rule);
            let rights = remedies::memory_rights(&name, &user, by_rule, facts);
            (reason, Some(rights))
        }
        Some(_) => (reason, problem::remedy(error).map(Into::into)),
    };
    Finding::bad(CHECK, found, remedy.unwrap_or_else(|| exam.other_memory()))
}

/// A device-DAX can be of volatile memory, such as that of CXL.
fn is_persistent(exam: &Exam<'_>, map: &PmemMap) -> bool {
    let path = exam.args.memory.as_deref();
    let device = path.and_then(|path| exam.host.facts.pmem.device(path));
    map.is_pmem() && device.is_none_or(|device| device.is_persistent)
}

fn kind(exam: &Exam<'_>, path: &Path, map: &PmemMap) -> Finding {
    let kind = match map.kind() {
        PmemKind::DeviceDax => "a device-DAX".into(),
        PmemKind::FsDax => "a file on a DAX file system".into(),
        other => format!("an {other}"),
    };
    let found = format!("{} is {kind} ({} bytes)", path.display(), map.len());
    if is_persistent(exam, map) {
        return Finding::good(CHECK, found);
    }
    Finding::note(CHECK, format!("{found}, and no persistent memory"))
        .with_remedy(exam.other_memory())
}

/// Good if the processor can make data durable there. Without a device, persistent memory is not
/// judged.
fn persistence_domain(exam: &Exam<'_>, map: &PmemMap) -> Finding {
    const CHECK: &str = "persistence domain";
    let found = match map.persistence_domain() {
        Ok(found) => found,
        Err(error) => return Finding::unseen(CHECK, in_words(error)),
    };
    let device = exam.devices.first();
    match device.map(|device| durable::detected(device, map, Ddio::On)) {
        Some(cfg) if cfg.get_processor_persists() => Finding::good(CHECK, found),
        Some(_) if is_persistent(exam, map) => {
            let remedy = remedies::other_domain(&exam.host.facts);
            Finding::note(CHECK, found).with_remedy(remedy)
        }
        None if map.is_pmem() => {
            Finding::unseen(CHECK, format!("{found}; no device to judge it with"))
        }
        _ => Finding::note(CHECK, found),
    }
}

/// Registers a part of it on each device, for a moment. That changes nothing in persistent memory.
/// There is one finding for each device, or only one for all of them: not all of the memory can be
/// registered with the limit of locked memory. Registering gigabytes would take long.
fn registrations(exam: &Exam<'_>, map: &PmemMap) -> Vec<Finding> {
    let devices = exam.devices.iter();
    let registration = |device| registration(exam, device, map);
    let tried: Vec<_> = devices.map(registration).collect();
    let locked = exam.host.facts.locked_memory;
    let limit = match map.kind() {
        // Its pages are not locked.
        PmemKind::FsDax => None,
        _ => locked.too_low_for(map.len()),
    };
    let mut verdicts = tried.iter().map(|finding| finding.verdict);
    let is_good = tried.is_empty() || verdicts.any(|verdict| verdict != Verdict::Bad);
    let Some(limit) = limit.filter(|_| is_good) else {
        return tried;
    };
    // In the unit of `ulimit -l`.
    let found = format!(
        "the memory has {} KiB, and this process may lock only {} KiB, with a page of rpma's own: a program that \
         registers all of it fails",
        map.len().div_ceil(1024),
        limit >> 10
    );
    let remedy = format!("{}; or map a part", remedies::memlock(&exam.host.facts));
    vec![Finding::bad(REGISTRATION, found, remedy)]
}

fn registration(exam: &Exam<'_>, device: &Opened, map: &PmemMap) -> Finding {
    let (name, facts) = (device.name(), &exam.host.facts);
    let release = facts.kernel.as_deref().and_then(release_number);
    if !map.is_pmem() && release.is_some_and(|release| release < FILES_REFUSED) {
        let found = "not tried on an ordinary file before Linux 6.5, because it could give the file blocks. Newer \
                     kernels refuse most files";
        return Finding::unseen(REGISTRATION, found);
    }
    let (memory, most) = match map.is_pmem() {
        true => ("the memory", PART),
        false => ("the file", page_size()),
    };
    let register = |usage| -> rpma::Result<()> {
        let part = map.part(..map.len().min(most))?;
        Mr::reg(&device.peer, part, usage)?.dereg().map(drop)
    };
    // Each device registers a device-DAX.
    let other = || (map.kind() != PmemKind::DeviceDax).then(|| exam.other_memory());
    let able = format!("{name} can register {memory} for writing");
    if let Err(error) = register(WRITING) {
        let (reason, remedy) = remedies::of_registering(&error, other(), facts);
        let found = format!("{name} cannot register {memory} for writing: {reason}");
        return Finding::bad(REGISTRATION, found, remedy);
    }
    if !map.is_pmem() {
        let lost = "No flush makes its data durable: they are lost with the power";
        return Finding::note(REGISTRATION, format!("{able}. {lost}"));
    }
    let Err(error) = register(PERSISTENT) else {
        return Finding::good(REGISTRATION, format!("{able} and for persistent flushes"));
    };
    let (reason, remedy) = remedies::of_registering(&error, other(), facts);
    let found = format!("{able}, but not for persistent flushes: {reason}");
    Finding::note(REGISTRATION, found).with_remedy(remedy)
}
