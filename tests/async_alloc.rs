//! Awaited operations allocate nothing, whether their task sleeps or not. The simulator's own
//! allocations are not counted, nor are the program's.

#[path = "common/mod.rs"]
mod common;
#[path = "async/held.rs"]
#[allow(dead_code, unused_imports, reason = "this test uses a part of it")]
mod held;
#[path = "async/support.rs"]
#[allow(dead_code, reason = "this test uses a part of it")]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::pin::pin;

use rpma::FlushType;
use rpma_async::{Conn, Inbox, Pool, Setup};

use common::{device_test, peer};
use held::{hold, release};
use support::{Ends, Memories, begun, run};

thread_local! {
    /// Whether allocations of this thread are looked at.
    static LOOKS: Cell<bool> = const { Cell::new(false) };
    /// The places in the libraries that have allocated.
    static FOUND: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The system's allocator, which looks where an allocation comes from.
struct Looking;

// SAFETY: the system's allocator does all of the work.
unsafe impl GlobalAlloc for Looking {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        look();
        // SAFETY: the caller promises the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller promises the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Looking = Looking;

fn look() {
    // The look itself allocates.
    if !LOOKS
        .try_with(|looks| looks.replace(false))
        .unwrap_or(false)
    {
        return;
    }
    let trace = Backtrace::force_capture().to_string();
    let places = trace.lines().map(str::trim);
    let is_ours = |place: &&str| {
        let parts = ["rpma/src/", "rpma-async/src/", "rpma-sim/src/", "tests/"];
        place.starts_with("at ") && parts.iter().any(|part| place.contains(part))
    };
    let mut ours = places.filter(is_ours);
    // The first ones are this look and the allocator.
    let place = ours.find(|place| !place.contains("tests/async_alloc.rs"));
    let is_library = |place: &&str| {
        // With the simulator the library notes the program's lines for its reports.
        (place.contains("rpma/src/") || place.contains("rpma-async/src/"))
            && !place.contains("verbs/caller.rs")
    };
    if let Some(place) = place.filter(is_library) {
        FOUND.with_borrow_mut(|found| found.push(place.to_owned()));
    }
    LOOKS.set(true);
}

/// The places in the libraries that allocate meanwhile, on this thread.
async fn allocations(run: impl Future<Output = ()>) -> Vec<String> {
    let run = pin!(run);
    LOOKS.set(true);
    run.await;
    LOOKS.set(false);
    FOUND.take()
}

/// One operation of each kind, awaited. With `sleeps` its task sleeps first.
async fn each(conn: &Conn, memories: &Memories, inbox: &mut Inbox, sleeps: bool) {
    macro_rules! awaited {
        ($post:expr) => {{
            if sleeps {
                hold();
            }
            let mut op = $post.expect("posted");
            if sleeps {
                assert!(begun(&mut op).await.is_none());
                release();
            }
            _ = op.await.expect("succeeds");
        }};
    }
    let to = memories.to();
    let word = async || {
        let mut lease = memories.pool.lease().await;
        lease[..7].copy_from_slice(b"a word.");
        lease.truncate(7);
        lease
    };
    awaited!(conn.write(to, word().await.freeze()));
    awaited!(conn.read(word().await, to));
    awaited!(conn.flush(to, FlushType::Visibility));
    awaited!(conn.send(word().await.freeze()));
    drop(inbox.next().await.expect("no error").expect("a message"));
    let at = memories.remote.slice(64..72).expect("inside");
    awaited!(conn.atomic_write(at, [1; 8]));
    let mut batch = conn.batch::<3>();
    let part = word().await.freeze();
    batch.write(to, part.clone()).expect("room");
    batch.write(to, part).expect("room");
    batch.flush(to, FlushType::Visibility).expect("room");
    awaited!(batch.commit());
    let parts = [(to, word().await.freeze())];
    awaited!(conn.commit(parts, Some((at, [2; 8])), FlushType::Visibility));
    conn.ready(3).await.expect("room");
    conn.idle().await.expect("no error");
}

/// Promise: awaited writes, reads, flushes, messages, batches and commits, waits for room and for blocks,
/// and the driver's work for them, allocate nothing.
#[test]
fn awaited_operations_allocate_nothing() {
    device_test(|| {
        let peer = peer();
        let memories = Memories::new(&peer);
        run(async {
            let setup = Setup::default().with_receives(2, 64);
            let Ends { client, server, .. } = Ends::new(&peer, &Setup::default(), &setup).await;
            let mut inbox = server.inbox().expect("it has receives");
            for sleeps in [false, true] {
                // The first ones make room in queues and lists.
                each(&client, &memories, &mut inbox, sleeps).await;
                let rounds = async {
                    for _ in 0..10 {
                        each(&client, &memories, &mut inbox, sleeps).await;
                        tokio::task::yield_now().await;
                    }
                };
                let found = allocations(rounds).await;
                assert!(found.is_empty(), "sleeps: {sleeps}: {found:#?}");
            }
            // The look finds those of the library: an error has a text.
            let found = allocations(async { drop(Pool::new(&peer, 0, 0)) }).await;
            assert!(!found.is_empty());
        });
    });
}
