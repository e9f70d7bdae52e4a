//! [`Setup`]: how the connections of a reactor are made.

use std::time::Duration;

use rpma::{ComplChannel, ConnCfg, Notify, Result};

use crate::driver::Core;
use crate::error::invalid;

/// The settings of a connection.
///
/// ```
/// use rpma::ConnCfg;
/// use rpma_async::Setup;
///
/// let mut cfg = ConnCfg::new();
/// cfg.set_sq_size(64);
/// let setup = Setup::new(&cfg).with_receives(16, 256);
/// ```
#[derive(Clone, Debug)]
pub struct Setup {
    cfg: ConnCfg,
    receives: Option<(u32, usize)>,
    connect_limit: Duration,
}

/// The kernel reports a peer that answers nothing after 69 s.
const CONNECT_LIMIT: Duration = Duration::from_secs(90);

impl Default for Setup {
    fn default() -> Self {
        Self::new(&ConnCfg::new())
    }
}

impl Setup {
    /// Takes the settings of a connection of rpma. They must name no completion channel
    /// ([`ConnCfg::set_compl_channel`], [`ConnCfg::set_rcq_channel`]), because the reactor adds
    /// its own. They must name no shared receive queue ([`ConnCfg::set_srq`]). They must not ask
    /// for solicited events alone ([`ConnCfg::set_rcq_notify`]).
    #[must_use]
    pub fn new(cfg: &ConnCfg) -> Self {
        Self {
            cfg: cfg.clone(),
            receives: None,
            connect_limit: CONNECT_LIMIT,
        }
    }

    /// Sets the time in which the connection must be established, on either side (90 s by default,
    /// `Duration::MAX` is none). The time begins with [`Reactor::connect`](crate::Reactor::connect)
    /// or [`Incoming::accept`](crate::Incoming::accept).
    ///
    /// Without this limit the kernel decides. After 69 s it gives up on a peer that sends no
    /// answer. If the peer is lost after it has received the request, the kernel may wait for 17
    /// minutes. A keep-alive begins when the connection is established.
    #[must_use]
    pub fn with_connect_limit(mut self, limit: Duration) -> Self {
        self.connect_limit = limit;
        self
    }

    pub(crate) fn connect_limit(&self) -> Duration {
        self.connect_limit
    }

    /// Lets the connection receive messages of up to `size` bytes. `count` receives are posted
    /// before the connection is established. Each is posted again when the program drops its
    /// [`Message`](crate::Message). The receive queue has at least `count` slots.
    #[must_use]
    pub fn with_receives(mut self, count: u32, size: usize) -> Self {
        self.receives = Some((count, size));
        self
    }

    pub(crate) fn depth(&self) -> u32 {
        self.cfg.get_sq_size()
    }

    pub(crate) fn receives(&self) -> Option<(u32, usize)> {
        self.receives
    }

    /// The settings of a connection for the member with this key, which gets its events.
    pub(crate) fn cfg(&self, core: &Core, key: u64) -> Result<ConnCfg> {
        let has_channel = !matches!(self.cfg.get_compl_channel(), ComplChannel::PerCq)
            || self.cfg.get_rcq_channel().is_some();
        if has_channel {
            return Err(invalid(
                "the settings name a completion channel, and a reactor has its own: leave out \
                 ConnCfg::set_compl_channel and set_rcq_channel",
            ));
        }
        if self.cfg.get_srq().is_some() {
            return Err(invalid(
                "the settings name a shared receive queue, whose messages would go to no Inbox: leave out \
                 ConnCfg::set_srq, and use Setup::with_receives",
            ));
        }
        if self.cfg.get_rcq_notify() == Notify::Solicited {
            return Err(invalid(
                "the settings ask for events of solicited messages alone, and an Inbox would miss the others: \
                 leave out ConnCfg::set_rcq_notify",
            ));
        }
        let mut cfg = self.cfg.clone();
        if let Some((count, size)) = self.receives {
            if count == 0 || size == 0 {
                return Err(invalid(format!(
                    "{count} receives of {size} bytes: Setup::with_receives needs at least one \
                     receive of at least one byte"
                )));
            }
            if cfg.get_rq_size() < count {
                cfg.set_rq_size(count);
            }
        }
        cfg.set_compl_channel(ComplChannel::Of {
            channel: core.channel().clone(),
            key,
        });
        Ok(cfg)
    }
}
