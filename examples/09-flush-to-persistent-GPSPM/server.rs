//! The server: offers its memory, and makes durable the bytes that the client asks for.

use anyhow::Result;
use rpma::{ConnCfg, Device, Ep, Flags, MrUsage, Peer, Side};

use crate::common::cli::Role;
use crate::common::data::CommonData;
use crate::common::{conn, hello, memory};
use crate::gpspm::{self, FlushRequest, FlushResponse, Messages};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> [<pmem-path>]",
    notes: memory::NOTES,
    main,
};

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    // Room for a string: in persistent memory, if the arguments name some.
    let memory = hello::server_memory(more)?;

    // The device that has the address, and a peer on it: with that this program registers memory
    // and makes connections.
    let device = Device::from_addr(addr, Side::Local)?;
    let peer = Peer::new(&device)?;

    // The operation that a client may do there: write. Messages have memory of their own.
    let flush = if memory.is_pmem() {
        MrUsage::FLUSH_TYPE_PERSISTENT
    } else {
        MrUsage::FLUSH_TYPE_VISIBILITY
    };
    let region = memory.register(&peer, MrUsage::WRITE_DST | flush)?;
    let messages = Messages::new(&peer)?;
    hello::print_old(&region)?;

    // The receives of the connection complete in a queue of their own.
    let mut cfg = ConnCfg::new();
    cfg.set_rcq_size(1);

    // The client learns from the region's descriptor where the memory is. Its first message needs a
    // receive that waits for it: it is posted before the client can send.
    let data = CommonData {
        data_offset: region.offset_of(0)?,
        mr_desc: region.descriptor(),
        pcfg_desc: None,
    };
    let ep = Ep::listen(&peer, addr, port)?;
    let req = ep.next_conn_req(&cfg)?;
    req.recv(messages.receive_buffer()?, 0)?;
    let conn = conn::establish(req, &data.to_bytes())?;

    // The client writes, and then asks for a flush.
    let wc = conn::next_completion(&conn)?;
    let request: FlushRequest = messages.get(&wc)?;
    println!(
        "Flush request received: {{offset: 0x{:X}, length: 0x{:X}, op_context: 0x{:X}}}",
        request.offset, request.length, request.op_context
    );

    // The written bytes are in memory, or in a cache of this processor: the program writes the
    // cache back. The request comes from another program, so it may name only the range that this
    // one offers.
    region.persist(request.range_in(data.range(hello::STR_SIZE))?)?;

    // Now the bytes are durable, and the client may learn it.
    let response = FlushResponse {
        op_context: request.op_context,
    };
    conn.send(messages.put(&response)?, Flags::COMPLETION_ALWAYS, 0)?;
    gpspm::end_after_response(&conn, conn::next_completion(&conn))?;
    hello::print_new(&region)
}
