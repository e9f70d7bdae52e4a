//! The size of a device-DAX, in sysfs.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{major, minor};

use super::Files;

/// The size of a device-DAX, as its driver shows it, and the alignment of its mappings. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DaxSize {
    pub(crate) size: u64,
    pub(crate) align: u64,
}

/// `None` if `path` is no device-DAX, or its driver shows no size.
pub(crate) fn dax_size(files: &Files, path: &Path) -> Option<DaxSize> {
    let metadata = fs::metadata(path).ok()?;
    let device = metadata.rdev();
    if metadata.file_type().is_char_device() {
        size_of(files, major(device), minor(device))
    } else {
        None
    }
}

fn size_of(files: &Files, major: u32, minor: u32) -> Option<DaxSize> {
    let attribute = |name: &str| {
        let text = files.word(format!("sys/dev/char/{major}:{minor}/{name}"));
        text?.parse().ok()
    };
    let (size, align) = (attribute("size")?, attribute("align")?);
    (align > 0).then_some(DaxSize { size, align })
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::files::tests::tree;
    use super::*;

    #[test]
    fn a_device_dax_has_a_size_and_an_alignment() -> io::Result<()> {
        let tree = tree(&[
            ("sys/dev/char/252:0/size", "266338304\n"),
            ("sys/dev/char/252:0/align", "2097152\n"),
            ("sys/dev/char/252:1/size", "266338304\n"),
            ("sys/dev/char/252:1/align", "0\n"),
            ("dev/dax0.0", ""),
        ])?;
        let files = Files::new(tree.path());
        let found = DaxSize {
            size: 266_338_304,
            align: 2_097_152,
        };
        assert_eq!(size_of(&files, 252, 0), Some(found));
        assert_eq!(size_of(&files, 252, 1), None);
        assert_eq!(size_of(&files, 252, 2), None);
        assert_eq!(
            dax_size(&files, &tree.path().join("dev/dax0.0")),
            None,
            "a file"
        );
        Ok(())
    }
}
