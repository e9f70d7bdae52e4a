//! One server for one memory: the lock and the mark, across processes, device nodes, kills and
//! freezes.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

#[cfg(not(feature = "sim"))]
use rpma::Error;
use rpma::serve::{Directory, Layout, Server, ServerCfg};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::prelude::*;
use crate::common::program::command_alone;
use crate::serve::support::{LEN, bytes, identity};

/// The path of the memory that the other process serves.
const OTHER: &str = "RPMA_TEST_OTHER_SERVER";
const SLOTS: u32 = 31;

/// The memory at a path, without the directory of an earlier test.
fn cleared(path: &Path) -> Result<PmemMap> {
    let memory = PmemMap::open(path, LEN)?;
    memory.lock()?;
    memory.write_at(0, &[0; LEN])?;
    memory.persist(..LEN)?;
    Ok(memory)
}

fn directory(path: &Path) -> rpma::Result<Directory> {
    let memory = PmemMap::open(path, LEN)?;
    Directory::open_or_create(memory.part(..LEN)?, SLOTS)
}

/// A process has the descriptors of its parent between its fork and its exec, and with them the
/// locks. So these tests run one after the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The turn of a test, with the folder of its file.
type Turn = (tempfile::TempDir, MutexGuard<'static, ()>);

/// The memories of a test.
fn memories() -> Result<(Turn, Vec<PathBuf>)> {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("memory");
    std::fs::write(&file, [0; 2 * LEN])?;
    let mut paths = vec![file];
    // Another process has no memory of a simulated host.
    if cfg!(not(feature = "sim")) {
        paths.push(devdax().into());
    }
    for path in &paths {
        cleared(path)?;
    }
    Ok(((folder, turn), paths))
}

/// A process that serves a memory until it is killed.
struct Other(Child);

impl Other {
    fn new(path: &Path) -> Result<Self> {
        let mut child = command_alone(module_path!(), "the_other_process")
            .env(OTHER, path)
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("a pipe")?;
        let other = Self(child);
        let mut lines = BufReader::new(output).lines();
        let serves = lines.any(|line| line.is_ok_and(|line| line.contains("it serves")));
        assert!(serves, "the other process has the memory");
        Ok(other)
    }

    fn send(&self, signal: Signal) -> Result {
        let pid = Pid::from_raw(self.0.id().try_into()?).ok_or("a process")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.0.kill().expect("it is there, or has ended");
        self.0.wait().expect("its end");
    }
}

/// The process that the other tests start. It is no test by itself.
#[test]
fn the_other_process() -> Result {
    let Some(path) = env::var_os(OTHER) else {
        return Ok(());
    };
    let _directory = directory(Path::new(&path))?;
    println!("it serves");
    loop {
        thread::park();
    }
}

fn is_locked<T>(result: rpma::Result<T>) -> bool {
    const EWOULDBLOCK: i32 = 11;
    match result {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(EWOULDBLOCK), "{error}");
            assert_says(&error, &["one server for one memory"]);
            true
        }
    }
}

/// Promise: of two processes with one memory, the second one is refused, even while the first one
/// is frozen. After a SIGKILL the next server starts, and has all identities.
#[test]
fn two_processes_have_one_server() -> Result {
    let (_turn, paths) = memories()?;
    for path in &paths {
        let mut first = directory(path)?;
        first.keep(identity(7, 3, 1))?;
        drop(first);
        let other = Other::new(path)?;
        assert!(is_locked(directory(path)), "{path:?}");
        // A reader needs no lock.
        PmemMap::open(path, LEN)?.load_u64(0)?;
        other.send(Signal::STOP)?;
        assert!(is_locked(directory(path)), "{path:?}: it is only frozen");
        drop(other);
        assert_eq!(directory(path)?.get(7), Some(identity(7, 3, 1)));
    }
    Ok(())
}

/// Promise: `Server::listen` refuses a memory that another process serves, before it registers
/// anything. No byte changes.
#[test]
fn a_second_server_does_not_listen() -> Result {
    let _test = device_test();
    let (_turn, paths) = memories()?;
    for path in &paths {
        let _other = Other::new(path)?;
        let layout = Layout::new(1, LEN)?;
        let all = PmemMap::open(path, layout.len())?;
        let before = bytes(&all)?;
        let at = format!("{}:0", addr()).parse()?;
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC;
        let server = Server::listen(at, &all, &layout, usage, &ServerCfg::new());
        assert!(is_locked(server), "{path:?}");
        assert!(bytes(&all)? == before, "no byte changes");
    }
    Ok(())
}

/// Promise: two device nodes of one device have two locks. The mark in the memory stops the second
/// server, and names both, until the operator's word.
#[test]
#[cfg(not(feature = "sim"))]
fn two_nodes_of_one_device_have_one_server() -> Result {
    use std::os::unix::fs::MetadataExt;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let path = PathBuf::from(devdax());
    cleared(&path)?;
    let folder = tempfile::tempdir_in("/dev")?;
    let node = folder.path().join("dax");
    let device = std::fs::metadata(&path)?.rdev();
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, &node, FileType::CharacterDevice, mode, device)?;
    let other = Other::new(&path)?;
    let error = directory(&node).err().ok_or("it is refused")?;
    assert!(matches!(error, Error::Claimed(_)), "{error}");
    for path in [&path, &node] {
        let inode = format!("the inode {} ", std::fs::metadata(path)?.ino());
        says(&error, &inode);
    }
    other.send(Signal::STOP)?;
    assert!(directory(&node).is_err(), "it is only frozen");
    drop(other);
    // It was killed, so its mark stays: only the operator knows that it has ended.
    let error = directory(&node).err().ok_or("it is refused")?;
    assert!(matches!(error, Error::Claimed(_)), "{error}");
    let memory = PmemMap::open(&node, LEN)?;
    Directory::other_is_gone(&memory)?;
    drop(memory);
    drop(directory(&node)?);
    drop(directory(&path)?);
    Ok(())
}

/// Promise: a forked child keeps the lock, as it keeps the queue pairs.
#[test]
fn a_forked_child_has_the_lock() -> Result {
    let (_turn, paths) = memories()?;
    for path in &paths {
        let first = directory(path)?;
        // SAFETY: the child only sleeps and exits, which is safe after a fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: it takes no pointers.
                unsafe { libc::pause() };
            }
        }
        assert!(child > 0, "no fork");
        drop(first);
        assert!(is_locked(directory(path)), "{path:?}: the child has it");
        let pid = Pid::from_raw(child).ok_or("a process")?;
        kill_process(pid, Signal::KILL)?;
        rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())?;
        // Another test's child may have the lock between its fork and its exec.
        until("the lock has ended", || !is_locked(directory(path)));
    }
    Ok(())
}

/// Promise: on the fabric, too, a memory has one server. The lock ends with `kill` and with a power
/// cut, and the next server replaces the mark.
#[test]
#[cfg(feature = "sim")]
fn a_simulated_memory_has_one_server() -> Result {
    let (_fabric, [host]) = Rig::strict().hosts(["server"]);
    let pmem = host.pmem("memory", LEN);
    let entered = host.enter();
    let mut first = directory(pmem.path())?;
    assert!(is_locked(directory(pmem.path())));
    first.keep(identity(7, 3, 1))?;
    host.kill();
    drop(entered);
    let entered = host.enter();
    let second = directory(pmem.path())?;
    drop(first);
    let locked = is_locked(directory(pmem.path()));
    assert!(locked, "a dead program unlocks nothing");
    assert_eq!(second.get(7), Some(identity(7, 3, 1)));
    host.power_cut();
    host.restart();
    drop(entered);
    let _entered = host.enter();
    assert_eq!(directory(pmem.path())?.get(7), Some(identity(7, 3, 1)));
    Ok(())
}
