//! Calls that block a runtime's only thread.

use rpma::sim::now;
use tokio::time::{Instant, sleep};

use crate::follow::prelude::*;

const LEN: usize = 64;
const HOUR: Duration = Duration::from_secs(3_600);

/// Promise: a wait of no time looks once. A longer one is jumped over: it ends at its limit, which
/// the program's clock has not seen, or when its device is done. Then the fabric's clock stands
/// still until the program's has caught up.
#[test]
fn a_wait_that_blocks_is_jumped_over() -> Result {
    virtually(async |world| {
        let (began, real) = (Instant::now(), std::time::Instant::now());
        let ep = world.listen()?;
        let cfg = ConnCfg::new();
        let next = |limit| ep.next_conn_req_timeout(&cfg, limit);
        assert!(matches!(next(Duration::ZERO), Err(Error::NoEvent)));
        assert_eq!(now(), began.into_std());
        assert!(matches!(next(DAY), Err(Error::NoEvent)));
        assert_eq!(now(), (began + DAY).into_std());
        assert_eq!(world.fabric.now(), now());
        assert_eq!(Instant::now(), began, "it knows nothing of it");
        assert!(real.elapsed() < DAY);

        // Work that is put off meanwhile is due in the fabric's time.
        let (client, _server) = connect(world, &cfg, &cfg).await?.ends();
        let memories = world.memories(LEN)?;
        world.link.delay(HOUR);
        assert!(write_all(&client, &memories).await.result().is_ok());
        assert_eq!(now(), Instant::now().into_std(), "it has caught up");
        assert!(Instant::now() >= began + DAY + HOUR);

        // A wait for a device.
        let posted = memories.write(&client, 1)?;
        client.wait_for(posted, DAY, |_| {})?;
        let ahead = now() - Instant::now().into_std();
        assert!((HOUR / 2..DAY).contains(&ahead), "{ahead:?}");
        sleep(DAY).await;
        assert_eq!(now(), Instant::now().into_std(), "it has caught up");
        Ok(())
    })
}

/// Promise: a connection may be dropped in a task, although some drops wait for their device.
#[test]
fn a_drop_may_wait_for_its_device() -> Result {
    virtually(async |world| {
        let mut cfg = SrqCfg::new();
        cfg.set_rq_size(4);
        let srq = Srq::new(&world.peers[1], &cfg)?;
        let memory = region(&world.peers[1], LEN, MrUsage::RECV)?;
        srq.recv(memory.slice(..)?, 1)?;
        let mut cfg = ConnCfg::new();
        cfg.set_srq(Some(&srq));
        cfg.set_compl_channel(ComplChannel::PerCq);
        let Pair { client, server } = connect(world, &ConnCfg::new(), &cfg).await?;
        let message = region(&world.peers[0], LEN, MrUsage::SEND)?;
        client.send(message.slice(..)?, ALWAYS, 2)?;
        assert!(completion(&client).await.result().is_ok());
        let began = Instant::now();
        drop(server);
        let ahead = now() - Instant::now().into_std();
        assert!(ahead < Duration::from_millis(10), "{ahead:?}");
        assert_eq!(Instant::now(), began);
        sleep(HOUR).await;
        Ok(())
    })
}

/// Promise: a wait that can never end is no silent hang. It panics, and the message has the reason
/// and the remedy.
#[test]
fn a_wait_in_vain_panics() -> Result {
    virtually(async |world| {
        let cfg = ConnCfg::new();
        let (client, _server) = connect(world, &cfg, &cfg).await?.ends();
        let text = panic_of(|| client.next_event());
        for part in ["nothing is to come", "await its descriptor"] {
            assert!(text.contains(part), "{text}");
        }
        // The fabric goes on.
        let memories = world.memories(LEN)?;
        assert!(write_all(&client, &memories).await.result().is_ok());
        Ok(())
    })
}
