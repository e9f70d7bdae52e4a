//! Many connections on one thread, and a program that is killed.

use std::rc::Rc;

use rpma::FlushType;
use rpma_async::{Conn, Pool, Reactor, Setup};
use tokio::task::{JoinSet, LocalSet};

use crate::common::{Result, contents, device_test, peer};
use crate::support::{CLOSE, Memories, listen, run};

/// As many as the bytes of a message can distinguish.
const CLIENTS: u8 = 100;

/// A message to the server, a write with its flush, and the answer.
async fn ask(conn: Conn, memories: &Memories, number: u8) {
    let mut inbox = conn.inbox().expect("it has receives");
    let byte = memories.block(&[number]).freeze();
    let at = u64::from(number);
    let to = memories.remote.slice(at..at + 1).expect("inside");
    let written = conn.write(to, byte.clone()).expect("posted");
    let flushed = conn.flush(to, FlushType::Visibility).expect("posted");
    let sent = conn.send(byte).expect("posted");
    for written in [written, sent] {
        written.await.expect("succeeds");
    }
    flushed.await.expect("succeeds");
    let answer = inbox.next().await.expect("no error").expect("a message");
    assert_eq!(*answer, [number]);
    drop(answer);
    conn.close(CLOSE).await.expect("closes");
}

/// Sends each message back, until the client ends the connection.
async fn answer(conn: Conn, pool: Pool) {
    let mut inbox = conn.inbox().expect("it has receives");
    while let Some(message) = inbox.next().await.expect("no error") {
        let mut lease = pool.lease().await;
        lease[..message.len()].copy_from_slice(&message);
        lease.truncate(message.len());
        drop(message);
        // The client may end the connection before its acknowledgement is here.
        let _ = conn.send(lease.freeze()).expect("posted").await;
    }
}

/// Promise: a hundred connections, both ends of each, are tasks of one thread, and no task waits
/// for another connection's.
#[test]
fn a_hundred_connections_on_one_thread() -> Result {
    device_test(|| {
        let peer = peer()?;
        let memories = Rc::new(Memories::with_blocks(&peer, usize::from(CLIENTS)));
        // Blocks for the answers: fewer than there are clients.
        let pool = Pool::new(&peer, 16, 10).expect("a pool");
        run(LocalSet::new().run_until(async {
            let reactor = Reactor::spawn(&peer).expect("a reactor");
            let setup = Setup::default().with_receives(1, 16);
            let (listener, addr) = listen(&reactor);
            let mut tasks = JoinSet::new();
            for number in 0..CLIENTS {
                let (memories, connecting) =
                    (Rc::clone(&memories), reactor.connect(addr, &setup, &[]));
                tasks.spawn_local(async move {
                    let conn = connecting.await.expect("established");
                    ask(conn, &memories, number).await;
                });
            }
            for _ in 0..CLIENTS {
                let incoming = listener.accept().await.expect("a request");
                let accepting = incoming.accept(&setup, &[]);
                let pool = pool.clone();
                tasks.spawn_local(async move {
                    answer(accepting.await.expect("established"), pool).await;
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
    })
}

/// A program of its own is killed: the kernel of its host reports it.
#[cfg(not(feature = "sim"))]
mod killed {
    use std::env;
    use std::net::SocketAddr;
    use std::process::{Child, Command, Stdio};

    use rpma_async::Reactor;

    use super::*;
    use crate::common::{Result, addr, leaving};
    use crate::sleepers::Sleepers;

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
            let reactor = Reactor::spawn(&peer).expect("a reactor");
            let server = SocketAddr::new(addr().parse().expect("an address"), port);
            let connecting = reactor.connect(server, &Setup::default(), &[]);
            let conn = connecting.await.expect("established");
            conn.closed().await.expect("the server has an end");
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
            client(port.parse().expect("a port"));
        }
        leaving(&[], || {
            let peer = peer()?;
            let memories = Memories::new(&peer);
            run(async {
                let reactor = Reactor::spawn(&peer).expect("a reactor");
                let (listener, addr) = listen(&reactor);
                let child = Command::new(env::current_exe().expect("this program"))
                    .args([
                        "crowd::killed::a_killed_program_wakes_all",
                        "--exact",
                        "--nocapture",
                    ])
                    .env(CHILD, addr.port().to_string())
                    .stdout(Stdio::null())
                    .spawn();
                let child = Killed(child.expect("this program starts"));
                let incoming = listener.accept().await.expect("a request");
                let setup = Setup::default().with_receives(2, 64);
                let conn = incoming.accept(&setup, &[]).await.expect("established");
                let sleepers = Sleepers::new(&conn, &memories).await;
                drop(child);
                sleepers.woken().await.is_closed_by_the_peer();
                Ok(())
            })?;
            assert_eq!(memories.pool.available(), 4);
            Ok(())
        })
    }
}
