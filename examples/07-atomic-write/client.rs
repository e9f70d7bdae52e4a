//! The client: appends its words to the server's log.

use anyhow::{Result, ensure};
use rpma::{AlignedBuf, Device, Flags, FlushType, Mr, MrRemote, MrUsage, Peer, PeerCfg, Side};

use crate::common::cli::Role;
use crate::common::data::CommonData;
use crate::common::{cli, conn};
use crate::layout::{LOG_SIZE, USED_OFFSET, WORD_SIZE, check_room, check_used};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> <word1> [<word2> ...]",
    notes: "",
    main,
};

const READ_ID: u64 = 1;
/// Distinguishes the last flush of a word from other operations; any number would do.
const FLUSH_ID: u64 = 0xF01D;

fn main(addr: &str, port: u16, words: &[String]) -> Result<()> {
    for word in words {
        cli::check_word(word, WORD_SIZE)?;
    }

    // The device through which the server is reached, and a peer on it: with that this program
    // registers memory and makes connections.
    let device = Device::from_addr(addr, Side::Remote)?;
    let peer = Peer::new(&device)?;

    // Words are written from here, and the log's state is read to here.
    let usage = MrUsage::WRITE_SRC | MrUsage::READ_DST;
    let local = Mr::reg(&peer, AlignedBuf::zeroed(WORD_SIZE)?, usage)?;

    // With its answer the server has sent where its log is.
    let conn = conn::connect(&peer, addr, port, &[])?;
    let data = CommonData::from_bytes(conn.get_private_data())?;
    let remote = MrRemote::from_descriptor(&data.mr_desc)?;
    ensure!(
        usize::from(data.data_offset) == USED_OFFSET && remote.get_size() >= LOG_SIZE as u64,
        "the server's memory is no log"
    );
    let used_part = remote.slice(data.range(8))?;

    // This server sends no peer configuration. So this example makes an assumption that a server
    // should declare: that writes go directly to its persistent memory.
    let mut pcfg = PeerCfg::new();
    pcfg.set_direct_write_to_pmem(true);
    conn.apply_remote_peer_cfg(&pcfg);
    let flush_type = match remote.get_flush_type() {
        types if types.contains(MrUsage::FLUSH_TYPE_PERSISTENT) => FlushType::Persistent,
        _ => FlushType::Visibility,
    };

    // Where the log's unused part begins.
    let dst = local.slice(..8)?;
    conn.read(dst, used_part, Flags::COMPLETION_ALWAYS, READ_ID)?;
    conn::wait_for_completion(&conn, READ_ID)?;
    let mut bytes = [0; 8];
    local.read_at(0, &mut bytes)?;
    println!("used value: {}", u64::from_le_bytes(bytes));
    let mut used = check_used(u64::from_le_bytes(bytes))?;

    // Either all words go into the log, or no word.
    check_room(used, words)?;

    for word in words {
        let end = used + word.len() + 1;
        local.write_at(0, word.as_bytes())?;
        local.write_at(word.len(), &[0])?;

        // The word goes after the last one, and is flushed: but the log does not count it yet.
        let dst = remote.slice(used as u64..end as u64)?;
        let src = local.slice(..=word.len())?;
        conn.write(dst, src, Flags::COMPLETION_ON_ERROR, 0)?;
        conn.flush(dst, flush_type, Flags::COMPLETION_ON_ERROR, 0)?;

        // Then the word becomes a part of the log, by a write of 8 bytes that is never seen half
        // done, and that begins only when the flush before it is complete.
        let new = (end as u64).to_le_bytes();
        conn.atomic_write(used_part, &new, Flags::COMPLETION_ON_ERROR, 0)?;
        conn.flush(used_part, flush_type, Flags::COMPLETION_ALWAYS, FLUSH_ID)?;

        // Operations complete in order: with the last one, all four are done.
        conn::wait_for_completion(&conn, FLUSH_ID)?;
        used = end;
    }

    conn::disconnect_and_wait(&conn)
}
