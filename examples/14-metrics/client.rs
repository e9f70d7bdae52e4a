//! The client: writes and flushes, overfills its send queue once, and prints its counters.

use anyhow::{Result, ensure};
use rpma::{AlignedBuf, ConnCfg, ConnReq, Error, Flags, FlushType, Mr, MrRemote, MrUsage, Peer};

use crate::SIZE;
use crate::common::cli::Role;
use crate::common::conn;
use crate::common::data::CommonData;
use crate::recorder::Printer;
use crate::report::report;

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port>",
    notes: "",
    main,
};

/// The slots of the send queue: for four writes and their flush.
const SLOTS: u32 = 5;
const FLUSHED: u64 = 1;

fn main(addr: &str, port: u16, _more: &[String]) -> Result<()> {
    // Once in each program: where its metrics go.
    let printer = Printer::default();
    metrics::set_global_recorder(printer.clone())?;

    let peer = Peer::toward(addr)?;
    let src = Mr::reg(&peer, AlignedBuf::zeroed(SIZE)?, MrUsage::WRITE_SRC)?;
    let mut cfg = ConnCfg::new();
    cfg.set_sq_size(SLOTS);
    let conn = conn::establish(ConnReq::new(&peer, addr, port, &cfg)?, &[])?;
    let data = CommonData::from_bytes(conn.get_private_data())?;
    let dst = MrRemote::from_descriptor(&data.mr_desc)?;

    // Four records of 64 bytes, and one flush of all of them, which takes the last slot.
    for start in (0..SIZE).step_by(64) {
        let far = dst.slice(start as u64..start as u64 + 64)?;
        let record = src.slice(start..start + 64)?;
        conn.write(far, record, Flags::COMPLETION_ON_ERROR, 0)?;
    }
    let always = Flags::COMPLETION_ALWAYS;
    conn.flush(dst.slice(..)?, FlushType::Visibility, always, FLUSHED)?;

    // There is no slot for another one: that is counted, too.
    let more = conn.write(dst.slice(..64)?, src.slice(..64)?, always, 0);
    ensure!(matches!(more, Err(Error::QueueFull { .. })), "{more:?}");
    conn::wait_for_completion(&conn, FLUSHED)?;

    report("client", &conn.counters());
    printer.print();
    conn::disconnect_and_wait(&conn)
}
