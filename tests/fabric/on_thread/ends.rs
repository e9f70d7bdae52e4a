//! The end of a reactor's thread, in the order of the fabric.

use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Wake, Waker};
use std::thread as real;

use rpma::sync::mpsc;
use rpma::thread;
use rpma_async::{Conn, Reactor, block_on};

use crate::common::prelude::*;
use crate::on_thread::program::{Server, nothing_is_left, reactor_on, setup, wait};

fn jumping() -> Fabric {
    Rig::new().jumping().fabric()
}

/// Promise: the drop of the last handle waits for the thread, in virtual time. Afterwards no object
/// is left.
#[test]
fn the_last_handle_waits_for_the_thread() -> Result {
    for seed in 1..30 {
        let (fabric, [host]) = Rig::new().seed(seed).hosts(["here"]);
        let reactor = reactor_on(&host)?;
        let other = reactor.clone();
        host.spawn(move || drop(reactor)).join().expect("no panic");
        assert!(!fabric.objects().is_empty());
        drop(other);
        assert!(fabric.objects().is_empty(), "{:?}", fabric.objects());
        assert_eq!(fabric.why_not_repeatable(), None);
    }
    let fabric = jumping();
    drop(reactor_on(&fabric.host("here"))?);
    assert!(fabric.objects().is_empty(), "{:?}", fabric.objects());
    Ok(())
}

/// Promise: a thread that is on no host may drop the last handle: it waits in real time, and the
/// fabric's threads go on.
#[test]
fn a_thread_off_any_host_drops_the_last_handle() -> Result {
    for fabric in [jumping(), Rig::new().seed(3).fabric()] {
        let reactor = reactor_on(&fabric.host("here"))?;
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let dropping = real::spawn(move || {
            drop(reactor);
            done.store(true, Ordering::SeqCst);
        });
        while !is_done.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        dropping.join().expect("no panic");
        assert!(fabric.objects().is_empty(), "{:?}", fabric.objects());
    }
    Ok(())
}

/// The last step of a thread, after its end on the fabric: the drop of a variable of the thread, or
/// of a result that is not taken.
struct Late;

impl Drop for Late {
    fn drop(&mut self) {
        real::sleep(Duration::from_millis(1250));
    }
}

std::thread_local! {
    static LATE: Late = const { Late };
}

/// Runs `joins` beside a thread that notices who stays outside of the fabric.
fn beside_another(joins: impl FnOnce() + Send + 'static) {
    let (fabric, [host]) = Rig::new().seed(5).hosts(["here"]);
    let other = host.spawn(|| (0..2_000).for_each(|_| thread::sleep(Duration::from_millis(1))));
    host.spawn(joins).join().expect("no panic");
    other.join().expect("no panic");
    assert_eq!(fabric.why_not_repeatable(), None);
}

/// Promise: a thread that has come to its end, and gets no processor for its last steps, does not
/// spoil the repeat of a run: a join is no stay outside of the fabric.
#[test]
fn a_join_waits_for_the_last_steps_of_a_thread() {
    let ends_late = || LATE.with(|_| {});
    beside_another(move || thread::spawn(ends_late).join().expect("no panic"));
}

/// Promise: as for a join, at the end of a scope.
#[test]
fn a_scope_waits_for_the_last_steps_of_its_threads() {
    beside_another(|| {
        thread::scope(|scope| {
            scope.spawn(|| Late);
        });
    });
}

/// A wait for the end.
type Closed = Box<dyn Future<Output = rpma::Result<ConnEvent>> + Send + Unpin>;

/// The last handles, which go with the first wake-up, and the name of the thread then.
#[derive(Default)]
struct Last {
    handles: Mutex<Option<(Reactor, Conn, Closed)>>,
    thread: OnceLock<Option<String>>,
}

impl Wake for Last {
    fn wake(self: Arc<Self>) {
        let last = self.handles.lock().expect("no panic").take();
        let name = real::current().name().map(str::to_owned);
        self.thread.set(name).expect("one wake-up");
        drop(last);
    }
}

/// Promise: the thread itself may drop the last handle, in a waker of the program. It ends then,
/// and does not wait.
#[test]
fn the_thread_drops_the_last_handle() -> Result {
    for seed in 1..10 {
        let (fabric, [here, there]) = Rig::new().seed(seed).hosts(["client", "server"]);
        let server = Server::new(&there)?;
        let addr = server.addr;
        let (end, told) = mpsc::channel();
        let serving = there.spawn(move || -> Result {
            let conn = server.accept()?;
            told.recv()?;
            drop(conn);
            Ok(())
        });
        let reactor = reactor_on(&here)?;
        let conn = wait(reactor.connect(addr, &setup(), &[]))?;
        let last = Arc::new(Last::default());
        let mut closed = conn.closed();
        let waker = Waker::from(Arc::clone(&last));
        let polled = Pin::new(&mut closed).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        *last.handles.lock().expect("no panic") = Some((reactor, conn, Box::new(closed)));
        end.send(())?;
        serving.join().expect("no panic")?;
        nothing_is_left(&fabric);
        let thread = last.thread.get().ok_or("it was woken")?;
        assert_eq!(thread.as_deref(), Some("rpma-async"));
        assert_eq!(fabric.why_not_repeatable(), None, "seed {seed}");
    }
    Ok(())
}

/// Promise: a thread that panics in a future drops its reactor in the order of the fabric, and its
/// peer learns of the end.
#[test]
fn a_future_panics() -> Result {
    for fabric in [jumping(), Rig::new().seed(5).fabric()] {
        let _entered = fabric.host("main").enter();
        let [here, there] = ["client", "server"].map(|name| fabric.host(name));
        let server = Server::new(&there)?;
        let addr = server.addr;
        let serving = there.spawn(move || -> Result<_> {
            let conn = server.accept()?;
            Ok(wait(conn.closed()).map(drop))
        });
        let panics = here.clone().spawn(move || {
            let reactor = reactor_on(&here).expect("a reactor");
            wait(async {
                let _conn = reactor.connect(addr, &setup(), &[]).await?;
                panic!("as it should");
                #[expect(unreachable_code, reason = "the type of the future")]
                Ok(())
            })
        });
        panics.join().expect_err("it panics");
        serving.join().expect("no panic")??;
        nothing_is_left(&fabric);
        assert_eq!(fabric.why_not_repeatable(), None);
    }
    Ok(())
}

/// Promise: if all wait and no event can come, the thread that awaits panics with that reason. The
/// reactor's thread does not, and goes on.
#[test]
fn a_wait_in_vain_panics_in_its_own_thread() -> Result {
    let (fabric, [here, there]) = Rig::new().seed(1).hosts(["client", "server"]);
    let reactor = reactor_on(&here)?;
    for _ in 0..2 {
        let text = panic_of(|| block_on(pending::<()>(), Duration::MAX));
        let begin = "every thread of the fabric waits";
        assert!(text.starts_with(begin), "{text}");
        assert!(text.contains("rpma-async"), "{text}");
    }
    let server = Server::new(&there)?;
    let addr = server.addr;
    let serving = there.spawn(move || -> Result {
        drop(server.accept()?);
        Ok(())
    });
    let conn = wait(reactor.connect(addr, &setup(), &[]))?;
    serving.join().expect("no panic")?;
    let _ = wait(conn.closed());
    let dropped = catch_unwind(AssertUnwindSafe(|| drop((conn, reactor))));
    dropped.expect("no panic");
    nothing_is_left(&fabric);
    Ok(())
}

/// Promise: a reactor without work waits as long as its program is busy elsewhere. That is no wait
/// in vain.
#[test]
fn a_reactor_rests() -> Result {
    let fabric = jumping();
    let here = fabric.host("here");
    let reactor = reactor_on(&here)?;
    // Longer than the 5 s after which a wait in vain panics.
    real::sleep(Duration::from_secs(6));
    let there = fabric.host("there");
    let _entered = there.enter();
    let server = Server::new(&there)?;
    let addr = server.addr;
    let accepting = there.spawn(move || server.accept().map(drop));
    let connected = wait(reactor.connect(addr, &setup(), &[]));
    drop(connected?);
    accepting.join().expect("no panic")?;
    Ok(())
}
