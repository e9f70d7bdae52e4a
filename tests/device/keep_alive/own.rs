//! Operations of the program before a probe, on both kinds of fabric.

use crate::common::prelude::*;

/// 67 ms, and more than four times as long.
const D: Duration = Duration::from_secs(1);

fn cfg(keep_alive: Option<Duration>) -> Result<ConnCfg> {
    let mut cfg = ConnCfg::new();
    cfg.set_ack_timeout(Some(14))?;
    Ok(cfg.set_keep_alive(keep_alive)?.clone())
}

fn end_of(conn: &Conn) -> Result<(ConnEvent, Vec<Wc>)> {
    let mut came = Vec::new();
    loop {
        let mut wcs = [Wc::default(); 4];
        match conn.next(&mut wcs, LIMIT)? {
            Next::Completions(count) => came.extend(&wcs[..count]),
            Next::Event(event) => return Ok((event, came)),
        }
    }
}

/// A message waits for a receive of a peer that lives. The probe waits after it, so the peer is
/// taken for one that is gone. Documented at `ConnCfg::set_keep_alive`.
#[test]
fn a_message_without_a_receive_ends_as_gone() -> Result {
    let _test = device_test();
    let both = Pair::with(&peer()?, &cfg(Some(D))?, &cfg(None)?)?;
    let began = Instant::now();
    send_empty(&both.client, 7)?;
    let (event, came) = end_of(&both.client)?;
    assert!(began.elapsed() >= D / 2, "not at once");
    assert_eq!(event, ConnEvent::Lost { status: -110 });
    let failure = Failure::Silent { keep_alive: D };
    assert_eq!(both.client.failure(), Some(failure));
    let numbers: Vec<_> = came.iter().map(Wc::wr_id).collect();
    assert_eq!(numbers, [7], "before the event");
    assert!(came[0].result().is_err());
    Ok(())
}

/// Promise: a connection that is idle and alive is never dropped, and its program sees no probe;
/// the same connection notices a message without a receive afterwards.
#[test]
fn an_idle_connection_stays() -> Result {
    let _test = device_test();
    let both = Pair::with(&peer()?, &cfg(Some(D))?, &cfg(Some(D))?)?;
    let until = Instant::now() + 4 * D;
    while Instant::now() < until {
        for conn in [&both.client, &both.server] {
            let came = conn.next(&mut [Wc::default()], D / 8);
            assert!(matches!(came, Err(Error::TimedOut(_))), "{came:?}");
        }
    }
    for conn in [&both.client, &both.server] {
        assert_eq!((conn.failure(), conn.ended()), (None, None));
    }
    Ok(())
}
