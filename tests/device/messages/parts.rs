//! Operations of several parts, and of data that is taken when they are posted.

use crate::common::prelude::*;
use crate::messages::support::{all, any_use, receives};

/// Several local parts of any sizes become one write and one message, in their order.
#[test]
fn gathered_parts_arrive_as_one() -> Result {
    let (_test, peer) = peer_test()?;
    let cfg = ConnCfg::new().set_max_send_sge(4)?.clone();
    assert_eq!(cfg.get_max_send_sge(), 4);
    let pair = Pair::with(&peer, &cfg, &cfg)?;
    let (one, other) = (any_use(&peer, 5000)?, any_use(&peer, 5000)?);
    let dst = any_use(&peer, 8192)?;
    one.write_at(0, &pattern(5000, 1))?;
    other.write_at(0, &pattern(5000, 2))?;
    let parts = [
        one.slice(17..2000)?,
        other.slice(4999..)?,
        MrSlice::EMPTY,
        one.slice(..3000)?,
    ];
    let (first, last) = (contents(&one)?, contents(&other)?);
    let expected = [&first[17..2000], &last[4999..], &first[..3000]].concat();
    let len = expected.len();

    let far = remote(&dst).slice(100..100 + len as u64)?;
    pair.client.write_gather(far, &parts, ALWAYS, 1)?;
    assert_eq!(done(&pair.client, 1)?, WcOpcode::RDMA_WRITE);
    assert_eq!(contents(&dst)?[100..100 + len], expected);

    dst.write_at(0, &[0; 8192])?;
    pair.server.recv(all(&dst), 2)?;
    pair.client.send_gather(&parts, ALWAYS, 3)?;
    assert_eq!(done(&pair.client, 3)?, WcOpcode::SEND);
    let message = (WcOpcode::RECV, Some(len as u32), None);
    assert_eq!(receives(&pair.server, 2)?, message);
    assert_eq!(contents(&dst)?[..len], expected);
    Ok(())
}

/// Each mistake with gathered parts is refused, with the limit, before anything is sent.
#[test]
fn every_refusal_of_gathered_parts() -> Result {
    let _test = device_test();
    let (peer, stranger) = (peer()?, peer()?);
    let cfg = ConnCfg::new().set_max_send_sge(3)?.clone();
    let pair = Pair::with(&peer, &cfg, &cfg)?;
    let conn = &pair.client;
    let (src, dst) = (any_use(&peer, 8)?, any_use(&peer, 64)?);
    let far = |len| remote(&dst).slice(..len);
    let four = [all(&src); 4];
    for refused in [
        conn.write_gather(far(32)?, &four, ALWAYS, 1),
        conn.send_gather(&four, ALWAYS, 1),
    ] {
        assert_invalid(refused, &["4 local parts", "set_max_send_sge"]);
    }
    let text = invalid(conn.write_gather(far(23)?, &four[..3], ALWAYS, 1));
    assert!(text.contains("24 bytes and the remote part 23"), "{text}");
    let foreign = any_use(&stranger, 8)?;
    let both = [all(&src), all(&foreign)];
    for refused in [
        conn.write_gather(far(16)?, &both, ALWAYS, 1).map(drop),
        conn.send_gather(&both, ALWAYS, 1).map(drop),
        conn.send(all(&foreign), ALWAYS, 1).map(drop),
        conn.recv(all(&foreign), 1),
    ] {
        assert_invalid(refused, &["another Peer"]);
    }
    let wrong = region(&peer, 8, MrUsage::READ_DST)?;
    let written = conn.write_gather(far(16)?, &[all(&src), all(&wrong)], ALWAYS, 1);
    assert_invalid(written, &["needs WRITE_SRC"]);
    for sent in [
        conn.send_gather(&[all(&wrong)], ALWAYS, 1),
        conn.send(all(&wrong), ALWAYS, 1),
        conn.send_with_imm(all(&wrong), ALWAYS, 1, 1),
    ] {
        assert_invalid(sent, &["needs SEND"]);
    }
    assert_invalid(conn.recv(all(&wrong), 1), &["needs RECV"]);
    no_completion(conn)?;
    assert_eq!(contents(&dst)?, [0; 64]);

    let greedy = ConnReq::new(&peer, &addr(), 1, ConnCfg::new().set_max_send_sge(17)?);
    assert_invalid(greedy, &["17 local parts", "at most 16"]);

    // The connection is as good as before.
    conn.write_gather(far(24)?, &four[..3], ALWAYS, 2)?;
    assert_eq!(done(conn, 2)?, WcOpcode::RDMA_WRITE);
    Ok(())
}

/// Inline data is taken when the operation is posted: the source may change at once. The operations
/// wait after a message without a receive, so that the change comes first for certain.
#[test]
fn inline_data_may_change_at_once() -> Result {
    let (_test, peer) = peer_test()?;
    let mut cfg = ConnCfg::new();
    cfg.set_max_inline_data(64).set_rq_size(16);
    cfg.set_max_send_sge(2)?;
    let pair = Pair::with(&peer, &cfg, &cfg)?;
    let conn = &pair.client;
    let (src, dst) = (any_use(&peer, 64)?, any_use(&peer, 512)?);
    let (old, new) = (pattern(64, 1), pattern(64, 2));
    src.write_at(0, &old)?;
    let far = |nth: u64| -> Result<_> { Ok(remote(&dst).slice(64 * nth..64 * (nth + 1))?) };
    let inline = ALWAYS | Flags::INLINE;

    conn.send(MrSlice::EMPTY, ALWAYS, 0)?;
    conn.write(far(0)?, all(&src), inline, 1)?;
    let halves = [src.slice(32..)?, src.slice(..32)?];
    conn.write_gather(far(1)?, &halves, inline, 2)?;
    conn.write_with_imm(far(2)?, all(&src), inline, 7, 3)?;
    conn.send(all(&src), inline, 4)?;
    conn.send_with_imm(all(&src), inline, 8, 5)?;
    conn.send_gather(&halves, inline, 6)?;
    // Without the flag: this one shows that the others were really sent after the change.
    conn.write(far(6)?, all(&src), ALWAYS, 7)?;
    src.write_at(0, &new)?;

    pair.server.recv(MrSlice::EMPTY, 0)?;
    pair.server.recv(MrSlice::EMPTY, 1)?;
    for nth in 3..6 {
        let part = dst.slice(64 * nth..64 * (nth + 1))?;
        pair.server.recv(part, nth as u64)?;
    }
    assert_done(&completions(conn, 8)?, 0..8)?;
    for wc in completions(&pair.server, 5)? {
        wc.result()?;
    }
    let there = contents(&dst)?;
    let there: Vec<_> = there.chunks(64).collect();
    let turned = [&old[32..], &old[..32]].concat();
    assert_eq!(there[..6], [&old, &turned, &old, &old, &old, &turned]);
    // An adapter may have read the first bytes before.
    let mut sent = there[6].iter().zip(old.iter().zip(&new));
    let is_either = sent.all(|(byte, (old, new))| byte == old || byte == new);
    assert!(is_either && there[6].last() == new.last(), "operation 6");
    Ok(())
}

/// The limit of inline data is named where it is exceeded, and a limit that a device cannot have
/// where the connection is made.
#[test]
fn every_refusal_of_inline_data() -> Result {
    let (_test, peer) = peer_test()?;
    let (src, dst) = (any_use(&peer, 1000)?, any_use(&peer, 1000)?);
    let far = |len| remote(&dst).slice(..len);
    let near = |len| src.slice(..len);
    let inline = ALWAYS | Flags::INLINE;
    // Room that was not asked for is missing on any device alike, even if this one has more.
    for limit in [0, 8, 100] {
        let cfg = ConnCfg::new().set_max_inline_data(limit as u32).clone();
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        let conn = &pair.client;
        let (to, from) = (far(limit as u64 + 1)?, near(limit + 1)?);
        for refused in [
            conn.write(to, from, inline, 1),
            conn.write_with_imm(to, from, inline, 1, 1),
            conn.write_gather(to, &[from], inline, 1),
            conn.send(from, inline, 1),
            conn.send_with_imm(from, inline, 1, 1),
            conn.send_gather(&[from], inline, 1),
        ] {
            let said = format!("{} bytes with Flags::INLINE", limit + 1);
            assert_invalid(refused, &[&said, "set_max_inline_data"]);
        }
        assert_invalid(conn.read(near(8)?, far(8)?, inline, 1), &["not for reads"]);
        no_completion(conn)?;
        conn.write(far(limit as u64)?, near(limit)?, inline, 2)?;
        assert_eq!(done(conn, 2)?, WcOpcode::RDMA_WRITE);
    }
    let greedy = ConnCfg::new().set_max_inline_data(1 << 20).clone();
    let ep = listen(&peer)?;
    let error = ConnReq::new(&peer, &addr(), ep.get_port(), &greedy).expect_err("too much");
    assert!(error.to_string().starts_with("rdma_create_qp"), "{error}");
    assert_says(&error, &["inline"]);
    Ok(())
}
