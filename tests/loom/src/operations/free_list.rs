//! The stack of free slots.

use std::sync::Arc;

use loom::thread;

use crate::free::FreeList;
use crate::model;
use crate::primitives::{AtomicBool, Ordering};

struct Held {
    free: FreeList,
    held: [AtomicBool; 3],
}

impl Held {
    fn take(&self) -> Option<u32> {
        let index = self.free.take()?;
        let was_held = self.held[index as usize].swap(true, Ordering::Relaxed);
        assert!(!was_held, "it is another one's");
        Some(index)
    }

    fn give_back(&self, index: u32) {
        self.held[index as usize].store(false, Ordering::Relaxed);
        self.free.give_back(index);
    }
}

/// The same index is on top again when a thread goes on, and the one below is taken: it must not
/// get on top.
#[test]
fn no_index_is_taken_twice() {
    model(3, || {
        let list = Arc::new(Held {
            free: FreeList::new(3),
            held: [(); 3].map(|()| AtomicBool::new(false)),
        });
        let other = {
            let list = Arc::clone(&list);
            thread::spawn(move || {
                let [first, second] = [list.take(), list.take()];
                first.into_iter().for_each(|index| list.give_back(index));
                let third = list.take();
                [second, third]
            })
        };
        let mut taken = vec![list.take(), list.take()];
        taken.extend(other.join().unwrap());
        for index in taken.into_iter().flatten() {
            list.give_back(index);
        }
        for _ in 0..3 {
            assert!(list.take().is_some(), "an index is lost");
        }
        assert_eq!(list.take(), None);
    });
}
