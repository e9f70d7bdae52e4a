//! [`Tasks`]: tasks that wait, each for a number.
//!
//! A task that waits for a commit, an operation or a place waits for its number to be reached. So a
//! change wakes the tasks that can go on, and no others. The owner has the list under its lock. It
//! takes wakers out there, and wakes and drops them without the lock, because they run code of the
//! program.

use std::collections::VecDeque;
use std::mem;
use std::task::Waker;

/// The tasks by their numbers. Those with the same number are in the order of their first looks.
/// `W` is a condition for which a task waits, beside its number.
#[derive(Debug)]
pub(crate) struct Tasks<W = ()> {
    tasks: VecDeque<Task<W>>,
    /// How many tickets were given.
    tickets: u64,
}

#[derive(Debug)]
struct Task<W> {
    /// The number for which it waits, and its ticket: no two are equal, and they are sorted.
    place: (u64, u64),
    wanted: W,
    waker: Waker,
}

impl<W> Default for Tasks<W> {
    fn default() -> Self {
        Self {
            tasks: VecDeque::new(),
            tickets: 0,
        }
    }
}

/// The place of a future among the tasks, once it has one.
#[derive(Debug, Default)]
pub(crate) struct Ticket(Option<(u64, u64)>);

impl Ticket {
    pub(crate) fn is_none(&self) -> bool {
        self.0.is_none()
    }
}

/// A walk through the tasks that wait now.
#[derive(Debug)]
pub(crate) struct Walk {
    after: (u64, u64),
    /// The last ticket. A task that waits only now has a later one.
    last: u64,
}

impl<W> Tasks<W> {
    /// Room for so many, which then allocate nothing.
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self {
            tasks: VecDeque::with_capacity(count),
            tickets: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Leaves the waker of a task that waits for `number`, and returns an older one of the task. A
    /// task that was woken in vain has its old place again: otherwise others could overtake it
    /// for ever.
    #[inline]
    pub(crate) fn wait(
        &mut self,
        ticket: &mut Ticket,
        (number, wanted): (u64, W),
        waker: &Waker,
    ) -> Option<Waker> {
        if let Some(place) = ticket.0 {
            return self.wait_again(ticket, place, (number, wanted), waker);
        }
        let waker = waker.clone();
        self.tickets += 1;
        let place = (number, self.tickets);
        ticket.0 = Some(place);
        self.insert(Task {
            place,
            wanted,
            waker,
        });
        None
    }

    fn wait_again(
        &mut self,
        ticket: &mut Ticket,
        old: (u64, u64),
        (number, wanted): (u64, W),
        waker: &Waker,
    ) -> Option<Waker> {
        let place = (number, old.1);
        if let (true, Ok(at)) = (place == old, self.find(old)) {
            let left = &mut self.tasks[at].waker;
            let is_same = left.will_wake(waker);
            return (!is_same).then(|| mem::replace(left, waker.clone()));
        }
        let waker = waker.clone();
        let old = self.take(old);
        ticket.0 = Some(place);
        self.insert(Task {
            place,
            wanted,
            waker,
        });
        old
    }

    #[inline]
    fn insert(&mut self, task: Task<W>) {
        // Operations begin in the order of their numbers.
        if self.tasks.back().is_none_or(|last| last.place < task.place) {
            self.tasks.push_back(task);
        } else if let Err(at) = self.find(task.place) {
            self.tasks.insert(at, task);
        }
    }

    /// The task waits no longer. Returns its waker, unless it was taken.
    pub(crate) fn leave(&mut self, ticket: &mut Ticket) -> Option<Waker> {
        let place = ticket.0.take()?;
        if self.tasks.is_empty() {
            return None;
        }
        self.take(place)
    }

    fn take(&mut self, place: (u64, u64)) -> Option<Waker> {
        let at = self.find(place).ok()?;
        self.tasks.remove(at).map(|task| task.waker)
    }

    fn find(&self, place: (u64, u64)) -> Result<usize, usize> {
        self.tasks.binary_search_by_key(&place, |of| of.place)
    }

    /// Whether the task of this ticket waits, and was not woken.
    pub(crate) fn has(&self, ticket: &Ticket) -> bool {
        ticket.0.is_some_and(|place| self.find(place).is_ok())
    }

    /// Whether one waits for such a thing.
    pub(crate) fn any(&self, is_it: impl Fn(&W) -> bool) -> bool {
        self.tasks.iter().any(|of| is_it(&of.wanted))
    }

    /// The number for which the first task waits.
    #[inline]
    pub(crate) fn first(&self) -> Option<u64> {
        self.tasks.front().map(|of| of.place.0)
    }

    #[inline]
    pub(crate) fn last(&self) -> Option<u64> {
        self.tasks.back().map(|of| of.place.0)
    }

    pub(crate) fn take_first(&mut self) -> Option<Waker> {
        self.tasks.pop_front().map(|task| task.waker)
    }

    pub(crate) fn walk(&self) -> Walk {
        Walk {
            after: (0, 0),
            last: self.tickets,
        }
    }

    /// Takes the next task of a walk, if it waits for at most this number.
    pub(crate) fn take_up_to(&mut self, number: u64, walk: &mut Walk) -> Option<Waker> {
        // Most often it is the first one, because those before it were taken.
        let is_next = |of: &Task<W>| of.place > walk.after && of.place.1 <= walk.last;
        let at = match self.tasks.front() {
            Some(first) if is_next(first) => 0,
            _ => {
                let from = self.tasks.partition_point(|of| of.place <= walk.after);
                from + self.tasks.range(from..).position(is_next)?
            }
        };
        if self.tasks[at].place.0 > number {
            return None;
        }
        let task = self.tasks.remove(at)?;
        walk.after = task.place;
        Some(task.waker)
    }

    /// Takes the next task of a walk that waits for something that is there.
    pub(crate) fn take_next(
        &mut self,
        walk: &mut Walk,
        mut is_there: impl FnMut(&W) -> bool,
    ) -> Option<Waker> {
        let from = self.tasks.partition_point(|of| of.place <= walk.after);
        let mut tasks = self.tasks.range(from..);
        let at = from + tasks.position(|of| of.place.1 <= walk.last && is_there(&of.wanted))?;
        let task = self.tasks.remove(at)?;
        walk.after = task.place;
        Some(task.waker)
    }
}
