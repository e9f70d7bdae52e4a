//! The servers of many clients: 06, 06scch and 13. They wait, for 15 seconds and more, for a
//! client that does not come. So all that is to be seen of them is seen at the same time.

use std::thread;

use crate::examples::pairs::slow;
use crate::examples::prelude::*;

/// A test that runs together with others.
pub(crate) struct Check {
    what: String,
    run: Box<dyn FnOnce() + Send>,
}

impl Check {
    pub(crate) fn new(what: impl Into<String>, run: impl FnOnce() + Send + 'static) -> Self {
        let (what, run) = (what.into(), Box::new(run));
        Self { what, run }
    }

    /// The clients of 06 should not start when all others do.
    fn in_its_turn(self) -> Self {
        let Self { what, run } = self;
        let pause = match () {
            () if what.starts_with("06") => Duration::from_secs(8),
            // When those have come.
            () if what.ends_with("stands still") => Duration::from_secs(25),
            () => Duration::ZERO,
        };
        Self::new(what, move || {
            thread::sleep(pause);
            run();
        })
    }
}

/// Runs checks at the same time, and returns the failed ones: each panics in a thread of its name.
pub(crate) fn together(checks: Vec<Check>) {
    let failed: Vec<String> = thread::scope(|scope| {
        let start = |Check { what, run }| {
            let thread = thread::Builder::new().name(String::clone(&what));
            (what, thread.spawn_scoped(scope, run).expect("a thread"))
        };
        let running: Vec<_> = checks.into_iter().map(start).collect();
        let failed = running.into_iter().filter_map(|(what, thread)| {
            let ended = thread.join();
            ended.is_err().then_some(what)
        });
        failed.collect()
    });
    assert!(failed.is_empty(), "failed: {failed:#?}");
}

/// The seconds for which examples 06 and 13 wait. Their clients start among all others, and on a busy
/// machine that took more than 15.
const LISTENS: &str = "30";

#[test]
fn servers_of_many_clients() {
    // The pairs as they should work.
    let mut checks = slow();
    for name in ["06", "06scch", "06tokio"] {
        checks.extend([
            Check::new(format!("{name}: a bad client"), || outlives_bad_ones(name)),
            Check::new(format!("{name}: eleven clients"), || {
                serves_ten(name).expect("answers")
            }),
        ]);
    }
    checks.extend([
        Check::new("13: eleven clients", || {
            serves_ten_with_messages().expect("answers");
        }),
        Check::new("13: 50 rounds", fifty_rounds),
        Check::new("13: a client is killed", fails_when_a_client_is_killed),
        Check::new("13: a client sends nothing", fails_without_a_message),
    ]);
    // These wait, too.
    for name in ["01", "02", "05"] {
        let what = format!("{name}: a server that stands still");
        let check = move || gives_up_on_a_server_that_stands_still(name);
        checks.push(Check::new(what, check));
    }
    let checks = checks.into_iter().map(Check::in_its_turn).collect();
    let _test = device_test();
    together(checks);
}

/// A server that is stopped before it accepts. Its kernel asks the client's to wait, again and
/// again.
fn gives_up_on_a_server_that_stands_still(name: &str) {
    let (server, port) = server(name, &[]);
    let stopped = server.standing_still(|| {
        let ended = client(name, port, &[]).finish().failure(FAILURE, name);
        assert!(ended.says("not answer"), "{name}: {ended:?}");
        Ok(())
    });
    stopped.expect("stops");
}

/// 06 goes on when one of its clients fails, which is no reason for the others to. Its status
/// reports the failure.
fn outlives_bad_ones(name: &str) {
    let (mut server, port) = server(name, &[LISTENS]);
    // One that describes no memory, and one that is gone at once.
    let peer = peer().expect("a peer on the test device");
    let silent = connect(&peer, port);
    drop(connect(&peer, port));
    let good = client(name, port, &["8"]).finish().success(name);
    assert_eq!(good.stdout, ["My names is: Chet"]);
    server.wait_for("- Chet");
    drop(silent);
    // At its time limit.
    let ended = server.finish().failure(FAILURE, name);
    assert!(ended.says("Server timed out."), "{name}: {ended:?}");
}

/// 06: a client that comes when ten are there is rejected, and neither that nor where in its memory
/// a client keeps its name disturbs the others. A slot is free again when its client has answered.
fn serves_ten(name: &str) -> Result {
    const SLOT: usize = 32;
    let (mut server, port) = server(name, &[LISTENS]);
    assert_eq!(server.line(), "Today I have got in touch with:");
    let peer = peer()?;
    let names = region(&peer, 16 * SLOT, MrUsage::READ_SRC)?;
    names.write_at(0, b"nobody")?;
    let dial = |number: usize| -> Result<_> {
        let at = number * SLOT;
        let name = format!("client {number}");
        names.write_at(at, name.as_bytes())?;
        let data = describe(at as u16, &names.get_descriptor(), None);
        Ok(dial(&peer, port, &data))
    };

    // All are served. No client answers to the end of its connection yet.
    let mut clients = Vec::new();
    for number in 1..=10 {
        let conn = dial(number)?;
        assert_eq!(event(&conn)?, ConnEvent::Established);
        clients.push(conn);
    }
    let mut lines = [(); 10].map(|()| server.line());
    lines.sort();
    let mut expected: Vec<_> = (1..=10).map(|n| format!("- client {n}")).collect();
    expected.sort();
    assert_eq!(lines[..], expected);

    let rejected = |event| matches!(event, ConnEvent::Rejected { .. });
    assert!(rejected(event(&dial(11)?)?), "no room for another one");

    for (number, conn) in clients.into_iter().enumerate() {
        assert_eq!(event(&conn)?, ConnEvent::Closed);
        // An answer, or an end: the server sees the same.
        if number % 2 == 0 {
            conn.disconnect()?;
        }
    }
    // When the server has seen the first of them.
    let since = Instant::now();
    let last = loop {
        let conn = dial(12)?;
        match event(&conn)? {
            ConnEvent::Established => break conn,
            other => assert!(rejected(other), "it is rejected meanwhile"),
        }
        assert!(since.elapsed() < LIMIT, "{name}: no slot is ever free");
    };
    assert_eq!(server.line(), "- client 12");
    assert_eq!(event(&last)?, ConnEvent::Closed);
    last.disconnect()?;

    let ended = server.finish().success(name);
    assert_eq!(ended.stdout, [""; 0], "{ended:?}");
    for text in ["No free slot: a client is rejected.", "Server timed out."] {
        assert!(ended.says(text), "{name}: {ended:?}");
    }
    Ok(())
}

/// 13: a client that comes when ten are there is rejected. However many come, the ten are served
/// when no other one could be accepted for so long, and no client has to wait for another one in
/// the end.
fn serves_ten_with_messages() -> Result {
    let (mut server, port) = server("13", &[LISTENS]);
    let peer = peer()?;
    let src = region(&peer, 80, MrUsage::SEND)?;
    let dst = region(&peer, 80, MrUsage::RECV)?;
    let mut clients = Vec::new();
    for at in (0..80).step_by(8) {
        let conn = connect(&peer, port);
        conn.recv(dst.slice(at..at + 8)?, 0)?;
        clients.push((at, conn));
    }

    let (since, mut rejected) = (Instant::now(), 0);
    while !server.has_said("Server ended listening.") {
        let conn = dial(&peer, port, &[]);
        match conn.next_event_timeout(Duration::from_secs(1)) {
            Ok(event) => {
                assert!(matches!(event, ConnEvent::Rejected { .. }), "{event}");
                rejected += 1;
            }
            // It has ended listening just now: no answer comes.
            Err(Error::NoEvent) => {}
            Err(error) => panic!("{error}"),
        }
        let listens = since.elapsed();
        assert!(listens < Duration::from_secs(40), "it still listens");
        thread::sleep(Duration::from_millis(500));
    }
    assert!(rejected > 0, "nobody was rejected");

    let send = |(at, conn): &(usize, Conn), value: u64| {
        src.store_u64(*at, value)?;
        conn.send(src.slice(*at..*at + 8)?, Flags::COMPLETION_ALWAYS, 0)
    };
    let first = |at: usize| 1000 + 10 * at as u64;
    let mut expected = connected(10);
    for client in &clients {
        send(client, first(client.0))?;
    }
    for client in &clients {
        let (at, conn) = client;
        for wc in completions(conn, 2)? {
            wc.result()?;
        }
        assert_eq!(dst.load_u64(*at)?, first(*at) + 1);
        let (_, lines) = ping_pong(first(*at), 1);
        let after = format!(" from the connection [qp#{at}]");
        expected.extend(around("[server] v", &lines, &after));
        send(client, u64::MAX)?;
        completion(conn)?.result()?;
    }
    // The last one first.
    for (_, conn) in clients.iter().rev() {
        assert_eq!(event(conn)?, ConnEvent::Closed);
        conn.disconnect()?;
    }
    let ended = server.finish().success("13");
    assert_eq!(canonical(&ended.stdout), canonical(&expected));
    Ok(())
}

/// The lines of a server that has listened, and accepted so many clients.
fn connected(clients: u32) -> Vec<String> {
    let line = |number| format!("The client #{number} has been connected.");
    let end = "Server ended listening.".to_owned();
    (1..=clients).map(line).chain([end]).collect()
}

/// 13: librpma's send queue is full after some rounds.
fn fifty_rounds() {
    let (server, port) = server("13", &[LISTENS]);
    let start = |first: u64| client("13", port, &[&first.to_string(), "50"]);
    let clients = [1000, 2000].map(|first| (first, start(first)));
    let mut expected = connected(2);
    for (first, client) in clients {
        let (of_client, of_server) = ping_pong(first, 50);
        let ended = client.finish().success("the client");
        let of_client = around("[client #1] v", &of_client, "");
        assert_eq!(canonical(&ended.stdout), canonical(&of_client));
        let after = format!(" from the connection [qp#{first}]");
        expected.extend(around("[server] v", &of_server, &after));
    }
    let ended = server.finish().success("the server");
    assert_eq!(canonical(&ended.stdout), canonical(&expected));
}

/// 13: as the other servers of messages, but after it has listened. The messages of another client
/// do not hide that one is gone: it would go on for two minutes.
fn fails_when_a_client_is_killed() {
    let (server, port) = server("13", &[LISTENS]);
    let other = client("13", port, &["100", "1200", "100000"]);
    // It pauses between its messages.
    let mut client = client("13", port, &["7", "1000", "60000000"]);
    client.wait_for("value received: 8");
    client.kill();
    let ended = fails_at_once(server, "13");
    let answered = ended.stdout.iter().any(|line| line.contains("sent: 8"));
    assert!(answered, "{ended:?}");
    other.finish().failure(FAILURE, "the other client");
}

/// 13: the client is gone while the server listens.
fn fails_without_a_message() {
    let (server, port) = server("13", &[LISTENS]);
    drop(connect(&peer().expect("a peer on the test device"), port));
    let ended = fails_at_once(server, "13");
    let answer = ended.stdout.iter().find(|line| line.contains("value"));
    assert_eq!(answer, None, "{ended:?}");
}
