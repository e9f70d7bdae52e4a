//! Arming in every order of the threads.

use std::sync::Arc;

use crate::common::prelude::*;

const LIMIT: Duration = Duration::from_secs(10);

/// Promise of `Cq::req_notify`: the last request counts, also if another thread's wait arms the
/// queue at the same time. Before, the wait could leave the request of before, and the next
/// message gave no event.
#[test]
fn a_wait_leaves_the_request_that_came_last() -> Result {
    for seed in 0..200 {
        let here = Rig::strict().seed(seed).here();
        let Pair { client, server } = Pair::new(&peer()?)?;
        let server = Arc::new(server);
        let message = |flags| -> Result {
            server.recv(MrSlice::EMPTY, 0)?;
            client.wait_for(client.send(MrSlice::EMPTY, flags, 0)?, LIMIT, |_| {})?;
            Ok(())
        };
        let cq = server.get_cq();
        // Takes the event that the queue was made for.
        message(ALWAYS | Flags::SOLICITED)?;
        cq.req_notify(Notify::Solicited)?;
        let waits = here.host.spawn({
            let server = Arc::clone(&server);
            move || server.get_cq().wait_timeout(LIMIT)
        });
        let arms = here.host.spawn({
            let server = Arc::clone(&server);
            move || server.get_cq().req_notify(Notify::Any)
        });
        waits.join().expect("no panic")?;
        arms.join().expect("no panic")?;
        while cq.get_wc(&mut [Wc::default()])? > 0 {}
        message(ALWAYS)?;
        cq.wait_timeout(LIMIT)
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    Ok(())
}
