//! [`Connecting`]: a writer before its connection is established.

use std::time::Duration;

use super::asks::{Asks, Messages};
use super::{Writer, WriterCfg};
use crate::conn::Conn;
use crate::conn_req::{ConnReq, not_connected};
use crate::error::{Error, GivenBack, Result};
use crate::failure::NotConnected;
use crate::method::Method;
use crate::offer::Offer;

impl Writer {
    /// Asks for the connection of a writer, and sends `offer` with the writer's method. It does
    /// not wait. `req` was made with [`WriterCfg::conn_cfg`].
    ///
    /// The peer answers with its own [`Offer`].
    ///
    /// # Errors
    ///
    /// As [`ConnReq::connect`]. [`Error::InvalidArgument`] also if `req` does not flush by the
    /// method, or has too few slots. The error gives `req` back then.
    pub fn connect(
        req: ConnReq,
        cfg: &WriterCfg,
        offer: &Offer,
    ) -> Result<Connecting, GivenBack<Option<Box<ConnReq>>>> {
        Self::connect_with(req, cfg, offer, &mut None)
    }

    /// As [`connect`](Self::connect), with the memory for messages of the writer `before`, which it
    /// replaces by its own.
    pub(crate) fn connect_with(
        req: ConnReq,
        cfg: &WriterCfg,
        offer: &Offer,
        before: &mut Option<Messages>,
    ) -> Result<Connecting, GivenBack<Option<Box<ConnReq>>>> {
        let mut offer = offer.clone();
        offer.set_method(cfg.method(), cfg.flush_type());
        let prepared = check(&req, cfg).and_then(|()| {
            let data = offer.encode(Offer::CONNECT)?;
            let asks = match cfg.method() {
                Method::Server => Some(Asks::prepare(&req, cfg, before)?),
                Method::Native | Method::Reading => None,
            };
            Ok((data, asks))
        });
        let (data, asks) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return Err(not_connected(error, Some(req))),
        };
        let conn = req.connect(&data)?;
        Ok(Connecting {
            conn,
            cfg: *cfg,
            asks,
        })
    }
}

/// Refuses a request that was made with other settings.
fn check(req: &ConnReq, cfg: &WriterCfg) -> Result<()> {
    let is_native = req.flushes_natively();
    match (cfg.method(), is_native) {
        (Method::Native, false) => Err(Error::not_supported(
            "the method is a native flush, and the connection has none: device, rdma-core or \
             ConnCfg::set_force_fallback is the reason",
        )),
        (Method::Reading, true) => Err(Error::invalid(
            "the method is a flush by reading, and the connection flushes natively: make the \
             request with WriterCfg::conn_cfg",
        )),
        _ => req.check_slots(cfg.slots(), "WriterCfg::conn_cfg"),
    }
}

/// A [`Writer`] during its connection request.
#[derive(Debug)]
#[must_use = "the connection ends when it is dropped"]
pub struct Connecting {
    conn: Conn,
    cfg: WriterCfg,
    asks: Option<Asks>,
}

impl Connecting {
    /// Returns the connection, for an event loop. When the next event is
    /// [`ConnEvent::Established`](crate::ConnEvent::Established), call [`finish`](Self::finish).
    #[must_use]
    pub fn conn(&self) -> &Conn {
        &self.conn
    }

    /// Waits until the connection is established, for at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`Conn::wait_established`] and [`finish`](Self::finish).
    pub fn wait(self, limit: Duration) -> Result<Writer> {
        let conn = self.conn.wait_established(limit)?;
        Self { conn, ..self }.finish()
    }

    /// Makes the writer, after the connection's
    /// [`ConnEvent::Established`](crate::ConnEvent::Established). This applies the peer's
    /// declaration about its platform ([`Conn::apply_remote_peer_cfg`]).
    ///
    /// # Errors
    ///
    /// [`Error::NotConnected`] before that event, [`Error::InvalidArgument`] if the peer sent no
    /// [`Offer`], and [`Error::NotSupported`] if the peer does not serve the method. The
    /// connection ends then.
    pub fn finish(self) -> Result<Writer> {
        if self.conn.is_connecting() {
            return Err(Error::NotConnected(NotConnected::NotYet));
        }
        let offer = self.conn.offer()?;
        let limits = self.cfg.check_served(&offer)?;
        let server = limits.zip(self.asks);
        Ok(Writer::new(self.conn, self.cfg, offer, server))
    }
}
