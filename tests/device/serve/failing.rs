//! Calls that fail, and the promises that stay then.

use std::sync::Arc;

use rpma::commit::Limits;
use rpma::serve::{Client, Directory, Part, Reason, Served, Server, ServerCfg};
use rpma::sim::{Errno, sleep, sweep};

use crate::common::prelude::*;
use crate::serve::support::{LEN, Site, identity, is_refusal, offer, refusal, usage};

const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;

fn goes_on(conn: &Conn) -> Result {
    conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 1)?;
    completion(conn)?.result()?;
    Ok(())
}

pub(crate) fn fail(call: &'static str) -> rpma::sim::Failing {
    with_fabric(|fabric, host| fabric.fail(call).on(host).next(Errno::MFILE))
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
        is_refusal(
            &refusal(&late)?,
            RefusalCode::Full,
            0,
            "cannot take another request now",
        );
        goes_on(&other)?;
    }
    site.client(identity(2, 1, 20))?;
    goes_on(&other)?;
    Ok(())
}

/// Promise: an admission with a time-out that cannot be read has no effect: the old writer is
/// connected, its identity is kept, and the new one may try again.
#[test]
fn a_time_out_that_cannot_be_read() -> Result {
    let _test = device_test();
    let mut conn_cfg = ConnCfg::new();
    let long = Duration::from_secs(60);
    conn_cfg.set_keep_alive(Some(long))?;
    let mut cfg = ServerCfg::new();
    cfg.set_conn(&conn_cfg);
    let mut site = Site::with(1, &cfg)?;
    let (writer, client) = site.client(identity(1, 3, 10))?;
    let next = site.ask(identity(1, 4, 11))?;
    let asked = site.asked()?;
    let before = queues_made();
    let failing = fail("rdma_init_qp_attr");
    let refused = site.admit(asked).expect_err("the call fails");
    assert!(!failing.is_pending());
    let text = refused.to_string();
    assert!(text.contains("rdma_init_qp_attr"), "{text}");
    is_refusal(&refused.refusal, RefusalCode::Full, 3, "rdma_init_qp_attr");
    assert_eq!(refusal(&next)?, refused.refusal);
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
    let conn = site.ask(identity(1, 6, 10))?;
    let before = queues_made();
    drop(site.asked()?);
    let again = site.ask(identity(1, 6, 10))?;
    let [qps, cqs, mrs] = before;
    let asked = site.asked()?;
    site.server.refuse(asked, "no")?;
    // The second client's own.
    assert_eq!(queues_made(), [qps + 1, cqs + 1, mrs]);
    drop((conn, again));
    Ok(())
}

/// Promise: coming back registers no memory, even on a server that serves the server's method to
/// others.
#[test]
fn coming_back_registers_nothing() -> Result {
    let _test = device_test();
    let mut cfg = ServerCfg::new();
    cfg.set_commits(Some(Limits::new(2, 2, 4096)?));
    let mut site = Site::with(1, &cfg)?;
    let _first = site.client(identity(1, 1, 10))?;
    let [_, _, before] = queues_made();
    let _again = site.client(identity(1, 1, 10))?;
    let [_, _, after] = queues_made();
    assert_eq!(after, before);
    Ok(())
}

/// Promise: if an old connection cannot be cut off, its key is refused, with notice to the client,
/// until the key's region is deregistered; the new identity is not kept, and other keys are served.
#[test]
fn a_connection_that_cannot_be_cut_off() -> Result {
    let left = [("qp", 1), ("cq", 1), ("pd", 1)];
    leaving(&left, || {
        let mut site = Site::new(2)?;
        let (old, first) = site.client(identity(1, 1, 10))?;
        let (other, _) = site.client(identity(2, 1, 20))?;
        let new = site.ask(identity(1, 2, 11))?;
        let asked = site.asked()?;
        let failing = fail("ibv_destroy_qp");
        let refused = site.admit(asked).expect_err("not cut off");
        assert!(!failing.is_pending());
        is_refusal(
            &refused.refusal,
            RefusalCode::NotCutOff,
            1,
            "could not be cut off",
        );
        assert!(refused.refusal.code().is_temporary());
        assert_eq!(refusal(&new)?, refused.refusal, "it is not accepted");
        assert_eq!(site.server.directory().get(1), Some(identity(1, 1, 10)));
        let gone = site.gone()?;
        assert_eq!(gone.client, first);
        let error = gone.not_cut_off.ok_or("an error")?.to_string();
        assert!(error.starts_with("ibv_destroy_qp failed"), "{error}");
        let data = offer(identity(1, 1, 10)).encode(Offer::CONNECT)?;
        site.refused(
            &data,
            RefusalCode::NotCutOff,
            1,
            "its writes may still land",
        )?;
        // No other key gets the memory, while the old client may write to it.
        let thief = site.ask(identity(3, 1, 30))?;
        let asked = site.asked()?;
        let same = site.region(LEN..2 * LEN, usage())?;
        let text = site
            .admit_with(asked, &same, b"")
            .expect_err("overlaps")
            .to_string();
        assert!(text.contains("overlaps that of the key 0x1"), "{text}");
        drop(refusal(&thief)?);
        goes_on(&other)?;

        // The remedy.
        site.parts.remove(&1);
        let memory = site.server.release(1)?;
        assert_eq!(memory.len(), LEN);
        site.parts.insert(1, site.region(LEN..2 * LEN, usage())?);
        site.client(identity(1, 2, 11))?;
        goes_on(&other)?;
        drop((old, same));
        Ok(())
    })
}

/// Promise: a region that cannot be deregistered is no remedy: the key stays refused.
#[test]
fn a_region_that_cannot_be_deregistered() -> Result {
    leaving(&[("qp", 1), ("cq", 1), ("pd", 1), ("mr", 1)], || {
        let mut site = Site::new(1)?;
        let (_old, client) = site.client(identity(1, 1, 10))?;
        let _failing = fail("ibv_destroy_qp");
        let gone = site.server.cut_off(client).ok_or("connected")?;
        assert!(gone.not_cut_off.is_some());
        site.parts.remove(&1);
        let _failing = fail("ibv_dereg_mr");
        let error = site.server.release(1).expect_err("it fails").to_string();
        assert!(error.starts_with("ibv_dereg_mr failed"), "{error}");
        let data = offer(identity(1, 2, 11)).encode(Offer::CONNECT)?;
        site.refused(&data, RefusalCode::NotCutOff, 1, "could not be cut off")?;
        let error = site.server.release(1).expect_err("it is gone").to_string();
        assert!(error.contains("end the program"), "{error}");
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
        let new = site.ask(identity(1, 2, 11))?;
        let asked = site.asked()?;
        let failing = with_fabric(|fabric, host| {
            let failing = fabric.fail("rdma_accept").on(host);
            failing.how(how).next(Errno::IO)
        });
        let refused = site.admit(asked).expect_err("not accepted");
        assert!(!failing.is_pending());
        assert!(
            refused.to_string().starts_with("rdma_accept failed"),
            "{refused}"
        );
        assert!(site.server.conn(first).is_none(), "it is cut off");
        assert_eq!(event(&old)?, ConnEvent::Closed);
        assert_eq!(site.server.directory().get(1), Some(identity(1, 2, 11)));
        drop(new);
        assert!(matches!(site.gone()?.reason, Reason::Replaced));
        let data = offer(identity(1, 1, 10)).encode(Offer::CONNECT)?;
        site.refused(&data, RefusalCode::OldEpoch, 2, "is old")?;
        site.client(identity(1, 2, 11))?;
    }
    Ok(())
}

/// Promise: a client that may have been accepted, with a queue pair that could not be destroyed, is
/// one that is not cut off: its key is refused until the region is deregistered.
#[test]
fn an_admission_that_fails_and_leaves_its_queue_pair() -> Result {
    for call in ["rdma_accept", "ibv_query_qp"] {
        leaving(&[("qp", 1), ("cq", 1), ("pd", 1)], || {
            let mut site = Site::new(1)?;
            let first = site.ask(identity(1, 1, 10))?;
            let asked = site.asked()?;
            let failing = with_fabric(|fabric, host| {
                let failing = fabric.fail(call).on(host).how(How::Done);
                failing.next(Errno::IO)
            });
            let left = fail("ibv_destroy_qp");
            let refused = site.admit(asked).expect_err("not accepted");
            assert!(!failing.is_pending() && !left.is_pending());
            assert!(refused.to_string().starts_with(call), "{refused}");
            let data = offer(identity(1, 2, 11)).encode(Offer::CONNECT)?;
            let words = "its writes may still land";
            site.refused(&data, RefusalCode::NotCutOff, 1, words)?;
            // The remedy.
            site.parts.remove(&1);
            site.server.release(1)?;
            site.parts.insert(1, site.region(LEN..2 * LEN, usage())?);
            site.client(identity(1, 2, 11))?;
            drop(first);
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
        let conn = site.ask(identity(1, epoch, 10))?;
        let asked = site.asked()?;
        let failing = fail(call);
        let refused = site.admit(asked).expect_err(call);
        assert!(!failing.is_pending());
        is_refusal(&refused.refusal, RefusalCode::Full, epoch, call);
        assert_eq!(refusal(&conn)?, refused.refusal);
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
    let far = Offer::decode(old.get_private_data())?.regions()[0];
    let source = region(&site.far, LEN, MrUsage::WRITE_SRC)?;
    source.write_at(0, &pattern(LEN, 3))?;
    let new = site.ask(identity(1, 2, 11))?;
    let asked = site.asked()?;
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
    then: impl FnOnce(&Fabric, &mut Server, Client, Conn) -> Result,
) -> Result {
    let fabric = Rig::new().seed(1).fabric();
    let (near, far) = (fabric.host("server"), fabric.host("client"));
    let (pmem, addr) = (near.pmem("memory", 2 * LEN), near.addr().to_string());
    let _entered = near.enter();
    let all = PmemMap::open(pmem.path(), 2 * LEN)?;
    let directory = Directory::create(all.part(..LEN)?, 2)?;
    let device = Device::from_addr(&addr, Side::Local)?;
    let peer = &Peer::new(&device)?;
    let ep = Ep::listen(peer, &addr, 0)?;
    let mut cfg = ServerCfg::new();
    cfg.set_establish_limit(ESTABLISH);
    let mut server = Server::new(ep, directory, &cfg)?;
    let region = &Arc::new(Mr::reg(peer, all.part(LEN..)?, usage())?);
    let asking = {
        let _entered = far.enter();
        let device = Device::from_addr(&addr, Side::Remote)?;
        let peer = Peer::new(&device)?;
        let req = ConnReq::new(&peer, &addr, server.get_port(), &ConnCfg::new());
        let data = offer(identity(1, 1, 10)).encode(Offer::CONNECT)?;
        req?.connect(&data)?
    };
    let Served::Asks(asked) = next(&mut server)? else {
        panic!("a client asks");
    };
    meanwhile(&far);
    let data = &[];
    let client = server.admit(asked, &Part { peer, region, data })?;
    then(&fabric, &mut server, client, asking)
}

pub(crate) fn next(server: &mut Server) -> Result<Served> {
    let served = server.next(&mut [Wc::default()], Duration::from_secs(60));
    Ok(served?.ok_or("in time")?)
}

/// Promise: a client with a connection that is not established in time is cut off, and its key is
/// free for the next one.
#[test]
fn a_client_that_is_never_established() -> Result {
    admit_slowly(Host::freeze, |fabric, server, client, _asking| {
        let begin = fabric.now();
        match next(server)? {
            Served::Gone(gone) => {
                assert_eq!(gone.client, client);
                assert!(
                    matches!(gone.reason, Reason::NotEstablished),
                    "{:?}",
                    gone.reason
                );
            }
            other => panic!("{other:?}"),
        }
        let took = fabric.now() - begin;
        assert!(took >= ESTABLISH && took < 2 * ESTABLISH, "{took:?}");
        assert!(server.client(1).is_none() && server.deadline().is_none());
        Ok(())
    })
}

/// Promise: a server that stood still, for longer than the limit, keeps a client whose connection
/// was established meanwhile.
#[test]
fn a_server_that_stood_still_keeps_its_client() -> Result {
    let nothing = |_: &Host| {};
    admit_slowly(nothing, |_, server, client, asking| {
        let conn = asking.wait_established(ESTABLISH)?;
        sleep(4 * ESTABLISH);
        let arrived = next(server)?;
        assert!(
            matches!(arrived, Served::Arrived(it) if it == client),
            "{arrived:?}"
        );
        assert!(server.conn(client).is_some() && conn.ended().is_none());
        assert_eq!(server.deadline(), None);
        Ok(())
    })
}

/// A server, and three clients of one key, one after the other. Each error ends it.
fn admissions(fabric: &Fabric) -> rpma::Result<()> {
    let limit = Duration::from_secs(1);
    let (near, far) = (fabric.host("server"), fabric.host("client"));
    let (pmem, addr) = (near.pmem("memory", 2 * LEN), near.addr().to_string());
    let _entered = near.enter();
    let all = PmemMap::open(pmem.path(), 2 * LEN)?;
    let directory = Directory::create(all.part(..LEN)?, 2)?;
    let device = Device::from_addr(&addr, Side::Local)?;
    let ep = Ep::listen(&Peer::new(&device)?, &addr, 0)?;
    let mut server = Server::new(ep, directory, &ServerCfg::new())?;
    let peer = Peer::new(&device)?;
    let region = Arc::new(Mr::reg(&peer, all.part(LEN..)?, usage())?);
    let part = Part {
        peer: &peer,
        region: &region,
        data: &[],
    };
    let mut clients = Vec::new();
    for asks in [identity(1, 1, 10), identity(1, 2, 11), identity(1, 2, 11)] {
        let conn = {
            let _entered = far.enter();
            let peer = Peer::new(&Device::from_addr(&addr, Side::Remote)?)?;
            let req = ConnReq::new(&peer, &addr, server.get_port(), &ConnCfg::new())?;
            req.connect(&offer(asks).encode(Offer::CONNECT)?)?
        };
        let mut wcs = [Wc::default()];
        while let Some(served) = server.next(&mut wcs, limit)? {
            match served {
                Served::Asks(asked) => {
                    // The next client comes also after an error.
                    let _ = server.admit(asked, &part);
                    break;
                }
                // Its device may be gone, and would fail each time.
                Served::Failed(error) => return Err(error),
                _ => {}
            }
        }
        if let Ok(ConnEvent::Established) = conn.next_event_timeout(limit) {
            // The server may have been killed, or its host cut off from the power, since.
            let found = recovered(&all).or_else(|_| after_a_restart(&near, &pmem));
            let found = found.expect("a directory");
            assert_eq!(found, [asks], "accepted, and not kept");
        }
        let queue_pairs = near.objects().get("qp").copied();
        assert!(queue_pairs.unwrap_or(0) <= 1, "two queue pairs of one key");
        // It does not end before the next client comes.
        clients.push(conn);
        while let Some(served) = server.next(&mut wcs, Duration::ZERO)? {
            if let Served::Failed(error) = served {
                return Err(error);
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
    let memory = all.part(..LEN)?;
    let directory = Directory::open(memory)?;
    Ok(directory.identities().collect())
}

/// Promise: if any call fails, once, no thread panics or hangs, and no client is accepted without a
/// kept identity; and of one key at most one queue pair exists.
#[test]
fn each_call_fails() {
    let runs = sweep(&profile(), |fabric| drop(admissions(fabric)));
    assert!(runs > 100, "{runs}");
}
