//! Functions of these tests.

use std::ops::Range;

use crate::common::prelude::*;

pub(crate) const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;
pub(crate) const LEN: usize = 64;

pub(crate) fn write_nothing(conn: &Conn, op_context: u64) -> Result {
    conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, op_context)?;
    Ok(())
}

/// Posts receives with these numbers.
pub(crate) fn receive(conn: &Conn, numbers: Range<u64>) -> Result {
    for number in numbers {
        conn.recv(MrSlice::EMPTY, number)?;
    }
    Ok(())
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
