//! [`Platform`]: the kernel's report about the host of a map, read from sysfs.
//!
//! A namespace of `ndctl` lies in its region: `…/ndbusN/regionN/…`. The region has
//! `persistence_domain` (no such file if the firmware reports no domain), and its modules as
//! `mapping0`, `mapping1` and so on: `nmem0,0,268435456,0`. The count of unsafe shutdowns is
//! `dirty_shutdown` of a module, in a directory of its driver, and its faults are words of `flags`
//! there. All are readable without root.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{Domain, PmemKind, PmemMap};
use crate::error::{Error, Result};

/// The kernel shows at most a page, and a region has at most 32 modules (`ND_MAX_MAPPINGS`).
const PAGE: u64 = 4096;
const MAX_MODULES: usize = 32;
/// The directories of the drivers of modules: ACPI's, POWER's, and CXL's.
const DRIVERS: [&str; 3] = ["nfit", PAPR, "cxl"];
const PAPR: &str = "papr";
/// The words of a module that may not save its data at the next loss of power, or has lost some: its
/// energy source is not ready, or a save, a flush, a restore or a mapping has failed (`flags_show` of
/// the kernel's drivers nfit and papr_scm).
const FAULTS: [&str; 5] = [
    "not_armed",
    "save_fail",
    "flush_fail",
    "restore_fail",
    "map_fail",
];
/// A property of POWER's device tree: data is durable only after a call to the hypervisor.
const HYPERVISOR_FLUSHES: &str = "of_node/ibm,hcall-flush-required";

/// The kernel's report about the host of a [`PmemMap`].
///
/// Neither the kernel nor the firmware, whose words it repeats, has information about the path
/// from an adapter to the memory: see [`Ddio`](super::Ddio).
#[derive(Debug)]
pub(crate) struct Platform {
    pub(crate) domain: Domain,
    /// The origin of the domain in words: a file of sysfs and its contents, or the reason why there
    /// is no such file.
    source: String,
    unsafe_shutdowns: Option<u64>,
}

impl PmemMap {
    /// Returns the persistence domain of the memory and the source of this report, in words for
    /// people. [`PeerCfg::detect`](crate::PeerCfg::detect) uses the same report.
    ///
    /// The report is the kernel's hint. The kernel repeats the words of the firmware. Memory of an
    /// ordinary file is volatile: a device writes to the page cache. The domain is unknown for
    /// memory outside a region of `ndctl`, for a region without a domain (`memmap=`), and for a
    /// word that is unknown to this library. It is also unknown while a module of the region reports
    /// a fault, such as an energy source that is not ready (`not_armed`), and for a file system that
    /// sysfs does not trace to one region: on a device-mapper device, or an overlay.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if sysfs is not mounted at `/sys`, or cannot be read.
    pub fn persistence_domain(&self) -> Result<String> {
        Ok(Platform::detect(self)?.to_string())
    }

    /// Returns the number of shutdowns after which the memory's modules could not guarantee their
    /// data. For interleaved modules this is the sum over the modules, as in PMDK.
    ///
    /// `None` if a module has no readable count. POWER's driver shows 0 also without a count, so
    /// its 0 is `None` as well.
    ///
    /// A program keeps the count beside its data, and compares both counts when it starts again.
    /// The data survived every shutdown between them only if both are known and equal:
    ///
    /// ```
    /// let survived = |last: Option<u64>, now: Option<u64>| last.is_some() && last == now;
    ///
    /// assert!(survived(Some(2), Some(2)));
    /// assert!(!survived(Some(2), Some(3)));
    /// assert!(!survived(None, Some(2)));
    /// assert!(!survived(None, None));
    /// ```
    ///
    /// Only data that was in use at the shutdown needs this comparison. Like PMDK, a program may
    /// trust data that it closed before the shutdown. If the data did not survive, check the data
    /// itself, for example by its checksums, or copy it from a replica. Then store the new count.
    /// The counts do not change when modules are exchanged. Keep an identifier in the data to
    /// detect that.
    ///
    /// # Errors
    ///
    /// As [`persistence_domain`](Self::persistence_domain).
    #[doc(alias = "pmem2_source_get_usc")]
    pub fn unsafe_shutdowns(&self) -> Result<Option<u64>> {
        Ok(Platform::detect(self)?.unsafe_shutdowns)
    }
}

impl Platform {
    pub(crate) fn detect(map: &PmemMap) -> Result<Self> {
        match map.kind() {
            PmemKind::File => Ok(Self::new(Domain::Volatile, "an ordinary file")),
            PmemKind::DeviceDax | PmemKind::FsDax => match &map.device {
                Some(device) => of_device(Path::new("/sys"), device),
                None => {
                    let word = map.part.mapping.simulated_domain().unwrap_or_default();
                    let source = format!("a simulated kernel has {word:?}");
                    Ok(Self::new(named(word), source))
                }
            },
        }
    }

    fn new(domain: Domain, source: impl Into<String>) -> Self {
        Self {
            domain,
            source: source.into(),
            unsafe_shutdowns: None,
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.domain, self.source)
    }
}

/// Reads about a device, `char/MAJOR:MINOR` or `block/MAJOR:MINOR`. `sysfs` is where sysfs is
/// mounted.
fn of_device(sysfs: &Path, device: &str) -> Result<Platform> {
    let link = sysfs.join("dev").join(device);
    let place = match fs::canonicalize(&link) {
        Ok(place) => place,
        // An overlay, for example, has a number and no device.
        Err(error) if error.kind() == io::ErrorKind::NotFound && sysfs.join("dev").is_dir() => {
            let source = format!("{} does not exist", link.display());
            return Ok(Platform::new(Domain::Unknown, source));
        }
        Err(error) => return Err(failed("readlink", &link, error)),
    };
    let is_region = |dir: &&Path| {
        let name = dir.file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| numbered(name, "region")) && link_name(dir, "subsystem", "nd")
    };
    let Some(region) = place.ancestors().find(is_region) else {
        let source = format!("{} is in no region of nd", place.display());
        return Ok(Platform::new(Domain::Unknown, source));
    };
    let modules = modules(sysfs, region);
    let mut platform = match (hypervisor(region), fault(&modules)) {
        (Some(source), _) => Platform::new(Domain::Virtual, source),
        (None, Some(source)) => Platform::new(Domain::Unknown, source),
        (None, None) => domain(region)?,
    };
    platform.unsafe_shutdowns = unsafe_shutdowns(&modules);
    Ok(platform)
}

/// The directories of a region's modules. None of them if one is not known.
fn modules(sysfs: &Path, region: &Path) -> Vec<PathBuf> {
    let count = read(&region.join("mappings")).ok();
    let count = count.and_then(|count| count.parse::<usize>().ok());
    let module = |index| {
        let mapping = read(&region.join(format!("mapping{index}"))).ok()?;
        let module = mapping.split(',').next()?;
        numbered(module, "nmem").then(|| sysfs.join("bus/nd/devices").join(module))
    };
    let count = count.filter(|count| *count <= MAX_MODULES).unwrap_or(0);
    let modules: Option<Vec<_>> = (0..count).map(module).collect();
    modules.unwrap_or_default()
}

/// The file of a module that reports a fault, and its words.
fn fault(modules: &[PathBuf]) -> Option<String> {
    let of_drivers = modules
        .iter()
        .flat_map(|module| DRIVERS.map(|driver| module.join(driver)));
    let mut files = of_drivers.map(|dir| dir.join("flags"));
    files.find_map(|file| {
        let words = read(&file).ok()?;
        let is_fault = words.split_whitespace().any(|word| FAULTS.contains(&word));
        is_fault.then(|| format!("{} is {words:?}", file.display()))
    })
}

/// The reason why a region's data is durable only after a call to the hypervisor, if it is so.
fn hypervisor(region: &Path) -> Option<String> {
    let bus = region.parent()?;
    // The parent of the bus is the device of its driver.
    let parent = bus.parent()?;
    if link_name(parent, "subsystem", "virtio") {
        return Some(format!("{} is a virtio device", parent.display()));
    }
    let property = bus.join(HYPERVISOR_FLUSHES);
    let exists = property.exists();
    exists.then(|| format!("{} exists", property.display()))
}

fn domain(region: &Path) -> Result<Platform> {
    let file = region.join("persistence_domain");
    let word = match read(&file) {
        Ok(word) => word,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let source = format!("{} does not exist", file.display());
            return Ok(Platform::new(Domain::Unknown, source));
        }
        Err(error) => return Err(failed("read", &file, error)),
    };
    let source = format!("{} is {word:?}", file.display());
    Ok(Platform::new(named(&word), source))
}

fn named(word: &str) -> Domain {
    match word {
        "cpu_cache" => Domain::CpuCaches,
        "memory_controller" => Domain::MemoryController,
        _ => Domain::Unknown,
    }
}

/// The sum over the modules of a region, if each has a count.
fn unsafe_shutdowns(modules: &[PathBuf]) -> Option<u64> {
    let of_module = |module: &PathBuf| {
        let (driver, file) = DRIVERS
            .map(|driver| (driver, module.join(driver).join("dirty_shutdown")))
            .into_iter()
            .find(|(_, file)| file.exists())?;
        let count: u64 = read(&file).ok()?.parse().ok()?;
        // papr_scm shows 0 also if the firmware has no count.
        (driver != PAPR || count > 0).then_some(count)
    };
    let (first, others) = modules.split_first()?;
    let mut others = others.iter();
    others.try_fold(of_module(first)?, |sum, module| {
        sum.checked_add(of_module(module)?)
    })
}

/// Whether a name is `prefix` and a number.
fn numbered(name: &str, prefix: &str) -> bool {
    let number = name.strip_prefix(prefix).unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a link in a directory leads to this name.
fn link_name(dir: &Path, link: &str, name: &str) -> bool {
    let target: io::Result<PathBuf> = fs::read_link(dir.join(link));
    target.is_ok_and(|target| target.file_name() == Some(OsStr::new(name)))
}

fn read(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(file)?.take(PAGE).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

fn failed(call: &'static str, path: &Path, error: io::Error) -> Error {
    let text = format!("{}: {error}", path.display());
    Error::provider(call, io::Error::new(error.kind(), text)).with_hint(&[
        "The persistence domain is read from sysfs",
        "is it mounted at /sys?",
    ])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    const REGION: &str = "devices/parent/ndbus0/region0";

    /// A sysfs with device 252:0 in a region of a bus with this parent, and with these files.
    fn sysfs(parent: &str, files: &[(&str, &str)]) -> TempDir {
        let sysfs = tempfile::tempdir().unwrap();
        let at = |path: &str| sysfs.path().join(path);
        fs::create_dir_all(at(REGION).join("dax0.0/dax0.0")).unwrap();
        fs::create_dir_all(at("dev/char")).unwrap();
        symlink("/bus/nd", at(REGION).join("subsystem")).unwrap();
        symlink(format!("/bus/{parent}"), at("devices/parent/subsystem")).unwrap();
        let device = format!("../../{REGION}/dax0.0/dax0.0");
        symlink(device, at("dev/char/252:0")).unwrap();
        for (name, text) in files {
            let file = match name.strip_prefix("nmem") {
                Some(_) => at("bus/nd/devices").join(name),
                None => at(REGION).join(name),
            };
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        sysfs
    }

    fn platform(parent: &str, files: &[(&str, &str)]) -> Platform {
        of_device(sysfs(parent, files).path(), "char/252:0").unwrap()
    }

    #[test]
    fn the_words_of_the_kernel() {
        for (word, domain) in [
            ("cpu_cache\n", Domain::CpuCaches),
            ("memory_controller\n", Domain::MemoryController),
            ("\n", Domain::Unknown),
            ("the_moon\n", Domain::Unknown),
            ("cpu_cache memory_controller\n", Domain::Unknown),
        ] {
            let found = platform("acpi", &[("persistence_domain", word)]);
            assert_eq!(found.domain, domain, "{word:?}");
            let quoted = format!("region0/persistence_domain is {:?}", word.trim());
            assert!(found.source.ends_with(&quoted), "{found}");
        }
    }

    /// Promise: memory whose module may not save it at the next loss of power is not durable.
    #[test]
    fn a_faulty_module_makes_nothing_durable() {
        let of = |flags: &str| {
            let files = [
                ("persistence_domain", "memory_controller\n"),
                ("mappings", "2\n"),
                ("mapping0", "nmem0,0,268435456,0\n"),
                ("mapping1", "nmem3,0,268435456,1\n"),
                ("nmem0/nfit/flags", "smart_notify \n"),
                ("nmem3/nfit/flags", flags),
            ];
            platform("acpi", &files)
        };
        assert_eq!(of("\n").domain, Domain::MemoryController);
        assert_eq!(of("smart_event \n").domain, Domain::MemoryController);
        for word in FAULTS {
            let found = of(&format!("smart_notify {word} \n"));
            assert_eq!(found.domain, Domain::Unknown, "{word}");
            assert!(found.source.contains("nmem3/nfit/flags is"), "{found}");
        }
    }

    #[test]
    fn a_region_without_a_domain_is_unknown() {
        let found = platform("acpi", &[]);
        assert_eq!(found.domain, Domain::Unknown);
        assert!(found.source.ends_with("does not exist"), "{found}");
    }

    /// Promise: memory that only the hypervisor flushes is never durable, even if its region
    /// reports a domain.
    #[test]
    fn virtual_memory_is_never_promised() {
        for files in [&[][..], &[("persistence_domain", "cpu_cache\n")]] {
            assert_eq!(platform("virtio", files).domain, Domain::Virtual);
        }
        let tree = sysfs("acpi", &[("persistence_domain", "memory_controller\n")]);
        let property = tree
            .path()
            .join("devices/parent/ndbus0")
            .join(HYPERVISOR_FLUSHES);
        fs::create_dir_all(property.parent().unwrap()).unwrap();
        fs::write(property, "").unwrap();
        let found = of_device(tree.path(), "char/252:0").unwrap();
        assert_eq!(found.domain, Domain::Virtual);
        assert!(found.source.contains("hcall-flush"), "{found}");
    }

    #[test]
    fn memory_outside_a_region_is_unknown() {
        // A region of CXL has the same name and another bus; its device-DAX may be volatile.
        let tree = sysfs("cxl", &[("persistence_domain", "cpu_cache\n")]);
        let subsystem = tree.path().join(REGION).join("subsystem");
        fs::remove_file(&subsystem).unwrap();
        symlink("/bus/cxl", &subsystem).unwrap();
        let found = of_device(tree.path(), "char/252:0").unwrap();
        assert_eq!(found.domain, Domain::Unknown);
        assert!(found.source.contains("in no region"), "{found}");
    }

    #[test]
    fn a_device_without_sysfs_is_unknown() {
        let found = of_device(sysfs("acpi", &[]).path(), "block/0:42").unwrap();
        assert_eq!(found.domain, Domain::Unknown);
        assert!(
            found.source.ends_with("dev/block/0:42 does not exist"),
            "{found}"
        );
        assert_eq!(found.unsafe_shutdowns, None);
    }

    #[test]
    fn a_missing_sysfs_is_an_error() {
        let empty = tempfile::tempdir().unwrap();
        let text = of_device(empty.path(), "char/252:0")
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("dev/char/252:0") && text.contains("at /sys?"),
            "{text}"
        );
    }

    #[test]
    fn an_unreadable_domain_is_an_error() {
        let tree = sysfs("acpi", &[("persistence_domain/directory", "")]);
        let error = of_device(tree.path(), "char/252:0").unwrap_err();
        assert!(error.to_string().contains("persistence_domain"), "{error}");
    }

    #[test]
    fn unsafe_shutdowns_are_summed_over_the_modules() {
        let two = [
            ("mappings", "2\n"),
            ("mapping0", "nmem0,0,268435456,0\n"),
            ("mapping1", "nmem3,0,268435456,1\n"),
            ("nmem0/nfit/dirty_shutdown", "4\n"),
            ("nmem3/cxl/dirty_shutdown", "3\n"),
        ];
        assert_eq!(platform("acpi", &two).unsafe_shutdowns, Some(7));
        assert_eq!(platform("acpi", &two[..4]).unsafe_shutdowns, None);
    }

    #[test]
    fn a_wrong_count_is_no_count() {
        let count = |mappings, mapping, shutdowns| {
            let files = [
                ("mappings", mappings),
                ("mapping0", mapping),
                ("nmem0/papr/dirty_shutdown", shutdowns),
            ];
            platform("acpi", &files).unsafe_shutdowns
        };
        assert_eq!(count("1", "nmem0,0,1,0", "5"), Some(5));
        // POWER without a count shows this.
        assert_eq!(count("1", "nmem0,0,1,0", "0"), None);
        for (mappings, mapping, shutdowns) in [
            ("0", "nmem0,0,1,0", "5"),
            ("33", "nmem0,0,1,0", "5"),
            ("-1", "nmem0,0,1,0", "5"),
            ("1", "../nmem0,0,1,0", "5"),
            ("1", "", "5"),
            ("1", "nmem0,0,1,0", "many"),
            ("1", "nmem0,0,1,0", "18446744073709551616"),
        ] {
            let found = count(mappings, mapping, shutdowns);
            assert_eq!(found, None, "{mappings} {mapping} {shutdowns}");
        }
    }
}
