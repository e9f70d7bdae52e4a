//! A connection of two hosts, for all of these tests.

use crate::common::prelude::*;

pub(crate) const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;
/// More than the MTU.
pub(crate) const LEN: usize = 4096;

/// A connection, and memory at both ends.
pub(crate) struct Both {
    pub(crate) client: Conn,
    pub(crate) server: Conn,
    pub(crate) source: Mr<Memory>,
    pub(crate) target: Mr<Memory>,
    pub(crate) fabric: Fabric,
}

impl Both {
    /// The source has bytes that the target does not have.
    pub(crate) fn new(world: &World, cfg: &ConnCfg) -> Result<Self> {
        let Pair { client, server } = world.connect(cfg, cfg)?;
        let Memories { source, target } = world.memories(LEN)?;
        Ok(Self {
            client,
            server,
            source,
            target,
            fabric: world.fabric.clone(),
        })
    }

    pub(crate) fn write(&self, op_context: u64) -> Result<Posted> {
        let (from, to) = (self.source.slice(..)?, self.target()?);
        Ok(self.client.write(to, from, ALWAYS, op_context)?)
    }

    pub(crate) fn target(&self) -> Result<RemoteSlice> {
        Ok(remote(&self.target).slice(..)?)
    }

    /// The bytes of the target, once all that was executed is visible.
    pub(crate) fn written(&self) -> Result<Vec<u8>> {
        self.fabric.settle();
        contents(&self.target)
    }
}

pub(crate) fn each(test: impl Fn(&World) -> Result) -> Result {
    for profile in Profile::ALL {
        let fabric = Rig::of(&profile).emptied();
        test(&World::on(&fabric))?;
    }
    Ok(())
}

/// Settings with which a requester waits for hours.
pub(crate) fn patient() -> Result<ConnCfg> {
    let mut cfg = ConnCfg::new();
    cfg.set_retry_count(7)?;
    cfg.set_ack_timeout(Some(31))?;
    Ok(cfg)
}

/// Settings with which it fails at once.
pub(crate) fn impatient() -> Result<ConnCfg> {
    let mut cfg = ConnCfg::new();
    cfg.set_retry_count(1)?;
    cfg.set_ack_timeout(Some(1))?;
    Ok(cfg)
}

/// The next completion.
pub(crate) fn completion(conn: &Conn) -> Wc {
    next_completion(conn.get_cq()).expect("polling works")
}

/// A completion with the status of a peer that did not answer.
pub(crate) fn unanswered(wc: &Wc, op_context: u64) {
    let failure = wc.result().expect_err("nobody has answered");
    assert_eq!(
        (failure.status, failure.wr_id),
        (WcStatus::RETRY_EXC_ERR, op_context),
        "{failure}"
    );
}

/// There is no event.
pub(crate) fn nothing(conn: &Conn) {
    let event = conn.next_event_timeout(Duration::ZERO);
    assert!(matches!(event, Err(Error::NoEvent)), "{event:?}");
}
