//! Descriptors, private data, and how connections are refused and closed.

use crate::common::program::{Program, hex, words};
use crate::interop::prelude::*;

#[test]
fn descriptors_are_the_same_on_both_sides() -> Result {
    let (_test, peer) = begin()?;
    let (mut regions, mut descriptors, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for bits in 1..=u8::MAX {
        let usage = MrUsage::from_bits_retain(bits);
        if usage.contains(MrUsage::FLUSH_TYPE_PERSISTENT) {
            continue;
        }
        let mr = region(&peer, usize::from(bits), usage)?;
        descriptors.push(hex(&mr.get_descriptor()));
        expected.push(format!("remote {bits} {}", bits & 0x30));
        regions.push(mr);
    }
    let map = PmemMap::open(devdax(), SHARED)?;
    let persistent = Mr::reg(&peer, map, MrUsage::all())?;
    descriptors.push(hex(&persistent.get_descriptor()));
    expected.push(format!("remote {} {}", persistent.get_size(), 0x30));

    let addr = addr();
    let args = [&[&*addr], &words(&descriptors)[..]].concat();
    let lines = Program::c("tests/programs/interop/descriptors", &args).done();
    let (decoded, encoded) = lines.split_at(expected.len());
    assert_eq!(decoded, expected, "the C library reads ours");

    assert_eq!(encoded.len(), 2 * 127, "two lines for each usage");
    for lines in encoded.chunks(2) {
        let numbers = find(lines, "mr ").split(' ').map(str::parse);
        let numbers: Vec<u64> = numbers.collect::<Result<_, _>>()?;
        let bytes = unhex(find(lines, "offer "));
        let (usage, ptr, size) = (numbers[0], numbers[1], numbers[2]);
        assert_eq!(bytes[0..8], ptr.to_le_bytes());
        assert_eq!(bytes[8..16], size.to_le_bytes());
        assert_eq!(u64::from(bytes[20]), usage);
        let mr = MrRemote::from_descriptor(&bytes)?;
        assert_eq!(mr.get_size(), size);
        assert_eq!(u64::from(mr.get_usage().bits()), usage);
        let cfg = PeerCfg::from_descriptor(&bytes[21..])?;
        assert_eq!(cfg.get_direct_write_to_pmem(), usage % 2 == 1);
    }
    Ok(())
}

/// The lengths of the question and of the answer.
const PRIVATE_DATA: [(usize, usize); 4] = [(0, 0), (1, 1), (22, 100), (56, 196)];

/// The whole field of the transport arrives, padded with zeros.
fn padded(len: usize, seed: u64, field: usize) -> Vec<u8> {
    let mut bytes = pattern(len, seed);
    bytes.resize(field, 0);
    bytes
}

#[test]
fn private_data_of_a_c_client() -> Result {
    let (_test, peer) = begin()?;
    let ep = listen(&peer)?;
    for (question, answer) in PRIVATE_DATA {
        let client = client(&ep, &["connect", &question.to_string()]);
        let conn = establish(request(&ep, &ConnCfg::new())?, &pattern(answer, 2), &[])?;
        assert_eq!(conn.get_private_data(), padded(question, 1, 56));
        finish(conn);
        let lines = client.done();
        assert_eq!(find(&lines, "event "), "Connection established");
        assert_eq!(unhex(find(&lines, "data")), padded(answer, 2, 196));
    }
    Ok(())
}

#[test]
fn private_data_of_a_c_server() -> Result {
    let (_test, peer) = begin()?;
    for (question, answer) in PRIVATE_DATA {
        let (server, port) = server(&["connect", &answer.to_string()]);
        let conn = connect(&peer, port, &ConnCfg::new(), &pattern(question, 1), &[])?;
        assert_eq!(conn.get_private_data(), padded(answer, 2, 196));
        disconnect(conn);
        assert_eq!(unhex(find(&server.done(), "data")), padded(question, 1, 56));
    }
    Ok(())
}

#[test]
fn a_c_server_rejects() -> Result {
    let (_test, peer) = begin()?;
    let (server, port) = server(&["reject"]);
    let req = ConnReq::new(&peer, &addr(), port, &ConnCfg::new())?;
    let conn = req.connect(&[])?;
    let ConnEvent::Rejected { reason, .. } = event(&conn)? else {
        panic!("it rejects");
    };
    assert_eq!(reason, ConnEvent::BY_PROGRAM);
    server.done();
    Ok(())
}

#[test]
fn a_c_client_is_rejected() -> Result {
    let (_test, peer) = begin()?;
    let ep = listen(&peer)?;
    for reason in [None, Some(b"not today")] {
        let client = client(&ep, &["connect", "3"]);
        let req = request(&ep, &ConnCfg::new())?;
        match reason {
            Some(reason) => req.reject(reason)?,
            None => drop(req),
        }
        assert_eq!(find(&client.done(), "event "), "Connection rejected");
    }
    Ok(())
}

/// No verb refuses that much inline data before the request was taken, so this fails in the middle.
#[test]
fn a_c_client_whose_queues_cannot_be_made_is_rejected() -> Result {
    let (_test, peer) = begin()?;
    let ep = listen(&peer)?;
    let client = client(&ep, &["connect", "3"]);
    let mut cfg = ConnCfg::new();
    cfg.set_max_inline_data(1 << 30);
    let req = ep.next_conn_req_timeout(&cfg, LIMIT);
    let error = req.expect_err("no device has that");
    assert!(matches!(error, Error::Provider { .. }), "{error:?}");
    assert_eq!(find(&client.done(), "event "), "Connection rejected");
    Ok(())
}

/// librpma reports `CLOSED` twice, the second time for the end of the time-wait state (W-4).
#[test]
fn a_c_server_closes() -> Result {
    let (_test, peer) = begin()?;
    for (times, how) in [("2", "disconnects"), ("0", "deletes its connection")] {
        let (server, port) = server(&["close", times]);
        let conn = connect(&peer, port, &ConnCfg::new(), &[], &[])?;
        assert_eq!(event(&conn)?, ConnEvent::Closed, "it {how}");
        conn.disconnect()?;
        if times == "2" {
            assert_eq!(event(&conn)?, ConnEvent::TimewaitExit);
        }
        let lines = server.done();
        let is_closed = |line: &&String| *line == "event Connection closed";
        let closed = lines.iter().filter(is_closed);
        assert_eq!(closed.count().to_string(), times);
    }
    Ok(())
}

/// The C library asks for retries without end on soft-RoCE. A server still notices that such a
/// client is gone.
#[test]
fn a_c_client_that_is_killed_is_noticed() -> Result {
    let (_test, peer) = begin()?;
    let ep = listen(&peer)?;
    let mut client = client(&ep, &["connect", "3"]);
    let mut cfg = ConnCfg::new();
    cfg.set_retry_count(1)?;
    cfg.set_ack_timeout(Some(14))?;
    let conn = establish(request(&ep, &cfg)?, &[], &[])?;
    client.wait_for("data");
    client.kill();
    let always = Flags::COMPLETION_ALWAYS;
    conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, always, 1)?;
    let failure = completion(&conn)?.result().expect_err("it is gone");
    assert_eq!(failure.status, WcStatus::RETRY_EXC_ERR, "{failure}");
    assert_eq!(event(&conn)?, ConnEvent::Closed);
    Ok(())
}

/// `close` waits for all posted operations, and a C server sees only an end.
#[test]
fn closing_towards_a_c_server_loses_nothing() -> Result {
    let (_test, peer) = begin()?;
    let mut cfg = ConnCfg::new();
    cfg.set_sq_size(SHARED as u32 / 64 + 1);
    let (server, conn, remote) = exposed(&peer, &cfg, MrUsage::WRITE_DST, None)?;
    let bytes = pattern(SHARED, 9);
    let source = Mr::reg(&peer, bytes.clone(), MrUsage::WRITE_SRC)?;
    for at in (0..SHARED).step_by(64) {
        let (to, from) = (slice(&remote, at, 64)?, source.slice(at..at + 64)?);
        conn.write(to, from, Flags::COMPLETION_ON_ERROR, 1)?;
    }
    let rest = conn.close(LIMIT)?;
    assert!(rest.is_empty(), "{rest:?}");
    assert!(unhex(find(&server.done(), "memory")) == bytes);
    Ok(())
}
