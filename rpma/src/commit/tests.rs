//! The lookout of shared writers, with threads of the system. `tests/loom` runs it in every order of
//! threads, but cannot model a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::lookout::{Shared, Watched};
use crate::verbs::Deadline;

/// What the next sleep finds.
enum Event {
    Completion,
    Panic,
}

type Events = Arc<Mutex<Receiver<Event>>>;

/// Counts completions.
struct Counts {
    events: Events,
    completed: u32,
}

impl Watched for Counts {
    type Wanted = u32;
    type Found = ();
    type Sleep = Events;
    type Slept = Event;

    fn poll(&mut self) -> bool {
        false
    }

    fn judge(&mut self, wanted: &u32) -> Option<()> {
        (self.completed >= *wanted).then_some(())
    }

    fn is_look_due(&mut self) -> bool {
        false
    }

    fn before_sleep(&mut self, _: Deadline) -> Events {
        Arc::clone(&self.events)
    }

    fn spin(_: &Events, _: impl FnMut() -> bool) -> bool {
        false
    }

    fn sleep(events: Events) -> Event {
        let event = events.lock().expect("no panic").recv().expect("an event");
        if let Event::Panic = event {
            drop(events);
            panic!("as it should");
        }
        event
    }

    fn after_sleep(&mut self, _: Event) {
        self.completed += 1;
    }
}

/// Promise: a lookout that panics calls another thread, which sleeps in its place.
#[test]
fn a_panic_strands_nobody() {
    let (happens, events) = channel();
    let shared = Shared::new(Counts {
        events: Arc::new(Mutex::new(events)),
        completed: 0,
    });
    thread::scope(|scope| {
        let shared = &shared;
        let wait = move || shared.wait(1, Duration::MAX);
        let first = scope.spawn(move || catch_unwind(AssertUnwindSafe(wait)).is_err());
        let second = scope.spawn(move || catch_unwind(AssertUnwindSafe(wait)).is_err());
        while shared.sitting() < 1 {
            thread::yield_now();
        }
        happens.send(Event::Panic).expect("a receiver");
        happens.send(Event::Completion).expect("a receiver");
        let panicked = [first, second].map(|thread| thread.join().expect("caught"));
        assert_eq!(panicked.iter().filter(|it| **it).count(), 1);
    });
    assert_eq!(shared.sitting(), 0);
}
