//! Failures: each is reported once, with the member's name, and the others go on.

use rpma::wait::{Happened, Wait};

use crate::common::prelude::*;
use crate::wait::support::{goes_on, next, nothing, wait_for_one};

/// While this lives the process, or the simulated host, has no descriptor for another request.
struct NoDescriptors {
    #[cfg(not(feature = "sim"))]
    before: rustix::process::Rlimit,
    #[cfg(feature = "sim")]
    failing: Vec<rpma::sim::Failing>,
}

impl NoDescriptors {
    #[cfg(not(feature = "sim"))]
    fn for_requests(_count: u32) -> Result<Self> {
        use std::os::fd::AsRawFd;

        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

        let before = getrlimit(Resource::Nofile);
        let free = std::fs::File::open("/dev/null")?;
        let current = Some(free.as_raw_fd() as u64);
        drop(free);
        let maximum = before.maximum;
        setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
        Ok(Self { before })
    }

    #[cfg(feature = "sim")]
    fn for_requests(count: u32) -> Result<Self> {
        let arm = |nth| {
            with_fabric(|fabric, host| {
                let failing = fabric.fail("rdma_create_event_channel").on(host);
                failing.nth(nth, rpma::sim::Errno::MFILE)
            })
        };
        Ok(Self {
            failing: (1..=count).map(arm).collect(),
        })
    }
}

impl Drop for NoDescriptors {
    fn drop(&mut self) {
        #[cfg(not(feature = "sim"))]
        rustix::process::setrlimit(rustix::process::Resource::Nofile, self.before).expect("set");
        #[cfg(feature = "sim")]
        for failing in &self.failing {
            failing.disarm();
        }
    }
}

/// Promise: an endpoint that has no descriptor for a request reports `EMFILE` as its own failure,
/// at most 10 times a second, and goes on; so do the others.
#[test]
fn an_endpoint_without_descriptors() -> Result {
    const CLIENTS: u32 = 5;
    let _test = device_test();
    let peer = peer()?;
    let (mut wait, ep, member, _client) = wait_for_one(&peer)?;
    let endpoint = wait.add_ep(ep)?;
    let ep = |wait: &Wait| ask(&peer, wait.ep(endpoint).ok_or("a member")?, &ConnCfg::new());
    let asking: Vec<_> = (0..CLIENTS).map(|_| ep(&wait)).collect::<Result<_, _>>()?;
    let none = NoDescriptors::for_requests(CLIENTS)?;
    let (began, mut wcs) = (Instant::now(), [Wc::default()]);
    for failed in 0..CLIENTS {
        match next(&mut wait, &mut wcs)? {
            Happened::Failed(of, error) => {
                assert_eq!(of, endpoint);
                assert_says(&error, &["rdma_create_event_channel"]);
                assert_says(&error, &["RLIMIT_NOFILE"]);
            }
            happened => panic!("{happened:?}"),
        }
        assert!(wait.deadline().is_some(), "the end of its rest");
        let rests = Duration::from_millis(100) * failed;
        assert!(began.elapsed() >= rests, "{failed} failures too soon");
        // The others do not rest.
        goes_on(&mut wait, member)?;
    }
    drop(none);
    for client in asking {
        assert!(matches!(event(&client)?, ConnEvent::Rejected { .. }));
    }
    let client = ep(&wait)?;
    match next(&mut wait, &mut wcs)? {
        Happened::Request(of, request) => {
            assert_eq!(of, endpoint);
            request.reject(b"full")?;
        }
        happened => panic!("{happened:?}"),
    }
    assert!(matches!(event(&client)?, ConnEvent::Rejected { .. }));
    assert_eq!(wait.deadline(), None);
    nothing(&mut wait)
}

#[cfg(feature = "sim")]
mod simulated {
    use rpma::sim::{Errno, Failing};

    use super::*;
    use crate::wait::support::{SHORT, empty_wait, is_event, joined, member_writes, pair};

    /// This call fails once, on the test's host.
    fn fail(call: &'static str) -> Failing {
        with_fabric(|fabric, host| fabric.fail(call).on(host).next(Errno::IO))
    }

    /// Breaks the server's queue pair: the write goes to memory that is not there.
    fn break_queue_pair(client: &Conn, peer: &Peer) -> Result {
        let source = region(peer, 8, MrUsage::WRITE_SRC)?;
        let gone = remote(&region(peer, 8, MrUsage::WRITE_DST)?);
        let written = client.write(gone.slice(..)?, source.slice(..)?, ALWAYS, 1)?;
        let written = client.wait_for(written, LIMIT, |_| {});
        written.expect_err("its memory is gone");
        Ok(())
    }

    /// Promise: a client that breaks its queue pair is reported once, with its member's name,
    /// after the member's completions; and the others go on. (Soft-RoCE reports no such error: an
    /// adapter does.)
    #[test]
    fn a_broken_queue_pair_is_one_members_failure() -> Result {
        for before_it_is_added in [false, true] {
            let _here = Rig::strict().here();
            let (mut wait, ep, peer) = empty_wait()?;
            let mut wcs = [Wc::default()];
            let connect = |wait: &mut Wait| -> Result<_> {
                let place = wait.place();
                let cfg = place.cfg(&peer, &ConnCfg::new())?;
                let (client, server) = pair(&ep, &peer, &cfg)?;
                Ok((place, server, client))
            };
            let (place, server, _other) = connect(&mut wait)?;
            let other = wait.add(place, server)?;
            is_event(&mut wait, other, &ConnEvent::Established)?;

            let (place, server, client) = connect(&mut wait)?;
            receive_nothing(&server, 0..3)?;
            let member = if before_it_is_added {
                break_queue_pair(&client, &peer)?;
                wait.add(place, server)?
            } else {
                let member = wait.add(place, server)?;
                is_event(&mut wait, member, &ConnEvent::Established)?;
                break_queue_pair(&client, &peer)?;
                member
            };
            let (mut flushed, mut failed) = (0, 0);
            while let Some(happened) = wait.next(&mut wcs, Duration::from_millis(300))? {
                match happened {
                    Happened::Completions(of, 1) => {
                        assert_eq!(of, member);
                        assert_ne!(wcs[0].status(), WcStatus::SUCCESS);
                        flushed += 1;
                    }
                    Happened::Failed(of, error) => {
                        assert_eq!(of, member);
                        let given_up = NotConnected::GivenUp;
                        assert!(matches!(error, Error::NotConnected(why) if why == given_up));
                        assert_eq!(flushed, 3, "after its completions");
                        failed += 1;
                    }
                    Happened::Event(of, ConnEvent::Established) if of == member => {}
                    happened => panic!("{happened:?}"),
                }
            }
            assert_eq!((flushed, failed), (3, 1));
            // The others go on, and a new member comes.
            goes_on(&mut wait, other)?;
            drop(wait.remove(member).ok_or("a connection")?);
            let (place, server, _third) = connect(&mut wait)?;
            let third = wait.add(place, server)?;
            is_event(&mut wait, third, &ConnEvent::Established)?;
        }
        Ok(())
    }

    /// Promise: a verb that fails for one member is that member's failure, once. The others go on.
    #[test]
    fn a_verb_that_fails_for_one_member() -> Result {
        for call in ["ibv_poll_cq", "ibv_req_notify_cq", "rdma_get_cm_event"] {
            leaving(&[], || {
                let peer = peer()?;
                let (mut wait, ep, member, client) = wait_for_one(&peer)?;
                let mut wcs = [Wc::default(); 4];
                let (other, _other) = joined(&mut wait, &ep, &peer, &ConnCfg::new())?;
                nothing(&mut wait)?;
                match call {
                    "rdma_get_cm_event" => drop(client),
                    _ => member_writes(&wait, member, 1)?,
                }
                let failing = fail(call);
                let (mut failed, mut completed) = (0, 0);
                while let Some(happened) = wait.next(&mut wcs, SHORT)? {
                    match happened {
                        Happened::Failed(of, error) => {
                            assert_eq!(of, member);
                            assert_says(&error, &[call]);
                            failed += 1;
                        }
                        Happened::Completions(of, count) => {
                            assert_eq!(of, member);
                            completed += count;
                            assert_eq!(failed, 0, "completions come first");
                        }
                        happened => panic!("{call}: {happened:?}"),
                    }
                }
                assert!(!failing.is_pending());
                assert_eq!(failed, 1, "{call}");
                let expected = usize::from(call == "ibv_req_notify_cq");
                assert_eq!(completed, expected, "{call}");
                goes_on(&mut wait, other)
            })?;
        }
        Ok(())
    }

    /// Promise: a completion channel that fails is a failure of each of its members. Later members
    /// get another.
    #[test]
    fn a_channel_that_fails() -> Result {
        let _test = device_test();
        let peer = peer()?;
        let (mut wait, ep, first, _one) = wait_for_one(&peer)?;
        let mut wcs = [Wc::default(); 4];
        let (second, _two) = joined(&mut wait, &ep, &peer, &ConnCfg::new())?;
        nothing(&mut wait)?;
        let failing = fail("ibv_get_cq_event");
        member_writes(&wait, first, 1)?;
        let (mut failed, mut completed) = (vec![], 0);
        while let Some(happened) = wait.next(&mut wcs, SHORT)? {
            match happened {
                Happened::Failed(of, error) => {
                    assert_says(&error, &["ibv_get_cq_event"]);
                    failed.push(of);
                }
                Happened::Completions(of, count) => {
                    assert_eq!(of, first);
                    completed += count;
                }
                happened => panic!("{happened:?}"),
            }
        }
        failed.sort();
        assert!(!failing.is_pending());
        assert_eq!((failed, completed), (vec![first, second], 1));
        let (third, _three) = joined(&mut wait, &ep, &peer, &ConnCfg::new())?;
        goes_on(&mut wait, third)
    }
}
