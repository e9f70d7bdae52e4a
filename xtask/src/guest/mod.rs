//! The guest: a Debian root directory in which programs are compiled, and a disk made of it that a
//! virtual machine boots. Built once per recipe, kept in the user's cache directory.
//!
//! A guest in use holds a shared lock on its lock file, a build an exclusive one, so that two runs
//! neither build at the same time nor delete each other's guest. The lock files themselves stay:
//! deleting one while a run waits for it would break the lock.

mod build;
pub(crate) mod chroot;
mod recipe;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};

use crate::host::Workspace;
use crate::progress::Step;

/// A complete guest, locked against deletion as long as this value lives.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) dir: PathBuf,
    /// Also for a process that uses the guest longer than we do.
    pub(crate) lock: File,
}

impl Guest {
    /// The guest of this recipe, built if it is not there.
    pub(crate) fn get(workspace: &Workspace) -> Result<Self> {
        let cache = cache_dir()?;
        fs::create_dir_all(&cache)
            .with_context(|| format!("cannot make the cache directory {}", cache.display()))?;
        let name = format!("guest-{}", recipe::hash());
        let dir = cache.join(&name);
        let lock_path = cache.join(format!("{name}.lock"));
        let lock = open_lock(&lock_path)?;

        take(&lock, FlockOperation::LockShared)?;
        if !dir.is_dir() {
            take(&lock, FlockOperation::LockExclusive)?;
            if !dir.is_dir() {
                build::build(workspace, &cache, &name)?;
                prune(&cache, &name);
            }
            // Not atomic: in between, a run with another recipe could delete the guest.
            take(&lock, FlockOperation::LockShared)?;
            ensure!(
                dir.is_dir(),
                "the guest {} was deleted as soon as it was built",
                dir.display()
            );
        }
        Ok(Self { dir, lock })
    }

    /// `root`, the directory for [`chroot`], or one of the files that booting and reaching it
    /// takes: `vmlinuz`, `initrd`, `root.img`, `ssh_config`, `ssh_key`, `known_hosts`.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

fn cache_dir() -> Result<PathBuf> {
    for (name, within) in [("XDG_CACHE_HOME", "rpma"), ("HOME", ".cache/rpma")] {
        let dir = PathBuf::from(std::env::var_os(name).unwrap_or_default());
        if dir.is_absolute() {
            return Ok(dir.join(within));
        }
    }
    bail!("no place to keep the guest: set XDG_CACHE_HOME or HOME");
}

fn open_lock(path: &Path) -> Result<File> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path);
    file.with_context(|| format!("cannot open the lock file {}", path.display()))
}

/// Takes a lock; reports if another run has it.
fn take(lock: &File, operation: FlockOperation) -> Result<()> {
    let at_once = match operation {
        FlockOperation::LockShared => FlockOperation::NonBlockingLockShared,
        _ => FlockOperation::NonBlockingLockExclusive,
    };
    if flock(lock, at_once).is_err() {
        let step = Step::start("waiting for the run that builds the guest");
        flock(lock, operation).context("cannot lock the guest")?;
        step.done("");
    }
    Ok(())
}

/// Deletes the unused guests of other recipes. Failing to is not worth an error.
fn prune(cache: &Path, keep: &str) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let base = name.strip_suffix(build::PARTIAL).unwrap_or(name);
        if base == keep || !name.starts_with("guest-") || !entry.path().is_dir() {
            continue;
        }
        let Ok(lock) = open_lock(&cache.join(format!("{base}.lock"))) else {
            continue;
        };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            println!("       deleting the unused {name}");
            if let Err(error) = build::remove_tree(&entry.path()) {
                eprintln!("       {error:#}");
            }
        }
    }
}
