//! The main thread during a measurement: progress on a terminal, signs of life to the servers, and
//! ctrl-c.

use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Bench;
use super::job::{End, Job};
use crate::client::{Result, Stop};
use crate::interrupt::Interrupt;
use crate::settings::PerSecond;
use crate::settings::Setting;

/// How often the flags are looked at.
const TICK: Duration = Duration::from_millis(20);
/// How often the progress is printed.
const LINE: Duration = Duration::from_secs(1);
/// How often the servers get a sign of life. They end a session without one.
const LIFE: Duration = Duration::from_secs(30);

/// Watches the threads until they have ended. An interrupt, and a server whose session has ended,
/// end them.
pub(super) fn watch(
    setting: &Setting,
    job: &Job,
    bench: &mut Bench,
    interrupt: &Interrupt,
    is_over: impl Fn() -> bool,
) -> Result {
    let mut line = Line::new(setting, job);
    let (mut alive, mut result) = (Instant::now(), Ok(()));
    while !is_over() {
        sleep(TICK);
        if result.is_ok() && interrupt.is_set() {
            result = Err(Stop::Interrupted);
        } else if result.is_ok() && alive.elapsed() > LIFE {
            alive = Instant::now();
            result = bench
                .servers
                .iter_mut()
                .try_for_each(|server| server.ping());
        }
        if result.is_err() {
            job.stop();
        }
        line.print();
    }
    line.clear();
    result
}

/// The progress line. It is only for a terminal.
struct Line<'a> {
    setting: &'a Setting,
    job: &'a Job,
    is_terminal: bool,
    /// When it was printed, and the operations at that time.
    printed: (Instant, u64),
}

impl<'a> Line<'a> {
    fn new(setting: &'a Setting, job: &'a Job) -> Self {
        Self {
            setting,
            job,
            is_terminal: stderr().is_terminal(),
            printed: (Instant::now(), 0),
        }
    }

    fn print(&mut self) {
        let elapsed = self.printed.0.elapsed();
        if !self.is_terminal || elapsed < LINE {
            return;
        }
        let completed = self.job.completed.iter();
        let completed = completed.map(|of| of.load(Ordering::Relaxed)).sum();
        let rate = (completed - self.printed.1) as f64 / elapsed.as_secs_f64();
        let seconds = |nanos: u64| nanos / 1_000_000_000;
        let of = match self.job.end {
            End::Time(end) => format!(" of {} s", seconds(end)),
            End::Count(_) => " s".to_owned(),
        };
        let text = format!(
            "{}: {}{of}, {completed} operations, {}",
            self.setting,
            seconds(self.job.clock.now()),
            PerSecond(rate)
        );
        self.write(&text);
        self.printed = (Instant::now(), completed);
    }

    fn clear(&self) {
        if self.is_terminal {
            self.write("");
        }
    }

    /// Replaces the line. A terminal that is gone is no reason to end.
    fn write(&self, text: &str) {
        let _ = write!(stderr(), "\r\x1b[K{text}");
    }
}
