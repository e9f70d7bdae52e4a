//! Connections in each state, their neighbours, and drops around them.

use rpma::wait::{Happened, Wait};

use crate::common::prelude::*;
use crate::cut_off::support::{LEN, cut_off, message, numbers, waits_until_it_fails};
use crate::wait::support::joined;

/// Promise: a connection that is not established yet is cut off as any other, and its receives come
/// back. It is never established afterwards.
#[test]
fn a_connection_that_is_not_established() -> Result {
    let _test = device_test();
    let (peer, cfg) = (peer()?, ConnCfg::new());
    let ep = listen(&peer)?;
    // No answer has come.
    let client = ask(&peer, &ep, &cfg)?;
    receive_nothing(&client, 0..3)?;
    cut_off(client, [vec![], vec![0, 1, 2]], 3)?;
    drop(ep);

    // It is accepted, and has not taken the event.
    let ep = listen(&peer)?;
    let client = ask(&peer, &ep, &cfg)?;
    let req = request(&ep, &cfg)?;
    req.recv(MrSlice::EMPTY, 7)?;
    let server = req.connect(&[])?;
    cut_off(server, [vec![], vec![7]], 1)?;
    // It may have been established before.
    let ended = loop {
        match event(&client)? {
            ConnEvent::Established => {}
            ended => break ended,
        }
    };
    assert_ne!(ended, ConnEvent::Established);
    Ok(())
}

/// Promise: a connection that has ended already is cut off, too: closed by the peer, by this side,
/// or failed.
#[test]
fn a_connection_that_has_ended() -> Result {
    let _test = device_test();
    let peer = peer()?;
    for takes_the_event in [false, true] {
        let Pair { client, server } = Pair::new(&peer)?;
        receive_nothing(&server, 0..2)?;
        drop(client);
        if takes_the_event {
            assert_eq!(event(&server)?, ConnEvent::Closed);
        }
        cut_off(server, [vec![], vec![0, 1]], 2)?;
    }

    let Pair { client, server } = Pair::new(&peer)?;
    receive_nothing(&server, 0..2)?;
    server.disconnect()?;
    cut_off(server, [vec![], vec![0, 1]], 2)?;
    drop(client);

    // Its operation was refused.
    let Pair { client, server } = Pair::new(&peer)?;
    let memories = Memories::new(&peer, &peer, LEN)?;
    receive_nothing(&server, 0..2)?;
    let gone = memories.to()?;
    drop(memories.target);
    server.write(gone, memories.source.slice(..)?, ALWAYS, 5)?;
    let wc = completion_of_send(&server)?;
    if is_iwarp() {
        assert_eq!(event(&server)?, ConnEvent::Closed, "{wc:?}");
    } else {
        assert_eq!(wc.status(), WcStatus::REM_ACCESS_ERR, "{wc:?}");
    }
    let rest = server.cut_off()?;
    let [sent, received] = numbers(&rest);
    assert!(sent.is_empty() && received.len() <= 2, "{rest:?}");
    drop(client);
    Ok(())
}

/// The next completion of a send. Receives may be flushed before it.
fn completion_of_send(conn: &Conn) -> Result<Wc> {
    loop {
        let wc = next_completion(conn.get_cq())?;
        if wc.posted().is_some() {
            return Ok(wc);
        }
    }
}

/// Promise: after it the peer's writes fail, and have no effect.
#[test]
fn writes_of_the_peer_fail() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::new(&peer, &peer, LEN)?;
    let mut cfg = ConnCfg::new();
    cfg.set_retry_count(1)?.set_ack_timeout(Some(8))?;
    let Pair { client, server } = Pair::with(&peer, &cfg, &cfg)?;
    memories.write(&client, 1)?;
    opcode_of(&completion(&client)?, 1)?;
    assert_eq!(contents(&memories.target)?, pattern(LEN, 1));
    memories.target.write_at(0, &[0; LEN])?;
    assert!(server.cut_off()?.is_empty());
    // The client may not have heard of it.
    memories.assert_not_served(&client)?;
    assert_eq!(contents(&memories.target)?, [0; LEN]);
    Ok(())
}

/// Promise: when it has returned, nothing lands any more, although the peer writes without a pause.
#[test]
fn nothing_lands_after_it() -> Result {
    const SIZE: usize = 1 << 16;
    let _test = device_test();
    let peer = peer()?;
    let mut cfg = ConnCfg::new();
    cfg.set_retry_count(1)?.set_ack_timeout(Some(8))?;
    for _ in 0..10 {
        let memories = Memories::new(&peer, &peer, SIZE)?;
        let Pair { client, server } = Pair::with(&peer, &cfg, &cfg)?;
        let writes = || {
            for number in 1.. {
                let bytes = pattern(SIZE, number);
                memories.source.write_at(0, &bytes).expect("it fits");
                let written = memories.write(&client, number);
                if written
                    .and_then(|it| client.wait_for(it, LIMIT, |_| {}))
                    .is_err()
                {
                    return;
                }
            }
        };
        rpma::thread::scope(|scope| -> Result {
            let writing = scope.spawn(writes);
            while contents(&memories.target)? == [0; SIZE] {
                rpma::thread::yield_now();
            }
            server.cut_off()?;
            let then = contents(&memories.target)?;
            writing.join().expect("no panic");
            assert!(contents(&memories.target)? == then, "bytes have landed");
            Ok(())
        })?;
    }
    Ok(())
}

/// It stops a connection and no key: another connection of the same `Peer` still writes. (As
/// documented.)
#[test]
fn another_connection_still_writes() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::new(&peer, &peer, LEN)?;
    let [one, other] = [(); 2].map(|()| Pair::new(&peer).expect("established"));
    assert!(one.server.cut_off()?.is_empty());
    memories.write(&other.client, 1)?;
    opcode_of(&completion(&other.client)?, 1)?;
    assert_eq!(contents(&memories.target)?, pattern(LEN, 1));
    write_nothing(&other.server, 2)?;
    opcode_of(&completion(&other.server)?, 2)?;
    Ok(())
}

/// Promise: a member of a wait is removed and cut off. The wait returns no event of it afterwards,
/// and goes on with its other members.
#[test]
fn a_member_of_a_wait() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let mut wait = Wait::new()?;
    let mut wcs = [Wc::default(); 4];
    let ep = listen(&peer)?;
    let (gone, one) = joined(&mut wait, &ep, &peer, &ConnCfg::new())?;
    let (stays, _other) = joined(&mut wait, &ep, &peer, &ConnCfg::new())?;
    let server = wait.conn(gone).ok_or("a member")?;
    receive_nothing(server, 0..2)?;
    write_nothing(server, 5)?;
    message(&one, 1)?;
    let server = wait.remove(gone).ok_or("a member")?;
    assert_eq!(numbers(&server.cut_off()?), [vec![5], vec![0, 1]]);
    write_nothing(wait.conn(stays).ok_or("a member")?, 6)?;
    let happened = wait.next(&mut wcs, LIMIT)?;
    let of = matches!(happened, Some(Happened::Completions(of, 1)) if of == stays);
    assert!(of && wcs[0].wr_id() == 6, "{happened:?}");
    assert_eq!(event(&one)?, ConnEvent::Closed);
    Ok(())
}

/// Promise: memory, handles and peers may go before or after.
#[test]
fn things_around_it_go_in_any_order() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::new(&peer, &peer, LEN)?;
    let Pair { client, server } = Pair::new(&peer)?;
    let cq = server.get_cq().clone();
    memories.write(&server, 1)?;
    // The source of an operation that may be in flight.
    drop(memories);
    assert_eq!(numbers(&server.cut_off()?), [vec![1], vec![]]);
    drop((peer, client));
    assert_eq!(cq.get_wc(&mut [Wc::default()])?, 0);
    waits_until_it_fails(&cq);
    Ok(())
}
