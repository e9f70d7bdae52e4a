//! The shared parts of these tests: the two sides, and the expected reports of each.

use std::ops::RangeBounds;

pub(crate) use crate::common::prelude::*;
use crate::common::program::{Ended, Program, c_executable, find, free_port, hex, unhex};

/// The length of the greetings on the wire, and the messages of the examples with immediate data.
pub(crate) const TEXT: usize = 1024;
/// The length of the signature in front of data on persistent memory.
pub(crate) const SIGNATURE: usize = 17;
/// The private data that the two sides of a connection receive: the whole field, padded with zeros.
pub(crate) const TO_CLIENT: usize = 196;
pub(crate) const TO_SERVER: usize = 56;

pub(crate) const EN: &str = "Hello world!";
pub(crate) const ES: &str = "¡Hola Mundo!";
pub(crate) const TRANSLATED: [&str; 3] = [
    "Next value: Hello world!",
    "translating...",
    "Translation: ¡Hola Mundo!",
];

/// How the Rust side ended, and the output of the C side.
pub(crate) type Outcome = (Ended, Vec<String>);

const PEER: &str = "tests/peers/peer";

/// One side in C.
pub(crate) fn c(addr: &str, port: u16, side: &str, protocol: &[&str]) -> Program {
    let port = port.to_string();
    Program::c(PEER, &[&[addr, &port, side], protocol].concat())
}

pub(crate) fn dial(addr: &str, port: u16, protocol: &[&str]) -> Program {
    c(addr, port, "client", protocol)
}

pub(crate) fn listen(addr: &str, protocol: &[&str]) -> (Program, u16) {
    let port = free_port(addr);
    (c(addr, port, "server", protocol).listening(), port)
}

pub(crate) fn rust_client(example: &str, addr: &str, port: u16, more: &[&str]) -> Program {
    let port = port.to_string();
    Program::example(example, &[&["client", addr, &port], more].concat())
}

pub(crate) fn rust_server(example: &str, addr: &str, more: &[&str]) -> (Program, u16) {
    // Compiled before the server starts, which may wait for its client for a limited time only.
    c_executable(PEER);
    let port = free_port(addr);
    (Program::example_server(example, addr, port, more), port)
}

/// Lets a C client talk to the server of an example.
pub(crate) fn c_client(example: &str, addr: &str, server: &[&str], protocol: &[&str]) -> Outcome {
    let (server, port) = rust_server(example, addr, server);
    let client = dial(addr, port, protocol).finish();
    outcome(example, server.finish(), client)
}

/// Lets the client of an example talk to a C server.
pub(crate) fn c_server(example: &str, addr: &str, protocol: &[&str], client: &[&str]) -> Outcome {
    let (server, port) = listen(addr, protocol);
    let client = rust_client(example, addr, port, client).finish();
    outcome(example, client, server.finish())
}

pub(crate) fn outcome(example: &str, rust: Ended, c: Ended) -> Outcome {
    // If a check fails, this has more information.
    println!("{example}: {rust:?}\nC: {c:?}");
    (rust, c.done())
}

#[track_caller]
pub(crate) fn assert_prints(rust: &Ended, lines: &[&str]) {
    assert_eq!(rust.stdout, lines, "{rust:?}");
    assert_eq!(rust.status, Some(0), "{rust:?}");
}

/// The Rust side has ended with an error and its reason.
#[track_caller]
pub(crate) fn assert_fails(rust: &Ended, why: &str) {
    assert_eq!(rust.status, Some(1), "{rust:?}");
    assert!(rust.says(why), "{why:?} in {rust:?}");
}

/// The bytes that the C side reported under this name.
pub(crate) fn told(lines: &[String], name: &str) -> Vec<u8> {
    unhex(find(lines, name))
}

pub(crate) fn padded(text: impl AsRef<[u8]>, len: usize) -> Vec<u8> {
    let mut bytes = text.as_ref().to_vec();
    bytes.resize(len, 0);
    bytes
}

/// A text as it is on the wire.
pub(crate) fn text(text: &str) -> Vec<u8> {
    padded(text, TEXT)
}

/// The description of a region, `struct common_data`, as the C side saw it: of a region with these
/// `size` and usage, with the data at `offset`.
#[track_caller]
pub(crate) fn assert_describes(
    lines: &[String],
    field: usize,
    offset: u16,
    size: impl RangeBounds<u64>,
    usage: MrUsage,
    direct_write: Option<bool>,
) {
    let data = told(lines, "data ");
    let number = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().expect("8 bytes"));
    assert_eq!(data.len(), field);
    assert_eq!(data[0..2], offset.to_le_bytes(), "{data:02x?}");
    assert_eq!(data[2], 21, "{data:02x?}");
    assert_eq!(data[3], u8::from(direct_write.is_some()), "{data:02x?}");
    assert_ne!(number(4), 0, "an address: {data:02x?}");
    assert!(size.contains(&number(12)), "{data:02x?}");
    assert_eq!(data[24], usage.bits(), "{data:02x?}");
    assert_eq!(data[25], u8::from(direct_write == Some(true)));
    assert!(data[26..].iter().all(|byte| *byte == 0), "{data:02x?}");
}

/// The persistent memory, which begins with these bytes and has only zeros after them.
pub(crate) fn devdax_with(bytes: &[u8]) -> Result<String> {
    let path = devdax();
    let map = PmemMap::open(&path, 4096)?;
    map.write_at(0, &padded(bytes, 4096))?;
    map.persist(0..4096)?;
    Ok(path)
}

/// The contents of the persistent memory.
pub(crate) fn on_devdax(at: usize, len: usize) -> Result<Vec<u8>> {
    let map = PmemMap::open(devdax(), 4096)?;
    let mut bytes = vec![0; len];
    map.read_at(at, &mut bytes)?;
    Ok(bytes)
}

/// The arguments of the C server's `offer`.
pub(crate) fn offer(
    usage: MrUsage,
    size: usize,
    offset: usize,
    direct: &str,
    bytes: &[u8],
) -> Vec<String> {
    let [usage, size, offset] = [usize::from(usage.bits()), size, offset].map(|n| n.to_string());
    let (command, direct) = ("offer".to_owned(), direct.to_owned());
    vec![command, usage, size, offset, direct, hex(bytes)]
}

pub(crate) const WRITE_READ: MrUsage = MrUsage::WRITE_DST.union(MrUsage::READ_SRC);
pub(crate) const FLUSHABLE: MrUsage = MrUsage::WRITE_DST.union(MrUsage::FLUSH_TYPE_VISIBILITY);
pub(crate) const DURABLE: MrUsage = FLUSHABLE.union(MrUsage::FLUSH_TYPE_PERSISTENT);
pub(crate) const NATIVE: bool = cfg!(native_flush);

/// The output of a C client that flushed for persistence (0) or visibility (1), or was refused.
pub(crate) fn flushed(flush_type: u32) -> String {
    match NATIVE {
        true => format!("flushed {flush_type}"),
        false => "failed 10".to_owned(),
    }
}

pub(crate) const GPSPM: [&str; 2] = [
    "09-flush-to-persistent-GPSPM",
    "09scch-flush-to-persistent-GPSPM",
];
