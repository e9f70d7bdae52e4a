//! Each pair works: on DRAM, on persistent memory, with IPv4, with IPv6.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::examples::many::{Check, together};
use crate::examples::prelude::*;
use crate::examples::runs::LOG;

/// Three clients start within this time, on however busy a machine.
const WAIT: u32 = 25;

/// The conditions under which a pair runs.
#[derive(Clone, Debug)]
pub(crate) struct Conditions {
    pub(crate) addr: String,
    /// The path of the persistent memory, and its contents for the programs.
    pub(crate) pmem: Option<(String, Contents)>,
    /// The commands that start the server and the clients.
    pub(crate) server_wrapper: Vec<String>,
    pub(crate) client_wrapper: Vec<String>,
    pub(crate) limit: Duration,
    /// For how many seconds a server waits for one more client.
    pub(crate) wait: u32,
}

impl Conditions {
    pub(crate) fn dram(addr: String) -> Self {
        Self {
            addr,
            pmem: None,
            server_wrapper: Vec::new(),
            client_wrapper: Vec::new(),
            limit: LIMIT,
            wait: WAIT,
        }
    }

    /// Empty persistent memory.
    pub(crate) fn pmem(addr: String) -> Result<Self> {
        forget()?;
        Ok(Self {
            pmem: Some((devdax(), Contents::EMPTY)),
            ..Self::dram(addr)
        })
    }

    pub(crate) fn server(&self, name: &str, port: u16, args: &[String]) -> Program {
        let mut server = self.start(&self.server_wrapper, [name, "server"], port, args);
        server.wait_listening(&self.addr, port);
        server
    }

    pub(crate) fn client(&self, name: &str, port: u16, args: &[String]) -> Program {
        self.start(&self.client_wrapper, [name, "client"], port, args)
    }

    fn start(
        &self,
        wrapper: &[String],
        [name, role]: [&str; 2],
        port: u16,
        args: &[String],
    ) -> Program {
        let (program, port) = (executable(name), port.to_string());
        let line = format!("  $ {name} {role} {} {port} {}", self.addr, args.join(" "));
        println!("{}", line.trim_end());
        let own = [&*program, role, &self.addr, &port];
        let words = [&words(wrapper)[..], &own, &words(args)].concat();
        Program::start(&words, self.limit)
    }

    /// Runs a pair once. Both sides end with status 0 and print the expected lines.
    pub(crate) fn run(&mut self, example: &Example) {
        let run = match (&self.pmem, &example.pmem) {
            (None, _) => &example.dram,
            (Some(_), Some(run)) => run,
            (Some(_), None) => panic!("{} knows no persistent memory", example.name),
        };
        let pmem = self.pmem.as_ref();
        let contents = pmem.map_or(Contents::EMPTY, |(_, contents)| *contents);
        let second = run.second.as_ref();
        let values = Values {
            pmem: pmem.map(|(path, _)| &**path),
            wait: self.wait,
            second: second.map(|_| (&*self.addr, free_port(&self.addr))),
        };
        let what = format!("{} {} {:?}", example.name, self.addr, values);
        let memory = values.pmem.unwrap_or("DRAM");
        // `cargo xtask demo` shows the lines that begin like these.
        let again = if contents == Contents::EMPTY {
            ""
        } else {
            ", with what is there now"
        };
        println!("\nOn {memory}{again}");

        let port = free_port(&self.addr);
        let server = self.server(example.name, port, &values.args(&run.server));
        let second = second.zip(values.second).map(|(second, (_, port))| {
            let args = values.args(second);
            (second, self.server(example.name, port, &args))
        });
        let mut running = Vec::new();
        for client in run.clients {
            let started = self.client(example.name, port, &values.args(client));
            if run.together {
                running.push((client, started));
            } else {
                show("client", started.finish(), &what, client, contents);
            }
        }
        for (client, started) in running {
            show("client", started.finish(), &what, client, contents);
        }
        let ended = server.finish();
        if let Some(text) = example.timeout {
            assert!(ended.says(text), "{what}: {ended:?}");
            // It is 15 seconds; a line may be seen a little late.
            let early = ended.silent < Duration::from_secs(10);
            assert!(!early, "{what}: too early: {ended:?}");
        }
        show("server", ended, &what, &run.server, contents);
        if let Some((second, started)) = second {
            show("server 2", started.finish(), &what, second, contents);
        }
        if let Some((_, contents)) = &mut self.pmem {
            *contents = contents.after(run);
        }
    }
}

/// The pairs whose operation iWARP does not have.
const IMMEDIATE: [&str; 2] = ["10-send-with-imm", "11-write-with-imm"];

/// Promise: on iWARP the client of such a pair ends with one clear error, and the server ends too.
fn is_refused(conditions: &Conditions, example: &Example) {
    let (name, port) = (example.name, free_port(&conditions.addr));
    let args =
        |program: &runs::Program| Vec::from_iter(program.args.iter().map(|&arg| arg.to_owned()));
    let run = &example.dram;
    let server = conditions.server(name, port, &args(&run.server));
    let client = conditions.client(name, port, &args(&run.clients[0]));
    let ended = client.finish().failure(FAILURE, name);
    let errors = ended.stderr.iter();
    let errors: Vec<_> = errors.filter(|line| line.starts_with("client: ")).collect();
    assert_eq!(errors.len(), 1, "{name}: {ended:?}");
    assert!(
        errors[0].contains("immediate data on iWARP"),
        "{name}: {ended:?}"
    );
    let ended = server.finish().failure(FAILURE, name);
    assert!(ended.says("server: "), "{name}: {ended:?}");
}

/// Checks a program of a pair, and shows its output.
fn show(who: &str, ended: Ended, what: &str, expected: &runs::Program, contents: Contents) {
    for line in &ended.stdout {
        println!("  {who}  {line}");
    }
    check(&format!("{what}: {who}"), ended, expected, contents);
}

pub(crate) fn check(what: &str, ended: Ended, expected: &runs::Program, contents: Contents) {
    let ended = ended.success(what);
    let (printed, stderr) = (canonical(&ended.stdout), &ended.stderr);
    let expected = canonical(&contents.printed(expected));
    assert_eq!(printed, expected, "{what}: {stderr:?}");
}

/// Empties the persistent memory: overwrites the data that the examples could find there.
pub(crate) fn forget() -> Result {
    let map = PmemMap::open(devdax(), 16384)?;
    map.write_at(0, &[0xA5; 16384])?;
    map.persist(..)?;
    Ok(())
}

/// The second time on persistent memory, both sides find the data of the first time.
const TIMES_ON_PMEM: usize = 2;

fn example(name: &str) -> &'static Example {
    runs::find(name).expect("a known example")
}

/// Tests of pairs, under the names by which `cargo xtask demo` finds them.
macro_rules! pairs {
    ($place:ident: $run:ident; $($(#[$ignore:meta])* $test:ident: $name:literal,)*) => {
        mod $place {
            $(
                #[test]
                $(#[$ignore])*
                fn $test() -> crate::common::Result {
                    super::$run($name)
                }
            )*
            pub(super) const TESTED: &[(&str, &str)] = &[$((stringify!($test), $name)),*];
        }
    };
}

fn on_dram(name: &str) -> Result {
    let _test = device_test();
    let mut conditions = Conditions::dram(addr());
    if IMMEDIATE.contains(&name) && peer()?.is_iwarp() {
        is_refused(&conditions, example(name));
    } else {
        conditions.run(example(name));
    }
    Ok(())
}

pairs! {
    dram: on_dram;
    _01_connection: "01-connection",
    _02_read_to_volatile: "02-read-to-volatile",
    _03_read_to_persistent: "03-read-to-persistent",
    _04_write_to_persistent: "04-write-to-persistent",
    _05_flush_to_persistent: "05-flush-to-persistent",
    #[ignore = "long: it waits, and servers_of_many_clients runs it beside others"]
    _06_multiple_connections: "06-multiple-connections",
    #[ignore = "long: it waits, and servers_of_many_clients runs it beside others"]
    _06tokio_multiple_connections: "06tokio-multiple-connections",
    #[ignore = "long: it waits, and servers_of_many_clients runs it beside others"]
    _06scch_multiple_connections: "06scch-multiple-connections",
    _07_atomic_write: "07-atomic-write",
    _08_messages_ping_pong: "08-messages-ping-pong",
    _08srq_simple_messages_ping_pong_with_srq: "08srq-simple-messages-ping-pong-with-srq",
    _09_flush_to_persistent_gpspm: "09-flush-to-persistent-GPSPM",
    _09scch_flush_to_persistent_gpspm: "09scch-flush-to-persistent-GPSPM",
    _10_send_with_imm: "10-send-with-imm",
    _11_write_with_imm: "11-write-with-imm",
    _12_receive_completion_queue: "12-receive-completion-queue",
    _12scch_receive_completion_queue: "12scch-receive-completion-queue",
    #[ignore = "long: it waits, and servers_of_many_clients runs it beside others"]
    _13_messages_ping_pong_with_srq: "13-messages-ping-pong-with-srq",
    _14_metrics: "14-metrics",
    _15_append_to_replicas: "15-append-to-replicas",
}

/// The second time on persistent memory, both sides find the data of the first time.
fn on_pmem(name: &str) -> Result {
    let _test = device_test();
    let mut conditions = Conditions::pmem(addr())?;
    for _ in 0..TIMES_ON_PMEM {
        conditions.run(example(name));
    }
    Ok(())
}

pairs! {
    pmem: on_pmem;
    _03_read_to_persistent: "03-read-to-persistent",
    _04_write_to_persistent: "04-write-to-persistent",
    _05_flush_to_persistent: "05-flush-to-persistent",
    _07_atomic_write: "07-atomic-write",
    _09_flush_to_persistent_gpspm: "09-flush-to-persistent-GPSPM",
    _09scch_flush_to_persistent_gpspm: "09scch-flush-to-persistent-GPSPM",
}

/// Those that support one memory only. (The address is independent of the memory.)
#[test]
fn pairs_work_over_ipv6() -> Result {
    for example in EXAMPLES.iter().filter(|example| example.pmem.is_none()) {
        if !SLOW.contains(&example.name) {
            leaving(&[], || {
                Conditions::dram(addr6()).run(example);
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// The servers of these wait for something that does not happen.
pub(crate) const SLOW: [&str; 4] = [
    "06-multiple-connections",
    "06scch-multiple-connections",
    "06tokio-multiple-connections",
    "13-messages-ping-pong-with-srq",
];

/// Each takes 15 or 25 seconds, most of them idle: [`together`] runs them.
pub(crate) fn slow() -> Vec<Check> {
    let runs = SLOW.into_iter().flat_map(|name| {
        [addr(), addr6()].map(|addr| {
            let what = format!("{name} {addr}");
            Check::new(what, move || Conditions::dram(addr).run(example(name)))
        })
    });
    runs.collect()
}

/// The messages that the program and the library log go to stderr, through each of two loggers.
#[test]
fn _log() -> Result {
    let ended = Program::example(LOG, &[]).finish().success(LOG);
    for line in ended.stdout.iter().chain(&ended.stderr) {
        println!("\n  {line}");
    }
    let expected = [
        "Let's write messages to stderr",
        "Let's use custom log function to write messages to stderr",
    ];
    assert_eq!(ended.stdout, expected, "{ended:?}");
    let twice = |text: &str| {
        let lines = ended.stderr.iter().filter(|line| line.contains(text));
        <[_; 2]>::try_from(Vec::from_iter(lines)).expect("two lines")
    };
    for text in [
        "Just a notice",
        "Important warning about value: 720401",
        "Error due to order 66",
    ] {
        let [one, other] = twice(text);
        assert!(one.starts_with('['), "as env_logger writes it: {one}");
        assert!(other.starts_with("level: "), "as the example does: {other}");
    }
    // The library logs as well, with its place in front.
    const LIBRARY: &str = "the peer says that direct write to persistent memory is not supported";
    let [one, other] = twice(LIBRARY);
    assert_eq!(*one, format!("[INFO  rpma::peer_cfg] {LIBRARY}"));
    assert_eq!(*other, format!("level: 3 {LIBRARY}"));
    let at = ended.stderr.iter().rposition(|line| line.contains(LIBRARY));
    let at = at.ok_or("found above")?;
    let place = &ended.stderr[at - 1];
    let is_named = place.contains("peer_cfg.rs") && place.ends_with(" rpma::peer_cfg:");
    assert!(is_named, "{ended:?}");
    assert_eq!(ended.stderr[at - 2], "Custom log handling:", "{ended:?}");
    Ok(())
}

#[test]
fn every_example_is_known_and_tested() -> Result {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let dirs = fs::read_dir(examples)?;
    let found: BTreeSet<String> = dirs
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.path().join("main.rs").is_file())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    // These are tested without a device: tests/hello.rs, tests/fabric/power/example.rs,
    // tests/fabric/replicas/example.rs, and tests/fabric/replicated_log.
    let others = [LOG, "hello", "replicated-log", "sim-log", "sim-replicas"];
    let known = EXAMPLES.iter().map(|example| example.name).chain(others);
    assert_eq!(found, known.map(str::to_owned).collect(), "the table");

    let tests = |examples: &mut dyn Iterator<Item = &'static Example>| -> Vec<_> {
        let test = |example: &'static Example| (runs::test_name(example.name), example.name);
        examples.map(test).collect()
    };
    let tested = |tests: &[(&str, &'static str)]| -> Vec<_> {
        let test = |(test, name): &(&str, &'static str)| (String::from(*test), *name);
        tests.iter().map(test).collect()
    };
    assert_eq!(tests(&mut EXAMPLES.iter()), tested(dram::TESTED));
    let mut knows_pmem = EXAMPLES.iter().filter(|example| example.pmem.is_some());
    assert_eq!(tests(&mut knows_pmem), tested(pmem::TESTED));
    Ok(())
}

#[test]
#[ignore = "long: 20 minutes"]
fn ten_times_with_each_memory_and_address() -> Result {
    for time in 1..=10 {
        let quick = |example: &&Example| !SLOW.contains(&example.name);
        for example in EXAMPLES.iter().filter(quick) {
            for addr in [addr(), addr6()] {
                leaving(&[], || {
                    Conditions::dram(addr.clone()).run(example);
                    if example.pmem.is_some() {
                        let mut conditions = Conditions::pmem(addr)?;
                        for _ in 0..TIMES_ON_PMEM {
                            conditions.run(example);
                        }
                    }
                    Ok(())
                })?;
            }
            println!("{}: {time} of 10", example.name);
        }
        leaving(&[], || {
            together(slow());
            Ok(())
        })?;
        println!("{SLOW:?}: {time} of 10");
    }
    Ok(())
}
