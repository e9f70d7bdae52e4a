//! Messages: send and receive, immediate data, operations of 0 bytes, gathered and inline data, and
//! what becomes of a message for which there is no receive, or too small a one.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{
    LIMIT, Pair, addr, assert_empty, completion, completions, contents, device_test, event,
    invalid, next_completion, no_completion, opcode_of, pattern, peer, region, remote,
};
use rpma::{
    Advice, AdviseFlags, Conn, ConnCfg, ConnEvent, ConnReq, Ep, Error, Flags, Mr, MrSlice, MrUsage,
    Peer, Queue, RemoteSlice, Wc, WcFailure, WcFlags, WcOpcode, WcStatus,
};

const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;

/// A region for everything but persistent flushes.
fn any_use(peer: &Peer, len: usize) -> Mr<Vec<u8>> {
    region(peer, len, MrUsage::all() - MrUsage::FLUSH_TYPE_PERSISTENT)
}

fn all<M: rpma::RegisterableMemory>(mr: &Mr<M>) -> MrSlice<'_> {
    mr.slice(..).expect("all of it")
}

/// What a receive got: its kind, its length, and the immediate data.
fn received(wc: &Wc, wr_id: u64) -> (WcOpcode, Option<u32>, Option<u32>) {
    assert_eq!(wc.wr_id(), wr_id, "{wc:?}");
    let success = wc.result().expect("the receive succeeds");
    assert_eq!(
        success.flags().contains(WcFlags::WITH_IMM),
        success.imm_data().is_some()
    );
    (success.opcode(), success.byte_len(), success.imm_data())
}

fn failure(wc: &Wc) -> WcFailure {
    wc.result().expect_err("the operation fails")
}

/// A message of every size arrives whole, with its length, in both directions, and nothing around
/// it is touched.
#[test]
fn messages_of_every_size_arrive() {
    device_test(|| {
        let peer = peer();
        let pair = Pair::new(&peer);
        let (src, dst) = (any_use(&peer, 1 << 20), any_use(&peer, (1 << 20) + 64));
        for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
            for (round, len) in [1, 7, 8, 1024, 1025, 65_536, 1 << 20]
                .into_iter()
                .enumerate()
            {
                let bytes = pattern(len, round as u64 + 1);
                src.write_at(0, &bytes).expect("inside");
                dst.write_at(0, &vec![0xEE; dst.get_size()])
                    .expect("inside");
                to.recv(dst.slice(3..).expect("inside"), 11)
                    .expect("posted");
                from.send(src.slice(..len).expect("inside"), ALWAYS, 12)
                    .expect("posted");
                assert_eq!(opcode_of(&completion(from), 12), WcOpcode::SEND);
                let got = received(&completion(to), 11);
                assert_eq!(got, (WcOpcode::RECV, Some(len as u32), None));
                let there = contents(&dst);
                assert_eq!(there[3..3 + len], bytes);
                assert!(
                    there[..3]
                        .iter()
                        .chain(&there[3 + len..])
                        .all(|&byte| byte == 0xEE)
                );
            }
        }
    });
}

/// Receives are used in the order in which they were posted, messages come in the order of sending,
/// and a completion names its queue pair and operation.
#[test]
fn messages_keep_their_order() {
    device_test(|| {
        let peer = peer();
        let pair = Pair::new(&peer);
        let (src, dst) = (any_use(&peer, 80), any_use(&peer, 80));
        src.write_at(0, &pattern(80, 5)).expect("inside");
        for n in 0..10 {
            let part = dst.slice(8 * n..8 * n + 8).expect("inside");
            pair.server.recv(part, 100 + n as u64).expect("posted");
        }
        for n in 0..10 {
            let part = src.slice(8 * n..8 * n + 8).expect("inside");
            pair.client
                .send(part, ALWAYS, 200 + n as u64)
                .expect("posted");
        }
        for (conn, first) in [(&pair.server, 100), (&pair.client, 200)] {
            for (n, wc) in completions(conn, 10).iter().enumerate() {
                wc.result().expect("succeeds");
                assert_eq!(
                    (wc.wr_id(), wc.qp_num()),
                    (first + n as u64, conn.get_qp_num())
                );
                assert_eq!(wc.status(), WcStatus::SUCCESS);
            }
        }
        assert_eq!(contents(&dst), pattern(80, 5));
    });
}

/// The 4 bytes arrive as the number that was sent, in both directions and with both operations; a
/// write with immediate data tells how much was written.
#[test]
fn immediate_data_is_the_same_number_on_both_sides() {
    device_test(|| {
        let peer = peer();
        let pair = Pair::new(&peer);
        let (src, dst) = (any_use(&peer, 64), any_use(&peer, 64));
        src.write_at(0, &pattern(64, 9)).expect("inside");
        let target = remote(&dst);
        for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
            for imm in [0, 1, 0x0102_0304, 0x8000_0000, u32::MAX] {
                to.recv(all(&dst), 1).expect("posted");
                from.send_with_imm(src.slice(..5).expect("inside"), ALWAYS, imm, 2)
                    .expect("posted");
                assert_eq!(opcode_of(&completion(from), 2), WcOpcode::SEND);
                let got = received(&completion(to), 1);
                assert_eq!(got, (WcOpcode::RECV, Some(5), Some(imm)));

                // The receive is only the notice: the data goes where the write says.
                dst.write_at(0, &[0; 64]).expect("inside");
                to.recv(MrSlice::EMPTY, 3).expect("posted");
                let part = target.slice(10..17).expect("inside");
                from.write_with_imm(part, src.slice(..7).expect("inside"), ALWAYS, imm, 4)
                    .expect("posted");
                assert_eq!(opcode_of(&completion(from), 4), WcOpcode::RDMA_WRITE);
                let got = received(&completion(to), 3);
                assert_eq!(got, (WcOpcode::RECV_RDMA_WITH_IMM, Some(7), Some(imm)));
                assert_eq!(contents(&dst)[10..17], pattern(64, 9)[..7]);
                assert_eq!(contents(&dst)[17..], [0; 47]);
            }
        }
    });
}

/// Operations without any memory, and with parts of no bytes: each completes, and the peer learns
/// of those that it receives.
#[test]
fn operations_of_no_bytes() {
    device_test(|| {
        let peer = peer();
        let pair = Pair::new(&peer);
        let (here, there) = (any_use(&peer, 16), any_use(&peer, 16));
        let nothing_here = here.slice(5..5).expect("inside");
        let nothing_there = remote(&there).slice(16..16).expect("at the end");
        let conn = &pair.client;
        for local in [MrSlice::EMPTY, nothing_here] {
            assert!(local.is_empty());
            for far in [RemoteSlice::EMPTY, nothing_there] {
                assert!(far.is_empty());
                conn.read(local, far, ALWAYS, 1).expect("posted");
                assert_eq!(opcode_of(&completion(conn), 1), WcOpcode::RDMA_READ);
                conn.write(far, local, ALWAYS, 2).expect("posted");
                assert_eq!(opcode_of(&completion(conn), 2), WcOpcode::RDMA_WRITE);
                conn.write_gather(far, &[local, local], ALWAYS, 3)
                    .expect_err("the connection was made for 1 part");
                conn.write_gather(far, &[], ALWAYS, 3).expect("posted");
                assert_eq!(opcode_of(&completion(conn), 3), WcOpcode::RDMA_WRITE);
                pair.server.recv(MrSlice::EMPTY, 4).expect("posted");
                conn.write_with_imm(far, local, ALWAYS, 44, 5)
                    .expect("posted");
                assert_eq!(opcode_of(&completion(conn), 5), WcOpcode::RDMA_WRITE);
                let got = received(&completion(&pair.server), 4);
                assert_eq!(got, (WcOpcode::RECV_RDMA_WITH_IMM, Some(0), Some(44)));
            }
            for to in [
                MrSlice::EMPTY,
                there.slice(3..3).expect("inside"),
                all(&there),
            ] {
                for _ in 0..3 {
                    pair.server.recv(to, 6).expect("posted");
                }
                conn.send(local, ALWAYS, 7).expect("posted");
                conn.send_with_imm(local, ALWAYS, 55, 7).expect("posted");
                conn.send_gather(&[], ALWAYS, 7).expect("posted");
                for wc in completions(conn, 3) {
                    assert_eq!(opcode_of(&wc, 7), WcOpcode::SEND);
                }
                let imm: Vec<_> = completions(&pair.server, 3)
                    .iter()
                    .map(|wc| received(wc, 6))
                    .collect();
                let plain = (WcOpcode::RECV, Some(0), None);
                assert_eq!(imm, [plain, (WcOpcode::RECV, Some(0), Some(55)), plain]);
            }
        }
        assert_eq!(contents(&there), [0; 16]);

        // Nothing on one side only is a mistake.
        let text = invalid(conn.write(RemoteSlice::EMPTY, all(&here), ALWAYS, 8));
        assert!(text.contains("16 bytes and the remote part 0"), "{text}");
        let far = remote(&there).slice(..).expect("all");
        let text = invalid(conn.read(MrSlice::EMPTY, far, ALWAYS, 8));
        assert!(text.contains("0 bytes and the remote part 16"), "{text}");
        no_completion(conn);
    });
}

/// Several local parts become one write and one message, in their order, whatever their sizes.
#[test]
fn gathered_parts_arrive_as_one() {
    device_test(|| {
        let peer = peer();
        let mut cfg = ConnCfg::new();
        cfg.set_max_send_sge(4).expect("possible");
        assert_eq!(cfg.get_max_send_sge(), 4);
        let pair = Pair::with(&peer, &cfg, &cfg);
        let (one, other, dst) = (
            any_use(&peer, 5000),
            any_use(&peer, 5000),
            any_use(&peer, 8192),
        );
        one.write_at(0, &pattern(5000, 1)).expect("inside");
        other.write_at(0, &pattern(5000, 2)).expect("inside");
        let parts = [
            one.slice(17..2000).expect("inside"),
            other.slice(4999..).expect("inside"),
            MrSlice::EMPTY,
            one.slice(..3000).expect("inside"),
        ];
        let expected = [
            &contents(&one)[17..2000],
            &contents(&other)[4999..],
            &contents(&one)[..3000],
        ]
        .concat();
        let len = expected.len();

        let far = remote(&dst).slice(100..100 + len as u64).expect("inside");
        pair.client
            .write_gather(far, &parts, ALWAYS, 1)
            .expect("posted");
        assert_eq!(
            opcode_of(&completion(&pair.client), 1),
            WcOpcode::RDMA_WRITE
        );
        assert_eq!(contents(&dst)[100..100 + len], expected);

        dst.write_at(0, &[0; 8192]).expect("inside");
        pair.server.recv(all(&dst), 2).expect("posted");
        pair.client.send_gather(&parts, ALWAYS, 3).expect("posted");
        assert_eq!(opcode_of(&completion(&pair.client), 3), WcOpcode::SEND);
        let got = received(&completion(&pair.server), 2);
        assert_eq!(got, (WcOpcode::RECV, Some(len as u32), None));
        assert_eq!(contents(&dst)[..len], expected);
    });
}

/// Each mistake with gathered parts is refused, with the limit, before anything is sent.
#[test]
fn every_refusal_of_gathered_parts() {
    device_test(|| {
        let (peer, stranger) = (peer(), peer());
        let mut cfg = ConnCfg::new();
        cfg.set_max_send_sge(3).expect("possible");
        let pair = Pair::with(&peer, &cfg, &cfg);
        let conn = &pair.client;
        let (src, dst) = (any_use(&peer, 8), any_use(&peer, 64));
        let far = |len| remote(&dst).slice(..len).expect("inside");
        let four = [all(&src); 4];
        for text in [
            invalid(conn.write_gather(far(32), &four, ALWAYS, 1)),
            invalid(conn.send_gather(&four, ALWAYS, 1)),
        ] {
            assert!(
                text.contains("4 local parts") && text.contains("set_max_send_sge"),
                "{text}"
            );
        }
        let text = invalid(conn.write_gather(far(23), &four[..3], ALWAYS, 1));
        assert!(text.contains("24 bytes and the remote part 23"), "{text}");
        let foreign = any_use(&stranger, 8);
        for text in [
            invalid(conn.write_gather(far(16), &[all(&src), all(&foreign)], ALWAYS, 1)),
            invalid(conn.send_gather(&[all(&src), all(&foreign)], ALWAYS, 1)),
            invalid(conn.send(all(&foreign), ALWAYS, 1)),
            invalid(conn.recv(all(&foreign), 1)),
        ] {
            assert!(text.contains("another Peer"), "{text}");
        }
        let wrong = region(&peer, 8, MrUsage::READ_DST);
        for (text, needed) in [
            (
                invalid(conn.write_gather(far(16), &[all(&src), all(&wrong)], ALWAYS, 1)),
                "WRITE_SRC",
            ),
            (invalid(conn.send_gather(&[all(&wrong)], ALWAYS, 1)), "SEND"),
            (invalid(conn.send(all(&wrong), ALWAYS, 1)), "SEND"),
            (
                invalid(conn.send_with_imm(all(&wrong), ALWAYS, 1, 1)),
                "SEND",
            ),
            (invalid(conn.recv(all(&wrong), 1)), "RECV"),
        ] {
            assert!(text.contains(&format!("needs {needed}")), "{text}");
        }
        no_completion(conn);
        assert_eq!(contents(&dst), [0; 64]);

        let mut greedy = ConnCfg::new();
        greedy
            .set_max_send_sge(17)
            .expect("known when the device is");
        let text = invalid(ConnReq::new(&peer, &addr(), 1, &greedy));
        assert!(
            text.contains("17 local parts") && text.contains("at most 16"),
            "{text}"
        );

        // The connection is as good as before.
        conn.write_gather(far(24), &four[..3], ALWAYS, 2)
            .expect("posted");
        assert_eq!(opcode_of(&completion(conn), 2), WcOpcode::RDMA_WRITE);
    });
}

/// Inline data is taken when the operation is posted: the source may change at once. The operations
/// wait behind a message without a receive, so that the change comes first for certain.
#[test]
fn inline_data_may_change_at_once() {
    device_test(|| {
        let peer = peer();
        let mut cfg = ConnCfg::new();
        cfg.set_max_inline_data(64).set_rq_size(16);
        cfg.set_max_send_sge(2).expect("possible");
        let pair = Pair::with(&peer, &cfg, &cfg);
        let conn = &pair.client;
        let (src, dst) = (any_use(&peer, 64), any_use(&peer, 512));
        let (old, new) = (pattern(64, 1), pattern(64, 2));
        src.write_at(0, &old).expect("inside");
        let far = |nth: u64| {
            remote(&dst)
                .slice(64 * nth..64 * (nth + 1))
                .expect("inside")
        };
        let inline = ALWAYS | Flags::INLINE;

        conn.send(MrSlice::EMPTY, ALWAYS, 0)
            .expect("posted, and waits for a receive");
        conn.write(far(0), all(&src), inline, 1).expect("posted");
        let halves = [
            src.slice(32..).expect("inside"),
            src.slice(..32).expect("inside"),
        ];
        conn.write_gather(far(1), &halves, inline, 2)
            .expect("posted");
        conn.write_with_imm(far(2), all(&src), inline, 7, 3)
            .expect("posted");
        conn.send(all(&src), inline, 4).expect("posted");
        conn.send_with_imm(all(&src), inline, 8, 5).expect("posted");
        conn.send_gather(&halves, inline, 6).expect("posted");
        // Without the flag: this one shows that the others were really sent after the change.
        conn.write(far(6), all(&src), ALWAYS, 7).expect("posted");
        src.write_at(0, &new).expect("inside");

        pair.server.recv(MrSlice::EMPTY, 0).expect("posted");
        pair.server.recv(MrSlice::EMPTY, 1).expect("posted");
        for nth in 3..6 {
            let part = dst.slice(64 * nth..64 * (nth + 1)).expect("inside");
            pair.server.recv(part, nth as u64).expect("posted");
        }
        for (wr_id, wc) in completions(conn, 8).iter().enumerate() {
            opcode_of(wc, wr_id as u64);
        }
        for wc in completions(&pair.server, 5) {
            wc.result().expect("succeeds");
        }
        let there = contents(&dst);
        let there: Vec<_> = there.chunks(64).collect();
        let turned = [&old[32..], &old[..32]].concat();
        for (nth, expected) in [&old, &turned, &old, &old, &old, &turned, &new]
            .into_iter()
            .enumerate()
        {
            assert_eq!(there[nth], *expected, "operation {nth}");
        }
    });
}

/// The limit of inline data is named where it is exceeded, and what a device cannot have where the
/// connection is made.
#[test]
fn every_refusal_of_inline_data() {
    device_test(|| {
        let peer = peer();
        let (src, dst) = (any_use(&peer, 1000), any_use(&peer, 1000));
        let far = |len| remote(&dst).slice(..len).expect("inside");
        let near = |len| src.slice(..len).expect("inside");
        let inline = ALWAYS | Flags::INLINE;
        // What was not asked for is not there on any device alike, however much this one has.
        for limit in [0, 8, 100] {
            let mut cfg = ConnCfg::new();
            cfg.set_max_inline_data(limit as u32);
            let pair = Pair::with(&peer, &cfg, &cfg);
            let conn = &pair.client;
            for text in [
                invalid(conn.write(far(limit as u64 + 1), near(limit + 1), inline, 1)),
                invalid(conn.write_with_imm(far(limit as u64 + 1), near(limit + 1), inline, 1, 1)),
                invalid(conn.write_gather(far(limit as u64 + 1), &[near(limit + 1)], inline, 1)),
                invalid(conn.send(near(limit + 1), inline, 1)),
                invalid(conn.send_with_imm(near(limit + 1), inline, 1, 1)),
                invalid(conn.send_gather(&[near(limit + 1)], inline, 1)),
            ] {
                let said = format!("{} bytes with Flags::INLINE", limit + 1);
                assert!(
                    text.contains(&said) && text.contains("set_max_inline_data"),
                    "{text}"
                );
            }
            let text = invalid(conn.read(near(8), far(8), inline, 1));
            assert!(text.contains("not for reads"), "{text}");
            no_completion(conn);
            conn.write(far(limit as u64), near(limit), inline, 2)
                .expect("posted");
            assert_eq!(opcode_of(&completion(conn), 2), WcOpcode::RDMA_WRITE);
        }
        let mut greedy = ConnCfg::new();
        greedy.set_max_inline_data(1 << 20);
        let ep = Ep::listen(&peer, &addr(), 0).expect("listens");
        let error = ConnReq::new(&peer, &addr(), ep.get_port(), &greedy).expect_err("too much");
        let text = error.to_string();
        assert!(
            text.starts_with("rdma_create_qp") && text.contains("inline"),
            "{text}"
        );
    });
}

/// Receives that were posted before the connection exists take the peer's first messages, on both
/// sides: nothing is sent twice (the retry count of 0 would end the connection).
#[test]
fn receives_posted_before_the_connection_exists() {
    device_test(|| {
        let peer = peer();
        let mut cfg = ConnCfg::new();
        cfg.set_rnr_retry_count(0).expect("possible");
        let (src, dst) = (any_use(&peer, 64), any_use(&peer, 64));
        src.write_at(0, b"first and second").expect("inside");
        let part = |range| dst.slice(range).expect("inside");
        let ep = Ep::listen(&peer, &addr(), 0).expect("listens");
        for _ in 0..10 {
            dst.write_at(0, &[0; 64]).expect("inside");
            let req = ConnReq::new(&peer, &addr(), ep.get_port(), &cfg).expect("resolves");
            req.recv(part(0..8), 1).expect("posted");
            let client = req.connect(&[]).expect("asks");
            // While the peer has not answered, too.
            client.recv(part(8..16), 2).expect("posted");
            let req = ep.next_conn_req_timeout(&cfg, LIMIT).expect("a request");
            req.recv(part(16..24), 3).expect("posted");
            req.recv(MrSlice::EMPTY, 4).expect("posted");
            let server = req.connect(&[]).expect("accepts");
            server.recv(part(24..32), 5).expect("posted");

            // The accepting side may send at once.
            server
                .send(src.slice(..5).expect("inside"), ALWAYS, 6)
                .expect("posted");
            server
                .send(src.slice(10..16).expect("inside"), ALWAYS, 7)
                .expect("posted");
            assert_eq!(event(&client), ConnEvent::Established);
            client
                .send(src.slice(..5).expect("inside"), ALWAYS, 8)
                .expect("posted");
            client.send(MrSlice::EMPTY, ALWAYS, 9).expect("posted");
            client
                .send(src.slice(10..16).expect("inside"), ALWAYS, 10)
                .expect("posted");

            for (conn, ids) in [
                (&client, &[1, 2, 8, 9, 10][..]),
                (&server, &[3, 4, 5, 6, 7]),
            ] {
                let mut wcs = completions(conn, 5);
                wcs.sort_by_key(Wc::wr_id);
                for (wc, &wr_id) in wcs.iter().zip(ids) {
                    opcode_of(wc, wr_id);
                }
            }
            let there = contents(&dst);
            assert_eq!(
                (&there[..5], &there[8..14]),
                (&b"first"[..], &b"second"[..])
            );
            assert_eq!(
                (&there[16..21], &there[24..30]),
                (&b"first"[..], &b"second"[..])
            );
            assert_eq!(event(&server), ConnEvent::Established);
        }
    });
}

/// A request that is dropped with receives posted frees everything, on both sides.
#[test]
fn a_request_dropped_with_receives_posted() {
    device_test(|| {
        let peer = peer();
        let cfg = ConnCfg::new();
        let dst = any_use(&peer, 64);
        let ep = Ep::listen(&peer, &addr(), 0).expect("listens");
        let req = ConnReq::new(&peer, &addr(), ep.get_port(), &cfg).expect("resolves");
        for wr_id in 0..10 {
            req.recv(all(&dst), wr_id).expect("a slot");
        }
        let error = req.recv(all(&dst), 10).expect_err("full");
        assert!(
            matches!(
                error,
                Error::QueueFull {
                    queue: Queue::Receive,
                    depth: 10
                }
            ),
            "{error:?}"
        );
        drop(req);
        let req = ConnReq::new(&peer, &addr(), ep.get_port(), &cfg).expect("resolves");
        let client = req.connect(&[]).expect("asks");
        let req = ep.next_conn_req_timeout(&cfg, LIMIT).expect("a request");
        req.recv(all(&dst), 1).expect("posted");
        req.delete().expect("everything is freed");
        assert!(matches!(event(&client), ConnEvent::Rejected { .. }));
    });
}

/// A message without a receive waits for one; nothing is lost or duplicated.
#[test]
fn a_message_without_a_receive_waits_for_one() {
    device_test(|| {
        let peer = peer();
        let pair = Pair::new(&peer);
        let (src, dst) = (any_use(&peer, 64), any_use(&peer, 64));
        src.write_at(0, &pattern(64, 3)).expect("inside");
        pair.client.send(all(&src), ALWAYS, 1).expect("posted");
        let far = remote(&dst).slice(..8).expect("inside");
        let near = src.slice(..8).expect("inside");
        pair.client
            .write_with_imm(far, near, ALWAYS, 4, 2)
            .expect("posted");
        no_completion(&pair.client);
        no_completion(&pair.server);
        pair.server.recv(all(&dst), 3).expect("posted");
        let got = received(&completion(&pair.server), 3);
        assert_eq!(got, (WcOpcode::RECV, Some(64), None));
        assert_eq!(opcode_of(&completion(&pair.client), 1), WcOpcode::SEND);
        pair.server.recv(MrSlice::EMPTY, 4).expect("posted");
        let got = received(&completion(&pair.server), 4);
        assert_eq!(got, (WcOpcode::RECV_RDMA_WITH_IMM, Some(8), Some(4)));
        assert_eq!(
            opcode_of(&completion(&pair.client), 2),
            WcOpcode::RDMA_WRITE
        );
        no_completion(&pair.server);
        assert_eq!(contents(&dst), pattern(64, 3));
    });
}

/// With a shorter pause between tries than the acknowledge timeout, the waiting does not use up the
/// tries that are for a dead peer: on rxe these would be over after some 4 s.
#[test]
fn a_message_without_a_receive_waits_longer_than_for_a_dead_peer() {
    device_test(|| {
        let peer = peer();
        let mut cfg = ConnCfg::new();
        cfg.set_min_rnr_timer(Some(16)).expect("possible");
        let pair = Pair::with(&peer, &cfg, &cfg);
        for conn in [&pair.client, &pair.server] {
            conn.send(MrSlice::EMPTY, ALWAYS, 1).expect("posted");
        }
        thread::sleep(Duration::from_secs(6));
        for conn in [&pair.client, &pair.server] {
            assert_empty(conn.get_cq());
        }
        for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
            to.recv(MrSlice::EMPTY, 2).expect("posted");
            assert_eq!(opcode_of(&next_completion(to.get_cq()), 2), WcOpcode::RECV);
            assert_eq!(
                opcode_of(&next_completion(from.get_cq()), 1),
                WcOpcode::SEND
            );
        }
    });
}

/// A limited number of tries ends the connection of a sender to whom nobody listens. The number is
/// the receiver's to say: a side tells the other how often to try again.
#[test]
fn a_message_without_a_receive_may_fail_instead() {
    device_test(|| {
        let peer = peer();
        let patient = ConnCfg::new();
        let mut cfg = ConnCfg::new();
        cfg.set_rnr_retry_count(1).expect("possible");
        for client_sends in [true, false] {
            let pair = match client_sends {
                true => Pair::with(&peer, &patient, &cfg),
                false => Pair::with(&peer, &cfg, &patient),
            };
            let conn = match client_sends {
                true => &pair.client,
                false => &pair.server,
            };
            conn.send(MrSlice::EMPTY, ALWAYS, 1).expect("posted");
            let failure = failure(&completion(conn));
            assert_eq!(failure.status, WcStatus::RNR_RETRY_EXC_ERR, "{failure}");
            assert_eq!((failure.wr_id, failure.qp_num), (1, conn.get_qp_num()));
            let error = conn.send(MrSlice::EMPTY, ALWAYS, 2).expect_err("failed");
            assert!(matches!(error, Error::NotConnected(_)), "{error:?}");
        }
    });
}

/// How long the sender waits before it tries again is the receiver's to say, too: it says the code
/// that was set, and no other.
#[test]
fn the_receiver_says_how_long_to_wait_for_a_receive() {
    /// How often the sender tries again.
    const TRIES: u8 = 3;
    device_test(|| {
        let peer = peer();
        let until_failed = |code| {
            let mut cfg = ConnCfg::new();
            cfg.set_rnr_retry_count(TRIES).expect("possible");
            cfg.set_min_rnr_timer(code).expect("possible");
            // Long enough to have no part in it.
            cfg.set_ack_timeout(Some(21)).expect("possible");
            let pair = Pair::with(&peer, &cfg, &cfg);
            let start = Instant::now();
            pair.client.send(MrSlice::EMPTY, ALWAYS, 1).expect("posted");
            let failure = failure(&completion(&pair.client));
            assert_eq!(failure.status, WcStatus::RNR_RETRY_EXC_ERR, "{failure}");
            start.elapsed()
        };
        let at_least = |micros| Duration::from_micros(micros) * TRIES.into();
        let shortest = until_failed(Some(1));
        let long = until_failed(Some(31));
        let longest = until_failed(None);
        assert!(long >= at_least(491_520), "{long:?}");
        assert!(longest >= at_least(655_360), "{longest:?}");
        // 0.03 ms by the book.
        assert!(shortest < at_least(491_520), "{shortest:?}");
    });
}

/// A message longer than its receive fails on both sides: on neither is there half a message that
/// looks whole, and neither connection goes on.
#[test]
fn a_message_longer_than_its_receive_fails_on_both_sides() {
    device_test(|| {
        let peer = peer();
        let (src, dst) = (any_use(&peer, 4096), any_use(&peer, 4096));
        for (sent, room) in [(9, 8), (4096, 1000), (1, 0)] {
            let pair = Pair::new(&peer);
            pair.server
                .recv(dst.slice(..room).expect("inside"), 1)
                .expect("posted");
            pair.server.recv(all(&dst), 2).expect("posted");
            pair.client
                .send(src.slice(..sent).expect("inside"), ALWAYS, 3)
                .expect("posted");
            let at_sender = failure(&completion(&pair.client));
            let at_receiver = completions(&pair.server, 2);
            let at_receiver: Vec<_> = at_receiver.iter().map(failure).collect();
            assert_eq!((at_sender.wr_id, at_receiver[0].wr_id), (3, 1));
            // rxe has the first pair of codes; the specification and adapters the second.
            let statuses = (at_sender.status, at_receiver[0].status);
            assert!(
                [
                    (WcStatus::REM_OP_ERR, WcStatus::LOC_QP_OP_ERR),
                    (WcStatus::REM_INV_REQ_ERR, WcStatus::LOC_LEN_ERR),
                ]
                .contains(&statuses),
                "{statuses:?}"
            );
            assert_eq!(
                at_receiver[1].status,
                WcStatus::WR_FLUSH_ERR,
                "the other is given back"
            );
            for conn in [&pair.client, &pair.server] {
                let error = conn.send(MrSlice::EMPTY, ALWAYS, 4).expect_err("failed");
                assert!(matches!(error, Error::NotConnected(_)), "{error:?}");
                let error = conn.recv(MrSlice::EMPTY, 4).expect_err("failed");
                assert!(matches!(error, Error::NotConnected(_)), "{error:?}");
            }
        }
    });
}

/// A full receive queue is `QueueFull` with its remedy, and a slot comes back with each completion.
#[test]
fn a_full_receive_queue() {
    device_test(|| {
        let peer = peer();
        let dst = any_use(&peer, 8);
        for depth in [0, 1, 3, 100] {
            let mut cfg = ConnCfg::new();
            cfg.set_rq_size(depth);
            let pair = Pair::with(&peer, &ConnCfg::new(), &cfg);
            let fill = || {
                let mut posted = 0;
                loop {
                    match pair.server.recv(all(&dst), posted) {
                        Ok(()) => posted += 1,
                        Err(error) => {
                            let Error::QueueFull { queue, depth: said } = error else {
                                panic!("{error:?}")
                            };
                            assert_eq!((queue, said), (Queue::Receive, depth));
                            assert!(error.to_string().contains("set_rq_size"), "{error}");
                            return posted;
                        }
                    }
                }
            };
            assert_eq!(fill(), depth.into());
            for _ in 0..depth.min(7) {
                pair.client.send(MrSlice::EMPTY, ALWAYS, 1).expect("posted");
                completion(&pair.client).result().expect("arrives");
            }
            assert_eq!(
                fill(),
                0,
                "a slot comes back when the completion is polled, not before"
            );
            completions(&pair.server, depth.min(7) as usize);
            assert_eq!(fill(), depth.min(7).into());
        }
    });
}

/// With a completion queue of its own for receives, each queue gets its completions and no other's,
/// and more than its size asked for fit into both.
#[test]
fn a_completion_queue_for_receives() {
    device_test(|| {
        let peer = peer();
        let mut cfg = ConnCfg::new();
        cfg.set_rcq_size(1)
            .set_cq_size(1)
            .set_rq_size(50)
            .set_sq_size(50);
        let pair = Pair::with(&peer, &cfg, &cfg);
        let rcq = pair.server.get_rcq().expect("one of its own");
        for wr_id in 0..50 {
            pair.server.recv(MrSlice::EMPTY, wr_id).expect("posted");
        }
        for wr_id in 50..100 {
            pair.client
                .send(MrSlice::EMPTY, ALWAYS, wr_id)
                .expect("posted");
            pair.server
                .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, wr_id + 50)
                .expect("posted");
        }
        for wr_id in 0..50 {
            assert_eq!(opcode_of(&next_completion(rcq), wr_id), WcOpcode::RECV);
        }
        for (n, wc) in completions(&pair.client, 50).iter().enumerate() {
            assert_eq!(opcode_of(wc, 50 + n as u64), WcOpcode::SEND);
        }
        for (n, wc) in completions(&pair.server, 50).iter().enumerate() {
            assert_eq!(opcode_of(wc, 100 + n as u64), WcOpcode::RDMA_WRITE);
        }
        assert_empty(rcq);
        assert_empty(pair.client.get_rcq().expect("one of its own"));
    });
}

/// Polling moves as many completions as there is room for, and keeps the rest.
#[test]
fn polling_takes_as_many_as_fit() {
    device_test(|| {
        let peer = peer();
        let pair = Pair::new(&peer);
        for wr_id in 0..5 {
            pair.client
                .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, wr_id)
                .expect("posted");
        }
        let cq = pair.client.get_cq();
        assert_eq!(cq.get_wc(&mut []).expect("polls"), 0, "no room");
        assert_eq!(opcode_of(&next_completion(cq), 0), WcOpcode::RDMA_WRITE);
        let mut rest = Vec::new();
        while rest.len() < 4 {
            let mut wcs = [Wc::default(); 2];
            let count = cq.get_wc(&mut wcs).expect("polls");
            rest.extend(wcs[..count].iter().map(Wc::wr_id));
        }
        assert_eq!(rest, [1, 2, 3, 4]);
        assert_empty(cq);
    });
}

/// `Cq::wait_for` returns the operation that was asked for, and hands over what came before it.
#[test]
fn waiting_for_one_operation() {
    device_test(|| {
        let peer = peer();
        let pair = Pair::new(&peer);
        let cq = pair.client.get_cq();
        let write = |wr_id| {
            pair.client
                .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, wr_id)
                .expect("posted");
        };
        for wr_id in 0..6 {
            write(wr_id);
        }
        let mut others = Vec::new();
        let wc = cq
            .wait_for(3, LIMIT, |wc| others.push(wc.wr_id()))
            .expect("completes");
        assert_eq!(opcode_of(&wc, 3), WcOpcode::RDMA_WRITE);
        assert_eq!(others, [0, 1, 2]);
        // What comes after it is still there.
        let wc = cq
            .wait_for(4, LIMIT, |wc| panic!("{wc:?}"))
            .expect("completes");
        assert_eq!(wc.wr_id(), 4);
        cq.wait_for(5, LIMIT, |wc| panic!("{wc:?}"))
            .expect("completes");

        // Nothing comes: the limit is kept, and later completions are found.
        let error = cq.wait_for(9, Duration::from_millis(50), |wc| panic!("{wc:?}"));
        assert!(matches!(error, Err(Error::NoCompletion)), "{error:?}");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| cq.wait_for(7, LIMIT, |wc| assert_eq!(wc.wr_id(), 6)));
            thread::sleep(Duration::from_millis(20));
            write(6);
            write(7);
            let found = waiter.join().expect("ends").expect("completes");
            assert_eq!(found.wr_id(), 7);
        });
    });
}

/// A failure of the operation is the error; failures of others go to the closure, which sees why.
#[test]
fn waiting_for_one_operation_that_fails() {
    device_test(|| {
        let peer = peer();
        let source = any_use(&peer, 8);
        let gone = remote(&any_use(&peer, 8)).slice(..).expect("all");
        for asked in [1, 2] {
            let pair = Pair::new(&peer);
            for wr_id in [1, 2] {
                pair.client
                    .write(gone, all(&source), ALWAYS, wr_id)
                    .expect("posted");
            }
            let mut others = Vec::new();
            let error = pair
                .client
                .get_cq()
                .wait_for(asked, LIMIT, |wc| others.push(failure(&wc).status))
                .expect_err("fails");
            let Error::Operation(failure) = error else {
                panic!("{error:?}")
            };
            assert_eq!(failure.wr_id, asked);
            match asked {
                1 => assert_eq!(failure.status, WcStatus::REM_ACCESS_ERR, "{failure}"),
                _ => assert_eq!(others, [WcStatus::REM_ACCESS_ERR]),
            }
        }
    });
}

/// Receives are flushed when the connection ends, each with its number, so that a program gets its
/// buffers back.
#[test]
fn receives_come_back_when_the_connection_ends() {
    fn flushed(conn: &Conn) {
        for (n, wc) in completions(conn, 5).iter().enumerate() {
            let failure = failure(wc);
            assert_eq!(
                (failure.wr_id, failure.status),
                (n as u64, WcStatus::WR_FLUSH_ERR)
            );
        }
    }
    device_test(|| {
        let peer = peer();
        let dst = any_use(&peer, 8);
        let pair = Pair::new(&peer);
        for wr_id in 0..5 {
            pair.client.recv(all(&dst), wr_id).expect("posted");
            pair.server.recv(all(&dst), wr_id).expect("posted");
        }
        pair.client.disconnect().expect("disconnects");
        flushed(&pair.client);
        assert_eq!(event(&pair.server), ConnEvent::Closed);
        // The peer's end does not end this one: that takes its own disconnect.
        pair.server.disconnect().expect("answers");
        flushed(&pair.server);
        assert_eq!(event(&pair.client), ConnEvent::Closed);
    });
}

/// `Mr::advise` is for on-demand paging: bounds are checked anywhere, and a device without it says
/// so.
#[test]
fn advice_on_a_region() {
    device_test(|| {
        let peer = peer();
        let mr = any_use(&peer, 4096);
        for range in [0..4097, 4096..4097, 5000..6000] {
            let text = invalid(mr.advise(range, Advice::Prefetch, AdviseFlags::None));
            assert!(text.contains("4096 bytes"), "{text}");
        }
        if peer.is_odp_capable() {
            return;
        }
        for advice in [
            Advice::Prefetch,
            Advice::PrefetchWrite,
            Advice::PrefetchNoFault,
        ] {
            for flags in [AdviseFlags::None, AdviseFlags::Flush] {
                let error = mr
                    .advise(.., advice, flags)
                    .expect_err("the device cannot do it");
                assert!(matches!(error, Error::NotSupported(_)), "{error:?}");
            }
        }
    });
}

/// What a region and its descriptor say of it is the same on both sides.
#[test]
fn what_a_region_says_of_itself() {
    device_test(|| {
        let peer = peer();
        let usage = MrUsage::WRITE_DST | MrUsage::RECV | MrUsage::FLUSH_TYPE_VISIBILITY;
        let mr = region(&peer, 100, usage);
        assert!(!mr.get_ptr().is_null());
        assert_eq!((mr.get_size(), mr.get_usage()), (100, usage));
        assert_eq!(mr.get_descriptor().len(), mr.get_descriptor_size());
        let far = remote(&mr);
        assert_eq!((far.get_size(), far.get_usage()), (100, usage));
        assert_eq!(far.get_flush_type(), MrUsage::FLUSH_TYPE_VISIBILITY);
        assert_eq!(far.slice(10..20).expect("inside").len(), 10);
        assert_eq!(mr.slice(10..20).expect("inside").len(), 10);
    });
}
