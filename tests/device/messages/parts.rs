//! Operations of several parts, and of data that is taken when they are posted.

use crate::common::prelude::*;
use crate::messages::support::{ALWAYS, all, any_use, received};

/// Several local parts of any sizes become one write and one message, in their order.
#[test]
fn gathered_parts_arrive_as_one() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let mut cfg = ConnCfg::new();
    cfg.set_max_send_sge(4)?;
    assert_eq!(cfg.get_max_send_sge(), 4);
    let pair = Pair::with(&peer, &cfg, &cfg)?;
    let (one, other, dst) = (
        any_use(&peer, 5000)?,
        any_use(&peer, 5000)?,
        any_use(&peer, 8192)?,
    );
    one.write_at(0, &pattern(5000, 1))?;
    other.write_at(0, &pattern(5000, 2))?;
    let parts = [
        one.slice(17..2000)?,
        other.slice(4999..)?,
        MrSlice::EMPTY,
        one.slice(..3000)?,
    ];
    let expected = [
        &contents(&one)?[17..2000],
        &contents(&other)?[4999..],
        &contents(&one)?[..3000],
    ]
    .concat();
    let len = expected.len();

    let far = remote(&dst).slice(100..100 + len as u64)?;
    pair.client.write_gather(far, &parts, ALWAYS, 1)?;
    assert_eq!(
        opcode_of(&completion(&pair.client)?, 1)?,
        WcOpcode::RDMA_WRITE
    );
    assert_eq!(contents(&dst)?[100..100 + len], expected);

    dst.write_at(0, &[0; 8192])?;
    pair.server.recv(all(&dst), 2)?;
    pair.client.send_gather(&parts, ALWAYS, 3)?;
    assert_eq!(opcode_of(&completion(&pair.client)?, 3)?, WcOpcode::SEND);
    let got = received(&completion(&pair.server)?, 2)?;
    assert_eq!(got, (WcOpcode::RECV, Some(len as u32), None));
    assert_eq!(contents(&dst)?[..len], expected);
    Ok(())
}

/// Each mistake with gathered parts is refused, with the limit, before anything is sent.
#[test]
fn every_refusal_of_gathered_parts() -> Result {
    let _test = device_test();
    let (peer, stranger) = (peer()?, peer()?);
    let mut cfg = ConnCfg::new();
    cfg.set_max_send_sge(3)?;
    let pair = Pair::with(&peer, &cfg, &cfg)?;
    let conn = &pair.client;
    let (src, dst) = (any_use(&peer, 8)?, any_use(&peer, 64)?);
    let far = |len| remote(&dst).slice(..len);
    let four = [all(&src); 4];
    for text in [
        invalid(conn.write_gather(far(32)?, &four, ALWAYS, 1)),
        invalid(conn.send_gather(&four, ALWAYS, 1)),
    ] {
        assert!(
            text.contains("4 local parts") && text.contains("set_max_send_sge"),
            "{text}"
        );
    }
    let text = invalid(conn.write_gather(far(23)?, &four[..3], ALWAYS, 1));
    assert!(text.contains("24 bytes and the remote part 23"), "{text}");
    let foreign = any_use(&stranger, 8)?;
    for text in [
        invalid(conn.write_gather(far(16)?, &[all(&src), all(&foreign)], ALWAYS, 1)),
        invalid(conn.send_gather(&[all(&src), all(&foreign)], ALWAYS, 1)),
        invalid(conn.send(all(&foreign), ALWAYS, 1)),
        invalid(conn.recv(all(&foreign), 1)),
    ] {
        assert!(text.contains("another Peer"), "{text}");
    }
    let wrong = region(&peer, 8, MrUsage::READ_DST)?;
    for (text, needed) in [
        (
            invalid(conn.write_gather(far(16)?, &[all(&src), all(&wrong)], ALWAYS, 1)),
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
    no_completion(conn)?;
    assert_eq!(contents(&dst)?, [0; 64]);

    let mut greedy = ConnCfg::new();
    greedy.set_max_send_sge(17)?;
    let text = invalid(ConnReq::new(&peer, &addr(), 1, &greedy));
    assert!(
        text.contains("17 local parts") && text.contains("at most 16"),
        "{text}"
    );

    // The connection is as good as before.
    conn.write_gather(far(24)?, &four[..3], ALWAYS, 2)?;
    assert_eq!(opcode_of(&completion(conn)?, 2)?, WcOpcode::RDMA_WRITE);
    Ok(())
}

/// Inline data is taken when the operation is posted: the source may change at once. The operations
/// wait after a message without a receive, so that the change comes first for certain.
#[test]
fn inline_data_may_change_at_once() -> Result {
    let _test = device_test();
    let peer = peer()?;
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
    for (wr_id, wc) in completions(conn, 8)?.iter().enumerate() {
        opcode_of(wc, wr_id as u64)?;
    }
    for wc in completions(&pair.server, 5)? {
        wc.result()?;
    }
    let there = contents(&dst)?;
    let there: Vec<_> = there.chunks(64).collect();
    let turned = [&old[32..], &old[..32]].concat();
    for (nth, expected) in [&old, &turned, &old, &old, &old, &turned]
        .into_iter()
        .enumerate()
    {
        assert_eq!(there[nth], *expected, "operation {nth}");
    }
    // An adapter may have read the first bytes before.
    let sent = there[6].iter().zip(old.iter().zip(&new));
    let is_either = sent
        .into_iter()
        .all(|(byte, (old, new))| byte == old || byte == new);
    assert!(is_either && there[6].last() == new.last(), "operation 6");
    Ok(())
}

/// The limit of inline data is named where it is exceeded, and a limit that a device cannot have
/// where the connection is made.
#[test]
fn every_refusal_of_inline_data() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let (src, dst) = (any_use(&peer, 1000)?, any_use(&peer, 1000)?);
    let far = |len| remote(&dst).slice(..len);
    let near = |len| src.slice(..len);
    let inline = ALWAYS | Flags::INLINE;
    // Room that was not asked for is missing on any device alike, even if this one has more.
    for limit in [0, 8, 100] {
        let mut cfg = ConnCfg::new();
        cfg.set_max_inline_data(limit as u32);
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        let conn = &pair.client;
        for text in [
            invalid(conn.write(far(limit as u64 + 1)?, near(limit + 1)?, inline, 1)),
            invalid(conn.write_with_imm(far(limit as u64 + 1)?, near(limit + 1)?, inline, 1, 1)),
            invalid(conn.write_gather(far(limit as u64 + 1)?, &[near(limit + 1)?], inline, 1)),
            invalid(conn.send(near(limit + 1)?, inline, 1)),
            invalid(conn.send_with_imm(near(limit + 1)?, inline, 1, 1)),
            invalid(conn.send_gather(&[near(limit + 1)?], inline, 1)),
        ] {
            let said = format!("{} bytes with Flags::INLINE", limit + 1);
            assert!(
                text.contains(&said) && text.contains("set_max_inline_data"),
                "{text}"
            );
        }
        let text = invalid(conn.read(near(8)?, far(8)?, inline, 1));
        assert!(text.contains("not for reads"), "{text}");
        no_completion(conn)?;
        conn.write(far(limit as u64)?, near(limit)?, inline, 2)?;
        assert_eq!(opcode_of(&completion(conn)?, 2)?, WcOpcode::RDMA_WRITE);
    }
    let mut greedy = ConnCfg::new();
    greedy.set_max_inline_data(1 << 20);
    let ep = listen(&peer)?;
    let error = ConnReq::new(&peer, &addr(), ep.get_port(), &greedy).expect_err("too much");
    let text = error.to_string();
    assert!(
        text.starts_with("rdma_create_qp") && text.contains("inline"),
        "{text}"
    );
    Ok(())
}
