//! The table of docs/testing.md: how an exploration and seeds find each wrong program.

use crate::explored::{awaited, found, power, sets, threads};

#[test]
#[ignore = "long: a minute"]
fn the_table_of_the_docs() {
    let mut cases = vec![
        found::copy(),
        found::early(),
        found::other(),
        found::detached(),
        found::elapsed(),
        found::few(),
        found::trusting(),
        found::tail(),
        threads::early(),
        threads::announced(),
        threads::first(),
        awaited::tail(),
        awaited::elapsed(),
        awaited::detached(),
        sets::set(),
    ];
    cases.extend(power::all());
    cases.iter().for_each(|case| case.print());
}
