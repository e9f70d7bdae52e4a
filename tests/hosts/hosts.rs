//! A log of checksummed records in another host's persistent memory. `cargo xtask test` runs it
//! between two guests while it stops them, cuts their power and loses their packets.
//!
//! * `hosts serve ADDRESS PORT PATH` offers the persistent memory of PATH to each client.
//! * `hosts append ADDRESS PORT SECONDS GROUP METHOD` commits groups of records after those that
//!   are there, for so long, and connects again when a connection fails. METHOD: `native`;
//!   `fallback`; `server`, by the processor of the other host; `tight`, the fallback with settings
//!   that give up soon.
//! * `hosts tail-first ADDRESS PORT` does it wrongly: it shows a record that is not there.
//! * `hosts watch ADDRESS PORT SECONDS` checks that the records up to the tail are whole, while
//!   another one appends.
//! * `hosts probe ADDRESS PORT` accepts one client with such settings, and writes no bytes to it
//!   until that fails.
//! * `hosts endless ADDRESS PORT SECONDS` connects with retries without end, as librpma does, and
//!   then stays idle.
//! * `hosts cut-off ADDRESS PORT ROUNDS cut|keep` serves a client that stands still with writes in
//!   flight, cuts it off or keeps its connection, and looks whether bytes change afterwards.
//! * `hosts flood ADDRESS PORT ROUNDS SECONDS` is that client.
//! * `hosts keep-alive OWN OTHER PORT SECONDS` holds idle connections with a keep-alive of so long,
//!   as a client and as a server of the same program on the other host, and prints their ends.
//! * `hosts verify PATH` looks whether every record that the tail shows is there and whole.
//!
//! A group is one commit of a [`Writer`](rpma::commit::Writer): its records, and then the tail.

mod client;
mod cut_off;
mod keep_alive;
mod log;
mod prelude;
mod probe;
mod server;

use std::error::Error;
use std::process::ExitCode;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args[..] {
        ["serve", addr, port, path] => server::serve(addr, port, path),
        ["append", addr, port, seconds, group, method] => {
            client::append(addr, port, seconds, [group, method])
        }
        ["tail-first", addr, port] => client::tail_first(addr, port),
        ["watch", addr, port, seconds] => client::watch(addr, port, seconds),
        ["probe", addr, port] => probe::probe(addr, port),
        ["endless", addr, port, seconds] => probe::endless(addr, port, seconds),
        ["cut-off", addr, port, rounds, does] => cut_off::serve(addr, port, rounds, does),
        ["flood", addr, port, rounds, seconds] => cut_off::flood(addr, port, rounds, seconds),
        ["keep-alive", own, other, port, seconds] => keep_alive::hold(own, other, port, seconds),
        ["verify", path] => log::verify(path),
        _ => Err("see the head of tests/hosts/hosts.rs".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
