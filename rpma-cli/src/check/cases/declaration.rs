//! What the server declares about its memory, compared with what it knows of it.

use super::super::bench::Bench;
use super::Group;
use crate::client::{Result, failed};

pub(super) const GROUP: Group = Group {
    name: "declaration",
    about: "the server declares no more than its memory and its device keep",
    cases: &[("", declaration)],
};

fn declaration(bench: &mut Bench) -> Result<String> {
    let declared = bench.offer.platform().get_durable();
    let Some(memory) = &bench.server.host.memory else {
        return failed("the server does not describe its memory");
    };
    let known = memory.durable;
    if declared == known {
        Ok(format!("durable by {declared}, in {}", memory.kind))
    } else {
        failed(format!(
            "the server declares that data are durable by {declared}, and for {memory} it is {known}"
        ))
    }
}
