//! Functions of these tests.

use crate::common::prelude::*;

pub(crate) const LEN: usize = 64;

/// Sends a message of 0 bytes, and waits until it has arrived.
pub(crate) fn message(conn: &Conn, op_context: u64) -> Result {
    send_empty(conn, op_context)?;
    opcode_of(&completion(conn)?, op_context)?;
    Ok(())
}

/// Cuts a connection off. Its completions have these numbers, and so many were flushed.
pub(crate) fn cut_off(conn: Conn, expected: [Vec<u64>; 2], were_flushed: usize) -> Result {
    let rest = conn.cut_off()?;
    assert_eq!((numbers(&rest), flushed(&rest)), (expected, were_flushed));
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
pub(crate) fn waits_until_it_fails(cq: &Cq) -> NotConnected {
    loop {
        match cq.wait_timeout(LIMIT) {
            Ok(()) => {}
            Err(Error::NotConnected(why)) => return why,
            Err(error) => panic!("{error}"),
        }
    }
}
