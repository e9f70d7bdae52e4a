//! The work of a log that no appender does: it posts what waits, leads commits whose task is gone,
//! and frees the room of truncated records.

use std::future::pending;

use rpma::Error;
use rpma::commit::CommitId;

use crate::clock::now;
use crate::fault::Fault;
use crate::log::{FOREVER, Shared};
use crate::state::State;
use crate::tasks::{Work, unless, until_one_ends, yield_once};
use crate::{GROUP, LogError};

impl Shared {
    /// Keeps a connection to each server, frees room, and keeps the limits of appends, until the log
    /// ends. The log ends with this work.
    pub(crate) async fn keep_servers(&self) {
        let _ends = Ends(self);
        let mut all: Vec<Work<'_>> = vec![
            Box::pin(self.reclaim()),
            Box::pin(self.keep_limits()),
            Box::pin(self.until_ended()),
            Box::pin(self.keep_list()),
        ];
        let mut kept = 0;
        loop {
            let rings = self.servers.rings();
            let count = self.state.look(|state| state.servers.len());
            for n in kept..count {
                all.push(Box::pin(self.keep(n)));
            }
            kept = count;
            // A server may come that takes the place of another one.
            let more = unless(self.servers.after(rings), until_one_ends(&mut all));
            if more.await.flatten().is_none() {
                return;
            }
        }
    }

    /// Returns if the driver of the reactor is gone, which keeps the time.
    async fn keep_limits(&self) {
        loop {
            let next = self.state.look(State::next_limit);
            // An append that comes now has no earlier one.
            let Some(next) = next.or_else(|| now().checked_add(self.cfg.limit)) else {
                return pending().await;
            };
            let left = next.saturating_duration_since(now());
            self.reactor.timeout(left, pending::<()>()).await;
            let now = now();
            if now < next {
                return;
            }
            self.state.change(|state| state.expire(now));
        }
    }

    async fn until_ended(&self) {
        let has_ended = |state: &State| state.why().map(drop);
        let ended = self.state.until_reached(u64::MAX, FOREVER, has_ended);
        ended.await;
    }

    /// Posts and leads commits, until the log ends.
    pub(crate) async fn commit(&self) {
        loop {
            let rings = self.bell.rings();
            let done = match self.next() {
                Next::Post => self.post().await,
                // Meanwhile the next commit may be posted.
                Next::Settle(id) => {
                    let settled = self.settle(id, FOREVER);
                    let settled = unless(settled, self.bell.after(rings)).await;
                    if self.cfg.fault() == Fault::CountsMore {
                        self.count_more(&settled);
                    }
                    settled.map_or(Ok(()), |settled| settled.map(drop))
                }
                Next::Wait if self.bell.after(rings).await.is_some() => Ok(()),
                Next::Wait | Next::End => return,
            };
            if let Err(error) = done {
                return self.end(error);
            }
        }
    }

    #[cold]
    fn count_more(&self, settled: &Option<Result<bool, LogError>>) {
        if matches!(settled, Some(Ok(true))) {
            self.state.change(|state| state.durable = state.end);
        }
    }

    fn next(&self) -> Next {
        self.state.look(|state| match () {
            () if state.ended.is_some() => Next::End,
            () if state.may_commit() && self.set.able() >= self.cfg.copies => Next::Post,
            () => state.left().map_or(Next::Wait, Next::Settle),
        })
    }

    async fn post(&self) -> Result<(), LogError> {
        // The tasks that the last acknowledgement has woken append first, and share this commit.
        yield_once().await;
        let (posted, has_truncation) = self.state.change(|state| {
            let posted = match state.may_commit() {
                true => state.commit(&self.set, &self.cfg, false).map(drop),
                false => Ok(()),
            };
            (posted, !state.truncations.is_empty())
        });
        if has_truncation {
            self.truncated.ring();
        }
        let done = match posted {
            Err(Error::RingFull) => self.make_room().await,
            done => done,
        };
        match done {
            // After an error a server has to come back.
            Ok(()) | Err(Error::RingFull | Error::TooFewReplicas { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// A server is slow, and holds the memory of its commits. It is set aside within the limit of the
    /// calls that wait, and the others go on.
    async fn make_room(&self) -> Result<(), Error> {
        let (len, k) = (GROUP as usize, self.cfg.copies);
        self.set.make_room(len, k, self.cfg.limit / 2).await
    }

    /// Waits until no server of the set can lose a truncation. A slow one is set aside, because an
    /// append may wait for the room.
    async fn truncated(&self, id: CommitId) -> Result<(), Error> {
        let limit = self.cfg.limit / 2;
        loop {
            let everywhere = self.set.everywhere(id);
            if let Some(done) = self.reactor.timeout(limit, everywhere).await {
                return done;
            }
            let has = self.set.durable(self.set.outcome(id));
            if has.len() < self.cfg.copies {
                continue;
            }
            let members = |state: &State| -> Vec<_> {
                let members = state.servers.iter().filter_map(|server| server.member);
                members.collect()
            };
            let mut slow = self.state.look(members);
            slow.retain(|id| !has.contains(id));
            for id in slow {
                self.set.set_aside(id, limit).await?;
            }
        }
    }

    /// Frees the room of truncated records when no server of the set can lose the truncation.
    async fn reclaim(&self) {
        loop {
            let rings = self.truncated.rings();
            let first = self.state.look(|state| state.truncations.front().copied());
            let Some((id, to)) = first else {
                match self.truncated.after(rings).await {
                    Some(()) => continue,
                    None => return,
                }
            };
            if self.cfg.fault() != Fault::RoomEarly {
                if let Err(error) = self.truncated(id).await {
                    return self.end(error.into());
                }
            }
            self.state.change(|state| {
                state.truncations.pop_front();
                state.free = to;
            });
        }
    }
}

/// Ends the log when it is dropped, because its runtime ends as well.
struct Ends<'a>(&'a Shared);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.end(LogError::Closed);
    }
}

enum Next {
    Post,
    Settle(CommitId),
    Wait,
    End,
}
