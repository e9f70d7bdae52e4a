//! How the examples fail: with a status that is not 0, with a reason, and without waiting for
//! events that cannot come. librpma's do not always; the heads of the examples list the differences.

use std::thread;

use crate::examples::pairs::forget;
use crate::examples::prelude::*;

/// Starts an example, under the name of its words.
fn start(name: &str, args: &[&str]) -> (String, Program) {
    let program = Program::example(full(name), args);
    (format!("{name} {args:?}"), program)
}

/// librpma's examples do the same.
#[test]
fn a_usage_error_is_status_255() {
    let (addr, port) = (addr(), "7204");
    let mut started = Vec::new();
    for example in EXAMPLES {
        for args in [&[][..], &["client"], &["server", &addr]] {
            started.push(start(example.name, args));
        }
    }
    started.push(start("01", &["both", &addr, port]));
    for name in ["06", "06scch", "07", "10", "11"] {
        started.push(start(name, &["client", &addr, port]));
    }
    for name in ["08", "08srq", "12", "12scch", "13"] {
        started.push(start(name, &["client", &addr, port, "7"]));
    }
    started.push(start("15", &["client", &addr, port, &addr, "7205"]));
    for (what, ended) in ends(started) {
        let ended = ended.failure(USAGE, &what);
        assert!(ended.says("usage: "), "{what}: {ended:?}");
    }
}

/// In C text that is no number counts as 0.
#[test]
fn an_argument_that_cannot_be_used_is_status_255() {
    let (addr, port, dax) = (&*addr(), "7204", &*devdax());
    let started = [
        ("01", &["client", addr, "port"][..]),
        ("01", &["server", addr, "65536"]),
        ("04", &["client", addr, port, dax, "-1"]),
        ("06", &["client", addr, port, "seed"]),
        ("07", &["client", addr, port, &"x".repeat(1024)]),
        ("08", &["client", addr, port, "7", "many"]),
        ("08", &["client", addr, port, "7", "0"]),
        ("08srq", &["server", addr, port, "x"]),
        ("10", &["client", addr, port, "4294967296"]),
        ("11", &["client", addr, port, "4294967296"]),
        ("12scch", &["client", addr, port, "7", "3", "long"]),
        ("13", &["server", addr, port, "0"]),
        ("13", &["server", addr, port, "soon"]),
        ("15", &["client", addr, port, addr, "second", "word"]),
        ("15", &["client", addr, port, addr, port, "word"]),
    ];
    let started = started.map(|(name, args)| start(name, args));
    for (what, ended) in ends(started.into()) {
        ended.failure(USAGE, &what);
    }
}

/// In C it is bytes like any other.
#[test]
fn an_argument_that_is_no_text_is_status_255() {
    // The shell makes it: the arguments of a program that a test starts are text.
    let start = |(name, args): (&str, &str)| {
        let (words, example) = (format!("exec \"$0\" {args}"), executable(full(name)));
        let program = Program::start(&["sh", "-c", &words, &example], LIMIT);
        (format!("{name} {args}"), program)
    };
    const BYTE: &str = "\"$(printf 'a\\377')\"";
    let started = [
        ("01", BYTE.to_owned()),
        ("01", format!("client {BYTE} 7204")),
        ("01", format!("server {} {BYTE}", addr())),
        ("07", format!("client {} 7204 a {BYTE}", addr())),
        ("10", format!("client {} 7204 1 {BYTE}", addr())),
        // One that the program would never look at.
        ("13", format!("client {} 7204 1 1 0 {BYTE}", addr())),
    ];
    let started = started.iter().map(|(name, args)| start((name, args)));
    for (what, ended) in ends(started.collect()) {
        let ended = ended.failure(USAGE, &what);
        assert!(ended.says(r#""a\xFF" is not UTF-8"#), "{what}: {ended:?}");
    }
}

/// A client without a server reports that and does not wait. (01 tries again, see below.)
#[test]
fn nothing_listens() {
    let _test = device_test();
    let addr = addr();
    let [port, second] = [(); 2].map(|()| free_port(&addr));
    let values = Values {
        pmem: None,
        wait: 1,
        second: Some((&addr, second)),
    };
    let mut started = Vec::new();
    for example in EXAMPLES.iter().filter(|known| known.name != full("01")) {
        let args = values.args(&example.dram.clients[0]);
        let started_client = client(example.name, port, &words(&args));
        started.push((example.name.to_owned(), started_client));
    }
    for (what, ended) in ends(started) {
        let ended = ended.failure(FAILURE, &what);
        assert!(ended.says("nobody listens"), "{what}: {ended:?}");
    }
}

/// 01 is about this: its client waits for the server.
#[test]
fn a_client_tries_again_until_the_server_listens() {
    let _test = device_test();
    let port = free_port(&addr());
    let mut client = client("01", port, &[]);
    client.wait_for("Retrying...");
    let server = Program::example_server(full("01"), &addr(), port, &[]);
    let client = client.finish().success("the client");
    assert_eq!(client.stdout, ["Received a message: Hello client!"]);
    server.finish().success("the server");
}

/// An address without an RDMA device.
#[test]
fn no_such_device() {
    let _test = device_test();
    for role in ["client", "server"] {
        let program = Program::example(full("01"), &[role, "127.0.0.1", "7204"]);
        fails_at_once(program, role);
    }
}

/// A client of messages pauses between them: there it is killed. (13's server is in many.rs.)
#[test]
fn a_server_whose_client_is_killed_ends_at_once() {
    fn check(name: &str, args: &[&str], received: &str) {
        let what = format!("{name} {args:?}");
        let (server, port) = server(name, args);
        let mut client = client(name, port, &["7", "1000", "60000000"]);
        client.wait_for(received);
        client.kill();
        let ended = fails_at_once(server, &what);
        let mut lines = ended.stdout.iter();
        let answered = lines.any(|line| line.contains("alue sent: 8"));
        assert!(answered, "{what}: {ended:?}");
    }
    let cases = [
        ("08", &[][..], "Value received: 8"),
        ("08srq", &[], "Value received: 8"),
        ("08srq", &["m"], "Value received: 8"),
        ("08srq", &["r"], "Value received: 8"),
        ("12", &[], "CLIENT: Value received: 8"),
        ("12scch", &[], "CLIENT: Value received: 8"),
    ];
    together(&cases, |(name, args, received)| check(name, args, received));
}

/// The client connects and is gone, before anything that the server waits for.
#[test]
fn a_server_whose_client_sends_nothing_ends_at_once() {
    fn check(name: &str) -> Result {
        let (server, port) = server(name, &[]);
        drop(connect(&peer()?, port));
        let ended = fails_at_once(server, name);
        let answer = ended.stdout.iter().find(|line| line.contains("alue"));
        assert_eq!(answer, None, "{name}: {ended:?}");
        Ok(())
    }
    let names = ["08", "08srq", "09", "09scch", "10", "11", "12", "12scch"];
    together(&names, |name| check(name).expect("a peer"));
}

/// 03: the originals end with status 0 when there is no memory to read.
#[test]
fn a_client_that_describes_no_memory_fails_its_server() -> Result {
    let _test = device_test();
    let (server, port) = server("03", &[]);
    let _conn = connect(&peer()?, port);
    let ended = fails_at_once(server, "03");
    assert_eq!(ended.stdout, [""; 0], "{ended:?}");
    Ok(())
}

/// The originals of some end with status 0.
#[test]
fn a_server_that_describes_no_memory_fails_its_client() {
    fn check(name: &str, args: &[&str]) -> Result {
        let ep = listen(&peer()?)?;
        let client = client(name, ep.get_port(), args);
        let _conn = accept(&ep, &[])?;
        let ended = fails_at_once(client, name);
        let done = |line: &&String| line.starts_with("Read") || line.starts_with("Translation");
        assert_eq!(ended.stdout.iter().find(done), None, "{name}: {ended:?}");
        Ok(())
    }
    let names = ["02", "04", "05", "09", "09scch"];
    let mut cases = names.map(|name| (name, &[][..])).to_vec();
    cases.extend([("07", &["word"][..]), ("11", &["1234"])]);
    together(&cases, |(name, args)| check(name, args).expect("listens"));
}

/// A server that accepts and is gone, before the client's operation can be done: it gives no
/// receive, and the memory that it describes is not registered any more.
#[test]
fn a_client_whose_server_vanishes_ends_at_once() {
    /// The size of the memory, the place of the data, and the descriptor of the server's platform.
    type Gone = (usize, u16, Option<u8>);
    fn check(name: &str, args: &[&str], gone: Option<Gone>) -> Result {
        let peer = peer()?;
        let ep = listen(&peer)?;
        let client = client(name, ep.get_port(), args);
        let private_data = match gone {
            Some((size, offset, pcfg)) => {
                let usage = MrUsage::READ_SRC | MrUsage::WRITE_DST;
                let usage = usage | MrUsage::FLUSH_TYPE_VISIBILITY;
                describe(offset, &region(&peer, size, usage)?.get_descriptor(), pcfg)
            }
            None => Vec::new(),
        };
        drop(accept(&ep, &private_data)?);
        let ended = fails_at_once(client, name);
        // Or its device has given up before the client has seen the event.
        let why = ["while waiting for a completion", "client: the operation "];
        assert!(why.iter().any(|why| ended.says(why)), "{name}: {ended:?}");
        let done = ["received", "Read", "Translation"];
        let done = |line: &&String| done.iter().any(|done| line.contains(done));
        assert_eq!(ended.stdout.iter().find(done), None, "{name}: {ended:?}");
        Ok(())
    }
    let messages = ["08", "08srq", "12", "12scch", "13"];
    let mut cases = messages.map(|name| (name, &["7", "3"][..], None)).to_vec();
    // In one round there is only the last message.
    cases.extend(["08", "12", "12scch"].map(|name| (name, &["7", "1"][..], None)));
    cases.extend([
        ("10", &["1234"][..], None),
        ("02", &[], Some((1024, 0, None))),
        ("04", &[], Some((1024, 0, None))),
        ("05", &[], Some((1024, 0, Some(0)))),
        ("07", &["word"], Some((1040, 8, None))),
        ("09", &[], Some((1024, 0, None))),
        ("09scch", &[], Some((1024, 0, None))),
        ("11", &["1234"], Some((1024, 0, None))),
    ]);
    together(&cases, |(name, args, gone)| {
        check(name, args, *gone).expect("listens");
    });
}

/// It would be taken for the end. librpma's clients send it.
#[test]
fn a_counter_that_means_the_end_is_refused() {
    const REASON: &str = "the message that ends the exchange";
    let max = &*u64::MAX.to_string();
    let _test = device_test();
    thread::scope(|scope| {
        for name in ["08", "08srq", "12", "12scch"] {
            scope.spawn(move || {
                let (server, client) = run(name, &[], &[max, "2"]);
                let client = client.failure(FAILURE, name);
                assert!(client.says(REASON), "{name}: {client:?}");
                assert_eq!(client.stdout, [""; 0], "{name}: {client:?}");
                let server = server.failure(FAILURE, name);
                assert_eq!(server.stdout, [""; 0], "{name}: {server:?}");
            });
        }
        // 13's server would wait for other clients first.
        scope.spawn(|| {
            let peer = peer().expect("a peer on the test device");
            let ep = listen(&peer).expect("listens");
            let client = client("13", ep.get_port(), &[max, "2"]);
            let conn = accept(&ep, &[]).expect("accepts");
            let dst = region(&peer, 8, MrUsage::RECV).expect("registers");
            conn.recv(dst.slice(..).expect("inside"), 0).expect("posts");
            let ended = client.finish().failure(FAILURE, "13");
            assert!(ended.says(REASON), "{ended:?}");
            assert_eq!(ended.stdout, [""; 0], "{ended:?}");
            assert_eq!(event(&conn).expect("an event in time"), ConnEvent::Closed);
            conn.disconnect().expect("answers");
            let received = completion(&conn).expect("polling works").result().is_ok();
            assert!(!received, "a message came");
        });
        // One that is reached on the way, by an answer.
        scope.spawn(|| {
            let (server, client) = run("08", &[], &[&(u64::MAX - 1).to_string(), "3"]);
            let client = client.failure(FAILURE, "the client");
            assert!(client.says(REASON), "{client:?}");
            let of_client = [("sent", u64::MAX - 1), ("received", u64::MAX)];
            let of_server = [("received", u64::MAX - 1), ("sent", u64::MAX)];
            let line = |(what, value)| format!("Value {what}: {value}");
            assert_eq!(client.stdout, of_client.map(line), "{client:?}");
            let server = server.failure(FAILURE, "the server");
            assert_eq!(server.stdout, of_server.map(line), "{server:?}");
        });
    });
}

/// 09: the range to flush comes from another program. Here the server does not offer it.
#[test]
fn a_flush_of_more_than_the_server_offers_is_refused() {
    fn check(name: &str, offset: u64, length: u64) -> Result {
        let (server, port) = server(name, &[]);
        let request = request(&[(1, offset), (2, length), (3, 0xF01D)]);
        let ended = send_to(server, port, &request, name)?;
        let range = format!("offset: 0x{offset:X}, length: 0x{length:X}");
        let shown = format!("Flush request received: {{{range}, op_context: 0xF01D}}");
        assert_eq!(ended.stdout, [shown], "{name}: {ended:?}");
        Ok(())
    }
    let cases = [
        ("09", 0, 1025),
        ("09", 1024, 1),
        ("09", 0, 0),
        ("09", u64::MAX, 1024),
        ("09scch", 1, 1024),
    ];
    together(&cases, |&(name, offset, length)| {
        check(name, offset, length).expect("a peer on the test device");
    });
}

/// The fields of a request, with their numbers.
fn request(fields: &[(u8, u64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, value) in fields {
        bytes.push(number << 3 | 1);
        bytes.extend(value.to_le_bytes());
    }
    bytes
}

/// 09: a message that is no request, or one that another program could understand differently.
#[test]
fn a_flush_request_that_is_not_as_it_should_be_is_refused() {
    const OFFSET: (u8, u64) = (1, 0);
    const LENGTH: (u8, u64) = (2, 1024);
    const CONTEXT: (u8, u64) = (3, 0xF01D);
    const UNKNOWN: (u8, u64) = (4, 1);
    const REQUESTS: [(&str, &[(u8, u64)]); 9] = [
        ("no offset", &[LENGTH, CONTEXT]),
        ("no length", &[OFFSET, CONTEXT]),
        ("no context", &[OFFSET, LENGTH]),
        ("no offset, but two lengths", &[LENGTH, LENGTH, CONTEXT]),
        ("two contexts, but no offset", &[LENGTH, CONTEXT, CONTEXT]),
        ("a second offset", &[OFFSET, OFFSET, LENGTH, CONTEXT]),
        ("a second context", &[OFFSET, LENGTH, CONTEXT, CONTEXT]),
        ("an unknown field", &[OFFSET, LENGTH, CONTEXT, UNKNOWN]),
        ("one for the offset", &[UNKNOWN, LENGTH, CONTEXT]),
    ];
    fn check(name: &str, what: &str, message: &[u8]) -> Result {
        let (server, port) = server(name, &[]);
        let ended = send_to(server, port, message, what)?;
        assert_eq!(ended.stdout, [""; 0], "{name}: {what}: {ended:?}");
        Ok(())
    }
    let case = |name, (what, fields)| (name, what, request(fields));
    let mut cases = REQUESTS.map(|request| case("09", request)).to_vec();
    // It reads them with the same code.
    let others = [REQUESTS[1], REQUESTS[3], REQUESTS[5], REQUESTS[7]];
    cases.extend(others.map(|request| case("09scch", request)));
    cases.extend(["09", "09scch"].map(|name| (name, "no fields", vec![0xFF; 27])));
    together(&cases, |(name, what, message)| {
        check(name, what, message).expect("a peer on the test device");
    });
}

/// 09: a client disconnects when it has the response, and its device may not have acknowledged
/// that by then. Here it never does, for want of a receive.
///
/// A server that stands still meanwhile finds that its own device has given up.
#[test]
fn a_disconnect_is_the_answer_to_the_response() {
    fn check(name: &str, stands_still: bool) -> Result {
        let (server, port) = server(name, &[]);
        let peer = peer()?;
        let conn = connect(&peer, port);
        send(&conn, &peer, &request(&[(1, 0), (2, 1024), (3, 0xF01D)]))?;
        if stands_still {
            // By then it has posted the response. (If not, this is the other case.)
            thread::sleep(Duration::from_secs(2));
            server.standing_still(|| {
                conn.disconnect()?;
                thread::sleep(Duration::from_secs(8));
                Ok(())
            })?;
        } else {
            conn.disconnect()?;
        }
        assert_eq!(event(&conn)?, ConnEvent::Closed, "{name}");
        let ended = server.finish().success(name);
        let shown = "Flush request received: {offset: 0x0, length: 0x400, op_context: 0xF01D}";
        assert_eq!(ended.stdout[0], shown, "{name}: {ended:?}");
        let warning = "the client has disconnected before it acknowledged the response";
        assert!(ended.says(warning), "{name}: {ended:?}");
        Ok(())
    }
    let [one, other] = ["09", "09scch"];
    let cases = [(one, false), (one, true), (other, false), (other, true)];
    together(&cases, |&(name, stands_still)| {
        check(name, stands_still).expect("disconnects");
    });
}

/// Sends a message to a server, which has to fail then.
fn send_to(server: Program, port: u16, message: &[u8], what: &str) -> Result<Ended> {
    let peer = peer()?;
    let conn = connect(&peer, port);
    send(&conn, &peer, message)?;
    Ok(fails_at_once(server, what))
}

/// 08, 12: the originals disconnect while their last message may still be queued, and lose it.
/// Here the server has no receive for it yet, so it is queued for certain.
#[test]
fn a_client_does_not_lose_its_last_message() -> Result {
    let _test = device_test();
    for name in ["08", "12", "12scch"] {
        let peer = peer()?;
        let ep = listen(&peer)?;
        // In one round there is only the last message.
        let client = client(name, ep.get_port(), &["7", "1"]);
        let conn = accept(&ep, &[])?;
        let dst = region(&peer, 8, MrUsage::RECV)?;
        thread::sleep(Duration::from_millis(500));
        conn.recv(dst.slice(..)?, 1)?;
        completion(&conn)?.result()?;
        assert_eq!(dst.load_u64(0)?, u64::MAX, "{name}");
        assert_eq!(event(&conn)?, ConnEvent::Closed, "{name}");
        conn.disconnect()?;
        let ended = client.finish().success(name);
        assert_eq!(ended.stdout, [""; 0], "{name}: {ended:?}");
    }
    Ok(())
}

/// 08srq: its server takes the messages from either of three queues. librpma's queue gets full of
/// its own sends.
#[test]
fn fifty_rounds_with_each_queue_of_a_shared_receive_queue() {
    fn check(mode: &[&str]) {
        let (server, client) = run("08srq", mode, &["7", "50"]);
        let (of_client, of_server) = ping_pong(7, 50);
        let client = client.success("the client");
        assert_eq!(client.stdout, around("V", &of_client, ""), "{mode:?}");
        let server = server.success("the server");
        assert_eq!(server.stdout, around("V", &of_server, ""), "{mode:?}");
    }
    together(&[&[][..], &["m"], &["r"]], |mode| check(mode));
}

/// 10: a message may be empty except for its immediate data.
#[test]
fn immediate_data_without_a_word() {
    let _test = device_test();
    for imm in ["0", "4294967295"] {
        let (server, client) = run("10", &[], &[imm]);
        let client = client.success(imm);
        assert_eq!(client.stdout, [format!("Sending immediate data '{imm}'")]);
        let shown = format!("Received value '' with immediate data '{imm}'");
        assert_eq!(server.success(imm).stdout, [shown]);
    }
}

/// 05: persistent memory without a declaration that writes go there directly.
#[test]
fn a_persistent_flush_needs_the_word_of_the_server() -> Result {
    const YES: &str = "supported";
    const NO: &str = "NOT supported, RPMA_FLUSH_TYPE_VISIBILITY is used instead";
    let _test = device_test();
    forget()?;
    let dax = devdax();
    for (args, shown) in [
        (&[&*dax][..], NO),
        (&[&dax, "off"], NO),
        (&[&dax, "on"], YES),
    ] {
        let (server, client) = run("05", args, &[]);
        server.success("the server");
        let line = &client.success("the client").stdout[1];
        assert_eq!(*line, format!("RPMA_FLUSH_TYPE_PERSISTENT is {shown}"));
    }
    Ok(())
}
