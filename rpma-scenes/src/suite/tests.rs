use std::future::pending;

use super::*;
use crate::subject::{Appended, Log, Opening, Record, Result, Server, Shape};
use crate::{Blocking, blocking};

/// A log that never opens.
enum Wrong {
    /// A task of its own has panicked.
    Task,
    /// The program of each server returns an error.
    Server,
}

/// The same with a thread that has panicked.
struct WrongThread;

struct NoLog;

impl Log for NoLog {
    async fn append(&self, _: &[u8]) -> Appended {
        Appended::Refused(String::new())
    }

    async fn read_all(&self) -> Result<Vec<Record>> {
        Ok(Vec::new())
    }
}

impl blocking::Log for NoLog {
    fn append(&self, _: &[u8]) -> Appended {
        Appended::Refused(String::new())
    }

    fn read_all(&self) -> Result<Vec<Record>> {
        Ok(Vec::new())
    }
}

impl Subject for Wrong {
    type Log = NoLog;

    fn shape(&self) -> Shape {
        Shape::new(3, 2, 4096)
    }

    async fn serve(&self, _: Server) -> Result<()> {
        match self {
            Self::Task => pending().await,
            Self::Server => Err("no room".into()),
        }
    }

    async fn open(&self, _: Opening) -> Result<NoLog> {
        if let Self::Task = self {
            drop(tokio::spawn(async { panic!("a wrong index") }));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        Err("too few servers".into())
    }
}

impl blocking::Subject for WrongThread {
    type Log = NoLog;

    fn shape(&self) -> Shape {
        Shape::new(3, 2, 4096)
    }

    fn serve(&self, _: Server) -> Result<()> {
        Ok(())
    }

    fn open(&self, _: Opening) -> Result<NoLog> {
        drop(rpma::thread::spawn(|| panic!("a wrong index")));
        rpma::thread::sleep(Duration::from_secs(1));
        Err("too few servers".into())
    }
}

fn panics_once(suite: Suite<impl Subject>) {
    let report = suite.on(&Profile::STRICT, Platform::Eadr).run();
    let has_failed = |told: &&Played| matches!(told.outcome, Outcome::Failed(_));
    let failed = report.scenes().iter().filter(has_failed);
    let texts: Vec<_> = failed.map(ToString::to_string).collect();
    let [text] = &texts[..] else {
        panic!("{report}");
    };
    let panic = "\nA thread or a task of the log has panicked: a wrong index, at ";
    assert!(text.contains(panic) && text.contains(file!()), "{text}");
    let promise = "A log opens where nothing disturbs it.\n";
    assert!(text.starts_with(promise), "{text}");
    assert!(
        text.ends_with("writer 1 opens the log: too few servers"),
        "{text}"
    );
    let lines = report.summary();
    assert_eq!(lines.lines().count(), 3, "{lines}");
    assert!(lines.contains("as its opening fails: see the scene was-away: partition, "));
}

/// Promise: the panic of a task or a thread of the log is one failure, with its text and its place,
/// also if the log has dropped the handle.
#[test]
fn a_panic_of_the_log_is_one_failure() {
    panics_once(Suite::new(Wrong::Task));
    panics_once(Suite::new(Blocking(WrongThread)));
}

/// Promise: if the log opens nowhere, one line has the errors of the opening and of the servers, and
/// each scene.
#[test]
fn the_error_of_each_scene_is_named_once() {
    let suite = Suite::new(Wrong::Server);
    let report = suite.on(&Profile::STRICT, Platform::Eadr).run();
    let lines = report.summary();
    let reason = "as the log does not open: too few servers. `serve` has returned an error (no room) on server-0, \
                  server-1, server-2: was-away, partition, ";
    assert_eq!(lines.matches(reason).count(), 1, "{lines}");
    assert_eq!(lines.lines().count(), 2, "{lines}");
}

/// Promise: a failure is in a report once, and the summary has one line of it.
#[test]
fn a_failure_is_reported_once() {
    let played = Played {
        scene: "cuts",
        promise: "The promise.",
        profile: "a device",
        platform: Platform::Eadr,
        part: "seed 1".to_owned(),
        outcome: Outcome::Failed("the reason".to_owned()),
        tally: Tally::default(),
        time: Duration::ZERO,
    };
    let report = Report {
        played: vec![played],
        time: Duration::ZERO,
    };
    let summary = report.summary();
    assert!(!summary.contains("the reason") && summary.lines().count() == 2);
    let whole = report.to_string();
    assert_eq!(whole.matches("the reason").count(), 1, "{whole}");
    assert!(whole.contains("The promise."), "{whole}");
}
