//! After the first operations, no awaited one allocates in the library, whether it sleeps or not.

use rpma::FlushType;
use rpma_async::{Conn, Inbox, Pool, Setup};

use crate::common::{device_test, peer};
use crate::looking;
use crate::support::{CLOSE, Ends, Memories, run};

/// Each kind of operation once. The last message sleeps until the peer has a receive for it.
async fn each(client: &Conn, inbox: &mut Inbox, memories: &Memories) {
    let to = memories.to();
    let visible = FlushType::Visibility;
    let written = client.write(to, memories.word()).expect("posted");
    let flushed = client.flush(to, visible).expect("posted");
    // Not in the order of their posts.
    flushed.await.expect("succeeds");
    written.await.expect("succeeds");
    let read = client.read(memories.block(&[0; 7]), to).expect("posted");
    assert_eq!(&*read.await.expect("succeeds"), b"a word.");
    let at = memories.remote.slice(64..72).expect("inside");
    let set = client.atomic_write(at, *b"a point.").expect("posted");
    set.await.expect("succeeds");

    let mut batch = client.batch::<2>();
    batch.write(to, memories.word()).expect("room");
    batch.flush(to, visible).expect("room");
    batch.commit().expect("posted").await.expect("succeeds");
    let pointer = Some((at, [1; 8]));
    let commit = client.commit([(to, memories.word())], pointer, visible);
    commit.expect("posted").await.expect("succeeds");

    let first = client.send(memories.word()).expect("posted");
    let second = client.send(memories.word()).expect("posted");
    first.await.expect("succeeds");
    let message = inbox.next().await.expect("no error").expect("a message");
    assert_eq!(&*message, b"a word.");
    let mut receive = Some(message);
    // It is polled after the second message, which has no receive.
    let giving = async {
        tokio::task::yield_now().await;
        receive = None;
    };
    let (sent, ()) = tokio::join!(second, giving);
    sent.expect("succeeds");
    drop(inbox.next().await.expect("no error").expect("a message"));
}

/// A data path that allocates takes time that nobody expects, and a lock.
#[test]
fn awaited_operations_allocate_nothing() {
    device_test(|| {
        let peer = peer();
        let memories = Memories::new(&peer);
        run(async {
            let setup = Setup::default().with_receives(1, 64);
            let Ends { client, server, .. } = Ends::new(&peer, &Setup::default(), &setup).await;
            let mut inbox = server.inbox().expect("it has receives");
            each(&client, &mut inbox, &memories).await;
            looking::begin();
            for _ in 0..3 {
                each(&client, &mut inbox, &memories).await;
            }
            let found = looking::end();
            assert!(found.is_empty(), "{found:#?}");

            // It finds those of the library: the error has a text.
            looking::begin();
            let refused = Pool::new(&peer, 0, 1);
            assert!(refused.is_err() && !looking::end().is_empty());
            client.close(CLOSE).await.expect("closes");
        });
    });
}
