//! The lines that the library logs. A process has one logger, so all tests of a program share this
//! one, and a test sees only its own lines.

use std::cell::RefCell;
use std::sync::{Mutex, Once, PoisonError};

use log::{Level, LevelFilter, Log, Metadata, Record};

thread_local! {
    /// The lines of this thread, and the level from which on they are kept.
    static KEPT: RefCell<(LevelFilter, Vec<(Level, String)>)> =
        const { RefCell::new((LevelFilter::Off, Vec::new())) };
}

/// The lines of all threads, if a test asks for them.
static OF_ALL: Mutex<Option<Vec<String>>> = Mutex::new(None);

fn of_all() -> std::sync::MutexGuard<'static, Option<Vec<String>>> {
    OF_ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Lines;

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        KEPT.with_borrow(|(level, _)| metadata.level() <= *level) || of_all().is_some()
    }

    fn log(&self, record: &Record<'_>) {
        let line = record.args();
        KEPT.with_borrow_mut(|(level, lines)| {
            if record.level() <= *level {
                lines.push((record.level(), line.to_string()));
            }
        });
        if let Some(lines) = &mut *of_all() {
            lines.push(line.to_string());
        }
    }

    fn flush(&self) {}
}

fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Lines).expect("the only one");
        log::set_max_level(LevelFilter::Trace);
    });
}

/// From now on the lines of this thread are kept, from this level on.
pub(crate) fn keep(level: LevelFilter) {
    start();
    KEPT.set((level, Vec::new()));
}

/// The lines of this thread since then, with their levels.
pub(crate) fn take_with_levels() -> Vec<(Level, String)> {
    KEPT.with_borrow_mut(|(_, lines)| std::mem::take(lines))
}

/// The lines of this thread since then.
pub(crate) fn take() -> Vec<String> {
    let lines = take_with_levels().into_iter();
    lines.map(|(_, line)| line).collect()
}

/// From now on the lines of all threads are kept.
pub(crate) fn keep_all() {
    start();
    of_all().get_or_insert_default();
}

/// Whether one of these has this text.
pub(crate) fn any_of_all(text: &str) -> bool {
    let lines = of_all();
    lines.iter().flatten().any(|line| line.contains(text))
}
