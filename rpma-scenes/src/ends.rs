//! Programs of the log that end by themselves: with a panic, which its own handle may have lost, or
//! with an error of `serve`.

use std::any::Any;
use std::collections::BTreeMap;
use std::thread;

use crate::subject::Subject;
use crate::world::{World, names, text_of};

impl<S: Subject> World<S> {
    /// The scene is about to end a program. A panic after this may be that of the ended program.
    pub(crate) fn ends_programs(&self) {
        self.first_panics().get_or_init(|| self.fabric().panics());
    }

    /// The result of a run. A panic of the log is a failure, unless it may be that of a program that
    /// the scene has ended. If the run has failed, it may be the cause.
    pub(crate) fn judged<T>(&self, run: thread::Result<T>) -> thread::Result<T> {
        let all = self.fabric().panics();
        match run {
            Ok(done) => match text_of_panics(self.first_panics().get().unwrap_or(&all), "") {
                None => Ok(done),
                Some(text) => Err(Box::new(text)),
            },
            Err(panic) => Err(with_panics(&all, panic)),
        }
    }

    /// The programs of servers that have returned, although the scene wants them to run.
    pub(crate) fn returned(&self) -> String {
        let mut servers: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (n, result) in self.results() {
            servers.entry(result).or_default().push(n);
        }
        let text = |(result, servers): (String, Vec<usize>)| {
            format!(". `serve` has returned {result} on {}", names(&servers))
        };
        servers.into_iter().map(text).collect()
    }
}

fn with_panics(all: &[String], panic: Box<dyn Any + Send>) -> Box<dyn Any + Send> {
    let why = text_of(&*panic);
    match text_of_panics(all, &why) {
        Some(text) if all.iter().any(|of| message(of) == why) => Box::new(text),
        Some(text) => Box::new(format!("{text}\n{why}")),
        None => panic,
    }
}

/// The message of a panic, without its place.
fn message(panic: &str) -> &str {
    panic.rsplit_once(", at ").map_or(panic, |(text, _)| text)
}

/// The panics, except those in a longer text.
fn text_of_panics(all: &[String], why: &str) -> Option<String> {
    let is_new = |of: &&String| message(of) == why || !why.contains(message(of));
    let lines = all.iter().filter(is_new);
    let lines: Vec<_> = lines
        .map(|of| format!("A thread or a task of the log has panicked: {of}"))
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a panic stands before the failure that it may have caused, and once.
    #[test]
    fn a_panic_stands_before_the_failure() {
        let all = ["no server, at log.rs:3:5".to_owned()];
        let with = |why: &str| text_of(&*with_panics(&all, Box::new(why.to_owned())));
        let panic = "A thread or a task of the log has panicked: no server, at log.rs:3:5";
        assert_eq!(with("it is lost"), format!("{panic}\nit is lost"));
        assert_eq!(with("no server"), panic);
        assert_eq!(with("run 3: no server"), "run 3: no server");
        assert_eq!(text_of(&*with_panics(&[], Box::new("lost"))), "lost");
    }
}
