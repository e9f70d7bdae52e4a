//! Calls that fail, and the promises that stay then.

use rpma::RefusalCode::{Full, NotCutOff, OldEpoch};
use rpma::commit::Limits;
use rpma::serve::{Client, Directory, Reason, Served, ServerCfg};
use rpma::sim::{Errno, sleep, sweep};

use crate::common::prelude::*;
use crate::serve::support::{
    LEN, Site, directory_of, goes_on, identity, is_refusal, offer, refusal, usage,
};

/// The objects that stay with a queue pair that cannot be destroyed.
pub(crate) const LEFT: [(&str, u64); 3] = [("qp", 1), ("cq", 1), ("pd", 1)];

pub(crate) fn fail(call: &'static str) -> rpma::sim::Failing {
    with_fabric(|fabric, host| fabric.fail(call).on(host).next(Errno::MFILE))
}

/// The next such call fails, or only reports a failure.
pub(crate) fn fail_so(call: &'static str, how: How) -> rpma::sim::Failing {
    with_fabric(|fabric, host| fabric.fail(call).on(host).how(how).next(Errno::IO))
}

/// How often each call was made that makes queues.
fn queues_made() -> [u64; 3] {
    let calls = with_fabric(|fabric, _| fabric.calls());
    ["rdma_create_qp", "ibv_create_cq", "ibv_reg_mr"]
        .map(|call| calls.get(call).copied().unwrap_or(0))
}

/// Promise: a request is refused with words if there is no descriptor for it, at no cost for the
/// other clients and the server.
#[test]
fn no_descriptor_for_a_request() -> Result {
    let _test = device_test();
    let mut site = Site::new(2)?;
    let (other, _) = site.client(identity(1, 1, 10))?;
    for call in ["rdma_create_event_channel", "rdma_migrate_id"] {
        let late = site.ask(identity(2, 1, 20))?;
        let failing = fail(call);
        match site.next()? {
            Served::Failed(error) => {
                assert_eq!(error.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
            }
            other => panic!("{call}: {other:?}"),
        }
        assert!(!failing.is_pending());
        let words = "cannot take another request now";
        is_refusal(&refusal(&late)?, Full, 0, words);
        goes_on(&other)?;
    }
    site.client(identity(2, 1, 20))?;
    goes_on(&other)
}

/// Promise: an admission with a time-out that cannot be read has no effect: the old writer is
/// connected, its identity is kept, and the new one may try again.
#[test]
fn a_time_out_that_cannot_be_read() -> Result {
    let _test = device_test();
    let mut conn_cfg = ConnCfg::new();
    conn_cfg.set_keep_alive(Some(Duration::from_secs(60)))?;
    let mut site = Site::with(1, ServerCfg::new().set_conn(&conn_cfg))?;
    let (writer, client) = site.client(identity(1, 3, 10))?;
    let next = site.question(identity(1, 4, 11))?;
    let before = queues_made();
    let failing = fail("rdma_init_qp_attr");
    let refused = site.not_admitted(next, Full, 3, "rdma_init_qp_attr")?;
    assert!(!failing.is_pending());
    assert_says(&refused, &["rdma_init_qp_attr"]);
    assert_eq!(queues_made(), before);
    assert_eq!(site.server.client(1), Some(client));
    assert_eq!(site.server.directory().get(1), Some(identity(1, 3, 10)));
    goes_on(&writer)?;
    site.nothing()?;
    // The next try succeeds.
    site.client(identity(1, 4, 11))?;
    Ok(())
}

/// Promise: a client that is refused has no queues at any time.
#[test]
fn a_refused_request_makes_no_queues() -> Result {
    let _test = device_test();
    let mut site = Site::new(1)?;
    let (_writer, _) = site.client(identity(1, 5, 10))?;
    for asks in [identity(1, 4, 10), identity(1, 5, 11), identity(0, 5, 10)] {
        let conn = site.ask(asks)?;
        let before = queues_made();
        assert!(matches!(site.next()?, Served::Refused(_)));
        assert_eq!(queues_made(), before);
        drop(refusal(&conn)?);
    }
    let _conn = site.ask(identity(1, 6, 10))?;
    let [qps, cqs, mrs] = queues_made();
    drop(site.asked()?);
    let (_again, asked) = site.question(identity(1, 6, 10))?;
    site.server.refuse(asked, "no")?;
    // The second client's own.
    assert_eq!(queues_made(), [qps + 1, cqs + 1, mrs]);
    Ok(())
}

/// Promise: coming back registers no memory, even on a server that serves the server's method to
/// others.
#[test]
fn coming_back_registers_nothing() -> Result {
    let _test = device_test();
    let limits = Limits::new(2, 2, 4096)?;
    let mut site = Site::with(1, ServerCfg::new().set_commits(Some(limits)))?;
    let _first = site.client(identity(1, 1, 10))?;
    let [_, _, before] = queues_made();
    let _again = site.client(identity(1, 1, 10))?;
    let [_, _, after] = queues_made();
    assert_eq!(after, before);
    Ok(())
}

impl Site {
    /// The remedy for the key 1: its region is deregistered, and another one made.
    fn remedy(&mut self) -> Result {
        self.parts.remove(&1);
        assert_eq!(self.server.release(1)?.len(), LEN);
        self.parts.insert(1, self.region(LEN..2 * LEN, usage())?);
        Ok(())
    }
}

/// Promise: if an old connection cannot be cut off, its key is refused, with notice to the client,
/// until the key's region is deregistered; the new identity is not kept, and other keys are served.
#[test]
fn a_connection_that_cannot_be_cut_off() -> Result {
    leaving(&LEFT, || {
        let mut site = Site::new(2)?;
        let (_old, first) = site.client(identity(1, 1, 10))?;
        let (other, _) = site.client(identity(2, 1, 20))?;
        let new = site.question(identity(1, 2, 11))?;
        let failing = fail("ibv_destroy_qp");
        let refused = site.not_admitted(new, NotCutOff, 1, "could not be cut off")?;
        assert!(!failing.is_pending());
        assert!(refused.refusal.code().is_temporary());
        assert_eq!(site.server.directory().get(1), Some(identity(1, 1, 10)));
        let gone = site.gone()?;
        assert_eq!(gone.client, first);
        let error = gone.not_cut_off.ok_or("an error")?.to_string();
        assert!(error.starts_with("ibv_destroy_qp failed"), "{error}");
        let words = "its writes may still land";
        site.refused(identity(1, 1, 10), NotCutOff, 1, words)?;
        // No other key gets the memory, while the old client may write to it.
        let (thief, asked) = site.question(identity(3, 1, 30))?;
        let same = site.region(LEN..2 * LEN, usage())?;
        let overlaps = site.admit_with(asked, &same, b"").expect_err("overlaps");
        assert_says(&overlaps, &["overlaps that of the key 0x1"]);
        refusal(&thief)?;
        goes_on(&other)?;

        site.remedy()?;
        site.client(identity(1, 2, 11))?;
        goes_on(&other)
    })
}

/// Promise: a region that cannot be deregistered is no remedy: the key stays refused.
#[test]
fn a_region_that_cannot_be_deregistered() -> Result {
    leaving(&[LEFT.as_slice(), &[("mr", 1)]].concat(), || {
        let mut site = Site::new(1)?;
        let (_old, client) = site.client(identity(1, 1, 10))?;
        let _failing = fail("ibv_destroy_qp");
        let gone = site.server.cut_off(client).ok_or("connected")?;
        assert!(gone.not_cut_off.is_some());
        site.parts.remove(&1);
        let _failing = fail("ibv_dereg_mr");
        let error = site.server.release(1).expect_err("it fails").to_string();
        assert!(error.starts_with("ibv_dereg_mr failed"), "{error}");
        let words = "could not be cut off";
        site.refused(identity(1, 2, 11), NotCutOff, 1, words)?;
        assert_says(
            &site.server.release(1).expect_err("gone"),
            &["end the program"],
        );
        Ok(())
    })
}

/// Promise: after the call that accepts has failed, the identity is kept already, and the old
/// connection is gone. The client may come back, whether or not it saw that it was accepted.
#[test]
fn the_order_of_an_admission() -> Result {
    let _test = device_test();
    for how in [How::Refused, How::Done] {
        let mut site = Site::new(1)?;
        let (old, first) = site.client(identity(1, 1, 10))?;
        let (new, asked) = site.question(identity(1, 2, 11))?;
        let failing = fail_so("rdma_accept", how);
        let refused = site.admit(asked).expect_err("not accepted").to_string();
        assert!(!failing.is_pending());
        assert!(refused.starts_with("rdma_accept failed"), "{refused}");
        assert!(site.server.conn(first).is_none(), "it is cut off");
        assert_eq!(event(&old)?, ConnEvent::Closed);
        assert_eq!(site.server.directory().get(1), Some(identity(1, 2, 11)));
        drop(new);
        assert!(matches!(site.gone()?.reason, Reason::Replaced));
        site.refused(identity(1, 1, 10), OldEpoch, 2, "is old")?;
        site.client(identity(1, 2, 11))?;
    }
    Ok(())
}

/// Promise: a client that may have been accepted, with a queue pair that could not be destroyed, is
/// one that is not cut off: its key is refused until the region is deregistered.
#[test]
fn an_admission_that_fails_and_leaves_its_queue_pair() -> Result {
    for call in ["rdma_accept", "ibv_query_qp"] {
        leaving(&LEFT, || {
            let mut site = Site::new(1)?;
            let (_first, asked) = site.question(identity(1, 1, 10))?;
            let failing = fail_so(call, How::Done);
            let left = fail("ibv_destroy_qp");
            let refused = site.admit(asked).expect_err("not accepted").to_string();
            assert!(!failing.is_pending() && !left.is_pending());
            assert!(refused.starts_with(call), "{refused}");
            let words = "its writes may still land";
            site.refused(identity(1, 2, 11), NotCutOff, 1, words)?;
            site.remedy()?;
            site.client(identity(1, 2, 11))?;
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: if making queues fails, the client is refused as full, with the verb's name, and may
/// come back.
#[test]
fn queues_that_cannot_be_made() -> Result {
    let _test = device_test();
    let mut site = Site::new(2)?;
    let (other, _) = site.client(identity(2, 1, 20))?;
    for (epoch, call) in (1..).zip(["ibv_create_cq", "ibv_req_notify_cq", "rdma_create_qp"]) {
        let conn = site.question(identity(1, epoch, 10))?;
        let failing = fail(call);
        site.not_admitted(conn, Full, epoch, call)?;
        assert!(!failing.is_pending());
        let (_back, client) = site.client(identity(1, epoch, 10))?;
        site.server.cut_off(client).ok_or("connected")?;
        goes_on(&other)?;
    }
    Ok(())
}

/// Promise: of two connections of one writer only one writes: a write that is in flight when the
/// writer comes back does not land after that, and the old client's next one fails.
#[test]
fn an_old_connection_writes_nothing_any_more() -> Result {
    let _test = device_test();
    let mut site = Site::new(1)?;
    let (old, _) = site.client(identity(1, 1, 10))?;
    let far = offered(&old)?;
    let source = region(&site.far, LEN, MrUsage::WRITE_SRC)?;
    source.write_at(0, &pattern(LEN, 3))?;
    let (new, asked) = site.question(identity(1, 2, 11))?;
    with_fabric(|fabric, host| fabric.between(host, host).hold());
    let (to, from) = (far.slice(..64)?, source.slice(..64)?);
    old.write(to, from, ALWAYS, 1)?;
    site.admit(asked)?;
    let before = contents(&site.parts[&1].1)?;
    with_fabric(|fabric, host| fabric.between(host, host).release());
    assert_eq!(event(&new)?, ConnEvent::Established);
    sleep(Duration::from_millis(10));
    assert!(contents(&site.parts[&1].1)? == before, "no byte changes");
    drop(old);
    Ok(())
}

/// The limit of the establishment here.
const ESTABLISH: Duration = Duration::from_secs(3);

/// A server of one key, in a seeded run. A client on a host of its own asks for the key, `meanwhile`
/// runs, and the server admits the client. The test goes on with `then`, on the server's host.
fn admit_slowly(
    meanwhile: impl FnOnce(&Host),
    then: impl FnOnce(&Fabric, &mut Site, Client, Conn) -> Result,
) -> Result {
    let (fabric, [near, far]) = Rig::new().seed(1).hosts(["server", "client"]);
    let (pmem, _entered) = (near.pmem("memory", 2 * LEN), near.enter());
    let mut site = Site::on(&pmem, 1, ServerCfg::new().set_establish_limit(ESTABLISH))?;
    let asking = site.ask_from([&near, &far], &offer(identity(1, 1, 10)))?;
    let asked = site.asked()?;
    meanwhile(&far);
    let client = site.admit(asked)?;
    then(&fabric, &mut site, client, asking)
}

/// Promise: a client with a connection that is not established in time is cut off, and its key is
/// free for the next one.
#[test]
fn a_client_that_is_never_established() -> Result {
    admit_slowly(Host::freeze, |fabric, site, client, _asking| {
        let begin = fabric.now();
        let gone = site.gone()?;
        assert_eq!(gone.client, client);
        assert!(matches!(gone.reason, Reason::NotEstablished), "{gone}");
        let took = fabric.now() - begin;
        assert!(took >= ESTABLISH && took < 2 * ESTABLISH, "{took:?}");
        assert!(site.server.client(1).is_none() && site.server.deadline().is_none());
        Ok(())
    })
}

/// Promise: a server that stood still, for longer than the limit, keeps a client whose connection
/// was established meanwhile.
#[test]
fn a_server_that_stood_still_keeps_its_client() -> Result {
    let nothing = |_: &Host| {};
    admit_slowly(nothing, |_, site, client, asking| {
        let conn = asking.wait_established(ESTABLISH)?;
        sleep(4 * ESTABLISH);
        site.arrives(client)?;
        assert!(site.server.conn(client).is_some() && conn.ended().is_none());
        assert_eq!(site.server.deadline(), None);
        Ok(())
    })
}

/// A server, and three clients of one key, one after the other. Each error ends it.
fn admissions(fabric: &Fabric) -> Result {
    let limit = Duration::from_secs(1);
    let [near, far] = ["server", "client"].map(|name| fabric.host(name));
    let (pmem, _entered) = (near.pmem("memory", 2 * LEN), near.enter());
    let mut site = Site::on(&pmem, 1, &ServerCfg::new())?;
    let mut clients = Vec::new();
    for asks in [identity(1, 1, 10), identity(1, 2, 11), identity(1, 2, 11)] {
        let conn = site.ask_from([&near, &far], &offer(asks))?;
        let mut wcs = [Wc::default()];
        while let Some(served) = site.server.next(&mut wcs, limit)? {
            match served {
                Served::Asks(asked) => {
                    // The next client comes also after an error.
                    let _ = site.admit(asked);
                    break;
                }
                // Its device may be gone, and would fail each time.
                Served::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
        if let Ok(ConnEvent::Established) = conn.next_event_timeout(limit) {
            // The server may have been killed, or its host cut off from the power, since.
            let found = recovered(&site.all).or_else(|_| after_a_restart(&near, &pmem));
            let found = found.expect("a directory");
            assert_eq!(found, [asks], "accepted, and not kept");
        }
        let queue_pairs = near.objects().get("qp").copied();
        assert!(queue_pairs.unwrap_or(0) <= 1, "two queue pairs of one key");
        // It does not end before the next client comes.
        clients.push(conn);
        while let Some(served) = site.server.next(&mut wcs, Duration::ZERO)? {
            if let Served::Failed(error) = served {
                return Err(error.into());
            }
        }
    }
    Ok(())
}

/// As [`recovered`], of a host whose programs are dead.
fn after_a_restart(host: &Host, pmem: &Pmem) -> Result<Vec<Identity>> {
    if !host.has_power() {
        host.restart();
    }
    let _entered = host.enter();
    recovered(&PmemMap::open(pmem.path(), 2 * LEN)?)
}

/// The identities in the directory, as a restart finds them.
fn recovered(all: &PmemMap) -> Result<Vec<Identity>> {
    Ok(Directory::open(directory_of(all)?)?.identities().collect())
}

/// Promise: if any call fails, once, no thread panics or hangs, and no client is accepted without a
/// kept identity; and of one key at most one queue pair exists.
#[test]
fn each_call_fails() {
    let runs = sweep(&profile(), |fabric| drop(admissions(fabric)));
    assert!(runs > 100, "{runs}");
}
