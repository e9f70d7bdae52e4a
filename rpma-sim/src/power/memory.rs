//! Memory that is called persistent: mappings that have a path.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::map::Map;
use super::off::boot;
use super::present::touched;
use super::store::{PAGE, Store};
use crate::fabric::{self, Host};
use crate::late;
use crate::state::Shared;

/// And large memory, as a device-DAX is.
const LARGE: usize = 2 << 20;

/// The alignment of mappings of so many bytes.
pub(crate) fn align(len: usize) -> usize {
    if len < LARGE { PAGE } else { LARGE }
}

/// Memory that a path leads to: the target of a mapping of a host's program, or an image of it.
#[derive(Debug)]
pub struct Memory {
    map: Map,
    owner: Owner,
    /// Whether a program has its lock. After a power cut or `kill`, the host has a new `Memory`.
    is_locked: AtomicBool,
}

#[derive(Debug)]
pub(crate) enum Owner {
    /// Number `pmem` of a fabric.
    Host { shared: Weak<Shared>, pmem: usize },
    /// An image that a power cut may leave, which belongs to no host.
    Image,
}

impl Memory {
    /// Memory that holds the bytes of a store. Its other pages are not touched.
    pub(crate) fn new(store: &Store, owner: Owner) -> Self {
        let mut map = Map::zeros(store.len()).unwrap_or_else(|error| {
            panic!("no persistent memory of {} bytes: {error}", store.len())
        });
        for (number, page) in store.pages() {
            map.write(number * PAGE, page);
        }
        Self::with(map, owner)
    }

    fn with(map: Map, owner: Owner) -> Self {
        Self {
            map,
            owner,
            is_locked: AtomicBool::new(false),
        }
    }

    /// Memory in a mapping that no other code has.
    #[cfg(not(miri))]
    pub(super) fn of(map: Map, owner: Owner) -> Self {
        Self::with(map, owner)
    }

    /// The parts that may differ from zeros.
    pub(super) fn touched(&self) -> Vec<Range<usize>> {
        touched(self.as_ptr().addr(), self.len())
    }

    /// Its bytes, if no path leads to it: no program can write to it then.
    pub(super) fn bytes(&self) -> &[u8] {
        self.map.bytes()
    }

    /// Its first byte. It stays there until the last reference to it is dropped.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.as_ptr()
    }

    /// Its length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// The alignment of mappings of it, at both ends: a page, or a large one of 2 MiB, as of a
    /// device-DAX.
    #[must_use]
    pub fn align(&self) -> usize {
        align(self.len())
    }

    /// The program has written these bytes back from its caches, and waited for it.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the program that mapped the memory was killed, or its host has lost its power,
    /// since: a program that is dead acknowledges nothing.
    ///
    /// # Panics
    ///
    /// If the range is not inside.
    pub fn persisted(&self, range: Range<usize>) -> io::Result<()> {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "inside"
        );
        if let Owner::Host { shared, pmem } = &self.owner {
            if let Some(shared) = shared.upgrade() {
                shared.lock().written_back(*pmem, self, &range)?;
            }
        }
        Ok(())
    }

    /// Takes the exclusive lock, as `flock` does on a file. Returns whether it was free.
    #[must_use]
    pub fn lock(&self) -> bool {
        !self.is_locked.swap(true, Ordering::AcqRel)
    }

    /// Gives the lock back.
    pub fn unlock(&self) {
        self.is_locked.store(false, Ordering::Release);
    }

    /// The numbers of its device and its inode, the same over power cuts and kills.
    #[must_use]
    pub fn node(&self) -> (u64, u64) {
        match &self.owner {
            Owner::Host { pmem, .. } => (0, *pmem as u64 + 1),
            Owner::Image => (0, 0),
        }
    }

    /// The identity of its host's boot. An image has that of a boot after the loss of power.
    #[must_use]
    pub fn boot(&self) -> [u8; 24] {
        let of_host = |shared: Arc<Shared>, pmem: usize| {
            let state = shared.lock_to_look();
            state.boot(state.power.pmems[pmem].host)
        };
        match &self.owner {
            Owner::Host { shared, pmem } => {
                let shared = shared.upgrade();
                shared.map_or(boot([0; 3]), |shared| of_host(shared, *pmem))
            }
            Owner::Image => boot([0; 3]),
        }
    }

    /// Its identity, which stays over power cuts: that of its host, and its own number. `None` for
    /// an image.
    #[must_use]
    pub fn identity(&self) -> Option<[u8; 24]> {
        let Owner::Host { shared, pmem } = &self.owner else {
            return None;
        };
        let fabric = shared.upgrade()?.lock_to_look().power.identity;
        Some(boot([fabric, *pmem as u64 + 1, u64::MAX]))
    }

    /// The kernel's word for the persistence domain on its host's [platform](crate::Platform), as
    /// in `persistence_domain` of sysfs. `None` for volatile memory and for an image.
    #[must_use]
    pub fn persistence_domain(&self) -> Option<&'static str> {
        let Owner::Host { shared, pmem } = &self.owner else {
            return None;
        };
        let shared = shared.upgrade()?;
        shared.lock_to_look().persistence_domain(*pmem)
    }

    /// The program has read these bytes, and so they are visible. They are inside.
    fn seen(&self, range: &Range<usize>) {
        if let Owner::Host { shared, pmem } = &self.owner {
            if let Some(shared) = shared.upgrade() {
                shared.lock_quietly().seen(*pmem, self, range);
            }
        }
    }

    /// The fabric that has it, and its number there. `None` for an image.
    pub(super) fn fabric(&self) -> Option<(Arc<Shared>, usize)> {
        match &self.owner {
            Owner::Host { shared, pmem } => Some((shared.upgrade()?, *pmem)),
            Owner::Image => None,
        }
    }

    pub(crate) fn range_of(&self, start: usize, len: usize) -> Option<Range<usize>> {
        let from = start.checked_sub(self.as_ptr().addr())?;
        let to = from.checked_add(len)?;
        (to <= self.len()).then_some(from..to)
    }
}

#[derive(Default)]
struct Paths(BTreeMap<PathBuf, Entry>);

struct Entry {
    /// `None` while its host has no power.
    memory: Option<Arc<Memory>>,
    /// The programs that find it: every program finds an image.
    finders: Option<Finders>,
}

/// The threads of a host.
#[derive(Clone, Debug)]
pub(crate) struct Finders {
    pub(crate) shared: Weak<Shared>,
    pub(crate) host: usize,
    pub(crate) name: String,
}

static PATHS: Mutex<Option<Paths>> = Mutex::new(None);

/// The number of entries, so that no lock is taken if it is 0.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Where all paths begin.
pub(crate) const ROOT: &str = "/rpma-sim";

fn with_paths<T>(run: impl FnOnce(&mut BTreeMap<PathBuf, Entry>) -> T) -> T {
    let mut paths: MutexGuard<'_, Option<Paths>> =
        PATHS.lock().unwrap_or_else(PoisonError::into_inner);
    let paths = &mut paths.get_or_insert_default().0;
    let result = run(paths);
    COUNT.store(paths.len(), Ordering::Relaxed);
    result
}

/// Lets a path lead to a memory, or to an error while it is `None`. It takes no lock but its own.
pub(crate) fn publish(path: &Path, memory: Option<Arc<Memory>>, finders: Option<Finders>) {
    let entry = Entry { memory, finders };
    // The old entry is dropped without the lock.
    let _before = with_paths(|paths| paths.insert(path.to_owned(), entry));
}

pub(crate) fn withdraw(path: &Path) {
    let _before = with_paths(|paths| paths.remove(path));
}

/// The simulated memory at a path, or `None` if the path is not of a simulated host.
///
/// # Errors
///
/// Its host has no power, or the calling thread is not on that host.
#[doc(hidden)]
pub fn memory_at(path: &Path) -> Option<io::Result<Arc<Memory>>> {
    if COUNT.load(Ordering::Relaxed) == 0 || !path.starts_with(ROOT) {
        return None;
    }
    let found = with_paths(|paths| {
        let entry = paths.get(path)?;
        Some((entry.memory.clone(), entry.finders.clone()))
    });
    let (memory, finders) = found?;
    let Some(Finders { shared, host, name }) = finders else {
        return memory.map(Ok);
    };
    let error = |text: String| Some(Err(io::Error::new(io::ErrorKind::NotFound, text)));
    let Some(memory) = memory else {
        return error(format!("the host {name} has no power: restart it"));
    };
    match Host::current() {
        Some(current) if current.is(&shared, host) => Some(Ok(memory)),
        Some(other) => error(format!(
            "it is memory of the host {name}, and this thread is on {}",
            other.name()
        )),
        None => error(format!(
            "it is memory of the host {name}, and this thread is on no host: see Host::enter"
        )),
    }
}

/// The identity of the boot of the calling thread's host. `Some(None)`: the thread is on no host,
/// and there is a fabric. `None`: there is no fabric, and so the kernel's own identity counts.
#[doc(hidden)]
#[must_use]
pub fn boot_here() -> Option<Option<[u8; 24]>> {
    match Host::current() {
        Some(host) => Some(Some(host.shared().lock_to_look().boot(host.index()))),
        None => fabric::is_any_alive().then_some(None),
    }
}

/// Reports to the fabric that the program itself has written bytes back from its caches, and has
/// waited for it (`clwb` and `sfence`, or `pmem_persist` of libpmem).
///
/// See [`Host::pmem`](crate::Host::pmem). `PmemMap::persist` and `Mr::persist` report it by
/// themselves.
///
/// The call ignores bytes outside of simulated memory. So it may stay in a program that runs with
/// a real device. Forgetting it gives a false alarm, and never hides a loss.
pub fn persisted(start: *const u8, len: usize) {
    if let Some((memory, range)) = memory_of(start, len) {
        // The error would be that of a program that is dead.
        let _ = memory.persisted(range);
    }
}

/// Reports to the fabric that the program has read bytes through a pointer. Such bytes are
/// visible: they have left the device.
///
/// Call it after the read, in the same thread. `Mr::read_at`, `Mr::load_u64` and their like do so
/// by themselves. Forgetting the call gives a false alarm where a program reads a peer's write
/// through a pointer and then writes it back from its caches. It never hides a loss.
///
/// The call ignores bytes outside of simulated memory, as [`persisted`] does.
pub fn seen(start: *const u8, len: usize) {
    late::read(start, len);
    if let Some((memory, range)) = memory_of(start, len) {
        memory.seen(&range);
    }
}

/// The memory that bytes are of, if they are of a simulated one, and where.
pub(super) fn memory_of(start: *const u8, len: usize) -> Option<(Arc<Memory>, Range<usize>)> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    with_paths(|paths| {
        let memories = paths.values().filter_map(|entry| entry.memory.as_ref());
        let mut found = memories.filter_map(|memory| {
            let range = memory.range_of(start.addr(), len)?;
            Some((Arc::clone(memory), range))
        });
        found.next()
    })
}
