//! The operations of a new program: without flags, and without a number of the program.
//!
//! The name of an operation ([`Posted`]) takes the place of the number, and the flags follow from
//! the operation: a program waits for reads, sends and flushes, and a completed flush also answers
//! for the writes before it.

use std::time::Duration;

use super::Conn;
use crate::error::Result;
use crate::flags::Flags;
use crate::flush::FlushType;
use crate::mr::{MrSlice, RemoteSlice};
use crate::posted::Posted;

/// # Operations without flags
///
/// These calls are the operations [below](Conn#operations), for programs that find an operation by
/// its name ([`Posted`]) and not by a number of their own. Their errors are those of the same
/// operation with flags.
impl Conn {
    /// Writes `src` to `dst` of the peer, and returns when the bytes are durable there: they
    /// survive a loss of power.
    ///
    /// It posts the write and its [`flush`](Self::flush) of the type
    /// [`Persistent`](FlushType::Persistent) with one [`commit`](Self::commit), and waits for the
    /// flush. Completions of other operations, which it polls meanwhile, are dropped: a program
    /// with other operations in flight posts a commit, and calls [`wait_for`](Self::wait_for).
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use rpma::{Conn, Mr, Result};
    ///
    /// /// Makes a record durable at the beginning of the server's memory.
    /// fn save(conn: &Conn, record: &Mr<Vec<u8>>) -> Result<()> {
    ///     let len = record.get_size() as u64;
    ///     let memory = conn.offer()?.memory(len)?;
    ///     conn.write_durable(memory.slice(..len)?, record.slice(..)?, Duration::from_secs(10))
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotSupported`] if no flush of this connection makes data durable in the peer's
    /// memory, or if the peer's declaration is not applied ([`offer`](Self::offer)): then nothing
    /// was sent. The same after the other errors of [`commit`](Self::commit), except
    /// [`Error::Provider`]. After an error of [`wait_for`](Self::wait_for) the bytes may be in the
    /// peer's memory, in part or as a whole, and durable or not.
    ///
    /// [`Error::NotSupported`]: crate::Error::NotSupported
    /// [`Error::Provider`]: crate::Error::Provider
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn write_durable(&self, dst: RemoteSlice, src: MrSlice<'_>, limit: Duration) -> Result<()> {
        let posted = self.commit(&[(dst, src)], None, FlushType::Persistent, 0)?;
        self.wait_for(posted, limit, |_other| {})?;
        Ok(())
    }

    /// Posts a [`write`](Self::write) that has a completion only if it fails. Wait for a flush that
    /// was posted after it.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn post_write(&self, dst: RemoteSlice, src: MrSlice<'_>) -> Result<Posted> {
        self.write(dst, src, Flags::COMPLETION_ON_ERROR, 0)
    }

    /// Posts an [`atomic_write`](Self::atomic_write) that has a completion only if it fails. Wait
    /// for a flush that was posted after it.
    ///
    /// # Errors
    ///
    /// As [`atomic_write`](Self::atomic_write).
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn post_atomic_write(&self, dst: RemoteSlice, src: &[u8; 8]) -> Result<Posted> {
        self.atomic_write(dst, src, Flags::COMPLETION_ON_ERROR, 0)
    }

    /// Posts a [`flush`](Self::flush), to wait for: it completes after the writes before it.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush).
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn post_flush(&self, dst: RemoteSlice, flush_type: FlushType) -> Result<Posted> {
        self.flush(dst, flush_type, Flags::COMPLETION_ALWAYS, 0)
    }

    /// Posts a [`read`](Self::read), to wait for.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn post_read(&self, dst: MrSlice<'_>, src: RemoteSlice) -> Result<Posted> {
        self.read(dst, src, Flags::COMPLETION_ALWAYS, 0)
    }

    /// Posts a [`send`](Self::send), to wait for.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn post_send(&self, src: MrSlice<'_>) -> Result<Posted> {
        self.send(src, Flags::COMPLETION_ALWAYS, 0)
    }
}
