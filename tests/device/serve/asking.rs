//! Questions to the program: answered later, by others, too late, never, or too many of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use rpma::serve::{Served, ServerCfg};

use crate::common::prelude::*;
use crate::serve::support::{
    SHORT, Site, directory_of, identity, is_readable, is_refusal, new_directory, offer, refusal,
};

/// The established client goes on: it writes.
fn goes_on(conn: &Conn) -> Result {
    let flags = Flags::COMPLETION_ALWAYS;
    let (to, from) = (RemoteSlice::EMPTY, MrSlice::EMPTY);
    conn.write(to, from, flags, 1)?;
    completion(conn)?.result()?;
    Ok(())
}

/// Promise: the program refuses with its own words, which come with the kept epoch.
#[test]
fn the_program_refuses() -> Result {
    let _test = device_test();
    let mut site = Site::new(1)?;
    let (writer, _) = site.client(identity(1, 3, 10))?;
    let conn = site.ask(identity(1, 4, 11))?;
    let asked = site.asked()?;
    assert_eq!(asked.kept(), Some(identity(1, 3, 10)));
    site.server.refuse(asked, "not today")?;
    is_refusal(&refusal(&conn)?, RefusalCode::Refused, 3, "not today");
    goes_on(&writer)?;
    site.nothing()?;
    Ok(())
}

/// Promise: a dropped question rejects its client, which may try again; no client is cut off, and
/// no byte is written, even if the program panics.
#[test]
fn a_question_that_is_dropped_changes_nothing() -> Result {
    let _test = device_test();
    let mut site = Site::new(1)?;
    let writer = identity(1, 3, 10);
    let (old, client) = site.client(writer)?;
    for panics in [false, true] {
        let conn = site.ask(identity(1, 4, 11))?;
        let asked = site.asked()?;
        let dropped = catch_unwind(AssertUnwindSafe(|| {
            let _asked = asked;
            assert!(!panics, "the program's mistake");
        }));
        assert_eq!(dropped.is_err(), panics);
        is_refusal(&refusal(&conn)?, RefusalCode::Full, 0, "did not answer");
        assert_eq!(site.server.client(1), Some(client));
        assert_eq!(site.server.directory().get(1), Some(writer));
        goes_on(&old)?;
        site.nothing()?;
    }
    Ok(())
}

/// Promise: a question may be kept in another thread and answered later, and other clients are
/// served meanwhile.
#[test]
fn an_answer_comes_later() -> Result {
    let _test = device_test();
    let mut site = Site::new(2)?;
    let conn = site.ask(identity(1, 1, 10))?;
    let asked = site.asked()?;
    let asked = thread::spawn(move || {
        assert_eq!(asked.identity().key, 1);
        asked
    });
    let (other, _) = site.client(identity(2, 1, 20))?;
    goes_on(&other)?;
    let client = site.admit(asked.join().expect("no panic"))?;
    assert_eq!(event(&conn)?, ConnEvent::Established);
    site.arrives(client)?;
    Ok(())
}

/// Promise: a question without an answer is refused after its limit, while the server waits for
/// another event; the answer that comes after that is an error, and has no effect.
#[test]
fn an_answer_comes_too_late() -> Result {
    let _test = device_test();
    let mut cfg = ServerCfg::new();
    cfg.set_answer_limit(SHORT);
    let mut site = Site::with(1, &cfg)?;
    for answers in [true, false] {
        let conn = site.ask(identity(1, 1, 10))?;
        let asked = site.asked()?;
        assert!(site.server.deadline().is_some());
        match site.next()? {
            Served::Refused(refused) => {
                assert_eq!(refused.identity, Some(identity(1, 1, 10)));
                is_refusal(&refused.refusal, RefusalCode::Full, 0, "in time");
                assert_eq!(refusal(&conn)?, refused.refusal);
            }
            other => panic!("{other:?}"),
        }
        if answers {
            let late = site.admit(asked).expect_err("too late");
            assert!(matches!(late.error, Some(Error::TimedOut(_))), "{late:?}");
        } else {
            let late = site.server.refuse(asked, "no").expect_err("too late");
            assert!(matches!(late, Error::TimedOut(_)), "{late:?}");
        }
        assert!(site.server.directory().get(1).is_none());
    }
    site.nothing()?;
    Ok(())
}

/// Promise: questions beyond the limit are refused as full, and have no cost for the others; a
/// question that was dropped makes room.
#[test]
fn too_many_questions() -> Result {
    let _test = device_test();
    let mut cfg = ServerCfg::new();
    cfg.set_most_questions(2)?;
    let mut site = Site::with(4, &cfg)?;
    let data = |key| -> Result<_> { Ok(offer(identity(key, 1, 10)).encode(Offer::CONNECT)?) };
    let first = site.ask(identity(1, 1, 10))?;
    let one = site.asked()?;
    let second = site.ask(identity(2, 1, 10))?;
    let two = site.asked()?;
    site.refused(&data(3)?, RefusalCode::Full, 0, "too many clients ask")?;
    drop(two);
    is_refusal(&refusal(&second)?, RefusalCode::Full, 0, "did not answer");
    let third = site.ask(identity(3, 1, 10))?;
    let three = site.asked()?;
    for (conn, asked) in [(first, one), (third, three)] {
        let client = site.admit(asked)?;
        assert_eq!(event(&conn)?, ConnEvent::Established);
        site.arrives(client)?;
    }
    Ok(())
}

/// Promise: a writer that gives a try up and asks again has one question, its last one. So it takes
/// no room from other clients, and the answer to a try that it gave up cuts off no client.
#[test]
fn a_writer_asks_again() -> Result {
    let _test = device_test();
    let mut cfg = ServerCfg::new();
    cfg.set_most_questions(2)?;
    let mut site = Site::with(2, &cfg)?;
    let mut given_up = Vec::new();
    for _ in 0..3 {
        let conn = site.ask(identity(1, 1, 10))?;
        given_up.push((conn, site.asked()?));
        if let [.., (before, _), _] = &given_up[..] {
            match site.next()? {
                Served::Refused(refused) => {
                    is_refusal(&refused.refusal, RefusalCode::Full, 0, "asked again");
                    assert_eq!(refused.identity, Some(identity(1, 1, 10)));
                    assert_eq!(refusal(before)?, refused.refusal);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let (other, _) = site.client(identity(2, 1, 20))?;
    let (conn, last) = given_up.pop().ok_or("the last one")?;
    let client = site.admit(last)?;
    assert_eq!(event(&conn)?, ConnEvent::Established);
    site.arrives(client)?;
    for (_, asked) in given_up {
        let late = site.admit(asked).expect_err("it asked again");
        assert!(matches!(late.error, Some(Error::TimedOut(_))), "{late:?}");
    }
    goes_on(&conn)?;
    goes_on(&other)?;
    site.nothing()?;
    Ok(())
}

/// Promise: clients beyond the limit are refused as full, when they ask and when they are admitted;
/// a writer that comes back needs no other place.
#[test]
fn too_many_clients() -> Result {
    let _test = device_test();
    let mut cfg = ServerCfg::new();
    cfg.set_most_clients(1)?;
    let mut site = Site::with(2, &cfg)?;
    let late = site.ask(identity(2, 1, 10))?;
    let asked = site.asked()?;
    let (_old, _) = site.client(identity(1, 1, 10))?;
    let refused = site.admit(asked).expect_err("full");
    is_refusal(
        &refused.refusal,
        RefusalCode::Full,
        0,
        "no room for another client",
    );
    assert_eq!(refusal(&late)?, refused.refusal);
    let data = offer(identity(2, 1, 10)).encode(Offer::CONNECT)?;
    site.refused(&data, RefusalCode::Full, 0, "no room for another client")?;
    let (again, _) = site.client(identity(1, 1, 10))?;
    drop(again);
    site.gone()?;
    site.client(identity(2, 1, 10))?;
    Ok(())
}

/// Promise: a directory that is full refuses new keys, with words, and serves those that it has.
#[test]
fn too_many_keys() -> Result {
    let _test = device_test();
    let mut site = Site::new(2)?;
    let directory = new_directory(directory_of(&site.all)?, 1)?;
    site = Site::over(2, &ServerCfg::new(), site.all, directory)?;
    let late = site.ask(identity(2, 1, 10))?;
    let asked = site.asked()?;
    let (_one, _) = site.client(identity(1, 1, 10))?;
    let refused = site.admit(asked).expect_err("full");
    is_refusal(
        &refused.refusal,
        RefusalCode::Full,
        0,
        "no room for another key",
    );
    assert_eq!(refusal(&late)?, refused.refusal);
    let data = offer(identity(2, 1, 10)).encode(Offer::CONNECT)?;
    site.refused(&data, RefusalCode::Full, 0, "no room for another key")?;
    site.client(identity(1, 2, 20))?;
    Ok(())
}

/// Promise: a client that vanished before its answer is an error of its admission, or ends as every
/// client does; none of its objects stays.
#[test]
fn a_client_that_vanished() -> Result {
    let _test = device_test();
    let mut cfg = ServerCfg::new();
    cfg.set_establish_limit(Duration::from_secs(1));
    let mut site = Site::with(1, &cfg)?;
    for _ in 0..10 {
        let conn = site.ask(identity(1, 1, 10))?;
        let asked = site.asked()?;
        drop(conn);
        match site.admit(asked) {
            Ok(client) => loop {
                match site.next()? {
                    Served::Gone(gone) if gone.client == client => break,
                    Served::Arrived(of) if of == client => {}
                    other => panic!("{other:?}"),
                }
            },
            Err(refused) => assert!(refused.error.is_some(), "{refused:?}"),
        }
        assert_eq!(site.server.clients().count(), 0);
    }
    site.client(identity(1, 1, 10))?;
    Ok(())
}

/// Promise: an event loop needs the descriptor, `next` with a limit of 0, and the deadline: while
/// `next` would return something the descriptor is readable.
#[test]
fn an_event_loop_serves() -> Result {
    let _test = device_test();
    let mut site = Site::new(1)?;
    let mut wcs = [Wc::default(); 4];
    while site.server.next(&mut wcs, Duration::ZERO)?.is_some() {}
    is_readable(&site)?;
    while site.server.next(&mut wcs, Duration::ZERO)?.is_some() {}
    let (old, _) = site.client(identity(1, 1, 10))?;
    while site.server.next(&mut wcs, Duration::ZERO)?.is_some() {}
    let conn = site.ask(identity(1, 1, 10))?;
    let begin = Instant::now();
    let asked = loop {
        assert!(begin.elapsed() < LIMIT);
        if is_readable(&site)? {
            match site.server.next(&mut wcs, Duration::ZERO)? {
                Some(Served::Asks(asked)) => break asked,
                None => {}
                other => panic!("{other:?}"),
            }
        }
    };
    while site.server.next(&mut wcs, Duration::ZERO)?.is_some() {}
    assert!(!is_readable(&site)?, "all was taken");
    let client = site.admit(asked)?;
    assert!(is_readable(&site)?, "the old client is gone");
    assert_eq!(event(&conn)?, ConnEvent::Established);
    let (mut gone, mut arrived) = (false, false);
    while !(gone && arrived) {
        assert!(begin.elapsed() < LIMIT);
        if is_readable(&site)? {
            match site.server.next(&mut wcs, Duration::ZERO)? {
                Some(Served::Gone(_)) => gone = true,
                Some(Served::Arrived(of)) => arrived = of == client,
                None => {}
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(
        site.server.next(&mut [], Duration::ZERO).is_err(),
        "no room"
    );
    site.server.waker().wake();
    assert!(matches!(site.next()?, Served::Woken));
    drop(old);
    Ok(())
}
