//! One server for one memory: the lock of a file or device, and the mark of its owner.
//!
//! The lock belongs to an inode, and each container has device nodes of its own. So the memory
//! also has a mark, which names the host's boot and the locked inode ([one server for one
//! memory](crate::guide::persistence#one-server-for-one-memory)).
//!
//! The mapping owns both: it clears the mark and closes the descriptor when it is dropped, after
//! the last part and the last registered region. Until then, a queue pair may write there.

use std::fs::File;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock, major, minor};
use rustix::io::Errno;

use super::{Mapping, PmemMap};
use crate::error::{Error, Result};

/// The bytes of a mark: a word that decides, and three words for the operator.
pub(crate) const MARK_LEN: usize = 32;

/// The inode of a mapped file or device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// The target of a lock, and the marks that end with the mapping.
#[derive(Debug)]
pub(super) struct Claims {
    /// `None` for memory of a simulated host.
    file: Option<File>,
    pub(super) node: Node,
    held: Mutex<ClaimState>,
}

#[derive(Debug, Default)]
struct ClaimState {
    is_locked: bool,
    /// The offsets in the mapping, and the words.
    marks: Vec<(usize, u64)>,
}

impl Claims {
    pub(super) fn new(file: Option<File>, node: Node) -> Self {
        Self {
            file,
            node,
            held: Mutex::default(),
        }
    }
}

/// The word of a mark that decides. A store of 8 bytes is never torn, so a mark is there or not.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Word(u64);

impl Word {
    /// The word of this host and inode. The upper half is 0 if the host has no identity.
    fn new(host: Option<u64>, node: Node) -> Self {
        let host = host.map_or(0, |host| (fold(host) | 1) << 32);
        let Node { device, inode } = node;
        let node = fold(device.rotate_left(32) ^ inode.wrapping_mul(0x9E37_79B9_7F4A_7C15)) | 1;
        Self(host | node)
    }

    /// Whether the program that wrote this mark may still be there, if `own` has the lock of its
    /// inode. If both have the same inode, the lock shows that it has ended.
    fn may_be_alive_beside(self, own: Self) -> bool {
        let (node, host) = (self.0 as u32, self.0 >> 32);
        let is_other_boot = host != 0 && own.0 >> 32 != 0 && host != own.0 >> 32;
        self.0 != 0 && node != own.0 as u32 && !is_other_boot
    }
}

fn fold(number: u64) -> u64 {
    (number ^ number >> 32) & 0xFFFF_FFFF
}

impl PmemMap {
    /// Takes the exclusive lock of the mapped file or device ([flock(2)]), for all parts of this
    /// map. A server takes it before it registers memory or listens, so that two servers never
    /// admit two writers to one memory. [`Directory`](crate::serve::Directory) and
    /// [`Server::listen`](crate::serve::Server::listen) call it. A program that only reads needs no
    /// lock.
    ///
    /// The lock ends when the last part of the map is gone, with the last registered region. A
    /// process that was forked keeps the lock as well, with the queue pairs: the descriptor closes
    /// only on `exec`. A map that has the lock can take it again.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `flock` fails. `EWOULDBLOCK`: another map has the lock. A process
    /// that was killed may have it until its adapter's objects are destroyed, so try again for some
    /// seconds. A file system without locks cannot be served.
    ///
    /// [flock(2)]: https://man7.org/linux/man-pages/man2/flock.2.html
    pub fn lock(&self) -> Result<()> {
        self.part.mapping.lock()
    }

    /// Takes the lock, and marks the memory as that of this program: 32 bytes at `offset`, which
    /// are durable when the call returns. The mark is cleared when the last part of the map is
    /// gone. A program that is killed leaves it.
    ///
    /// A [`Directory`](crate::serve::Directory) calls this with bytes of its own. Call it only for
    /// memory without a directory. The bytes are reserved for marks, and are zero before the first
    /// one.
    ///
    /// | the mark there | |
    /// |---|---|
    /// | none, of another boot, or of the same inode | replaced |
    /// | of another inode, in this boot | [`Error::Claimed`] |
    ///
    /// # Errors
    ///
    /// [`Error::Claimed`] if another program may have the memory through another inode, such as
    /// another device node in a container. The text names both.
    /// [`forget_claim`](Self::forget_claim) is the operator's word that the other program has
    /// ended. [`Error::InvalidArgument`] if the bytes reach past the end of the map, or if their
    /// address is no multiple of 8. Otherwise as [`lock`](Self::lock) and
    /// [`persist`](Self::persist).
    pub fn claim(&self, offset: usize) -> Result<()> {
        let at = self.part.at(offset, MARK_LEN)?;
        let own = self.word();
        self.lock()?;
        let mapping = &self.part.mapping;
        loop {
            let found = Word(mapping.load_u64(at)?);
            if found.may_be_alive_beside(own) {
                return Err(self.claimed(at)?);
            }
            // Another program may be here as well, under another lock.
            if mapping.replace_u64(at, found.0, own.0)? {
                break;
            }
        }
        let Node { device, inode } = mapping.claims().node;
        for (place, word) in [(at + 8, device), (at + 16, inode)] {
            mapping.store_u64(place, word.to_le())?;
        }
        mapping.persist(at..at + MARK_LEN)?;
        let mark = (at, own.0);
        mapping.held(|held| {
            if !held.marks.contains(&mark) {
                held.marks.push(mark);
            }
        });
        Ok(())
    }

    /// Takes the lock, and checks the mark at `offset` as [`claim`](Self::claim) does. It changes
    /// no byte.
    ///
    /// # Errors
    ///
    /// As [`claim`](Self::claim).
    pub fn check_claim(&self, offset: usize) -> Result<()> {
        let at = self.part.at(offset, MARK_LEN)?;
        self.lock()?;
        let found = Word(self.part.mapping.load_u64(at)?);
        if found.may_be_alive_beside(self.word()) {
            Err(self.claimed(at)?)
        } else {
            Ok(())
        }
    }

    /// Clears the mark of another program: the operator's word that this program has ended. A
    /// program that is only frozen has not ended, because its adapter still places its clients'
    /// writes. Then [`claim`](Self::claim) succeeds.
    ///
    /// # Errors
    ///
    /// As [`claim`](Self::claim), without [`Error::Claimed`].
    pub fn forget_claim(&self, offset: usize) -> Result<()> {
        let at = self.part.at(offset, MARK_LEN)?;
        self.lock()?;
        self.part.mapping.store_u64(at, 0)?;
        self.part.mapping.persist(at..at + 8)
    }

    fn word(&self) -> Word {
        Word::new(self.host(), self.part.mapping.claims().node)
    }

    #[cold]
    fn claimed(&self, at: usize) -> Result<Error> {
        let mapping = &self.part.mapping;
        let word = |at| mapping.load_u64(at).map(u64::from_le);
        let other = Node {
            device: word(at + 8)?,
            inode: word(at + 16)?,
        };
        let own = mapping.claims().node;
        Ok(Error::Claimed(
            format!(
                "a server of this host has claimed {} through {other}, and this program has it \
                 through {own}. The other server may still run, for example in another container. \
                 If it has ended: Directory::other_is_gone, or `rpma serve --other-is-gone`",
                self.path.display()
            )
            .into(),
        ))
    }
}

impl std::fmt::Display for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { device, inode } = *self;
        let (major, minor) = (major(device), minor(device));
        write!(f, "the inode {inode} of the device {major}:{minor}")
    }
}

impl Mapping {
    fn held<T>(&self, run: impl FnOnce(&mut ClaimState) -> T) -> T {
        let held = self.claims().held.lock();
        run(&mut held.unwrap_or_else(PoisonError::into_inner))
    }

    fn lock(&self) -> Result<()> {
        self.held(|held| {
            if !held.is_locked {
                self.lock_target()?;
                held.is_locked = true;
            }
            Ok(())
        })
    }

    fn lock_target(&self) -> Result<()> {
        let locked = match &self.claims().file {
            Some(file) => flock(file, FlockOperation::NonBlockingLockExclusive),
            None if self.lock_simulated() => Ok(()),
            None => Err(Errno::WOULDBLOCK),
        };
        locked.map_err(|errno| {
            let error = Error::provider("flock", std::io::Error::from(errno));
            match errno {
                Errno::WOULDBLOCK => error.with_hint(&[
                    "Another program serves this memory, or has not ended yet",
                    "one server for one memory",
                ]),
                Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS => error.with_hint(&[
                    "This file system has no locks, so a second server of the memory could not be noticed",
                    "use another one",
                ]),
                _ => error,
            }
        })
    }

    /// Clears the marks. The caller guarantees that no queue pair can write to the memory now.
    pub(super) fn end_claims(&self) {
        let held = self.held(std::mem::take);
        for (at, word) in held.marks {
            let words = [at + 8, at + 16].map(|place| self.store_u64(place, 0));
            let words = words.into_iter().collect::<Result<()>>();
            // The word that decides is last: after it, another program may claim the memory.
            let cleared = words.and_then(|()| self.replace_u64(at, word, 0));
            let cleared = cleared.and_then(|_| self.persist(at..at + MARK_LEN));
            if let Err(error) = cleared {
                log::warn!("the mark of this server stays in its memory: {error}");
            }
        }
        if held.is_locked && self.claims().file.is_none() {
            self.unlock_simulated();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), [0; 4096]).expect("written");
        file
    }

    fn map(path: &std::path::Path) -> PmemMap {
        PmemMap::open(path, 4096).expect("mapped")
    }

    /// Promise: a memory has one owner at a time, until the last part of its map is gone.
    #[test]
    fn a_second_map_has_no_lock() {
        let file = file();
        let first = map(file.path());
        let part = first.part(8..16).expect("a part");
        for _ in 0..2 {
            first.lock().expect("locked");
            part.lock().expect("the same map");
        }
        drop(first);
        let second = map(file.path());
        let error = second.lock().expect_err("refused");
        assert!(error.is_errno(Errno::WOULDBLOCK), "{error}");
        assert!(error.to_string().contains("one server for one memory"));
        second.load_u64(0).expect("readers take none");
        drop(part);
        second.lock().expect("it is free");
    }

    /// Promise: the mark is there while the map is, and cleared at its end. A mark that stays from
    /// a killed program, with the same inode, is replaced.
    #[test]
    fn a_mark_ends_with_its_map() {
        let file = file();
        let bytes = || fs::read(file.path()).expect("read");
        let first = map(file.path());
        first.claim(64).expect("claimed");
        let marked = bytes();
        assert!(marked[64..72] != [0; 8] && marked[72..80] != [0; 8]);
        drop(first);
        assert_eq!(bytes()[64..72], [0; 8]);
        fs::write(file.path(), &marked).expect("a killed program");
        map(file.path()).claim(64).expect("claimed again");
    }

    /// Promise: the mark of another inode in this boot stops a program that has its own lock, until
    /// the operator's word. The error names both inodes.
    #[test]
    fn the_mark_of_another_inode_is_refused() {
        let (file, copy) = (file(), file());
        let first = map(file.path());
        first.claim(0).expect("claimed");
        // Two device nodes of one memory: here, another file with the same bytes.
        fs::write(copy.path(), fs::read(file.path()).expect("read")).expect("written");
        let second = map(copy.path());
        second.check_claim(0).expect_err("refused");
        let error = second.claim(0).expect_err("refused");
        assert!(matches!(error, Error::Claimed(_)), "{error:?}");
        let text = error.to_string();
        for map in [&first, &second] {
            let node = map.part.mapping.claims().node.to_string();
            assert!(text.contains(&node), "{text}");
        }
        second.forget_claim(0).expect("forgotten");
        second.claim(0).expect("claimed");
    }

    /// Promise: the mark of another boot is void, and so is that of the same inode. A host without
    /// an identity counts as this one.
    #[test]
    fn marks_are_judged() {
        let node = |inode| Node { device: 5, inode };
        let own = Word::new(Some(1), node(1));
        for (other, may_be_alive) in [
            (Word(0), false),
            (own, false),
            (Word::new(Some(1), node(2)), true),
            (Word::new(Some(2), node(2)), false),
            (Word::new(Some(2), node(1)), false),
            (Word::new(None, node(2)), true),
            (Word::new(None, node(1)), false),
        ] {
            assert_eq!(other.may_be_alive_beside(own), may_be_alive);
        }
        let unknown = Word::new(None, node(1));
        assert!(Word::new(Some(1), node(2)).may_be_alive_beside(unknown));
    }

    /// Promise: of two programs that find no mark at the same time, one claims the memory.
    #[test]
    fn one_of_two_claims() {
        for _ in 0..200 {
            let (file, copy) = (file(), file());
            fs::hard_link(file.path(), copy.path().with_extension("same")).expect("linked");
            let same = copy.path().with_extension("same");
            let (one, other) = (map(file.path()), map(&same));
            fs::remove_file(same).expect("removed");
            // Without the lock, as through two inodes.
            let words = [1, 2].map(|inode| Word::new(None, Node { device: 1, inode }));
            let claimed = std::thread::scope(|scope| {
                let claims = [(&one, words[0]), (&other, words[1])].map(|(map, own)| {
                    scope.spawn(move || map.part.mapping.replace_u64(0, 0, own.0).expect("aligned"))
                });
                claims.map(|claim| claim.join().expect("no panic"))
            });
            assert_eq!(claimed.into_iter().filter(|is| *is).count(), 1);
        }
    }
}
