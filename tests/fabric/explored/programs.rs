//! Wrong programs of several kinds, and the right ones beside them.

use anyhow::Result;

use crate::common::prelude::*;
use crate::explored::replicas::{
    Replica, Tail, on_all, on_two, post_all, recover, under_cuts, wait_all, wait_for_some,
};

/// How many records each program appends.
const RECORDS: u64 = 2;

type Appends<'a> = dyn Fn(&[Replica], u64) -> Result<()> + 'a;

/// A program that promises a record after each append.
fn promises(replicas: &[Replica], promise: &dyn Fn(u64), append: &Appends<'_>) -> Result<()> {
    for number in 0..RECORDS {
        append(replicas, number)?;
        promise(number + 1);
    }
    Ok(())
}

/// Of three copies, two are waited for, or one.
pub(crate) fn copies(fabric: &Fabric, count: usize) {
    under_cuts(fabric, 3, &on_two, |replicas, promise| {
        promises(replicas, promise, &|replicas, number| {
            let posted = post_all(replicas, number, Tail::Atomic)?;
            wait_for_some(replicas, &posted, count)
        })
    });
}

/// A record is promised after its flush, or before.
pub(crate) fn tells(fabric: &Fabric, early: bool) {
    under_cuts(fabric, 2, &on_all, |replicas, promise| {
        for number in 0..RECORDS {
            let posted = post_all(replicas, number, Tail::Atomic)?;
            if early {
                promise(number + 1);
            }
            wait_all(replicas, &posted)?;
            promise(number + 1);
        }
        Ok(())
    });
}

/// With two records in flight, the flush of the first one is the promise of the first one, or of
/// both.
pub(crate) fn pipelined(fabric: &Fabric, both: bool) {
    under_cuts(fabric, 1, &on_all, |replicas, promise| {
        let first = post_all(replicas, 0, Tail::Atomic)?;
        let second = post_all(replicas, 1, Tail::Atomic)?;
        wait_all(replicas, &first)?;
        promise(if both { 2 } else { 1 });
        wait_all(replicas, &second)?;
        promise(2);
        Ok(())
    });
}

/// The commit to the second replica is awaited, or left to itself.
pub(crate) fn commits(fabric: &Fabric, detached: bool) {
    under_cuts(fabric, 2, &on_all, |replicas, promise| {
        promises(replicas, promise, &|replicas, number| {
            let posted = post_all(replicas, number, Tail::Atomic)?;
            let awaited = if detached { 1 } else { 2 };
            wait_all(&replicas[..awaited], &posted[..awaited])
        })
    });
}

/// A time-out is a failure, or taken for success.
pub(crate) fn times_out(fabric: &Fabric, is_success: bool) {
    under_cuts(fabric, 1, &on_all, |replicas, promise| {
        promises(replicas, promise, &|replicas, number| {
            let posted = replicas[0].post(number, Tail::Atomic)?;
            match replicas[0].wait(posted) {
                Err(Error::TimedOut(_)) if is_success => Ok(()),
                waited => Ok(waited?),
            }
        })
    });
}

/// A time-out of the wait for two copies of three is a failure, or taken for success.
pub(crate) fn too_few_copies(fabric: &Fabric, is_success: bool) {
    under_cuts(fabric, 3, &on_two, |replicas, promise| {
        promises(replicas, promise, &|replicas, number| {
            let posted = post_all(replicas, number, Tail::Atomic)?;
            match wait_for_some(replicas, &posted, 2) {
                Err(_elapsed) if is_success => Ok(()),
                waited => waited,
            }
        })
    });
}

/// After two copies of three, the recovery reads two replicas, or one of them.
pub(crate) fn recovers(fabric: &Fabric, from: &[usize]) {
    let check = |images: &[&[u8]], promised: u64| {
        let newest = from.iter().map(|replica| recover(images[*replica])).max();
        assert!(newest >= Some(promised), "{newest:?} of {promised} records");
    };
    under_cuts(fabric, 3, &check, |replicas, promise| {
        promises(replicas, promise, &|replicas, number| {
            let posted = post_all(replicas, number, Tail::Atomic)?;
            wait_for_some(replicas, &posted, 2)
        })
    });
}

/// The tail is an atomic write right after a flush that is not awaited, or a plain one.
pub(crate) fn shows(fabric: &Fabric, tail: Tail) {
    under_cuts(fabric, 1, &on_all, |replicas, promise| {
        promises(replicas, promise, &|replicas, number| {
            let posted = post_all(replicas, number, tail)?;
            wait_all(replicas, &posted)
        })
    });
}
