//! All that can sleep on a connection.

use rpma::Result;
use rpma_async::Conn;
use tokio::task::JoinHandle;

use crate::awaited::support::{CLOSE, Memories, Unanswered, joined, turns, unanswered};
use crate::common::prelude::*;

/// Two operations in flight, and each wait, on a connection with receives. Its peer has none. On
/// iWARP the caller holds the link ([`unanswered`]).
pub(crate) struct Sleepers {
    ops: Vec<JoinHandle<Result<(), Unanswered>>>,
    ready: JoinHandle<Result<()>>,
    idle: JoinHandle<Result<()>>,
    closed: JoinHandle<Result<ConnEvent>>,
    inbox: JoinHandle<Result<bool>>,
    close: Option<JoinHandle<Result<()>>>,
}

/// The results that have woken them.
#[derive(Debug)]
pub(crate) struct Woken {
    pub(crate) ops: Vec<Result<(), Unanswered>>,
    pub(crate) ready: Result<()>,
    pub(crate) idle: Result<()>,
    pub(crate) closed: Result<ConnEvent>,
    /// Whether there was a message.
    pub(crate) inbox: Result<bool>,
    /// Of [`Sleepers::new`] alone.
    pub(crate) close: Option<Result<()>>,
}

impl Sleepers {
    /// Includes a `close`, which ends the connection when it wakes.
    pub(crate) async fn new(conn: &Conn, memories: &Memories) -> crate::common::Result<Self> {
        let close = tokio::spawn(conn.clone().close(CLOSE));
        Self::with(conn, memories, Some(close)).await
    }

    pub(crate) async fn without_close(
        conn: &Conn,
        memories: &Memories,
    ) -> crate::common::Result<Self> {
        Self::with(conn, memories, None).await
    }

    async fn with(
        conn: &Conn,
        memories: &Memories,
        close: Option<JoinHandle<Result<()>>>,
    ) -> crate::common::Result<Self> {
        let ops = unanswered(conn, memories, 2)?.into_iter().map(tokio::spawn);
        let mut inbox = conn.inbox()?;
        let sleepers = Self {
            ops: ops.collect(),
            ready: tokio::spawn(conn.ready(ConnCfg::new().get_sq_size())),
            idle: tokio::spawn(conn.idle()),
            closed: tokio::spawn(conn.closed()),
            inbox: tokio::spawn(async move { Ok(inbox.next().await?.is_some()) }),
            close,
        };
        turns(3).await;
        let is_awake = sleepers.ops.iter().any(JoinHandle::is_finished)
            || sleepers.ready.is_finished()
            || sleepers.idle.is_finished()
            || sleepers.closed.is_finished()
            || sleepers.inbox.is_finished()
            || sleepers.close.as_ref().is_some_and(JoinHandle::is_finished);
        assert!(!is_awake, "nothing has happened yet");
        Ok(sleepers)
    }

    pub(crate) async fn woken(self) -> Woken {
        let mut ops = Vec::new();
        for op in self.ops {
            ops.push(joined(op).await);
        }
        let close = match self.close {
            Some(close) => Some(joined(close).await),
            None => None,
        };
        Woken {
            ops,
            ready: joined(self.ready).await,
            idle: joined(self.idle).await,
            closed: joined(self.closed).await,
            inbox: joined(self.inbox).await,
            close,
        }
    }
}

impl Woken {
    /// The peer ended the connection.
    pub(crate) fn is_closed_by_the_peer(&self) {
        for op in &self.ops {
            let failed = op.as_ref().expect_err("the peer has not answered");
            assert!(matches!(failed.error, Error::Ended(_)), "{self:?}");
            assert!(failed.has_memory, "no device uses it: {self:?}");
        }
        assert!(matches!(self.ready, Err(Error::Ended(_))), "{self:?}");
        assert!(self.idle.is_ok(), "{self:?}");
        assert!(matches!(self.closed, Ok(ConnEvent::Closed)), "{self:?}");
        assert!(matches!(self.inbox, Ok(false)), "{self:?}");
        assert!(matches!(self.close, Some(Err(Error::Ended(_)))), "{self:?}");
    }

    /// Each of them returns an error of this kind. No operation is in flight any more.
    pub(crate) fn each_tells(&self, is_it: impl Fn(&Error) -> bool) {
        let tells = |result: std::result::Result<(), &Error>| {
            assert!(is_it(result.expect_err("an error")), "{self:?}");
        };
        for op in &self.ops {
            tells(op.as_ref().copied().map_err(|failed| &failed.error));
        }
        tells(self.ready.as_ref().map(drop));
        tells(self.closed.as_ref().map(drop));
        tells(self.inbox.as_ref().map(drop));
        if let Some(close) = &self.close {
            tells(close.as_ref().map(drop));
        }
    }
}
