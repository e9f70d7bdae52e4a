//! Protocols that survive every cut of the power, on every platform and device; and the same with
//! a fault, which is found.

use anyhow::{Context, Result};
use rpma::sim::Visited;

use crate::common::prelude::*;
use crate::power::world::{
    Hosts, ON_ERROR, PLATFORMS, Ran, SIZE, Way, World, fabric, on_each_platform, word,
};

/// How many records each run appends.
const RECORDS: u64 = 20;
/// The size of a record, in bytes: not a multiple of a line.
pub(crate) const LEN: usize = 104;
/// Where the records begin; the tail is in front.
const START: usize = 64;

/// The bytes of a record.
pub(crate) fn record(number: u64) -> &'static [u8; LEN] {
    records::record(number)
}

/// Another record in the same place: of a writer that has connected again.
pub(crate) fn other_record(number: u64) -> [u8; LEN] {
    record(number).map(|byte| !byte)
}

pub(crate) fn place(number: u64) -> usize {
    START + number as usize * LEN
}

/// How a record and the tail that shows it become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// The record, a flush, its completion; the tail, a flush, its completion
    /// (docs/persistence.md, 1; example 05 for each of the two).
    PollInBetween,
    /// One wait, with an atomic write for the tail (2; example 07).
    AtomicWrite,
    /// The same four operations, posted as one batch.
    Batch,
    /// One wait, with a fenced plain write for the tail (3).
    FencedWrite,
    /// The server's program makes each durable (example 09).
    Server,
}

/// The fault of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// The record is not flushed.
    NoFlushOfTheRecord,
    /// It is flushed before it is written.
    FlushTooEarly,
    /// It is flushed on another connection.
    OtherConnection,
    /// The tail is not flushed, and the record is taken for durable.
    NoFlushOfTheTail,
    /// The flushes are for visibility.
    OnlyVisible,
    /// The tail is a plain write right after a flush that was not polled.
    TailBeforeThePoll,
    /// Only a part is flushed.
    PartOfTheRecord,
}

fn append(world: &World, protocol: Protocol, fault: Fault, number: u64) -> Result<()> {
    let (at, bytes, tail) = (place(number), record(number), (number + 1).to_le_bytes());
    let len = match fault {
        Fault::PartOfTheRecord => LEN / 2,
        _ => LEN,
    };
    let kind = match fault {
        Fault::OnlyVisible => FlushType::Visibility,
        _ => FlushType::Persistent,
    };
    if (protocol, fault) == (Protocol::Batch, Fault::None) {
        return world.append_as_batch(at, bytes, &tail);
    }
    let settle = |offset, len| match protocol {
        Protocol::Server => world.ask_to_persist(offset, len),
        _ => world.flush_as(offset, len, kind),
    };
    if fault == Fault::FlushTooEarly {
        settle(at, LEN)?;
    }
    world.write(at, bytes)?;
    match (fault, protocol) {
        (Fault::NoFlushOfTheRecord | Fault::FlushTooEarly, _) => {}
        (Fault::OtherConnection, _) => world.flush_on_other(at, len)?,
        (_, Protocol::PollInBetween | Protocol::Server) => settle(at, len)?,
        _ => world.post_flush(at, len, kind)?,
    }
    match protocol {
        Protocol::AtomicWrite if fault != Fault::TailBeforeThePoll => {
            world.atomic_write(0, &tail)?
        }
        Protocol::FencedWrite if fault != Fault::TailBeforeThePoll => {
            world.write_with(0, &tail, ON_ERROR | Flags::FENCE)?;
        }
        _ => world.write(0, &tail)?,
    }
    match (fault, protocol) {
        // It waits for its posts.
        (Fault::NoFlushOfTheTail, Protocol::AtomicWrite | Protocol::FencedWrite) => {
            world.wait_for_write()
        }
        (Fault::NoFlushOfTheTail, _) => Ok(()),
        _ => settle(0, 8),
    }
}

/// The findings of a log's recovery: it must have all acknowledged records, and no torn one.
pub(crate) fn assert_log(records: u64, acknowledged: u64, is_whole: impl Fn(u64) -> bool) {
    assert!(
        records >= acknowledged,
        "{acknowledged} were acknowledged, and {records} are there"
    );
    for number in 0..records {
        assert!(is_whole(number), "record {number} is torn");
    }
}

pub(crate) fn check_log(image: &[u8], acknowledged: u64) {
    let tail = word(image);
    assert!(tail <= RECORDS, "a tail of {tail}");
    let is_whole = |number| image[place(number)..].starts_with(record(number));
    assert_log(tail, acknowledged, is_whole);
}

/// Runs a protocol under every cut; returns the number of events and images, or the loss.
fn run(
    profile: &Profile,
    way: Way,
    protocol: Protocol,
    fault: Fault,
    seed: u64,
) -> Result<Visited, Loss> {
    let fabric = fabric(profile);
    fabric.set_seed(seed);
    let world = World::new(&fabric, way).expect("a connection");
    run_all(&world, protocol, fault)
}

fn run_all(world: &World, protocol: Protocol, fault: Fault) -> Result<Visited, Loss> {
    run_on(world, protocol, fault, RECORDS)?.expect("nothing fails");
    Ok(world.fabric.visited())
}

/// Appends so many records.
pub(crate) fn run_on(world: &World, protocol: Protocol, fault: Fault, records: u64) -> Ran {
    world.under_every_cut(check_log, |tell| {
        for number in 0..records {
            append(world, protocol, fault, number)?;
            tell(number + 1);
        }
        Ok(())
    })
}

const PROTOCOLS: [Protocol; 5] = [
    Protocol::PollInBetween,
    Protocol::AtomicWrite,
    Protocol::Batch,
    Protocol::FencedWrite,
    Protocol::Server,
];

/// Every device, platform, protocol and way to flush, if the server may promise the method of the
/// protocol.
fn every_way() -> Vec<(Profile, Way, Protocol)> {
    let mut ways = Vec::new();
    for profile in Profile::ALL {
        // Forcing the device's own method makes no difference.
        let methods: &[bool] = if profile.flushes_natively() {
            &[false, true]
        } else {
            &[true]
        };
        for (platform, protocol) in PLATFORMS
            .into_iter()
            .flat_map(|platform| PROTOCOLS.map(|protocol| (platform, protocol)))
        {
            for &by_reading in methods {
                let way = Way::on(platform).by_reading(by_reading);
                let may = match protocol {
                    Protocol::Server => by_reading != profile.flushes_natively(),
                    // It holds after a flush by reading only.
                    Protocol::FencedWrite => by_reading && way.is_safe(&profile),
                    _ => way.is_safe(&profile),
                };
                if may {
                    ways.push((profile.clone(), way, protocol));
                }
            }
        }
    }
    ways
}

#[test]
fn what_the_documentation_recommends_survives_every_cut() {
    // With each seed other images are looked at.
    let seeds = share("seeds", 5, 0..5);
    on_each_platform(|platform| {
        let (mut events, mut images) = (0, 0);
        let ways = every_way().into_iter();
        for (profile, way, protocol) in ways.filter(|(_, way, _)| way.platform == platform) {
            for seed in &seeds {
                let ran = run(&profile, way, protocol, Fault::None, *seed);
                let ran = ran.unwrap_or_else(|loss| panic!("{}, {way:?}: {loss}", profile.name()));
                events += ran.events;
                images += ran.images;
            }
        }
        println!("on {platform}: {events} cuts, {images} images");
        assert!(events >= 2_000 * seeds.len() as u64, "{events}");
    });
}

/// Whether a fault can lose data, by the platform and the device.
fn loses(profile: &Profile, way: Way, protocol: Protocol, fault: Fault) -> bool {
    let (copies, platform) = (!profile.is_adapter(), way.platform);
    let native = profile.flushes_natively() && !way.by_reading;
    // soft-RoCE copies through caches, which eADR saves: written bytes are durable.
    if copies && platform == Platform::Eadr {
        return false;
    }
    match fault {
        Fault::None => false,
        Fault::NoFlushOfTheRecord | Fault::FlushTooEarly | Fault::NoFlushOfTheTail => true,
        // soft-RoCE writes the lines back, with the writes of any connection.
        Fault::OtherConnection => !copies,
        // Visible bytes are durable there.
        Fault::OnlyVisible => {
            protocol != Protocol::Server && (copies || platform == Platform::AdrDdioOn)
        }
        // Only the strict adapter lets a write pass a flush.
        Fault::TailBeforeThePoll => {
            !copies && matches!(protocol, Protocol::AtomicWrite | Protocol::FencedWrite)
        }
        Fault::PartOfTheRecord => match protocol {
            // The request for it pushes all of the record; only bytes that were pushed into a cache
            // are lost.
            Protocol::Server => copies || platform == Platform::AdrDdioOn,
            // A read pushes all.
            _ => copies || native,
        },
    }
}

#[test]
fn every_fault_is_found_where_it_loses_something() {
    const FAULTS: [Fault; 7] = [
        Fault::NoFlushOfTheRecord,
        Fault::FlushTooEarly,
        Fault::OtherConnection,
        Fault::NoFlushOfTheTail,
        Fault::OnlyVisible,
        Fault::TailBeforeThePoll,
        Fault::PartOfTheRecord,
    ];
    for fault in FAULTS {
        let (mut found, mut all) = (0, 0);
        for (profile, way, protocol) in every_way() {
            // The server's method does not flush; a batch is the same as its operations.
            let is_server = protocol == Protocol::Server && fault == Fault::OtherConnection;
            if is_server || protocol == Protocol::Batch {
                continue;
            }
            let ran = run(&profile, way, protocol, fault, 1);
            let loses = loses(&profile, way, protocol, fault);
            let what = format!("{}, {way:?}, {protocol:?}, {fault:?}", profile.name());
            assert_eq!(ran.is_err(), loses, "{what}: {ran:?}");
            if let Err(loss) = ran {
                assert_says(&loss, &["Lost: bytes "]);
                found += 1;
            }
            all += 1;
        }
        println!("{fault:?}: found in {found} of {all} ways, and harmless in the others");
        assert!(found > 0);
    }
}

#[test]
fn a_wrong_promise_is_found() {
    for (profile, platform) in [
        (Profile::STRICT, Platform::AdrDdioOn),
        (Profile::RXE_6_12, Platform::AdrDdioOn),
        (Profile::RXE_6_12, Platform::AdrDdioOff),
    ] {
        let way = Way::on(platform).by_reading(true).promising();
        let ran = run(&profile, way, Protocol::PollInBetween, Fault::None, 1);
        let loss = ran.expect_err("what was flushed is lost");
        assert_says(&loss, &["PmemMap::persist on that host"]);
    }
}

/// A client that flushes by reading, and a server on another kind of device, on a platform where
/// that is enough.
fn mixed(client: &Profile, server: Profile) -> Result<World> {
    mixed_on(&fabric(client), server)
}

pub(crate) fn mixed_on(fabric: &Fabric, server: Profile) -> Result<World> {
    let platform = if server.is_adapter() {
        Platform::AdrDdioOff
    } else {
        Platform::Eadr
    };
    let hosts = [fabric.host("client"), fabric.host_with("server", server)];
    Hosts::new(fabric, hosts, Way::on(platform).by_reading(true), SIZE).connect()
}

/// Promise of docs/persistence.md: an adapter posts its fences, and soft-RoCE at the other end
/// executes in order.
#[test]
fn an_adapter_before_soft_roce_keeps_the_order() -> Result<()> {
    for protocol in PROTOCOLS {
        let world = mixed(&Profile::STRICT, Profile::RXE_6_12)?;
        let ran = run_all(&world, protocol, Fault::None);
        ran.unwrap_or_else(|loss| panic!("{protocol:?}: {loss}"));
    }
    Ok(())
}

/// Promise of `PeerCfg::set_reorders`: on soft-RoCE, with its unusable fence, no operation
/// that needs one is posted to a peer with a device that is declared to reorder; and polling in
/// between survives every cut. A peer without a declaration counts as soft-RoCE, and then the order
/// is lost.
#[test]
fn soft_roce_before_an_adapter_polls_in_between() -> Result<()> {
    for protocol in [
        Protocol::AtomicWrite,
        Protocol::Batch,
        Protocol::FencedWrite,
    ] {
        let world = mixed(&Profile::RXE_6_12, Profile::STRICT)?;
        let ran = run_all(&world, protocol, Fault::None);
        assert!(ran.is_err(), "{protocol:?}: nothing keeps the order");

        let world = mixed(&Profile::RXE_6_12, Profile::STRICT)?;
        declare_reordering(&world)?;
        let error = append(&world, protocol, Fault::None, 0).expect_err("a fence is missing");
        let error = error.downcast_ref::<Error>().context("rpma's")?;
        assert!(matches!(error, Error::NotSupported(_)), "{error}");
        assert_says(error, &["poll the completion", "set_reorders"]);
    }
    let world = mixed(&Profile::RXE_6_12, Profile::STRICT)?;
    declare_reordering(&world)?;
    run_all(&world, Protocol::PollInBetween, Fault::None)?;
    // An ordinary write takes the place of the atomic one after the flush was polled.
    world.flush(0, 8)?;
    let error = world.atomic_write(0, &[1; 8]);
    let error = error.expect_err("a fence is missing");
    assert_says(&error, &["poll the completion", "Conn::write"]);
    Ok(())
}

/// As the server's offer does: its region has its device.
fn declare_reordering(world: &World) -> Result<()> {
    let mut offer = Offer::new(PeerCfg::new().set_direct_write_to_pmem(true));
    offer.add_region(&world.target);
    let offer = Offer::decode(&offer.encode(Offer::ACCEPT)?)?;
    world.conn.apply_remote_peer_cfg(offer.platform());
    Ok(())
}
