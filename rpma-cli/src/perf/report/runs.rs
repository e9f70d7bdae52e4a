//! [`Run`]: the results that were measured together, on the same machines.

use std::cmp::Ordering;

use crate::perf::read::Entry;
use crate::perf::result::Point;

/// The results of a run, in the order of their settings.
#[derive(Clone, Debug)]
pub(super) struct Run<'a> {
    /// Of its first result. All others have the same hosts.
    pub(super) point: &'a Point,
    pub(super) items: Vec<Item<'a>>,
}

/// A result of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'a> {
    /// Counts from 1.
    pub(super) run: usize,
    /// Counts from 1, for the results of a run that have the same setting.
    pub(super) repeat: usize,
    pub(super) entry: &'a Entry,
}

impl Item<'_> {
    /// The order in tables and charts.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        let key = |item: &Self| (item.entry.point.setting, item.run, item.repeat);
        key(self)
            .partial_cmp(&key(other))
            .unwrap_or(Ordering::Equal)
    }
}

/// All runs, in the order in which they began.
pub(super) fn runs(entries: &[Entry]) -> Vec<Run<'_>> {
    let mut entries: Vec<&Entry> = entries.iter().collect();
    entries.sort_by(|one, other| one.point.began.cmp(&other.point.began));
    let mut runs: Vec<Run<'_>> = Vec::new();
    for entry in entries {
        let point = &entry.point;
        let known = runs.iter().position(|run| is_of(run, point));
        let index = known.unwrap_or(runs.len());
        if known.is_none() {
            let items = Vec::new();
            runs.push(Run { point, items });
        }
        let items = &mut runs[index].items;
        let same = |item: &&Item<'_>| item.entry.point.setting == point.setting;
        items.push(Item {
            run: index + 1,
            repeat: items.iter().filter(same).count() + 1,
            entry,
        });
    }
    for run in &mut runs {
        run.items.sort_by(Item::order);
    }
    runs
}

fn is_of(run: &Run<'_>, point: &Point) -> bool {
    let first = run.point;
    first.began == point.began && first.client == point.client && first.servers == point.servers
}
