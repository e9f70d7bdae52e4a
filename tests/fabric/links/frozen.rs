//! Hosts with a device that stands still.

use std::thread;

use crate::links::prelude::*;

/// A device that stands still serves no peer, and serves them when it goes on.
#[test]
fn a_frozen_server() -> Result {
    each_connected(&patient(), |world, both| {
        world.hosts[1].freeze();
        both.write(1)?;
        knock(&both.server, 2)?;
        assert_empty(both.client.get_cq())?;
        assert_empty(both.server.get_cq())?;
        assert_eq!(both.written()?, [0; LEN]);
        world.hosts[1].thaw();
        opcode_of(&completion(&both.client), 1)?;
        opcode_of(&completion(&both.server), 2)?;

        let both = Both::new(world, &impatient())?;
        world.hosts[1].freeze();
        both.write(3)?;
        unanswered(&completion(&both.client), 3);
        world.hosts[1].thaw();
        assert_eq!(both.written()?, [0; LEN]);
        Ok(())
    })
}

/// The retries of a device that stands still do not count, and it does not flush.
#[test]
fn a_frozen_client() -> Result {
    each_connected(&impatient(), |world, both| {
        world.hosts[0].freeze();
        both.write(1)?;
        // Much longer than its retries take.
        thread::sleep(Duration::from_millis(50));
        assert_empty(both.client.get_cq())?;
        assert_eq!(both.written()?, [0; LEN]);
        world.hosts[0].thaw();
        opcode_of(&completion(&both.client), 1)?;
        assert_eq!(both.written()?, contents(&both.source)?);

        world.hosts[0].freeze();
        both.write(2)?;
        both.client.disconnect()?;
        assert_empty(both.client.get_cq())?;
        nothing(&both.server);
        world.hosts[0].thaw();
        flushed(&completion(&both.client), 2);
        assert_eq!(event(&both.server)?, ConnEvent::Closed);
        Ok(())
    })
}

/// Neither do those count that it was waiting for when it stopped.
#[test]
fn a_client_that_is_frozen_while_nobody_answers() -> Result {
    each(|world| {
        // 67 ms.
        let cfg = settings(0, 14);
        let goes_on = || {
            let both = Both::new(world, &cfg).expect("established");
            world.link.partition();
            let start = Instant::now();
            both.write(1).expect("posted");
            world.hosts[0].freeze();
            let in_time = start.elapsed() < Duration::from_millis(60);
            thread::sleep(Duration::from_millis(150));
            assert!(!in_time || both.client.failure().is_none());
            world.link.heal();
            world.hosts[0].thaw();
            let result = completion(&both.client).result().map(drop);
            in_time.then_some(result)
        };
        // Something else may have held this program up.
        let result = (0..20).find_map(|_| goes_on());
        result.ok_or("once in time")??;
        Ok(())
    })
}

/// A retry that was due while its device stood still is made when it goes on.
#[test]
fn a_client_that_is_frozen_while_it_retries() -> Result {
    each_connected(&settings(6, 12), |world, both| {
        both.client.send(MrSlice::EMPTY, ALWAYS, 1)?;
        world.hosts[0].freeze();
        both.server.recv(MrSlice::EMPTY, 2)?;
        thread::sleep(Duration::from_millis(50));
        assert_empty(both.server.get_cq())?;
        world.hosts[0].thaw();
        opcode_of(&completion(&both.client), 1)?;
        opcode_of(&completion(&both.server), 2)?;
        Ok(())
    })
}

/// A host that stands still loses no request: a native flush completes when it goes on, even if it
/// could not be sent again. (Two guests: `two hosts: frozen for 1 s, native`.)
#[test]
fn a_native_flush_waits_for_a_frozen_host() -> Result {
    each_connected(&settings(6, 14), |world, both| {
        world.fabric.jump_over_waits();
        let _entered = world.hosts[0].enter();
        world.hosts[1].freeze();
        let flushed = both.flush(1)?;
        timed_out(both.wait(flushed, Duration::from_millis(200)));
        world.hosts[1].thaw();
        both.done(flushed)
    })
}
