//! Settings that are refused.

use crate::common::prelude::*;

/// 4.096 µs · 2^14, four times.
const FOUR: Duration = Duration::from_nanos(4 * (4_096 << 14));

fn is_invalid<T>(refused: Result<T, Error>, parts: &[&str]) {
    let text = invalid(refused);
    for part in parts {
        assert_says(&text, &[part]);
    }
}

/// Promise: a keep-alive of zero, or of less than a millisecond, is refused when it is set, and the
/// settings stay unchanged.
#[test]
fn zero_is_refused() -> Result {
    let mut cfg = ConnCfg::new();
    cfg.set_keep_alive(Some(FOUR))?;
    for (short, text) in [(0, "0ns"), (1, "1ns"), (999_999, "999.999µs")] {
        let refused = cfg.set_keep_alive(Some(Duration::from_nanos(short)));
        is_invalid(refused, &[text, "1ms at least", "None"]);
    }
    assert_eq!(cfg.get_keep_alive(), Some(FOUR));
    cfg.set_keep_alive(None)?;
    assert_eq!(cfg.get_keep_alive(), None);
    Ok(())
}

/// Promise: less than four acknowledgement time-outs that were set is refused when the request is
/// made, on either side, with both numbers and the remedy, and without any effect.
#[test]
fn less_than_four_time_outs_that_were_set() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let mut cfg = ConnCfg::new();
    cfg.set_ack_timeout(Some(14))?;
    cfg.set_keep_alive(Some(FOUR - Duration::from_nanos(1)))?;
    let ep = listen(&peer)?;
    let parts = [
        "268.435455ms",
        "67.108864ms",
        "268.435456ms",
        "set_keep_alive",
        "set_ack_timeout",
    ];
    is_invalid(ConnReq::new(&peer, &addr(), ep.get_port(), &cfg), &parts);
    is_invalid(ep.next_conn_req_timeout(&cfg, Duration::ZERO), &parts);
    cfg.set_keep_alive(Some(FOUR))?;
    ConnReq::new(&peer, &addr(), ep.get_port(), &cfg)?;
    Ok(())
}

/// Promise: less than four of the kernel's own time-outs is refused as well: by the accepting side
/// before it answers, so that the client is rejected, and of a request before it has queues; by the
/// connecting side instead of `Established`.
#[test]
fn less_than_four_time_outs_of_the_kernel() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let short = ConnCfg::new().set_keep_alive(Some(FOUR))?.clone();
    let parts = ["268.435456ms", "set_keep_alive"];
    let ep = listen(&peer)?;
    let is_rejected = |client: Conn| -> Result {
        let rejected = event(&client)?;
        assert!(matches!(rejected, ConnEvent::Rejected { .. }), "{rejected}");
        Ok(())
    };
    let client = ask(&peer, &ep, &ConnCfg::new())?;
    let accepted = request(&ep, &short)?.connect(&[]);
    is_invalid(accepted.map_err(Error::from), &parts);
    is_rejected(client)?;

    let client = ask(&peer, &ep, &ConnCfg::new())?;
    let request = ep.next_request_timeout(LIMIT)?;
    is_invalid(request.into_req(&peer, &short), &parts);
    is_rejected(client)?;

    let client = ask(&peer, &ep, &short)?;
    let server = accept(&ep, &ConnCfg::new())?;
    let parts = ["268.435456ms", "set_ack_timeout"];
    is_invalid(client.wait_established(LIMIT), &parts);
    // The server learns of the end.
    while event(&server)? != ConnEvent::Closed {}
    Ok(())
}
