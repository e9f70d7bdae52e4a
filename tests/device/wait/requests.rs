//! Requests without queues: looking at them, accepting and rejecting them.

use std::thread;

use rpma::wait::{Happened, Wait};

use crate::common::prelude::*;
use crate::wait::support::{SHORT, goes_on, next, nothing};

/// Promise: a server accepts clients with their private data in sight, and waits for them and for
/// the endpoint in one call.
#[test]
fn a_server_with_one_wait() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let mut wait = Wait::new()?;
    let endpoint = wait.add_ep(listen(&peer)?)?;
    let port = wait.ep(endpoint).ok_or("a member")?.get_port();
    let (mut clients, mut members) = (vec![], vec![]);
    for number in 0..5_u8 {
        let req = ConnReq::new(&peer, &addr(), port, &ConnCfg::new())?;
        let client = req.connect(&[b'c', number])?;
        // The client's side of the handshake.
        clients.push(thread::spawn(here(move || client.wait_established(LIMIT))));
    }
    let (mut established, mut wcs) = (0, [Wc::default()]);
    while established < 5 {
        match next(&mut wait, &mut wcs)? {
            Happened::Request(of, request) => {
                assert_eq!(of, endpoint);
                let data = request.private_data().to_vec();
                assert_eq!(data[0], b'c');
                assert_eq!(request.peer_addr()?.ip().to_string(), addr());
                let place = wait.place();
                // A peer of its own for each client.
                let own = self::peer()?;
                let cfg = place.cfg(&own, &ConnCfg::new())?;
                let req = request.into_req(&own, &cfg)?;
                assert_eq!(req.get_private_data(), data);
                let conn = req.connect(&[data[1]])?;
                members.push((wait.add(place, conn)?, data[1]));
            }
            Happened::Event(of, ConnEvent::Established) => {
                assert!(members.iter().any(|(member, _)| *member == of));
                established += 1;
            }
            happened => panic!("{happened:?}"),
        }
    }
    let accepted = |client: thread::JoinHandle<rpma::Result<Conn>>| {
        client.join().expect("no panic").expect("accepted")
    };
    let clients: Vec<_> = clients.into_iter().map(accepted).collect();
    for (member, number) in &members {
        goes_on(&mut wait, *member)?;
        let client = &clients[usize::from(*number)];
        assert_eq!(client.get_private_data()[0], *number);
    }
    nothing(&mut wait)
}

/// Promise: a request is rejected with private data, without any, and by being dropped; and after
/// an error.
#[test]
fn requests_that_are_not_accepted() -> Result {
    let _test = device_test();
    let (peer, ep) = (peer()?, listen(&peer()?)?);
    let rejected = |reject: &dyn Fn(rpma::Request)| -> Result<_> {
        let client = ask(&peer, &ep, &ConnCfg::new())?;
        reject(ep.next_request_timeout(LIMIT)?);
        let rejected = event(&client)?;
        let ConnEvent::Rejected {
            reason,
            private_data,
            ..
        } = rejected
        else {
            panic!("{rejected}");
        };
        assert_eq!(reason, ConnEvent::BY_PROGRAM);
        Ok(private_data)
    };
    let data = rejected(&|request| request.reject(b"full").expect("rejects"))?;
    assert!(data.starts_with(b"full"));
    rejected(&|request| request.reject(&[]).expect("rejects"))?;
    rejected(&drop)?;
    rejected(&|request| drop(invalid(request.reject(&[0; 149]))))?;
    rejected(&|request| {
        invalid(request.into_req(&peer, ConnCfg::new().set_sq_size(u32::MAX)));
    })?;
    let other = Peer::at(&other_addr())?;
    rejected(&|request| drop(invalid(request.into_req(&other, &ConnCfg::new()))))?;
    let none = ep.next_request_timeout(SHORT);
    assert!(matches!(none, Err(Error::NoEvent)), "{none:?}");
    Ok(())
}

/// Promise: a client that vanished between its request and the answer is only an error that names
/// it.
#[test]
fn a_client_that_vanished() -> Result {
    let _test = device_test();
    let (peer, ep) = (peer()?, listen(&peer()?)?);
    for _ in 0..20 {
        let client = ask(&peer, &ep, &ConnCfg::new())?;
        let request = ep.next_request_timeout(LIMIT)?;
        drop(client);
        // It may be accepted before the kernel hears of its end.
        match request.into_req(&peer, &ConnCfg::new()) {
            Ok(req) => drop(req.connect(&[])),
            Err(error) => says(error, "gave up"),
        }
    }
    Ok(())
}
