//! Messages and immediate data, in both directions.

use rpma::{Flags, Next, Wc};

use super::super::bench::{Bench, Line, receives};
use super::Group;
use crate::bytes::{checksum, pattern};
use crate::client::{InStep, Result, failed};
use crate::wire::{Arrival, FIRST, LONGEST, Request, Send};

pub(super) const GROUP: Group = Group {
    name: "message",
    about: "messages and immediate data, both ways, and a message that is too long",
    cases: &[
        ("sizes", |bench| {
            each(bench, RECEIVE, &LENGTHS.map(|len| (len, None)))
        }),
        ("large", |bench| each(bench, LONGEST, &[(LONGEST, None)])),
        ("immediate", |bench| each(bench, 65, &immediates())),
        ("write-immediate", write_immediate),
        ("gather", gather),
        ("too-long", too_long),
    ],
};

/// The size of the receives.
const RECEIVE: usize = 4097;
const LENGTHS: [usize; 16] = [
    0, 1, 7, 8, 9, 63, 64, 65, 255, 256, 257, 1024, 1025, 4095, 4096, RECEIVE,
];
/// Where received messages land on this side: after the messages that are sent.
const INBOX: usize = LONGEST;
const IMMEDIATES: [u32; 4] = [0, 1, 0x0102_0304, u32::MAX];

type Message = (usize, Option<u32>);

/// Messages in both directions, with their immediate data.
fn each(bench: &mut Bench, receive: usize, messages: &[Message]) -> Result<String> {
    let count = messages.len();
    let line = bench.line(receives(count, receive))?;
    for (number, (len, imm)) in (0..).zip(messages) {
        there_and_back(bench, &line, number, (*len, *imm)).step(|| match imm {
            None => format!("a message of {len} bytes"),
            Some(imm) => format!("a message of {len} bytes with {imm:#x}"),
        })?;
    }
    Ok(format!("messages each way: {count}"))
}

fn immediates() -> Vec<Message> {
    let with = |imm| [(0, Some(imm)), (65, Some(imm))];
    IMMEDIATES.into_iter().flat_map(with).collect()
}

/// Sends a message, and gets one as long.
fn there_and_back(bench: &mut Bench, line: &Line, number: u32, (len, imm): Message) -> Result {
    let bytes = bench.put(0, u64::from(number) + 1, len)?;
    let src = bench.own(0, len)?;
    let flags = Flags::COMPLETION_ALWAYS;
    let sent = match imm {
        Some(imm) => line.conn.send_with_imm(src, flags, imm, 0)?,
        None => line.conn.send(src, flags, 0)?,
    };
    line.wait(sent)?;
    let arrival = bench.arrival(line, number)?;
    arrived(&arrival, (len as u32, imm), checksum(&bytes))?;

    // Other bytes than those that are there.
    bench.put(INBOX, 0, len)?;
    line.conn.recv(bench.own(INBOX, len)?, 1)?;
    let seed = 2 * u64::from(number) + 1;
    bench.tell(&Request::Send(Send {
        line: line.number,
        len: len as u32,
        seed,
        imm,
    }))?;
    let wc = line.receive()?;
    let success = wc.result()?;
    let came = (success.byte_len(), success.imm_data());
    if came != (Some(len as u32), imm) {
        return failed(format!(
            "the server sent {len} bytes with {imm:?}, and this side got (length, immediate) {came:?}"
        ));
    }
    let compared = bench.compare_local(INBOX, &pattern(seed, len));
    compared.step(|| "the message from the server".to_owned())
}

/// Compares a receive of the server with the expected one.
fn arrived(arrival: &Arrival, expected: (u32, Option<u32>), sum: u64) -> Result {
    let came = (arrival.len, arrival.imm);
    match &arrival.failed {
        Some(status) => failed(format!("the server's receive failed: {status}")),
        None if came != expected => failed(format!(
            "the server got (length, immediate) {came:?}, and {expected:?} was expected"
        )),
        None if arrival.sum != sum => {
            failed("the server got other bytes than those that were sent")
        }
        None => Ok(()),
    }
}

fn write_immediate(bench: &mut Bench) -> Result<String> {
    const LENGTHS: [usize; 6] = [0, 1, 63, 4096, 4097, 65_537];
    let line = bench.line(receives(LENGTHS.len(), 0))?;
    for (number, len) in (0..).zip(LENGTHS) {
        let bytes = bench.put(0, u64::from(number) + 1, len)?;
        let (dst, src) = (bench.remote(FIRST + 3, len)?, bench.own(0, len)?);
        let (imm, flags) = (0xffff_fff0 + number, Flags::COMPLETION_ALWAYS);
        let posted = line.conn.write_with_imm(dst, src, flags, imm, 0)?;
        line.wait(posted)?;
        let arrival = bench.arrival(&line, number)?;
        arrived(&arrival, (len as u32, Some(imm)), checksum(&[]))
            .and_then(|()| bench.compare(FIRST + 3, &bytes))
            .step(|| format!("a write of {len} bytes with immediate data"))?;
    }
    Ok(format!("{} writes", LENGTHS.len()))
}

fn gather(bench: &mut Bench) -> Result<String> {
    const PARTS: [(usize, usize); 3] = [(0, 1), (1000, 63), (2000, 2000)];
    let line = bench.line(receives(1, 4096))?;
    let bytes = bench.put(0, 1, 4000)?;
    let message = PARTS.map(|(at, len)| &bytes[at..at + len]).concat();
    let src = bench.gathered(&PARTS)?;
    let sent = line.conn.send_gather(&src, Flags::COMPLETION_ALWAYS, 0)?;
    line.wait(sent)?;
    let arrival = bench.arrival(&line, 0)?;
    let len = message.len();
    arrived(&arrival, (len as u32, None), checksum(&message))?;
    Ok(format!("{} parts with {len} bytes", PARTS.len()))
}

fn too_long(bench: &mut Bench) -> Result<String> {
    let line = bench.line(receives(1, 64))?;
    let sent = line
        .conn
        .send(bench.own(0, 65)?, Flags::COMPLETION_ALWAYS, 0)?;
    let here = line.is_refused(bench, sent)?;
    let arrival = bench.arrival(&line, 0)?;
    match arrival.failed {
        Some(there) => Ok(format!("here: {here}; at the server: {there}")),
        None => failed(format!(
            "the server's receive of 64 bytes completed with {} bytes",
            arrival.len
        )),
    }
}

impl Line {
    /// Waits for the completion of a receive on this side.
    pub(crate) fn receive(&self) -> Result<Wc> {
        loop {
            let mut wcs = [Wc::default()];
            match self.clock.within(|limit| self.conn.next(&mut wcs, limit))? {
                Next::Completions(_) if wcs[0].posted().is_none() => return Ok(wcs[0]),
                Next::Completions(_) => {}
                Next::Event(event) if !event.is_end() => {}
                Next::Event(event) => return failed(format!("the connection has ended: {event}")),
            }
        }
    }
}
