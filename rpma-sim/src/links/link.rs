//! The network as a test sees it: faults that it arms, and hosts that it stops.

use std::sync::Arc;
use std::time::Duration;

use super::{Delay, LinkFault};
use crate::fabric::{Fabric, Host};
use crate::qp::Qp;
use crate::state::Shared;

/// The way from one host to another, and the faults on it: see [`Fabric::between`].
///
/// A reliable connection repeats packets that are lost. A program sees only the time that this
/// takes ([`lose_packet`](Self::lose_packet)), unless all repetitions are lost as well
/// ([`lose_request`](Self::lose_request), [`lose_acknowledgement`](Self::lose_acknowledgement)).
/// Then the request ends as `RETRY_EXC_ERR` (`IBV_WC_RETRY_EXC_ERR`), and its queue pair fails.
/// The responder's queue pair fails when it sends something itself (IBA 9.9.2, 11.6.2). A real
/// device needs time until it gives up: its acknowledgement timeout, multiplied by the retry count
/// plus one. With a retry count of 7, soft-RoCE never gives up (`rxe_comp.c`). Here `lose_request`
/// and `lose_acknowledgement` end a request at once, on each profile.
///
/// On a profile of [iWARP](crate::Profile::SIW_6_12) the connection is a TCP stream. What ends a
/// request as `RETRY_EXC_ERR` elsewhere interrupts the stream there: both ends get the end of the
/// connection, and requests that have not completed are flushed. TCP repeats for 15 minutes.
///
/// Requests are counted as devices see them: `rpma`'s flush is a read if the device has no flush
/// of its own, and `Conn::close` writes 0 bytes. `nth` counts the requests after the call, 1 being
/// the next, in the order in which the peer gets them. A request that is repeated counts once, for
/// instance a message that finds no receive. Several faults may be armed at once. If two are due
/// at the same request, the one that was armed later happens to the next request.
///
/// The client and the server may be the same host.
#[derive(Clone, Debug)]
pub struct Link {
    shared: Arc<Shared>,
    from: usize,
    to: usize,
}

impl Fabric {
    /// Returns the link from `client` to `server`, on which a test causes faults. Its requests are
    /// those that queue pairs of `client` send to queue pairs of `server`. It does not matter
    /// which side has connected.
    ///
    /// # Panics
    ///
    /// If one of them is a host of another fabric.
    #[must_use]
    pub fn between(&self, client: &Host, server: &Host) -> Link {
        for host in [client, server] {
            let is_own = Arc::ptr_eq(self.shared(), host.shared());
            assert!(is_own, "a host of another fabric");
        }
        Link {
            shared: Arc::clone(self.shared()),
            from: client.index(),
            to: server.index(),
        }
    }
}

impl Link {
    /// The `nth` request from now on does not arrive: it is not executed, and ends as
    /// `RETRY_EXC_ERR`.
    ///
    /// # Panics
    ///
    /// If `nth` is 0.
    pub fn lose_request(&self, nth: u32) {
        self.arm(nth, LinkFault::Request);
    }

    /// The `nth` request from now on is executed, and yet ends as `RETRY_EXC_ERR`: its
    /// acknowledgement does not arrive. The requester cannot distinguish this from
    /// [`lose_request`](Self::lose_request). A read places no bytes, as they come with the answer.
    ///
    /// If the responder refuses the request, it ends as refused.
    ///
    /// # Panics
    ///
    /// If `nth` is 0.
    pub fn lose_acknowledgement(&self, nth: u32) {
        self.arm(nth, LinkFault::Acknowledgement);
    }

    /// The `nth` request from now on is executed, and so are all later requests of its queue pair.
    /// All their acknowledgements are lost. The device sends the `nth` request again until its
    /// retries are exhausted, and until then the requests that the program posts are executed as
    /// well. Then the `nth` request ends as `RETRY_EXC_ERR`, and the others as flushed. So the
    /// first operation that failed need not be the first that was not executed.
    ///
    /// # Panics
    ///
    /// If `nth` is 0.
    pub fn lose_acknowledgements(&self, nth: u32) {
        self.arm(nth, LinkFault::AllAcknowledgements);
    }

    /// One packet of the `nth` request from now on is lost. The device sends the request again
    /// after its acknowledgement timeout, and with it all later requests, so that only time is
    /// lost. It reads the data of the lost packet and of all later ones again.
    ///
    /// On soft-RoCE of Linux 6.12 a native flush or atomic write that is sent again fails with
    /// `REM_ACCESS_ERR`.
    ///
    /// # Panics
    ///
    /// If `nth` is 0.
    pub fn lose_packet(&self, nth: u32) {
        self.arm(nth, LinkFault::Packet);
    }

    /// The acknowledgement of the `nth` request from now on is lost once: the request is executed,
    /// and completes after the device has sent it again.
    ///
    /// On soft-RoCE of Linux 6.12 a native flush or atomic write ends as `RETRY_EXC_ERR` instead,
    /// when its retries are exhausted.
    ///
    /// # Panics
    ///
    /// If `nth` is 0.
    pub fn lose_answer(&self, nth: u32) {
        self.arm(nth, LinkFault::Answer);
    }

    /// The `nth` plain RDMA write from now on places only its first `bytes` bytes, and ends as
    /// `RETRY_EXC_ERR`. Writes with immediate data, atomic writes and all other requests are not
    /// counted; `Conn::atomic_write` is a plain write where the device has no atomic one.
    ///
    /// A device sends a write in packets and places each one as it comes. So real lengths are
    /// multiples of the path's MTU: 1024 bytes on soft-RoCE over Ethernet, up to 4096. Any other
    /// number is taken as well. A write that is not longer than `bytes` is placed completely.
    ///
    /// # Panics
    ///
    /// If `nth` is 0.
    pub fn place_only(&self, nth: u32, bytes: usize) {
        self.arm(nth, LinkFault::Rest { placed: bytes });
    }

    /// From now on, each request is executed `duration` after its post. Requests stay in order,
    /// and many are on their way at the same time. Acknowledgements and the connection manager's
    /// messages take no time.
    ///
    /// A delay, however long, does not make a device retry.
    ///
    /// If the requester's queue pair fails, is disconnected or destroyed meanwhile, a prefix of the
    /// requests that are on their way, chosen at random, is executed after their delay, if the
    /// responder's queue pair still takes requests then. They get no answer.
    ///
    /// A new delay does not change the delay of requests that are on their way. [`Duration::ZERO`]
    /// is the exception: they arrive at once, and so do all later requests.
    pub fn delay(&self, duration: Duration) {
        let mut state = self.shared.lock();
        let way = (self.from, self.to);
        if !duration.is_zero() {
            state.links.delays.insert(way, Delay::Always(duration));
            return;
        }
        state.links.delays.remove(&way);
        let is_on = |qp: &Qp| match state.way_of(qp) {
            Some(of) => of == way,
            None => qp.peer.is_some() && state.host_of(qp) == self.from,
        };
        for number in state.qps_where(is_on) {
            state.arrived(number, None);
        }
    }

    /// Delays requests as [`delay`](Self::delay) does. For each post the seed chooses another
    /// delay, of at most `most`. Requests of a connection stay in order.
    pub fn delay_up_to(&self, most: Duration) {
        let way = (self.from, self.to);
        let delays = &mut self.shared.lock().links.delays;
        delays.insert(way, Delay::UpTo(most));
    }

    /// From now on, one in `one_in` requests loses a packet, as with
    /// [`lose_packet`](Self::lose_packet). The seed chooses these requests. 0 ends the losses.
    pub fn lose_packets(&self, one_in: u32) {
        let way = (self.from, self.to);
        let loses = &mut self.shared.lock().links.loses;
        match one_in {
            0 => drop(loses.remove(&way)),
            _ => drop(loses.insert(way, one_in)),
        }
    }

    /// From now on requests stay on their way until [`release`](Self::release): no device takes
    /// them for lost. Acknowledgements and the connection manager's messages are not held.
    ///
    /// If their requester is destroyed or fails meanwhile, a prefix of them stays on its way, as
    /// with [`delay`](Self::delay).
    pub fn hold(&self) {
        let way = (self.from, self.to);
        self.shared.lock().links.held.insert(way);
    }

    /// Ends a [`hold`](Self::hold): all requests that are on their way arrive at once, in their
    /// order, delayed ones as well. If the queue pair to which they go is destroyed, they get no
    /// answer.
    pub fn release(&self) {
        let mut state = self.shared.lock();
        let way = (self.from, self.to);
        state.links.held.remove(&way);
        for number in state.strays_on(way) {
            state.strays_arrive(number, None);
        }
        let is_on = |qp: &Qp| match state.way_of(qp) {
            Some(of) => of == way,
            None => qp.peer.is_some() && state.host_of(qp) == self.from,
        };
        for number in state.qps_where(is_on) {
            state.arrived(number, None);
        }
    }

    /// From now on no message arrives, in either direction, until [`heal`](Self::heal).
    ///
    /// A request is repeated until its retries are exhausted, and ends as `RETRY_EXC_ERR` then.
    ///
    /// The connection manager repeats messages as well, as the kernel's does
    /// (`drivers/infiniband/core/cm.c` and `cma.c`):
    ///
    /// * A request for a connection, a reply and a disconnect are repeated every 4.3 s
    ///   (`CMA_CM_RESPONSE_TIMEOUT`), 15 times (`CMA_MAX_CM_RETRIES`), until 69 s have passed. Then
    ///   a connect, or an accept, ends with `RDMA_CM_EVENT_UNREACHABLE`, and a disconnect with
    ///   `RDMA_CM_EVENT_DISCONNECTED`. Both have the status `-ETIMEDOUT`. A request or a reply may
    ///   arrive and get no answer from the other program. Then the limit is 17 minutes, with a
    ///   partition or without, because the other kernel asks for more time (`CMA_CM_MRA_SETTING`).
    /// * A reject is sent once. If it is lost, the client asks again when the reject could have
    ///   arrived, and the listener gets one more request. (The kernel's client asks every 4.3 s.)
    /// * An id that is destroyed sends its message once as well. If a program drops a connection
    ///   during the partition, the peer does not learn of it. The connection stays open there until
    ///   the peer sends a request and gets no answer.
    /// * The resolution of an address waits until its host can be reached, or until its time-out.
    ///   (A real kernel remembers addresses for a while. A simulated host does not.)
    pub fn partition(&self) {
        let parted = &mut self.shared.lock().links.parted;
        parted.extend([(self.from, self.to), (self.to, self.from)]);
    }

    /// From now on no message arrives in this direction, until [`heal`](Self::heal). The other
    /// direction is open: its requests are executed, and their acknowledgements are lost, as after
    /// [`lose_acknowledgements`](Self::lose_acknowledgements) for each connection. Requests of
    /// this direction, and messages of the connection manager, behave as in a
    /// [`partition`](Self::partition).
    pub fn block(&self) {
        let way = (self.from, self.to);
        self.shared.lock().links.parted.insert(way);
    }

    /// Ends a [`partition`](Self::partition) or a [`block`](Self::block), in both directions. The
    /// messages that it kept back arrive at once. (A real device would wait for its next retry.)
    pub fn heal(&self) {
        let mut state = self.shared.lock();
        let parted = &mut state.links.parted;
        let there = parted.remove(&(self.from, self.to));
        let back = parted.remove(&(self.to, self.from));
        if there || back {
            state.go_on(None);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Takes back all armed faults of this link that have not happened yet, and returns their
    /// number.
    pub fn disarm(&self) -> usize {
        let mut state = self.shared.lock();
        let armed = &mut state.links.armed;
        let before = armed.len();
        armed.retain(|armed| armed.from != Some(self.from) || armed.to != Some(self.to));
        before - armed.len()
    }

    fn arm(&self, nth: u32, fault: LinkFault) {
        let mut state = self.shared.lock();
        state.links.arm(Some(self.from), Some(self.to), nth, fault);
    }
}

impl Fabric {
    /// Lets hosts be apart: from now on some posted requests arrive at once, as before, and some so
    /// late that requests to other hosts pass them. All requests of one post arrive together.
    ///
    /// Without it a request is executed when its program polls, so replicas answer in the order of
    /// their polls. The fabric's [seed](Self::seeded) chooses which requests are late. Without a
    /// seed, the same ones are late in each run of the same program, as in the time of an async
    /// program ([`follow`](Self::follow)). [`explore`](crate::explore) always tries both.
    ///
    /// A late request takes 0.4 ms, or 10 ms while a test watches for losses of power. Where a
    /// test has set a delay ([`Link::delay`], [`Link::delay_up_to`]), that holds instead.
    pub fn apart(&self) {
        self.shared().lock().links.are_apart = true;
    }
}

impl Host {
    /// From now on its devices stand still, until [`thaw`](Self::thaw): they do not send, serve or
    /// complete, and their retries do not count down. Its peers see a host that does not answer, as
    /// in a [`partition`](Link::partition).
    ///
    /// Its threads go on: posted requests stay in the queues, and requests that a disconnect or a
    /// failure flushes are completed only after `thaw`. The connection manager goes on too, with
    /// its time limits, but does not send or receive.
    pub fn freeze(&self) {
        self.shared().lock().freeze(self.index());
    }

    /// Ends a [`freeze`](Self::freeze): the devices do their pending work at once.
    pub fn thaw(&self) {
        let mut state = self.shared().lock();
        if state.links.frozen.remove(&self.index()) {
            state.go_on(Some(self.index()));
        }
        drop(state);
        self.shared().changed.notify_all();
    }

    /// The `nth` message that takes a receive on this host from now on, 1 being the next, is never
    /// complete, as if its client died in the middle of it. No byte of the message is placed, and
    /// the receive is not complete either. Messages are sends and writes with immediate data, of
    /// queue pairs of any host.
    ///
    /// At the requester the message ends as `RETRY_EXC_ERR` at once, as after
    /// [`Link::lose_request`].
    ///
    /// A receive of a queue pair's own queue is flushed with the others when the queue pair fails.
    /// The message may have taken its receive from a shared receive queue (`get_srq_wqe` in
    /// soft-RoCE's `rxe_resp.c`). No connection can use that receive then. When the queue pair
    /// fails, a [strict](crate::Profile::STRICT) adapter and soft-RoCE of Linux 6.1 return the
    /// receive as flushed. soft-RoCE of Linux 6.12 never does.
    ///
    /// # Panics
    ///
    /// If `nth` is 0.
    pub fn lose_receive(&self, nth: u32) {
        let mut state = self.shared().lock();
        state
            .links
            .arm(None, Some(self.index()), nth, LinkFault::Receive);
    }
}
