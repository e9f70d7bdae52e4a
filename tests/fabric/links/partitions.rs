//! Requests of connected hosts that do not reach each other, in both directions or in one.

use std::thread;

use crate::links::prelude::*;

/// Requests that are posted during a partition are executed after it: with retries without end,
/// however long it took, and in both directions.
#[test]
fn a_partition_keeps_back() -> Result {
    each_connected(&patient(), |world, both| {
        world.link.partition();
        both.write(1)?;
        both.client.send(MrSlice::EMPTY, ALWAYS, 2)?;
        knock(&both.server, 3)?;
        both.server.recv(MrSlice::EMPTY, 4)?;
        assert_empty(both.client.get_cq())?;
        assert_empty(both.server.get_cq())?;
        assert_eq!(both.written()?, [0; LEN]);
        world.link.heal();
        opcode_of(&completion(&both.client), 1)?;
        opcode_of(&completion(&both.client), 2)?;
        let mut arrived = [3, 4].map(|_| completion(&both.server).wr_id());
        arrived.sort_unstable();
        assert_eq!(arrived, [3, 4]);
        assert_eq!(both.written()?, contents(&both.source)?);
        Ok(())
    })
}

/// And with a few retries it fails, also where 7 of them are without end.
#[test]
fn a_partition_exhausts_retries() -> Result {
    each_connected(&impatient(), |world, both| {
        world.link.partition();
        both.write(1)?;
        unanswered(&completion(&both.client), 1);
        world.link.heal();
        assert_eq!(both.written()?, [0; LEN]);
        Ok(())
    })
}

/// Retries without end: however many there were, the request is done when the hosts reach each
/// other.
#[test]
fn endless_retries_outlast_a_partition() -> Result {
    for profile in [Profile::RXE_6_12, Profile::RXE_6_1] {
        let fabric = Rig::of(&profile).emptied();
        let world = World::on(&fabric);
        let both = Both::new(&world, &settings(7, 1))?;
        world.link.partition();
        both.write(1)?;
        // Some thousand times as long as 8 tries take.
        thread::sleep(Duration::from_millis(100));
        assert_empty(both.client.get_cq())?;
        world.link.heal();
        opcode_of(&completion(&both.client), 1)?;
        assert_eq!(both.written()?, contents(&both.source)?);
    }
    Ok(())
}

/// The way back is closed: requests are executed, and complete when it is open again, each executed
/// once.
#[test]
fn a_blocked_way_back_keeps_acknowledgements() -> Result {
    each_connected(&patient(), |world, both| {
        let _entered = world.hosts[1].enter();
        for op_context in [7, 8] {
            both.server.recv(MrSlice::EMPTY, op_context)?;
        }
        let back = back(world);
        back.block();
        let written = both.write(1)?;
        let sent = both.client.send(MrSlice::EMPTY, ALWAYS, 2)?;
        let (to, from) = (both.source.slice(..8)?, remote(&both.target).slice(..8)?);
        let read = both.client.read(to, from, ALWAYS, 3)?;
        assert_eq!(both.written()?, pattern(LEN, 1));
        assert_eq!(opcode_of(&completion(&both.server), 7)?, WcOpcode::RECV);
        assert_empty(both.client.get_cq())?;
        // The server's messages do not arrive either.
        let unheard = knock(&both.server, 9);
        assert_empty(both.server.get_cq())?;

        both.target.write_at(0, &[9; 8])?;
        back.heal();
        for posted in [written, sent, read] {
            both.done(posted)?;
        }
        // A read that is sent again reads again.
        assert_eq!(contents(&both.source)?[..8], [9; 8]);
        both.server.wait_for(unheard?, LIMIT, |_| {})?;
        assert_empty(both.server.get_cq())
    })
}

/// A request that is refused while the way back is closed: the responder has failed, and the
/// requester gets no answer.
#[test]
fn a_refusal_that_is_not_heard() -> Result {
    each_connected(&impatient(), |world, both| {
        world.fabric.jump_over_waits();
        back(world).block();
        let to = both.target()?;
        drop(both.target);
        let from = both.source.slice(..)?;
        both.client.write(to, from, ALWAYS, 1)?;
        unanswered(&completion(&both.client), 1);
        if both.server.recv(MrSlice::EMPTY, 2).is_ok() {
            let flushed = completion(&both.server);
            flushed.result().expect_err("it has failed");
        }
        back(world).heal();
        Ok(())
    })
}
