//! Appends to a log on three servers, of which two make a record acknowledged, each beside the same
//! commit of a set: as long, by the same method, on the same hosts.
//!
//! One appender finds its completions there. So that 16 share commits, the network takes a while.

use rpma::commit::{Method, Replicas as Set, SharedReplicas};
use rpma::sim::sleep;
use rpma::{Result, thread};
use rpma_async::{Reactor, Replicas, Server};
use rpma_log::{Counters, Log, LogCfg, ServerCfg, blocking};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::awaited::{alone, row};
use crate::commits::{DELAY, Ends, LIMIT, connect_by};
use crate::common::prelude::*;
use crate::common::{paused, peer_of};
use crate::{LEN, Outcome, ROUNDS, counted};

/// The bytes of a record with everything around it, as many as a commit has.
const ENTRY: usize = 2 * LEN;
/// Tasks or threads that append at the same time.
pub(crate) const APPENDERS: usize = 16;

/// The hosts of the servers, and their memory.
fn hosts(fabric: &Fabric) -> Vec<(Host, Pmem)> {
    let host = |name| {
        let host = fabric.host(name);
        host.set_platform(Platform::Eadr);
        let pmem = host.pmem("log", 16 << 20);
        (host, pmem)
    };
    ["one", "two", "three"].map(host).into()
}

/// The servers of a log, each of which `serve` starts on its host.
fn serve(
    hosts: &[(Host, Pmem)],
    serve: impl Fn(&Host, rpma::serve::Server) -> Result<()>,
) -> Result<LogCfg> {
    let mut servers = Vec::new();
    for (host, pmem) in hosts {
        let _entered = host.enter();
        let addr = (host.addr(), 7204).into();
        serve(host, ServerCfg::new(addr, pmem.path()).listen()?)?;
        servers.push(addr);
    }
    let mut cfg = LogCfg::new(&servers, 2, 1);
    cfg.set_create(true);
    Ok(cfg)
}

/// A set on these hosts.
fn set(peer: &Peer, hosts: &[(Host, Pmem)], ends: &mut Ends) -> Result<Set> {
    let mut set = Set::new(peer, 16 * ENTRY, 4)?;
    for (host, _) in hosts {
        let (far, addr) = (peer_of(host), host.addr().to_string());
        let (writer, remote) = connect_by(Method::Reading, peer, (&far, &addr), ends)?;
        set.add(writer, remote)?;
    }
    Ok(set)
}

/// Lets the network between the client and its servers take a while.
fn delay(fabric: &Fabric, client: &Host, hosts: &[(Host, Pmem)]) {
    for (host, _) in hosts {
        fabric.between(client, host).delay(DELAY);
    }
}

/// By how many commits so many records were made durable.
fn note_commits(name: &str, before: Counters, now: Counters) {
    let (commits, records) = (now.commits - before.commits, now.records - before.records);
    println!("{name}: {commits} commits of {records} records");
}

/// Awaited, on tokio.
pub(crate) fn awaited() -> Outcome {
    let (runtime, fabric) = paused::both(&Rig::new());
    let client = fabric.host("client");
    let _entered = client.enter();
    let _on_runtime = runtime.enter();
    let _ticking = paused::tick(&fabric);
    let hosts = hosts(&fabric);
    let peer = peer_of(&client);
    let log = runtime.block_on(open(&peer, &hosts))?;
    let mut ends = Vec::new();
    let set = set(&peer, &hosts, &mut ends)?;
    let set = Replicas::new(&Reactor::spawn(&peer)?, set)?;
    for warm in [true, false] {
        runtime.block_on(alone(measured_append(&log)))?;
        row("log_append", warm);
        runtime.block_on(alone(measured_append_many(&log)))?;
        row("log_append_many_of_16", warm);
        runtime.block_on(alone(measured_set(&set)))?;
        row("log_append_set", warm);
    }
    Ok(())
}

/// Appends by many tasks. All that the thread of the runtime does is counted.
pub(crate) fn awaited_by_many() -> Outcome {
    let (runtime, fabric) = paused::both(&Rig::new());
    let client = fabric.host("client");
    let _entered = client.enter();
    let _on_runtime = runtime.enter();
    let _ticking = paused::tick(&fabric);
    let hosts = hosts(&fabric);
    let log = runtime.block_on(open(&peer_of(&client), &hosts))?;
    delay(&fabric, &client, &hosts);
    for warm in [true, false] {
        let before = log.counters();
        // They begin with the runtime's next task.
        let tasks = (0..APPENDERS).map(|_| tokio::spawn(append(log.clone())));
        let tasks = Vec::from_iter(tasks);
        measured_tasks(&runtime, tasks);
        let name = ["log_append_of_16", "ignored"][usize::from(warm)];
        counted(name, APPENDERS * ROUNDS);
        note_commits(name, before, log.counters());
    }
    Ok(())
}

async fn open(peer: &Peer, hosts: &[(Host, Pmem)]) -> Result<Log> {
    let cfg = serve(hosts, |host, server| {
        let reactor = Reactor::spawn(&peer_of(host))?;
        let mut server = Server::new(&reactor, server)?;
        tokio::spawn(async move { server.serve(drop).await });
        Ok(())
    })?;
    let log = Log::open(&Reactor::spawn(peer)?, &cfg).await;
    // The third server is one of the set as well.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let log = log.expect("it opens");
    assert!(log.state().servers.iter().all(|of| of.durable.is_some()));
    Ok(log)
}

async fn append(log: Log) {
    for _ in 0..ROUNDS {
        log.append(&[1; LEN]).await.expect("appended");
    }
}

#[inline(never)]
fn measured_tasks(runtime: &Runtime, tasks: Vec<JoinHandle<()>>) {
    runtime.block_on(async {
        for task in tasks {
            task.await.expect("no panic");
        }
    });
}

async fn measured_append(log: &Log) -> Result<()> {
    for _ in 0..ROUNDS {
        log.append(&[1; LEN]).await.expect("appended");
    }
    Ok(())
}

/// 16 records in one commit.
async fn measured_append_many(log: &Log) -> Result<()> {
    for _ in 0..ROUNDS / 16 {
        let appended = log.append_many(&[[1; LEN]; 16]).await;
        assert_eq!(appended.expect("appended").len(), 16);
    }
    Ok(())
}

async fn measured_set(set: &Replicas) -> Result<()> {
    for n in 0..ROUNDS {
        let (at, pointer) = place(n);
        let id = set.commit(at, &[&[1; ENTRY]], pointer, 2);
        let id = id.expect("room, and three are able");
        let outcome = set.settle(id, 2, LIMIT).await?;
        assert!(outcome.copies() >= 2);
    }
    Ok(())
}

/// Where each round writes, and the pointer that it writes.
#[inline(always)]
fn place(n: usize) -> (u64, Option<(u64, [u8; 8])>) {
    (
        (n % 16 * ENTRY) as u64,
        Some(((16 * ENTRY) as u64, n.to_ne_bytes())),
    )
}

/// By threads, which take turns in the order of a seed.
pub(crate) fn blocking() -> Outcome {
    let (fabric, client, hosts) = seeded();
    let _entered = client.enter();
    let peer = peer_of(&client);
    let log = open_blocking(&peer, &hosts)?;
    let mut ends = Vec::new();
    let [mut by_hand, shared] = [(), ()].map(|()| set(&peer, &hosts, &mut ends).expect("a set"));
    let shared = SharedReplicas::new(shared);
    for warm in [true, false] {
        measured_append_blocking(&log);
        row("log_append_blocking", warm);
        measured_set_by_hand(&mut by_hand)?;
        row("log_append_blocking_set", warm);
        measured_shared_set(&shared);
        row("log_append_blocking_shared_set", warm);
    }
    drop(fabric);
    // Its threads end with the process.
    std::process::exit(0);
}

/// Appends by many threads. All that they and the threads of the log do is counted.
pub(crate) fn blocking_by_many() -> Outcome {
    let (fabric, client, hosts) = seeded();
    let _entered = client.enter();
    let log = open_blocking(&peer_of(&client), &hosts)?;
    delay(&fabric, &client, &hosts);
    for warm in [true, false] {
        let before = log.counters();
        let threads = (0..APPENDERS).map(|_| {
            let log = log.clone();
            thread::spawn(move || append_blocking(&log))
        });
        for thread in Vec::from_iter(threads) {
            thread.join().expect("no panic");
        }
        let name = ["log_append_blocking_of_16", "ignored"][usize::from(warm)];
        counted(name, APPENDERS * ROUNDS);
        note_commits(name, before, log.counters());
    }
    std::process::exit(0);
}

fn seeded() -> (Fabric, Host, Vec<(Host, Pmem)>) {
    let fabric = Rig::new().seed(1).fabric();
    let client = fabric.host("client");
    let hosts = hosts(&fabric);
    (fabric, client, hosts)
}

fn open_blocking(peer: &Peer, hosts: &[(Host, Pmem)]) -> Result<blocking::Log> {
    let cfg = serve(hosts, |host, mut server| {
        host.spawn(move || server.serve(drop));
        Ok(())
    })?;
    let log = blocking::Log::open(peer, &cfg).expect("it opens");
    sleep(Duration::from_secs(1));
    assert!(log.state().servers.iter().all(|of| of.durable.is_some()));
    Ok(log)
}

#[inline(never)]
fn measured_append_blocking(log: &blocking::Log) {
    append_blocking(log);
}

fn append_blocking(log: &blocking::Log) {
    for _ in 0..ROUNDS {
        log.append(&[1; LEN]).expect("appended");
    }
}

#[inline(never)]
fn measured_set_by_hand(set: &mut Set) -> Result<()> {
    for n in 0..ROUNDS {
        let mut record = set.record(ENTRY).expect("room");
        record.put(0, &[1; ENTRY])?;
        let (at, pointer) = place(n);
        let id = record.commit(at, pointer, 2).expect("three are able");
        assert!(set.settle(id, 2, LIMIT).copies() >= 2);
    }
    Ok(())
}

#[inline(never)]
fn measured_shared_set(set: &SharedReplicas) {
    for n in 0..ROUNDS {
        let (at, pointer) = place(n);
        let id = set.commit(&[1; ENTRY], at, pointer, 2);
        let id = id.expect("three are able");
        assert!(set.settle(id, 2, LIMIT).copies() >= 2);
    }
}
