//! [`Conn::commit`]: data, and then the pointer that shows it, durable with one post.
//!
//! The usual commit is checked by one condition and posted at once: only its requests are written.
//! Any other commit is a [`Batch`](super::Batch) of the same operations. The batch checks every
//! case and names each error.

use super::short::{by_itself, usually};
use super::{Batch, Conn};
use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::flush::{FlushMethod, FlushType};
use crate::mr::{MrSlice, RemoteSlice};
use crate::posted::Posted;
use crate::slots::{Kind, PostRefusal, PostResult, Wanted, waited};
use crate::verbs::{
    Commit, CommitPart, CommitPointer, LocalBuffer, MAX_COMMIT_PARTS, Placement, PostError,
    Posting, RemoteAddress,
};

/// How many bytes more than the parts themselves one native flush may cover. The peer's device, or
/// soft-RoCE's kernel, writes back the data in the range: another flush costs less than many lines.
const GAPS: u64 = 4096;

/// The most requests of a commit: each part and its flush, the pointer and its flush. One flush of
/// all parts, which are 2³¹ bytes long and have gaps, takes one more than they are.
const BATCH: usize = 2 * MAX_COMMIT_PARTS + 3;

/// A part of a commit: where it goes, and its bytes.
pub(crate) type Part<'mr> = (RemoteSlice, MrSlice<'mr>);

impl CommitPart for Part<'_> {
    #[inline(always)]
    fn remote(&self) -> RemoteAddress {
        self.0.address()
    }

    #[inline(always)]
    fn local(&self) -> LocalBuffer<'_> {
        self.1.buffer()
    }
}

/// The pointer of a commit: where it is, and its bytes.
pub(crate) type Pointer = (RemoteSlice, [u8; 8]);

impl CommitPointer for Pointer {
    #[inline(always)]
    fn place(&self) -> Option<(RemoteAddress, &[u8; 8])> {
        Some((self.0.address(), &self.1))
    }
}

/// # Commit
impl Conn {
    /// The most parts that a [`commit`](Self::commit) can have.
    pub const MAX_COMMIT_PARTS: usize = MAX_COMMIT_PARTS;

    /// Writes `parts`, flushes them, then writes the 8 bytes of `pointer`, and flushes these: all
    /// with one post and one doorbell. When the returned operation has completed, all of it is
    /// durable or visible, as after a [`flush`](Self::flush) of `flush_type`. With
    /// [`FlushType::Persistent`], if the new pointer survives a loss of power, all bytes of the
    /// commit's parts survive as well. [`FlushType::Visibility`] gives no guarantee for a loss of
    /// power.
    ///
    /// Without a pointer it only writes and flushes. Several commits may be in flight: their
    /// pointers are written in the order of the posts. A commit must not overwrite bytes to which
    /// the pointer of an earlier commit leads.
    ///
    /// Only the last flush has a completion. The commit takes a send-queue slot for each request:
    /// each part, each flush and the pointer. A fallback flush, which is a read, covers all parts
    /// of a region together. So does a native flush if the gaps between the parts are at most 4
    /// KiB altogether. Otherwise each part has a flush of its own. The source memory of the parts
    /// must not change before the completion. The pointer's bytes travel with the request.
    ///
    /// ```no_run
    /// use rpma::{Conn, Error, FlushType, Mr, MrRemote};
    /// use std::time::Duration;
    ///
    /// /// Appends a record of 64 bytes at `at`, and shows it by the new length in the first 8 bytes.
    /// fn append<M>(conn: &Conn, log: &MrRemote, at: u64, record: &Mr<M>) -> Result<(), Error> {
    ///     let parts = [(log.slice(at..at + 64)?, record.slice(..64)?)];
    ///     let tail = (log.slice(..8)?, (at + 64).to_le_bytes());
    ///     let posted = conn.commit(&parts, Some(tail), FlushType::Persistent, 0)?;
    ///     conn.wait_for(posted, Duration::from_secs(10), |_other| {})?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write), [`flush`](Self::flush) and [`atomic_write`](Self::atomic_write);
    /// the text names the part. [`Error::InvalidArgument`] also if there are no parts or more than
    /// [`MAX_COMMIT_PARTS`](Self::MAX_COMMIT_PARTS), if a part has 0 bytes, or if the pointer lies
    /// in a part. [`Error::NotSupported`] also if the devices give no order between the flush and
    /// the pointer: see `atomic_write`. After each of these errors no operation was sent. After
    /// [`Error::Provider`] the device may have some of the operations.
    #[inline(always)]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn commit(
        &self,
        parts: &[(RemoteSlice, MrSlice<'_>)],
        pointer: Option<(RemoteSlice, [u8; 8])>,
        flush_type: FlushType,
        op_context: u64,
    ) -> Result<Posted> {
        let _posting = Posting::of(op_context);
        let pointer = pointer.as_ref();
        let Some((hull, data)) = self.commits_simply(parts, pointer, flush_type) else {
            let number = self.commit_any(parts, pointer, (flush_type, op_context));
            return match number {
                Ok(number) => Ok(self.queues.slots.name(number, true)),
                Err(error) => Err(*error),
            };
        };
        let hull = (hull.address(), hull.len());
        let placement = Placement::new(flush_type == FlushType::Persistent);
        // Two types: with an `Option` a commit of one part takes 252 instructions in the place of 225.
        let (posted, count) = match pointer {
            Some(pointer) => {
                let commit = Commit {
                    parts,
                    hull,
                    pointer,
                    placement,
                };
                let posted = self.post_commit(&commit, data + 8, op_context);
                (posted, commit.requests())
            }
            None => {
                let commit = Commit {
                    parts,
                    hull,
                    pointer: &(),
                    placement,
                };
                let posted = self.post_commit(&commit, data, op_context);
                (posted, commit.requests())
            }
        };
        match posted {
            Ok(number) => Ok(self.queues.slots.name(number, true)),
            Err(refusal) => Err(*self.commit_refused(refusal, count)),
        }
    }

    /// In a box: [`super::check`] has the reason.
    #[cold]
    #[inline(never)]
    fn commit_refused(&self, refusal: PostRefusal, count: u32) -> Box<Error> {
        Box::new(self.queues.send_refused(refusal, "commit", count))
    }

    /// Posts all requests, or no request.
    #[inline(always)]
    fn post_commit<P: CommitPointer>(
        &self,
        commit: &Commit<'_, Part<'_>, P>,
        data: u64,
        op_context: u64,
    ) -> Result<u64, PostRefusal> {
        match &self.flush_method {
            FlushMethod::Read(_) => self.post_commit_by::<false, _>(commit, data, op_context),
            FlushMethod::Native => self.post_commit_by::<true, _>(commit, data, op_context),
        }
    }

    /// Not inlined: its callers need no registers kept for it.
    #[inline(never)]
    fn post_commit_by<const NATIVE: bool, P: CommitPointer>(
        &self,
        commit: &Commit<'_, Part<'_>, P>,
        data: u64,
        op_context: u64,
    ) -> Result<u64, PostRefusal> {
        match self.try_commit::<NATIVE, false, _>(commit, data, op_context) {
            Some(posted) => Ok(posted?),
            None => self.wait_commit::<NATIVE, _>(commit, data, op_context),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_commit<const NATIVE: bool, P: CommitPointer>(
        &self,
        commit: &Commit<'_, Part<'_>, P>,
        data: u64,
        op_context: u64,
    ) -> Result<u64, PostRefusal> {
        waited(self.try_commit::<NATIVE, true, _>(commit, data, op_context))
    }

    #[inline(always)]
    fn try_commit<const NATIVE: bool, const WAITS: bool, P: CommitPointer>(
        &self,
        commit: &Commit<'_, Part<'_>, P>,
        data: u64,
        op_context: u64,
    ) -> PostResult {
        let wanted = Wanted::one_operation(commit.requests(), true);
        self.queues
            .slots
            .post_sends::<WAITS>(wanted, data, |mut entries| {
                let number = || Kind::Send.wr_id(entries.take(op_context));
                self.give_commit::<NATIVE, _>(commit, number)?;
                Ok(commit.requests())
            })
    }

    #[inline(always)]
    fn give_commit<const NATIVE: bool, P: CommitPointer>(
        &self,
        commit: &Commit<'_, Part<'_>, P>,
        number: impl FnMut() -> u64,
    ) -> Result<(), PostError> {
        let qp = &self.queues.qp;
        // Without these operations in rdma-core no queue pair has them.
        #[cfg(all(native_flush, native_atomic_write))]
        if NATIVE {
            return qp.post_native_commit(commit, number);
        }
        let (target, after_flushes) = (self.short.flush_target, self.short.after_flushes);
        qp.post_reading_commit(commit, (target, after_flushes), number)
    }

    /// The part that one flush has to cover, and the bytes of all parts, if the commit is complete
    /// and of the usual kind: one flush covers all parts, in one region.
    #[inline(always)]
    fn commits_simply(
        &self,
        parts: &[Part<'_>],
        pointer: Option<&Pointer>,
        flush_type: FlushType,
    ) -> Option<(RemoteSlice, u64)> {
        let ((region, source), more) = parts.split_first()?;
        let is_usual = usually(more.len() < MAX_COMMIT_PARTS)
            && self.takes_part(region, source)
            && usually(!region.is_empty());
        if !is_usual {
            return None;
        }
        // Copies: no value in memory is read again for each part.
        let (region, source) = (*region, *source);
        let ((mut first, mut last), mut sum) = (region.ends(), region.len());
        for (dst, src) in more {
            let is_usual = dst.is_beside(&region)
                && (by_itself(src.is_like(&source)) || self.takes_source(src))
                && src.is_as_long_as(dst)
                && usually(!dst.is_empty());
            if !usually(is_usual) {
                return None;
            }
            let ends = dst.ends();
            (first, last) = (first.min(ends.0), last.max(ends.1));
            sum += dst.len();
        }
        // No part is longer than all together. Right ones that are too long together go the long
        // way.
        if !by_itself(sum.wrapping_sub(1) < self.longest_message()) {
            return None;
        }
        let hull = region.between((first, last));
        if matches!(self.flush_method, FlushMethod::Native) && !by_itself(hull.len() <= sum + GAPS)
        {
            return None;
        }
        // A pointer in the same region has its rights.
        let is_right = self.commits_at(&hull, flush_type)
            && pointer.is_none_or(|(dst, _)| {
                by_itself(dst.is_beside(&region))
                    && self.points_at(dst)
                    && usually(!hull.has_byte_of(dst))
            });
        usually(is_right).then_some((hull, sum))
    }

    /// As a batch, which checks every case and names each error.
    #[inline(never)]
    #[cfg_attr(feature = "sim", track_caller)]
    fn commit_any(
        &self,
        parts: &[Part<'_>],
        pointer: Option<&Pointer>,
        (flush_type, op_context): (FlushType, u64),
    ) -> Result<u64, Box<Error>> {
        let mut batch = self.batch::<BATCH>();
        self.add_commit(&mut batch, parts, pointer, (flush_type, op_context))?;
        Ok(batch.post_as("commit")?.number())
    }

    /// Checks everything that [`commit`](Self::commit) checks before it posts, except that the
    /// connection takes operations and has room for them. It does not post.
    pub(crate) fn check_commit(
        &self,
        parts: &[Part<'_>],
        pointer: Option<&Pointer>,
        flush_type: FlushType,
    ) -> Result<()> {
        match self.commits_simply(parts, pointer, flush_type) {
            Some(_) => Ok(()),
            None => self.add_commit(&mut self.batch::<BATCH>(), parts, pointer, (flush_type, 0)),
        }
    }

    fn add_commit<'a>(
        &'a self,
        batch: &mut Batch<'a, BATCH>,
        parts: &[Part<'a>],
        pointer: Option<&'a Pointer>,
        (flush_type, op_context): (FlushType, u64),
    ) -> Result<()> {
        check_parts(parts, pointer)?;
        // The error of one write and its flush needs no place.
        let is_one = parts.len() == 1 && pointer.is_none();
        let named = |name: &str, error| if is_one { error } else { in_words(name, error) };
        let of_part = |n: usize, error| named(&format!("part {} of {}", n + 1, parts.len()), error);
        for (n, (dst, src)) in parts.iter().enumerate() {
            let added = batch.write(*dst, *src, PLAIN, op_context);
            added.map_err(|error| of_part(n, error))?;
        }
        let last = match pointer {
            Some(_) => PLAIN,
            None => Flags::COMPLETION_ALWAYS,
        };
        let (flushes, count) = self.flushes_of(parts);
        for (n, flush) in flushes[..count].iter().enumerate() {
            let flags = if n + 1 == count { last } else { PLAIN };
            let added = batch.flush(*flush, flush_type, flags, op_context);
            added.map_err(|error| named("the flush of the parts", error))?;
        }
        if let Some((dst, bytes)) = pointer {
            let added = batch.atomic_write(*dst, bytes, PLAIN, op_context);
            added.map_err(|error| in_words("the pointer", error))?;
            let added = batch.flush(*dst, flush_type, Flags::COMPLETION_ALWAYS, op_context);
            added.map_err(|error| in_words("the flush of the pointer", error))?;
        }
        Ok(())
    }

    /// The flushes of these parts, and their number. For each region this is one part that covers
    /// its parts. A native flush covers each part by itself if the range would be much larger.
    fn flushes_of(&self, parts: &[Part<'_>]) -> ([RemoteSlice; MAX_COMMIT_PARTS], usize) {
        let mut flushes = [RemoteSlice::EMPTY; MAX_COMMIT_PARTS];
        let (mut sums, mut count) = ([0; MAX_COMMIT_PARTS], 0);
        for (dst, _) in parts {
            let known = flushes[..count].iter().position(|hull| hull.is_beside(dst));
            let at = known.unwrap_or(count);
            flushes[at] = match known {
                Some(at) => {
                    let (hull, more) = (flushes[at].ends(), dst.ends());
                    dst.between((hull.0.min(more.0), hull.1.max(more.1)))
                }
                None => *dst,
            };
            sums[at] += dst.len();
            count = count.max(at + 1);
        }
        let native = matches!(self.flush_method, FlushMethod::Native);
        let is_wide = |(hull, sum): (&RemoteSlice, &u64)| hull.len() > sum + GAPS;
        if native && flushes[..count].iter().zip(&sums).any(is_wide) {
            count = parts.len();
            for (flush, (dst, _)) in flushes.iter_mut().zip(parts) {
                *flush = *dst;
            }
        }
        (flushes, count)
    }
}

/// Refuses parts that the operations of a commit would accept.
pub(crate) fn check_parts(parts: &[Part<'_>], pointer: Option<&Pointer>) -> Result<()> {
    if !(1..=MAX_COMMIT_PARTS).contains(&parts.len()) {
        return Err(Error::invalid(format!(
            "a commit of {} parts: it has 1 to {MAX_COMMIT_PARTS}",
            parts.len()
        )));
    }
    for (n, (dst, src)) in parts.iter().enumerate() {
        let name = || format!("part {} of {}", n + 1, parts.len());
        if dst.is_empty() || src.is_empty() {
            return Err(Error::invalid(format!("{} has 0 bytes", name())));
        }
        let Some((to, _)) = pointer.filter(|(to, _)| !to.is_empty()) else {
            continue;
        };
        let ((first, last), (begin, end)) = (dst.ends(), to.ends());
        if begin <= last && end >= first {
            return Err(Error::invalid(format!(
                "the pointer lies in {}, {} bytes after its beginning: that part is written before it",
                name(),
                i128::from(begin) - i128::from(first)
            )));
        }
    }
    Ok(())
}

#[cold]
fn in_words(operation: &str, error: Error) -> Error {
    match error {
        Error::InvalidArgument(_) => Error::invalid(format!("{operation}: {error}")),
        Error::NotSupported(_) => Error::not_supported(format!("{operation}: {error}")),
        error => error,
    }
}

/// The flags of all operations except the last.
const PLAIN: Flags = Flags::COMPLETION_ON_ERROR;
