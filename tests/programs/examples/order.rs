//! Completions in the other order: the answer to a message is here before the acknowledgement of
//! that message. Usually it is not, so a program that relies on the usual order works, most of the
//! time.
//!
//! The side that a test plays here gives no receive to the program's message until its own message
//! has arrived. Neither needs luck: a message waits for its receive by itself.

use crate::examples::prelude::*;

const FIRST: u64 = 7;
const VALUES: u64 = 3;

/// Plays the server.
fn answers_come_first(name: &str, rounds: &str) -> Result<Ended> {
    let peer = peer()?;
    let ep = listen(&peer)?;
    let client = client(name, ep.get_port(), &[&FIRST.to_string(), rounds]);
    let conn = accept(&ep, &[])?;
    for value in FIRST..FIRST + VALUES {
        // The client has its answer, and its message has not left it.
        send(&conn, &peer, &counter(value + 1))?;
        assert_eq!(receive(&conn, &peer)?, counter(value), "{name}");
    }
    assert_eq!(receive(&conn, &peer)?, counter(u64::MAX), "{name}");
    assert_eq!(event(&conn)?, ConnEvent::Closed, "{name}");
    conn.disconnect()?;
    Ok(client.finish().success(name))
}

/// Plays the client.
fn questions_come_first(name: &str, args: &[&str]) -> Result<Ended> {
    let peer = peer()?;
    let (server, port) = server(name, args);
    let conn = connect(&peer, port);
    send(&conn, &peer, &counter(FIRST))?;
    for value in FIRST + 1..FIRST + VALUES {
        // The server has the next message, and its answer to the one before has not left it.
        send(&conn, &peer, &counter(value))?;
        assert_eq!(receive(&conn, &peer)?, counter(value), "{name} {args:?}");
    }
    let last = counter(FIRST + VALUES);
    assert_eq!(receive(&conn, &peer)?, last, "{name} {args:?}");
    send(&conn, &peer, &counter(u64::MAX))?;
    assert_eq!(event(&conn)?, ConnEvent::Closed, "{name} {args:?}");
    conn.disconnect()?;
    Ok(server.finish().success(name))
}

#[test]
fn a_client_whose_answer_comes_before_its_message_has_left() {
    // The last round of some is the message that ends the exchange.
    let cases = [
        ("08", "4", "V"),
        ("08srq", "3", "V"),
        ("12", "4", "CLIENT: V"),
        ("12scch", "4", "CLIENT: V"),
        ("13", "3", "v"),
    ];
    together(&cases, |(name, rounds, before)| {
        let ended = answers_come_first(name, rounds).expect("answers");
        let (lines, _) = ping_pong(FIRST, VALUES);
        let expected = around(before, &lines, "");
        // 13's lines begin with the number of the process.
        let without = |line: &String| match line.split_once("] ") {
            Some((before, line)) if before.starts_with("[client #") => line.to_owned(),
            _ => line.clone(),
        };
        let printed: Vec<String> = ended.stdout.iter().map(without).collect();
        assert_eq!(printed, expected, "{name}: {ended:?}");
    });
}

#[test]
fn a_server_whose_next_message_comes_before_its_answer_has_left() {
    let cases = [
        ("08", &[][..], "V"),
        ("08srq", &[], "V"),
        ("08srq", &["m"], "V"),
        ("08srq", &["r"], "V"),
        ("12", &[], "SERVER: V"),
        ("12scch", &[], "SERVER: V"),
    ];
    together(&cases, |(name, args, before)| {
        let ended = questions_come_first(name, args).expect("answers");
        let (_, lines) = ping_pong(FIRST, VALUES);
        let expected = around(before, &lines, "");
        assert_eq!(ended.stdout, expected, "{name} {args:?}: {ended:?}");
    });
}

/// 09: the response, which is the same for every request of these clients.
#[test]
fn a_response_that_comes_before_its_request_has_left() {
    fn check(name: &str) -> Result {
        let peer = peer()?;
        let ep = listen(&peer)?;
        let client = client(name, ep.get_port(), &[]);
        let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
        let memory = region(&peer, 1024, usage)?;
        let conn = accept(&ep, &describe(0, &memory.get_descriptor(), None))?;
        let op_context = 0xF01D_u64.to_le_bytes();
        send(&conn, &peer, &[&[0x09][..], &op_context].concat())?;
        let request = receive(&conn, &peer)?;
        assert_eq!(request.len(), 27, "{name}: {request:?}");
        assert_eq!(request[19..], op_context, "{name}: {request:?}");
        assert_eq!(event(&conn)?, ConnEvent::Closed, "{name}");
        conn.disconnect()?;
        let ended = client.finish().success(name);
        let lines = [
            "Next value: Hello world!",
            "translating...",
            "Translation: ¡Hola Mundo!",
        ];
        assert_eq!(ended.stdout, lines, "{name}");
        assert!(contents(&memory)?.starts_with(b"Hello world!\0"), "{name}");
        Ok(())
    }
    together(&["09", "09scch"], |name| check(name).expect("answers"));
}
