//! The writers of a [`World`]: each opens the log, and the judge has the records that it reads then.

use std::sync::Arc;

use rpma::sim::Host;

use crate::exec;
use crate::subject::{Opening, Shape, Subject};
use crate::world::{World, fail, names};
use crate::writer::{Before, Writer};

impl<S: Subject> World<S> {
    /// Opens the log as its next writer. In a change, with one of its two lists.
    pub(crate) async fn try_open(&self, host: &Host) -> Result<Writer<S>, String> {
        let mut why = String::new();
        let lists = self.model().lists();
        for list in lists {
            match self.try_open_with(host, &list).await {
                Ok(writer) => return Ok(writer),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Opens the log with these servers, and judges the records that it reads.
    pub(crate) async fn try_open_with(
        &self,
        host: &Host,
        servers: &[usize],
    ) -> Result<Writer<S>, String> {
        let before = Before::new(self);
        let epoch = self.next_epoch();
        let opening = Opening {
            addr: host.addr().into(),
            servers: servers.iter().map(|n| self.addr(*n)).collect(),
            epoch,
            platform: self.platform(),
            host: host.clone(),
        };
        let act = self.acts().calls(format!("writer {epoch} opens the log"));
        let open = self.subject().open(opening);
        let log = exec::on(S::BLOCKS, host, "open", open).await;
        let log = log.map_err(|error| error.to_string());
        let answer = log
            .as_ref()
            .map_or_else(Clone::clone, |_| "open".to_owned());
        self.acts().answers(act, answer);
        let writer = Writer::new(Arc::new(log?), self, host, epoch);
        writer.settle(&before).await;
        Ok(writer)
    }

    /// As [`try_open`](Self::try_open), where a log has to open.
    pub(crate) async fn open_on(&self, host: &Host) -> Writer<S> {
        let opened = self.try_open(host).await;
        opened.unwrap_or_else(|error| {
            fail(format!(
                "the log does not open, and {} run: {error}{}",
                names(&self.serving()),
                self.returned()
            ))
        })
    }

    pub(crate) async fn open(&self) -> Writer<S> {
        self.open_on(&self.client().clone()).await
    }

    /// A writer ends. The last servers open the log, and take a record.
    pub(crate) async fn last_open_after(&self, writer: Writer<S>) {
        drop(writer);
        self.kill_writers(self.client());
        self.only(&self.last()).await;
        self.open().await.append(Shape::LEAST_LONGEST).await;
    }

    /// A log that all servers have, with one durable record.
    pub(crate) async fn begun(&self) -> Writer<S> {
        self.begun_on(&self.all()).await
    }

    /// A log that only these servers have, with one durable record.
    pub(crate) async fn begun_on(&self, up: &[usize]) -> Writer<S> {
        self.only(up).await;
        let writer = self.open().await;
        self.settle().await;
        writer.append(Shape::LEAST_LONGEST).await;
        self.settle().await;
        writer
    }
}
