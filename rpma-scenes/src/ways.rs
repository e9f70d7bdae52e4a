//! [`Way`]: the network between the writer and a server, which a scene disturbs.

use std::time::Duration;

use rpma::sim::Link;

use crate::subject::Subject;
use crate::world::{World, name};

impl<S: Subject> World<S> {
    /// The way from the usual writer to a server.
    pub(crate) fn link(&self, n: usize) -> Way<'_, S> {
        Way {
            world: self,
            link: self.fabric().between(self.client(), &self.host(n)),
            name: format!("the network between the writer and {}", name(n)),
        }
    }

    pub(crate) fn delay_all(&self, delay: Duration) {
        self.all()
            .into_iter()
            .for_each(|n| self.link(n).delay(delay));
    }

    /// The way back.
    pub(crate) fn link_back(&self, n: usize) -> Way<'_, S> {
        Way {
            world: self,
            link: self.fabric().between(&self.host(n), self.client()),
            name: format!("the network from {} to the writer", name(n)),
        }
    }
}

/// More requests than clients send in some seconds, if the first one of each connection is lost.
const ALL: usize = 1000;

/// The network between two hosts.
pub(crate) struct Way<'a, S: Subject> {
    world: &'a World<S>,
    link: Link,
    name: String,
}

impl<S: Subject> Way<'_, S> {
    fn does(&self, what: &str) {
        self.world.acts().does(format!("{} {what}", self.name));
    }

    pub(crate) fn partition(&self) {
        self.does("is interrupted");
        self.link.partition();
    }

    pub(crate) fn block(&self) {
        self.does("is blocked");
        self.link.block();
    }

    pub(crate) fn heal(&self) {
        self.does("works again");
        self.link.heal();
    }

    /// The `nth` request from now on does not arrive, nor do those after it.
    pub(crate) fn lose_request(&self, nth: usize) {
        self.does(&format!("loses request {nth} from now on"));
        self.link.lose_request(nth as u32);
    }

    /// The `nth` request from now on does not arrive, nor does any after it, also of connections that
    /// are made after it.
    pub(crate) fn lose_all_from(&self, nth: usize) {
        self.does(&format!("loses each request from request {nth} on"));
        for nth in nth..nth + ALL {
            self.link.lose_request(nth as u32);
        }
    }

    /// It loses no more requests.
    pub(crate) fn disarm(&self) {
        self.link.disarm();
    }

    pub(crate) fn delay(&self, delay: Duration) {
        self.does(&format!("takes {delay:?} more"));
        self.link.delay(delay);
    }
}
