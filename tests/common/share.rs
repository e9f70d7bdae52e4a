//! The extent of sweeps and storms. Tests of many similar items (calls that fail, seeds, steps) run a
//! share of them in each run, and all of them with `--long`.

use std::env;

/// The share of a run: `RPMA_SIM_SHARE` is `all`, or `0` to `3` for one of four runs, such as those of
/// four profiles, which have different items. If it is not set, it is `0`.
fn own() -> Option<usize> {
    match env::var("RPMA_SIM_SHARE").as_deref() {
        Err(_) => Some(0),
        Ok("all") => None,
        Ok(own) => Some(own.parse().expect("RPMA_SIM_SHARE is `all`, or 0 to 3")),
    }
}

/// Whether a share has the item with this number: each row of `one_of` items has one, and not at the
/// same place in each row, because items may be alike at the same places.
pub(crate) fn share_has(own: usize, one_of: usize, number: usize) -> bool {
    (number + number / one_of) % one_of == own % one_of
}

/// Whether this run includes the item with this number. Of four runs with different shares, one
/// does.
pub(crate) fn is_in_share(number: usize) -> bool {
    own().is_none_or(|own| share_has(own, 4, number))
}

/// The items that this run includes: one of so many, or all. Prints how many they are.
pub(crate) fn share<T>(what: &str, one_of: usize, items: impl IntoIterator<Item = T>) -> Vec<T> {
    let own = own();
    let (mut all, mut included) = (0, Vec::new());
    for (number, item) in items.into_iter().enumerate() {
        all += 1;
        if own.is_none_or(|own| share_has(own, one_of, number)) {
            included.push(item);
        }
    }
    println!("{what}: {} of {all}", included.len());
    assert!(!included.is_empty(), "{what}: a share has no items");
    included
}

/// How many of so many runs with drawn faults this run includes: a quarter, or all. Prints it.
pub(crate) fn share_of_runs(what: &str, all: u64) -> u64 {
    let included = own().map_or(all, |_| all.div_ceil(4));
    println!("{what}: {included} of {all}");
    included
}
