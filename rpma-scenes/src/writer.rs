//! [`Writer`]: a log that is open. Its calls are acts of the scene, and the judge has their outcomes.

use std::sync::Arc;

use rpma::sim::Host;

use crate::exec;
use crate::subject::{Appended, Log as _, Record, Subject};
use crate::world::{World, fail, name};

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
        let read = self.read().await;
        let mut model = self.world.model();
        let judged = model.check(&read);
        judged.unwrap_or_else(|why| {
            fail(format!("{why}. Its writer has read {}", model.text(&read)))
        });
        model.keep(&read);
    }
}
