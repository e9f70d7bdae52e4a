//! Commits that are awaited.

use std::future::poll_fn;
use std::task::Poll;

use rpma::commit::Fate;
use rpma_async::{Pool, Reactor, Writer, block_on};

use crate::awaited::held::{hold, leaving_nothing, release};
use crate::awaited::made::{BLOCKS, Made};
use crate::awaited::served::{self, Serving, TAIL, append, block, commit, polls, post};
use crate::awaited::support::{
    CLOSE, all_blocks, gives_back, is_over, joined, run, says, spawn_with, turns, with_reactor,
};
use crate::common::prelude::*;

/// Promise: several tasks commit by one writer, each waits for its own ticket, and each is woken.
#[test]
fn tasks_wait_for_tickets_of_one_writer() -> Result {
    with_reactor(async |reactor| {
        let made = Made::new(reactor, 3).await?;
        let tasks = [0, 1, 2, 3, 4].map(|task| {
            let pool = made.pool.clone();
            spawn_with(&made.writer, |writer| async move {
                for round in 0..20 {
                    let bytes = block(&pool, task * 20 + round).await;
                    writer.room().await.expect("room");
                    // One thread: no other task has taken it.
                    let ticket = commit(&writer, bytes, round + 1).expect("posted");
                    writer.durable(ticket).await.expect("durable");
                    assert_eq!(writer.fate(ticket).expect("its own"), Fate::Durable);
                }
            })
        });
        for task in tasks {
            joined(task).await;
        }
        assert_eq!(made.pool.available(), BLOCKS);
        assert_eq!(contents(&made.target)?[TAIL as usize], 20);
        made.writer.close(CLOSE).await?;
        made.server.closed().await?;
        Ok(())
    })
}

/// Promise: handles on several threads, with the driver on a thread of its own.
#[test]
fn threads_wait_for_tickets_of_one_writer() -> Result {
    leaving_nothing(|| {
        let peer = peer()?;
        let made = run(async { Made::new(&Reactor::on_thread(&peer)?, 2).await })?;
        let Made { writer, pool, .. } = &made;
        let appends = async |round| {
            let bytes = block(pool, round).await;
            let ticket = loop {
                writer.room().await?;
                match commit(writer, bytes.clone(), round) {
                    // Another thread has taken the room.
                    Err(Error::QueueFull { .. }) => {}
                    posted => break posted?,
                }
            };
            writer.durable(ticket).await
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(here(|| {
                    for round in 0..50 {
                        let appended = block_on(appends(round), LIMIT);
                        appended.expect("in time").expect("durable");
                    }
                }));
            }
        });
        let closed = block_on(made.writer.close(CLOSE), LIMIT);
        closed.ok_or("in time")??;
        assert_eq!(made.pool.available(), BLOCKS);
        Ok(())
    })
}

/// Promise: a wait that is dropped after its nth poll does not undo the commit: it becomes durable,
/// its sources go back to the pool although no task waits for the writer, and another wait finds
/// it.
#[test]
fn a_dropped_wait_undoes_nothing() -> Result {
    for n in 0..6 {
        with_reactor(async |reactor| {
            let serving = Serving::new(reactor, 1)?;
            let made = Made::new(reactor, 2).await?;
            let answered = served::awaited(reactor, serving.addr, 1).await;
            for writer in [&made.writer, &answered] {
                let ticket = post(writer, &made.pool, 7).await?;
                drop(polls(writer.durable(ticket), n).await);
                drop(polls(writer.room(), n).await);
                drop(polls(writer.closed(), n).await);
                drop(all_blocks(&made.pool).await);
                writer.durable(ticket).await?;
            }
            assert_eq!(contents(&made.target)?[TAIL as usize], 7);
            drop(polls(answered.clone().close(CLOSE), n).await);
            drop((made, answered));
            serving.stop().await;
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: a peer that ends the connection wakes every wait with the reason, and sources come
/// back.
#[test]
fn an_end_wakes_all_waits() -> Result {
    with_reactor(async |reactor| {
        let made = Made::new(reactor, 2).await?;
        let closed = spawn_with(&made.writer, |writer| async move { writer.closed().await });
        let first = append(&made.writer, &made.pool, 1).await?;
        made.server.abort();
        joined(closed).await?;
        let ended = made.writer.room().await.expect_err("no room any more");
        assert!(matches!(ended, Error::Ended(_)), "{ended}");
        assert_eq!(made.writer.fate(first)?, Fate::Durable);
        made.writer.durable(first).await?;
        is_over(post(&made.writer, &made.pool, 2).await);
        assert_eq!(made.pool.available(), BLOCKS);
        Ok(())
    })
}

/// Promise: an end of this side makes the fate of commits in flight known or unknown, never
/// pending.
#[test]
fn an_abort_leaves_no_commit_pending() -> Result {
    with_reactor(async |reactor| {
        let made = Made::new(reactor, 4).await?;
        let mut tickets = Vec::new();
        for number in 1..=4 {
            tickets.push(post(&made.writer, &made.pool, number).await?);
        }
        made.writer.abort();
        for ticket in tickets {
            let fate = match made.writer.durable(ticket).await {
                Ok(()) => Fate::Durable,
                Err(_) => Fate::Unknown,
            };
            assert_eq!(made.writer.fate(ticket)?, fate);
        }
        drop(made.writer);
        assert_eq!(made.pool.available(), BLOCKS);
        Ok(())
    })
}

/// Promise: bad input is one clear error before any post, and the sources come back.
#[test]
fn bad_input_is_refused() -> Result {
    with_reactor(async |reactor| {
        let made = Made::new(reactor, 1).await?;
        let second = Made::new(reactor, 1).await?;
        let far = made.writer.offer().regions()[0];

        let foreign = Pool::new(&peer()?, 100, 1)?;
        says(post(&made.writer, &foreign, 1).await, &[]);
        assert_eq!(foreign.available(), 1);

        let bytes = block(&made.pool, 1).await;
        let part = |at: u64| -> Result<_> { Ok((far.slice(at..at + 100)?, bytes.clone())) };
        let three = made.writer.commit([part(0)?, part(128)?, part(256)?], None);
        assert_eq!(gives_back(three, &["up to 2"]).into_iter().count(), 3);
        let long = (far.slice(0..101)?, bytes.clone());
        says(made.writer.commit([long], None), &[]);

        let ticket = commit(&made.writer, bytes, 1)?;
        let refused = second.writer.durable(ticket).await;
        says(refused, &["another writer"]);
        second.writer.fate(ticket).expect_err("not its own");
        made.writer.durable(ticket).await?;
        assert_eq!(made.pool.available(), BLOCKS);
        Ok(())
    })
}

/// Promise: a commit that finds no room is refused with its sources, and room comes without a task
/// that waits.
#[test]
fn a_full_writer_refuses() -> Result {
    with_reactor(async |reactor| {
        let made = Made::new(reactor, 2).await?;
        let mut refused = 0;
        for number in 0..200 {
            match post(&made.writer, &made.pool, number).await {
                Ok(_) => {}
                Err(Error::QueueFull { queue, depth }) => {
                    assert_eq!((queue, depth), (Queue::Commits, 2));
                    refused += 1;
                    made.writer.room().await?;
                    assert!(made.writer.available() > 0);
                }
                Err(error) => panic!("{error}"),
            }
        }
        println!("{refused} of 200 were refused");
        made.writer.close(CLOSE).await?;
        Ok(())
    })
}

/// Promise: a place for a commit lets every task go on that waits for one and commits nothing, also
/// if the first of them is given up after its wake-up.
#[test]
fn a_place_is_handed_on() -> Result {
    with_reactor(async |reactor| {
        for gives_up in [false, true] {
            let made = Made::new(reactor, 1).await?;
            hold();
            let ticket = post(&made.writer, &made.pool, 1).await?;
            let first = spawn_with(&made.writer, |writer| async move {
                let mut room = Box::pin(writer.room());
                let mut is_first = true;
                let polled = poll_fn(|cx| {
                    // Woken: it does not look any more.
                    if !std::mem::take(&mut is_first) && gives_up {
                        return Poll::Ready(Ok(()));
                    }
                    room.as_mut().poll(cx)
                });
                polled.await
            });
            turns(2).await;
            let others = [(); 3]
                .map(|()| spawn_with(&made.writer, |writer| async move { writer.room().await }));
            turns(2).await;
            release();
            joined(first).await?;
            for other in others {
                joined(other).await?;
            }
            made.writer.durable(ticket).await?;
            made.writer.close(CLOSE).await?;
        }
        Ok(())
    })
}

/// Promise: if the driver of a reactor never runs, or is dropped, each wait returns an error.
#[test]
fn a_driver_that_is_missing_is_an_error() -> Result {
    with_reactor(async |reactor| {
        let serving = Serving::new(reactor, 1)?;
        let writer = served::writer(reactor, serving.addr, 1).await;
        let (without, driver) = Reactor::new(reactor.peer())?;
        let writer = Writer::new(&without, writer)?;
        says(writer.closed().await, &["never run"]);
        let waiting = spawn_with(&writer, |writer| async move { writer.closed().await });
        drop(driver);
        says(writer.closed().await, &["was dropped"]);
        joined(waiting).await.expect_err("nobody wakes it");
        drop(writer);
        serving.stop().await;
        Ok(())
    })
}

/// Promise: `close` past its limit is an error, and ends the connection.
#[cfg(feature = "sim")]
#[test]
fn a_close_has_a_limit() -> Result {
    with_reactor(async |reactor| {
        // No task answers.
        let site = crate::serve::support::Site::with(1, &served::cfg()?)?;
        let addr = served::at(site.server.get_port());
        let serving = Serving::of(reactor, site)?;
        let writer = served::writer(reactor, addr, 1).await;
        let stopped = serving.stop().await;
        let writer = Writer::new(reactor, writer)?;
        let pool = Pool::new(reactor.peer(), 100, 1)?;
        let ticket = post(&writer, &pool, 1).await?;
        let late = writer.clone().close(Duration::from_millis(120)).await;
        assert!(matches!(late, Err(Error::TimedOut(_))), "{late:?}");
        let over = writer.durable(ticket).await;
        over.expect_err("the connection is over");
        assert_eq!(writer.fate(ticket)?, Fate::Unknown);
        drop(stopped);
        Ok(())
    })
}
