//! Private data of every length, in requests, answers and rejects.

use rpma::{Conn, ConnCfg, ConnEvent, ConnReq};

use super::super::bench::Bench;
use super::Case;
use crate::bytes::pattern;
use crate::client::{InStep, Result, failed};
use crate::wire::{Answers, Asks, Expect};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "private-data-accept",
        "requests of 0 to 56 bytes, answers of 0 to 196",
        accept,
    )
    .within(60),
    Case::new("private-data-reject", "rejects of 0 to 148 bytes", reject).within(60),
];

/// The most bytes of private data that InfiniBand and RoCE carry in each message.
const REQUEST: u32 = 56;
const ANSWER: u32 = 196;
const REJECT: u32 = 148;
/// The number of these connections: each takes the place of the one before.
const LINE: u32 = u32::MAX;

fn accept(bench: &mut Bench) -> Result<String> {
    for len in 0..=ANSWER {
        let answers = Answers::Accept {
            len,
            seed: u64::from(len),
        };
        let step = || {
            format!(
                "a request of {} bytes, an answer of {len}",
                request_len(len)
            )
        };
        let (conn, event) = ask(bench, request_len(len), answers).step(step)?;
        match event {
            ConnEvent::Established => compare(conn.get_private_data(), len).step(step)?,
            event => return Err(bench.not_established(LINE, &event)).step(step),
        }
    }
    Ok(format!("{} connections", ANSWER + 1))
}

fn reject(bench: &mut Bench) -> Result<String> {
    let mut lost = 0;
    for len in 0..=REJECT {
        let step = || format!("a reject of {len} bytes");
        let mut left = tries(bench);
        let data = loop {
            left -= 1;
            let data = rejected(bench, len).step(step)?;
            if left == 0 || len == 0 || !data.is_empty() {
                break data;
            }
            lost += 1;
        };
        compare(&data, len).step(step)?;
    }
    let rejects = format!("{} rejects", REJECT + 1);
    Ok(match lost {
        0 => rejects,
        lost => format!("{rejects}; {lost} more came without their private data"),
    })
}

/// soft-iWARP loses the private data of a reject if it sees the end of the stream first
/// (`SIW_CM_WORK_PEER_CLOSE` in `siw_cm.c`). Others come whole.
fn tries(bench: &Bench) -> u32 {
    if bench.peer.is_iwarp() { 10 } else { 1 }
}

/// The private data of a reject.
fn rejected(bench: &mut Bench, len: u32) -> Result<Box<[u8]>> {
    let answers = Answers::Reject {
        len,
        seed: u64::from(len),
    };
    match ask(bench, request_len(len), answers)?.1 {
        ConnEvent::Rejected { private_data, .. } => Ok(private_data),
        event => failed(format!("{event}, instead of a reject")),
    }
}

/// Each length of a request comes several times.
fn request_len(len: u32) -> u32 {
    len % (REQUEST + 1)
}

/// Asks for a connection with so many bytes. The server compares them.
fn ask(bench: &mut Bench, len: u32, answers: Answers) -> Result<(Conn, ConnEvent)> {
    let seed = u64::from(len) + 1;
    bench.expect(Expect {
        line: LINE,
        asks: Asks::Bytes { len, seed },
        answers,
        fallback: false,
        keep_alive_ms: None,
        receives: (0, 0),
        refills: false,
        watch: None,
    })?;
    let req = ConnReq::to_addr(&bench.peer, bench.addr, &ConnCfg::new())?;
    let asked = req.connect(&pattern(seed, len as usize));
    let conn = asked.map_err(rpma::Error::from)?;
    let event = bench.clock.established_or_end(&conn)?;
    Ok((conn, event))
}

/// The bytes, and zeros up to the transport's length.
fn compare(found: &[u8], len: u32) -> Result {
    let mut expected = pattern(u64::from(len), len as usize);
    expected.resize(found.len().max(len as usize), 0);
    if found == expected {
        Ok(())
    } else {
        failed(format!(
            "this side got {} bytes of private data, and not those of the server and zeros",
            found.len()
        ))
    }
}
