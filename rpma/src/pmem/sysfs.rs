//! The attributes of a device-DAX device in sysfs.
//!
//! `/sys/dev/char/MAJOR:MINOR` leads to the device's directory. Its `subsystem` is the bus `dax`
//! (or, in kernels built for the old layout, the class `dax`). `size` stands there. The alignment
//! of mappings is its `align` since Linux 5.10; before, there was only that of the region, in
//! `dax_region/align` of the directory above (bus) or of `device` (class). All are decimal bytes. A
//! namespace on Linux 6.12 shows `size` 266338304 and `align` 2097152.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use crate::error::{Error, Result};

/// Where the alignment is found, best first.
const ALIGN: [&str; 3] = ["align", "../dax_region/align", "device/dax_region/align"];

/// How many bytes of the character device at `path` can be mapped: the largest multiple of its
/// alignment, which comes with it. `sysfs` is where sysfs is mounted.
pub(super) fn dax_len_and_align(
    sysfs: &Path,
    path: &Path,
    major: u32,
    minor: u32,
) -> Result<(usize, usize)> {
    let device = sysfs.join(format!("dev/char/{major}:{minor}"));
    check_is_dax(&device, path)?;
    let size = read_number(&device.join("size"))?;
    let align = read_align(&device)?;
    let len = size - size % align;
    if len == 0 {
        return Err(Error::invalid(format!(
            "the device {} has {size} bytes, less than its alignment of {align}: nothing of it can \
             be mapped",
            path.display()
        )));
    }
    Ok((len, align))
}

fn check_is_dax(device: &Path, path: &Path) -> Result<()> {
    let subsystem = device.join("subsystem");
    let target = match fs::read_link(&subsystem) {
        Ok(target) => target,
        // A character device that is in no subsystem.
        Err(error) if error.kind() == io::ErrorKind::NotFound && device.exists() => {
            return Err(not_dax(path));
        }
        Err(error) => {
            let text = format!("{}: {error}", subsystem.display());
            return Err(
                Error::provider("readlink", io::Error::new(error.kind(), text)).with_hint(&[
                    "Only sysfs has the kind of a character device",
                    "is sysfs mounted at /sys?",
                ]),
            );
        }
    };
    if target.file_name() == Some(OsStr::new("dax")) {
        Ok(())
    } else {
        Err(not_dax(path))
    }
}

fn not_dax(path: &Path) -> Error {
    Error::invalid(format!(
        "{} is a character device, but not a device-DAX one: name one such as /dev/dax0.0 (`ndctl \
         list --namespaces` shows them as \"chardev\"), or a file",
        path.display()
    ))
}

fn read_align(device: &Path) -> Result<usize> {
    let places = ALIGN.map(|file| device.join(file));
    let file = places
        .iter()
        .find(|file| file.exists())
        .unwrap_or(&places[0]);
    let align = read_number(file)?;
    if align.is_power_of_two() {
        Ok(align)
    } else {
        Err(Error::not_supported(format!(
            "{} is {align}, and an alignment must be a power of two",
            file.display()
        )))
    }
}

fn read_number(file: &Path) -> Result<usize> {
    let failed = |error: io::Error| {
        let text = format!("{}: {error}", file.display());
        Error::provider("read", io::Error::new(error.kind(), text)).with_hint(&[
            "The device-DAX driver shows the device's size and alignment in sysfs",
            "",
        ])
    };
    let text = fs::read_to_string(file).map_err(failed)?;
    text.trim()
        .parse()
        .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;

    const DEVICE: &str = "devices/ndbus0/region0/dax0.0";

    /// A sysfs with character device 252:0 in `subsystem` and with these attributes.
    fn sysfs(subsystem: &str, attributes: &[(&str, &str)]) -> TempDir {
        let sysfs = tempfile::tempdir().unwrap();
        let device = sysfs.path().join(DEVICE).join("dax0.0");
        let class = sysfs.path().join(subsystem);
        let char_devices = sysfs.path().join("dev/char");
        for dir in [&device, &class, &char_devices] {
            fs::create_dir_all(dir).unwrap();
        }
        symlink(class, device.join("subsystem")).unwrap();
        symlink("..", device.join("device")).unwrap();
        symlink(
            PathBuf::from("../..").join(DEVICE).join("dax0.0"),
            char_devices.join("252:0"),
        )
        .unwrap();
        for (name, value) in attributes {
            let file = device.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, value).unwrap();
        }
        sysfs
    }

    fn len(sysfs: &TempDir) -> Result<usize> {
        let path = Path::new("/dev/dax0.0");
        dax_len_and_align(sysfs.path(), path, 252, 0).map(|(len, _)| len)
    }

    fn error(sysfs: &TempDir) -> String {
        len(sysfs).unwrap_err().to_string()
    }

    #[test]
    fn the_length_is_cut_to_the_alignment() {
        let whole = [("size", "266338304\n"), ("align", "2097152\n")];
        assert_eq!(len(&sysfs("bus/dax", &whole)).unwrap(), 266_338_304);
        let ragged = [("size", "266342400\n"), ("align", "2097152\n")];
        assert_eq!(len(&sysfs("bus/dax", &ragged)).unwrap(), 266_338_304);
    }

    #[test]
    fn older_kernels_show_the_alignment_of_the_region() {
        let bus = [("size", "8192\n"), ("../dax_region/align", "4096\n")];
        assert_eq!(len(&sysfs("bus/dax", &bus)).unwrap(), 8192);
        let class = [("size", "8192\n"), ("device/dax_region/align", "4096\n")];
        assert_eq!(len(&sysfs("class/dax", &class)).unwrap(), 8192);
    }

    #[test]
    fn the_alignment_of_the_device_goes_before_that_of_the_region() {
        let both = [
            ("size", "12288\n"),
            ("align", "8192\n"),
            ("../dax_region/align", "4096\n"),
        ];
        assert_eq!(len(&sysfs("bus/dax", &both)).unwrap(), 8192);
    }

    #[test]
    fn another_character_device_is_refused() {
        let text = error(&sysfs("class/mem", &[]));
        assert!(
            text.contains("/dev/dax0.0 is a character device, but not"),
            "{text}"
        );

        let none = sysfs("bus/dax", &[]);
        fs::remove_file(none.path().join(DEVICE).join("dax0.0/subsystem")).unwrap();
        assert!(
            error(&none).contains("but not a device-DAX one"),
            "{}",
            error(&none)
        );
    }

    #[test]
    fn a_missing_sysfs_is_named() {
        let empty = tempfile::tempdir().unwrap();
        let text = error(&empty);
        assert!(text.contains("dev/char/252:0/subsystem"), "{text}");
        assert!(text.contains("mounted at /sys"), "{text}");
    }

    #[test]
    fn what_sysfs_does_not_say_or_says_wrong_is_named() {
        let text = error(&sysfs("bus/dax", &[("align", "4096\n")]));
        assert!(text.contains("252:0/size: No such file"), "{text}");
        let text = error(&sysfs("bus/dax", &[("size", "4096\n")]));
        assert!(text.contains("252:0/align: No such file"), "{text}");
        let text = error(&sysfs(
            "bus/dax",
            &[("size", "many\n"), ("align", "4096\n")],
        ));
        assert!(text.contains("252:0/size: invalid digit"), "{text}");
        let text = error(&sysfs("bus/dax", &[("size", "4096\n"), ("align", "0\n")]));
        assert!(text.contains("252:0/align is 0"), "{text}");
        let text = error(&sysfs(
            "bus/dax",
            &[("size", "4096\n"), ("align", "8192\n")],
        ));
        assert!(
            text.contains("4096 bytes, less than its alignment of 8192"),
            "{text}"
        );
    }
}
