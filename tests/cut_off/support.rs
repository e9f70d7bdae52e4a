//! Functions of these tests.

use std::ops::Range;

use rpma::{Conn, Cq, Error, Flags, Mr, MrSlice, MrUsage, Peer, Posted, RemoteSlice, Wc, WcStatus};

use crate::common::{LIMIT, Memory, pattern, region, remote};

pub(crate) const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;
pub(crate) const LEN: usize = 64;

/// The memory of a server, and a source with other bytes.
pub(crate) struct Memories {
    pub(crate) source: Mr<Memory>,
    pub(crate) target: Mr<Memory>,
}

impl Memories {
    pub(crate) fn new(peer: &Peer) -> Self {
        let source = region(peer, LEN, MrUsage::WRITE_SRC);
        source.write_at(0, &pattern(LEN, 7)).expect("inside");
        let target = region(peer, LEN, MrUsage::WRITE_DST);
        Self { source, target }
    }

    /// Writes all bytes, if the connection takes operations.
    pub(crate) fn write(&self, conn: &Conn, op_context: u64) -> Result<Posted, Error> {
        let to = remote(&self.target).slice(..).expect("all");
        let from = self.source.slice(..).expect("all");
        conn.write(to, from, ALWAYS, op_context)
    }
}

pub(crate) fn write_nothing(conn: &Conn, op_context: u64) {
    let posted = conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, op_context);
    posted.expect("posted");
}

/// Posts receives with these numbers.
pub(crate) fn receive(conn: &Conn, numbers: Range<u64>) {
    for number in numbers {
        conn.recv(MrSlice::EMPTY, number).expect("posted");
    }
}

/// The numbers of completions, those of sends and those of receives.
pub(crate) fn numbers(wcs: &[Wc]) -> [Vec<u64>; 2] {
    let of = |sends: bool| {
        let wcs = wcs.iter().filter(|wc| wc.posted().is_some() == sends);
        wcs.map(Wc::wr_id).collect()
    };
    [of(true), of(false)]
}

/// How many completions have failed. All of those were flushed.
pub(crate) fn flushed(wcs: &[Wc]) -> usize {
    let failed = wcs.iter().filter(|wc| wc.result().is_err());
    failed
        .inspect(|wc| assert_eq!(wc.status(), WcStatus::WR_FLUSH_ERR, "{wc:?}"))
        .count()
}

/// Waits for events of a queue until that is an error: [`Error::NoCompletion`] if it hangs.
pub(crate) fn waits_until_it_fails(cq: &Cq) -> Error {
    loop {
        if let Err(error) = cq.wait_timeout(LIMIT) {
            return error;
        }
    }
}
