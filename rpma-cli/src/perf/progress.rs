//! The main thread during a measurement: progress on a terminal, signs of life to the servers, and
//! ctrl-c.

use std::io::{IsTerminal, Write, stderr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Bench;
use super::job::Job;
use crate::client::{Result, Stop};
use crate::settings::Setting;

/// How often the flags are looked at.
const TICK: Duration = Duration::from_millis(20);
/// How often the servers get a sign of life. They end a session without one.
const LIFE: Duration = Duration::from_secs(30);

/// Watches the threads until they have ended. An interrupt, and a server whose session has ended,
/// end them.
pub(super) fn watch(
    setting: &Setting,
    job: &Job,
    bench: &mut Bench,
    is_over: impl Fn() -> bool,
) -> Result {
    let is_terminal = stderr().is_terminal();
    let (mut alive, mut shown, mut result) = (Instant::now(), 0, Ok(()));
    while !is_over() {
        sleep(TICK);
        if result.is_ok() && bench.interrupt.is_set() {
            result = Err(Stop::Interrupted);
        } else if result.is_ok() && alive.elapsed() > LIFE {
            alive = Instant::now();
            let mut servers = bench.servers.iter_mut();
            result = servers.try_for_each(|server| server.ping());
        }
        if result.is_err() {
            job.stop();
        }
        let seconds = job.now() / 1_000_000_000;
        if is_terminal && seconds > shown {
            shown = seconds;
            show(&format!("{setting}: {seconds} s"));
        }
    }
    if shown > 0 {
        show("");
    }
    result
}

/// Replaces the line of a terminal. A terminal that is gone is no reason to end.
fn show(text: &str) {
    let _ = write!(stderr(), "\r\x1b[K{text}");
}
