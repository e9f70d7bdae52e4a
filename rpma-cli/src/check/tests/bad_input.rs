//! Servers and clients that are not as they should be: each gets one line that says what to do.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rpma::sim::Profile;
use rpma::{ConnCfg, ConnEvent, ConnReq, Ep, Flags, FlushType, Offer, Peer, Refusal, sim};

use super::world::{Result, World, profile};
use crate::args::{Endpoint, Format, Serve};
use crate::check::bench::Bench;
use crate::client::{Clock, plain};
use crate::interrupt::Interrupt;
use crate::report::{Outcome, Output};
use crate::wire::{
    Answer, Answers, Asks, Expect, FIRST, MOST_LINES, Request, Send, Spin, Tag, VERSION,
};

const LIMIT: Duration = Duration::from_secs(10);

fn assert_has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in {text:?}");
    }
}

#[test]
fn no_server_listens() -> Result {
    for profile in [Profile::RXE_6_12, Profile::SIW_6_12] {
        let world = World::of(profile.clone(), profile);
        let words = [
            "nobody listens on that port",
            "Start `rpma serve` on that host",
        ];
        assert_has(&world.problem()?, &words);
        assert!(world.is_empty());
    }
    Ok(())
}

/// What a server of another kind does with a client.
#[derive(Clone, Copy)]
enum Does {
    AcceptsWithout,
    AcceptsAs(u16),
    Nothing,
}

/// The problem of a client whose server is another program.
fn with_other_program(profile: &Profile, does: Does) -> Result<String> {
    let world = World::of(profile.clone(), profile.clone());
    // Both sides are on a host from here on, so that the clock never jumps ahead of one.
    let _client = world.client.enter();
    world.fabric.jump_over_waits();
    let addr = world.endpoint();
    let listening = {
        let _entered = world.server.enter();
        let peer = Peer::at(&addr.host)?;
        Ep::listen(&peer, &addr.host, addr.port)?
    };
    let other = world
        .server
        .spawn(move || serve_otherwise(&listening, does));
    let problem = world.problem()?;
    match other.join() {
        Ok(served) => served?,
        Err(panic) => std::panic::resume_unwind(panic),
    }
    Ok(problem)
}

fn serve_otherwise(ep: &Ep, does: Does) -> rpma::Result<()> {
    let req = ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT)?;
    let data = match does {
        Does::AcceptsWithout => Vec::new(),
        Does::AcceptsAs(version) => {
            let mut offer = Offer::default();
            let tag = Tag {
                session: 1,
                line: 0,
            };
            offer.set_data(&tag.encode_as(version));
            offer.encode(Offer::ACCEPT)?
        }
        Does::Nothing => {
            sim::sleep(LIMIT + Duration::from_secs(1));
            return Ok(());
        }
    };
    let conn = req.connect(&data)?;
    // The client ends it.
    conn.wait_ended(LIMIT)?;
    Ok(())
}

#[test]
fn another_program_listens() -> Result {
    let problem = with_other_program(&profile(), Does::AcceptsWithout)?;
    assert_has(&problem, &["is no `rpma serve`", "on a port of its own"]);
    Ok(())
}

#[test]
fn a_server_of_another_version() -> Result {
    let problem = with_other_program(&profile(), Does::AcceptsAs(VERSION + 1))?;
    assert_has(&problem, &["the version 2", "the same rpma on both hosts"]);
    Ok(())
}

/// Promise: no wait is longer than its limit.
#[test]
fn a_server_that_does_not_answer() -> Result {
    let problem = with_other_program(&Profile::RXE_6_12, Does::Nothing)?;
    assert_has(&problem, &["did not answer within 10 s", "UDP port 4791"]);
    // The kernel may give up first, after the same 10 s.
    let problem = with_other_program(&Profile::SIW_6_12, Does::Nothing)?;
    assert_has(&problem, &["the server's TCP port"]);
    Ok(())
}

/// The words with which a server refuses a client.
fn refusal(world: &World, data: &[u8]) -> Result<String> {
    let _entered = world.client.enter();
    let addr = world.endpoint();
    let peer = Peer::toward(&addr.host)?;
    let req = ConnReq::new(&peer, &addr.host, addr.port, &ConnCfg::new())?;
    let conn = req.connect(data).map_err(rpma::Error::from)?;
    match conn.next_event_timeout(LIMIT)? {
        ConnEvent::Rejected { private_data, .. } => {
            Ok(Refusal::decode(&private_data)?.words().to_owned())
        }
        event => Err(format!("not refused: {event}").into()),
    }
}

fn offer(data: &[u8]) -> Result<Vec<u8>> {
    let mut offer = Offer::default();
    Ok(offer.set_data(data).encode(Offer::CONNECT)?)
}

/// Promise: the server says why, and serves the next client.
#[test]
fn clients_that_are_refused() -> Result {
    let world = World::new();
    let server = world.start(&world.serve())?;
    let stranger = Tag {
        session: 7,
        line: 1,
    };
    for (data, words) in [
        (vec![], "the peer sent no Offer"),
        (offer(b"other")?, "do not belong to `rpma serve`"),
        (
            offer(&Tag::BEGIN.encode_as(VERSION + 1))?,
            "the same rpma on both hosts",
        ),
        (offer(&stranger.encode())?, "was not announced"),
    ] {
        assert_has(&refusal(&world, &data)?, &[words]);
    }
    let checked = world.check(&["transfer-zero"])?;
    assert_eq!(checked.outcome, Outcome::Good, "{:#}", checked.report);
    server.stop()?;
    Ok(())
}

#[test]
fn a_second_client_is_told_that_the_server_is_busy() -> Result {
    let world = World::new();
    let server = world.start(&world.serve())?;
    let first = {
        let _entered = world.client.enter();
        Bench::connect(&world.endpoint(), false, &Interrupt::default())
    };
    let first = first.map_err(|stop| format!("{stop:?}"))?;
    assert_has(&world.problem()?, &["refuses: ", "the server is busy with"]);
    drop(first);
    // The end of the first session may come after this request.
    let started = Instant::now();
    while world.check(&["transfer-zero"]).is_err() {
        assert!(started.elapsed() < LIMIT, "the server is still busy");
    }
    server.stop()?;
    Ok(())
}

/// Promise: a client cannot make the server take more memory or connections than a case needs, nor
/// panic. It gets the reason, and the session goes on.
#[test]
fn requests_for_too_much_are_refused() -> Result {
    let world = World::new();
    let server = world.start(&world.serve())?;
    let _entered = world.client.enter();
    let connected = Bench::connect(&world.endpoint(), false, &Interrupt::default());
    let mut bench = connected.map_err(|stop| format!("{stop:?}"))?;
    bench.clock = Clock::new(&Interrupt::default(), LIMIT);
    let expect = |receives, asked, answered| {
        Request::Expect(Expect {
            line: 1,
            asks: Asks::Bytes {
                len: asked,
                seed: 1,
            },
            answers: Answers::Accept {
                len: answered,
                seed: 1,
            },
            fallback: false,
            keep_alive_ms: None,
            receives,
            refills: false,
            watch: None,
        })
    };
    let max = u32::MAX;
    for (request, words) in [
        (expect((max, max), 0, 0), "receives of"),
        (expect((1025, 0), 0, 0), "at most 1024"),
        (expect((0, 0), max, 0), "bytes of private data"),
        (expect((0, 0), 0, max), "bytes of private data"),
    ] {
        let refused = bench.tell(&request);
        let stop = refused.err().ok_or("it was not refused")?;
        assert_has(&format!("{stop:?}"), &[words]);
    }
    let lines: std::result::Result<Vec<_>, _> = (0..MOST_LINES)
        .map(|_| bench.line(plain(0, false)))
        .collect();
    let lines = lines.map_err(|stop| format!("{stop:?}"))?;
    let one_more = bench.line(plain(0, false)).err();
    let one_more = one_more.ok_or("it was not refused")?;
    assert_has(&format!("{one_more:?}"), &["at most 32 connections"]);
    let message = bench.tell(&Request::Send(Send {
        line: 1,
        len: max,
        seed: 1,
        imm: None,
    }));
    let message = message.err().ok_or("it was not refused")?;
    assert_has(&format!("{message:?}"), &["a connection sends at most"]);
    // Sums that do not fit into 64 bits.
    bench.local.write_at(0, &[2; 8])?;
    let word = bench.arena.slice(FIRST..FIRST + 8)?;
    let flags = Flags::COMPLETION_ON_ERROR;
    lines[0]
        .conn
        .write(word, bench.local.slice(..8)?, flags, 0)?;
    let flushed = lines[0].flush(word, FlushType::Visibility);
    flushed.map_err(|stop| format!("{stop:?}"))?;
    let spins = bench.control().request(&Request::Spin(Spin {
        word: FIRST,
        last: 2,
        data: u64::MAX,
        data_len: max,
        seed: u64::MAX,
    }));
    assert!(matches!(spins, Ok(Answer::Spins)), "{spins:?}");
    let spun = bench.control().answer().err();
    let spun = spun.ok_or("it was not refused")?;
    assert_has(&format!("{spun:?}"), &["not inside the memory"]);
    bench.clear().map_err(|stop| format!("{stop:?}"))?;
    drop((lines, bench));
    server.stop()?;
    Ok(())
}

/// Output that sets an interrupt when the first case has passed.
#[derive(Clone, Default)]
struct Interrupting {
    text: Arc<Mutex<String>>,
    interrupt: Interrupt,
}

impl Write for Interrupting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        text.push_str(&String::from_utf8_lossy(bytes));
        if text.contains("passed  declaration") {
            self.interrupt.set();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Promise: ctrl-c ends with the report so far.
#[test]
fn an_interrupt_ends_with_the_report_so_far() -> Result {
    let world = World::new();
    let server = world.start(&world.serve())?;
    let out = Interrupting::default();
    // An idle connection for 5 s.
    let mut args = world.args(&["declaration", "connection-idle"]);
    args.form.format = Format::Text;
    let outcome = {
        let _entered = world.client.enter();
        crate::check::run(&args, &out.interrupt, &mut Output::to(out.clone()))?
    };
    server.stop()?;
    assert_eq!(outcome, Outcome::Bad);
    let text = out.text.lock().unwrap_or_else(PoisonError::into_inner);
    assert_has(&text, &["1 passed", "interrupted in connection-idle"]);
    assert!(!text.contains("passed  connection-idle"), "{text}");
    Ok(())
}

/// Promise: wrong arguments of a server are one line.
#[test]
fn arguments_of_a_server_that_cannot_work() -> Result {
    let world = World::new();
    let good = world.serve();
    let at = |host: &str| Serve {
        addr: Endpoint {
            host: host.to_owned(),
            port: 7204,
        },
        ..good.clone()
    };
    let directory = Serve {
        memory: Some(std::env::temp_dir()),
        ..good.clone()
    };
    for (args, words) in [
        (at("0.0.0.0"), "0.0.0.0"),
        (at("127.0.0.1"), "127.0.0.1"),
        (at("no host"), "no host"),
        (directory, "directory"),
    ] {
        let _entered = world.server.enter();
        let mut out = Output::to(io::sink());
        let ran = crate::serve::run(&args, &Interrupt::default(), &mut out);
        let problem = ran.err().ok_or("it served")?.to_string();
        assert_has(&problem, &[words]);
        assert!(!problem.contains('\n'), "{problem}");
    }
    Ok(())
}

/// Promise: a report that cannot be written is an error before the first case.
#[test]
fn a_report_that_cannot_be_written() -> Result {
    let world = World::new();
    let mut args = world.args(&[]);
    args.form.out = Some(std::env::temp_dir());
    let error = world.check_with(&args, &Interrupt::default());
    let error = error.err().ok_or("it ran")?.to_string();
    assert_has(&error, &["the results cannot be written", "--out"]);
    Ok(())
}
