//! [`WriterCfg`]: how a writer commits, and the connection's settings for that.

use crate::conn::Conn;
use crate::conn_cfg::ConnCfg;
use crate::error::{Error, Result};
use crate::flush::FlushType;
use crate::method::{Limits, Method};
use crate::offer::Offer;
use crate::queues::sum;

/// How a [`Writer`](super::Writer) commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterCfg {
    method: Method,
    flush_type: FlushType,
    in_flight: u16,
    parts: u8,
}

/// Slots of the send queue beside those of commits: the probe, and one that is kept for an
/// operation with a completion.
const MORE_SLOTS: u32 = 2;

impl WriterCfg {
    /// Makes settings for durable commits by `method` ([`FlushType::Persistent`]). At most 16
    /// commits are in flight, of up to 2 parts each.
    #[must_use]
    pub fn new(method: Method) -> Self {
        Self {
            method,
            flush_type: FlushType::Persistent,
            in_flight: 16,
            parts: 2,
        }
    }

    /// Sets whether commits are durable or only visible.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for [`FlushType::Visibility`] with [`Method::Server`], which
    /// makes everything durable.
    pub fn set_flush_type(&mut self, flush_type: FlushType) -> Result<&mut Self> {
        if (self.method, flush_type) == (Method::Server, FlushType::Visibility) {
            return Err(Error::invalid(
                "the server's method makes commits durable: for commits that are only visible use \
                 Method::Native or Method::Reading",
            ));
        }
        self.flush_type = flush_type;
        Ok(self)
    }

    /// Sets the maximum number of commits in flight. With [`Method::Server`] the server's credits
    /// are another limit.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0.
    pub fn set_in_flight(&mut self, commits: u16) -> Result<&mut Self> {
        if commits == 0 {
            return Err(Error::invalid(
                "the maximum number of commits in flight is 0: it must be at least 1",
            ));
        }
        self.in_flight = commits;
        Ok(self)
    }

    /// Sets the maximum number of parts of a commit.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0, and for more than [`Conn::MAX_COMMIT_PARTS`].
    pub fn set_parts(&mut self, parts: u8) -> Result<&mut Self> {
        if !(1..=Conn::MAX_COMMIT_PARTS).contains(&usize::from(parts)) {
            return Err(Error::invalid(format!(
                "commits of up to {parts} parts: the number must be 1 to {}",
                Conn::MAX_COMMIT_PARTS
            )));
        }
        self.parts = parts;
        Ok(self)
    }

    /// See [`new`](Self::new).
    #[must_use]
    pub fn method(&self) -> Method {
        self.method
    }

    /// See [`set_flush_type`](Self::set_flush_type).
    #[must_use]
    pub fn flush_type(&self) -> FlushType {
        self.flush_type
    }

    /// See [`set_in_flight`](Self::set_in_flight).
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// See [`set_parts`](Self::set_parts).
    #[must_use]
    pub fn parts(&self) -> u8 {
        self.parts
    }

    /// Returns the settings of the writer's connection. They are those of `cfg`, with room in the
    /// queues for the writer's commits as well, and with the flushes of the method.
    ///
    /// With [`Method::Server`], [`ConnCfg::set_rnr_retry_count`] is lowered to 6 at most, because
    /// 7 means for ever. If the peer uses this library, the setting of the accepting side counts
    /// instead ([`Responder::conn_cfg`](crate::commit::Responder::conn_cfg)).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the queues would have more than 2³² − 1 slots.
    pub fn conn_cfg(&self, cfg: &ConnCfg) -> Result<ConnCfg> {
        let (sends, receives) = self.slots();
        let mut made = cfg.clone();
        made.set_sq_size(sum(cfg.get_sq_size(), sends)?);
        // Only the last operation of a commit, and the probe, have a completion.
        made.set_cq_size(sum(
            cfg.get_cq_size(),
            2 * u32::from(self.in_flight) + MORE_SLOTS,
        )?);
        match self.method {
            Method::Native => made.set_force_fallback(false),
            Method::Reading => made.set_force_fallback(true),
            Method::Server => {
                made.set_rq_size(sum(cfg.get_rq_size(), receives)?);
                made.set_rnr_retry_count(cfg.get_rnr_retry_count().min(6))?
            }
        };
        Ok(made)
    }

    /// How many slots for sends and for receives the writer takes.
    pub(super) fn slots(&self) -> (u32, u32) {
        let (parts, in_flight) = (u32::from(self.parts), u32::from(self.in_flight));
        let (of_commit, receives) = match self.method {
            // Each part may have a flush of its own, and the pointer has one.
            Method::Native | Method::Reading => (2 * parts + 2, 0),
            Method::Server => (parts + 1, in_flight),
        };
        (in_flight * of_commit + MORE_SLOTS, receives)
    }

    /// Refuses a server that does not serve the method; the limits of its own one.
    pub(super) fn check_served(&self, offer: &Offer) -> Result<Option<Limits>> {
        if !offer.serves(self.method, self.flush_type) {
            let promise = match self.flush_type {
                FlushType::Persistent => "durable",
                FlushType::Visibility => "visible",
            };
            let missing = match self.method {
                Method::Server => "its offer has no limits of a responder (Offer::set_limits)",
                _ => "the platform of its offer does not guarantee that (PeerCfg::detect)",
            };
            return Err(Error::not_supported(format!(
                "the peer does not serve {promise} commits with the method \"{}\": {missing}. \
                 docs/persistence.md has the methods of each platform",
                self.method
            )));
        }
        Ok(offer.limits().filter(|_| self.method == Method::Server))
    }
}
