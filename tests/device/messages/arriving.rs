//! Messages arrive: every size, in its order, with its number, also no bytes at all.

use crate::common::prelude::*;
use crate::messages::support::{all, any_use, directions, received, receives};

/// A message of every size arrives whole, with its length, in both directions, and no byte around
/// it is touched.
#[test]
fn messages_of_every_size_arrive() -> Result {
    let (_test, peer) = peer_test()?;
    let pair = Pair::new(&peer)?;
    let (src, dst) = (any_use(&peer, 1 << 20)?, any_use(&peer, (1 << 20) + 64)?);
    for (from, to) in directions(&pair) {
        for (seed, len) in (1..).zip([1, 7, 8, 1024, 1025, 65_536, 1 << 20]) {
            let bytes = pattern(len, seed);
            src.write_at(0, &bytes)?;
            dst.write_at(0, &vec![0xEE; dst.get_size()])?;
            to.recv(dst.slice(3..)?, 11)?;
            from.send(src.slice(..len)?, ALWAYS, 12)?;
            assert_eq!(done(from, 12)?, WcOpcode::SEND);
            assert_eq!(receives(to, 11)?, (WcOpcode::RECV, Some(len as u32), None));
            let there = contents(&dst)?;
            assert_eq!(there[3..3 + len], bytes);
            let mut around = there[..3].iter().chain(&there[3 + len..]);
            assert!(around.all(|&byte| byte == 0xEE));
        }
    }
    Ok(())
}

/// Receives are used in the order in which they were posted, messages come in the order of sending,
/// and a completion names its queue pair and operation.
#[test]
fn messages_keep_their_order() -> Result {
    let (_test, peer) = peer_test()?;
    let pair = Pair::new(&peer)?;
    let (src, dst) = (any_use(&peer, 80)?, any_use(&peer, 80)?);
    src.write_at(0, &pattern(80, 5))?;
    for n in 0..10 {
        let part = dst.slice(8 * n..8 * n + 8)?;
        pair.server.recv(part, 100 + n as u64)?;
    }
    for n in 0..10 {
        let part = src.slice(8 * n..8 * n + 8)?;
        pair.client.send(part, ALWAYS, 200 + n as u64)?;
    }
    for (conn, first) in [(&pair.server, 100), (&pair.client, 200)] {
        let wcs = completions(conn, 10)?;
        assert_done(&wcs, first..first + 10)?;
        for wc in wcs {
            assert_eq!(
                (wc.qp_num(), wc.status()),
                (conn.get_qp_num(), WcStatus::SUCCESS)
            );
        }
    }
    assert_eq!(contents(&dst)?, pattern(80, 5));
    Ok(())
}

/// The 4 bytes arrive as the number that was sent, in both directions and with both operations; a
/// write with immediate data reports how much was written.
#[test]
fn immediate_data_is_the_same_number_on_both_sides() -> Result {
    let (_test, peer) = peer_test()?;
    let pair = Pair::new(&peer)?;
    let (src, dst) = (any_use(&peer, 64)?, any_use(&peer, 64)?);
    src.write_at(0, &pattern(64, 9))?;
    let target = remote(&dst);
    for (from, to) in directions(&pair) {
        for imm in [0, 1, 0x0102_0304, 0x8000_0000, u32::MAX] {
            to.recv(all(&dst), 1)?;
            from.send_with_imm(src.slice(..5)?, ALWAYS, imm, 2)?;
            assert_eq!(done(from, 2)?, WcOpcode::SEND);
            assert_eq!(receives(to, 1)?, (WcOpcode::RECV, Some(5), Some(imm)));

            // The receive is only the notice: the data goes to the write's destination.
            dst.write_at(0, &[0; 64])?;
            to.recv(MrSlice::EMPTY, 3)?;
            let part = target.slice(10..17)?;
            from.write_with_imm(part, src.slice(..7)?, ALWAYS, imm, 4)?;
            assert_eq!(done(from, 4)?, WcOpcode::RDMA_WRITE);
            assert_eq!(
                receives(to, 3)?,
                (WcOpcode::RECV_RDMA_WITH_IMM, Some(7), Some(imm))
            );
            assert_eq!(contents(&dst)?[10..17], pattern(64, 9)[..7]);
            assert_eq!(contents(&dst)?[17..], [0; 47]);
        }
    }
    Ok(())
}

/// Operations without any memory, and with parts of no bytes: each completes, and the peer learns
/// of those that it receives.
#[test]
fn operations_of_no_bytes() -> Result {
    let (_test, peer) = peer_test()?;
    let pair = Pair::new(&peer)?;
    let (here, there) = (any_use(&peer, 16)?, any_use(&peer, 16)?);
    let nothing_here = here.slice(5..5)?;
    let nothing_there = remote(&there).slice(16..16)?;
    let conn = &pair.client;
    for local in [MrSlice::EMPTY, nothing_here] {
        assert!(local.is_empty());
        for far in [RemoteSlice::EMPTY, nothing_there] {
            assert!(far.is_empty());
            conn.read(local, far, ALWAYS, 1)?;
            assert_eq!(done(conn, 1)?, WcOpcode::RDMA_READ);
            conn.write(far, local, ALWAYS, 2)?;
            assert_eq!(done(conn, 2)?, WcOpcode::RDMA_WRITE);
            conn.write_gather(far, &[local, local], ALWAYS, 3)
                .expect_err("the connection was made for 1 part");
            conn.write_gather(far, &[], ALWAYS, 3)?;
            assert_eq!(done(conn, 3)?, WcOpcode::RDMA_WRITE);
            pair.server.recv(MrSlice::EMPTY, 4)?;
            conn.write_with_imm(far, local, ALWAYS, 44, 5)?;
            assert_eq!(done(conn, 5)?, WcOpcode::RDMA_WRITE);
            assert_eq!(
                receives(&pair.server, 4)?,
                (WcOpcode::RECV_RDMA_WITH_IMM, Some(0), Some(44))
            );
        }
        for to in [MrSlice::EMPTY, there.slice(3..3)?, all(&there)] {
            for _ in 0..3 {
                pair.server.recv(to, 6)?;
            }
            conn.send(local, ALWAYS, 7)?;
            conn.send_with_imm(local, ALWAYS, 55, 7)?;
            conn.send_gather(&[], ALWAYS, 7)?;
            for wc in completions(conn, 3)? {
                assert_eq!(opcode_of(&wc, 7)?, WcOpcode::SEND);
            }
            let came = completions(&pair.server, 3)?;
            for (wc, imm) in came.iter().zip([None, Some(55), None]) {
                assert_eq!(received(wc, 6)?, (WcOpcode::RECV, Some(0), imm));
            }
        }
    }
    assert_eq!(contents(&there)?, [0; 16]);

    // An empty part on one side only is a mistake.
    let text = invalid(conn.write(RemoteSlice::EMPTY, all(&here), ALWAYS, 8));
    assert!(text.contains("16 bytes and the remote part 0"), "{text}");
    let far = remote(&there).slice(..)?;
    let text = invalid(conn.read(MrSlice::EMPTY, far, ALWAYS, 8));
    assert!(text.contains("0 bytes and the remote part 16"), "{text}");
    no_completion(conn)?;
    Ok(())
}
