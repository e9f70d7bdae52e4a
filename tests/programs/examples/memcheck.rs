//! The pairs under valgrind's memcheck: no error, and no memory definitely lost.
//!
//! The library itself and the C libraries below it could still make the errors that the library's
//! interface rules out for its users.

use std::thread;

use crate::examples::pairs::{Conditions, SLOW, check};
use crate::examples::prelude::*;

/// Starting a program takes valgrind many seconds, under emulation and on a busy machine.
const LIMIT: Duration = Duration::from_secs(280);
const VALGRIND: [&str; 8] = [
    "valgrind",
    "--quiet",
    "--error-exitcode=99",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite",
    "--show-leak-kinds=definite",
    // These two only save time.
    "--vgdb=no",
    "--read-inline-info=no",
];

/// Errors outside of this code, with their reasons.
const SUPPRESSIONS: &str = concat!(
    "--suppressions=",
    env!("CARGO_MANIFEST_DIR"),
    "/tests/programs/examples/memcheck.supp"
);

fn valgrind() -> Vec<String> {
    let words = VALGRIND.into_iter().chain([SUPPRESSIONS]);
    words.map(str::to_owned).collect()
}

fn example(name: &str) -> Result<&'static Example> {
    Ok(runs::find(name).ok_or("a known example")?)
}

/// Both sides at once, on persistent memory if the pair supports it.
fn memcheck(example: &Example) -> Result {
    let mut conditions = match example.pmem {
        Some(_) => Conditions::pmem(addr())?,
        None => Conditions::dram(addr()),
    };
    conditions.server_wrapper = valgrind();
    conditions.client_wrapper = valgrind();
    conditions.limit = LIMIT;
    conditions.run(example);
    Ok(())
}

/// One side after the other, where the server would not wait for so slow a client.
fn memcheck_slow(example: &Example) -> Result {
    let mut conditions = Conditions::dram(addr());
    (conditions.limit, conditions.wait) = (LIMIT, 120);
    let mut servers = conditions.clone();
    (servers.server_wrapper, servers.wait) = (valgrind(), 30);
    servers.run(example);
    let mut clients = conditions.clone();
    clients.client_wrapper = valgrind();
    if example.timeout.is_none() {
        clients.run(example);
        return Ok(());
    }
    // Other clients keep the server waiting meanwhile.
    let values = Values {
        pmem: None,
        wait: 0,
        second: None,
    };
    let client = &example.dram.clients[0];
    let args = values.args(client);
    let port = free_port(&addr());
    let server = conditions.server(example.name, port, &[]);
    let mut slow = clients.client(example.name, port, &args);
    while slow.runs()? {
        let quick = conditions.client(example.name, port, &args);
        check(example.name, quick.finish(), client, Contents::EMPTY);
        thread::sleep(Duration::from_secs(2));
    }
    check(example.name, slow.finish(), client, Contents::EMPTY);
    server.kill();
    Ok(())
}

/// Messages, and two completion queues on one channel.
#[test]
fn no_memory_errors_in_one_pair() -> Result {
    let _test = device_test();
    memcheck(example("12scch")?)
}

#[test]
#[ignore = "long: 10 minutes"]
fn no_memory_errors_in_any_pair() -> Result {
    for example in EXAMPLES {
        leaving(&[], || {
            if SLOW.contains(&example.name) {
                memcheck_slow(example)?
            } else {
                memcheck(example)?
            }
            Ok(())
        })?;
        println!("{}: no error and no leak", example.name);
    }
    Ok(())
}
