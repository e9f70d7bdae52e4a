//! 08, 08srq, 12, 12scch and 13: messages.

use crate::swapped::prelude::*;

// 08, 12, 12scch and 08srq: the client sends a value, the server answers with the next one.

/// The examples, and the text that their servers and clients put in front of each line.
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

/// Two rounds from this value on: what is done with each value, first and then.
fn two_rounds(first: u64, [one, other]: [&str; 2]) -> [(&str, u64); 4] {
    let (second, third) = (first + 1, first + 2);
    [(one, first), (other, second), (one, second), (other, third)]
}

/// Two rounds in the output of a C client.
fn of_c_client(first: u64) -> [String; 4] {
    two_rounds(first, ["sent", "received"]).map(|(what, of)| format!("{what} {}", value(of)))
}

/// The output of a C server about them.
fn two_rounds_received() -> [String; 3] {
    [7, 8, u64::MAX].map(|number| format!("received {}", value(number)))
}

fn without_events(lines: &[String]) -> Vec<&String> {
    let no_event = |line: &&String| !line.starts_with("event ");
    lines.iter().filter(no_event).collect()
}

fn assert_serves_two_rounds(example: &str, prefix: &str, end: &str) {
    let (rust, c) = c_client(example, &addr(), &[], &["ping", "7", "2", end]);
    let lines = two_rounds(7, ["received", "sent"]);
    let lines = lines.map(|(what, value)| format!("{prefix}Value {what}: {value}"));
    assert_prints(&rust, &words(&lines));
    assert!(without_events(&c).into_iter().eq(&of_c_client(7)), "{c:?}");
}

fn assert_asks_two_rounds(example: &str, prefix: &str, server: &str, rounds: &str) {
    let (rust, c) = c_server(example, &addr(), &[server, "1"], &["7", rounds]);
    let lines = two_rounds(7, ["sent", "received"]);
    let lines = lines.map(|(what, value)| format!("{prefix}Value {what}: {value}"));
    assert_prints(&rust, &words(&lines));
    let expected = two_rounds_received();
    assert!(without_events(&c).into_iter().eq(&expected), "{c:?}");
}

/// These clients wait for the completion of the last message, so that the disconnect cannot discard
/// it.
#[test]
fn c_client_of_08_12_and_12scch() {
    together(&PING_PONG, |(example, prefix, _)| {
        assert_serves_two_rounds(example, prefix, "leave");
    });
}

/// These clients disconnect without the last message, as if it was lost: librpma's may lose it.
#[test]
fn c_client_of_08_12_and_12scch_that_loses_its_last_message() {
    together(&PING_PONG, |(example, ..)| {
        let (rust, c) = c_client(example, &addr(), &[], &["ping", "7", "2", "lose"]);
        assert_fails(&rust, "closed");
        assert_eq!(rust.stdout.len(), 4, "{rust:?}");
        assert!(without_events(&c).into_iter().eq(&of_c_client(7)), "{c:?}");
    });
}

/// The Rust clients never lose it.
#[test]
fn c_server_of_08_12_and_12scch() {
    together(&PING_PONG, |(example, _, prefix)| {
        assert_asks_two_rounds(example, prefix, "ping", "3");
    });
}

#[test]
fn c_client_of_08srq() {
    let _test = device_test();
    assert_serves_two_rounds(SRQ, "", "stay");
}

#[test]
fn c_server_of_08srq() {
    let _test = device_test();
    assert_asks_two_rounds(SRQ, "", "srq", "2");
}

// 13: many clients, over a shared receive queue.

const MANY: &str = "13-messages-ping-pong-with-srq";

#[test]
fn c_clients_of_13() {
    let _test = device_test();
    // The server waits so long for one more client: the second is started at once.
    let (server, port) = rust_server(MANY, &addr(), &["15"]);
    let clients = ["100", "200"].map(|first| dial(&addr(), port, &["ping", first, "2", "stay"]));
    for (client, first) in clients.into_iter().zip([100, 200]) {
        let c = client.done();
        let expected = of_c_client(first);
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
        let begin = format!("[server] value received: {first} from the");
        let number = find(serving, &begin).to_owned();
        let expected = two_rounds(first, ["received", "sent"])
            .map(|(what, of)| format!("[server] value {what}: {of} from the {number}"));
        assert!(lines.into_iter().eq(&expected), "{serving:?}");
        assert!(number.starts_with("connection [qp#"), "{serving:?}");
        numbers.push(number);
    }
    assert_ne!(numbers[0], numbers[1], "each has its connection");
    assert_eq!(serving.len(), 8, "{serving:?}");
}

#[test]
fn c_server_of_13() {
    let _test = device_test();
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
        let expected =
            two_rounds(first, ["sent", "received"]).map(|(what, of)| format!("value {what}: {of}"));
        assert_eq!(lines, expected);
    }
    let c = server.done();
    let mut lines = without_events(&c);
    lines.sort();
    let expected = [100, 101, 200, 201, u64::MAX, u64::MAX].map(value);
    let expected = expected.map(|value| format!("received {value}"));
    assert!(lines.into_iter().eq(&expected), "{c:?}");
}
