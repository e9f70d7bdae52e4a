//! Small files below a root directory.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// No attribute of sysfs is longer.
const PAGE: u64 = 4096;
/// The longest that is read of a table of procfs.
const TABLE: u64 = 16 << 20;
/// The most entries of a directory: more than any device has gids.
const ENTRIES: usize = 4096;

/// The files of a host.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    root: PathBuf,
}

impl Files {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.into() }
    }

    /// The place of a path that has no `/` at its beginning.
    pub(crate) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.at(path).exists()
    }

    /// The trimmed text of a small file. `None` if it cannot be read, or is empty.
    pub(crate) fn word(&self, path: impl AsRef<Path>) -> Option<String> {
        let mut bytes = Vec::new();
        let file = File::open(self.at(path)).ok()?;
        file.take(PAGE).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let word = text.trim();
        (!word.is_empty()).then(|| word.to_owned())
    }

    /// The target of a symbolic link, as text.
    pub(crate) fn link(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.at(path)).ok()?;
        target.into_os_string().into_string().ok()
    }

    /// The driver of a device.
    pub(crate) fn driver(&self, device: impl AsRef<Path>) -> Option<String> {
        let target = self.link(device.as_ref().join("driver"))?;
        target.rsplit('/').next().map(Into::into)
    }

    /// The lines of a table. They end early if it is too long or not text.
    pub(crate) fn lines(&self, path: impl AsRef<Path>) -> io::Result<impl Iterator<Item = String>> {
        let file = File::open(self.at(path))?;
        Ok(BufReader::new(file.take(TABLE))
            .lines()
            .map_while(Result::ok))
    }

    /// The sorted names in a directory: numbers by their value. None if it cannot be read.
    pub(crate) fn names(&self, dir: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.at(dir)) else {
            return Vec::new();
        };
        let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
        let mut names: Vec<String> = entries.filter_map(name).take(ENTRIES).collect();
        names.sort_by_cached_key(|name| (name.parse::<u32>().ok(), name.clone()));
        names
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A made-up host with these files. A path that ends with `/` is a directory, and a text that
    /// begins with `-> ` is the target of a symbolic link.
    pub(crate) fn tree(files: &[(&str, &str)]) -> io::Result<tempfile::TempDir> {
        let dir = tempfile::tempdir()?;
        for (path, text) in files {
            let path = dir.path().join(path);
            if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
                fs::create_dir_all(path)?;
                continue;
            }
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            match text.strip_prefix("-> ") {
                Some(target) => symlink(target, path)?,
                None => fs::write(path, text)?,
            }
        }
        Ok(dir)
    }

    #[test]
    fn unreadable_files_are_nothing() -> io::Result<()> {
        let dir = tree(&[
            ("a/", ""),
            ("empty", "\n"),
            ("binary", "x"),
            ("n/10", ""),
            ("n/9", ""),
        ])?;
        fs::write(dir.path().join("binary"), b"\xff\n")?;
        let files = Files::new(dir.path());
        for path in ["a", "empty", "missing", "missing/below"] {
            assert_eq!(files.word(path), None, "{path}");
        }
        assert_eq!(files.word("binary"), Some("\u{fffd}".into()));
        assert_eq!(files.names("n"), ["9", "10"]);
        assert!(files.names("missing").is_empty());
        assert!(files.lines("missing").is_err());
        assert_eq!(files.lines("a").map(Iterator::count).unwrap_or_default(), 0);
        Ok(())
    }
}
