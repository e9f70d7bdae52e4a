//! librpma's examples with one side in C: for each pair a client of the C library and this
//! repository's server, and the other way round.
//!
//! The C sides (`tests/peers`) speak the examples' protocols through the installed librpma. They tell the bytes that they see, and those are judged here, together with
//! what the Rust side prints and how it ends.

mod common;

use std::ops::RangeBounds;
use std::thread;

use common::program::{Ended, Program, find, free_port, hex, unhex};
use common::{addr, addr6, devdax, device_test};
use rpma::MrUsage;
use rpma::pmem::PmemMap;

/// How long the greetings are on the wire, and what the examples with immediate data send.
const TEXT: usize = 1024;
/// The length of the signature in front of data on persistent memory.
const SIGNATURE: usize = 17;
/// What the two sides of a connection receive as private data: the whole field, padded with zeros.
const TO_CLIENT: usize = 196;
const TO_SERVER: usize = 56;

const EN: &str = "Hello world!";
const ES: &str = "¡Hola Mundo!";
const TRANSLATED: [&str; 3] = [
    "Next value: Hello world!",
    "translating...",
    "Translation: ¡Hola Mundo!",
];

/// How the Rust side ended, and what the C side told.
type Outcome = (Ended, Vec<String>);

/// One side in C, of `tests/peers/peer.c`.
fn c(addr: &str, port: u16, side: &str, protocol: &[&str]) -> Program {
    let port = port.to_string();
    Program::c(
        "tests/peers/peer",
        &[&[addr, &port, side], protocol].concat(),
    )
}

fn dial(addr: &str, port: u16, protocol: &[&str]) -> Program {
    c(addr, port, "client", protocol)
}

fn listen(addr: &str, protocol: &[&str]) -> (Program, u16) {
    let port = free_port(addr);
    (c(addr, port, "server", protocol).listening(), port)
}

fn rust_client(example: &str, addr: &str, port: u16, more: &[&str]) -> Program {
    let port = port.to_string();
    Program::example(example, &[&["client", addr, &port], more].concat())
}

fn rust_server(example: &str, addr: &str, more: &[&str]) -> (Program, u16) {
    let port = free_port(addr);
    (Program::example_server(example, addr, port, more), port)
}

/// Lets a C client talk to the server of an example.
fn c_client(example: &str, addr: &str, server: &[&str], protocol: &[&str]) -> Outcome {
    let (server, port) = rust_server(example, addr, server);
    let client = dial(addr, port, protocol).finish();
    outcome(example, server.finish(), client)
}

/// Lets the client of an example talk to a C server.
fn c_server(example: &str, addr: &str, protocol: &[&str], client: &[&str]) -> Outcome {
    let (server, port) = listen(addr, protocol);
    let client = rust_client(example, addr, port, client).finish();
    outcome(example, client, server.finish())
}

/// Checks each case, all of them at the same time: most of it is waiting for programs to start.
fn together<T: Sync>(cases: &[T], check: impl Fn(&T) + Sync) {
    thread::scope(|scope| {
        for case in cases {
            scope.spawn(|| check(case));
        }
    });
}

fn outcome(example: &str, rust: Ended, c: Ended) -> Outcome {
    // If a check fails, this tells more.
    println!("{example}: {rust:?}\nC: {c:?}");
    (rust, c.done())
}

#[track_caller]
fn assert_prints(rust: &Ended, lines: &[&str]) {
    assert_eq!(rust.stdout, lines, "{rust:?}");
    assert_eq!(rust.status, Some(0), "{rust:?}");
}

/// The Rust side has ended with an error and says why.
#[track_caller]
fn assert_fails(rust: &Ended, why: &str) {
    assert_eq!(rust.status, Some(1), "{rust:?}");
    assert!(rust.says(why), "{why:?} in {rust:?}");
}

/// What the C side told under this name.
fn told(lines: &[String], name: &str) -> Vec<u8> {
    unhex(find(lines, name))
}

fn padded(text: impl AsRef<[u8]>, len: usize) -> Vec<u8> {
    let mut bytes = text.as_ref().to_vec();
    bytes.resize(len, 0);
    bytes
}

/// A text as it is on the wire.
fn text(text: &str) -> Vec<u8> {
    padded(text, TEXT)
}

/// The description of a region, `struct common_data`, as the C side saw it: of a region whose `size`
/// and usage are these, with the data at `offset`.
#[track_caller]
fn assert_describes(
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

/// The persistent memory, which begins with these bytes and has only zeros behind them.
fn devdax_with(bytes: &[u8]) -> String {
    let path = devdax();
    let map = PmemMap::open(&path, 4096).expect("maps");
    map.write_at(0, &padded(bytes, 4096)).expect("inside");
    map.persist(0..4096).expect("persists");
    path
}

/// What is on the persistent memory.
fn on_devdax(at: usize, len: usize) -> Vec<u8> {
    let map = PmemMap::open(devdax(), 4096).expect("maps");
    let mut bytes = vec![0; len];
    map.read_at(at, &mut bytes).expect("inside");
    bytes
}

/// The arguments of the C server's `offer`.
fn offer(usage: MrUsage, size: usize, offset: usize, direct: &str, bytes: &[u8]) -> Vec<String> {
    let (usage, size, offset) = (usage.bits(), size, offset);
    ["offer".to_owned(), usage.to_string(), size.to_string()]
        .into_iter()
        .chain([offset.to_string(), direct.to_owned(), hex(bytes)])
        .collect()
}

fn words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

// 01: a text in the private data, each way.

#[test]
fn c_client_of_01() {
    device_test(|| {
        let hello = hex(b"Hello server!\0");
        let (rust, c) = c_client("01-connection", &addr(), &[], &["greet", &hello]);
        assert_prints(&rust, &["Received a message: Hello server!"]);
        assert_eq!(told(&c, "data "), padded(b"Hello client!", TO_CLIENT));
    });
}

#[test]
fn c_server_of_01() {
    device_test(|| {
        let hello = hex(b"Hello client!\0");
        let (rust, c) = c_server("01-connection", &addr6(), &["greet", &hello], &[]);
        assert_prints(&rust, &["Received a message: Hello client!"]);
        assert_eq!(told(&c, "data "), padded(b"Hello server!", TO_SERVER));
    });
}

// 02: the client reads from the server.

#[test]
fn c_client_of_02() {
    device_test(|| {
        let (rust, c) = c_client("02-read-to-volatile", &addr(), &[], &["read"]);
        assert_prints(&rust, &[]);
        assert_describes(&c, TO_CLIENT, 0, 14..=14, MrUsage::READ_SRC, None);
        assert_eq!(told(&c, "memory "), b"Hello client!\0");
    });
}

#[test]
fn c_server_of_02() {
    device_test(|| {
        let args = offer(MrUsage::READ_SRC, 14, 0, "none", b"Hello client!\0");
        let (rust, _) = c_server("02-read-to-volatile", &addr(), &words(&args), &[]);
        assert_prints(&rust, &["Read a message: Hello client!"]);
    });
}

// 03: the server reads from the client.

#[test]
fn c_client_of_03() {
    device_test(|| {
        // As on DRAM and as on persistent memory: behind the signature.
        together(&[(4, ES), (4 + SIGNATURE, EN)], |(offset, greeting)| {
            let (at, size) = (offset.to_string(), (offset + TEXT).to_string());
            let args = ["offer", &at, &size, &hex(greeting.as_bytes())];
            let (rust, _) = c_client("03-read-to-persistent", &addr(), &[], &args);
            assert_prints(&rust, &[&format!("New value: {greeting}")]);
        });
    });
}

#[test]
fn c_client_of_03_on_persistent_memory() {
    device_test(|| {
        // What librpma's server has left there in an earlier run.
        let earlier = [b"RPMA_EXAMPLE_SIG\0", EN.as_bytes()].concat();
        let pmem = devdax_with(&earlier);
        let args = ["offer", "4", "1028", &hex(ES.as_bytes())];
        let (rust, _) = c_client("03-read-to-persistent", &addr6(), &[&pmem], &args);
        let lines = ["Old value: Hello world!", "New value: ¡Hola Mundo!"];
        assert_prints(&rust, &lines);
        assert_eq!(on_devdax(SIGNATURE, TEXT), text(ES));
    });
}

#[test]
fn c_server_of_03() {
    device_test(|| {
        let args = ["fetch", "1024", "1"];
        let (rust, c) = c_server("03-read-to-persistent", &addr(), &args, &[]);
        assert_prints(&rust, &TRANSLATED);
        assert_describes(&c, TO_SERVER, 4, 1028..=1028, MrUsage::READ_SRC, None);
        assert_eq!(told(&c, "memory "), text(EN));
    });
}

// 04: the client writes, and reads a little after it.

const WRITE_READ: MrUsage = MrUsage::WRITE_DST.union(MrUsage::READ_SRC);

#[test]
fn c_client_of_04() {
    device_test(|| {
        let args = ["write", &hex(ES.as_bytes())];
        let (rust, c) = c_client("04-write-to-persistent", &addr(), &[], &args);
        assert_prints(&rust, &["New value: ¡Hola Mundo!"]);
        assert_describes(&c, TO_CLIENT, 0, 1024..=1024, WRITE_READ, None);
    });
}

#[test]
fn c_client_of_04_on_persistent_memory() {
    device_test(|| {
        let pmem = devdax_with(&[]);
        let args = ["write", &hex(ES.as_bytes())];
        let (rust, c) = c_client("04-write-to-persistent", &addr6(), &[&pmem], &args);
        assert_prints(&rust, &["New value: ¡Hola Mundo!"]);
        assert_describes(&c, TO_CLIENT, 17, 1041.., WRITE_READ, None);
        assert_eq!(on_devdax(SIGNATURE, TEXT), text(ES));
    });
}

#[test]
fn c_server_of_04() {
    device_test(|| {
        let args = offer(WRITE_READ, 17 + TEXT, 17, "none", &[7; 17]);
        let (rust, c) = c_server("04-write-to-persistent", &addr(), &words(&args), &[]);
        assert_prints(&rust, &TRANSLATED);
        assert_eq!(told(&c, "memory "), [vec![7; 17], text(EN)].concat());
    });
}

// 05: the client writes and flushes. The C library flushes natively, and registers for that without
// the right to read. So this works only with a library that has native flush as well.

const FLUSHABLE: MrUsage = MrUsage::WRITE_DST.union(MrUsage::FLUSH_TYPE_VISIBILITY);
const DURABLE: MrUsage = FLUSHABLE.union(MrUsage::FLUSH_TYPE_PERSISTENT);
const NATIVE: bool = cfg!(native_flush);

/// What a C client tells that flushed for persistence (0) or visibility (1), or was refused.
fn flushed(flush_type: u32) -> String {
    match NATIVE {
        true => format!("flushed {flush_type}"),
        false => "failed 10".to_owned(),
    }
}

#[test]
fn c_client_of_05() {
    device_test(|| {
        let args = ["flush", &hex(ES.as_bytes())];
        let (rust, c) = c_client("05-flush-to-persistent", &addr(), &[], &args);
        assert_prints(&rust, &["New value: ¡Hola Mundo!"]);
        assert_describes(&c, TO_CLIENT, 0, 1024..=1024, FLUSHABLE, Some(false));
        assert!(c.contains(&flushed(1)), "{c:?}");
    });
}

#[test]
fn c_client_of_05_on_persistent_memory() {
    device_test(|| {
        let pmem = devdax_with(&[]);
        let args = ["flush", &hex(ES.as_bytes())];
        let (rust, c) = c_client("05-flush-to-persistent", &addr6(), &[&pmem, "on"], &args);
        assert_prints(&rust, &["New value: ¡Hola Mundo!"]);
        assert_describes(&c, TO_CLIENT, 17, 1041.., DURABLE, Some(true));
        assert!(c.contains(&flushed(0)), "{c:?}");
        assert_eq!(on_devdax(SIGNATURE, TEXT), text(ES));
    });
}

#[test]
fn c_server_of_05() {
    const SUPPORTED: &str = "RPMA_FLUSH_TYPE_PERSISTENT is supported";
    const NOT_SUPPORTED: &str = "RPMA_FLUSH_TYPE_PERSISTENT is NOT supported, \
                                 RPMA_FLUSH_TYPE_VISIBILITY is used instead";
    device_test(|| {
        let [next, translating, translation] = TRANSLATED;
        let pmem = devdax_with(&[]);
        let cases = [
            (FLUSHABLE, "off", None, NOT_SUPPORTED),
            (DURABLE, "on", Some(&pmem), SUPPORTED),
        ];
        together(&cases, |(usage, direct, path, line)| {
            let args = offer(*usage, 17 + TEXT, 17, direct, &[7; 17]);
            let args: Vec<String> = args.into_iter().chain(path.cloned()).collect();
            let (rust, c) = c_server("05-flush-to-persistent", &addr(), &words(&args), &[]);
            if NATIVE {
                assert_prints(&rust, &[next, line, translating, translation]);
            } else {
                assert_fails(&rust, "remote access error");
            }
            assert_eq!(told(&c, "memory "), [vec![7; 17], text(EN)].concat());
        });
    });
}

// 06 and 06scch: the server reads the names of many clients.

const MULTIPLE: [&str; 2] = ["06-multiple-connections", "06scch-multiple-connections"];

#[test]
fn c_clients_of_06_and_06scch() {
    device_test(|| {
        together(&MULTIPLE, |example| {
            let (mut server, port) = rust_server(example, &addr(), &[]);
            assert_eq!(server.line(), "Today I have got in touch with:");
            // One that offers nothing is sent away, and the server goes on.
            dial(&addr(), port, &["greet", ""]).done();
            let mut names = ["Ada", "Grace", "a name of thirty-one characters"];
            let clients = names.map(|name| {
                let args = ["offer", "0", "32", &hex(name.as_bytes())];
                dial(&addr(), port, &args)
            });
            let mut lines = [(); 3].map(|()| server.line());
            lines.sort();
            names.sort();
            assert_eq!(lines, names.map(|name| format!("- {name}")), "{example}");
            for client in clients {
                client.done();
            }
            // tests/examples waits until the time limit ends such a server.
        });
    });
}

#[test]
fn c_server_of_06_and_06scch() {
    device_test(|| {
        together(&MULTIPLE, |example| {
            let (server, port) = listen(&addr(), &["fetch", "32", "2"]);
            let clients = ["8", "9"].map(|seed| rust_client(example, &addr(), port, &[seed]));
            let [first, second] = clients.map(Program::finish);
            assert_prints(&first, &["My names is: Chet"]);
            assert_prints(&second, &["My names is: Piotr"]);
            let c = server.done();
            assert_describes(&c, TO_SERVER, 0, 32..=32, MrUsage::READ_SRC, None);
            let mut names: Vec<_> = c.iter().filter(|l| l.starts_with("memory ")).collect();
            names.sort();
            let expected = ["Chet", "Piotr"].map(|name| hex(&padded(name, 32)));
            let expected = expected.map(|name| format!("memory {name}"));
            assert!(names.into_iter().eq(&expected), "{c:?}");
        });
    });
}

// 07: the client appends words to a log on the server.

const LOG: usize = 1040;

/// The log as it is in memory: a signature, how much is used, words that end with a zero.
fn log(signature: &[u8], used: u64, words: &[u8]) -> Vec<u8> {
    let header = [padded(signature, 8), used.to_le_bytes().to_vec()].concat();
    padded([&header, words].concat(), LOG)
}

#[test]
fn c_client_of_07() {
    device_test(|| {
        let args = ["log", "first", "second"];
        let (rust, c) = c_client("07-atomic-write", &addr(), &[], &args);
        assert_describes(
            &c,
            TO_CLIENT,
            8,
            1040..=1040,
            WRITE_READ | MrUsage::FLUSH_TYPE_VISIBILITY,
            None,
        );
        assert_eq!(find(&c, "used "), "16");
        match NATIVE {
            true => assert_prints(&rust, &["first", "second"]),
            false => assert!(c.contains(&flushed(1)), "{c:?}"),
        }
    });
}

#[test]
fn c_client_of_07_on_persistent_memory() {
    device_test(|| {
        let pmem = devdax_with(&log(b"LOG", 22, b"first\0"));
        let args = ["log", "second"];
        let (rust, c) = c_client("07-atomic-write", &addr6(), &[&pmem], &args);
        let usage = WRITE_READ | MrUsage::FLUSH_TYPE_PERSISTENT;
        assert_describes(&c, TO_CLIENT, 8, 1040.., usage, None);
        assert_eq!(find(&c, "used "), "22");
        if NATIVE {
            assert_prints(&rust, &["first", "second"]);
            assert_eq!(on_devdax(0, LOG), log(b"LOG", 29, b"first\0second\0"));
        } else {
            assert_prints(&rust, &["first"]);
            assert!(c.contains(&flushed(0)), "{c:?}");
        }
    });
}

/// Offers a C log of which so much is used.
fn c_log(used: u64, words: &[&str]) -> Outcome {
    let usage = WRITE_READ | MrUsage::FLUSH_TYPE_VISIBILITY;
    let args = offer(usage, LOG, 8, "none", &log(b"", used, b""));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    c_server("07-atomic-write", &addr(), &args, words)
}

#[test]
fn c_server_of_07() {
    device_test(|| {
        // Two words that just fit.
        let (rust, c) = c_log(1027, &["1st_word", "2nd"]);
        assert_prints(&rust, &["used value: 1027"]);
        let mut expected = log(b"", 1040, b"");
        expected[1027..].copy_from_slice(b"1st_word\x002nd\0");
        assert_eq!(told(&c, "memory "), expected);
    });
}

/// librpma's client would write beyond the log, or over its header.
#[test]
fn c_server_of_07_whose_log_has_no_room() {
    device_test(|| {
        together(&[1036, u64::MAX - 1, 8], |&used| {
            let (rust, c) = c_log(used, &["word"]);
            let why = match used {
                1036 => "need 5 bytes",
                _ => "damaged",
            };
            assert_fails(&rust, why);
            assert_eq!(told(&c, "memory "), log(b"", used, b""), "{used}");
        });
    });
}

// 08, 12, 12scch and 08srq: the client sends a value, the server answers with the next one.

/// The examples, and what their servers and clients put in front of each line.
const PING_PONG: [(&str, &str, &str); 3] = [
    ("08-messages-ping-pong", "", ""),
    ("12-receive-completion-queue", "SERVER: ", "CLIENT: "),
    ("12scch-receive-completion-queue", "SERVER: ", "CLIENT: "),
];

/// Here the server disconnects, and the rounds are counted without the last message.
const SRQ: &str = "08srq-simple-messages-ping-pong-with-srq";

fn value(value: u64) -> String {
    hex(&value.to_le_bytes())
}

/// Two rounds, as a C client tells them.
fn two_rounds() -> [String; 4] {
    [("sent", 7), ("received", 8), ("sent", 8), ("received", 9)]
        .map(|(what, number)| format!("{what} {}", value(number)))
}

/// What a C server tells of them.
fn two_rounds_received() -> [String; 3] {
    [7, 8, u64::MAX].map(|number| format!("received {}", value(number)))
}

fn without_events(lines: &[String]) -> Vec<&String> {
    let no_event = |line: &&String| !line.starts_with("event ");
    lines.iter().filter(no_event).collect()
}

fn assert_serves_two_rounds(example: &str, prefix: &str, end: &str) {
    let (rust, c) = c_client(example, &addr(), &[], &["ping", "7", "2", end]);
    let lines = [
        "Value received: 7",
        "Value sent: 8",
        "Value received: 8",
        "Value sent: 9",
    ]
    .map(|line| format!("{prefix}{line}"));
    assert_prints(&rust, &words(&lines));
    assert!(without_events(&c).into_iter().eq(&two_rounds()), "{c:?}");
}

fn assert_asks_two_rounds(example: &str, prefix: &str, server: &str, rounds: &str) {
    let (rust, c) = c_server(example, &addr(), &[server, "1"], &["7", rounds]);
    let lines = [
        "Value sent: 7",
        "Value received: 8",
        "Value sent: 8",
        "Value received: 9",
    ]
    .map(|line| format!("{prefix}{line}"));
    assert_prints(&rust, &words(&lines));
    let expected = two_rounds_received();
    assert!(without_events(&c).into_iter().eq(&expected), "{c:?}");
}

/// These clients wait for the completion of the last message, so that the disconnect cannot discard
/// it.
#[test]
fn c_client_of_08_12_and_12scch() {
    device_test(|| {
        together(&PING_PONG, |(example, prefix, _)| {
            assert_serves_two_rounds(example, prefix, "leave");
        });
    });
}

/// These clients disconnect without the last message, as if it was lost: librpma's may lose it.
#[test]
fn c_client_of_08_12_and_12scch_that_loses_its_last_message() {
    device_test(|| {
        together(&PING_PONG, |(example, ..)| {
            let (rust, c) = c_client(example, &addr(), &[], &["ping", "7", "2", "lose"]);
            assert_fails(&rust, "closed");
            assert_eq!(rust.stdout.len(), 4, "{rust:?}");
            assert!(without_events(&c).into_iter().eq(&two_rounds()), "{c:?}");
        });
    });
}

/// The Rust clients never lose it.
#[test]
fn c_server_of_08_12_and_12scch() {
    device_test(|| {
        together(&PING_PONG, |(example, _, prefix)| {
            assert_asks_two_rounds(example, prefix, "ping", "3");
        });
    });
}

#[test]
fn c_client_of_08srq() {
    device_test(|| assert_serves_two_rounds(SRQ, "", "stay"));
}

#[test]
fn c_server_of_08srq() {
    device_test(|| assert_asks_two_rounds(SRQ, "", "srq", "2"));
}

// 13: many clients, over a shared receive queue.

const MANY: &str = "13-messages-ping-pong-with-srq";

#[test]
fn c_clients_of_13() {
    device_test(|| {
        // The server waits so long for one more client: the second is started at once.
        let (server, port) = rust_server(MANY, &addr(), &["5"]);
        let clients =
            ["100", "200"].map(|first| dial(&addr(), port, &["ping", first, "2", "stay"]));
        for (client, first) in clients.into_iter().zip([100, 200]) {
            let c = client.done();
            let expected = [
                ("sent", first),
                ("received", first + 1),
                ("sent", first + 1),
                ("received", first + 2),
            ]
            .map(|(what, number)| format!("{what} {}", value(number)));
            assert!(without_events(&c).into_iter().eq(&expected), "{c:?}");
        }
        let rust = server.finish();
        assert_eq!(rust.status, Some(0), "{rust:?}");
        let (listening, serving) = rust.stdout.split_at(3);
        let expected = [
            "The client #1 has been connected.",
            "The client #2 has been connected.",
            "Server ended listening.",
        ];
        assert_eq!(listening, expected);
        // Those of the two clients in any order.
        let mut numbers = Vec::new();
        for first in [100, 200] {
            let of_client = |line: &&String| line.contains(&format!(": {}", first / 100));
            let lines: Vec<&String> = serving.iter().filter(of_client).collect();
            let number = find(
                serving,
                &format!("[server] value received: {first} from the"),
            );
            let number = number.to_owned();
            let expected = [
                format!("[server] value received: {first} from the {number}"),
                format!("[server] value sent: {} from the {number}", first + 1),
                format!("[server] value received: {} from the {number}", first + 1),
                format!("[server] value sent: {} from the {number}", first + 2),
            ];
            assert!(lines.into_iter().eq(&expected), "{serving:?}");
            assert!(number.starts_with("connection [qp#"), "{serving:?}");
            numbers.push(number);
        }
        assert_ne!(numbers[0], numbers[1], "each has its connection");
        assert_eq!(serving.len(), 8, "{serving:?}");
    });
}

#[test]
fn c_server_of_13() {
    device_test(|| {
        let (server, port) = listen(&addr(), &["srq", "2"]);
        let clients = ["100", "200"].map(|first| rust_client(MANY, &addr(), port, &[first, "2"]));
        for (client, first) in clients.into_iter().zip([100, 200]) {
            let rust = client.finish();
            assert_eq!(rust.status, Some(0), "{rust:?}");
            let line = |line: &String| {
                let rest = line.strip_prefix("[client #").expect("a client");
                rest.split_once("] ").expect("its number").1.to_owned()
            };
            let lines: Vec<String> = rust.stdout.iter().map(line).collect();
            let expected = [
                format!("value sent: {first}"),
                format!("value received: {}", first + 1),
                format!("value sent: {}", first + 1),
                format!("value received: {}", first + 2),
            ];
            assert_eq!(lines, expected);
        }
        let c = server.done();
        let mut lines = without_events(&c);
        lines.sort();
        let expected = [100, 101, 200, 201, u64::MAX, u64::MAX].map(value);
        let expected = expected.map(|value| format!("received {value}"));
        assert!(lines.into_iter().eq(&expected), "{c:?}");
    });
}

// 09 and 09scch: the client writes and asks the server to make it persistent, with a message.

const GPSPM: [&str; 2] = [
    "09-flush-to-persistent-GPSPM",
    "09scch-flush-to-persistent-GPSPM",
];

/// The 27 bytes of a request.
fn request(offset: u64, length: u64, op_context: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (tag, field) in [(0x09, offset), (0x11, length), (0x19, op_context)] {
        bytes.push(tag);
        bytes.extend(field.to_le_bytes());
    }
    bytes
}

/// The 9 bytes of a response.
fn response(op_context: u64) -> Vec<u8> {
    [vec![0x09], op_context.to_le_bytes().to_vec()].concat()
}

const OP_CONTEXT: u64 = 0x1122_3344_AABB_CCDD;

#[test]
fn c_client_of_09_and_09scch() {
    device_test(|| {
        together(&GPSPM, |example| {
            let request = hex(&request(0, 1024, OP_CONTEXT));
            let args = ["gpspm", &hex(ES.as_bytes()), &request];
            let (rust, c) = c_client(example, &addr(), &[], &args);
            let lines = [
                "Flush request received: \
                 {offset: 0x0, length: 0x400, op_context: 0x11223344AABBCCDD}",
                "New value: ¡Hola Mundo!",
            ];
            assert_prints(&rust, &lines);
            assert_describes(&c, TO_CLIENT, 0, 1024..=1024, FLUSHABLE, None);
            assert_eq!(told(&c, "answer "), response(OP_CONTEXT));
        });
    });
}

#[test]
fn c_client_of_09_on_persistent_memory() {
    device_test(|| {
        let pmem = devdax_with(&[]);
        let args = [
            "gpspm",
            &hex(ES.as_bytes()),
            &hex(&request(17, 1024, 0xF01D)),
        ];
        let (rust, c) = c_client(GPSPM[0], &addr6(), &[&pmem], &args);
        let lines = [
            "Flush request received: {offset: 0x11, length: 0x400, op_context: 0xF01D}",
            "New value: ¡Hola Mundo!",
        ];
        assert_prints(&rust, &lines);
        let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
        assert_describes(&c, TO_CLIENT, 17, 1041.., usage, None);
        assert_eq!(told(&c, "answer "), response(0xF01D));
        assert_eq!(on_devdax(SIGNATURE, TEXT), text(ES));
    });
}

#[test]
fn c_server_of_09_and_09scch() {
    device_test(|| {
        together(&GPSPM, |example| {
            let args = ["gpspm", "17", "1041", &hex(&response(0xF01D))];
            let (rust, c) = c_server(example, &addr(), &args, &[]);
            assert_prints(&rust, &TRANSLATED);
            assert_eq!(told(&c, "request "), request(17, 1024, 0xF01D));
            assert_eq!(told(&c, "memory "), [vec![0; 17], text(EN)].concat());
        });
    });
}

/// librpma's server would persist, and touch, whatever is there.
#[test]
fn c_client_of_09_that_asks_for_what_is_not_offered() {
    device_test(|| {
        let cases = [(GPSPM[0], 1, 1024), (GPSPM[1], u64::MAX, 2)];
        together(&cases, |&(example, offset, length)| {
            let request = hex(&request(offset, length, 0xF01D));
            let args = ["gpspm-refused", &hex(ES.as_bytes()), &request];
            let (rust, _) = c_client(example, &addr(), &[], &args);
            assert_fails(&rust, &format!("{length} bytes at {offset}"));
        });
    });
}

#[test]
fn c_client_of_09_whose_request_is_none() {
    device_test(|| {
        let whole = request(0, 1024, 0xF01D);
        let without_length = [&whole[..9], &whole[18..]].concat();
        let cases = [(GPSPM[0], &whole[..26]), (GPSPM[1], &without_length)];
        together(&cases, |(example, request)| {
            let args = ["gpspm-refused", &hex(ES.as_bytes()), &hex(request)];
            let (rust, _) = c_client(example, &addr(), &[], &args);
            assert_fails(&rust, "message");
            assert!(rust.stdout.is_empty(), "{rust:?}");
        });
    });
}

#[test]
fn c_server_of_09_whose_response_is_none() {
    device_test(|| {
        let cases = [
            (GPSPM[0], response(0xF01E), "0xF01E"),
            (GPSPM[1], Vec::new(), "message"),
        ];
        together(&cases, |(example, answer, why)| {
            let args = ["gpspm", "0", "1024", &hex(answer)];
            let (rust, _) = c_server(example, &addr(), &args, &[]);
            assert_fails(&rust, why);
            assert_eq!(rust.stdout, ["Next value: Hello world!"], "{rust:?}");
        });
    });
}

// 10: a message with immediate data, which the private data announces.

const IMM: u32 = 0x8000_04D2;

#[test]
fn c_client_of_10() {
    device_test(|| {
        let (data, imm, word) = (hex(&IMM.to_le_bytes()), IMM.to_string(), hex(b"1st_word"));
        let args = ["send-imm", &data, &imm, &word];
        // Without a word the message is empty.
        together(&[(4, "1st_word"), (3, "")], |&(count, word)| {
            let (rust, _) = c_client("10-send-with-imm", &addr(), &[], &args[..count]);
            let line = format!("Received value '{word}' with immediate data '{IMM}'");
            assert_prints(&rust, &[&line]);
        });
    });
}

#[test]
fn c_server_of_10() {
    device_test(|| {
        let imm = IMM.to_string();
        let cases = [
            (
                &[&*imm, "1st_word"][..],
                "value '1st_word' with ",
                text("1st_word"),
            ),
            (&[&*imm], "", Vec::new()),
        ];
        together(&cases, |(args, what, message)| {
            let (rust, c) = c_server("10-send-with-imm", &addr(), &["send-imm"], args);
            let line = format!("Sending {what}immediate data '{IMM}'");
            assert_prints(&rust, &[&line]);
            assert_eq!(told(&c, "data "), padded(IMM.to_le_bytes(), TO_SERVER));
            let imm = format!("128 {} 800004d2", message.len());
            assert_eq!(find(&c, "imm "), imm);
            assert_eq!(told(&c, "message "), *message);
        });
    });
}

// 11: a write with immediate data, which is also what is written.

#[test]
fn c_client_of_11() {
    device_test(|| {
        let args = ["write-imm", &hex(&IMM.to_le_bytes()), &IMM.to_string()];
        let (rust, c) = c_client("11-write-with-imm", &addr(), &[], &args);
        let line = format!("The value '{IMM}' was written together with immediate data '{IMM}'");
        assert_prints(&rust, &[&line]);
        assert_describes(&c, TO_CLIENT, 0, 1024..=1024, MrUsage::WRITE_DST, None);
    });
}

#[test]
fn c_server_of_11() {
    device_test(|| {
        let imm = IMM.to_string();
        let (rust, c) = c_server("11-write-with-imm", &addr(), &["write-imm"], &[&imm]);
        let line = format!("Writing value '{IMM}' with immediate data '{IMM}'");
        assert_prints(&rust, &[&line]);
        assert_eq!(find(&c, "imm "), "129 1024 800004d2");
        assert_eq!(told(&c, "memory "), padded(IMM.to_le_bytes(), TEXT));
    });
}

#[test]
fn c_client_of_10_and_11_whose_numbers_differ() {
    device_test(|| {
        let number = hex(&IMM.to_le_bytes());
        let cases = [
            ("10-send-with-imm", "send-imm"),
            ("11-write-with-imm", "write-imm"),
        ];
        together(&cases, |(example, protocol)| {
            let (rust, _) = c_client(example, &addr(), &[], &[protocol, &number, "7"]);
            assert_fails(&rust, "7");
            assert!(rust.stdout.is_empty(), "{rust:?}");
        });
    });
}

// Private data that describes nothing. A side that sends none seems to have sent zeros.

#[test]
fn c_servers_that_describe_nothing() {
    device_test(|| {
        let cases: [(&str, &[&str]); 6] = [
            ("02-read-to-volatile", &[]),
            ("04-write-to-persistent", &[]),
            ("05-flush-to-persistent", &[]),
            ("07-atomic-write", &["word"]),
            (GPSPM[0], &[]),
            ("11-write-with-imm", &["7"]),
        ];
        together(&cases, |(example, more)| {
            let (rust, _) = c_server(example, &addr(), &["answer", ""], more);
            assert_fails(&rust, "descriptor");
        });
    });
}

#[test]
fn a_c_client_of_03_that_describes_nothing() {
    device_test(|| {
        let args = ["greet", ""];
        let (rust, _) = c_client("03-read-to-persistent", &addr(), &[], &args);
        assert_fails(&rust, "descriptor");
    });
}

/// The memory is described, and there is too little of it; or too much: the client of 02 has room for
/// 1024 bytes.
#[test]
fn c_servers_that_offer_another_size() {
    device_test(|| {
        let cases = [
            ("02-read-to-volatile", MrUsage::READ_SRC, 0, 1025),
            ("04-write-to-persistent", WRITE_READ, 17, 1040),
            (GPSPM[0], FLUSHABLE, 17, 1040),
        ];
        together(&cases, |&(example, usage, offset, size)| {
            let args = offer(usage, size, offset, "none", &[7; 17]);
            let (rust, c) = c_server(example, &addr(), &words(&args), &[]);
            assert_fails(&rust, &size.to_string());
            assert_eq!(told(&c, "memory "), padded([7; 17], size), "untouched");
        });
    });
}
