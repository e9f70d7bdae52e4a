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
    for len in 0..=REJECT {
        let answers = Answers::Reject {
            len,
            seed: u64::from(len),
        };
        let step = || format!("a reject of {len} bytes");
        match ask(bench, request_len(len), answers).step(step)?.1 {
            ConnEvent::Rejected { private_data, .. } => compare(&private_data, len).step(step)?,
            event => return failed(format!("{event}, instead of a reject")).step(step),
        }
    }
    Ok(format!("{} rejects", REJECT + 1))
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
