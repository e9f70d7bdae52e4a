//! Questions to the program: answered later, by others, too late, never, or too many of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use rpma::RefusalCode::{Full, Refused};
use rpma::serve::{Served, ServerCfg};

use crate::common::prelude::*;
use crate::serve::support::{
    SHORT, Site, directory_of, goes_on, identity, is_readable, is_refusal, new_directory, refusal,
};

/// Promise: the program refuses with its own words, which come with the kept epoch.
#[test]
fn the_program_refuses() -> Result {
    let _test = device_test();
    let mut site = Site::new(1)?;
    let (writer, _) = site.client(identity(1, 3, 10))?;
    let (conn, asked) = site.question(identity(1, 4, 11))?;
    assert_eq!(asked.kept(), Some(identity(1, 3, 10)));
    site.server.refuse(asked, "not today")?;
    is_refusal(&refusal(&conn)?, Refused, 3, "not today");
    goes_on(&writer)?;
    site.nothing()
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
        let (conn, asked) = site.question(identity(1, 4, 11))?;
        let dropped = catch_unwind(AssertUnwindSafe(|| {
            let _asked = asked;
            assert!(!panics, "the program's mistake");
        }));
        assert_eq!(dropped.is_err(), panics);
        is_refusal(&refusal(&conn)?, Full, 0, "did not answer");
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
    let (conn, asked) = site.question(identity(1, 1, 10))?;
    let asked = thread::spawn(move || {
        assert_eq!(asked.identity().key, 1);
        asked
    });
    let (other, _) = site.client(identity(2, 1, 20))?;
    goes_on(&other)?;
    site.establish(&conn, asked.join().expect("no panic"))?;
    Ok(())
}

/// Promise: a question without an answer is refused after its limit, while the server waits for
/// another event; the answer that comes after that is an error, and has no effect.
#[test]
fn an_answer_comes_too_late() -> Result {
    let _test = device_test();
    let mut site = Site::with(1, ServerCfg::new().set_answer_limit(SHORT))?;
    for answers in [true, false] {
        let (conn, asked) = site.question(identity(1, 1, 10))?;
        assert!(site.server.deadline().is_some());
        let of = site.is_refused(&conn, Full, 0, "in time")?;
        assert_eq!(of, Some(identity(1, 1, 10)));
        if answers {
            let late = site.admit(asked).expect_err("too late");
            assert!(matches!(late.error, Some(Error::TimedOut(_))), "{late:?}");
        } else {
            let late = site.server.refuse(asked, "no").expect_err("too late");
            assert!(matches!(late, Error::TimedOut(_)), "{late:?}");
        }
        assert!(site.server.directory().get(1).is_none());
    }
    site.nothing()
}

/// Promise: questions beyond the limit are refused as full, and have no cost for the others; a
/// question that was dropped makes room.
#[test]
fn too_many_questions() -> Result {
    let _test = device_test();
    let mut site = Site::with(4, ServerCfg::new().set_most_questions(2)?)?;
    let (first, one) = site.question(identity(1, 1, 10))?;
    let (second, two) = site.question(identity(2, 1, 10))?;
    site.refused(identity(3, 1, 10), Full, 0, "too many clients ask")?;
    drop(two);
    is_refusal(&refusal(&second)?, Full, 0, "did not answer");
    let (third, three) = site.question(identity(3, 1, 10))?;
    site.establish(&first, one)?;
    site.establish(&third, three)?;
    Ok(())
}

/// Promise: a writer that gives a try up and asks again has one question, its last one. So it takes
/// no room from other clients, and the answer to a try that it gave up cuts off no client.
#[test]
fn a_writer_asks_again() -> Result {
    let _test = device_test();
    let mut site = Site::with(2, ServerCfg::new().set_most_questions(2)?)?;
    let mut given_up = Vec::new();
    for _ in 0..3 {
        given_up.push(site.question(identity(1, 1, 10))?);
        if let [.., (before, _), _] = &given_up[..] {
            let of = site.is_refused(before, Full, 0, "asked again")?;
            assert_eq!(of, Some(identity(1, 1, 10)));
        }
    }
    let (other, _) = site.client(identity(2, 1, 20))?;
    let (conn, last) = given_up.pop().ok_or("the last one")?;
    site.establish(&conn, last)?;
    for (_, asked) in given_up {
        let late = site.admit(asked).expect_err("it asked again");
        assert!(matches!(late.error, Some(Error::TimedOut(_))), "{late:?}");
    }
    goes_on(&conn)?;
    goes_on(&other)?;
    site.nothing()
}

/// Promise: clients beyond the limit are refused as full, when they ask and when they are admitted;
/// a writer that comes back needs no other place.
#[test]
fn too_many_clients() -> Result {
    let _test = device_test();
    let mut site = Site::with(2, ServerCfg::new().set_most_clients(1)?)?;
    let late = site.question(identity(2, 1, 10))?;
    let (_old, _) = site.client(identity(1, 1, 10))?;
    let words = "no room for another client";
    site.not_admitted(late, Full, 0, words)?;
    site.refused(identity(2, 1, 10), Full, 0, words)?;
    drop(site.client(identity(1, 1, 10))?);
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
    let late = site.question(identity(2, 1, 10))?;
    let (_one, _) = site.client(identity(1, 1, 10))?;
    let words = "no room for another key";
    site.not_admitted(late, Full, 0, words)?;
    site.refused(identity(2, 1, 10), Full, 0, words)?;
    site.client(identity(1, 2, 20))?;
    Ok(())
}

/// Promise: a client that vanished before its answer is an error of its admission, or ends as every
/// client does; none of its objects stays.
#[test]
fn a_client_that_vanished() -> Result {
    let _test = device_test();
    let limit = Duration::from_secs(1);
    let mut site = Site::with(1, ServerCfg::new().set_establish_limit(limit))?;
    for _ in 0..10 {
        let (conn, asked) = site.question(identity(1, 1, 10))?;
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
    let look = |site: &mut Site| {
        let served = site.server.next(&mut [Wc::default(); 4], Duration::ZERO);
        served.expect("looks")
    };
    while look(&mut site).is_some() {}
    is_readable(&site);
    while look(&mut site).is_some() {}
    let (_old, _) = site.client(identity(1, 1, 10))?;
    while look(&mut site).is_some() {}
    let conn = site.ask(identity(1, 1, 10))?;
    let begin = Instant::now();
    let asked = loop {
        assert!(begin.elapsed() < LIMIT);
        if is_readable(&site) {
            match look(&mut site) {
                Some(Served::Asks(asked)) => break asked,
                None => {}
                other => panic!("{other:?}"),
            }
        }
    };
    while look(&mut site).is_some() {}
    assert!(!is_readable(&site), "all was taken");
    let client = site.admit(asked)?;
    assert!(is_readable(&site), "the old client is gone");
    assert_eq!(event(&conn)?, ConnEvent::Established);
    let (mut gone, mut arrived) = (false, false);
    while !(gone && arrived) {
        assert!(begin.elapsed() < LIMIT);
        if is_readable(&site) {
            match look(&mut site) {
                Some(Served::Gone(_)) => gone = true,
                Some(Served::Arrived(of)) => arrived = of == client,
                None => {}
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(site.server.next(&mut [], Duration::ZERO).is_err());
    site.server.waker().wake();
    assert!(matches!(site.next()?, Served::Woken));
    Ok(())
}
