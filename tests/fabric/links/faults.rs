//! Faults of one request: it or its acknowledgement is lost, a part of it is placed, or the fault
//! is taken back.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::links::prelude::*;

/// A lost write is not there, an earlier one is, and a later one is flushed; each with the endless
/// retries that rxe has as well.
#[test]
fn a_lost_request_is_not_executed() -> Result {
    each_connected(&patient(), |world, both| {
        world.link.lose_request(2);
        let [first, rest] = [0..8, 8..LEN].map(|range| both.source.slice(range).expect("inside"));
        let to = |range: std::ops::Range<u64>| remote(&both.target).slice(range);
        let mut batch = both.client.batch::<3>();
        batch.write(to(0..8)?, first, ALWAYS, 1)?;
        batch.write(to(8..LEN as u64)?, rest, ALWAYS, 2)?;
        batch.write(to(16..24)?, first, ALWAYS, 3)?;
        batch.post()?;
        opcode_of(&completion(&both.client), 1)?;
        unanswered(&completion(&both.client), 2);
        flushed(&completion(&both.client), 3);
        let mut expected = vec![0; LEN];
        expected[..8].copy_from_slice(&pattern(LEN, 1)[..8]);
        assert_eq!(both.written()?, expected);
        let Some(Failure::Operation(failure)) = both.client.failure() else {
            panic!("an operation has failed: {:?}", both.client.failure());
        };
        assert_eq!(failure.status, WcStatus::RETRY_EXC_ERR);
        Ok(())
    })
}

/// A failed write may still have been executed: a program must not conclude that it was not.
#[test]
fn a_lost_acknowledgement_leaves_what_was_written() -> Result {
    each_connected(&patient(), |world, both| {
        world.link.lose_acknowledgement(1);
        both.write(1)?;
        unanswered(&completion(&both.client), 1);
        assert_eq!(both.written()?, contents(&both.source)?);
        Ok(())
    })
}

/// The same for each other operation: an atomic write and a message are there, and a read brings no
/// bytes.
#[test]
fn an_acknowledgement_of_anything_can_be_lost() -> Result {
    each_connected(&patient(), |world, both| {
        world.link.lose_acknowledgement(1);
        let to = remote(&both.target).slice(8..16)?;
        both.client.atomic_write(to, &[7; 8], ALWAYS, 1)?;
        unanswered(&completion(&both.client), 1);
        assert_eq!(both.written()?[8..16], [7; 8]);

        let both = Both::new(world, &patient())?;
        world.link.lose_acknowledgement(1);
        let before = contents(&both.source)?;
        let into = both.source.slice(..)?;
        both.client.read(into, both.target()?, ALWAYS, 2)?;
        unanswered(&completion(&both.client), 2);
        assert_eq!(contents(&both.source)?, before);

        let both = Both::new(world, &patient())?;
        world.link.lose_acknowledgement(1);
        both.server.recv(MrSlice::EMPTY, 4)?;
        both.client.send(MrSlice::EMPTY, ALWAYS, 3)?;
        unanswered(&completion(&both.client), 3);
        opcode_of(&completion(&both.server), 4)?;

        let both = Both::new(world, &patient())?;
        world.link.lose_acknowledgement(1);
        both.flush(5)?;
        unanswered(&completion(&both.client), 5);
        Ok(())
    })
}

/// A write may be there in part, and its beginning first. Only plain writes are counted for that.
#[test]
fn a_part_of_a_write() -> Result {
    for placed in [0, 1, 1024, 2048, LEN, LEN + 1] {
        each_connected(&patient(), |world, both| {
            world.link.place_only(2, placed);
            both.server.recv(MrSlice::EMPTY, 1)?;
            both.client.send(MrSlice::EMPTY, ALWAYS, 1)?;
            opcode_of(&completion(&both.client), 1)?;
            knock(&both.client, 2)?;
            opcode_of(&completion(&both.client), 2)?;
            both.write(3)?;
            unanswered(&completion(&both.client), 3);
            let mut expected = contents(&both.source)?;
            expected[placed.min(LEN)..].fill(0);
            assert_eq!(both.written()?, expected, "{placed} bytes");
            Ok(())
        })?;
    }
    Ok(())
}

/// A request that finds no receive and is repeated is one request, and the other direction is
/// another link.
#[test]
fn requests_are_counted_once() -> Result {
    each_connected(&patient(), |world, both| {
        world.link.lose_request(2);
        for n in 0..4 {
            knock(&both.server, n)?;
            opcode_of(&completion(&both.server), n)?;
        }
        both.client.send(MrSlice::EMPTY, ALWAYS, 1)?;
        for _ in 0..100 {
            assert_empty(both.client.get_cq())?;
        }
        both.server.recv(MrSlice::EMPTY, 1)?;
        opcode_of(&completion(&both.client), 1)?;
        both.write(2)?;
        unanswered(&completion(&both.client), 2);
        Ok(())
    })
}

/// The first operation that fails need not be the first that was not executed: all of these were.
#[test]
fn acknowledgements_that_are_all_lost() -> Result {
    each_connected(&impatient(), |world, both| {
        world.fabric.jump_over_waits();
        world.link.lose_acknowledgements(2);
        let write = |n: u64| {
            let at = 8 * n as usize;
            let to = remote(&both.target).slice(8 * n..8 * n + 8)?;
            let from = both.source.slice(at..at + 8)?;
            both.client.write(to, from, ALWAYS, n)
        };
        let posted = (0..4).map(write).collect::<rpma::Result<Vec<_>>>()?;
        both.done(posted[0])?;
        unanswered(&completion(&both.client), 1);
        for op_context in [2, 3] {
            flushed(&completion(&both.client), op_context);
        }
        let (written, all) = (both.written()?, pattern(LEN, 1));
        assert_eq!(written[..32], all[..32], "all were executed");
        Ok(())
    })
}

/// Armed faults that have not happened can be taken back, and counted: those of this way and no
/// other.
#[test]
fn faults_that_have_not_happened_are_taken_back() -> Result {
    let fabric = Rig::of(&Profile::RXE_6_12).emptied();
    let world = World::on(&fabric);
    let both = Both::new(&world, &patient())?;
    let back = back(&world);
    world.link.lose_request(1);
    world.link.lose_acknowledgement(2);
    world.link.place_only(3, 8);
    back.lose_request(1);
    assert_eq!((world.link.disarm(), world.link.disarm()), (3, 0));
    let written = both.write(1)?;
    both.done(written)?;
    assert_eq!(back.disarm(), 1);
    Ok(())
}

/// A fault that could never happen is refused, so that no test stands on it.
#[test]
fn faults_that_cannot_be_are_refused() {
    let [here, there] = [(); 2].map(|()| Rig::strict().fabric());
    let [own, other] = [here.host("own"), there.host("other")];
    let refused = |run: &dyn Fn()| {
        catch_unwind(AssertUnwindSafe(run)).expect_err("it is refused");
    };
    refused(&|| drop(here.between(&own, &other)));
    refused(&|| drop(here.between(&other, &own)));
    let link = here.between(&own, &own);
    refused(&|| link.lose_request(0));
    refused(&|| link.lose_acknowledgement(0));
    refused(&|| link.place_only(0, 1));
    refused(&|| own.lose_receive(0));
}
