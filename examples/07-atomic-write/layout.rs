//! The log as it is in memory:
//!
//! ```text
//! offset  size
//!      0     8  the signature, in persistent memory
//!      8     8  where its unused part begins, from the log's first byte on (little-endian)
//!     16  1024  words that end with a zero each
//! ```

use anyhow::{Result, bail, ensure};

pub(crate) const USED_OFFSET: usize = 8;
pub(crate) const DATA_OFFSET: usize = 16;
pub(crate) const LOG_SIZE: usize = DATA_OFFSET + 1024;

/// The memory of the longest word, and a zero.
pub(crate) const WORD_SIZE: usize = 1024;

/// Returns where the unused part begins, if the log's number can be right.
pub(crate) fn check_used(used: u64) -> Result<usize> {
    match usize::try_from(used) {
        Ok(used @ DATA_OFFSET..=LOG_SIZE) => Ok(used),
        _ => bail!(
            "the log is damaged: its unused part begins at {used}, not between {DATA_OFFSET} and \
             {LOG_SIZE}"
        ),
    }
}

/// Checks that a log has room for the words: either all of them go into it, or no word.
pub(crate) fn check_room(used: usize, words: &[String]) -> Result<()> {
    let room = LOG_SIZE - used;
    ensure!(room > 0, "Log size exhausted.");
    let needed: usize = words.iter().map(|word| word.len() + 1).sum();
    ensure!(
        needed <= room,
        "the words need {needed} bytes, and the log has only {room} left"
    );
    Ok(())
}
