//! The guest: a Debian root directory in which programs are compiled, and a disk made of it that a
//! virtual machine boots. Built once per recipe, kept in the user's cache directory.
//!
//! A guest in use holds a shared lock on its lock file, a build an exclusive one, so that two runs
//! neither build at the same time nor delete each other's guest. The lock files themselves stay:
//! deleting one while somebody waits for it would break the lock.

mod build;
pub(crate) mod chroot;
mod recipe;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::host::Workspace;
use crate::progress::Step;

/// A complete guest, locked against deletion as long as this value lives.
#[derive(Debug)]
pub(crate) struct Guest {
    dir: PathBuf,
    lock: File,
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

        wait_for(&lock, FlockOperation::NonBlockingLockShared)?;
        if dir.is_dir() {
            return Ok(Self { dir, lock });
        }
        flock(&lock, FlockOperation::Unlock)?;
        wait_for(&lock, FlockOperation::NonBlockingLockExclusive)?;
        if !dir.is_dir() {
            build::build(workspace, &cache, &dir)?;
            prune(&cache, &name);
        }
        // Not atomic: in between, a run with another recipe could delete the guest.
        wait_for(&lock, FlockOperation::NonBlockingLockShared)?;
        if !dir.is_dir() {
            bail!(
                "the guest {} was deleted as soon as it was built",
                dir.display()
            );
        }
        Ok(Self { dir, lock })
    }

    /// The root directory, for [`chroot`].
    pub(crate) fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// One of the files that booting and reaching it takes: `vmlinuz`, `initrd`, `root.img`,
    /// `ssh_config`, `ssh_key`, `known_hosts`.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The held lock once more, for a process that uses the guest longer than we do.
    pub(crate) fn share_lock(&self) -> io::Result<File> {
        self.lock.try_clone()
    }
}

fn cache_dir() -> Result<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    if let Some(cache) = absolute("XDG_CACHE_HOME") {
        return Ok(cache.join("rpma"));
    }
    match absolute("HOME") {
        Some(home) => Ok(home.join(".cache/rpma")),
        None => bail!("no place to keep the guest: set XDG_CACHE_HOME or HOME"),
    }
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

/// Takes a lock; says so if that takes time.
fn wait_for(lock: &File, operation: FlockOperation) -> Result<()> {
    let mut waiting = None;
    loop {
        match flock(lock, operation) {
            Ok(()) => break,
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error).context("cannot lock the guest"),
        }
        waiting.get_or_insert_with(|| Step::start("waiting for the run that builds the guest"));
        sleep(Duration::from_millis(100));
    }
    if let Some(step) = waiting {
        step.done("");
    }
    Ok(())
}

/// Deletes the guests of other recipes that nobody uses. Failing to is not worth an error.
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
