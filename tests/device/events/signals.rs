//! Signals that come faster than anything is done.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::{ptr, thread};

use rustix::process::Signal;

use crate::common::prelude::*;
use crate::events::support::{
    Kept, Started, Thread, Waited, finished, none, nothing, set_nonblocking, started,
};

/// Between two signals to one thread.
const PAUSE: Duration = Duration::from_micros(300);
const MOMENT: Duration = Duration::from_millis(1);

/// Promise: however often signals come, no wait lasts longer than its limit or blocks another
/// thread, and connections are made and dropped as ever. A wait of no time may be interrupted as
/// well: taken for "an event is there", that led to a read that blocked, under the channel's lock,
/// for ever. (Any profiler sends such signals.)
#[test]
fn a_storm_of_signals_makes_nothing_hang() -> Result {
    for restart in [libc::SA_RESTART, 0] {
        handle(restart);
        for nonblocking in [false, true] {
            leaving(&[], || storm(nonblocking))?;
        }
    }
    assert!(HANDLED.load(Ordering::Relaxed) > 1000, "a storm");
    Ok(())
}

fn storm(nonblocking: bool) -> Result {
    let peer = peer()?;
    for (waited, _server) in Waited::each(&peer)? {
        let ep = listen(&peer)?;
        if nonblocking {
            set_nonblocking(waited.conn.get_cq(), true)?;
            set_nonblocking(&waited.conn, true)?;
            set_nonblocking(&ep, true)?;
        }
        // On the same channel, where there is one.
        let cfg = waited.cfg();
        let shared = Kept(Some(Arc::new((waited, ep))));
        let victim = |run: fn(&Waited, &Ep)| {
            let shared = Arc::clone(&shared);
            victim(move || run(&shared.0, &shared.1))
        };
        let mut victims = vec![
            victim(|waited, _| (0..200).for_each(|_| none(waited.wait(MOMENT))))?,
            victim(|waited, _| (0..10).for_each(|_| none(waited.wait(MOMENT * 20))))?,
            victim(|waited, _| {
                (0..200).for_each(|_| nothing(waited.conn.next_event_timeout(MOMENT)))
            })?,
            victim(|waited, _| {
                for _ in 0..200 {
                    let next = waited.conn.next(&mut [Wc::default()], MOMENT);
                    // It refuses a connection with a channel that others share.
                    let refused = matches!(next, Err(Error::InvalidArgument(_)));
                    let is_late = matches!(next, Err(Error::TimedOut(_)));
                    assert!(refused || is_late, "{next:?}");
                }
            })?,
            victim(|_, ep| {
                let cfg = ConnCfg::new();
                (0..200).for_each(|_| nothing(ep.next_conn_req_timeout(&cfg, MOMENT)));
            })?,
        ];
        let peer = peer.clone();
        victims.push(self::victim(move || {
            for _ in 0..10 {
                Pair::with(&peer, &cfg, &ConnCfg::new()).expect("established");
            }
        })?);
        let deadline = Instant::now() + LIMIT;
        let runs = |(victim, _): &&(Started<()>, Thread)| !victim.thread.is_finished();
        while victims.iter().any(|victim| runs(&victim)) && Instant::now() < deadline {
            for (_, thread) in victims.iter().filter(runs) {
                thread.signal(Signal::USR2);
            }
            thread::sleep(PAUSE);
        }
        for (victim, _) in victims {
            finished("a thread in a storm of signals", victim);
        }
    }
    Ok(())
}

fn victim(run: impl FnOnce() + Send + 'static) -> Result<(Started<()>, Thread)> {
    let (sender, thread) = mpsc::channel();
    let victim = started(move || {
        let thread = Thread::current().expect("a number");
        sender.send(thread).expect("wanted");
        run();
    });
    Ok((victim, thread.recv()?))
}

static HANDLED: AtomicU32 = AtomicU32::new(0);

/// Handles the signal from now on; `flags`: whether system calls are restarted.
fn handle(flags: c_int) {
    extern "C" fn count(_: c_int) {
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: a struct of plain numbers and pointers, for which zero is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = count as extern "C" fn(c_int) as usize;
    action.sa_flags = flags;
    // SAFETY: the handler only adds to an atomic.
    let ret = unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, ptr::null_mut()) };
    assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
}
