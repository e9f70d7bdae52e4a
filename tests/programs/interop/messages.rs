//! Messages, with and without immediate data, and writes with immediate data.

use crate::interop::prelude::*;

/// Waits for the next completion in any of the queues.
fn next(queues: &[&Cq]) -> Wc {
    let start = Instant::now();
    let mut wcs = [Wc::default()];
    let mut is_there = |cq: &&Cq| cq.get_wc(&mut wcs).expect("polls") > 0;
    while !queues.iter().any(&mut is_there) {
        assert!(start.elapsed() < LIMIT, "a completion in time");
        std::thread::yield_now();
    }
    wcs[0]
}

fn post_receive(conn: &Conn, srq: Option<&Srq>, to: MrSlice<'_>) -> Result {
    match srq {
        Some(srq) => srq.recv(to, 7)?,
        None => conn.recv(to, 7)?,
    }
    Ok(())
}

fn invert(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.iter_mut().for_each(|byte| *byte ^= 0xFF);
    bytes
}

/// Sends each message back inverted, until each of the C clients has sent an empty one.
fn echo(peer: &Peer, clients: usize, srq: Option<&Srq>) -> Result {
    let incoming = region(peer, MESSAGE_MAX, MrUsage::RECV)?;
    let receive = incoming.slice(..)?;
    let replies = (0..clients).map(|_| region(peer, MESSAGE_MAX, MrUsage::SEND));
    let replies = replies.collect::<Result<Vec<_>>>()?;
    let mut cfg = ConnCfg::new();
    cfg.set_srq(srq);
    let before = match srq {
        Some(srq) => {
            srq.recv(receive, 7)?;
            &[][..]
        }
        None => &[(receive, 7)],
    };
    let ep = listen(peer)?;
    let (mut programs, mut conns) = (Vec::new(), Vec::new());
    for _ in 0..clients {
        programs.push(client(&ep, &["send"]));
        let data = offer(&incoming, false);
        conns.push(establish(request(&ep, &cfg)?, &data, before)?);
    }
    let rcq = srq.and_then(Srq::get_rcq);
    let queues: Vec<&Cq> = conns.iter().map(Conn::get_cq).chain(rcq).collect();
    let mut ended = 0;
    while ended < clients {
        let wc = next(&queues);
        let success = wc.result()?;
        let Some(len) = success.byte_len() else {
            // A reply that was sent.
            continue;
        };
        succeeded(wc, 7, WcOpcode::RECV)?;
        let is_its = |conn: &Conn| conn.get_qp_num() == wc.qp_num();
        let from = conns.iter().position(is_its).ok_or("one of the clients")?;
        let mut message = contents(&incoming)?;
        message.truncate(len as usize);
        replies[from].write_at(0, &invert(message))?;
        post_receive(&conns[from], srq, receive)?;
        let reply = replies[from].slice(..len as usize)?;
        conns[from].send(reply, Flags::COMPLETION_ALWAYS, 8)?;
        ended += usize::from(len == 0);
    }
    // Both may have ended, and the first waits for its answer.
    conns.into_iter().for_each(finish);
    for program in programs {
        program.done();
    }
    Ok(())
}

#[test]
fn messages_of_a_c_client() -> Result {
    let _test = device_test();
    echo(&peer()?, 1, None)
}

#[test]
fn messages_of_two_c_clients_into_a_shared_queue() -> Result {
    let (_test, peer) = begin()?;
    for rcq_size in [0, 20] {
        let mut cfg = SrqCfg::new();
        cfg.set_rcq_size(rcq_size);
        let srq = Srq::new(&peer, &cfg)?;
        echo(&peer, 2, Some(&srq))?;
    }
    Ok(())
}

/// Sends messages over each of `conns` in turn, and sees them come back inverted.
fn send_messages(peer: &Peer, conns: &[Conn], receive: &Mr<Vec<u8>>, srq: Option<&Srq>) -> Result {
    let source = region(peer, MESSAGE_MAX, MrUsage::SEND)?;
    let landing = receive.slice(..)?;
    for (i, len) in MESSAGES.into_iter().enumerate() {
        for conn in conns {
            let rcq = srq.and_then(Srq::get_rcq);
            let queues: Vec<&Cq> = [conn.get_cq()].into_iter().chain(rcq).collect();
            let bytes = pattern(len, i as u64 + 1);
            source.write_at(0, &bytes)?;
            let local = match len {
                0 => MrSlice::EMPTY,
                _ => source.slice(..len)?,
            };
            conn.send(local, Flags::COMPLETION_ALWAYS, 8)?;
            let mut wcs = [next(&queues), next(&queues)];
            wcs.sort_by_key(Wc::wr_id);
            succeeded(wcs[0], 7, WcOpcode::RECV)?;
            succeeded(wcs[1], 8, WcOpcode::SEND)?;
            let received = wcs[0].result()?.byte_len();
            assert_eq!(received, Some(len as u32));
            assert_eq!(wcs[0].qp_num(), conn.get_qp_num());
            assert!(contents(receive)?[..len] == invert(bytes));
            post_receive(conn, srq, landing)?;
        }
    }
    Ok(())
}

#[test]
fn messages_to_a_c_server() -> Result {
    let (_test, peer) = begin()?;
    let receive = region(&peer, MESSAGE_MAX, MrUsage::RECV)?;
    let landing = receive.slice(..)?;
    let (server, port) = server(&["echo", "1"]);
    let conns = [connect(&peer, port, &ConnCfg::new(), &[], &[(landing, 7)])?];
    send_messages(&peer, &conns, &receive, None)?;
    conns.into_iter().for_each(disconnect);
    server.done();
    Ok(())
}

/// The clients share a receive queue here, and the server's connections share one there.
#[test]
fn messages_of_two_clients_into_the_shared_queue_of_a_c_server() -> Result {
    let (_test, peer) = begin()?;
    for rcq_size in [0, 20] {
        let mut srq_cfg = SrqCfg::new();
        srq_cfg.set_rcq_size(rcq_size);
        let srq = Srq::new(&peer, &srq_cfg)?;
        let receive = region(&peer, MESSAGE_MAX, MrUsage::RECV)?;
        srq.recv(receive.slice(..)?, 7)?;
        let mut cfg = ConnCfg::new();
        cfg.set_srq(Some(&srq));
        let (server, port) = server(&["echo", "2"]);
        let conns = [(); 2].map(|()| connect(&peer, port, &cfg, &[], &[]).expect("resolves"));
        send_messages(&peer, &conns, &receive, Some(&srq))?;
        conns.into_iter().for_each(disconnect);
        server.done();
    }
    Ok(())
}

/// The memory after a write with immediate data of 100 bytes to offset 64.
fn with_imm(mut bytes: Vec<u8>, seed: u64) -> Vec<u8> {
    bytes[64..164].copy_from_slice(&pattern(100, seed));
    bytes
}

/// A receive with immediate data, in the words of the C programs.
fn imm(wc: Wc) -> Result<String> {
    let success = wc.result()?;
    let len = success.byte_len().or(success.written_len());
    let (len, imm) = (len.ok_or("of a receive")?, success.imm_data());
    let (opcode, imm) = (success.opcode().0, imm.ok_or("immediate data")?);
    Ok(format!("imm {opcode} {len} {imm:08x}"))
}

/// Settings with a completion queue for receives.
fn with_rcq() -> ConnCfg {
    let mut cfg = ConnCfg::new();
    cfg.set_rcq_size(10);
    cfg
}

/// Waits for receives with immediate data, which are these.
fn receives_imm(conn: &Conn, all: &[&str]) -> Result {
    let rcq = conn.get_rcq().ok_or("one was asked for")?;
    for (number, expected) in (1..).zip(all) {
        let wc = next(&[rcq]);
        assert_eq!((wc.wr_id(), &*imm(wc)?), (number, *expected));
    }
    Ok(())
}

const IMM_OF_CLIENT: [&str; 3] = [
    "imm 128 8 01020304",
    "imm 129 100 fffefdfc",
    "imm 129 0 00000007",
];
const IMM_OF_SERVER: [&str; 2] = ["imm 128 8 05060708", "imm 129 100 80000001"];

fn is_imm(line: &&String) -> bool {
    line.starts_with("imm ")
}

#[test]
fn immediate_data_with_a_c_client() -> Result {
    let (_test, peer) = begin()?;
    let all = MrUsage::all() - MrUsage::FLUSH_TYPE_PERSISTENT;
    let shared = filled(&peer, all)?;
    let message = region(&peer, 8, MrUsage::RECV)?;
    let (message_to, empty) = (message.slice(..)?, MrSlice::EMPTY);
    let receives = [(message_to, 1), (empty, 2), (empty, 3)];
    let ep = listen(&peer)?;
    let client = client(&ep, &["imm"]);
    let req = request(&ep, &with_rcq())?;
    let conn = establish(req, &offer(&shared, false), &receives)?;
    receives_imm(&conn, &IMM_OF_CLIENT)?;
    assert_eq!(contents(&message)?, pattern(100, 3)[..8]);
    assert!(contents(&shared)? == with_imm(pattern(SHARED, 5), 3));

    let source = Mr::reg(&peer, pattern(100, 4), all)?;
    let (part, whole) = (source.slice(..8)?, source.slice(..)?);
    conn.send_with_imm(part, Flags::COMPLETION_ALWAYS, 0x0506_0708, 1)?;
    succeeded(completion(&conn)?, 1, WcOpcode::SEND)?;
    let remote = slice(&take_offer(&conn)?, 64, 100)?;
    conn.write_with_imm(remote, whole, Flags::COMPLETION_ALWAYS, 0x8000_0001, 2)?;
    succeeded(completion(&conn)?, 2, WcOpcode::RDMA_WRITE)?;
    finish(conn);
    let lines = client.done();
    assert!(lines.iter().filter(is_imm).eq(&IMM_OF_SERVER), "{lines:?}");
    Ok(())
}

#[test]
fn immediate_data_with_a_c_server() -> Result {
    let (_test, peer) = begin()?;
    let all = MrUsage::all() - MrUsage::FLUSH_TYPE_PERSISTENT;
    let shared = filled(&peer, all)?;
    let message = region(&peer, 8, MrUsage::RECV)?;
    let receives = [(message.slice(..)?, 1), (MrSlice::EMPTY, 2)];
    let (server, port) = server(&["imm"]);
    let conn = connect(&peer, port, &with_rcq(), &offer(&shared, false), &receives)?;
    let remote = take_offer(&conn)?;
    let source = Mr::reg(&peer, pattern(100, 3), all)?;
    let (part, whole) = (source.slice(..8)?, source.slice(..)?);
    let flags = Flags::COMPLETION_ALWAYS;
    conn.send_with_imm(part, flags, 0x0102_0304, 1)?;
    conn.write_with_imm(slice(&remote, 64, 100)?, whole, flags, 0xfffe_fdfc, 2)?;
    conn.write_with_imm(RemoteSlice::EMPTY, MrSlice::EMPTY, flags, 7, 3)?;
    let wcs = completions(&conn, 3)?;
    succeeded(wcs[0], 1, WcOpcode::SEND)?;
    succeeded(wcs[1], 2, WcOpcode::RDMA_WRITE)?;
    succeeded(wcs[2], 3, WcOpcode::RDMA_WRITE)?;
    receives_imm(&conn, &IMM_OF_SERVER)?;
    assert_eq!(contents(&message)?, pattern(100, 4)[..8]);
    assert!(contents(&shared)? == with_imm(pattern(SHARED, 5), 4));
    disconnect(conn);
    let lines = server.done();
    assert!(lines.iter().filter(is_imm).eq(&IMM_OF_CLIENT), "{lines:?}");
    assert_eq!(unhex(find(&lines, "message")), pattern(100, 3)[..8]);
    assert!(unhex(find(&lines, "memory")) == with_imm(vec![0; SHARED], 3));
    Ok(())
}
