//! Queues that give events for solicited completions only.

use crate::common::prelude::*;
use crate::events::support::{
    SHORT, in_time, no_event, none, polled, rcq, receives, send, solicited, takes_event,
    with_channel, write,
};

/// A plain message arrives without an event.
fn plain_gives_none(client: &Conn, rcq: &Cq) {
    send(client, ALWAYS);
    polled(rcq, 1);
    assert!(!readable(rcq, SHORT), "a plain message gives no event");
}

/// A solicited message arrives with an event.
fn solicited_gives_one(client: &Conn, rcq: &Cq) -> Result {
    send(client, ALWAYS | Flags::SOLICITED);
    event_comes(rcq)
}

fn event_comes(rcq: &Cq) -> Result {
    assert!(readable(rcq, LIMIT), "a solicited one does");
    takes_event(rcq)?;
    polled(rcq, 1);
    Ok(())
}

/// Promise: a queue for solicited events gives one for messages with [`Flags::SOLICITED`], from its
/// creation on, and no event for others; also after an event.
#[test]
fn only_solicited_messages_give_events() -> Result {
    let _test = device_test();
    let pair = solicited(&peer()?, ComplChannel::PerCq)?;
    let (client, rcq) = (&pair.client, rcq(&pair.server));
    for _ in 0..2 {
        plain_gives_none(client, rcq);
        none(rcq.wait_timeout(SHORT));
        solicited_gives_one(client, rcq)?;
    }

    // The main queue's events are not affected.
    write(&pair.server);
    takes_event(pair.server.get_cq())
}

/// Promise: so it does for a write with immediate data.
#[test]
fn only_solicited_writes_give_events() -> Result {
    let _test = device_test();
    let pair = solicited(&peer()?, ComplChannel::PerCq)?;
    let (client, rcq) = (&pair.client, rcq(&pair.server));
    let imm = |flags| client.write_with_imm(RemoteSlice::EMPTY, MrSlice::EMPTY, flags, 1, 4);
    imm(ALWAYS)?;
    polled(rcq, 1);
    let is_readable = readable(rcq, SHORT);
    assert!(!is_readable, "nor does a plain write with immediate data");
    imm(ALWAYS | Flags::SOLICITED)?;
    event_comes(rcq)
}

/// Promise: an operation that succeeds is not solicited, with any flags: these are for the peer.
#[test]
fn a_send_that_succeeds_is_not_solicited() -> Result {
    let _test = device_test();
    let pair = solicited(&peer()?, ComplChannel::PerCq)?;
    let cq = pair.client.get_cq();
    cq.req_notify(Notify::Solicited)?;
    // It was made for every completion: that request gives its event first.
    write(&pair.client);
    takes_event(cq)?;
    polled(cq, 1);
    for flags in [ALWAYS, ALWAYS | Flags::SOLICITED] {
        send(&pair.client, flags);
        polled(cq, 1);
        assert!(!readable(cq, SHORT), "{flags:?}");
    }
    Ok(())
}

/// As above, on the completion queue of a shared receive queue.
#[test]
fn only_solicited_messages_give_events_of_a_shared_receive_queue() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let srq = Srq::new(&peer, SrqCfg::new().set_rcq_notify(Notify::Solicited))?;
    for n in 0..10 {
        srq.recv(MrSlice::EMPTY, n)?;
    }
    let pair = Pair::with(&peer, &ConnCfg::new(), ConnCfg::new().set_srq(Some(&srq)))?;
    let rcq = srq.get_rcq().ok_or("the default")?;
    for _ in 0..2 {
        plain_gives_none(&pair.client, rcq);
        solicited_gives_one(&pair.client, rcq)?;
    }
    Ok(())
}

/// Promise: a wait for solicited events is bounded (1 s), so that a program that waits without a
/// limit notices a failure, for which rxe of Linux 6.12 gives no event. A limit is kept as well.
#[test]
fn a_wait_for_solicited_events_is_bounded() -> Result {
    /// Waits without a limit when there is no event; returns how long it took.
    fn bounded(server: Conn, shared: bool) -> Result<(Conn, Duration)> {
        in_time("an unlimited wait for solicited events", move || {
            let start = Instant::now();
            match shared {
                false => rcq(&server).wait()?,
                true => {
                    let (cq, kind) = server.wait()?;
                    assert!(std::ptr::eq(cq, rcq(&server)));
                    assert_eq!(kind, CqKind::Receive);
                }
            }
            let elapsed = start.elapsed();
            Ok((server, elapsed))
        })
    }
    let _test = device_test();
    let peer = peer()?;
    for shared in [false, true] {
        let channel = if shared {
            ComplChannel::Shared
        } else {
            ComplChannel::PerCq
        };
        let Pair { client, server } = solicited(&peer, channel)?;
        // A message without an event is found.
        send(&client, ALWAYS);
        let (server, elapsed) = bounded(server, shared)?;
        // A second, with an allowance for a busy machine.
        let is_bounded = elapsed > SHORT && elapsed < LIMIT / 3;
        assert!(is_bounded, "it does wait, and not long: {elapsed:?}");
        assert!(!readable(rcq(&server), Duration::ZERO), "there is no event");
        polled(rcq(&server), 1);

        let start = Instant::now();
        none(if shared {
            server.wait_timeout(SHORT).map(drop)
        } else {
            rcq(&server).wait_timeout(SHORT)
        });
        assert!(start.elapsed() >= SHORT);

        // So is a failure.
        server.disconnect()?;
        let deadline = Instant::now() + LIMIT;
        let (mut server, mut failed) = (server, 0);
        while failed < 9 {
            (server, _) = bounded(server, shared)?;
            let mut wcs = [Wc::default(); 16];
            let count = rcq(&server).get_wc(&mut wcs)?;
            assert!(wcs[..count].iter().all(|wc| wc.result().is_err()));
            failed += count;
            assert!(Instant::now() < deadline, "{failed} failures");
        }
    }
    Ok(())
}

/// As above, for [`Conn::wait`], whichever of the two queues is for solicited events; if both are,
/// it returns them in turn.
#[test]
fn a_wait_for_two_queues_is_bounded_by_either() -> Result {
    use CqKind::{Main, Receive};
    use Notify::{Any, Solicited};
    let _test = device_test();
    let peer = peer()?;
    for (rcq_size, of_main, of_receives, expected) in [
        (0, Solicited, Any, [Main, Main, Main]),
        (10, Solicited, Any, [Main, Main, Main]),
        (10, Any, Solicited, [Receive, Receive, Receive]),
    ] {
        let server = with_notify(&peer, rcq_size, of_main, of_receives)?;
        assert_eq!(bounded_waits(server), expected);
    }
    let found = bounded_waits(with_notify(&peer, 10, Solicited, Solicited)?);
    let in_turn = found[0] != found[1] && found[0] == found[2];
    assert!(in_turn, "no queue is forgotten: {found:?}");
    Ok(())
}

/// A connection with a shared completion channel, on which no event is pending.
fn with_notify(peer: &Peer, rcq_size: u32, of_main: Notify, of_receives: Notify) -> Result<Pair> {
    let mut cfg = with_channel(ComplChannel::Shared);
    cfg.set_rcq_size(rcq_size).set_rcq_notify(of_receives);
    let pair = Pair::with(peer, &ConnCfg::new(), &cfg)?;
    let main = pair.server.get_cq();
    main.req_notify(of_main)?;
    // The queue was made for every completion: on soft-RoCE that request gives its event first.
    write(&pair.server);
    pair.server.wait_timeout(LIMIT)?;
    polled(main, 1);
    Ok(pair)
}

/// The results of three waits without a limit when there is no event.
fn bounded_waits(Pair { client, server }: Pair) -> [CqKind; 3] {
    let found = in_time("an unlimited wait for solicited events", move || {
        [(); 3].map(|()| {
            let (cq, kind) = server.wait().expect("as if there were an event");
            let own = match kind {
                CqKind::Main => server.get_cq(),
                CqKind::Receive => rcq(&server),
            };
            assert!(std::ptr::eq(cq, own), "the queue and its kind agree");
            kind
        })
    });
    drop(client);
    found
}

/// Promise: `Cq::req_notify` changes which completions give events; a request that was made before
/// gives its event first.
#[test]
fn req_notify_changes_what_gives_events() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let cfg = ConnCfg::new().set_rcq_size(10).clone();
    let Pair { client, server } = Pair::with(&peer, &cfg, &cfg)?;
    receives(&server, 10);
    let rcq = rcq(&server);
    let plain_gives_one = || {
        send(&client, ALWAYS);
        polled(rcq, 1);
        takes_event(rcq)
    };
    plain_gives_one()?;
    rcq.req_notify(Notify::Solicited)?;
    plain_gives_one()?;
    plain_gives_none(&client, rcq);
    solicited_gives_one(&client, rcq)?;
    plain_gives_none(&client, rcq);
    rcq.req_notify(Notify::Any)?;
    plain_gives_one()?;
    plain_gives_one()?;

    // For programs that wait in another way: one event for each request.
    for _ in 0..2 {
        send(&client, ALWAYS);
        polled(rcq, 1);
        assert!(readable(rcq, LIMIT));
        rcq.req_notify(Notify::Any)?;
    }
    takes_event(rcq)?;
    takes_event(rcq)?;
    no_event(rcq);
    Ok(())
}
