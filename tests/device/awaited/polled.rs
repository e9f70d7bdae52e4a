//! How often tasks are polled that wait for one object: a change wakes the tasks that can go on.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;

use rpma_async::{Conn, Pool, Replicas, Setup, Writer};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;

use crate::awaited::made::{Linked, Made, word};
use crate::awaited::replicas::add;
use crate::awaited::world::{World, virtually};
use crate::common::prelude::*;

/// The time between the tasks. So each of their operations is complete at an instant of its own.
const BETWEEN: Duration = Duration::from_millis(3);
/// It does not pass.
const LIMIT: Duration = Duration::from_secs(60);

/// Counts the polls of a future.
async fn counted<F: Future>(polls: &Cell<usize>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        polls.set(polls.get() + 1);
        future.as_mut().poll(cx)
    })
    .await
}

/// A wait of a task, and the post of that task before it.
trait Work: Clone + 'static {
    type Posted;
    fn post(&self, number: usize) -> rpma::Result<Self::Posted>;
    async fn wait(&self, posted: Self::Posted) -> rpma::Result<()>;
}

/// The polls of the waits of so many tasks. Nothing arrives until the last one has begun to wait.
async fn polls_of(world: &World, tasks: usize, work: impl Work) -> usize {
    let (polls, local) = (Rc::new(Cell::new(0)), LocalSet::new());
    local
        .run_until(async {
            let mut waits = JoinSet::new();
            for number in 0..tasks {
                let (work, polls) = (work.clone(), Rc::clone(&polls));
                waits.spawn_local(async move {
                    sleep(BETWEEN * number as u32).await;
                    let posted = work.post(number).expect("posted");
                    counted(&polls, work.wait(posted)).await.expect("it comes");
                });
            }
            world.link.delay(BETWEEN * 2 * tasks as u32);
            while let Some(ended) = waits.join_next().await {
                ended.expect("no panic");
            }
        })
        .await;
    polls.get()
}

#[derive(Clone)]
struct Commits(Writer, Pool);

impl Work for Commits {
    type Posted = rpma::commit::Ticket;

    fn post(&self, number: usize) -> rpma::Result<Self::Posted> {
        let Self(writer, pool) = self;
        let to = writer.offer().regions()[0].slice(64..164)?;
        Ok(writer.commit([(to, word(pool, number as u8))], None)?)
    }

    async fn wait(&self, ticket: Self::Posted) -> rpma::Result<()> {
        self.0.durable(ticket).await
    }
}

#[derive(Clone)]
struct Copies(Replicas);

impl Work for Copies {
    type Posted = rpma::commit::CommitId;

    fn post(&self, number: usize) -> rpma::Result<Self::Posted> {
        self.0.commit(64, &[&[number as u8; 16]], None, 1)
    }

    async fn wait(&self, id: Self::Posted) -> rpma::Result<()> {
        assert_eq!(self.0.settle(id, 1, LIMIT).await?.copies(), 1);
        Ok(())
    }
}

/// Writes that wait for room first.
#[derive(Clone)]
struct Writes(Conn, RemoteSlice, Pool);

impl Work for Writes {
    type Posted = ();

    fn post(&self, _number: usize) -> rpma::Result<()> {
        Ok(())
    }

    async fn wait(&self, (): ()) -> rpma::Result<()> {
        let Self(conn, to, pool) = self;
        conn.ready(1).await?;
        let mut block = pool.try_lease().expect("a block is free");
        block.truncate(to.len() as usize);
        conn.write(*to, block.freeze())?.await?;
        Ok(())
    }
}

/// Promise: tasks that wait for commits of a writer, for copies of a set's commits, or for writes of
/// a connection, are polled at most three times each, however many there are. If they also wait for
/// room, because there are fewer slots than tasks, a free slot wakes one task in vain at most.
#[test]
fn a_change_wakes_the_tasks_that_go_on() -> Result {
    for tasks in [4, 16, 64] {
        virtually(async |world| {
            let [client, server] = &world.reactors;
            let to = (server, world.hosts[1].addr().into());
            let link = async || {
                world.link.delay(Duration::ZERO);
                Linked::new(client, to, 64, &ConnCfg::new()).await
            };
            let made = Made::of(client, link().await?, tasks)?;
            let commits = Commits(made.writer.clone(), made.pool.clone());
            let polls = polls_of(world, tasks, commits).await;
            assert!(polls <= 3 * tasks, "{polls} polls of {tasks} commits");

            let linked = link().await?;
            let set = rpma::commit::Replicas::new(client.peer(), 1 << 16, 64)?;
            let set = Replicas::new(client, set)?;
            add(&set, linked.writer)?;
            let polls = polls_of(world, tasks, Copies(set)).await;
            assert!(polls <= 3 * tasks, "{polls} polls of {tasks} copies");

            for (slots, most) in [(64, 3), (4, 4)] {
                world.link.delay(Duration::ZERO);
                let memories = world.memories(tasks);
                let setup = Setup::new(ConnCfg::new().set_sq_size(slots));
                let (conn, _far) = world.connect(&setup, &setup).await?;
                let writes = Writes(conn, memories.to(), memories.pool.clone());
                let polls = polls_of(world, tasks, writes).await;
                assert!(
                    polls <= most * tasks,
                    "{polls} polls of {tasks} writes in {slots} slots"
                );
            }
            Ok(())
        })?;
    }
    Ok(())
}
