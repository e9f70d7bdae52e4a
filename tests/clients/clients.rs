//! What one client costs its server, beside 10 clients, 1,000 and 10,000, and while questions of
//! others are open; what a key of a directory costs that is opened, beside 1,000 and 100,000; and the
//! bytes of memory of each. An error if a cost grows by more than half.
//!
//! `cargo bench --no-default-features --features sim --bench clients`. With `-- all` it counts each of
//! 10,000 admissions, and takes a minute.
//!
//! The library's instructions are counted, and those of the allocator, which counts bytes. Those of
//! the simulated fabric are not.
//!
//! 10,000 clients need a hard limit of 20,800 descriptors. With a lower one there are fewer
//! clients. As a trial, a pass over all keys was put into each admission, and one over all timers
//! into each removal. The cost beside the most clients was then 14 and 24 times that beside ten.
//! No row has a time, so a verb or a system call that takes longer beside many connections is not
//! seen.

mod bytes;
#[path = "../cost/callgrind.rs"]
mod callgrind;
#[path = "../common/mod.rs"]
mod common;
#[path = "../cost/count.rs"]
mod count;
mod growth;
mod server;

use std::env;

use count::Outcome;

fn main() -> Outcome {
    let args: Vec<_> = env::args().filter(|arg| arg != "--bench").collect();
    let words: Vec<_> = args.iter().map(String::as_str).collect();
    match words[..] {
        [program] => growth::compare(program, false),
        [program, "all"] => growth::compare(program, true),
        [_, "clients", most, all] => {
            let (most, all) = (most.parse()?, all.parse()?);
            here(|| server::run(&common::addr(), most, all))
        }
        [_, "asking"] => here(|| server::run_asking(&common::addr())),
        [_, "bytes", clients] => {
            let clients = clients.parse()?;
            here(|| server::weigh(&common::addr(), clients))
        }
        [_, "directory", path, keys] => {
            let keys = keys.parse()?;
            here(|| server::open(path, keys))
        }
        _ => Err("clients [all]".into()),
    }
}

/// Runs code on a simulated fabric.
fn here(run: impl FnOnce() -> rpma::Result<()>) -> Outcome {
    let mut outcome = Ok(());
    common::on_fabric(|| outcome = run());
    Ok(outcome?)
}
