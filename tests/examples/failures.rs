//! How the examples fail: with a status that is not 0, with a reason, and without waiting for what
//! cannot come. librpma's do not always; docs/examples.md lists the differences.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rpma::pmem::PmemMap;
use rpma::{Conn, ConnCfg, ConnEvent, ConnReq, Ep, Flags, Mr, MrUsage, Peer};

use crate::common::program::{Ended, Program, free_port};
use crate::common::{LIMIT, addr, completion, devdax, device_test, event, ext4, peer, region};
use crate::pairs::forget;
use crate::runs::{self, EXAMPLES, Values};

/// Of a program that could not do what it should, and of one whose arguments cannot be used.
const FAILURE: i32 = 1;
const USAGE: i32 = 255;
/// "At once", under emulation and on a busy machine. Whoever waits for what cannot come is killed
/// after [`LIMIT`].
const AT_ONCE: Duration = Duration::from_secs(40);

fn full(name: &str) -> &'static str {
    runs::find(name).expect("a known example").name
}

/// A server of an example, once it listens.
fn server(name: &str, args: &[&str]) -> (Program, u16) {
    let (addr, port) = (addr(), free_port(&addr()));
    (Program::example_server(full(name), &addr, port, args), port)
}

fn client(name: &str, port: u16, args: &[&str]) -> Program {
    let (addr, port) = (addr(), port.to_string());
    let args = [&["client", &addr, &port], args].concat();
    Program::example(full(name), &args)
}

/// A client that this test plays, once it is connected. It sends nothing.
fn connect(peer: &Peer, port: u16) -> Conn {
    let req = ConnReq::new(peer, &addr(), port, &ConnCfg::new()).expect("resolves");
    let conn = req.connect(&[]).expect("asks");
    assert_eq!(event(&conn), ConnEvent::Established);
    conn
}

/// What a server that this test plays listens with.
fn listen(peer: &Peer) -> Ep {
    Ep::listen(peer, &addr(), 0).expect("listens")
}

fn accept(ep: &Ep) -> Conn {
    let req = ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT);
    let conn = req.expect("a request").connect(&[]).expect("accepts");
    assert_eq!(event(&conn), ConnEvent::Established);
    conn
}

/// Waits for a program that has to fail at once.
fn fails_at_once(program: Program, what: &str) -> Ended {
    let since = Instant::now();
    let ended = program.finish().failure(FAILURE, what);
    assert!(since.elapsed() < AT_ONCE, "{what}: {:?}", since.elapsed());
    ended
}

/// Runs both sides of an example; `args` are the words that follow the address and the port.
fn run(name: &str, server_args: &[&str], client_args: &[&str]) -> (Ended, Ended) {
    let (server, port) = server(name, server_args);
    let client = client(name, port, client_args).finish();
    (server.finish(), client)
}

/// Programs that were started at the same time, as they end.
fn ends(started: Vec<(String, Program)>) -> impl Iterator<Item = (String, Ended)> {
    let end = |(what, program): (String, Program)| (what, program.finish());
    started.into_iter().map(end)
}

/// librpma's examples do the same.
#[test]
fn a_usage_error_is_status_255() {
    let (addr, port) = (addr(), "7204");
    let words = |name: &str, args: &[&str]| {
        let program = Program::example(full(name), args);
        (format!("{name} {args:?}"), program)
    };
    let mut started = Vec::new();
    for example in EXAMPLES {
        for args in [&[][..], &["client"], &["server", &addr]] {
            started.push(words(example.name, args));
        }
    }
    started.push(words("01", &["both", &addr, port]));
    for name in ["06", "06scch", "07", "10", "11"] {
        started.push(words(name, &["client", &addr, port]));
    }
    for name in ["08", "08srq", "12", "12scch", "13"] {
        started.push(words(name, &["client", &addr, port, "7"]));
    }
    for (what, ended) in ends(started) {
        let ended = ended.failure(USAGE, &what);
        assert!(ended.says("usage: "), "{what}: {ended:?}");
    }
}

/// In C a number that is none counts as 0.
#[test]
fn an_argument_that_cannot_be_used_is_status_255() {
    let (addr, port, dax) = (&*addr(), "7204", &*devdax());
    let start = |(name, args): (&str, &[&str])| {
        let program = Program::example(full(name), args);
        (format!("{name} {args:?}"), program)
    };
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
    ];
    for (what, ended) in ends(started.into_iter().map(start).collect()) {
        ended.failure(USAGE, &what);
    }
}

/// A client whose server is not there says so and does not wait. (01 tries again, see below.)
#[test]
fn nothing_listens() {
    device_test(|| {
        let port = free_port(&addr());
        let values = Values {
            pmem: None,
            wait: 1,
        };
        let mut started = Vec::new();
        for example in EXAMPLES.iter().filter(|known| known.name != full("01")) {
            let args = example.dram.clients[0].args(&values);
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            started.push((example.name.to_owned(), client(example.name, port, &args)));
        }
        for (what, ended) in ends(started) {
            let ended = ended.failure(FAILURE, &what);
            assert!(ended.says("nobody listens"), "{what}: {ended:?}");
        }
    });
}

/// 01 is about this: its client waits for the server.
#[test]
fn a_client_tries_again_until_the_server_listens() {
    device_test(|| {
        let port = free_port(&addr());
        let mut client = client("01", port, &[]);
        client.wait_for("Retrying...");
        let server = Program::example_server(full("01"), &addr(), port, &[]);
        let client = client.finish().success("the client");
        assert_eq!(client.stdout, ["Received a message: Hello client!"]);
        server.finish().success("the server");
    });
}

/// An address without an RDMA device behind it.
#[test]
fn no_such_device() {
    device_test(|| {
        for role in ["client", "server"] {
            let program = Program::example(full("01"), &[role, "127.0.0.1", "7204"]);
            fails_at_once(program, role);
        }
    });
}

/// The originals crash.
#[test]
fn memory_that_is_not_persistent_is_an_error() {
    let dir = tempfile::tempdir_in(ext4()).expect("a directory");
    let path = dir.path().join("file");
    fs::write(&path, [0; 16384]).expect("a file");
    let path = path.to_str().expect("text");
    let mut started = Vec::new();
    for example in EXAMPLES.iter().filter(|known| known.pmem.is_some()) {
        for role in ["client", "server"] {
            // To 07's client the path would be a word.
            if (example.name, role) != (full("07"), "client") {
                let program = Program::example(example.name, &[role, &addr(), "7204", path]);
                started.push((format!("{} {role}", example.name), program));
            }
        }
    }
    for (what, ended) in ends(started) {
        let ended = ended.failure(FAILURE, &what);
        assert!(ended.says("is not an actual PMEM"), "{what}: {ended:?}");
    }
    assert_eq!(fs::read(path).expect("the file"), [0; 16384], "untouched");
}

/// The originals initialise another place when the offset is not 0, and then find no greeting.
#[test]
fn a_pmem_offset_initialises_the_right_place() {
    device_test(|| {
        const OFFSET: usize = 8192;
        forget();
        let before = memory();
        let (server, client) = run("04", &[], &[&devdax(), &OFFSET.to_string()]);
        server.success("the server");
        let client = client.success("the client");
        assert_eq!(client.stdout[0], "Next value: Hello world!");

        // The signature, the number of the other language, and the greeting in it.
        let mut expected = before;
        let mut put = |at: usize, bytes: &[u8]| {
            expected[OFFSET + at..][..bytes.len()].copy_from_slice(bytes);
        };
        put(0, b"RPMA_EXAMPLE_SIG\0");
        put(17, &[0; 1028]);
        put(17, &1_u32.to_le_bytes());
        put(21, "¡Hola Mundo!".as_bytes());
        assert!(memory() == expected, "nothing else has changed");
    });
}

/// What is in the part of the persistent memory that the examples use.
fn memory() -> Vec<u8> {
    let map = PmemMap::open(devdax(), 16384).expect("maps");
    let mut bytes = vec![0; 16384];
    map.read_at(0, &mut bytes).expect("inside");
    bytes
}

/// 07: the originals write behind the end of the log.
#[test]
fn a_word_that_does_not_fit_the_log_is_refused() {
    device_test(|| {
        forget();
        let dax = devdax();
        let append = |words: &[&str]| run("07", &[&dax], words);
        let long = "a".repeat(1000);
        let (server, client) = append(&[&long]);
        client.success("it fits");
        assert_eq!(server.success("the server").stdout, [&*long]);

        // 23 bytes are left.
        let (too_long, fitting) = ("b".repeat(23), "c".repeat(22));
        for words in [&[&*too_long][..], &["d", &fitting]] {
            let before = memory();
            let (server, client) = append(words);
            let client = client.failure(FAILURE, &format!("{words:?}"));
            assert_eq!(client.stdout, ["used value: 1017"]);
            assert_eq!(server.success("the server").stdout, [&*long], "{words:?}");
            assert!(memory() == before, "the log is as it was: {words:?}");
        }
        let (server, client) = append(&[&fitting]);
        client.success("it fits exactly");
        assert_eq!(server.success("the server").stdout, [&*long, &*fitting]);
        let (server, client) = append(&["e"]);
        assert!(
            client
                .failure(FAILURE, "a full log")
                .says("Log size exhausted.")
        );
        assert_eq!(server.success("the server").stdout, [&*long, &*fitting]);
    });
}

/// A client of messages pauses between them: there it is killed.
#[test]
fn a_server_whose_client_is_killed_ends_at_once() {
    fn check(name: &str, args: &[&str], received: &str) {
        let what = format!("{name} {args:?}");
        let (server, port) = server(name, args);
        let mut client = client(name, port, &["7", "1000", "60000000"]);
        client.wait_for(received);
        client.kill();
        let ended = fails_at_once(server, &what);
        let answered = ended
            .stdout
            .iter()
            .any(|line| line.contains("alue sent: 8"));
        assert!(answered, "{what}: {ended:?}");
    }
    device_test(|| {
        thread::scope(|scope| {
            scope.spawn(|| check("08", &[], "Value received: 8"));
            for mode in [&[][..], &["m"], &["r"]] {
                scope.spawn(|| check("08srq", mode, "Value received: 8"));
            }
            scope.spawn(|| check("12", &[], "CLIENT: Value received: 8"));
            scope.spawn(|| check("12scch", &[], "CLIENT: Value received: 8"));
            // It waits for other clients first.
            scope.spawn(|| check("13", &["15"], "value received: 8"));
        });
    });
}

/// The client connects and is gone, before anything that the server waits for.
#[test]
fn a_server_whose_client_sends_nothing_ends_at_once() {
    fn check(name: &str, args: &[&str]) {
        let (server, port) = server(name, args);
        drop(connect(&peer(), port));
        let ended = fails_at_once(server, name);
        let answer = ended.stdout.iter().find(|line| line.contains("alue"));
        assert_eq!(answer, None, "{name}: {ended:?}");
    }
    device_test(|| {
        thread::scope(|scope| {
            for name in ["08", "08srq", "09", "09scch", "10", "11", "12", "12scch"] {
                scope.spawn(|| check(name, &[]));
            }
            // It listens for so long after its last client.
            scope.spawn(|| check("13", &["15"]));
        });
    });
}

/// 03: the originals end with status 0 when there is nothing to read.
#[test]
fn a_client_that_describes_no_memory_fails_its_server() {
    device_test(|| {
        let (server, port) = server("03", &[]);
        let conn = connect(&peer(), port);
        let ended = fails_at_once(server, "03");
        assert_eq!(ended.stdout, [""; 0], "{ended:?}");
        drop(conn);
    });
}

/// The originals of some end with status 0.
#[test]
fn a_server_that_describes_no_memory_fails_its_client() {
    fn check(name: &str, args: &[&str]) {
        let ep = listen(&peer());
        let client = client(name, ep.get_port(), args);
        let conn = accept(&ep);
        let ended = fails_at_once(client, name);
        let done = |line: &&String| line.starts_with("Read") || line.starts_with("Translation");
        assert_eq!(ended.stdout.iter().find(done), None, "{name}: {ended:?}");
        drop(conn);
    }
    device_test(|| {
        thread::scope(|scope| {
            for name in ["02", "04", "05", "09", "09scch"] {
                scope.spawn(|| check(name, &[]));
            }
            scope.spawn(|| check("07", &["word"]));
            scope.spawn(|| check("11", &["1234"]));
        });
    });
}

/// A server that is gone in the middle of an exchange.
#[test]
fn a_client_whose_server_vanishes_ends_at_once() {
    fn check(name: &str) {
        let ep = listen(&peer());
        let client = client(name, ep.get_port(), &["7", "3"]);
        drop(accept(&ep));
        fails_at_once(client, name);
    }
    device_test(|| {
        thread::scope(|scope| {
            for name in ["08", "08srq", "12", "12scch", "13"] {
                scope.spawn(|| check(name));
            }
        });
    });
}

/// 09: what to flush is the word of another program. Here it is not what the server offers.
#[test]
fn a_flush_of_more_than_the_server_offers_is_refused() {
    fn check(name: &str, offset: u64, length: u64) {
        let (server, port) = server(name, &[]);
        let mut request = Vec::new();
        for (tag, value) in [(0x09, offset), (0x11, length), (0x19, 0xF01D)] {
            request.push(tag);
            request.extend(value.to_le_bytes());
        }
        let ended = send_to(server, port, &request, name);
        let shown = format!(
            "Flush request received: {{offset: 0x{offset:X}, length: 0x{length:X}, \
             op_context: 0xF01D}}"
        );
        assert_eq!(ended.stdout, [shown], "{name}: {ended:?}");
    }
    device_test(|| {
        thread::scope(|scope| {
            for (offset, length) in [(0, 1025), (1024, 1), (0, 0), (u64::MAX, 1024)] {
                scope.spawn(move || check("09", offset, length));
            }
            scope.spawn(|| check("09scch", 1, 1024));
            for name in ["09", "09scch"] {
                scope.spawn(move || {
                    let (server, port) = server(name, &[]);
                    let ended = send_to(server, port, &[0xFF; 27], "no request at all");
                    assert_eq!(ended.stdout, [""; 0], "{name}: {ended:?}");
                });
            }
        });
    });
}

/// Sends a message to a server, which has to fail then.
fn send_to(server: Program, port: u16, message: &[u8], what: &str) -> Ended {
    let peer = peer();
    let conn = connect(&peer, port);
    let src = Mr::reg(&peer, message.to_vec(), MrUsage::SEND).expect("registers");
    let src = src.slice(..).expect("inside");
    conn.send(src, Flags::COMPLETION_ALWAYS, 0).expect("posts");
    fails_at_once(server, what)
}

/// 08, 12: the originals disconnect while their last message may still be queued, and lose it. Here the
/// server has no receive for it yet, so it is queued for certain.
#[test]
fn a_client_does_not_lose_its_last_message() {
    device_test(|| {
        for name in ["08", "12", "12scch"] {
            let peer = peer();
            let ep = listen(&peer);
            // With one round there is nothing but the last message.
            let client = client(name, ep.get_port(), &["7", "1"]);
            let conn = accept(&ep);
            let dst = region(&peer, 8, MrUsage::RECV);
            thread::sleep(Duration::from_millis(500));
            conn.recv(dst.slice(..).expect("inside"), 1).expect("posts");
            completion(&conn).result().expect("the last message");
            assert_eq!(dst.load_u64(0).expect("inside"), u64::MAX, "{name}");
            conn.disconnect().expect("disconnects");
            assert_eq!(event(&conn), ConnEvent::Closed, "{name}");
            let ended = client.finish().success(name);
            assert_eq!(ended.stdout, [""; 0], "{name}: {ended:?}");
        }
    });
}

/// 06 goes on when one of its clients fails, which is no reason for the others to. Its status tells.
#[test]
fn a_server_of_many_clients_outlives_a_bad_one() {
    fn check(name: &str) {
        let (mut server, port) = server(name, &[]);
        // One that describes no memory, and one that is gone at once.
        let peer = peer();
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
    device_test(|| {
        thread::scope(|scope| {
            for name in ["06", "06scch"] {
                scope.spawn(|| check(name));
            }
        });
    });
}

/// 08srq: its server takes the messages from either of three queues.
#[test]
fn each_queue_of_a_shared_receive_queue() {
    device_test(|| {
        for mode in ["m", "r"] {
            let (server, client) = run("08srq", &[mode], &["7", "2"]);
            let client = client.success(mode);
            let sent = [
                "Value sent: 7",
                "Value received: 8",
                "Value sent: 8",
                "Value received: 9",
            ];
            assert_eq!(client.stdout, sent, "{mode}");
            let received = [
                "Value received: 7",
                "Value sent: 8",
                "Value received: 8",
                "Value sent: 9",
            ];
            assert_eq!(server.success(mode).stdout, received, "{mode}");
        }
    });
}

/// 10: a message may be empty but for its immediate data.
#[test]
fn immediate_data_without_a_word() {
    device_test(|| {
        for imm in ["0", "4294967295"] {
            let (server, client) = run("10", &[], &[imm]);
            let client = client.success(imm);
            assert_eq!(client.stdout, [format!("Sending immediate data '{imm}'")]);
            let shown = format!("Received value '' with immediate data '{imm}'");
            assert_eq!(server.success(imm).stdout, [shown]);
        }
    });
}

/// 05: persistent memory of which nobody has said that writes go there directly.
#[test]
fn a_persistent_flush_needs_the_word_of_the_server() {
    const YES: &str = "supported";
    const NO: &str = "NOT supported, RPMA_FLUSH_TYPE_VISIBILITY is used instead";
    device_test(|| {
        forget();
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
    });
}
