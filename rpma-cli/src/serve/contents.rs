//! [`Contents`]: the bytes of persistent memory that a server may overwrite.
//!
//! Memory has no data of a user if it is all zero. A server marks it before the first client can
//! write to it, and makes it zero again at its end. After a kill the mark stays: it has the number
//! of bytes that servers have overwritten, all of them from the beginning of the memory on. The next
//! server may overwrite these, and no others.
//!
//! Every step leaves either no mark, or the number of bytes without a user's data. So the bytes
//! that `--overwrite` permits are zero before the mark counts them.

use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rpma::pmem::PmemMap;

use crate::problem::{Problem, Result};

/// The beginning of a mark. The number follows, in 8 bytes.
const MARK: [u8; 25] = *b"overwritten by rpma serve";
/// `EWOULDBLOCK`: another program has the lock.
const WOULD_BLOCK: i32 = 11;
/// The bytes of a mark.
const LEN: usize = MARK.len() + 8;
/// The place of the library's mark of the server that has the memory.
const CLAIM_AT: usize = 64;
/// A process that was killed has the lock until the kernel has destroyed its objects.
const LOCK_LIMIT: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(100);
/// The bytes that are read or written at once.
const STEP: usize = 1 << 20;

/// The bytes of a server's memory that servers have overwritten.
#[derive(Debug)]
pub(super) struct Contents {
    /// Their number according to the mark. It can be larger than the memory that is offered. 0
    /// without a mark.
    marked: usize,
    /// Whether the bytes after them have data, which may be lost.
    has_data: bool,
    /// The memory that is offered, and its beginning with the marks, which no client can write to.
    all: PmemMap,
}

impl Contents {
    /// Looks at the first `size` bytes of a memory. It is an error if they have data that may not
    /// be lost, or if another server has the memory. `other_is_gone` is the operator's word that this
    /// server has ended.
    pub(super) fn look(
        path: &Path,
        all: &PmemMap,
        size: usize,
        overwrite: bool,
        other_is_gone: bool,
    ) -> Result<Self> {
        lock(path, all)?;
        let marked = marked(all)?;
        // Without its own mark, the memory has a user's bytes or zeros there.
        if marked != 0 {
            if other_is_gone {
                all.forget_claim(CLAIM_AT)?;
            }
            all.check_claim(CLAIM_AT)?;
        }
        let has_data = !is_zero(all, marked..size)?;
        if has_data && !overwrite {
            Err(Problem::new(
                format!(
                    "{} has data in its first {size} bytes, and clients overwrite them",
                    path.display()
                ),
                "If you do not need the data, add --overwrite",
            ))
        } else {
            Ok(Self {
                marked,
                has_data,
                all: all.part(..size)?,
            })
        }
    }

    /// Marks the memory, before a client can write to it.
    pub(super) fn begin(&mut self) -> rpma::Result<()> {
        let size = self.all.len();
        if self.marked < size {
            if self.has_data {
                zero(&self.all, self.marked..size)?;
                self.has_data = false;
            }
            mark(&self.all, size)?;
            self.marked = size;
        }
        self.all.claim(CLAIM_AT)
    }

    /// Makes the marked bytes zero, when no client can write any more. Returns a line for the
    /// operator, if there was a mark.
    pub(super) fn end(&mut self) -> rpma::Result<Option<String>> {
        if self.marked == 0 {
            return Ok(None);
        }
        let size = self.all.len();
        zero(&self.all, LEN..self.marked.min(size))?;
        if self.marked > size {
            return Ok(Some(format!(
                "the memory keeps the mark of an earlier server. To make it zero, start a server \
                 with --size {}, and end it with ctrl-c",
                self.marked
            )));
        }
        // Last: without it, the other bytes would be a user's.
        zero(&self.all, 0..LEN)?;
        self.marked = 0;
        Ok(Some(
            "the bytes that were overwritten are zero again".to_owned(),
        ))
    }
}

/// Takes the lock of the memory. Another server may be ending.
fn lock(path: &Path, all: &PmemMap) -> Result {
    let began = Instant::now();
    loop {
        match all.lock() {
            Err(error) if error.raw_os_error() == Some(WOULD_BLOCK) => {
                if began.elapsed() >= LOCK_LIMIT {
                    return Err(Problem::new(
                        format!("another server has {}: {error}", path.display()),
                        "End the other server: `fuser -v` with this path names it",
                    ));
                }
                thread::sleep(LOCK_PAUSE);
            }
            locked => return Ok(locked?),
        }
    }
}

/// The number of a mark.
fn marked(all: &PmemMap) -> Result<usize> {
    let (mut mark, mut number) = ([0; MARK.len()], [0; 8]);
    if all.len() < LEN {
        return Ok(0);
    }
    all.read_at(0, &mut mark)?;
    all.read_at(MARK.len(), &mut number)?;
    let number = usize::try_from(u64::from_le_bytes(number)).unwrap_or(usize::MAX);
    Ok(if mark == MARK && number >= LEN {
        number.min(all.len())
    } else {
        0
    })
}

/// Writes a mark. Until the last step there is none, so that a power cut leaves no other number.
fn mark(all: &PmemMap, number: usize) -> rpma::Result<()> {
    zero(all, 0..MARK.len())?;
    write(all, MARK.len(), &(number as u64).to_le_bytes())?;
    write(all, 0, &MARK)
}

fn write(all: &PmemMap, at: usize, bytes: &[u8]) -> rpma::Result<()> {
    all.write_at(at, bytes)?;
    all.persist(at..at + bytes.len())
}

fn zero(all: &PmemMap, range: Range<usize>) -> rpma::Result<()> {
    let zeros = vec![0; range.len().min(STEP)];
    for at in range.clone().step_by(STEP) {
        write(all, at, &zeros[..STEP.min(range.end - at)])?;
    }
    Ok(())
}

fn is_zero(map: &PmemMap, range: Range<usize>) -> Result<bool> {
    let mut bytes = vec![0; range.len().min(STEP)];
    for at in range.clone().step_by(STEP) {
        let len = STEP.min(range.end - at);
        map.read_at(at, &mut bytes[..len])?;
        if bytes[..len].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const SIZE: usize = 8192;

    /// Promise: a server waits for one that is ending.
    #[test]
    fn a_server_waits_for_one_that_ends() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), [0; SIZE]).expect("written");
        let map = || PmemMap::open(file.path(), SIZE).expect("mapped");
        let look = |all: &PmemMap| Contents::look(file.path(), all, SIZE, false, false);
        let ending = map();
        ending.lock().expect("locked");
        let began = Instant::now();
        let ends = thread::spawn(move || {
            thread::sleep(3 * LOCK_PAUSE);
            drop(ending);
        });
        look(&map()).expect("the lock is free in time");
        ends.join().expect("no panic");
        assert!(began.elapsed() >= 3 * LOCK_PAUSE);
    }
}
