//! The error of the tests, `tests/common/failed.rs`.

use std::io;

use crate::failed::Result;

/// The text of a failed test.
fn text(result: Result) -> String {
    format!("{:?}", result.expect_err("it fails"))
}

/// Promise: the error of a test has the place of the `?`, the text of the error and of its sources.
#[test]
fn an_error_has_its_place_and_its_sources() {
    let line = line!() + 1;
    let words = || -> Result { Ok(None.ok_or("no request")?) };
    let place = format!("{}:{line}:", file!());
    let found = text(words());
    assert!(found.starts_with(&place), "{found}");
    assert!(found.ends_with(": no request"), "{found}");

    let error = anyhow::Error::new(io::Error::other("no memory")).context("no region");
    let sources = || -> Result { Err(error)? };
    let found = text(sources());
    assert!(found.ends_with(": no region: no memory"), "{found}");
}
