//! Many connections on one thread, and a program that is killed.

use std::rc::Rc;

use rpma_async::{Conn, Pool, Reactor, Setup};
use tokio::task::{JoinSet, LocalSet};

use crate::awaited::support::{CLOSE, Memories, listen, run, with_bytes};
use crate::common::prelude::*;

/// As many as the bytes of a message can distinguish.
const CLIENTS: u8 = 100;

/// A message to the server, a write with its flush, and the answer.
async fn ask(conn: Conn, memories: &Memories, number: u8) -> Result {
    let mut inbox = conn.inbox()?;
    let byte = memories.block(&[number]).freeze();
    let at = u64::from(number);
    let to = memories.remote.slice(at..at + 1)?;
    let written = conn.write(to, byte.clone())?;
    let flushed = conn.flush(to, FlushType::Visibility)?;
    let sent = conn.send(byte)?;
    written.await?;
    sent.await?;
    flushed.await?;
    let answer = inbox.next().await?.ok_or("a message")?;
    assert_eq!(*answer, [number]);
    drop(answer);
    conn.close(CLOSE).await?;
    Ok(())
}

/// Sends each message back, until the client ends the connection.
async fn answer(conn: Conn, pool: Pool) -> Result {
    let mut inbox = conn.inbox()?;
    while let Some(message) = inbox.next().await? {
        let lease = with_bytes(pool.lease().await, &message);
        drop(message);
        // The client may end the connection before its acknowledgement is here.
        let _ = conn.send(lease.freeze())?.await;
    }
    Ok(())
}

/// Promise: a hundred connections, both ends of each, are tasks of one thread, and no task waits
/// for another connection's.
#[test]
fn a_hundred_connections_on_one_thread() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let memories = Rc::new(Memories::with_blocks(&peer, usize::from(CLIENTS)));
    // Blocks for the answers: fewer than there are clients.
    let pool = Pool::new(&peer, 16, 10)?;
    run(LocalSet::new().run_until(async {
        let reactor = Reactor::spawn(&peer)?;
        let setup = Setup::default().with_receives(1, 16);
        let (listener, addr) = listen(&reactor)?;
        let mut tasks = JoinSet::new();
        for number in 0..CLIENTS {
            let (memories, connecting) = (Rc::clone(&memories), reactor.connect(addr, &setup, &[]));
            tasks.spawn_local(async move {
                let conn = connecting.await.expect("established");
                ask(conn, &memories, number).await.expect("closes");
            });
        }
        for _ in 0..CLIENTS {
            let incoming = listener.accept().await?;
            let accepting = incoming.accept(&setup, &[]);
            let pool = pool.clone();
            tasks.spawn_local(async move {
                let conn = accepting.await.expect("established");
                answer(conn, pool).await.expect("posted");
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.expect("no panic");
        }
        Ok(())
    }))?;
    assert_eq!(memories.pool.available(), usize::from(CLIENTS));
    assert_eq!(pool.available(), 10);
    let written = contents(&memories.target)?;
    assert!((0..CLIENTS).all(|number| written[usize::from(number)] == number));
    Ok(())
}

/// A program of its own is killed: the kernel of its host reports it.
#[cfg(not(feature = "sim"))]
mod killed {
    use std::env;
    use std::net::SocketAddr;
    use std::process::{Child, Stdio};

    use rpma_async::Reactor;

    use super::*;
    use crate::awaited::sleepers::Sleepers;
    use crate::awaited::support::{accept_next, receives};
    use crate::common::program::command_alone;
    use crate::common::{Result, addr, leaving};

    /// A program that is killed at the latest when this is dropped.
    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            // The result is ignored: the process must end.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Connects, and waits to be killed.
    fn client(port: u16) -> ! {
        let peer = peer().expect("a peer on the test device");
        run(async {
            let reactor = Reactor::spawn(&peer)?;
            let server = SocketAddr::new(addr().parse()?, port);
            let connecting = reactor.connect(server, &Setup::default(), &[]);
            let conn = connecting.await?;
            conn.closed().await?;
            Ok(())
        })
        .expect("it succeeds");
        panic!("not killed in time");
    }

    /// Promise: the end of a killed program wakes everything that sleeps on its connection, with
    /// the reason, and everything is freed.
    #[test]
    fn a_killed_program_wakes_all() -> Result {
        const CHILD: &str = "RPMA_TEST_ASYNC_CLIENT_TO_KILL";
        if let Ok(port) = env::var(CHILD) {
            client(port.parse()?);
        }
        leaving(&[], || {
            let peer = peer()?;
            let memories = Memories::new(&peer);
            run(async {
                let reactor = Reactor::spawn(&peer)?;
                let (listener, addr) = listen(&reactor)?;
                let child = command_alone(module_path!(), "a_killed_program_wakes_all")
                    .env(CHILD, addr.port().to_string())
                    .stdout(Stdio::null())
                    .spawn();
                let child = Killed(child?);
                let conn = accept_next(&listener, &receives(2), &[]).await?;
                let sleepers = Sleepers::new(&conn, &memories).await?;
                drop(child);
                sleepers.woken().await.is_closed_by_the_peer();
                Ok(())
            })?;
            assert_eq!(memories.pool.available(), 4);
            Ok(())
        })
    }
}
