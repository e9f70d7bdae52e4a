//! Parts with an old connection that could not be cut off: their memory is registered again.

use std::sync::Arc;

use rpma::serve::Served;
use rpma::sim::{Errno, Failing};

use crate::common::prelude::*;
use crate::serve::failing::{LEFT, fail, fail_so};
use crate::serve::parts::{Parted, write};
use crate::serve::support::{LEN, identity, is_refusal};

/// The end of a client that could not be cut off, to be answered.
fn not_cut_off(parted: &mut Parted) -> Result<Served> {
    let failing = fail("ibv_destroy_qp");
    let client = parted.site.server.client(1).ok_or("connected")?;
    let gone = parted.site.server.cut_off(client).ok_or("connected")?;
    assert!(gone.not_cut_off.is_some() && !failing.is_pending());
    Ok(Served::Gone(Box::new(gone)))
}

/// Lets the next cut-off leave a queue pair that works.
fn keep_alive() -> [Failing; 3] {
    let calls = [
        ("ibv_modify_qp", 1),
        ("ibv_modify_qp", 2),
        ("rdma_disconnect", 1),
    ];
    calls.map(|(call, nth)| {
        with_fabric(|fabric, host| fabric.fail(call).on(host).nth(nth, Errno::IO))
    })
}

/// The region of the key 1.
fn region(parted: &Parted) -> Result<*const Mr<PmemMap>> {
    Ok(Arc::as_ptr(parted.site.server.region(1).ok_or("a part")?))
}

/// Promise: after a connection that could not be cut off and still writes, its end is returned, no
/// write of the old client lands any more, even with the new client's key of the region, and the
/// writer that comes back writes to the same memory.
#[test]
fn a_connection_that_cannot_be_cut_off() -> Result {
    for knows_new_region in [false, true] {
        leaving(&LEFT, || {
            let mut parted = Parted::new(2)?;
            let old = parted.client(identity(1, 1, 10))?;
            let _alive = keep_alive();
            let served = not_cut_off(&mut parted)?;
            parted.writes(&old, 1, &pattern(LEN, 1))?;
            let answered = parted.site.server.answer(served)?;
            let Some(Served::Gone(gone)) = answered else {
                panic!("{answered:?}");
            };
            assert_says(&gone, &["cut it off; it could not be cut off"]);
            let new = parted.client(identity(1, 1, 10))?;
            parted.writes(&new, 1, &pattern(LEN, 2))?;
            let given = if knows_new_region { &new } else { &old };
            let bytes = pattern(LEN, 3);
            write(&parted.site, &old, given, &bytes).expect_err("not its memory");
            assert!(parted.bytes(1) == pattern(LEN, 2));
            parted.writes(&new, 1, &pattern(LEN, 4))?;
            parted.client(identity(2, 1, 20))?;
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: if an admission cannot cut off the old writer, its client is refused, the memory is
/// registered again once, and the client is admitted when it comes back.
#[test]
fn an_admission_that_cannot_cut_off() -> Result {
    leaving(&LEFT, || {
        let mut parted = Parted::new(1)?;
        let _old = parted.client(identity(1, 1, 10))?;
        let failing = fail("ibv_destroy_qp");
        let refused = parted.refused(identity(1, 2, 11))?;
        assert!(!failing.is_pending());
        let words = "could not be cut off";
        is_refusal(&refused.refusal, RefusalCode::NotCutOff, 1, words);
        assert!(refused.error.is_some(), "{refused:?}");
        let before = region(&parted)?;
        assert!(parted.gone()?.not_cut_off.is_some());
        let new = parted.client(identity(1, 2, 11))?;
        assert_eq!(region(&parted)?, before);
        parted.writes(&new, 1, &pattern(LEN, 4))
    })
}

/// Promise: an admission that fails and leaves its queue pair has no end of a client, and its
/// memory is registered again.
#[test]
fn an_admission_that_leaves_its_queue_pair() -> Result {
    leaving(&LEFT, || {
        let mut parted = Parted::new(1)?;
        let _first = parted.site.ask(identity(1, 1, 10))?;
        let _failing = fail_so("rdma_accept", How::Done);
        let _left = fail("ibv_destroy_qp");
        let refused = parted.refuses()?.to_string();
        assert!(refused.starts_with("rdma_accept"), "{refused}");
        let new = parted.client(identity(1, 2, 11))?;
        parted.writes(&new, 1, &pattern(LEN, 5))
    })
}

/// Answers the end of a client with memory that cannot be registered again. Returns the text.
fn lost(parted: &mut Parted, served: Served) -> Result<String> {
    let answered = parted.site.server.answer(served);
    let error = answered.expect_err("not registered again");
    assert!(matches!(error, Error::PartLost { key: 1, .. }), "{error:?}");
    assert!(parted.site.server.region(1).is_none());
    // The end is not lost, and is not tried again.
    assert_eq!(parted.gone()?.identity.key, 1);
    Ok(error.to_string())
}

/// Promise: memory that cannot be registered again is an error with the key; its clients are
/// refused with words until a later request registers it, and other keys are served.
#[test]
fn memory_that_cannot_be_registered_again() -> Result {
    for call in ["ibv_alloc_pd", "ibv_reg_mr"] {
        leaving(&LEFT, || {
            let mut parted = Parted::new(2)?;
            let _old = parted.client(identity(1, 1, 10))?;
            let other = parted.client(identity(2, 1, 20))?;
            let served = not_cut_off(&mut parted)?;
            let failing = fail(call);
            let text = lost(&mut parted, served)?;
            assert!(!failing.is_pending());
            assert!(text.starts_with("the key 0x1 has no memory"), "{text}");
            assert_says(&text, &[call]);
            // A request tries again: the first one in vain.
            let _failing = fail(call);
            let refused = parted.refused(identity(1, 2, 11))?;
            let words = "could not be registered again";
            is_refusal(&refused.refusal, RefusalCode::Refused, 1, words);
            assert_says(&refused.error.ok_or("the reason")?, &[call]);
            parted.writes(&other, 2, &pattern(LEN, 6))?;
            let _other = parted.client(identity(2, 2, 21))?;
            let new = parted.client(identity(1, 2, 11))?;
            parted.writes(&new, 1, &pattern(LEN, 7))
        })?;
    }
    Ok(())
}

/// Promise: the loop of a server notes memory that cannot be registered again, and the end of the
/// client after it, and serves other keys.
#[test]
fn the_loop_notes_a_lost_part() -> Result {
    leaving(&LEFT, || {
        let mut parted = Parted::new(2)?;
        let _old = parted.client(identity(1, 1, 10))?;
        let served = not_cut_off(&mut parted)?;
        let failing = fail("ibv_reg_mr");
        let mut notes = Vec::new();
        let mut handle = |parted: &mut Parted, served| {
            let server = &mut parted.site.server;
            let handled = server.handle(served, |served| notes.push(served));
            assert!(handled.expect("goes on").is_continue());
        };
        handle(&mut parted, served);
        assert!(!failing.is_pending());
        let next = parted.site.next()?;
        handle(&mut parted, next);
        match &notes[..] {
            [
                Served::Failed(Error::PartLost { key: 1, .. }),
                Served::Gone(gone),
            ] => {
                assert_eq!(gone.identity.key, 1);
            }
            other => panic!("{other:?}"),
        }
        parted.client(identity(2, 1, 20))?;
        Ok(())
    })
}

/// Promise: memory that cannot be deregistered, or in a region that the program holds as well, is
/// an error with the key, and the server refuses the key's clients as before.
#[test]
fn memory_that_cannot_be_deregistered() -> Result {
    let held = [LEFT.as_slice(), &[("mr", 1)]].concat();
    for (is_held, left) in [(false, held.as_slice()), (true, LEFT.as_slice())] {
        leaving(left, || {
            let mut parted = Parted::new(2)?;
            let _old = parted.client(identity(1, 1, 10))?;
            let served = not_cut_off(&mut parted)?;
            let region = parted.site.server.region(1).ok_or("a part")?;
            let (_region, _failing, words) = if is_held {
                (Some(Arc::clone(region)), None, "drop its other Arcs")
            } else {
                (None, Some(fail("ibv_dereg_mr")), "ibv_dereg_mr failed")
            };
            assert_says(&lost(&mut parted, served)?, &[words]);
            let (code, words) = (RefusalCode::NotCutOff, "could not be cut off");
            parted.site.refused(identity(1, 2, 11), code, 1, words)?;
            parted.client(identity(2, 1, 20))?;
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: a client that gave up before it was refused is no error of the server.
#[test]
fn a_client_that_gives_up_before_its_refusal() -> Result {
    let _test = device_test();
    let mut parted = Parted::new(1)?;
    let conn = parted.site.ask(identity(2, 1, 10))?;
    let failing = fail("rdma_reject");
    let text = parted.refuses()?.error.ok_or("an error")?.to_string();
    assert!(text.starts_with("rdma_reject failed"), "{text}");
    assert!(!failing.is_pending());
    drop(conn);
    parted.client(identity(1, 1, 10))?;
    Ok(())
}
