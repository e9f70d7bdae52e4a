//! Who is admitted: keys, epochs and instances, and the order of an admission.

use std::sync::Arc;

use rpma::RefusalCode::{OldEpoch, Taken};
use rpma::serve::{Client, Directory, Reason, Served, ServerCfg};

use crate::common::prelude::*;
use crate::serve::support::{LEN, Site, directory_of, identity, is_readable, refusal};

/// Promise: a higher epoch takes over; a lower one is old; the same epoch with another instance is
/// taken; and each of these refusals has a code, the kept epoch, and words.
#[test]
fn epochs_and_instances_decide() -> Result {
    let _test = device_test();
    let mut site = Site::new(2)?;
    let (first, _) = site.client(identity(1, 5, 50))?;
    let words = "the epoch 5 belongs to another writer";
    site.refused(identity(1, 5, 51), Taken, 5, words)?;
    let words = "the epoch 4 is old: a writer with the epoch 5";
    site.refused(identity(1, 4, 50), OldEpoch, 5, words)?;
    site.refused(identity(1, 4, 51), OldEpoch, 5, "is old")?;
    site.refused(identity(1, 0, 50), OldEpoch, 5, "is old")?;
    // They did not disturb the writer, and another key has epochs of its own.
    let _second = site.client(identity(2, 1, 51))?;
    site.nothing()?;

    let (_third, client) = site.client(identity(1, 6, 51))?;
    assert_eq!(event(&first)?, ConnEvent::Closed);
    assert_eq!(site.server.identity(client), Some(identity(1, 6, 51)));
    assert_eq!(site.server.client(1), Some(client));
    let words = "a writer with the epoch 6";
    site.refused(identity(1, 5, 50), OldEpoch, 6, words)?;
    let words = "belongs to another writer";
    site.refused(identity(1, 6, 50), Taken, 6, words)?;
    site.nothing()
}

/// Promise: the writer that comes back, with its epoch and instance, is admitted while its old
/// connection looks alive, and that one is cut off.
#[test]
fn a_writer_comes_back() -> Result {
    let _test = device_test();
    let mut site = Site::new(1)?;
    let writer = identity(1, 1, 10);
    let (old, first) = site.client(writer)?;
    let (again, asked) = site.question(writer)?;
    assert_eq!(asked.kept(), Some(writer));
    let second = site.admit(asked)?;
    // From here on the old connection is gone.
    assert!(site.server.conn(first).is_none());
    assert_eq!(site.server.clients().collect::<Vec<_>>(), [second]);
    let gone = site.gone()?;
    assert_eq!((gone.client, gone.identity), (first, writer));
    assert!(matches!(gone.reason, Reason::Replaced), "{gone}");
    assert!(gone.not_cut_off.is_none());
    assert_eq!(event(&again)?, ConnEvent::Established);
    assert_eq!(event(&old)?, ConnEvent::Closed);
    site.arrives(second)?;
    let answer = again.offer()?;
    assert_eq!(answer.data(), b"data");
    assert_eq!(answer.regions()[0].get_size(), LEN as u64);
    assert!(
        site.server.cut_off(first).is_none(),
        "its name is not used again"
    );
    assert!(site.server.cut_off(second).is_some());
    assert_eq!(event(&again)?, ConnEvent::Closed);
    assert!(site.server.client(1).is_none());
    Ok(())
}

/// Promise: the server keeps epoch and instance over its own restart.
#[test]
fn a_restart_keeps_epochs_and_instances() -> Result {
    let _test = device_test();
    let mut site = Site::new(1)?;
    drop(site.client(identity(1, 7, 70))?);
    let Site { all, server, .. } = site;
    drop(server);
    let directory = Directory::open(directory_of(&all)?)?;
    let mut site = Site::over(1, &ServerCfg::new(), all, directory)?;
    site.refused(identity(1, 7, 71), Taken, 7, "belongs to another")?;
    site.refused(identity(1, 6, 70), OldEpoch, 7, "is old")?;
    let (_back, client) = site.client(identity(1, 7, 70))?;
    assert_eq!(site.server.identity(client), Some(identity(1, 7, 70)));
    Ok(())
}

/// Promise: `admit` judges again: a question that a newer writer has overtaken is refused, and has
/// no effect.
#[test]
fn an_admission_is_judged_again() -> Result {
    let _test = device_test();
    let mut site = Site::new(1)?;
    let slow = site.question(identity(1, 1, 10))?;
    let (_conn, client) = site.client(identity(1, 2, 20))?;
    let refused = site.not_admitted(slow, OldEpoch, 2, "the epoch 1 is old")?;
    assert!(refused.error.is_none());
    assert_eq!(site.server.client(1), Some(client));
    site.nothing()?;

    // Two questions of one epoch: the second one is taken.
    let (_one, first) = site.question(identity(1, 3, 30))?;
    let second = site.question(identity(1, 3, 31))?;
    site.admit(first)?;
    site.not_admitted(second, Taken, 3, "belongs to another writer")?;
    Ok(())
}

/// Promise: the registration of a key stays when its client is gone, so that coming back registers
/// no memory; and it can be taken back.
#[test]
fn a_registration_outlives_its_connections() -> Result {
    let _test = device_test();
    let mut site = Site::new(1)?;
    let (conn, _) = site.client(identity(1, 1, 10))?;
    let before = offered(&conn)?;
    let (peer, _) = site.parts.remove(&1).ok_or("a part")?;
    drop(conn);
    let gone = site.gone()?.reason;
    assert!(matches!(gone, Reason::Ended(ConnEvent::Closed)), "{gone}");
    let region = site.server.region(1).ok_or("kept")?;
    let part = (peer, Arc::clone(region));
    let (conn, asked) = site.question(identity(1, 1, 10))?;
    site.admit_with(asked, &part, &[])?;
    assert_eq!(event(&conn)?, ConnEvent::Established);
    assert_eq!(offered(&conn)?, before, "the same registration");

    let release = |site: &mut Site| site.server.release(1);
    let words = "cut it off first";
    assert_says(&release(&mut site).expect_err("connected"), &[words]);
    let client = site.server.client(1).ok_or("connected")?;
    site.server.cut_off(client).ok_or("connected")?;
    let words = "drop its other Arcs";
    assert_says(&release(&mut site).expect_err("the test has it"), &[words]);
    drop(part);
    assert_eq!(release(&mut site)?.len(), LEN);
    assert_says(
        &release(&mut site).expect_err("gone"),
        &["no part of the key"],
    );
    assert!(site.server.region(1).is_none());
    Ok(())
}

/// The next event is a completion of this client's connection.
fn completes(site: &mut Site, client: Client) -> Result<Wc> {
    let mut wcs = [Wc::default(); 4];
    match site.server.next(&mut wcs, LIMIT)? {
        Some(Served::Completions(of, 1)) if of == client => Ok(wcs[0]),
        other => panic!("{other:?}"),
    }
}

/// Promise: a client writes to its own part, and completions of the program's own operations come
/// with the client's name.
#[test]
fn clients_write_and_the_program_posts() -> Result {
    let _test = device_test();
    let mut site = Site::new(2)?;
    let (one, first) = site.client(identity(1, 1, 10))?;
    let (other, second) = site.client(identity(2, 1, 20))?;
    for (conn, key) in [(&one, 1), (&other, 2)] {
        let source = region(&site.far, LEN, MrUsage::WRITE_SRC)?;
        source.write_at(0, &pattern(LEN, key))?;
        conn.write(offered(conn)?.slice(..)?, source.slice(..)?, ALWAYS, 1)?;
        completion(conn)?.result()?;
    }
    for key in [1, 2] {
        assert!(contents(&site.parts[&key].1)? == pattern(LEN, key));
    }
    for (client, conn, far) in [(first, &one, 7), (second, &other, 8)] {
        conn.recv(MrSlice::EMPTY, 1)?;
        send_empty(site.server.conn(client).ok_or("connected")?, far)?;
        assert_eq!(completes(&mut site, client)?.wr_id(), far);
        completion(conn)?.result()?;
    }
    Ok(())
}

/// Promise: completions that were not returned come with the end of their connection.
#[test]
fn a_gone_client_leaves_its_completions() -> Result {
    let _test = device_test();
    let mut site = Site::new(1)?;
    let (conn, client) = site.client(identity(1, 1, 10))?;
    conn.recv(MrSlice::EMPTY, 1)?;
    send_empty(site.server.conn(client).ok_or("connected")?, 7)?;
    completion(&conn)?.result()?;
    let gone = site.server.cut_off(client).ok_or("connected")?;
    assert!(matches!(gone.reason, Reason::CutOff));
    let contexts: Vec<_> = gone.completions.iter().map(Wc::wr_id).collect();
    assert_eq!(contexts, [7]);
    Ok(())
}

/// Promise: a failed operation of the server ends its connection, although no event reports it; the
/// failure and the completion come with the end.
#[test]
fn a_failed_operation_ends_its_client() -> Result {
    let _test = device_test();
    let conn_cfg = ConnCfg::new().set_rnr_retry_count(0)?.clone();
    let mut site = Site::with(2, ServerCfg::new().set_conn(&conn_cfg))?;
    let (_conn, client) = site.client(identity(1, 1, 10))?;
    let (_other, _) = site.client(identity(2, 1, 20))?;
    is_readable(&site);
    site.nothing()?;
    // The client has no receive.
    send_empty(site.server.conn(client).ok_or("connected")?, 7)?;
    assert_eq!(completes(&mut site, client)?.wr_id(), 7);
    assert!(is_readable(&site), "an event loop has to call again");
    let gone = site.gone()?;
    assert_eq!(gone.client, client);
    assert!(matches!(gone.reason, Reason::Failed(_)), "{gone}");
    assert!(gone.failure.is_some());
    site.nothing()?;
    site.client(identity(1, 1, 10))?;
    Ok(())
}

/// Promise: the counters of a server have each admission, refusal and end, and the operations of
/// its connections, also of clients that are gone.
#[test]
fn a_server_counts() -> Result {
    let _test = device_test();
    let mut site = Site::new(2)?;
    let (first, client) = site.client(identity(1, 1, 10))?;
    let (other, _) = site.client(identity(2, 1, 20))?;
    first.recv(MrSlice::EMPTY, 1)?;
    send_empty(site.server.conn(client).ok_or("connected")?, 7)?;
    completion(&first)?.result()?;
    site.next()?;
    site.refused(identity(1, 1, 11), Taken, 1, "another writer")?;
    let (late, asked) = site.question(identity(1, 2, 11))?;
    site.server.refuse(asked, "no")?;
    refusal(&late)?;
    let before = site.server.counters();
    let _again = site.client(identity(1, 2, 11))?;
    drop(other);
    site.gone()?;
    let counters = site.server.counters();
    assert_eq!((before.admitted, before.refused, before.gone), (2, 2, 0));
    assert_eq!((counters.admitted, counters.refused), (3, 2));
    assert_eq!((counters.gone, counters.replaced), (2, 1));
    assert_eq!((counters.not_cut_off, counters.failed), (0, 0));
    assert!(before.conns.posted >= 1);
    assert!(
        counters.conns.posted >= before.conns.posted,
        "of those that are gone"
    );
    Ok(())
}

/// Promise: the operations that were flushed when a client was cut off count as failed, as if the
/// program had polled them.
#[test]
fn flushed_operations_of_a_client_that_is_cut_off_count() -> Result {
    let _test = device_test();
    let mut site = Site::new(1)?;
    let (_conn, client) = site.client(identity(1, 1, 10))?;
    let conn = site.server.conn(client).ok_or("connected")?;
    conn.recv(MrSlice::EMPTY, 7)?;
    let gone = site.server.cut_off(client).ok_or("connected")?;
    let [wc] = gone.completions[..] else {
        panic!("{:?}", gone.completions);
    };
    let failed = wc.result().expect_err("flushed");
    let counters = site.server.counters();
    assert_eq!(counters.conns.failed(failed.status), 1);
    Ok(())
}
