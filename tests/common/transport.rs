//! The differences of iWARP: its operations complete without the peer, except for reads, and the
//! kernel's connection manager is another one. The table is in the documentation of [`Conn`].

#[cfg(not(feature = "sim"))]
use std::sync::OnceLock;

use rpma::{Conn, Error, Flags, MrSlice, Posted, RemoteSlice, WcStatus};

use super::{ALWAYS, LIMIT, Result, completion, write_nothing};

/// Whether the device of this run is one of iWARP.
#[cfg(feature = "sim")]
pub(crate) fn is_iwarp() -> bool {
    super::profile() == rpma::sim::Profile::SIW_6_12
}

/// Whether the device of this run is one of iWARP.
#[cfg(not(feature = "sim"))]
pub(crate) fn is_iwarp() -> bool {
    static IS_IWARP: OnceLock<bool> = OnceLock::new();
    *IS_IWARP.get_or_init(|| super::peer().expect("a peer on the test device").is_iwarp())
}

/// The bytes of private data that arrive, of so many in a message with so much room.
pub(crate) fn arrives(sent: usize, room: usize) -> usize {
    if is_iwarp() { sent } else { room }
}

/// Posts an operation that stays incomplete: a message for which the peer has no receive. On iWARP,
/// where no message waits, it is a read that the fabric holds back: a device has none.
pub(crate) fn post_unanswered(conn: &Conn, op_context: u64) -> Result<Posted, Error> {
    if is_iwarp() {
        hold_back();
        conn.read(MrSlice::EMPTY, RemoteSlice::EMPTY, ALWAYS, op_context)
    } else {
        conn.send(MrSlice::EMPTY, ALWAYS, op_context)
    }
}

#[cfg(feature = "sim")]
fn hold_back() {
    super::with_fabric(|fabric, host| fabric.between(host, host).hold());
}

#[cfg(not(feature = "sim"))]
fn hold_back() {
    panic!("no operation of iWARP waits for the peer's program");
}

/// Posts an operation of 0 bytes that completes when the peer's device has answered it.
pub(crate) fn ask_nothing(conn: &Conn, flags: Flags, op_context: u64) -> Result<Posted, Error> {
    if is_iwarp() {
        conn.read(MrSlice::EMPTY, RemoteSlice::EMPTY, flags, op_context)
    } else {
        conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, flags, op_context)
    }
}

/// The status of the one outstanding operation, of this number, which the peer's device may refuse.
/// On iWARP a write completes without the peer, so it is that of a question after the operation.
#[track_caller]
pub(crate) fn outcome(conn: &Conn, wr_id: u64) -> Result<WcStatus> {
    let wc = completion(conn)?;
    assert_eq!(wc.wr_id(), wr_id, "{wc:?}");
    if !is_iwarp() || wc.result().is_err() {
        return Ok(wc.status());
    }
    let asked = match ask_nothing(conn, ALWAYS, u64::MAX) {
        Err(Error::NotConnected(_)) => return Ok(WcStatus::WR_FLUSH_ERR),
        asked => asked?,
    };
    match conn.wait_for(asked, LIMIT, |_| {}) {
        Ok(answer) => Ok(answer.status()),
        Err(Error::Operation(failure)) => Ok(failure.status),
        Err(Error::Ended(_) | Error::NotConnected(_)) => Ok(WcStatus::WR_FLUSH_ERR),
        Err(error) => Err(error.into()),
    }
}

/// The [`outcome`] of an operation that the peer's device refuses. On iWARP that ends the
/// connection, and no completion has the reason.
pub(crate) fn refused() -> WcStatus {
    if is_iwarp() {
        WcStatus::WR_FLUSH_ERR
    } else {
        WcStatus::REM_ACCESS_ERR
    }
}
