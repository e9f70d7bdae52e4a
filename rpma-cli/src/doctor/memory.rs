//! The memory that was given: its kind, its alignment, and its registration.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rpma::pmem::{Ddio, PmemKind, PmemMap};
use rpma::{Error, Mr, MrUsage, Peer};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::param::page_size;

use super::opened::Opened;
use super::{Exam, durable, remedies};
use crate::args::Range;
use crate::facts::{self, DaxSize, DaxState, Files, release_number};
use crate::problem::{self, in_words};
use crate::report::{Finding, Verdict};

const CHECK: &str = "memory";
const REGISTRATION: &str = "registration";

/// The most that is registered of it.
const PART: usize = 64 << 20;
/// Since then, the kernel pins few ordinary files for writing.
const FILES_REFUSED: (u32, u32) = (6, 5);
const WRITING: MrUsage = MrUsage::WRITE_DST.union(MrUsage::FLUSH_TYPE_VISIBILITY);

/// Maps the memory, and looks at it. Nothing is written.
pub(super) fn open(exam: &mut Exam<'_>) -> Vec<Finding> {
    let Some(path) = exam.args.memory.as_deref() else {
        return vec![not_given(exam)];
    };
    let map = match map(exam, path, exam.args.range) {
        Ok(map) => map,
        Err(finding) => return vec![finding],
    };
    let mut findings = vec![kind(exam, path, &map)];
    findings.extend(alignment(exam, path));
    findings.push(persistence_domain(exam, &map));
    findings.extend(unsafe_shutdowns(&map));
    let registrations = registrations(exam, path, &map);
    for (index, device) in exam.devices.iter_mut().enumerate() {
        let finding = registrations.get(index).or(registrations.last());
        device.refuses = finding.is_some_and(|finding| finding.verdict == Verdict::Bad);
    }
    findings.extend(Finding::of_devices(registrations));
    exam.memory = Some(map);
    findings
}

/// Maps all of it, and then only the range: so a wrong path is no wrong range.
fn map(exam: &Exam<'_>, path: &Path, range: Option<Range>) -> Result<PmemMap, Finding> {
    let name = path.display().to_string();
    if let Some(unusable) = unusable(exam, &name) {
        return Err(unusable);
    }
    let all = PmemMap::open(path, 1).map_err(|error| {
        let files = &exam.host.files;
        let (wanted, other) = (exam.wanted_memory(), exam.other_memory());
        let (reason, remedy) = match wrong(path, files, &error) {
            Some(Wrong::Empty(found)) if wanted.takes_files == Some(true) => {
                (found, remedies::size(&name))
            }
            Some(Wrong::Directory(found)) => {
                let file = remedies::in_directory(&exam.host.facts, &wanted, &name);
                (found, file.unwrap_or(other))
            }
            Some(Wrong::Empty(found) | Wrong::Other(found)) => (found, other),
            None => {
                let user = facts::user_name(files);
                let rights = remedies::memory_rights(&name, &user, &exam.host.facts, &error);
                remedies::of_mapping(&error, rights, other)
            }
        };
        Finding::bad(CHECK, reason, remedy)
    })?;
    let Some(Range { start, end }) = range else {
        return Ok(all);
    };
    PmemMap::open_range(path, start..end)
        .map_err(|error| Finding::bad(CHECK, problem::reason(&error), remedies::ALIGNMENT))
}

/// A device of the dax bus that no program can map: its remedy, or that for other memory.
fn unusable(exam: &Exam<'_>, path: &str) -> Option<Finding> {
    let facts = &exam.host.facts;
    let dax = facts.pmem.dax.iter().find(|dax| dax.path() == path)?;
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
    let remedy = match remedies::device_remedy(dax, facts) {
        Some(remedy)
            if dax.is_persistent && facts.pmem.in_state(DaxState::Usable).next().is_none() =>
        {
            remedy
        }
        _ => exam.other_memory(),
    };
    Some(Finding::bad(CHECK, format!("{path} {why}"), remedy))
}

/// A path that leads to no memory.
enum Wrong {
    /// An empty file.
    Empty(String),
    Directory(String),
    Other(String),
}

/// Why a path cannot be mapped, if its kind is the reason. The messages of the library name
/// remedies, which do not depend on this host.
fn wrong(path: &Path, files: &Files, error: &Error) -> Option<Wrong> {
    let name = path.display();
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Some(Wrong::Other(format!("{name} does not exist")));
        }
        Err(_) => return None,
    };
    let kind = metadata.file_type();
    if kind.is_file() {
        let is_empty = metadata.len() == 0;
        return is_empty.then(|| Wrong::Empty(format!("{name} is empty")));
    }
    // Without sysfs, the kind of a character device is unknown.
    let is_known = matches!(error, Error::InvalidArgument(_));
    if kind.is_dir() {
        return Some(Wrong::Directory(format!("{name} is a directory")));
    }
    let kind = if kind.is_block_device() {
        "a block device"
    } else if !kind.is_char_device() {
        "a pipe or a socket"
    } else if is_known && facts::dax_size(files, path).is_none() {
        "a character device and no device-DAX"
    } else {
        return None;
    };
    Some(Wrong::Other(format!("{name} is {kind}")))
}

fn not_given(exam: &Exam<'_>) -> Finding {
    let found = "not looked at: ordinary memory loses its data with the power";
    let mut usable = exam.host.facts.pmem.in_state(DaxState::Usable);
    let found = if usable.next().is_none() {
        format!("{found}. This host shows no device-DAX that a program can map")
    } else {
        found.into()
    };
    Finding::note(CHECK, found).with_remedy(exam.other_memory())
}

fn kind(exam: &Exam<'_>, path: &Path, map: &PmemMap) -> Finding {
    let found = format!(
        "{} is {} ({} bytes)",
        path.display(),
        article(map.kind()),
        map.len()
    );
    if map.is_pmem() {
        Finding::good(CHECK, found)
    } else {
        Finding::note(CHECK, format!("{found}, and no persistent memory"))
            .with_remedy(exam.other_memory())
    }
}

fn article(kind: PmemKind) -> String {
    match kind {
        PmemKind::DeviceDax => "a device-DAX".into(),
        PmemKind::FsDax => "a file on a DAX file system".into(),
        other => format!("an {other}"),
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
        Some(_) if map.is_pmem() => Finding::note(CHECK, found).with_remedy(remedies::OTHER_DOMAIN),
        None if map.is_pmem() => {
            Finding::unseen(CHECK, format!("{found}; no device to judge it with"))
        }
        _ => Finding::note(CHECK, found),
    }
}

fn unsafe_shutdowns(map: &PmemMap) -> Option<Finding> {
    const CHECK: &str = "unsafe shutdowns";
    if !map.is_pmem() {
        return None;
    }
    // The persistence domain has an error as well.
    Some(match map.unsafe_shutdowns().ok()? {
        Some(count) => {
            Finding::good(CHECK, format!("{count} until now")).with_remedy(remedies::SHUTDOWNS)
        }
        None => Finding::unseen(
            CHECK,
            "its modules show no count, so no program can trust data that was in use",
        ),
    })
}

/// The limit of locked memory, if not all of the memory can be registered with it. Registering
/// gigabytes would take long. Pages of a file on a DAX file system are not locked.
fn limit(exam: &Exam<'_>, map: &PmemMap) -> Option<Finding> {
    let locked = exam.host.facts.locked_memory;
    let limit = match map.kind() {
        PmemKind::FsDax => None,
        _ => locked.too_low_for(map.len()),
    }?;
    // In the unit of `ulimit -l`.
    let found = format!(
        "the memory has {} KiB, and this process may lock only {} KiB, with a page of rpma's own: a program that \
         registers all of it fails",
        map.len().div_ceil(1024),
        limit >> 10
    );
    Some(Finding::bad(
        REGISTRATION,
        found,
        remedies::memlock_or_range(&exam.host.facts),
    ))
}

/// Registers a part of it on each device, for a moment. That changes nothing in persistent memory.
/// There is one finding for each device, or only one for all of them.
fn registrations(exam: &Exam<'_>, path: &Path, map: &PmemMap) -> Vec<Finding> {
    if let Some(limit) = limit(exam, map).filter(|_| map.is_pmem()) {
        return vec![limit];
    }
    if exam.devices.is_empty() {
        let found = "no device to register the memory with";
        return vec![Finding::unseen(REGISTRATION, found)];
    }
    if !map.is_pmem() {
        return file_registrations(exam, path, map);
    }
    let devices = exam.devices.iter();
    devices
        .map(|device| registration(exam, device, map))
        .collect()
}

fn registration(exam: &Exam<'_>, device: &Opened, map: &PmemMap) -> Finding {
    let name = device.name();
    // Each device registers a device-DAX.
    let other = (map.kind() != PmemKind::DeviceDax).then(|| exam.other_memory());
    let part = || map.part(..map.len().min(PART));
    if let Err(error) = register(&device.peer, part(), WRITING) {
        let (reason, remedy) = remedies::of_registering(&error, other, &exam.host.facts);
        let found = format!("{name} cannot register the memory for writing: {reason}");
        return Finding::bad(REGISTRATION, found, remedy);
    }
    let persistent = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
    match register(&device.peer, part(), persistent) {
        Ok(()) => {
            let found = format!(
                "{name} can register the memory for writing and for persistent flushes{}",
                tried(map)
            );
            Finding::good(REGISTRATION, found)
        }
        Err(error) => {
            let (reason, remedy) = remedies::of_registering(&error, other, &exam.host.facts);
            let found = format!(
                "{name} can register the memory for writing, but not for persistent flushes: {reason}"
            );
            Finding::note(REGISTRATION, found).with_remedy(remedy)
        }
    }
}

/// Registers a page of an ordinary file. Since Linux 6.5, the kernel refuses files with pages on a
/// disk. It pins those that are only in memory, as in tmpfs.
fn file_registrations(exam: &Exam<'_>, path: &Path, map: &PmemMap) -> Vec<Finding> {
    let kernel = exam.host.facts.kernel.as_deref();
    let release = kernel.and_then(release_number);
    if release.is_some_and(|release| release < FILES_REFUSED) {
        let found = "not tried on an ordinary file before Linux 6.5, because it could give the file blocks. Newer \
                     kernels refuse most files";
        return vec![Finding::unseen(REGISTRATION, found)];
    }
    let at = present_page(path, exam.args.range, map.len());
    let devices = exam.devices.iter();
    let tried: Vec<_> = devices
        .map(|device| file_registration(exam, device, map, at))
        .collect();
    let is_bad = tried.iter().any(|finding| finding.verdict == Verdict::Bad);
    match limit(exam, map).filter(|_| !is_bad) {
        Some(limit) => vec![limit],
        None => tried,
    }
}

fn file_registration(exam: &Exam<'_>, device: &Opened, map: &PmemMap, at: usize) -> Finding {
    let name = device.name();
    let part = map.part(at..map.len().min(at + page_size()));
    let Err(error) = register(&device.peer, part, WRITING) else {
        let found = format!(
            "{name} can register the file for writing. No flush makes its data durable: they are lost with the power"
        );
        return Finding::note(REGISTRATION, found);
    };
    let (reason, remedy) =
        remedies::of_registering(&error, Some(exam.other_memory()), &exam.host.facts);
    let why = if remedies::is_errno(&error, Errno::FAULT) {
        ". Linux 6.5 and newer refuse files of this file system"
    } else {
        ""
    };
    let found = format!("{name} cannot register the file for writing: {reason}{why}");
    Finding::bad(REGISTRATION, found, remedy)
}

/// The offset in the map of a page that the file has. A registration would give a sparse file
/// another page.
fn present_page(path: &Path, range: Option<Range>, len: usize) -> usize {
    let start = range.map_or(0, |range| range.start);
    let data = File::open(path)
        .ok()
        .and_then(|file| seek(file, SeekFrom::Data(start)).ok())
        .and_then(|data| usize::try_from(data.checked_sub(start)?).ok());
    match data {
        Some(data) if data < len => data - data % page_size(),
        _ => 0,
    }
}

/// The part that was registered, if it was not all of the memory.
fn tried(map: &PmemMap) -> String {
    if map.len() > PART {
        format!(" (its first {} MiB were tried)", PART >> 20)
    } else {
        String::new()
    }
}

fn register(peer: &Peer, part: rpma::Result<PmemMap>, usage: MrUsage) -> rpma::Result<()> {
    Mr::reg(peer, part?, usage)?.dereg()?;
    Ok(())
}
