//! A program's logger may call the library.

use std::cell::Cell;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use log::{LevelFilter, Log, Metadata, Record};
use rpma::pmem::PmemMap;

/// Far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

/// Maps a file at each line.
struct Maps;

thread_local!(static INSIDE: Cell<bool> = const { Cell::new(false) });

impl Log for Maps {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, _: &Record<'_>) {
        if !INSIDE.replace(true) {
            map();
            INSIDE.set(false);
        }
    }

    fn flush(&self) {}
}

fn map() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(4096).expect("its length");
    let map = PmemMap::open(file.path(), 1).expect("maps");
    map.write_at(0, b"line").expect("inside");
    map.persist(..).expect("written");
}

/// Promise: the library holds no lock while it logs, not even that of something which is made once. Before, such a
/// logger waited for ever for the processor's cache lines, which its own thread was asking for.
#[test]
fn a_logger_may_map_persistent_memory() {
    log::set_logger(&Maps).expect("the only one");
    log::set_max_level(LevelFilter::Trace);
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        map();
        tell.send(()).expect("the test goes on");
    });
    told.recv_timeout(LIMIT).expect("it hangs");
}
