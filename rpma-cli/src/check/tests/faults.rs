//! Faults that are put in, and the cases that find them.

use rpma::sim::{Platform, Profile};

use super::world::{Result, World};
use crate::args::{Fault, Serve};
use crate::report::Outcome;

/// A case that has to fail, with these words.
fn finds(fault: Fault, only: &[&str], case: &str, words: &str) -> Result {
    let world = World::new();
    let checked = world.with_fault(fault, only)?;
    assert_eq!(checked.outcome, Outcome::Bad, "{:#}", checked.report);
    let (result, detail) = checked.case(case).ok_or("the case ran")?;
    assert_eq!(result, "failed", "{case}: {detail}");
    assert!(detail.contains(words), "{case}: {detail}");
    assert!(world.is_empty());
    Ok(())
}

#[test]
fn a_wrong_byte_is_found_with_its_place() -> Result {
    let words = "with its neighbours: byte 96 of 192 is";
    finds(
        Fault::WrongByte,
        &["transfer-write"],
        "transfer-write",
        words,
    )
}

#[test]
fn a_missing_right_is_found() -> Result {
    let only = ["transfer-read"];
    finds(
        Fault::Refuses,
        &only,
        "transfer-read",
        "remote access error",
    )
}

#[test]
fn a_wrong_declaration_is_found() -> Result {
    let words = "the server declares that data are durable by direct writes";
    finds(Fault::Lies, &["declaration"], "declaration", words)
}

#[test]
fn a_commit_that_is_not_there_is_found() -> Result {
    let (only, case) = (["commit-server"], "commit-server-durable");
    let words = "it is acknowledged, and its pointer is not there";
    finds(Fault::Lies, &only, case, words)
}

/// A device without native flush, whose server says that it has one.
#[test]
fn a_native_flush_that_is_not_there_is_found() -> Result {
    let world = World::of(Profile::RXE_6_12, Profile::RXE_6_1);
    let checked = world.with_fault(Fault::Lies, &["flush-native-visible"])?;
    let (result, detail) = checked.case("flush-native-visible").ok_or("it ran")?;
    assert_eq!(result, "failed", "{detail}");
    assert!(detail.contains("a flush of 1 bytes"), "{detail}");
    Ok(())
}

/// Promise: the report has the cases until then, and says why the others are missing.
#[test]
fn a_server_that_dies_ends_the_check_with_its_report() -> Result {
    let world = World::new();
    let only = ["declaration", "transfer"];
    let checked = world.with_fault(Fault::Dies, &only)?;
    assert_eq!(checked.outcome, Outcome::Bad);
    assert_eq!(checked.report["passed"], 1, "{:#}", checked.report);
    let reason = checked.report["ended_early"].as_str().unwrap_or_default();
    assert!(
        reason.starts_with("in transfer-write, the session"),
        "{reason}"
    );
    assert!(reason.contains("Start it again"), "{reason}");
    assert!(world.is_empty());
    Ok(())
}

/// Promise: a fault of one case does not end the others.
#[test]
fn the_cases_after_a_fault_run() -> Result {
    let world = World::new();
    let args = Serve {
        fault: Some(Fault::WrongByte),
        ..world.serve_pmem(Platform::Eadr)
    };
    let server = world.start(&args)?;
    let checked = world.check(&["transfer", "message-too-long", "message-sizes"])?;
    server.stop()?;
    assert_eq!(checked.report["failed"], 1, "{:#}", checked.report);
    assert_eq!(checked.with("failed"), ["transfer-write"]);
    Ok(())
}

/// Promise: a read of 0 bytes that this host's device completes by itself is found, and the
/// guarantees that need its answer are named.
#[test]
fn a_read_of_nothing_without_an_answer_is_found() -> Result {
    for (profile, words) in [
        (
            Profile::SIW_6_12,
            &["close", "keep-alive", "writer's probe"][..],
        ),
        (Profile::RXE_6_12, &["by writes of 0 bytes"]),
        (Profile::ADAPTER, &["by writes of 0 bytes"]),
    ] {
        let world = World::of(profile.clone().with_unanswered_empty_reads(), profile);
        let server = world.start(&world.serve())?;
        let checked = world.check(&["answer"])?;
        server.stop()?;
        let (result, detail) = checked.case("answer-zero").ok_or("it ran")?;
        assert_eq!(result, "failed", "{detail}");
        for words in words {
            assert!(detail.contains(words), "{detail}");
        }
    }
    Ok(())
}

/// An adapter that counts as soft-RoCE gets no fences, and executes out of order. The server's
/// processor has to look at the right moment: one check of ten misses it.
#[test]
fn a_device_that_reorders_in_secret_is_found() -> Result {
    let lying = Profile::ADAPTER.with_vendor_id(0xFF_FFFF);
    let world = World::of(lying.clone(), lying);
    let server = world.start(&world.serve())?;
    let mut details = Vec::new();
    while details.len() < 30 {
        let checked = world.check(&["order-atomic-reading"])?;
        let (_, detail) = checked.case("order-atomic-reading").ok_or("it ran")?;
        details.push(detail.to_owned());
        if detail.contains("before the bytes that it shows") {
            return Ok(server.stop()?);
        }
    }
    Err(format!("it was not found: {details:?}").into())
}
