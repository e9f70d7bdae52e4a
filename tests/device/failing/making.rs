//! Failures while an object is made: no object stays, and it can be made the next time.

use rustix::io::Errno;

use crate::common::prelude::*;
use crate::failing::support::{Failing, How, two_queues, with_failures};

/// Settings with a queue of its own for receives, so that two queues are made, and two channels or
/// one.
fn each_two_queues() -> [(ConnCfg, u32); 2] {
    [
        (two_queues(ComplChannel::PerCq), 2),
        (two_queues(ComplChannel::Shared), 1),
    ]
}

/// Each call that makes a queue, and how often it is made.
fn calls(channels: u32) -> Vec<(&'static str, u32)> {
    let per_call = [
        ("ibv_create_comp_channel", channels),
        ("ibv_create_cq", 2),
        ("ibv_req_notify_cq", 2),
    ];
    let each = |(call, count)| (1..=count).map(move |nth| (call, nth));
    per_call.into_iter().flat_map(each).collect()
}

/// Promise: `ConnReq::new` names the verb that could not make a queue, and leaves no object.
#[test]
fn a_request_whose_queues_cannot_be_made() -> Result {
    with_failures(|| {
        let peer = peer()?;
        let ep = listen(&peer)?;
        // Without native flushes the first one makes the parts that all share.
        drop(ConnReq::new(&peer, &addr(), ep.get_port(), &ConnCfg::new()));
        for (cfg, channels) in each_two_queues() {
            for (call, nth) in calls(channels) {
                let failing = Failing::nth(nth, call, Errno::NOSPC, How::Refused)?;
                // No other object stays in the kernel, also while the peer and the endpoint
                // live on.
                let _left = Counted::leaving(&[]);
                failing.told(ConnReq::new(&peer, &addr(), ep.get_port(), &cfg));
            }
            let pair = Pair::with(&peer, &cfg, &cfg)?;
            write_nothing(&pair.client, 1)?;
            done(&pair.client, 1)?;
        }
        Ok(())
    })
}

/// Promise: an incoming request is rejected if its queues cannot be made, and the endpoint goes on.
#[test]
fn an_incoming_request_whose_queues_cannot_be_made_is_rejected() -> Result {
    with_failures(|| {
        let peer = peer()?;
        let ep = listen(&peer)?;
        let ask = || ask(&peer, &ep, &ConnCfg::new());
        for (cfg, channels) in each_two_queues() {
            for (call, nth) in calls(channels) {
                let client = ask()?;
                Failing::nth(nth, call, Errno::NOSPC, How::Refused)?
                    .told(ep.next_conn_req_timeout(&cfg, LIMIT));
                assert_eq!(rejected(&client)?, ConnEvent::BY_PROGRAM, "{call}");
            }
            let client = ask()?;
            let _server = accept(&ep, &cfg)?;
            assert_eq!(event(&client)?, ConnEvent::Established);
        }
        Ok(())
    })
}

/// Promise: `Srq::new` and `CompletionChannel::new` name the verb that failed, and leave no object.
#[test]
fn a_shared_receive_queue_that_cannot_be_made() -> Result {
    with_failures(|| {
        let peer = peer()?;
        let srq = || Srq::new(&peer, &SrqCfg::new());
        for call in [
            "ibv_create_comp_channel",
            "ibv_create_cq",
            "ibv_req_notify_cq",
            "ibv_create_srq",
        ] {
            let failing = Failing::next(call, Errno::NOSPC)?;
            let _left = Counted::leaving(&[]);
            failing.told(srq());
        }
        srq()?;
        Failing::next("ibv_create_comp_channel", Errno::NOSPC)?.told(CompletionChannel::new(&peer));
        CompletionChannel::new(&peer)?;
        Ok(())
    })
}

/// Promise: an error has a remedy if the cause is known. A channel is a file: each connection has
/// some, so that a server meets the limit of open files here.
#[test]
fn too_many_open_files_have_a_hint() -> Result {
    with_failures(|| {
        let peer = peer()?;
        let text = Failing::next("ibv_create_comp_channel", Errno::MFILE)?
            .text(CompletionChannel::new(&peer));
        assert!(text.contains("RLIMIT_NOFILE"), "{text}");
        Ok(())
    })
}

/// Promise: an error has the cause of its object and its errno as a value, and a remedy. The limit of
/// locked memory counts for queues too, because adapters lock theirs.
#[test]
fn each_object_has_the_hint_of_its_errno() -> Result {
    with_failures(|| {
        let peer = peer()?;
        for (errno, words) in [
            (Errno::NOMEM, "RLIMIT_MEMLOCK"),
            (Errno::AGAIN, "rdma.max"),
            (Errno::NOSPC, "no room for another object"),
            (Errno::NXIO, "RDMA device was removed"),
        ] {
            let made = |call| -> Result<Error> {
                let _armed = Failing::next(call, errno)?;
                Ok(match call {
                    "ibv_create_srq" => Srq::new(&peer, &SrqCfg::new()).expect_err("it fails"),
                    _ => Mr::reg(&peer, vec![7; 100], MrUsage::SEND)
                        .expect_err("it fails")
                        .into(),
                })
            };
            for call in ["ibv_create_srq", "ibv_reg_mr"] {
                let error = made(call)?;
                let (reason, remedy) = (error.reason(), error.remedy().unwrap_or_default());
                assert!(format!("{reason} {remedy}").contains(words), "{error}");
                assert!(!remedy.is_empty(), "{error}");
                assert!(error.to_string().starts_with(&reason), "{error}");
                assert!(error.to_string().ends_with(remedy), "{error}");
            }
        }
        Ok(())
    })
}

/// Promise: `Mr::reg` gives the memory back if it cannot be registered. The same for the memory
/// that belongs to the fallback of flushes, which the first connection asks for.
#[test]
fn memory_that_cannot_be_registered() -> Result {
    with_failures(|| {
        let peer = peer()?;
        let failing = Failing::next("ibv_reg_mr", Errno::NOMEM)?;
        let failed = Mr::reg(&peer, vec![7; 100], MrUsage::SEND);
        let failed = failed.expect_err("it cannot be registered");
        assert_eq!(failed.object, [7; 100]);
        assert_says(&failed, &["RLIMIT_MEMLOCK"]);
        failing.told(Err::<(), Error>(failed.into()));
        region(&peer, 100, MrUsage::SEND)?;

        let cfg = ConnCfg::new().set_force_fallback(true).clone();
        let ep = listen(&peer)?;
        let request = |peer: &Peer| ConnReq::new(peer, &addr(), ep.get_port(), &cfg);
        let failing = Failing::next("ibv_reg_mr", Errno::NOMEM)?;
        {
            let _left = Counted::leaving(&[]);
            failing.told(request(&peer));
        }
        request(&peer)?;
        Ok(())
    })
}

/// Each call with which a server accepts, and how often it is made.
const ACCEPTING: [(&str, u32); 4] = [
    ("rdma_init_qp_attr", 3),
    // To three states, and the timer of missing receives.
    ("ibv_modify_qp", 4),
    ("rdma_accept", 1),
    ("ibv_query_qp", 1),
];

/// Promise: a connection that cannot be set up is not one: `ConnReq::connect` of the side that
/// accepts returns the error of the verb, and the client's connection ends. No object leaks,
/// whether or not the call that fails has had its effect (`rdma_accept` after a queue pair became
/// ready to send, for example).
#[test]
fn a_connection_that_cannot_be_set_up_is_not_accepted() -> Result {
    with_failures(|| {
        let (peer, cfg) = (peer()?, ConnCfg::new());
        let ep = listen(&peer)?;
        // Without native flushes the first one makes the parts that all share.
        drop(ConnReq::new(&peer, &addr(), ep.get_port(), &cfg));
        let each = |(call, count)| (1..=count).map(move |nth| (call, nth));
        for (call, nth) in ACCEPTING.into_iter().flat_map(each) {
            for how in [How::Refused, How::Done] {
                let _left = Counted::leaving(&[]);
                let client = ask(&peer, &ep, &cfg)?;
                let req = request(&ep, &cfg)?;
                Failing::nth(nth, call, Errno::IO, how)?.told(req.connect(&[]));
                // Accepted it may have been, but then it has ended.
                while event(&client)? == ConnEvent::Established {}
            }
        }
        drop(Pair::new(&peer)?);
        Ok(())
    })
}

/// Promise, as above, for the side that asks: `Conn::next_event` reports it.
#[test]
fn a_connection_that_cannot_be_set_up_is_not_established() -> Result {
    with_failures(|| {
        let (peer, cfg) = (peer()?, ConnCfg::new());
        let ep = listen(&peer)?;
        for call in ["ibv_modify_qp", "ibv_query_qp"] {
            let client = ask(&peer, &ep, &cfg)?;
            let _server = accept(&ep, &cfg)?;
            Failing::next(call, Errno::IO)?.told(client.next_event_timeout(LIMIT));
            assert_not_connected(write_nothing(&client, 1));
        }
        drop(Pair::new(&peer)?);
        Ok(())
    })
}
