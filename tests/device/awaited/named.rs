//! Reports of the simulated fabric, and errors, name the program's lines, and no number that the
//! program never gave.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use rpma_async::{Conn, Reactor};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::awaited::made::Made;
use crate::awaited::probes::set_of_two;
use crate::awaited::replicas::has_copies;
use crate::awaited::served::{self, Serving};
use crate::awaited::support::{
    CLOSE, Memories, connect, joined, receives, run, take_messages, with_reactor,
};
use crate::common::place::with_fabric;
use crate::common::prelude::*;
use crate::serve::support::SHORT;

const VISIBLE: FlushType = FlushType::Visibility;

/// A call that posts. Its line is noted.
macro_rules! noted {
    ($lines:ident, $post:expr) => {{
        $lines.borrow_mut().push(line!());
        $post.expect("posted")
    }};
}

/// The events that a report has at least.
const IN_A_REPORT: usize = 6;
/// Reports after which a run is long enough. On a busy machine a run has hundreds of probes.
const ENOUGH: usize = 10;

/// The place of a line in reports.
fn place(line: u32) -> String {
    format!("({}:{line})", file!())
}

/// Runs a program several times. A check fails each time, at another event, so that each event is
/// in a report. After [`ENOUGH`] of them, the lines that were noted are enough.
fn reports(
    program: impl AsyncFn(&Reactor, &RefCell<Vec<u32>>) -> Result,
) -> Result<(String, Vec<u32>)> {
    let fabric = with_fabric(|fabric, _| fabric.clone());
    let run = |lines: &RefCell<Vec<u32>>| {
        let ran = run(async { program(&Reactor::spawn(&peer()?)?, lines).await });
        ran.expect("it succeeds");
    };
    let lines = RefCell::default();
    fabric.find_loss(|_| {}, || run(&lines))?;
    let lines = lines.into_inner();
    let mut reports = String::new();
    let events = (1..=fabric.visited().events).rev().step_by(IN_A_REPORT);
    let events: Vec<_> = events.collect();
    for (count, nth) in events.into_iter().rev().enumerate() {
        if count >= ENOUGH && lines.iter().all(|line| reports.contains(&place(*line))) {
            break;
        }
        let event = AtomicU64::new(0);
        let check =
            |_: &Cut<'_>| assert_ne!(event.fetch_add(1, Ordering::Relaxed) + 1, nth, "the event");
        // In another order of threads there may be fewer events.
        if let Err(loss) = fabric.find_loss(check, || run(&RefCell::default())) {
            reports += &loss.to_string();
        }
    }
    Ok((reports, lines))
}

/// Promise: an operation in a report has the line that posts it, no line of the library, and no
/// number.
#[track_caller]
fn assert_named(reports: &str, lines: &[u32]) {
    assert!(!lines.is_empty());
    for line in lines {
        let place = place(*line);
        assert!(reports.contains(&place), "{place}: {reports}");
    }
    for wrong in ["rpma-async/src", "rpma/src", "op_context"] {
        let report = reports.lines().find(|line| line.contains(wrong));
        assert_eq!(report, None);
    }
}

/// As that, of the reports of a program.
fn names_its_lines(program: impl AsyncFn(&Reactor, &RefCell<Vec<u32>>) -> Result) -> Result {
    let _test = device_test();
    let (reports, lines) = reports(program)?;
    assert_named(&reports, &lines);
    Ok(())
}

/// Two ends of a connection. The server takes messages.
async fn ends(reactor: &Reactor) -> (Conn, JoinHandle<()>) {
    let (client, server) = connect(reactor, &receives(4), &receives(4)).await;
    let messages = tokio::spawn(async move { take_messages(&server).await });
    (client, messages)
}

#[test]
fn operations_have_their_lines() -> Result {
    names_its_lines(async |reactor, lines| {
        let memories = Memories::new(reactor.peer());
        let (conn, messages) = ends(reactor).await;
        let (to, word) = (memories.to(), || memories.word());
        let tail = memories.remote.slice(..8)?;

        let written = noted!(lines, conn.write(to, word()));
        written.await?;
        let written = noted!(lines, conn.write_with_imm(to, word(), 7));
        written.await?;
        let sent = noted!(lines, conn.send(word()));
        sent.await?;
        let sent = noted!(lines, conn.send_with_imm(word(), 7));
        sent.await?;
        let read = noted!(lines, conn.read(memories.block(b"a word."), to));
        drop(read.await?);
        let flushed = noted!(lines, conn.flush(to, VISIBLE));
        flushed.await?;
        let written = noted!(lines, conn.atomic_write(tail, [1; 8]));
        written.await?;
        let pointer = Some((tail, [2; 8]));
        let committed = noted!(lines, conn.commit([(to, word())], pointer, VISIBLE));
        drop(committed.await?);
        conn.close(CLOSE).await?;
        joined(messages).await;
        Ok(())
    })
}

#[test]
fn operations_of_a_batch_have_their_own_lines() -> Result {
    names_its_lines(async |reactor, lines| {
        let memories = Memories::new(reactor.peer());
        let (conn, messages) = ends(reactor).await;
        let (to, word) = (memories.to(), || memories.word());
        let tail = memories.remote.slice(..8)?;

        let mut batch = conn.batch::<6>();
        noted!(lines, batch.write(to, word()));
        noted!(lines, batch.flush(to, VISIBLE));
        noted!(lines, batch.atomic_write(tail, [1; 8]));
        noted!(lines, batch.write_with_imm(to, word(), 7));
        noted!(lines, batch.send(word()));
        noted!(lines, batch.send_with_imm(word(), 7));
        let posted = batch.commit()?;
        drop(posted.await?);
        conn.close(CLOSE).await?;
        joined(messages).await;
        Ok(())
    })
}

#[test]
fn commits_of_a_writer_have_their_lines() -> Result {
    names_its_lines(async |reactor, lines| {
        let made = Made::new(reactor, 1).await?;
        let (writer, memories) = (&made.writer, Memories::new(reactor.peer()));
        let word = memories.word();
        let to = writer.offer().regions()[0].slice(..7)?;
        let ticket = noted!(lines, writer.commit([(to, word)], None));
        writer.durable(ticket).await?;
        let read = noted!(lines, writer.read(memories.block(b"a word."), to));
        drop(read.await?);
        let (pool, far) = (&memories.pool, writer.offer().regions()[0]);
        let at = (&far, 0);
        noted!(lines, writer.commit_bytes(pool, at, &[7; 150], None).await);
        noted!(lines, writer.read_bytes(pool, &far, 0..150).await);
        made.writer.close(CLOSE).await?;
        Ok(())
    })
}

/// The server's answers have the line of [`Server::next`](rpma_async::Server::next). A check
/// whether the host of a silent server is there has none.
#[test]
fn commits_that_a_server_answers_have_their_lines() -> Result {
    let _test = device_test();
    let program = async |reactor: &Reactor, lines: &RefCell<Vec<u32>>| {
        let serving = Serving::new(reactor, 1)?;
        let writer = served::awaited(reactor, serving.addr, 1).await;
        let memories = Memories::new(reactor.peer());
        let word = memories.word();
        let to = writer.offer().regions()[0].slice(..7)?;
        let stopped = serving.stop().await;
        let ticket = noted!(lines, writer.commit([(to, word)], None));
        let silence = timeout(2 * SHORT, writer.durable(ticket)).await;
        assert!(silence.is_err(), "the server does not answer");
        let serving = stopped.start();
        writer.durable(ticket).await?;
        writer.close(CLOSE).await?;
        serving.stop().await;
        Ok(())
    };
    let question = if is_iwarp() {
        "a read of 0 bytes on connection"
    } else {
        "a write of 0 bytes on connection"
    };
    let parts = ["(tests/device/awaited/served.rs:", question];
    let (mut all, lines) = reports(program)?;
    // Each run has another order of threads, and not each event is in a report.
    for _ in 0..20 {
        if parts.iter().all(|part| all.contains(part)) {
            break;
        }
        all += &reports(program)?.0;
    }
    assert_named(&all, &lines);
    for part in parts {
        assert!(all.contains(part), "{part}: {all}");
    }
    Ok(())
}

/// Also if the driver posts it: the second one waits for the slots of the first one.
#[test]
fn commits_on_replicas_have_their_lines() -> Result {
    names_its_lines(async |reactor, lines| {
        let serving = Serving::new(reactor, 2)?;
        let set = set_of_two(reactor, &serving).await?;
        noted!(lines, set.commit(64, &[b"one"], None, 2));
        let last = noted!(lines, set.commit(72, &[b"another"], None, 2));
        has_copies(&set, last, 2).await?;
        drop(set);
        serving.stop().await;
        Ok(())
    })
}

/// Promise: an error of an operation has no number that the program never gave.
#[test]
fn errors_have_no_number() -> Result {
    with_reactor(async |reactor| {
        let memories = Memories::new(reactor.peer());
        let (client, _server) = connect(reactor, &receives(0), &receives(0)).await;
        // The key is one of no region any more.
        let (to, word) = (memories.to(), memories.word());
        drop(memories.target);
        let failed = client.write(to, word)?.await.expect_err("no memory");
        let failure = client.failure().ok_or("it failed")?;
        for text in [failed.to_string(), failure.to_string()] {
            assert!(text.starts_with("an operation on queue pair"), "{text}");
        }
        Ok(())
    })
}
