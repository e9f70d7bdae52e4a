//! The computer that we run on: the clone, and the Rust toolchain.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};

use crate::process::output;

/// The clone that this program belongs to.
#[derive(Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    pub(crate) fn find() -> Result<Self> {
        // cargo sets the variable for the programs that it runs; a copied binary falls back to
        // where it is from.
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest.parent().unwrap_or(&manifest).canonicalize();
        let root = root.with_context(|| format!("no workspace around {}", manifest.display()))?;
        Ok(Self { root })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A directory for this program's own files, made if it is not there.
    pub(crate) fn state_dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.root.join("target/xtask").join(name);
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(dir)
    }

    /// A directory that this process has for itself as long as the returned file is open.
    pub(crate) fn own_dir(&self, name: &str) -> Result<(PathBuf, File)> {
        let dir = self.state_dir(name)?;
        let path = dir.join("lock");
        let lock =
            File::create(&path).with_context(|| format!("cannot open {}", path.display()))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("`cargo xtask {name}` is at work in this clone already; wait until it has ended");
        }
        Ok((dir, lock))
    }

    /// An empty log file.
    pub(crate) fn log_file(&self, name: &str) -> Result<PathBuf> {
        let path = self.state_dir("logs")?.join(name);
        std::fs::write(&path, "").with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// The host's `cargo` in the clone, with these words.
    pub(crate) fn cargo(&self, words: &str) -> Command {
        let mut command = Command::new("cargo");
        command.current_dir(&self.root);
        command.args(words.split_whitespace());
        command
    }
}

/// The host's Rust, lent to the guest's root.
#[derive(Debug)]
pub(crate) struct Toolchain {
    pub(crate) sysroot: PathBuf,
    pub(crate) cargo_home: PathBuf,
}

impl Toolchain {
    pub(crate) fn find(workspace: &Workspace) -> Result<Self> {
        let mut rustc = Command::new("rustc");
        rustc.args(["--print", "sysroot"]);
        let sysroot = output(rustc.current_dir(workspace.root()))?;
        let sysroot = PathBuf::from(sysroot.trim());
        ensure!(
            sysroot.join("bin/cargo").is_file() && sysroot != Path::new("/usr"),
            "the Rust toolchain in \"{}\" cannot be lent to the guest, whose system is not this \
             one: it takes a toolchain in a directory of its own, as rustup installs it",
            sysroot.display()
        );
        let cargo_home = match (std::env::var_os("CARGO_HOME"), std::env::var_os("HOME")) {
            (Some(cargo_home), _) => PathBuf::from(cargo_home),
            (None, Some(home)) => Path::new(&home).join(".cargo"),
            (None, None) => bail!("neither CARGO_HOME nor HOME is set"),
        };
        Ok(Self {
            sysroot,
            cargo_home,
        })
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
