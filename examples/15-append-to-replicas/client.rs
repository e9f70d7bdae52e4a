//! The client: posts each word to both servers, and then waits for both.

use std::net::SocketAddr;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rpma::{FlushType, MrRemote, MrUsage, Peer, PeerCfg, RemoteSlice};
use rpma_async::{Conn, Frozen, Op, Pool, Reactor, Setup, Sources};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::common::cli::{self, BadArgument, Role};
use crate::common::conn::{self, ANSWER};
use crate::common::data::CommonData;
use crate::layout::{LOG_SIZE, USED_OFFSET, WORD_SIZE, check_room, check_used};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> <2nd_server_address> <2nd_port> <word1> [<word2> ...]",
    notes: "",
    main,
};

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    let [second, second_port, words @ ..] = more else {
        bail!(BadArgument("no second server".to_owned()));
    };
    for word in words {
        cli::check_word(word, WORD_SIZE)?;
    }
    let second_port = cli::number("second port", second_port)?;
    let first = conn::socket_addr(addr, port)?;
    let second = conn::socket_addr(second, second_port)?;
    if first == second {
        let text = format!("both servers are {first}: two logs need two servers");
        bail!(BadArgument(text));
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(append_all(first, second, words))
}

async fn append_all(first: SocketAddr, second: SocketAddr, words: &[String]) -> Result<()> {
    // A peer on the device through which the servers are reached: with that this program registers
    // memory. The reactor makes connections.
    let peer = Peer::toward_any(&[first, second])?;
    let reactor = Reactor::spawn(&peer)?;
    let pool = Pool::new(&peer, WORD_SIZE, 2)?;

    let (one, other) = tokio::try_join!(
        Replica::connect(&reactor, first),
        Replica::connect(&reactor, second),
    )?;

    // Where the logs' unused parts begin. Both logs have the same words.
    let (mut used, of_other) = tokio::try_join!(one.used(&pool), other.used(&pool))?;
    println!("used value: {used}");
    ensure!(
        used == of_other,
        "the logs are different: {used} bytes of the one at {first} are used, and {of_other} of the \
         one at {second}"
    );
    check_room(used, words)?;

    for word in words {
        let mut block = pool.lease().await;
        block.truncate(word.len() + 1);
        block[..word.len()].copy_from_slice(word.as_bytes());
        block[word.len()] = 0;

        // It cannot change now, so that both devices may read it. Both are asked to, before either
        // is waited for. The memory is free again when both are done.
        let word_memory = block.freeze();
        let appended = one.append(used, word_memory.clone())?;
        let appended_to_other = other.append(used, word_memory)?;
        one.check(appended.await)?;
        other.check(appended_to_other.await)?;
        println!("{word} is in both logs");
        used += word.len() + 1;
    }

    tokio::try_join!(one.conn.close(ANSWER), other.conn.close(ANSWER))?;
    Ok(())
}

/// A server's log.
struct Replica {
    addr: SocketAddr,
    conn: Conn,
    log: MrRemote,
    /// The place of the number of used bytes.
    used: RemoteSlice,
    flush_type: FlushType,
}

impl Replica {
    async fn connect(reactor: &Reactor, addr: SocketAddr) -> Result<Self> {
        let connecting = reactor.connect(addr, &Setup::default(), &[]);
        let conn = timeout(ANSWER, connecting).await;
        let conn = conn.with_context(|| format!("the server at {addr} does not answer"))?;
        let conn = conn.map_err(|error| anyhow!("the server at {addr}: {error}"))?;

        // With its answer the server has sent where its log is.
        let data = CommonData::from_bytes(conn.private_data())?;
        let log = MrRemote::from_descriptor(&data.mr_desc)?;
        ensure!(
            usize::from(data.data_offset) == USED_OFFSET && log.get_size() >= LOG_SIZE as u64,
            "the memory of the server at {addr} is no log"
        );

        // As in example 07, the server sends no peer configuration: this example makes an
        // assumption that a server should declare.
        let mut pcfg = PeerCfg::new();
        pcfg.set_direct_write_to_pmem(true);
        conn.apply_remote_peer_cfg(&pcfg);
        let types = log.get_flush_type();
        let is_persistent = types.contains(MrUsage::FLUSH_TYPE_PERSISTENT);
        Ok(Self {
            addr,
            used: log.slice(data.range(8))?,
            conn,
            log,
            flush_type: if is_persistent {
                FlushType::Persistent
            } else {
                FlushType::Visibility
            },
        })
    }

    /// Reads how much of the log is used.
    async fn used(&self, pool: &Pool) -> Result<usize> {
        let mut block = pool.lease().await;
        block.truncate(8);
        let read = self.check(self.conn.read(block, self.used))?;
        let block = self.check(read.await)?;
        check_used(u64::from_le_bytes(block[..].try_into()?))
    }

    /// Posts a word after the used part, its flush, the new end of the used part, and its flush.
    /// The log has the word when all of that is complete.
    fn append(&self, used: usize, word: Frozen) -> Result<Op<Sources<1>>> {
        let end = (used + word.len()) as u64;
        let to = self.log.slice(used as u64..end)?;
        let pointer = Some((self.used, end.to_le_bytes()));
        let posted = self.conn.commit([(to, word)], pointer, self.flush_type);
        self.check(posted)
    }

    /// Adds the server's address to an error.
    fn check<T, E: Into<rpma::Error>>(&self, result: Result<T, E>) -> Result<T> {
        result.map_err(|error| anyhow!("the server at {}: {}", self.addr, error.into()))
    }
}
