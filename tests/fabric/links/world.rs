//! A connection of two hosts, for all of these tests.

pub(crate) use crate::common::prelude::*;

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
        let from = self.source.slice(..)?;
        let to = self.target()?;
        Ok(self.client.write(to, from, ALWAYS, op_context)?)
    }

    pub(crate) fn flush(&self, op_context: u64) -> Result<Posted> {
        let (all, visible) = (self.target()?, FlushType::Visibility);
        Ok(self.client.flush(all, visible, ALWAYS, op_context)?)
    }

    /// Waits for an operation of the client.
    pub(crate) fn wait(&self, posted: Posted, limit: Duration) -> rpma::Result<Wc> {
        self.client.wait_for(posted, limit, |_| {})
    }

    /// Waits for an operation of the client, which succeeds.
    pub(crate) fn done(&self, posted: Posted) -> Result {
        self.wait(posted, LIMIT)?;
        Ok(())
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

/// As [`each`], with a connection of these settings.
pub(crate) fn each_connected(cfg: &ConnCfg, test: impl Fn(&World, Both) -> Result) -> Result {
    each(|world| test(world, Both::new(world, cfg)?))
}

pub(crate) fn settings(retries: u8, ack_timeout: u8) -> ConnCfg {
    let mut cfg = ConnCfg::new();
    cfg.set_retry_count(retries).expect("a count");
    cfg.set_ack_timeout(Some(ack_timeout)).expect("an exponent");
    cfg
}

/// Settings with which a requester waits for hours.
pub(crate) fn patient() -> ConnCfg {
    settings(7, 31)
}

/// Settings with which it fails at once.
pub(crate) fn impatient() -> ConnCfg {
    settings(1, 1)
}

/// The way from the server to the client.
pub(crate) fn back(world: &World) -> Link {
    world.fabric.between(&world.hosts[1], &world.hosts[0])
}

/// Writes nothing.
pub(crate) fn knock(conn: &Conn, op_context: u64) -> rpma::Result<Posted> {
    conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, op_context)
}

/// The next completion.
pub(crate) fn completion(conn: &Conn) -> Wc {
    next_completion(conn.get_cq()).expect("polling works")
}

/// A completion with the status of a peer that did not answer.
pub(crate) fn unanswered(wc: &Wc, op_context: u64) {
    failed(wc, WcStatus::RETRY_EXC_ERR, op_context);
}

/// A completion of an operation that another failure has ended.
pub(crate) fn flushed(wc: &Wc, op_context: u64) {
    failed(wc, WcStatus::WR_FLUSH_ERR, op_context);
}

fn failed(wc: &Wc, status: WcStatus, op_context: u64) {
    let failure = wc.result().expect_err("it has failed");
    let is = (failure.status, failure.wr_id);
    assert_eq!(is, (status, op_context), "{failure}");
}

/// A wait has ended as one does whose peer does not answer.
pub(crate) fn unanswered_wait<T: std::fmt::Debug>(waited: rpma::Result<T>) {
    match waited {
        Err(Error::Operation(failure)) => assert_eq!(failure.status, WcStatus::RETRY_EXC_ERR),
        waited => panic!("{waited:?}"),
    }
}

/// A wait has ended at its limit.
pub(crate) fn timed_out<T: std::fmt::Debug>(waited: rpma::Result<T>) {
    assert!(matches!(waited, Err(Error::TimedOut(_))), "{waited:?}");
}

/// There is no event.
pub(crate) fn nothing(conn: &Conn) {
    let event = conn.next_event_timeout(Duration::ZERO);
    assert!(matches!(event, Err(Error::NoEvent)), "{event:?}");
}
