//! iWARP: an operation completes without the peer, and only a read is answered. The device is
//! soft-iWARP of the simulator.

use rpma::sim::{Profile, now};

use crate::common::prelude::*;

mod asking;
mod awaited;

const SECOND: Duration = Duration::from_secs(1);

fn world() -> World {
    Rig::of(&Profile::SIW_6_12).jumping().world()
}

fn connected(world: &World) -> Result<Pair> {
    world.connect(&ConnCfg::new(), &ConnCfg::new())
}

/// Promise: `close` is `Ok` only if the peer's device has every operation. A message to a host that
/// stands still completes, and may be lost.
#[test]
fn a_close_waits_for_an_answer() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let Pair { client, server } = connected(&both)?;
    receive_nothing(&server, 1..2)?;
    let sent = client.post_send(MrSlice::EMPTY)?;
    assert_eq!(client.close(LIMIT)?.len(), 1, "{sent:?}");
    assert_eq!(completion(&server)?.wr_id(), 1);

    let Pair { client, server } = connected(&both)?;
    receive_nothing(&server, 1..2)?;
    both.hosts[1].freeze();
    let sent = client.post_send(MrSlice::EMPTY)?;
    client.wait_for(sent, SECOND, |_| {})?;
    let began = now();
    let lost = client.close(2 * SECOND).expect_err("nobody answers");
    assert_timed_out(Err::<(), _>(lost.error));
    assert!(now() < began + 3 * SECOND);
    both.hosts[1].thaw();
    drop(server);
    Ok(())
}

/// Promise: a keep-alive notices a host that stands still, also while writes to it complete. The
/// connection ends once.
#[test]
fn a_silent_peer_is_noticed_while_writes_complete() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let mut cfg = ConnCfg::new();
    cfg.set_keep_alive(Some(16 * SECOND))?;
    let Pair { client, server } = both.connect(&cfg, &ConnCfg::new())?;
    let memory = both.memories(64)?;
    let mut wcs = [Wc::default(); 4];
    // For a minute, nothing ends.
    let began = now();
    while now() < began + 60 * SECOND {
        memory.write(&client, 1)?;
        assert_eq!(client.next(&mut wcs, LIMIT)?, Next::Completions(1));
        assert_timed_out(client.next(&mut wcs, SECOND));
    }
    both.hosts[1].freeze();
    let began = now();
    let silent = loop {
        assert!(now() < began + 60 * SECOND, "it is not noticed");
        if let Err(error) = memory.write(&client, 2) {
            break error;
        }
        // Until nothing comes: a wait that finds a completion at once looks for nothing else.
        while let Ok(Next::Completions(_)) = client.next(&mut wcs, SECOND) {}
    };
    assert!(matches!(silent, Error::NotConnected(NotConnected::Silent)));
    assert!(now() < began + 16 * SECOND, "{:?}", now() - began);
    // The stream is closed as well, which is no second end.
    assert_eq!(client.wait_ended(LIMIT)?, ConnEvent::Lost { status: -110 });
    both.hosts[1].thaw();
    assert_eq!(server.wait_ended(LIMIT)?, ConnEvent::Closed);
    let more = client.next_event_timeout(SECOND);
    assert!(matches!(more, Err(Error::NoEvent)), "{more:?}");
    drop(server);
    Ok(())
}

/// Promise: immediate data is refused before anything is posted, and the connection lives.
#[test]
fn immediate_data_is_refused() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let Pair { client, server } = connected(&both)?;
    let memory = both.memories(64)?;
    let (to, from) = (memory.to()?, memory.source.slice(..)?);
    let mut batch = client.batch::<2>();
    for refused in [
        client.write_with_imm(to, from, ALWAYS, 7, 1).map(drop),
        client.send_with_imm(from, ALWAYS, 7, 1).map(drop),
        batch.write_with_imm(to, from, ALWAYS, 7, 1),
        batch.send_with_imm(from, ALWAYS, 7, 1),
    ] {
        assert_says(&not_supported(refused), &["immediate data", "iWARP"]);
    }
    client.post_write(to, from)?;
    let flushed = client.post_flush(to, FlushType::Visibility)?;
    client.wait_for(flushed, LIMIT, |_| {})?;
    assert_eq!(contents(&memory.target)?, contents(&memory.source)?);
    drop(server);
    Ok(())
}

/// Promise: a receive of 0 bytes takes a message, in each way of posting it.
#[test]
fn receives_without_a_buffer() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let Pair { client, server } = connected(&both)?;
    server.recv(MrSlice::EMPTY, 1)?;
    server.recv_many(&[(MrSlice::EMPTY, 2), (MrSlice::EMPTY, 3)])?;
    for number in 1..=3 {
        let sent = client.post_send(MrSlice::EMPTY)?;
        client.wait_for(sent, LIMIT, |_| {})?;
        assert_eq!(completion(&server)?.wr_id(), number);
    }

    let srq = Srq::new(&both.peers[1], SrqCfg::new().set_rcq_size(0))?;
    let shared = ConnCfg::new().set_srq(Some(&srq)).clone();
    let Pair { client, server } = both.connect(&ConnCfg::new(), &shared)?;
    srq.recv(MrSlice::EMPTY, 1)?;
    srq.recv_many(&[(MrSlice::EMPTY, 2), (MrSlice::EMPTY, 3)])?;
    for number in 1..=3 {
        let sent = client.post_send(MrSlice::EMPTY)?;
        client.wait_for(sent, LIMIT, |_| {})?;
        assert_eq!(completion(&server)?.wr_id(), number);
    }
    Ok(())
}

/// Promise: a cut-off does not wait for completions that never come, and has those that do.
#[test]
fn a_cut_off_is_prompt() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let Pair { client, server } = connected(&both)?;
    receive_nothing(&server, 1..4)?;
    let began = now();
    let flushed = server.cut_off()?;
    assert!(now() < began + Duration::from_millis(100));
    assert_eq!(numbers(&flushed), [1, 2, 3]);
    drop(client);

    // The peer has ended it, and a receive was posted before this side knew.
    let Pair { client, server } = connected(&both)?;
    client.disconnect()?;
    rpma::sim::sleep(SECOND);
    receive_nothing(&server, 1..2)?;
    let began = now();
    server.cut_off()?;
    assert!(now() < began + Duration::from_millis(100));
    Ok(())
}

/// Promise: operations complete in the order of their posts, also behind a read that is answered
/// late: a completion shows that everything before it is done.
#[test]
fn completions_come_in_order_behind_a_read() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let Pair { client, server } = connected(&both)?;
    let memory = both.memories(64)?;
    both.link.delay(SECOND);
    let flushed = client.post_flush(memory.to()?, FlushType::Visibility)?;
    let written = memory.write(&client, 7)?;
    let mut others = Vec::new();
    client.wait_for(flushed, LIMIT, |wc| others.push(wc))?;
    assert!(others.is_empty(), "{others:?}");
    client.wait_for(written, LIMIT, |wc| others.push(wc))?;
    assert!(others.is_empty(), "{others:?}");
    drop(server);
    Ok(())
}
