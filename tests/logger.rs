//! The library's log: a program's logger may call the library, and lines come when something
//! happens.

#[path = "common/failed.rs"]
mod failed;

use std::cell::Cell;
use std::sync::{Once, mpsc};
use std::thread;
use std::time::Duration;

use failed::Result;
use log::{LevelFilter, Log, Metadata, Record};
use rpma::pmem::PmemMap;
use rpma::{Offer, PeerCfg};

/// Far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

/// Maps a file at each line, and counts the lines of a thread.
struct Maps;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static LINES: Cell<usize> = const { Cell::new(0) };
}

impl Log for Maps {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, _: &Record<'_>) {
        if !INSIDE.replace(true) {
            LINES.set(LINES.get() + 1);
            map().expect("written");
            INSIDE.set(false);
        }
    }

    fn flush(&self) {}
}

fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        log::set_logger(&Maps).expect("the only one");
        log::set_max_level(LevelFilter::Trace);
    });
}

fn map() -> Result {
    let file = tempfile::NamedTempFile::new()?;
    file.as_file().set_len(4096)?;
    let map = PmemMap::open(file.path(), 1)?;
    map.write_at(0, b"line")?;
    map.persist(..)?;
    Ok(())
}

/// Promise: the library holds no lock while it logs, not even that of something which is made
/// once. Before, such a logger waited for ever for the processor's cache lines, which its own
/// thread was asking for.
#[test]
fn a_logger_may_map_persistent_memory() -> Result {
    start();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        map().expect("written");
        tell.send(()).expect("the test goes on");
    });
    told.recv_timeout(LIMIT)?;
    Ok(())
}

/// Promise: an offer without memory logs no line about memory. Before, decoding one logged how the
/// peer's platform treats it.
#[test]
fn an_offer_without_memory_logs_nothing() -> Result {
    start();
    let bytes = Offer::new(&PeerCfg::new()).encode(Offer::CONNECT)?;
    let before = LINES.get();
    Offer::decode(&bytes)?;
    assert_eq!(LINES.get(), before);
    Ok(())
}
