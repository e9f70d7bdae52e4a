//! [`Writer`]: a log that is open. Its calls are acts of the scene, and the judge has their outcomes
//! and the records that it reads.

use std::sync::Arc;

use rpma::sim::{Host, Pmem};

use crate::exec;
use crate::model::Model;
use crate::subject::{Appended, Log as _, Record, Subject};
use crate::world::{World, fail, name, names};

/// The servers before a writer reads, for the report of a record that is lost. Its opening may
/// overwrite the record.
pub(crate) struct Before {
    /// The servers that run.
    up: Vec<usize>,
    memories: Vec<Vec<u8>>,
}

impl Before {
    pub(crate) fn new<S: Subject>(world: &World<S>) -> Self {
        let memories = world.pmems().iter().map(Pmem::bytes_quietly).collect();
        let up = world.serving();
        Self { up, memories }
    }

    /// Which servers had the bytes of a record.
    fn text(&self, model: &Model, number: usize) -> String {
        let mut had = Vec::from_iter(0..self.memories.len());
        had.retain(|n| model.is_in(number, &self.memories[*n]));
        let only = if had.len() == 1 { "only " } else { "" };
        let (up, had) = (names(&self.up), names(&had));
        format!("{up} ran, and {only}{had} had the bytes of record {number}")
    }
}

/// The writer of a log.
pub(crate) struct Writer<S: Subject> {
    log: Arc<S::Log>,
    world: World<S>,
    host: Host,
    epoch: u64,
}

impl<S: Subject> Clone for Writer<S> {
    fn clone(&self) -> Self {
        Self {
            log: Arc::clone(&self.log),
            world: self.world.clone(),
            host: self.host.clone(),
            epoch: self.epoch,
        }
    }
}

impl<S: Subject> Writer<S> {
    pub(crate) fn new(log: Arc<S::Log>, world: &World<S>, host: &Host, epoch: u64) -> Self {
        Self {
            log,
            world: world.clone(),
            host: host.clone(),
            epoch,
        }
    }

    /// Appends a record of so many bytes, which nothing disturbs: it is durable.
    pub(crate) async fn append(&self, len: usize) -> u64 {
        match self.try_append(len).await {
            Appended::Durable(at) => at,
            other => fail(format!(
                "nothing disturbs an append, and its outcome is {other:?}"
            )),
        }
    }

    /// Appends a record, with any outcome. It has fewer bytes if the log takes no more.
    pub(crate) async fn try_append(&self, len: usize) -> Appended {
        self.try_append_all(len.min(self.world.shape().longest))
            .await
    }

    /// Appends a record of exactly so many bytes, which nothing disturbs: it is durable, or refused.
    pub(crate) async fn append_or_not(&self, len: usize) {
        if let Appended::Unknown(why) = self.try_append_all(len).await {
            fail(format!(
                "nothing disturbs an append of {len} bytes, and its outcome is unknown: {why}"
            ));
        }
    }

    async fn try_append_all(&self, len: usize) -> Appended {
        let (number, bytes) = self.world.model().begin(self.epoch, len);
        let act = self.world.acts().appends(self.epoch, number, len);
        let append = self.log.append(&bytes);
        let appended = exec::on(S::BLOCKS, &self.host, "append", append).await;
        self.world.acts().appended(act, &appended);
        self.world.model().end(number, appended.clone());
        appended
    }

    /// Forgets the records before a position. Returns whether that is known.
    pub(crate) async fn try_truncate(&self, to: u64) -> Result<(), String> {
        self.world.model().forget(to);
        let act = self.world.acts().forgets(self.epoch, to);
        let truncate = self.log.truncate(to);
        let done = exec::on(S::BLOCKS, &self.host, "truncate", truncate).await;
        let done = done.map_err(|error| error.to_string());
        let answer = done
            .as_ref()
            .map_or_else(Clone::clone, |()| "done".to_owned());
        self.world.acts().answers(act, answer);
        done?;
        self.world.model().forgot(to);
        Ok(())
    }

    pub(crate) async fn truncate(&self, to: u64) {
        let done = self.try_truncate(to).await;
        done.unwrap_or_else(|error| {
            fail(format!(
                "nothing disturbs a truncation, and it fails: {error}"
            ))
        });
    }

    /// Replaces a server by one that has no place in the log. Returns whether that is known.
    pub(crate) async fn try_replace(&self, old: usize, new: usize) -> Result<(), String> {
        let world = &self.world;
        world.model().replaces(old, new);
        let text = format!(
            "writer {} replaces {} by {}",
            self.epoch,
            name(old),
            name(new)
        );
        let act = world.acts().calls(text);
        let replace = self.log.replace(world.addr(old), world.addr(new));
        let done = exec::on(S::BLOCKS, &self.host, "replace", replace).await;
        let done = done.map_err(|error| error.to_string());
        let answer = done
            .as_ref()
            .map_or_else(Clone::clone, |()| "done".to_owned());
        world.acts().answers(act, answer);
        done?;
        world.model().replaced();
        Ok(())
    }

    /// A server that has a place in the log takes no other one: two copies of a record would be one.
    pub(crate) async fn takes_no_member(&self, old: usize, member: usize) {
        let world = &self.world;
        let (epoch, [old, member]) = (self.epoch, [old, member].map(|n| (name(n), world.addr(n))));
        let text = format!("writer {epoch} replaces {} by {}", old.0, member.0);
        let act = world.acts().calls(text);
        let replace = self.log.replace(old.1, member.1);
        let done = exec::on(S::BLOCKS, &self.host, "replace", replace).await;
        match done {
            Ok(()) => fail(format!("{} has two places in the log", member.0)),
            Err(error) => world.acts().answers(act, error.to_string()),
        }
    }

    pub(crate) async fn replace(&self, old: usize, new: usize) {
        let done = self.try_replace(old, new).await;
        done.unwrap_or_else(|error| {
            fail(format!(
                "enough servers run for a change of them, and it fails: {error}"
            ))
        });
    }

    pub(crate) async fn read(&self) -> Vec<Record> {
        let text = format!("writer {} reads all records", self.epoch);
        let act = self.world.acts().calls(text);
        let read = exec::on(S::BLOCKS, &self.host, "read_all", self.log.read_all()).await;
        let read =
            read.unwrap_or_else(|error| fail(format!("the records cannot be read: {error}")));
        let answer = self.world.model().text(&read);
        self.world.acts().read(act, answer);
        read
    }

    /// Reads all records, and judges them.
    pub(crate) async fn check(&self) {
        let before = Before::new(&self.world);
        let read = self.judged("read", &before).await;
        self.world.model().keep(&read);
    }

    /// The same after the opening, which decides about the records of the writers before.
    pub(crate) async fn settle(&self, before: &Before) {
        let read = self.judged("opened the log", before).await;
        self.world.model().settle(self.epoch, &read);
    }

    /// Reads all records, which are right.
    async fn judged(&self, act: &str, before: &Before) -> Vec<Record> {
        let (read, epoch) = (self.read().await, self.epoch);
        let model = self.world.model();
        if let Err(broken) = model.check(&read) {
            let lost = broken.lost.map_or_else(String::new, |number| {
                let before = before.text(&model, number);
                format!(". Before writer {epoch} {act}, {before}")
            });
            let (why, read) = (broken.why, model.text(&read));
            fail(format!("{why}{lost}. Writer {epoch} has read {read}"));
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a record that is lost has the servers that had it, also if none had.
    #[test]
    fn a_lost_record_has_its_servers() {
        let mut model = Model::default();
        let [one, two, none] = [20, 30, 40].map(|len| model.begin(1, len));
        let memories = vec![two.1.clone(), vec![0; 9], [one.1, two.1].concat()];
        let up = vec![0, 1];
        let before = Before { up, memories };
        let text = |number| before.text(&model, number);
        let ran = "server-0, server-1 ran, and ";
        for (number, had) in [
            (one.0, "only server-2 had the bytes of record 0"),
            (two.0, "server-0, server-2 had the bytes of record 1"),
            (none.0, "no server had the bytes of record 2"),
        ] {
            assert_eq!(text(number), format!("{ran}{had}"));
        }
    }
}
