//! The runs of the examples, and their output: the arguments of librpma's run-all-examples.sh, and
//! the lines on standard output.
//!
//! `cargo xtask demo` and tests/programs/examples both include this file, so that the demo shows the tested
//! runs. It is Rust and not a file to be parsed: a mistake in it does not compile. It stands beside
//! the helpers of the examples because cargo would take a file in examples/ itself for an example.

#![allow(dead_code, reason = "each program uses a part of it")]

/// A client and a server.
#[derive(Debug)]
pub(crate) struct Example {
    pub(crate) name: &'static str,
    /// Its subject, in a few words.
    pub(crate) shows: &'static str,
    pub(crate) dram: Run,
    /// `None`: its programs do not support persistent memory.
    pub(crate) pmem: Option<Run>,
    /// The server's last words on stderr, if a time limit ends it.
    pub(crate) timeout: Option<&'static str>,
}

/// One server, or two, and its clients. All of them end with status 0.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) server: Program,
    /// A second one, at a port of its own.
    pub(crate) second: Option<Program>,
    pub(crate) clients: &'static [Program],
    /// Whether the clients run at the same time, and not one after the other.
    pub(crate) together: bool,
}

/// The arguments after the address and the port, and the lines on standard output.
#[derive(Debug)]
pub(crate) struct Program {
    /// `{pmem}`: the path of the persistent memory. `{wait}`: for how many seconds the server waits
    /// for one more client. `{addr}` and `{second}`: the address and the port of the second server.
    pub(crate) args: &'static [&'static str],
    /// `{next}` is the greeting that the client has, and `{other}` the one in the other language.
    /// A line with `{old}` is there only if the server finds a greeting in its memory. `{used}` is
    /// the size of the log that is there, and the line `{logged}` is its words.
    pub(crate) prints: &'static [&'static str],
}

/// The example that is not a pair, and its subject.
pub(crate) const LOG: &str = "log";
pub(crate) const LOG_SHOWS: &str = "what the library logs, and taking its log into one's own hands";

/// The client's part of a persistent memory that both programs use. run-all-examples.sh has 1024,
/// where the end of the server's data overwrites the signature of the client's.
const OFFSET: &str = "4096";

const fn program(args: &'static [&'static str], prints: &'static [&'static str]) -> Program {
    Program { args, prints }
}

const fn pair(server: Program, clients: &'static [Program]) -> Run {
    Run {
        server,
        second: None,
        clients,
        together: false,
    }
}

const fn example(name: &'static str, shows: &'static str, dram: Run) -> Example {
    Example {
        name,
        shows,
        dram,
        pmem: None,
        timeout: None,
    }
}

const PMEM: &[&str] = &["{pmem}"];
const PMEM_OFFSET: &[&str] = &["{pmem}", OFFSET];

pub(crate) const GREETINGS: [&str; 2] = ["Hello world!", "¡Hola Mundo!"];
const OLD_NEW: &[&str] = &["Old value: {old}", "New value: {next}"];
const TRANSLATED: &[&str] = &[
    "Next value: {next}",
    "translating...",
    "Translation: {other}",
];

const FLUSH_REQUEST: &str =
    "Flush request received: {offset: 0x0, length: 0x400, op_context: 0xF01D}";
/// On persistent memory the data begins after the signature.
const FLUSH_REQUEST_PMEM: &str =
    "Flush request received: {offset: 0x11, length: 0x400, op_context: 0xF01D}";

/// All pairs, in the order of their names.
pub(crate) const EXAMPLES: &[Example] = &[
    example(
        "01-connection",
        "connecting, with a message each way, and disconnecting",
        pair(
            program(&[], &["Received a message: Hello server!"]),
            &[program(&[], &["Received a message: Hello client!"])],
        ),
    ),
    example(
        "02-read-to-volatile",
        "reading the server's memory",
        pair(
            program(&[], &[]),
            &[program(&[], &["Read a message: Hello client!"])],
        ),
    ),
    Example {
        pmem: Some(pair(
            program(PMEM, OLD_NEW),
            &[program(PMEM_OFFSET, TRANSLATED)],
        )),
        ..example(
            "03-read-to-persistent",
            "the server reads from the client, and makes it persistent by itself",
            pair(program(&[], OLD_NEW), &[program(&[], TRANSLATED)]),
        )
    },
    Example {
        pmem: Some(pair(
            program(PMEM, OLD_NEW),
            &[program(PMEM_OFFSET, TRANSLATED)],
        )),
        ..example(
            "04-write-to-persistent",
            "writing the server's memory, and making sure with a read",
            pair(program(&[], OLD_NEW), &[program(&[], TRANSLATED)]),
        )
    },
    Example {
        pmem: Some(pair(
            program(&["{pmem}", "on"], OLD_NEW),
            &[program(
                PMEM_OFFSET,
                &[
                    "Next value: {next}",
                    "RPMA_FLUSH_TYPE_PERSISTENT is supported",
                    "translating...",
                    "Translation: {other}",
                ],
            )],
        )),
        ..example(
            "05-flush-to-persistent",
            "writing the server's memory, and flushing",
            pair(
                program(&[], OLD_NEW),
                &[program(
                    &[],
                    &[
                        "Next value: {next}",
                        "RPMA_FLUSH_TYPE_PERSISTENT is NOT supported, \
                         RPMA_FLUSH_TYPE_VISIBILITY is used instead",
                        "translating...",
                        "Translation: {other}",
                    ],
                )],
            ),
        )
    },
    Example {
        timeout: Some("Server timed out."),
        ..example(
            "06-multiple-connections",
            "one thread that serves many clients, with one wait",
            MULTIPLE,
        )
    },
    Example {
        timeout: Some("Server timed out."),
        ..example(
            "06tokio-multiple-connections",
            "one thread that serves many clients, with tokio",
            MULTIPLE,
        )
    },
    Example {
        timeout: Some("Server timed out."),
        ..example(
            "06scch-multiple-connections",
            "the same with epoll, and one completion channel for each connection",
            MULTIPLE,
        )
    },
    Example {
        pmem: Some(pair(program(PMEM, LOGGED), &[program(WORDS, USED)])),
        ..example(
            "07-atomic-write",
            "appending to a log on the server, with atomic writes",
            pair(program(&[], LOGGED), &[program(WORDS, USED)]),
        )
    },
    example(
        "08-messages-ping-pong",
        "sending and receiving messages",
        pair(
            program(
                &[],
                &[
                    "Value received: 7",
                    "Value sent: 8",
                    "Value received: 8",
                    "Value sent: 9",
                ],
            ),
            &[program(
                &["7", "3"],
                &[
                    "Value sent: 7",
                    "Value received: 8",
                    "Value sent: 8",
                    "Value received: 9",
                ],
            )],
        ),
    ),
    example(
        "08srq-simple-messages-ping-pong-with-srq",
        "the same with a shared receive queue in the server",
        PING_PONG_SRQ,
    ),
    Example {
        pmem: Some(GPSPM_PMEM),
        ..example(
            "09-flush-to-persistent-GPSPM",
            "writing the server's memory, and asking the server to flush",
            GPSPM,
        )
    },
    Example {
        pmem: Some(GPSPM_PMEM),
        ..example(
            "09scch-flush-to-persistent-GPSPM",
            "the same with one completion channel for both queues",
            GPSPM,
        )
    },
    example(
        "10-send-with-imm",
        "a message with immediate data",
        pair(
            program(
                &[],
                &["Received value '1st_word' with immediate data '1234'"],
            ),
            &[program(
                &["1234", "1st_word"],
                &["Sending value '1st_word' with immediate data '1234'"],
            )],
        ),
    ),
    example(
        "11-write-with-imm",
        "a write with immediate data, which the server notices",
        pair(
            program(
                &[],
                &["The value '1234' was written together with immediate data '1234'"],
            ),
            &[program(
                &["1234"],
                &["Writing value '1234' with immediate data '1234'"],
            )],
        ),
    ),
    example(
        "12-receive-completion-queue",
        "messages, with a completion queue of its own for receives",
        RECEIVE_CQ,
    ),
    example(
        "12scch-receive-completion-queue",
        "the same with one completion channel for both queues",
        RECEIVE_CQ,
    ),
    example(
        "13-messages-ping-pong-with-srq",
        "messages of many clients through one shared receive queue",
        Run {
            server: program(
                &["{wait}"],
                &[
                    "The client #1 has been connected.",
                    "The client #2 has been connected.",
                    "The client #3 has been connected.",
                    "Server ended listening.",
                    "[server] value received: 1 from the connection [qp#1]",
                    "[server] value sent: 2 from the connection [qp#1]",
                    "[server] value received: 2 from the connection [qp#1]",
                    "[server] value sent: 3 from the connection [qp#1]",
                    "[server] value received: 3 from the connection [qp#1]",
                    "[server] value sent: 4 from the connection [qp#1]",
                    "[server] value received: 5 from the connection [qp#2]",
                    "[server] value sent: 6 from the connection [qp#2]",
                    "[server] value received: 6 from the connection [qp#2]",
                    "[server] value sent: 7 from the connection [qp#2]",
                    "[server] value received: 7 from the connection [qp#2]",
                    "[server] value sent: 8 from the connection [qp#2]",
                    "[server] value received: 10 from the connection [qp#3]",
                    "[server] value sent: 11 from the connection [qp#3]",
                    "[server] value received: 11 from the connection [qp#3]",
                    "[server] value sent: 12 from the connection [qp#3]",
                    "[server] value received: 12 from the connection [qp#3]",
                    "[server] value sent: 13 from the connection [qp#3]",
                ],
            ),
            second: None,
            clients: &[
                program(
                    &["1", "3"],
                    &[
                        "[client #1] value sent: 1",
                        "[client #1] value received: 2",
                        "[client #1] value sent: 2",
                        "[client #1] value received: 3",
                        "[client #1] value sent: 3",
                        "[client #1] value received: 4",
                    ],
                ),
                program(
                    &["5", "3"],
                    &[
                        "[client #1] value sent: 5",
                        "[client #1] value received: 6",
                        "[client #1] value sent: 6",
                        "[client #1] value received: 7",
                        "[client #1] value sent: 7",
                        "[client #1] value received: 8",
                    ],
                ),
                program(
                    &["10", "3"],
                    &[
                        "[client #1] value sent: 10",
                        "[client #1] value received: 11",
                        "[client #1] value sent: 11",
                        "[client #1] value received: 12",
                        "[client #1] value sent: 12",
                        "[client #1] value received: 13",
                    ],
                ),
            ],
            together: true,
        },
    ),
    example(
        "14-metrics",
        "the counters of a connection, for a program's metrics",
        pair(
            program(&[], &[]),
            &[program(
                &[],
                &[
                    "rpma_bytes_total{conn=\"client\"} 256",
                    "rpma_full_receive_queue_total{conn=\"client\"} 0",
                    "rpma_full_send_queue_total{conn=\"client\"} 1",
                    "rpma_probes_lost_total{conn=\"client\"} 0",
                    "rpma_receives_total{conn=\"client\"} 0",
                    "rpma_requests_total{conn=\"client\"} 5",
                ],
            )],
        ),
    ),
    example(
        "15-append-to-replicas",
        "appending to the logs of two servers at the same time, with tokio",
        APPEND_TO_TWO,
    ),
];

const MULTIPLE: Run = pair(
    program(
        &["{wait}"],
        &[
            "Today I have got in touch with:",
            "- Chet",
            "- Piotr",
            "- Piotr",
            "- Lukasz",
        ],
    ),
    &[
        program(&["8"], &["My names is: Chet"]),
        program(&["9"], &["My names is: Piotr"]),
        program(&["11"], &["My names is: Piotr"]),
        program(&["12"], &["My names is: Lukasz"]),
    ],
);

pub(crate) const WORDS: &[&str] = &["1st_word", "2nd_word", "3rd_word"];
const LOGGED: &[&str] = &["{logged}", WORDS[0], WORDS[1], WORDS[2]];
const USED: &[&str] = &["used value: {used}"];
/// The used bytes of an empty log, and the bytes that it needs for the words.
pub(crate) const EMPTY_LOG: usize = 16;
pub(crate) const WORDS_SIZE: usize = 27;

const APPEND_TO_TWO: Run = Run {
    server: program(&[], WORDS),
    second: Some(program(&[], WORDS)),
    clients: &[program(
        &["{addr}", "{second}", "1st_word", "2nd_word", "3rd_word"],
        &[
            "used value: 16",
            "1st_word is in both logs",
            "2nd_word is in both logs",
            "3rd_word is in both logs",
        ],
    )],
    together: false,
};

const PING_PONG_SRQ: Run = pair(
    program(
        &[],
        &[
            "Value received: 7",
            "Value sent: 8",
            "Value received: 8",
            "Value sent: 9",
            "Value received: 9",
            "Value sent: 10",
        ],
    ),
    &[program(
        &["7", "3"],
        &[
            "Value sent: 7",
            "Value received: 8",
            "Value sent: 8",
            "Value received: 9",
            "Value sent: 9",
            "Value received: 10",
        ],
    )],
);

const GPSPM: Run = pair(
    program(
        &[],
        &["Old value: {old}", FLUSH_REQUEST, "New value: {next}"],
    ),
    &[program(&[], TRANSLATED)],
);

const GPSPM_PMEM: Run = pair(
    program(
        PMEM,
        &["Old value: {old}", FLUSH_REQUEST_PMEM, "New value: {next}"],
    ),
    &[program(PMEM_OFFSET, TRANSLATED)],
);

const RECEIVE_CQ: Run = pair(
    program(
        &[],
        &[
            "SERVER: Value received: 7",
            "SERVER: Value sent: 8",
            "SERVER: Value received: 8",
            "SERVER: Value sent: 9",
        ],
    ),
    &[program(
        &["7", "3"],
        &[
            "CLIENT: Value sent: 7",
            "CLIENT: Value received: 8",
            "CLIENT: Value sent: 8",
            "CLIENT: Value received: 9",
        ],
    )],
);

/// The example with this `name`, or the only one with a name that begins with it and goes on with a
/// "-": "08" is 08-messages-ping-pong and not 08srq-….
pub(crate) fn find(name: &str) -> Option<&'static Example> {
    let known = |example: &&Example| {
        let rest = example.name.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    EXAMPLES.iter().find(known).or_else(|| {
        let mut matching = EXAMPLES.iter().filter(|known| known.name.starts_with(name));
        matching.next().filter(|_| matching.next().is_none())
    })
}

/// The name of the tests of an example: `cargo xtask demo` shows it by running them.
pub(crate) fn test_name(example: &str) -> String {
    format!("_{}", example.replace('-', "_").to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> &'static str {
        find(text).map_or("", |example| example.name)
    }

    #[test]
    fn the_beginning_of_a_name_is_enough() {
        assert_eq!(name("01"), "01-connection");
        assert_eq!(name("08-messages-ping-pong"), "08-messages-ping-pong");
        assert_eq!(name("08"), "08-messages-ping-pong", "and not 08srq");
        assert_eq!(name("08srq"), "08srq-simple-messages-ping-pong-with-srq");
        assert_eq!(name("06s"), "06scch-multiple-connections");
        assert_eq!(name("0"), "", "it is the beginning of many");
    }

    /// A prefix that leads to one example leads to that very one.
    #[test]
    fn every_example_is_found_by_its_name() {
        for example in EXAMPLES {
            assert_eq!(name(example.name), example.name);
            let (number, _) = example.name.split_once('-').expect("a number and a name");
            assert_eq!(name(number), example.name);
        }
    }
}
