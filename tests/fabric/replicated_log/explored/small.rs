//! A log whose servers and writers are tasks of one thread, and the power cuts of its servers.
//! So the orders are those of the devices, and few.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};

use ::tokio::runtime::Runtime;
use ::tokio::task::JoinHandle;
use ::tokio::time::sleep;
use rpma_async::{Reactor, Server};
use rpma_log::Log;

use crate::common::prelude::*;
use crate::replicated_log::cuts::{Told, locked};
use crate::replicated_log::prelude::{Fault, LogError, Mutex, REPLICAS, Stored, Way, World, found};

/// The memory of each server after a power cut, and the records that were acknowledged before it.
pub(crate) struct Left {
    memories: Vec<Vec<u8>>,
    told: Told,
}

pub(crate) struct Small {
    pub(crate) world: World,
    told: Mutex<Told>,
    /// The servers that run.
    serving: Mutex<BTreeMap<usize, JoinHandle<()>>>,
}

/// How a log commits, and its fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) way: Way,
    pub(crate) fault: Fault,
}

impl Small {
    pub(crate) fn new(fabric: &Fabric, kind: Kind) -> Self {
        Self {
            world: World::idle(fabric, kind.way, kind.fault),
            told: Mutex::new(Told::default()),
            serving: Mutex::new(BTreeMap::new()),
        }
    }

    /// Lets these servers run, and no others.
    pub(crate) async fn only(&self, up: &[usize]) {
        for n in 0..REPLICAS {
            let is_up = locked(&self.serving).contains_key(&n);
            match (up.contains(&n), is_up) {
                (true, false) => self.serve(n),
                (false, true) => self.stop(n).await,
                _ => {}
            }
        }
    }

    pub(crate) async fn stop(&self, n: usize) {
        let serves = locked(&self.serving).remove(&n).expect("it runs");
        serves.abort();
        assert!(serves.await.is_err_and(|ended| ended.is_cancelled()));
    }

    fn serve(&self, n: usize) {
        let host = &self.world.hosts[n];
        let _entered = host.enter();
        let server = self.world.server_cfg(n).listen().expect("listens");
        let peer = Peer::at(&host.addr().to_string()).expect("a peer");
        let reactor = Reactor::spawn(&peer).expect("a reactor");
        let mut server = Server::new(&reactor, server).expect("a server");
        let serves = ::tokio::spawn(async move { drop(server.serve(drop).await) });
        locked(&self.serving).insert(n, serves);
    }

    /// Opens the log as a writer on the client's host. The epoch 1 makes it.
    pub(crate) async fn open(&self, epoch: u64) -> Result<Log, LogError> {
        self.open_on(&self.world.client, epoch).await
    }

    pub(crate) async fn open_on(&self, host: &Host, epoch: u64) -> Result<Log, LogError> {
        let _entered = host.enter();
        let peer = Peer::at(&host.addr().to_string())?;
        let reactor = Reactor::spawn(&peer)?;
        Log::open(&reactor, &self.world.cfg(epoch)).await
    }

    /// A log that all servers have.
    pub(crate) async fn opened(&self) -> Result<Log, LogError> {
        let all = Vec::from_iter(0..REPLICAS);
        self.only(&all).await;
        let log = self.open(1).await?;
        self.until_they_have(&all, 0, 1).await;
        Ok(log)
    }

    /// Waits until these servers have all records up to `end`, under this epoch or a later one.
    pub(crate) async fn until_they_have(&self, servers: &[usize], end: u64, epoch: u64) {
        let has = |n: &usize| {
            let found = self.world.found(*n);
            found
                .is_ok_and(|of| of.header.is_some() && of.tail.end >= end && of.tail.epoch >= epoch)
        };
        // Under exploration a server may be away for longer.
        for _ in 0..100 {
            if servers.iter().all(has) {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Appends a record of these bytes.
    pub(crate) async fn append(&self, log: &Log, byte: u8, len: usize) -> Result<u64, LogError> {
        let record = vec![byte; len];
        let at = log.append(&record).await?;
        locked(&self.told).acknowledged(at, record);
        Ok(at)
    }

    pub(crate) async fn append_many(
        &self,
        log: &Log,
        bytes: &[u8],
        len: usize,
    ) -> Result<(), LogError> {
        let records = Vec::from_iter(bytes.iter().map(|byte| vec![*byte; len]));
        let positions = log.append_many(&records).await?;
        let mut told = locked(&self.told);
        for (at, record) in positions.into_iter().zip(records) {
            told.acknowledged(at, record);
        }
        Ok(())
    }

    pub(crate) async fn truncate(&self, log: &Log, to: u64) -> Result<(), LogError> {
        locked(&self.told).head = to;
        log.truncate(to).await
    }

    /// An open log has all that was acknowledged until now.
    pub(crate) fn check_log(&self, log: &Log) {
        check_log(log, &locked(&self.told));
    }

    /// The records of an open log are promised as well.
    pub(crate) fn promise(&self, log: &Log) {
        let (head, _) = log.bounds();
        for (at, record) in records(log, head) {
            locked(&self.told).records.insert(at, record);
        }
    }
}

fn records(log: &Log, mut at: u64) -> BTreeMap<u64, Vec<u8>> {
    let next = || {
        let record = log.read(at).expect("a position")?;
        at = record.next;
        Some((record.at, record.bytes))
    };
    std::iter::from_fn(next).collect()
}

fn check_log(log: &Log, told: &Told) {
    let found = records(log, log.bounds().0);
    check(found.iter().map(|(at, record)| (*at, &record[..])), told);
}

/// Each acknowledged record is there at its position, and each record is there once and whole.
fn check<'a>(found: impl Iterator<Item = (u64, &'a [u8])>, told: &Told) {
    let found: BTreeMap<u64, &[u8]> = found.collect();
    for (at, record) in told.records.range(told.head..) {
        assert_eq!(
            found.get(at),
            Some(&&record[..]),
            "the record at {at} is lost"
        );
    }
    let mut known = BTreeSet::new();
    for (at, record) in &found {
        assert!(record.iter().all(|byte| *byte == record[0]), "{at} is torn");
        assert!(known.insert(record[0]), "the record at {at} is there twice");
    }
}

/// Any two servers, from which a writer may recover, have each acknowledged record.
fn check_memories(memories: &[&[u8]], told: &Told) {
    let found = |memory: &&[u8]| found(memory).unwrap_or_else(|error| panic!("{error}"));
    let logs: Vec<Stored> = memories.iter().map(found).collect();
    for (n, one) in logs.iter().enumerate() {
        for other in &logs[n + 1..] {
            // With one log the writer waits for the third server.
            if one.header.is_some() && other.header.is_some() {
                let newest = Stored::newest(&[one, other]).expect("a log");
                check(newest.records(), told);
            }
        }
    }
}

fn hash_of(memories: &[&[u8]]) -> u64 {
    let mut hash = DefaultHasher::new();
    memories.iter().for_each(|memory| hash.write(memory));
    hash.finish()
}

/// Sets up a log, runs a program on it, and cuts the power of all servers at each event of the
/// program. Returns one of `nth` of the images that may be left.
pub(crate) fn under_cuts<T>(
    fabric: &Fabric,
    kind: Kind,
    nth: u64,
    set_up: impl AsyncFnOnce(&mut Small) -> Result<T, LogError>,
    program: impl AsyncFnOnce(&Small, T) -> Result<(), LogError>,
) -> Vec<Left> {
    let runtime = paused::runtime();
    runtime.block_on(async { paused::follow(fabric) });
    let mut small = Small::new(fabric, kind);
    let ready = runtime.block_on(async {
        paused::tick(fabric);
        set_up(&mut small).await
    });
    let ready = match ready {
        Ok(ready) => ready,
        // This platform does not keep records by this method.
        Err(LogError::TooFew(why)) if why.contains("durab") => return Vec::new(),
        Err(error) => panic!("the set-up fails: {error}"),
    };
    let (pmems, told) = (small.world.pmems.clone(), &small.told);
    let mut left = Vec::new();
    let look = |cut: &Cut<'_>| {
        let told = locked(told);
        for images in cut.joint_images_up_to(&Vec::from_iter(&pmems), 20) {
            let memories: Vec<&[u8]> = images.iter().map(|image| image.bytes()).collect();
            check_memories(&memories, &told);
            // By its bytes: an order that runs again alone checks more events.
            if hash_of(&memories) % nth == 0 {
                let memories = memories.iter().map(|memory| memory.to_vec()).collect();
                let told = told.clone();
                left.push(Left { memories, told });
            }
        }
    };
    let ended = fabric.on_every_event(look, || runtime.block_on(program(&small, ready)));
    if let Err(error) = ended {
        assert!(is_interrupted(&error), "{error}");
    }
    drop(runtime);
    left
}

/// An interrupted network ends no log, and lasts longer than the limits of the calls. With one slow
/// server no call fails.
pub(crate) fn is_interrupted(error: &LogError) -> bool {
    use LogError::{TimedOut, TooFew, Unknown};
    match error {
        Unknown { why, .. } => is_interrupted(why),
        error => matches!(error, TimedOut | TooFew(_)),
    }
}

/// The next writer opens a log of these memories, and has each acknowledged record.
pub(crate) fn recover(profile: &Profile, kind: Kind, left: &Left) {
    let fabric = Rig::of(profile).fabric();
    let runtime: Runtime = paused::runtime();
    runtime.block_on(async {
        paused::follow(&fabric);
        paused::tick(&fabric);
        let mut small = Small::new(&fabric, kind);
        for (n, memory) in left.memories.iter().enumerate() {
            small.world.refill(n, "left", memory);
        }
        small.only(&Vec::from_iter(0..left.memories.len())).await;
        let log = small.open(9).await.expect("opens");
        check_log(&log, &left.told);
    });
}
