//! Whether a completed read of 0 bytes is an answer of the server's device, or of this host's own.

use rpma::{Failure, Flags, MrSlice, RemoteSlice};

use super::super::bench::{Bench, Line};
use super::Group;
use super::rights::guarded;
use crate::client::{InStep, Result, failed, plain};
use crate::wire::Request;

pub(super) const GROUP: Group = Group {
    name: "answer",
    about: "a completed read of 0 bytes is an answer of the server's device",
    cases: &[("zero", zero)],
};

const FLAGS: Flags = Flags::COMPLETION_ALWAYS;
/// A device that completes such reads by itself can still be slower than the end of the connection.
const REFUSED: usize = 8;

/// The read completes on a connection that works, and not on one whose peer cannot answer.
fn zero(bench: &mut Bench) -> Result<String> {
    let line = bench.line(plain(0, false))?;
    let read = line
        .conn
        .read(MrSlice::EMPTY, RemoteSlice::EMPTY, FLAGS, 0)?;
    line.wait(read)
        .step(|| "a read on a connection that works".to_owned())?;
    if bench.peer.is_iwarp() {
        for _ in 0..REFUSED {
            after_a_refused_write(bench)?;
        }
        return Ok(format!(
            "no answer after a write that was refused, on {REFUSED} connections"
        ));
    }
    bench.tell(&Request::Vanish { line: line.number })?;
    after_a_failure(&line)
}

/// The server's queue pair has failed, and no message tells this side.
fn after_a_failure(line: &Line) -> Result<String> {
    let read = line
        .conn
        .read(MrSlice::EMPTY, RemoteSlice::EMPTY, FLAGS, 0)?;
    match (line.outcome(read)?, line.conn.failure()) {
        (Err(_), Some(Failure::Operation(failure))) => Ok(format!(
            "no answer after the server's queue pair has failed: {}",
            failure.status
        )),
        (Err(text), _) => Ok(text),
        (Ok(_), _) => failed(
            "a read of 0 bytes completed after the server's queue pair had failed, so its completion is no answer. \
             No program may take it for one here. This library asks the server's device by writes of 0 bytes",
        ),
    }
}

/// The server's device ends the connection for the write, and so cannot answer the read.
fn after_a_refused_write(bench: &mut Bench) -> Result {
    let line = bench.line(plain(0, false))?;
    let (dst, src) = (guarded(bench)?.slice(64..128)?, bench.own(0, 64)?);
    let mut batch = line.conn.batch::<2>();
    batch.write(dst, src, Flags::COMPLETION_ON_ERROR, 0)?;
    batch.read(MrSlice::EMPTY, RemoteSlice::EMPTY, FLAGS, 0)?;
    let read = batch.post()?;
    match line.outcome(read)? {
        Err(_) => Ok(()),
        Ok(_) => failed(
            "a read of 0 bytes completed after a write that the server's device refuses, so its completion is no \
             answer. These guarantees do not hold here: the close of a connection proves that earlier operations \
             were executed, a keep-alive notices a silent peer, and a writer's probe proves that the server's \
             device answers",
        ),
    }
}
