//! The descriptor of a wait, in event loops.

use std::os::fd::AsFd;

use rpma::wait::{Happened, Wait};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::common::prelude::*;
use crate::wait::support::{SHORT, empty_wait, gets_message, joined, member_writes, wait_for_one};

/// All that is there, as an event loop takes it.
fn drain(wait: &mut Wait) -> Result<Vec<Happened>> {
    let mut all = vec![];
    while let Some(happened) = wait.next(&mut [Wc::default()], Duration::ZERO)? {
        all.push(happened);
    }
    Ok(all)
}

/// Promise: the descriptor is readable while `next` has something, of any kind, also from a listed
/// member; and not when it returned `None`.
#[test]
fn the_descriptor_is_readable_while_there_is_something() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let (mut wait, ep, member, client) = wait_for_one(&peer)?;
    let (waker, mut wcs) = (wait.waker(), [Wc::default()]);
    let endpoint = wait.add_ep(ep)?;
    // Completions that were listed before the program asked for the descriptor.
    for number in 0..3 {
        member_writes(&wait, member, number)?;
    }
    for _ in 0..3 {
        assert!(wait.next(&mut wcs, LIMIT)?.is_some());
        let _ = wait.as_fd();
    }
    drain(&mut wait)?;
    assert!(!readable(&wait, SHORT), "nothing is there");

    member_writes(&wait, member, 1)?;
    assert!(readable(&wait, LIMIT), "a completion");
    assert_eq!(drain(&mut wait)?.len(), 1);
    assert!(!readable(&wait, SHORT));
    let _asking = ask(&peer, wait.ep(endpoint).ok_or("a member")?, &ConnCfg::new())?;
    assert!(readable(&wait, LIMIT), "a request");
    assert!(matches!(drain(&mut wait)?[..], [Happened::Request(..)]));
    assert!(!readable(&wait, SHORT));
    waker.wake();
    assert!(readable(&wait, LIMIT), "a wake-up");
    assert!(matches!(drain(&mut wait)?[..], [Happened::Woken]));
    assert!(!readable(&wait, SHORT));

    // One at a time: the rest is listed here, and no descriptor of the kernel's has an event
    // for it.
    for number in 0..5 {
        gets_message(&wait, (member, &client), number)?;
    }
    for _ in 0..5 {
        assert!(readable(&wait, Duration::ZERO), "there is more");
        assert!(wait.next(&mut wcs, Duration::ZERO)?.is_some());
    }
    drain(&mut wait)?;
    assert!(!readable(&wait, SHORT));
    drop(client);
    assert!(readable(&wait, LIMIT), "an event");
    assert!(matches!(drain(&mut wait)?[..], [Happened::Event(..)]));
    Ok(())
}

/// Promise: an edge of the descriptor is enough, if the loop calls `next` until it returns `None`.
#[test]
fn edges_are_enough() -> Result {
    let _test = device_test();
    let (mut wait, ep, peer) = empty_wait()?;
    let mut clients: Vec<_> = (0..3)
        .map(|_| joined(&mut wait, &ep, &peer, &ConnCfg::new()))
        .collect::<Result<_, _>>()?;
    let edges = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&edges, &wait, epoll::EventData::new_u64(0), flags)?;
    let take = |wait: &mut Wait, count: usize| -> Result {
        let (mut got, deadline) = (0, Instant::now() + LIMIT);
        while got < count {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left)?;
            let mut events = Vec::with_capacity(4);
            let edge = epoll::wait(&edges, spare_capacity(&mut events), Some(&left));
            assert_eq!(edge?, 1, "no edge, with {got} of {count}");
            got += drain(wait)?.len();
        }
        assert_eq!(got, count);
        Ok(())
    };
    for round in 0..20 {
        let mut count = 0;
        for (number, (member, _)) in clients.iter().enumerate() {
            for _ in 0..(round + number) % 4 {
                member_writes(&wait, *member, 1)?;
                count += 1;
            }
        }
        take(&mut wait, count)?;
    }
    let count = clients.len();
    clients.clear();
    take(&mut wait, count)
}
