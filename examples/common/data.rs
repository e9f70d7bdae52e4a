//! The private data of each side when the connection is made: the place of its memory.

use std::ops::Range;

use anyhow::{Result, bail, ensure};

/// Private data are the few bytes that travel with the handshake of a connection. These are the 28
/// bytes of `struct common_data` of librpma's examples:
///
/// ```text
/// offset  size
///      0     2  where the data begins in the memory region (little-endian)
///      2     1  the size of the region's descriptor: 21
///      3     1  the size of the peer configuration's descriptor: 0 or 1
///      4    24  the two descriptors, one after the other, then zeros
/// ```
pub(crate) struct CommonData {
    pub(crate) data_offset: u16,
    pub(crate) mr_desc: [u8; 21],
    pub(crate) pcfg_desc: Option<[u8; 1]>,
}

impl CommonData {
    /// The first `len` bytes of the data, as a part of the memory region.
    pub(crate) fn range(&self, len: usize) -> Range<u64> {
        let from = u64::from(self.data_offset);
        from..from + len as u64
    }

    pub(crate) fn to_bytes(&self) -> [u8; 28] {
        let mut bytes = [0; 28];
        bytes[0..2].copy_from_slice(&self.data_offset.to_le_bytes());
        bytes[2] = 21;
        bytes[4..25].copy_from_slice(&self.mr_desc);
        if let Some([pcfg]) = self.pcfg_desc {
            bytes[3] = 1;
            bytes[25] = pcfg;
        }
        bytes
    }

    /// Private data arrives padded with zeros. So its length has little meaning, and a peer that
    /// sent no data seems to have sent zeros.
    pub(crate) fn from_bytes(private_data: &[u8]) -> Result<Self> {
        let Some((bytes, _padding)) = private_data.split_first_chunk::<28>() else {
            let len = private_data.len();
            bail!("the peer has sent {len} bytes of private data, not the 28 that describe memory");
        };
        let [low, high, mr_desc_size, pcfg_desc_size, descriptors @ ..] = *bytes;
        ensure!(
            mr_desc_size == 21,
            "the peer has sent no description of its memory: the size of the region's descriptor is \
             {mr_desc_size}, not 21"
        );
        let pcfg_desc = match pcfg_desc_size {
            0 => None,
            1 => Some([descriptors[21]]),
            size => bail!("the size of the peer configuration's descriptor is {size}, not 0 or 1"),
        };
        Ok(Self {
            data_offset: u16::from_le_bytes([low, high]),
            mr_desc: descriptors[..21].try_into()?,
            pcfg_desc,
        })
    }
}
