//! Private data of every length, in requests, answers and rejects.

use rpma::{ConnCfg, ConnEvent, ConnReq};

use super::super::bench::Bench;
use super::Group;
use crate::bytes::pattern;
use crate::client::{InStep, Result, failed, plain};
use crate::wire::{Answers, Asks, Expect};

pub(super) const GROUP: Group = Group {
    name: "private-data",
    about: "private data of each length, in requests, answers and rejects",
    cases: &[
        ("accept", |bench| {
            each_length(bench, 196, |len, seed| Answers::Accept { len, seed })
        }),
        ("reject", |bench| {
            each_length(bench, 148, |len, seed| Answers::Reject { len, seed })
        }),
    ],
};

/// The most bytes of private data that InfiniBand and RoCE carry in a request. An answer has 196, and
/// a reject 148.
const REQUEST: u32 = 56;
/// The number of these connections: each takes the place of the one before.
const LINE: u32 = u32::MAX;

/// Answers with private data of each length, up to the most.
fn each_length(bench: &mut Bench, most: u32, answer: fn(u32, u64) -> Answers) -> Result<String> {
    // soft-iWARP loses the private data of a reject if it sees the end of the stream first
    // (`SIW_CM_WORK_PEER_CLOSE` in `siw_cm.c`). Others come whole.
    let can_be_lost = bench.peer.is_iwarp() && matches!(answer(0, 0), Answers::Reject { .. });
    let tries = if can_be_lost { 10 } else { 1 };
    let mut lost = 0;
    for len in 0..=most {
        // Each length of a request comes several times.
        let asked = len % (REQUEST + 1);
        let step = || format!("a request of {asked} bytes, an answer of {len}");
        let answer = answer(len, len.into());
        let mut data = ask(bench, asked, answer).step(step)?;
        for _ in 1..tries {
            if len == 0 || !data.is_empty() {
                break;
            }
            lost += 1;
            data = ask(bench, asked, answer).step(step)?;
        }
        compare(&data, len).step(step)?;
    }
    let connections = format!("{} connections", most + 1);
    Ok(match lost {
        0 => connections,
        lost => format!("{connections}; {lost} more came without their private data"),
    })
}

/// Asks for a connection with so many bytes, which the server compares. Returns those of its answer.
fn ask(bench: &mut Bench, len: u32, answers: Answers) -> Result<Vec<u8>> {
    let seed = u64::from(len) + 1;
    bench.expect(Expect {
        asks: Asks::Bytes { len, seed },
        answers,
        ..plain(LINE, false)
    })?;
    let req = ConnReq::to_addr(&bench.peer, bench.addr, &ConnCfg::new())?;
    let conn = req.connect(&pattern(seed, len as usize))?;
    match (bench.clock.established_or_end(&conn)?, answers) {
        (ConnEvent::Established, Answers::Accept { .. }) => Ok(conn.get_private_data().into()),
        (ConnEvent::Rejected { private_data, .. }, Answers::Reject { .. }) => {
            Ok(private_data.into())
        }
        (event, _) => Err(bench.not_established(LINE, &event)),
    }
}

/// The bytes, and zeros up to the transport's length.
fn compare(found: &[u8], len: u32) -> Result {
    let mut expected = pattern(u64::from(len), len as usize);
    expected.resize(found.len().max(len as usize), 0);
    match found == expected {
        true => Ok(()),
        false => failed(format!(
            "this side got {} bytes of private data, and not those of the server and zeros",
            found.len()
        )),
    }
}
