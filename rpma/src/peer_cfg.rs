//! [`PeerCfg`]: what a peer declares about its platform (`struct rpma_peer_cfg`).

use crate::error::{Error, Result};

/// What one side tells the other about how its memory behaves. Plain data.
///
/// The side whose memory is written declares it, sends the descriptor (in private data, for instance),
/// and the other side applies it with `Conn::apply_remote_peer_cfg`.
#[doc(alias = "rpma_peer_cfg_delete")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCfg {
    direct_write_to_pmem: bool,
    reorders: bool,
}

impl PeerCfg {
    /// A configuration that promises nothing.
    #[doc(alias = "rpma_peer_cfg_new")]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares whether data that a device writes to this host's persistent memory is in its
    /// persistence domain as soon as it is globally visible.
    ///
    /// It is on a platform with eADR (the processor caches are part of the domain), or with an ordinary
    /// one (ADR) if the device's writes bypass the caches (DDIO is off for it). It is a promise about
    /// the platform which no software can check: a wrong `true` makes persistent flushes lose data when
    /// the power fails.
    ///
    /// Over soft-RoCE the processor copies the data, through its caches. With eADR it is true all the same.
    /// With ADR it is true for clients whose flushes are native, which write the caches back
    /// ([`Conn::has_native_flush`](crate::Conn::has_native_flush)), and false for others; a server does
    /// not see which kind a client has, so say it only to clients that are known to have the first.
    #[doc(alias = "rpma_peer_cfg_set_direct_write_to_pmem")]
    pub fn set_direct_write_to_pmem(&mut self, supported: bool) -> &mut Self {
        self.direct_write_to_pmem = supported;
        self
    }

    /// See [`set_direct_write_to_pmem`](Self::set_direct_write_to_pmem). The default is `false`.
    #[doc(alias = "rpma_peer_cfg_get_direct_write_to_pmem")]
    #[must_use]
    pub fn get_direct_write_to_pmem(&self) -> bool {
        self.direct_write_to_pmem
    }

    /// Declares whether this host's device may execute an operation before earlier ones: adapters may, soft-RoCE does
    /// not. [`Offer::add_region`](crate::Offer::add_region) declares it, as a region knows its device.
    ///
    /// Only a peer on soft-RoCE needs it, which has no fence: see
    /// [`ConnCfg::set_peer_reorders`](crate::ConnCfg::set_peer_reorders).
    pub fn set_reorders(&mut self, reorders: bool) -> &mut Self {
        self.reorders = reorders;
        self
    }

    /// See [`set_reorders`](Self::set_reorders). The default is `false`.
    #[must_use]
    pub fn get_reorders(&self) -> bool {
        self.reorders
    }

    /// The configuration's descriptor for the peer: 1 byte, 0 or 1, as in librpma. It does not have
    /// [`set_reorders`](Self::set_reorders), which only an [`Offer`](crate::Offer) carries.
    #[doc(alias = "rpma_peer_cfg_get_descriptor")]
    #[must_use]
    pub fn get_descriptor(&self) -> [u8; 1] {
        [u8::from(self.direct_write_to_pmem)]
    }

    /// The size of the descriptor in bytes: always 1.
    #[doc(alias = "rpma_peer_cfg_get_descriptor_size")]
    #[must_use]
    pub fn get_descriptor_size(&self) -> usize {
        self.get_descriptor().len()
    }

    /// Decodes a peer's descriptor. As in librpma, any byte but 0 is "supported", and bytes after the
    /// first are ignored.
    ///
    /// The descriptor is the peer's word, sent without authentication.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if it is empty.
    #[doc(alias = "rpma_peer_cfg_from_descriptor")]
    pub fn from_descriptor(descriptor: &[u8]) -> Result<Self> {
        let Some(&byte) = descriptor.first() else {
            return Err(Error::invalid(
                "a peer configuration's descriptor has 1 byte, this one is empty",
            ));
        };
        let cfg = Self {
            direct_write_to_pmem: byte != 0,
            reorders: false,
        };
        log::info!(
            "the peer says that direct write to persistent memory is {}",
            if cfg.direct_write_to_pmem {
                "supported"
            } else {
                "not supported"
            }
        );
        Ok(cfg)
    }

    /// The byte of an offer: bit 0 is that of the descriptor, and bit 1 is set if the device reorders.
    pub(crate) fn to_offer(self) -> u8 {
        u8::from(self.direct_write_to_pmem) | u8::from(self.reorders) << 1
    }

    /// Decodes the byte of an offer; `None` if it has other bits.
    pub(crate) fn from_offer(byte: u8) -> Option<Self> {
        (byte & !3 == 0).then_some(Self {
            direct_write_to_pmem: byte & 1 != 0,
            reorders: byte & 2 != 0,
        })
    }
}

impl TryFrom<&[u8]> for PeerCfg {
    type Error = Error;

    fn try_from(descriptor: &[u8]) -> Result<Self> {
        Self::from_descriptor(descriptor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_is_librpmas() {
        let mut cfg = PeerCfg::new();
        assert_eq!(cfg.get_descriptor(), [0]);
        assert_eq!(cfg.set_direct_write_to_pmem(true).get_descriptor(), [1]);
        assert_eq!(cfg.get_descriptor_size(), 1);
        assert!(
            PeerCfg::from_descriptor(&[0x80, 7])
                .expect("valid")
                .get_direct_write_to_pmem()
        );
        assert!(
            !PeerCfg::from_descriptor(&[0])
                .expect("valid")
                .get_direct_write_to_pmem()
        );
        assert!(PeerCfg::from_descriptor(&[]).is_err());
    }
}
