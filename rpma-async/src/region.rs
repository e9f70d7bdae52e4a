//! [`Region`]: the registered memory of a pool.

use std::sync::OnceLock;

use rpma::{AlignedBuf, Mr, MrUsage, Peer, Result};

/// The memory of the blocks, to which no peer has a right.
///
/// On iWARP the destination of a read has a right of the peers to write. There reads land in memory
/// of their own, of the same size, and their bytes are copied. So a peer still cannot change the
/// bytes that a lease lends.
#[derive(Debug)]
pub(crate) struct Region {
    blocks: Mr<AlignedBuf>,
    /// On iWARP, after the first read.
    landing: OnceLock<Mr<AlignedBuf>>,
    peer: Peer,
}

impl Region {
    /// Registers `bytes` bytes, which are zeros.
    pub(crate) fn new(peer: &Peer, bytes: usize) -> Result<Self> {
        let mut usage = MrUsage::WRITE_SRC | MrUsage::SEND | MrUsage::RECV;
        usage.set(MrUsage::READ_DST, !peer.is_iwarp());
        Ok(Self {
            blocks: Mr::reg(peer, AlignedBuf::zeroed(bytes)?, usage)?,
            landing: OnceLock::new(),
            peer: peer.clone(),
        })
    }

    #[inline]
    pub(crate) fn blocks(&self) -> &Mr<AlignedBuf> {
        &self.blocks
    }

    /// Where the bytes of reads land, if not in the blocks.
    #[inline]
    pub(crate) fn landing(&self) -> Option<&Mr<AlignedBuf>> {
        self.landing.get()
    }

    /// Registers the memory where reads land, before the first of them.
    #[inline]
    pub(crate) fn prepare_read(&self) -> Result<()> {
        if self.blocks.get_usage().contains(MrUsage::READ_DST) || self.landing.get().is_some() {
            return Ok(());
        }
        let memory = AlignedBuf::zeroed(self.blocks.get_size())?;
        let landing = Mr::reg(&self.peer, memory, MrUsage::READ_DST)?;
        // Another thread may have been first.
        drop(self.landing.set(landing));
        Ok(())
    }
}
