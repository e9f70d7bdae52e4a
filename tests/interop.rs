//! Interoperability with the C library: its programs talk to this one, which plays the client and the
//! server, in each kind of operation and with each descriptor.
//!
//! The C programs (`tests/interop/*.c`) are compiled here and linked with the installed librpma, which
//! has native flush and native atomic write. They tell what they find, and it is judged here.

mod common;

use std::time::Instant;

use common::program::{Program, find, free_port, hex, unhex};
use common::{
    LIMIT, addr, completion, completions, contents, devdax, device_test, event, pattern, peer,
    region,
};
use rpma::pmem::PmemMap;
use rpma::{
    Conn, ConnCfg, ConnEvent, ConnReq, Cq, Ep, Error, Flags, FlushType, Mr, MrRemote, MrSlice,
    MrUsage, Peer, PeerCfg, RegisterableMemory, RejectReason, RemoteSlice, Srq, SrqCfg, Wc,
    WcOpcode, WcStatus,
};

/// How much memory each side offers to the other.
const SHARED: usize = 8192;
/// Where the writes and reads of the tests go, and how long they are; `client.c` has the same.
const PARTS: [(usize, usize); 5] = [(13, 1), (20, 7), (40, 8), (64, 1000), (2000, 4096)];
/// How long the messages are; `client.c` has the same.
const MESSAGES: [usize; 5] = [1, 8, 1000, 4096, 0];
const MESSAGE_MAX: usize = 4096;

/// A client that connects to `ep`.
fn client(ep: &Ep, operation: &[&str]) -> Program {
    let (addr, port) = (addr(), ep.get_port().to_string());
    Program::c(
        "tests/interop/client",
        &[&[&*addr, &*port], operation].concat(),
    )
}

/// A server, once it listens, and its port.
fn server(operation: &[&str]) -> (Program, u16) {
    let port = free_port(&addr());
    let (addr, name) = (addr(), port.to_string());
    let args = [&[&*addr, &*name], operation].concat();
    (Program::c("tests/interop/server", &args).listening(), port)
}

/// What `offer` of `interop.h` is: the descriptor of a region and of its platform.
fn offer<M>(mr: &Mr<M>, direct_write: bool) -> Vec<u8> {
    let mut cfg = PeerCfg::new();
    cfg.set_direct_write_to_pmem(direct_write);
    [&mr.get_descriptor()[..], &cfg.get_descriptor()].concat()
}

/// Takes the other side's offer.
fn take_offer(conn: &Conn) -> MrRemote {
    let data = conn.get_private_data();
    let (mr, cfg) = data.split_at(21);
    conn.apply_remote_peer_cfg(&PeerCfg::from_descriptor(cfg).expect("a valid descriptor"));
    MrRemote::from_descriptor(mr).expect("a valid descriptor")
}

fn listen(peer: &Peer) -> Ep {
    Ep::listen(peer, &addr(), 0).expect("listens")
}

fn request(ep: &Ep, cfg: &ConnCfg) -> ConnReq {
    ep.next_conn_req_timeout(cfg, LIMIT).expect("a request")
}

/// Connects to a C server, with `receives` posted before.
fn connect(
    peer: &Peer,
    port: u16,
    cfg: &ConnCfg,
    data: &[u8],
    receives: &[(MrSlice<'_>, u64)],
) -> Conn {
    let req = ConnReq::new(peer, &addr(), port, cfg).expect("resolves");
    establish(req, data, receives)
}

fn establish(req: ConnReq, data: &[u8], receives: &[(MrSlice<'_>, u64)]) -> Conn {
    for (dst, op_context) in receives {
        req.recv(*dst, *op_context).expect("posted");
    }
    let conn = req.connect(data).expect("asks or accepts");
    assert_eq!(event(&conn), ConnEvent::Established);
    conn
}

/// Disconnects from a program that waits for that.
fn disconnect(conn: Conn) {
    conn.disconnect().expect("disconnects");
    assert_eq!(event(&conn), ConnEvent::Closed);
    conn.delete().expect("everything is freed");
}

/// Waits for the other side to disconnect.
fn finish(conn: Conn) {
    assert_eq!(event(&conn), ConnEvent::Closed);
    conn.disconnect().expect("disconnects");
    conn.delete().expect("everything is freed");
}

/// Lets a C client do `operation` on `target`, and returns what it told.
fn serve<M>(
    peer: &Peer,
    cfg: &ConnCfg,
    target: &Mr<M>,
    direct_write: bool,
    operation: &[&str],
) -> Vec<String> {
    let ep = listen(peer);
    let client = client(&ep, operation);
    let conn = establish(request(&ep, cfg), &offer(target, direct_write), &[]);
    finish(conn);
    client.done()
}

/// Memory to offer, filled as that of the C server.
fn filled(peer: &Peer, usage: MrUsage) -> Mr<Vec<u8>> {
    Mr::reg(peer, pattern(SHARED, 5), usage).expect("registers")
}

/// What is in the memory after `PARTS` were written.
fn written() -> Vec<u8> {
    let mut bytes = pattern(SHARED, 5);
    for (i, (at, len)) in PARTS.into_iter().enumerate() {
        bytes[at..at + len].copy_from_slice(&pattern(len, i as u64 + 1));
    }
    bytes
}

fn slice(mr: &MrRemote, at: usize, len: usize) -> RemoteSlice {
    mr.slice(at as u64..(at + len) as u64).expect("inside")
}

fn succeeded(wc: Wc, wr_id: u64, opcode: WcOpcode) {
    assert_eq!(wc.wr_id(), wr_id);
    assert_eq!(wc.result().expect("succeeds").opcode(), opcode);
}

/// Both ways to flush and to write atomically.
fn configurations() -> [ConnCfg; 2] {
    let mut fallback = ConnCfg::new();
    fallback.set_force_fallback(true);
    [ConnCfg::new(), fallback]
}

#[test]
fn descriptors_are_the_same_on_both_sides() {
    device_test(|| {
        let peer = peer();
        let (mut regions, mut descriptors, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for bits in 1..=u8::MAX {
            let usage = MrUsage::from_bits_retain(bits);
            if usage.contains(MrUsage::FLUSH_TYPE_PERSISTENT) {
                continue;
            }
            let mr = region(&peer, usize::from(bits), usage);
            descriptors.push(hex(&mr.get_descriptor()));
            expected.push(format!("remote {bits} {}", bits & 0x30));
            regions.push(mr);
        }
        let map = PmemMap::open(devdax(), SHARED).expect("maps");
        let persistent = Mr::reg(&peer, map, MrUsage::all()).expect("registers");
        descriptors.push(hex(&persistent.get_descriptor()));
        expected.push(format!("remote {} {}", persistent.get_size(), 0x30));

        let addr = addr();
        let args: Vec<&str> = [&addr]
            .into_iter()
            .chain(&descriptors)
            .map(String::as_str)
            .collect();
        let lines = Program::c("tests/interop/descriptors", &args).done();
        let (decoded, encoded) = lines.split_at(expected.len());
        assert_eq!(decoded, expected, "the C library reads ours");

        assert_eq!(encoded.len(), 2 * 127, "two lines for each usage");
        for lines in encoded.chunks(2) {
            let numbers: Vec<u64> = find(lines, "mr ")
                .split(' ')
                .map(|number| number.parse().expect("a number"))
                .collect();
            let bytes = unhex(find(lines, "offer "));
            let (usage, ptr, size) = (numbers[0], numbers[1], numbers[2]);
            assert_eq!(bytes[0..8], ptr.to_le_bytes());
            assert_eq!(bytes[8..16], size.to_le_bytes());
            assert_eq!(u64::from(bytes[20]), usage);
            let mr = MrRemote::from_descriptor(&bytes).expect("a valid descriptor");
            assert_eq!(mr.get_size(), size);
            assert_eq!(u64::from(mr.get_usage().bits()), usage);
            let cfg = PeerCfg::from_descriptor(&bytes[21..]).expect("a valid descriptor");
            assert_eq!(cfg.get_direct_write_to_pmem(), usage % 2 == 1);
        }
    });
}

/// The lengths of the question and of the answer.
const PRIVATE_DATA: [(usize, usize); 4] = [(0, 0), (1, 1), (22, 100), (56, 196)];

/// What arrives is the whole field of the transport, padded with zeros.
fn padded(len: usize, seed: u64, field: usize) -> Vec<u8> {
    let mut bytes = pattern(len, seed);
    bytes.resize(field, 0);
    bytes
}

#[test]
fn private_data_of_a_c_client() {
    device_test(|| {
        let peer = peer();
        let ep = listen(&peer);
        for (question, answer) in PRIVATE_DATA {
            let client = client(&ep, &["connect", &question.to_string()]);
            let conn = establish(request(&ep, &ConnCfg::new()), &pattern(answer, 2), &[]);
            assert_eq!(conn.get_private_data(), padded(question, 1, 56));
            finish(conn);
            let lines = client.done();
            assert_eq!(find(&lines, "event "), "Connection established");
            assert_eq!(unhex(find(&lines, "data")), padded(answer, 2, 196));
        }
    });
}

#[test]
fn private_data_of_a_c_server() {
    device_test(|| {
        let peer = peer();
        for (question, answer) in PRIVATE_DATA {
            let (server, port) = server(&["connect", &answer.to_string()]);
            let conn = connect(&peer, port, &ConnCfg::new(), &pattern(question, 1), &[]);
            assert_eq!(conn.get_private_data(), padded(answer, 2, 196));
            disconnect(conn);
            assert_eq!(unhex(find(&server.done(), "data")), padded(question, 1, 56));
        }
    });
}

#[test]
fn c_writes() {
    device_test(|| {
        let peer = peer();
        let target = filled(&peer, MrUsage::WRITE_DST);
        serve(&peer, &ConnCfg::new(), &target, false, &["write"]);
        assert!(contents(&target) == written());
    });
}

#[test]
fn c_reads() {
    device_test(|| {
        let peer = peer();
        let target = filled(&peer, MrUsage::READ_SRC);
        // The client compares.
        serve(&peer, &ConnCfg::new(), &target, false, &["read"]);
    });
}

/// Writes `PARTS` and calls `after` behind each of them.
fn write_parts(peer: &Peer, conn: &Conn, remote: &MrRemote, after: impl Fn(RemoteSlice)) {
    let source = region(peer, SHARED, MrUsage::WRITE_SRC);
    for (i, (at, len)) in PARTS.into_iter().enumerate() {
        source
            .write_at(0, &pattern(len, i as u64 + 1))
            .expect("inside");
        let (local, part) = (source.slice(..len).expect("inside"), slice(remote, at, len));
        conn.write(part, local, Flags::COMPLETION_ALWAYS, i as u64)
            .expect("posted");
        succeeded(completion(conn), i as u64, WcOpcode::RDMA_WRITE);
        after(part);
    }
}

#[test]
fn rust_writes() {
    device_test(|| {
        let peer = peer();
        let usage = MrUsage::WRITE_DST.bits().to_string();
        let (server, port) = server(&["expose", &usage]);
        let conn = connect(&peer, port, &ConnCfg::new(), &[], &[]);
        write_parts(&peer, &conn, &take_offer(&conn), |_| {});
        disconnect(conn);
        assert!(unhex(find(&server.done(), "memory")) == written());
    });
}

#[test]
fn rust_reads() {
    device_test(|| {
        let peer = peer();
        let usage = MrUsage::READ_SRC.bits().to_string();
        let (server, port) = server(&["expose", &usage]);
        let conn = connect(&peer, port, &ConnCfg::new(), &[], &[]);
        let remote = take_offer(&conn);
        let target = region(&peer, SHARED, MrUsage::READ_DST);
        for (i, (at, len)) in PARTS.into_iter().enumerate() {
            let local = target.slice(at..at + len).expect("inside");
            let part = slice(&remote, at, len);
            conn.read(local, part, Flags::COMPLETION_ALWAYS, i as u64)
                .expect("posted");
            succeeded(completion(&conn), i as u64, WcOpcode::RDMA_READ);
            assert!(contents(&target)[at..at + len] == pattern(SHARED, 5)[at..at + len]);
        }
        disconnect(conn);
        server.done();
    });
}

/// The C library flushes natively. A region that was registered for that serves it; one that was not,
/// because this library was built with an rdma-core that has no native flush, refuses it. How this side's
/// own operations are done makes no difference.
fn c_flushes<M: RegisterableMemory>(peer: &Peer, target: &Mr<M>, flush_type: &str) {
    for cfg in configurations() {
        target.write_at(0, &pattern(SHARED, 5)).expect("inside");
        let lines = serve(peer, &cfg, target, true, &["flush", flush_type]);
        let results: Vec<&String> = lines
            .iter()
            .filter(|line| !line.starts_with("event"))
            .collect();
        let mut there = vec![0; SHARED];
        target.read_at(0, &mut there).expect("inside");
        if cfg!(native_flush) {
            assert_eq!(results, [&format!("flushed {}", WcOpcode::FLUSH.0); 5]);
            assert!(there == written());
        } else {
            assert_eq!(results, [&format!("failed {}", WcStatus::REM_ACCESS_ERR.0)]);
            let (at, len) = PARTS[0];
            assert!(
                there[at..at + len] == written()[at..at + len],
                "the write is done"
            );
        }
    }
}

#[test]
fn c_flushes_for_visibility() {
    device_test(|| {
        let peer = peer();
        let target = filled(&peer, MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY);
        c_flushes(&peer, &target, "1");
    });
}

#[test]
fn c_flushes_for_persistence() {
    device_test(|| {
        let peer = peer();
        let map = PmemMap::open(devdax(), SHARED).expect("maps");
        let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
        let target = Mr::reg(&peer, map, usage).expect("registers");
        c_flushes(&peer, &target, "0");
    });
}

/// Flushes memory of a C server that was registered for `usage`.
///
/// The C library registers for its native flush without the right to read (W-10). So the fallback,
/// which reads, is refused, unless the C program adds `RPMA_MR_USAGE_READ_SRC`.
fn rust_flushes(usage: MrUsage, path: Option<&str>, flush_type: FlushType) {
    let peer = peer();
    for cfg in configurations() {
        let native = peer.is_native_flush_capable() && !cfg.get_force_fallback();
        let usage_bits = usage.bits().to_string();
        let operation: Vec<&str> = ["expose", &usage_bits].into_iter().chain(path).collect();
        let (server, port) = server(&operation);
        let conn = connect(&peer, port, &cfg, &[], &[]);
        assert_eq!(conn.has_native_flush(), native);
        let remote = take_offer(&conn);
        if native || usage.contains(MrUsage::READ_SRC) {
            let opcode = match native {
                true => WcOpcode::FLUSH,
                false => WcOpcode::RDMA_READ,
            };
            write_parts(&peer, &conn, &remote, |part| {
                conn.flush(part, flush_type, Flags::COMPLETION_ALWAYS, 100)
                    .expect("posted");
                succeeded(completion(&conn), 100, opcode);
            });
            disconnect(conn);
            assert!(unhex(find(&server.done(), "memory")) == written());
        } else {
            let part = slice(&remote, 0, 8);
            conn.flush(part, flush_type, Flags::COMPLETION_ALWAYS, 100)
                .expect("posted");
            let failure = completion(&conn).result().expect_err("no right to read");
            assert_eq!(failure.status, WcStatus::REM_ACCESS_ERR, "{failure}");
            disconnect(conn);
            server.done();
        }
    }
}

#[test]
fn rust_flushes_for_visibility() {
    device_test(|| {
        let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
        rust_flushes(usage | MrUsage::READ_SRC, None, FlushType::Visibility);
    });
}

#[test]
fn rust_flushes_for_persistence() {
    device_test(|| {
        let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
        let path = Some(devdax());
        rust_flushes(
            usage | MrUsage::READ_SRC,
            path.as_deref(),
            FlushType::Persistent,
        );
    });
}

#[test]
fn a_fallback_flush_of_c_memory_needs_the_right_to_read() {
    device_test(|| {
        let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
        rust_flushes(usage, None, FlushType::Visibility);
        let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
        let path = Some(devdax());
        rust_flushes(usage, path.as_deref(), FlushType::Persistent);
    });
}

/// What is in the memory after the atomic writes.
fn atomically_written() -> Vec<u8> {
    let mut bytes = pattern(SHARED, 5);
    for at in [0, SHARED - 8] {
        bytes[at..at + 8].copy_from_slice(&pattern(8, at as u64 + 1));
    }
    bytes
}

#[test]
fn c_writes_atomically() {
    device_test(|| {
        let peer = peer();
        for cfg in configurations() {
            let target = filled(&peer, MrUsage::WRITE_DST);
            serve(&peer, &cfg, &target, false, &["atomic"]);
            assert!(contents(&target) == atomically_written());
        }
    });
}

#[test]
fn rust_writes_atomically() {
    device_test(|| {
        let peer = peer();
        for cfg in configurations() {
            let usage = MrUsage::WRITE_DST.bits().to_string();
            let (server, port) = server(&["expose", &usage]);
            let conn = connect(&peer, port, &cfg, &[], &[]);
            let remote = take_offer(&conn);
            let opcode = match peer.is_native_atomic_write_capable() && !cfg.get_force_fallback() {
                true => WcOpcode::ATOMIC_WRITE,
                false => WcOpcode::RDMA_WRITE,
            };
            for at in [0, SHARED - 8] {
                let word = pattern(8, at as u64 + 1).try_into().expect("8 bytes");
                let part = slice(&remote, at, 8);
                conn.atomic_write(part, &word, Flags::COMPLETION_ALWAYS, 1)
                    .expect("posted");
                succeeded(completion(&conn), 1, opcode);
            }
            disconnect(conn);
            assert!(unhex(find(&server.done(), "memory")) == atomically_written());
        }
    });
}

/// Waits for the next completion in any of the queues.
fn next(queues: &[&Cq]) -> Wc {
    let start = Instant::now();
    let mut wcs = [Wc::default()];
    while !queues
        .iter()
        .any(|cq| cq.get_wc(&mut wcs).expect("polls") > 0)
    {
        assert!(start.elapsed() < LIMIT, "a completion in time");
        std::thread::yield_now();
    }
    wcs[0]
}

fn invert(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.iter_mut().for_each(|byte| *byte ^= 0xFF);
    bytes
}

/// Sends each message back inverted, until each of the C clients has sent an empty one.
fn echo(peer: &Peer, clients: usize, srq: Option<&Srq>) {
    let incoming = region(peer, MESSAGE_MAX, MrUsage::RECV);
    let receive = incoming.slice(..).expect("all");
    let replies: Vec<_> = (0..clients)
        .map(|_| region(peer, MESSAGE_MAX, MrUsage::SEND))
        .collect();
    let mut cfg = ConnCfg::new();
    cfg.set_srq(srq);
    let before = match srq {
        Some(srq) => {
            srq.recv(receive, 7).expect("posted");
            &[][..]
        }
        None => &[(receive, 7)],
    };
    let ep = listen(peer);
    let (mut programs, mut conns) = (Vec::new(), Vec::new());
    for _ in 0..clients {
        programs.push(client(&ep, &["send"]));
        let data = offer(&incoming, false);
        conns.push(establish(request(&ep, &cfg), &data, before));
    }
    let rcq = srq.and_then(Srq::get_rcq);
    let queues: Vec<&Cq> = conns.iter().map(Conn::get_cq).chain(rcq).collect();
    let mut ended = 0;
    while ended < clients {
        let wc = next(&queues);
        let success = wc.result().expect("succeeds");
        let Some(len) = success.byte_len() else {
            // A reply that was sent.
            continue;
        };
        succeeded(wc, 7, WcOpcode::RECV);
        let from = conns
            .iter()
            .position(|conn| conn.get_qp_num() == wc.qp_num())
            .expect("one of the clients");
        let mut message = contents(&incoming);
        message.truncate(len as usize);
        replies[from].write_at(0, &invert(message)).expect("inside");
        match srq {
            Some(srq) => srq.recv(receive, 7).expect("posted"),
            None => conns[from].recv(receive, 7).expect("posted"),
        }
        let reply = replies[from].slice(..len as usize).expect("inside");
        conns[from]
            .send(reply, Flags::COMPLETION_ALWAYS, 8)
            .expect("posted");
        ended += usize::from(len == 0);
    }
    // Both may have ended, and the first waits for its answer.
    conns.into_iter().for_each(finish);
    for program in programs {
        program.done();
    }
}

#[test]
fn messages_of_a_c_client() {
    device_test(|| echo(&peer(), 1, None));
}

#[test]
fn messages_of_two_c_clients_into_a_shared_queue() {
    device_test(|| {
        let peer = peer();
        for rcq_size in [0, 20] {
            let mut cfg = SrqCfg::new();
            cfg.set_rcq_size(rcq_size);
            let srq = Srq::new(&peer, &cfg).expect("a shared receive queue");
            echo(&peer, 2, Some(&srq));
        }
    });
}

/// Sends messages over each of `conns` in turn, and sees them come back inverted.
fn send_messages(peer: &Peer, conns: &[Conn], receive: &Mr<Vec<u8>>, srq: Option<&Srq>) {
    let source = region(peer, MESSAGE_MAX, MrUsage::SEND);
    let landing = receive.slice(..).expect("all");
    for (i, len) in MESSAGES.into_iter().enumerate() {
        for conn in conns {
            let queues: Vec<&Cq> = [conn.get_cq()]
                .into_iter()
                .chain(srq.and_then(Srq::get_rcq))
                .collect();
            let bytes = pattern(len, i as u64 + 1);
            source.write_at(0, &bytes).expect("inside");
            let local = match len {
                0 => MrSlice::EMPTY,
                _ => source.slice(..len).expect("inside"),
            };
            conn.send(local, Flags::COMPLETION_ALWAYS, 8)
                .expect("posted");
            let mut wcs = [next(&queues), next(&queues)];
            wcs.sort_by_key(Wc::wr_id);
            succeeded(wcs[0], 7, WcOpcode::RECV);
            succeeded(wcs[1], 8, WcOpcode::SEND);
            let received = wcs[0].result().expect("succeeds").byte_len();
            assert_eq!(received, Some(len as u32));
            assert_eq!(wcs[0].qp_num(), conn.get_qp_num());
            assert!(contents(receive)[..len] == invert(bytes));
            match srq {
                Some(srq) => srq.recv(landing, 7).expect("posted"),
                None => conn.recv(landing, 7).expect("posted"),
            }
        }
    }
}

#[test]
fn messages_to_a_c_server() {
    device_test(|| {
        let peer = peer();
        let receive = region(&peer, MESSAGE_MAX, MrUsage::RECV);
        let landing = receive.slice(..).expect("all");
        let (server, port) = server(&["echo", "1"]);
        let conn = connect(&peer, port, &ConnCfg::new(), &[], &[(landing, 7)]);
        let conns = [conn];
        send_messages(&peer, &conns, &receive, None);
        conns.into_iter().for_each(disconnect);
        server.done();
    });
}

/// The clients share a receive queue here, and the server's connections share one there.
#[test]
fn messages_of_two_clients_into_the_shared_queue_of_a_c_server() {
    device_test(|| {
        let peer = peer();
        for rcq_size in [0, 20] {
            let mut srq_cfg = SrqCfg::new();
            srq_cfg.set_rcq_size(rcq_size);
            let srq = Srq::new(&peer, &srq_cfg).expect("a shared receive queue");
            let receive = region(&peer, MESSAGE_MAX, MrUsage::RECV);
            srq.recv(receive.slice(..).expect("all"), 7)
                .expect("posted");
            let mut cfg = ConnCfg::new();
            cfg.set_srq(Some(&srq));
            let (server, port) = server(&["echo", "2"]);
            let conns = [(); 2].map(|()| connect(&peer, port, &cfg, &[], &[]));
            send_messages(&peer, &conns, &receive, Some(&srq));
            conns.into_iter().for_each(disconnect);
            server.done();
        }
    });
}

/// The memory after a write with immediate data of 100 bytes to offset 64.
fn with_imm(before: Vec<u8>, seed: u64) -> Vec<u8> {
    let mut bytes = before;
    bytes[64..164].copy_from_slice(&pattern(100, seed));
    bytes
}

/// A receive with immediate data, as the C programs tell it.
fn imm(wc: Wc) -> String {
    let success = wc.result().expect("succeeds");
    format!(
        "imm {} {} {:08x}",
        success.opcode().0,
        success.byte_len().expect("of a receive"),
        success.imm_data().expect("immediate data")
    )
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
fn immediate_data_with_a_c_client() {
    device_test(|| {
        let peer = peer();
        let all = MrUsage::all() - MrUsage::FLUSH_TYPE_PERSISTENT;
        let shared = filled(&peer, all);
        let message = region(&peer, 8, MrUsage::RECV);
        let receives = [
            (message.slice(..).expect("all"), 1),
            (MrSlice::EMPTY, 2),
            (MrSlice::EMPTY, 3),
        ];
        let ep = listen(&peer);
        let client = client(&ep, &["imm"]);
        let mut cfg = ConnCfg::new();
        cfg.set_rcq_size(10);
        let conn = establish(request(&ep, &cfg), &offer(&shared, false), &receives);
        let rcq = conn.get_rcq().expect("one was asked for");
        for (i, expected) in IMM_OF_CLIENT.into_iter().enumerate() {
            let wc = next(&[rcq]);
            assert_eq!((wc.wr_id(), imm(wc).as_str()), (i as u64 + 1, expected));
        }
        assert_eq!(contents(&message), pattern(100, 3)[..8]);
        assert!(contents(&shared) == with_imm(pattern(SHARED, 5), 3));

        let source = Mr::reg(&peer, pattern(100, 4), all).expect("registers");
        let (part, whole) = (
            source.slice(..8).expect("inside"),
            source.slice(..).expect("all"),
        );
        conn.send_with_imm(part, Flags::COMPLETION_ALWAYS, 0x0506_0708, 1)
            .expect("posted");
        succeeded(completion(&conn), 1, WcOpcode::SEND);
        let remote = slice(&take_offer(&conn), 64, 100);
        conn.write_with_imm(remote, whole, Flags::COMPLETION_ALWAYS, 0x8000_0001, 2)
            .expect("posted");
        succeeded(completion(&conn), 2, WcOpcode::RDMA_WRITE);
        finish(conn);
        let lines = client.done();
        assert!(lines.iter().filter(is_imm).eq(&IMM_OF_SERVER), "{lines:?}");
    });
}

#[test]
fn immediate_data_with_a_c_server() {
    device_test(|| {
        let peer = peer();
        let all = MrUsage::all() - MrUsage::FLUSH_TYPE_PERSISTENT;
        let shared = filled(&peer, all);
        let message = region(&peer, 8, MrUsage::RECV);
        let receives = [(message.slice(..).expect("all"), 1), (MrSlice::EMPTY, 2)];
        let (server, port) = server(&["imm"]);
        let mut cfg = ConnCfg::new();
        cfg.set_rcq_size(10);
        let conn = connect(&peer, port, &cfg, &offer(&shared, false), &receives);
        let remote = take_offer(&conn);
        let source = Mr::reg(&peer, pattern(100, 3), all).expect("registers");
        let (part, whole) = (
            source.slice(..8).expect("inside"),
            source.slice(..).expect("all"),
        );
        let flags = Flags::COMPLETION_ALWAYS;
        conn.send_with_imm(part, flags, 0x0102_0304, 1)
            .expect("posted");
        conn.write_with_imm(slice(&remote, 64, 100), whole, flags, 0xfffe_fdfc, 2)
            .expect("posted");
        conn.write_with_imm(RemoteSlice::EMPTY, MrSlice::EMPTY, flags, 7, 3)
            .expect("posted");
        let wcs = completions(&conn, 3);
        succeeded(wcs[0], 1, WcOpcode::SEND);
        succeeded(wcs[1], 2, WcOpcode::RDMA_WRITE);
        succeeded(wcs[2], 3, WcOpcode::RDMA_WRITE);
        let rcq = conn.get_rcq().expect("one was asked for");
        for (i, expected) in IMM_OF_SERVER.into_iter().enumerate() {
            let wc = next(&[rcq]);
            assert_eq!((wc.wr_id(), imm(wc).as_str()), (i as u64 + 1, expected));
        }
        assert_eq!(contents(&message), pattern(100, 4)[..8]);
        assert!(contents(&shared) == with_imm(pattern(SHARED, 5), 4));
        disconnect(conn);
        let lines = server.done();
        assert!(lines.iter().filter(is_imm).eq(&IMM_OF_CLIENT), "{lines:?}");
        assert_eq!(unhex(find(&lines, "message")), pattern(100, 3)[..8]);
        assert!(unhex(find(&lines, "memory")) == with_imm(vec![0; SHARED], 3));
    });
}

#[test]
fn a_c_server_rejects() {
    device_test(|| {
        let peer = peer();
        let (server, port) = server(&["reject"]);
        let req = ConnReq::new(&peer, &addr(), port, &ConnCfg::new()).expect("resolves");
        let conn = req.connect(&[]).expect("asks");
        match event(&conn) {
            ConnEvent::Rejected { reason, .. } => assert_eq!(reason, RejectReason::CONSUMER),
            other => panic!("{other:?}"),
        }
        server.done();
    });
}

#[test]
fn a_c_client_is_rejected() {
    device_test(|| {
        let peer = peer();
        let ep = listen(&peer);
        for reason in [None, Some(b"not today")] {
            let client = client(&ep, &["connect", "3"]);
            let req = request(&ep, &ConnCfg::new());
            match reason {
                Some(reason) => req.reject(reason).expect("rejects"),
                None => drop(req),
            }
            assert_eq!(find(&client.done(), "event "), "Connection rejected");
        }
    });
}

/// No verb refuses that much inline data before the request was taken, so this fails in the middle.
#[test]
fn a_c_client_whose_queues_cannot_be_made_is_rejected() {
    device_test(|| {
        let peer = peer();
        let ep = listen(&peer);
        let client = client(&ep, &["connect", "3"]);
        let mut cfg = ConnCfg::new();
        cfg.set_max_inline_data(1 << 30);
        let error = ep
            .next_conn_req_timeout(&cfg, LIMIT)
            .expect_err("no device has that");
        assert!(matches!(error, Error::Provider { .. }), "{error:?}");
        assert_eq!(find(&client.done(), "event "), "Connection rejected");
    });
}

/// librpma reports `CLOSED` twice, the second time for the end of the time-wait state (W-4).
#[test]
fn a_c_server_closes() {
    device_test(|| {
        let peer = peer();
        for (times, how) in [("2", "disconnects"), ("0", "deletes its connection")] {
            let (server, port) = server(&["close", times]);
            let conn = connect(&peer, port, &ConnCfg::new(), &[], &[]);
            assert_eq!(event(&conn), ConnEvent::Closed, "it {how}");
            conn.disconnect().expect("disconnects");
            if times == "2" {
                assert_eq!(event(&conn), ConnEvent::TimewaitExit);
            }
            let lines = server.done();
            let closed = lines
                .iter()
                .filter(|line| *line == "event Connection closed");
            assert_eq!(closed.count().to_string(), times);
        }
    });
}

/// `close` waits for what was posted, and a C server sees nothing but an end.
#[test]
fn closing_towards_a_c_server_loses_nothing() {
    device_test(|| {
        let peer = peer();
        let usage = MrUsage::WRITE_DST.bits().to_string();
        let (server, port) = server(&["expose", &usage]);
        let mut cfg = ConnCfg::new();
        cfg.set_sq_size(SHARED as u32 / 64 + 1);
        let conn = connect(&peer, port, &cfg, &[], &[]);
        let remote = take_offer(&conn);
        let bytes = pattern(SHARED, 9);
        let source = Mr::reg(&peer, bytes.clone(), MrUsage::WRITE_SRC).expect("registers");
        for at in (0..SHARED).step_by(64) {
            let local = source.slice(at..at + 64).expect("inside");
            conn.write(slice(&remote, at, 64), local, Flags::COMPLETION_ON_ERROR, 1)
                .expect("posted");
        }
        let rest = conn.close(LIMIT).expect("everything is acknowledged");
        assert!(rest.is_empty(), "{rest:?}");
        assert!(unhex(find(&server.done(), "memory")) == bytes);
    });
}
