//! Bytes of the program, read and committed through the blocks of a pool.

use rpma::commit::{Limits, Method, WriterCfg};
use rpma::reconnect::ToWriter;
use rpma::serve::ServerCfg;
use rpma_async::{Pool, Reactor, Writer};

use crate::awaited::served::{Serving, client, polls};
use crate::awaited::support::{all_blocks, in_time, joined, says, spawn_with, turns, with_reactor};
use crate::common::prelude::*;
use crate::serve::support::{LEN, Site};

/// Of the server's method: a commit of a whole block is too long.
const MOST: u32 = 48;
const BLOCK: usize = 64;
const TAIL: u64 = 2048;
/// More than the blocks of the pools, and not a multiple.
const BYTES: usize = 10 * BLOCK + 9;

fn bytes(first: u8) -> Vec<u8> {
    (0..BYTES).map(|at| first.wrapping_add(at as u8)).collect()
}

fn serving(reactor: &Reactor) -> Result<Serving> {
    let mut cfg = ServerCfg::new();
    cfg.set_commits(Some(Limits::new(2, 1, MOST)?));
    // Here a read makes bytes durable as well.
    let mut platform = PeerCfg::new();
    platform.set_durable(Durable::DirectWrites);
    cfg.set_platform(&platform);
    Serving::of(reactor, Site::with(1, &cfg)?)
}

/// A writer by a method, and the server's memory.
async fn writer(
    reactor: &Reactor,
    serving: &Serving,
    method: Method,
) -> Result<(Writer, MrRemote)> {
    let mut cfg = WriterCfg::new(method);
    cfg.set_in_flight(2)?.set_parts(1)?;
    let mut client = client(reactor, serving.addr, 1, ToWriter::new(&cfg));
    let writer = client.connect(&ConnCfg::new()).await?;
    let writer = Writer::new(reactor, writer)?;
    let memory = writer.offer().regions()[0];
    Ok((writer, memory))
}

fn content(region: &Mr<PmemMap>, at: usize) -> Result<Vec<u8>> {
    let mut content = vec![0; BYTES];
    region.read_at(at, &mut content)?;
    Ok(content)
}

/// Promise: bytes of any length are committed in blocks, with the pointer, and read again, by each
/// method and with pools of one block and of more. No block is lost.
#[test]
fn bytes_go_through_blocks() -> Result {
    with_reactor(async |reactor| {
        let serving = serving(reactor)?;
        let [reading, server] = [Method::Reading, Method::Server];
        for (method, blocks) in [(reading, 1), (server, 3), (reading, 40)] {
            let (writer, memory) = writer(reactor, &serving, method).await?;
            let pool = Pool::new(reactor.peer(), BLOCK, blocks)?;
            let lens = [1, BLOCK - 1, BLOCK, BLOCK + 1, BYTES];
            for (n, len) in lens.into_iter().enumerate() {
                let (first, word) = (n as u8 + blocks as u8, [n as u8 + 1; 8]);
                let bytes = &bytes(first)[..len];
                let committed = writer.commit_bytes(&pool, (&memory, 7), bytes, Some((TAIL, word)));
                in_time(committed).await?;
                assert_eq!(content(&serving.regions[0], 7)?[..len], *bytes);
                let tail = serving.regions[0].load_u64(TAIL as usize)?;
                assert_eq!(tail.to_ne_bytes(), word);
                let read = writer.read_bytes(&pool, &memory, 7..7 + len as u64);
                assert_eq!(in_time(read).await?, bytes);
            }
            let none = writer.read_bytes(&pool, &memory, 3..3).await;
            assert!(none?.is_empty());
            assert_eq!(pool.available(), blocks);
        }
        serving.stop().await;
        Ok(())
    })
}

/// Promise: tasks read and commit beside each other with one pool of two blocks, and each gets its
/// own bytes.
#[test]
fn tasks_share_a_pool() -> Result {
    with_reactor(async |reactor| {
        let serving = serving(reactor)?;
        let (writer, memory) = writer(reactor, &serving, Method::Server).await?;
        let pool = Pool::new(reactor.peer(), BLOCK, 2)?;
        let tasks = [0_u8, 1, 2].map(|n| {
            let pool = pool.clone();
            spawn_with(&writer, |writer| async move {
                let (at, own) = (1024 * u64::from(n), bytes(n));
                for _ in 0..4 {
                    let to = (&memory, at);
                    writer.commit_bytes(&pool, to, &own, None).await?;
                    let range = at..at + BYTES as u64;
                    assert_eq!(writer.read_bytes(&pool, &memory, range).await?, own);
                }
                Ok::<_, Error>(())
            })
        });
        for task in tasks {
            joined(task).await?;
        }
        assert_eq!(pool.available(), 2);
        drop(writer);
        serving.stop().await;
        Ok(())
    })
}

/// Promise: a call that is dropped after its nth poll leaves no block, and the writer works on.
#[test]
fn a_dropped_call_leaves_no_block() -> Result {
    with_reactor(async |reactor| {
        let serving = serving(reactor)?;
        let (writer, memory) = writer(reactor, &serving, Method::Server).await?;
        let pool = Pool::new(reactor.peer(), BLOCK, 3)?;
        let own = bytes(1);
        for n in 0..6 {
            drop(polls(writer.commit_bytes(&pool, (&memory, 0), &own, None), n).await);
            drop(polls(writer.read_bytes(&pool, &memory, 0..BYTES as u64), n).await);
            drop(in_time(all_blocks(&pool)).await);
        }
        in_time(writer.commit_bytes(&pool, (&memory, 0), &own, None)).await?;
        assert_eq!(content(&serving.regions[0], 0)?, own);
        drop(writer);
        serving.stop().await;
        Ok(())
    })
}

/// Promise: bad input is one clear error, and nothing is posted.
#[test]
fn bad_input_posts_nothing() -> Result {
    with_reactor(async |reactor| {
        let serving = serving(reactor)?;
        let (writer, memory) = writer(reactor, &serving, Method::Server).await?;
        let pool = Pool::new(reactor.peer(), BLOCK, 2)?;
        let (len, own) = (LEN as u64, bytes(1));
        let before = content(&serving.regions[0], LEN - BYTES)?;
        let outside = "region";
        let cases: [(u64, &[u8], Option<u64>, &str); 4] = [
            (len - 100, &own, None, outside),
            (u64::MAX - 3, &own, None, outside),
            (0, &own, Some(len - 4), outside),
            (0, &[], Some(TAIL), "without a byte"),
        ];
        for (at, bytes, word, text) in cases {
            let word = word.map(|at| (at, [9; 8]));
            let committed = writer.commit_bytes(&pool, (&memory, at), bytes, word).await;
            says(committed, &[text]);
        }
        for range in [0..len + 1, len..u64::MAX] {
            says(writer.read_bytes(&pool, &memory, range).await, &[outside]);
        }
        assert_eq!(content(&serving.regions[0], LEN - BYTES)?, before);
        assert_eq!((writer.available(), pool.available()), (2, 2));
        drop(writer);
        serving.stop().await;
        Ok(())
    })
}

/// Promise: the end of the connection ends both calls, with its reason, and all blocks come back.
#[test]
fn an_end_ends_both() -> Result {
    with_reactor(async |reactor| {
        let serving = serving(reactor)?;
        let (writer, memory) = writer(reactor, &serving, Method::Server).await?;
        let pool = Pool::new(reactor.peer(), BLOCK, 2)?;
        let blocks = pool.clone();
        let commits = spawn_with(&writer, |writer| async move {
            let at = (&memory, 0);
            loop {
                writer.commit_bytes(&blocks, at, &bytes(1), None).await?;
                writer.read_bytes(&blocks, &memory, 0..BYTES as u64).await?;
            }
            #[allow(unreachable_code, reason = "it names the type")]
            Ok::<(), Error>(())
        });
        tokio::time::sleep(Duration::from_millis(5)).await;
        serving.kill().await;
        joined(commits).await.expect_err("it is over");
        drop(writer);
        assert_eq!(pool.available(), 2);
        Ok(())
    })
}

/// Promise: a call that waits for a block ends with the connection as well. On iWARP the blocks of
/// operations that were posted too late do not come back before the writer is gone.
#[test]
fn a_wait_for_a_block_ends_with_the_connection() -> Result {
    with_reactor(async |reactor| {
        let serving = serving(reactor)?;
        let (writer, memory) = writer(reactor, &serving, Method::Server).await?;
        let pool = Pool::new(reactor.peer(), BLOCK, 1)?;
        let taken = pool.try_lease().ok_or("free")?;
        let commits = spawn_with(&writer, |writer| {
            let pool = pool.clone();
            async move {
                writer
                    .commit_bytes(&pool, (&memory, 0), &bytes(1), None)
                    .await
            }
        });
        let memory = writer.offer().regions()[0];
        let reads = spawn_with(&writer, |writer| {
            let pool = pool.clone();
            async move { writer.read_bytes(&pool, &memory, 0..BYTES as u64).await }
        });
        turns(3).await;
        assert!(!commits.is_finished() && !reads.is_finished());
        serving.kill().await;
        joined(commits).await.expect_err("it is over");
        joined(reads).await.expect_err("it is over");
        drop((taken, writer));
        Ok(())
    })
}
