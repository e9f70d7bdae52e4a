//! Messages with completions that several tasks poll at once.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use rpma_async::Inbox;

use crate::awaited::support::{Memories, receives, turns};
use crate::awaited::world::virtually;
use crate::common::prelude::*;

/// A waker that takes a message of an inbox.
struct Takes {
    act: Box<dyn Fn() + Send + Sync>,
    inbox: Mutex<Inbox>,
    taken: Mutex<Vec<Option<u32>>>,
}

impl Wake for Takes {
    fn wake(self: Arc<Self>) {
        (self.act)();
        let taken = self.take().expect("not over");
        self.taken.lock().expect("no panic").extend(taken);
    }
}

impl Takes {
    /// The messages that there are.
    fn take(&self) -> Result<Vec<Option<u32>>> {
        let mut inbox = self.inbox.lock().expect("no panic");
        let mut cx = Context::from_waker(Waker::noop());
        let mut taken = Vec::new();
        while let Poll::Ready(next) = inbox.poll_next(&mut cx) {
            let message = next.ok_or("not over")??;
            taken.push(message.imm());
        }
        Ok(taken)
    }
}

/// Promise: messages are returned in the order in which they arrived, whichever task polls their
/// completions. Here the driver has polled the first one, and before it has noted that, a waker
/// polls the second one.
#[test]
fn messages_stay_in_order() -> Result {
    virtually(async |world| {
        let memories = world.memories(4);
        let of_server = Memories::between(&world.peers[1], &world.peers[0], 4);
        let setup = receives(4);
        let (client, server) = world.connect(&setup, &setup).await?;
        let back = world.fabric.between(&world.hosts[1], &world.hosts[0]);
        back.hold();
        // A drain takes several completions at once after the first ones.
        let word = of_server.word();
        for _ in 0..8 {
            let write = server.write(of_server.to(), word.clone());
            write?.detach();
        }
        let mut asleep = pin!(server.write(of_server.to(), word).expect("posted"));
        let (sender, second) = (client.clone(), memories.word());
        let takes = Arc::new(Takes {
            act: Box::new(move || {
                let sent = sender.send_with_imm(second.clone(), 2);
                sent.expect("posted").detach();
            }),
            inbox: Mutex::new(server.inbox()?),
            taken: Mutex::default(),
        });
        let waker = Waker::from(Arc::clone(&takes));
        let polled = asleep.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        back.release();
        client.send_with_imm(memories.word(), 1)?.detach();
        // The driver drains.
        turns(4).await;
        let mut taken = takes.taken.lock().expect("no panic").clone();
        taken.extend(takes.take()?);
        assert_eq!(taken, [Some(1), Some(2)]);
        asleep.await?;
        Ok(())
    })
}
