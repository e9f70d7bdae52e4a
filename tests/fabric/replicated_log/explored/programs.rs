//! The programs of explorations. Each sets up a log, and is cut from the power from then on.

use ::tokio::join;

use crate::common::prelude::*;
use crate::replicated_log::explored::small::{Kind, Left, Small, under_cuts};
use crate::replicated_log::prelude::{LogError, REPLICAS};
use rpma_log::Log;

/// It returns one of so many of the images that it may leave.
pub(crate) type Program = fn(&Fabric, Kind, u64) -> Vec<Left>;

pub(crate) const PROGRAMS: [(&str, Program); 12] = [
    ("one appender", one_appender),
    ("two appenders", two_appenders),
    ("a group in two pieces", wraps),
    ("a truncation beside an append", truncates),
    ("a server comes back", comes_back),
    ("a server was replaced", was_replaced),
    ("another writer takes over", takes_over),
    ("another writer with the same epoch", same_epoch),
    ("a server was away", was_away),
    ("an unknown outcome", unknown),
    ("a record that is not acknowledged", not_acknowledged),
    ("a witness was replaced", no_witness),
];

/// A record of one cache line, with its head, and one of four.
const SHORT: usize = 30;
const LONG: usize = 200;
const LAST: usize = REPLICAS - 1;

async fn opened(small: &mut Small) -> Result<Log, LogError> {
    small.opened().await
}

pub(crate) fn one_appender(fabric: &Fabric, kind: Kind, nth: u64) -> Vec<Left> {
    under_cuts(fabric, kind, nth, opened, async |small, log| {
        let first = small.append(&log, 1, SHORT).await?;
        let second = small.append(&log, 2, SHORT).await?;
        assert!(first < second);
        Ok(())
    })
}

pub(crate) fn two_appenders(fabric: &Fabric, kind: Kind, nth: u64) -> Vec<Left> {
    under_cuts(fabric, kind, nth, opened, async |small, log| {
        let both = join!(small.append(&log, 1, SHORT), small.append(&log, 2, SHORT));
        both.0.and(both.1).map(drop)
    })
}

/// The ring has room for one more record at its end.
pub(crate) fn wraps(fabric: &Fabric, kind: Kind, nth: u64) -> Vec<Left> {
    let set_up = async |small: &mut Small| {
        let log = small.opened().await?;
        let (mut at, all) = (0, Vec::from_iter(0..REPLICAS));
        for byte in 1..=3 {
            at = small.append(&log, byte, LONG).await?;
        }
        small.truncate(&log, at).await?;
        small.append(&log, 4, LONG - 64).await?;
        small.until_they_have(&all, log.bounds().1, 1).await;
        Ok(log)
    };
    under_cuts(fabric, kind, nth, set_up, async |small, log| {
        small.append_many(&log, &[5, 6], SHORT).await
    })
}

/// The ring is full.
pub(crate) fn truncates(fabric: &Fabric, kind: Kind, nth: u64) -> Vec<Left> {
    let set_up = async |small: &mut Small| {
        let log = small.opened().await?;
        let (mut second, all) = (0, Vec::from_iter(0..REPLICAS));
        for byte in 1..=4 {
            let at = small.append(&log, byte, LONG).await?;
            second = if byte == 2 { at } else { second };
        }
        small.until_they_have(&all, log.bounds().1, 1).await;
        Ok((log, second))
    };
    under_cuts(fabric, kind, nth, set_up, async |small, (log, second)| {
        let append = small.append(&log, 5, LONG);
        let both = join!(append, small.truncate(&log, second));
        both.0.map(drop).and(both.1)
    })
}

/// A server has missed a record.
async fn away(small: &mut Small, n: usize) -> Result<Log, LogError> {
    let log = small.opened().await?;
    small.append(&log, 1, SHORT).await?;
    let all = Vec::from_iter(0..REPLICAS);
    small.until_they_have(&all, log.bounds().1, 1).await;
    small.stop(n).await;
    small.append(&log, 2, LONG).await?;
    let others = Vec::from_iter(all.into_iter().filter(|other| *other != n));
    small.until_they_have(&others, log.bounds().1, 1).await;
    Ok(log)
}

/// A server that comes back is connected. Its network is slow, so that records are committed while
/// it gets those that it has missed.
async fn connected(small: &Small) {
    let ends = || small.world.fabric.objects().get("qp").copied();
    small.world.link(LAST).delay(Duration::from_millis(1));
    small.only(&Vec::from_iter(0..REPLICAS)).await;
    while ends() != Some(2 * REPLICAS) {
        ::tokio::time::sleep(Duration::from_micros(100)).await;
    }
}

/// Records are appended until it has joined.
async fn joins(small: &Small, log: Log) -> Result<(), LogError> {
    let all = Vec::from_iter(0..REPLICAS);
    // The ring has room for more of them.
    for byte in 3..8 {
        if log.counters().joins > REPLICAS as u64 {
            break;
        }
        small.append(&log, byte, SHORT).await?;
        ::tokio::time::sleep(Duration::from_millis(5)).await;
    }
    small.append(&log, 100, SHORT).await?;
    small.until_they_have(&all, log.bounds().1, 1).await;
    Ok(())
}

pub(crate) fn comes_back(fabric: &Fabric, kind: Kind, nth: u64) -> Vec<Left> {
    let set_up = async |small: &mut Small| {
        let log = away(small, LAST).await?;
        connected(small).await;
        Ok(log)
    };
    under_cuts(fabric, kind, nth, set_up, async |small, log| {
        joins(small, log).await
    })
}

pub(crate) fn was_replaced(fabric: &Fabric, kind: Kind, nth: u64) -> Vec<Left> {
    let set_up = async |small: &mut Small| {
        let log = away(small, LAST).await?;
        small.world.replace(LAST);
        connected(small).await;
        Ok(log)
    };
    under_cuts(fabric, kind, nth, set_up, async |small, log| {
        joins(small, log).await
    })
}

async fn two_writers(small: &Small, first: Log, takes_over: bool) -> Result<(), LogError> {
    let host = small.world.fabric.host("next");
    let epoch = if takes_over { 3 } else { 2 };
    let appends = async {
        small.append(&first, 1, SHORT).await?;
        small.append(&first, 2, SHORT).await
    };
    let next = async {
        let second = small.open_on(&host, epoch).await?;
        small.check_log(&second);
        small.append(&second, 3, SHORT).await?;
        Ok::<_, LogError>(second)
    };
    let (appended, second) = join!(appends, next);
    let second = match second {
        Err(LogError::Fenced { .. }) if !takes_over => return appended.map(drop),
        second => second?,
    };
    small.check_log(&second);
    let late = small.append(&first, 4, SHORT).await;
    assert!(late.is_err(), "{late:?}");
    small.append(&second, 5, SHORT).await?;
    small.check_log(&second);
    Ok(())
}

/// A writer with the epoch 2, which did not make the log.
async fn second(small: &mut Small) -> Result<Log, LogError> {
    drop(small.opened().await?);
    let log = small.open(2).await?;
    let all = Vec::from_iter(0..REPLICAS);
    small.until_they_have(&all, 0, 2).await;
    Ok(log)
}

pub(crate) fn takes_over(fabric: &Fabric, kind: Kind, nth: u64) -> Vec<Left> {
    under_cuts(fabric, kind, nth, second, async |small, first| {
        two_writers(small, first, true).await
    })
}

pub(crate) fn same_epoch(fabric: &Fabric, kind: Kind, nth: u64) -> Vec<Left> {
    under_cuts(fabric, kind, nth, second, async |small, first| {
        two_writers(small, first, false).await
    })
}

/// The next writer opens the log, whose records it promises from then on.
async fn opens(small: &Small, epoch: u64) -> Result<(), LogError> {
    small.only(&Vec::from_iter(0..REPLICAS)).await;
    let log = small.open(epoch).await?;
    small.check_log(&log);
    small.promise(&log);
    small.append(&log, 10, SHORT).await?;
    Ok(())
}

pub(crate) fn was_away(fabric: &Fabric, kind: Kind, nth: u64) -> Vec<Left> {
    let set_up = async |small: &mut Small| away(small, LAST).await.map(drop);
    under_cuts(fabric, kind, nth, set_up, async |small, ()| {
        opens(small, 2).await
    })
}

/// A record that the first server has, and no other one. The writer has ended.
async fn one_copy(small: &mut Small) -> Result<(), LogError> {
    let log = small.opened().await?;
    let others = Vec::from_iter(small.world.hosts[1..].iter().cloned());
    others.iter().for_each(Host::freeze);
    // With two copies its outcome is unknown.
    let _ = small.append(&log, 1, LONG).await;
    drop(log);
    others.iter().for_each(Host::thaw);
    Ok(())
}

pub(crate) fn unknown(fabric: &Fabric, kind: Kind, nth: u64) -> Vec<Left> {
    under_cuts(fabric, kind, nth, one_copy, async |small, ()| {
        opens(small, 2).await
    })
}

/// The others have a record that was acknowledged, and is shorter.
pub(crate) fn not_acknowledged(fabric: &Fabric, kind: Kind, nth: u64) -> Vec<Left> {
    let set_up = async |small: &mut Small| {
        one_copy(small).await?;
        let others = Vec::from_iter(1..REPLICAS);
        small.only(&others).await;
        let log = small.open(2).await?;
        small.append(&log, 2, SHORT).await?;
        small.until_they_have(&others, log.bounds().1, 2).await;
        Ok(())
    };
    under_cuts(fabric, kind, nth, set_up, async |small, ()| {
        opens(small, 3).await
    })
}

/// One server was away, and the other one that had the record was replaced. Without the first one
/// the log does not open.
pub(crate) fn no_witness(fabric: &Fabric, kind: Kind, nth: u64) -> Vec<Left> {
    let set_up = async |small: &mut Small| {
        drop(away(small, 1).await?);
        small.stop(LAST).await;
        small.world.replace(LAST);
        small.only(&[1, LAST]).await;
        // It gets its records after the one that was replaced.
        small.world.link(1).delay(Duration::from_millis(2));
        Ok(())
    };
    under_cuts(fabric, kind, nth, set_up, async |small, ()| {
        let opened = small.open(2).await.err();
        assert!(matches!(opened, Some(LogError::TooFew(_))), "{opened:?}");
        opens(small, 3).await
    })
}
