//! The library's log: a program's logger may call the library, and lines come when something
//! happens.

use std::cell::Cell;
use std::sync::{Once, mpsc};
use std::thread;
use std::time::Duration;

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
            map();
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

fn map() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(4096).expect("its length");
    let map = PmemMap::open(file.path(), 1).expect("maps");
    map.write_at(0, b"line").expect("inside");
    map.persist(..).expect("written");
}

/// Promise: the library holds no lock while it logs, not even that of something which is made
/// once. Before, such a logger waited for ever for the processor's cache lines, which its own
/// thread was asking for.
#[test]
fn a_logger_may_map_persistent_memory() {
    start();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        map();
        tell.send(()).expect("the test goes on");
    });
    told.recv_timeout(LIMIT).expect("it hangs");
}

/// Promise: an offer without memory logs no line about memory. Before, decoding one logged how the
/// peer's platform treats it.
#[test]
fn an_offer_without_memory_logs_nothing() {
    start();
    let bytes = Offer::new(&PeerCfg::new())
        .encode(Offer::CONNECT)
        .expect("fits");
    let before = LINES.get();
    Offer::decode(&bytes).expect("an offer");
    assert_eq!(LINES.get(), before);
}
