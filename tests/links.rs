//! What a program sees of a network that loses, delays and keeps back, and of hosts whose device stands still: each
//! fault of `rpma::sim`, on each profile.

mod common;

use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use rpma::sim::{Errno, Fabric, Host, Link, Profile, now, sleep};
use rpma::{
    Conn, ConnCfg, ConnEvent, ConnReq, Ep, Error, Failure, Flags, FlushType, Mr, MrSlice, MrUsage,
    Notify, Peer, Posted, Progress, Queue, RemoteSlice, Srq, SrqCfg, Wc, WcOpcode, WcStatus,
};

use self::common::{
    LIMIT, Memory, assert_empty, contents, event, next_completion, opcode_of, pattern, peer,
    region, remote,
};

const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;
/// More than the MTU.
const LEN: usize = 4096;

/// Two hosts.
struct World {
    hosts: [Host; 2],
    /// From the first one to the second.
    link: Link,
    client: Peer,
    server: Peer,
    /// It goes last.
    fabric: Emptied,
}

/// A fabric on which nothing is left in the end.
struct Emptied(Fabric);

/// A connection, and memory at both ends.
struct Both {
    client: Conn,
    server: Conn,
    source: Mr<Memory>,
    target: Mr<Memory>,
    fabric: Fabric,
}

impl World {
    fn new(profile: &Profile) -> Self {
        Self::on(Fabric::new(profile.clone()))
    }

    fn on(fabric: Fabric) -> Self {
        let hosts = ["client", "server"].map(|name| fabric.host(name));
        let link = fabric.between(&hosts[0], &hosts[1]);
        let [client, server] = hosts.each_ref().map(|host| {
            let _entered = host.enter();
            peer()
        });
        Self {
            hosts,
            link,
            client,
            server,
            fabric: Emptied(fabric),
        }
    }

    fn listen(&self) -> Ep {
        let _entered = self.hosts[1].enter();
        Ep::listen(&self.server, &self.hosts[1].addr().to_string(), 0).expect("listens")
    }

    fn resolve(&self, ep: &Ep, cfg: &ConnCfg) -> rpma::Result<ConnReq> {
        let _entered = self.hosts[0].enter();
        let addr = self.hosts[1].addr().to_string();
        ConnReq::new(&self.client, &addr, ep.get_port(), cfg)
    }

    fn ask(&self, ep: &Ep) -> Conn {
        let req = self.resolve(ep, &patient()).expect("resolves");
        req.connect(&[]).expect("asks")
    }

    fn connect(&self, client: &ConnCfg, server: &ConnCfg) -> (Conn, Conn) {
        let ep = self.listen();
        let req = self.resolve(&ep, client).expect("resolves");
        let asking = req.connect(&[]).expect("asks");
        let req = ep.next_conn_req_timeout(server, LIMIT);
        let server = req.expect("a request").connect(&[]).expect("accepts");
        let client = asking.wait_established(LIMIT).expect("accepted");
        (client, server.wait_established(LIMIT).expect("established"))
    }

    /// A connection whose source has bytes that the target has not.
    fn both(&self, cfg: &ConnCfg) -> Both {
        let (client, server) = self.connect(cfg, cfg);
        let source = MrUsage::WRITE_SRC | MrUsage::READ_DST | MrUsage::SEND;
        let source = region(&self.client, LEN, source);
        source.write_at(0, &pattern(LEN, 1)).expect("inside");
        let target = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
        let target = region(&self.server, LEN, target);
        Both {
            client,
            server,
            source,
            target,
            fabric: self.fabric.0.clone(),
        }
    }
}

impl Drop for Emptied {
    fn drop(&mut self) {
        let objects = self.0.objects();
        assert!(thread::panicking() || objects.is_empty(), "{objects:?}");
    }
}

impl Both {
    fn write(&self, op_context: u64) -> Posted {
        let (from, to) = (self.source.slice(..).expect("all"), self.target());
        let posted = self.client.write(to, from, ALWAYS, op_context);
        posted.expect("posted")
    }

    fn target(&self) -> RemoteSlice {
        remote(&self.target).slice(..).expect("all")
    }

    /// What the target has, once all that was executed is visible.
    fn written(&self) -> Vec<u8> {
        self.fabric.settle();
        contents(&self.target)
    }
}

fn each(test: impl Fn(&World)) {
    for profile in Profile::ALL {
        test(&World::new(&profile));
    }
}

/// Settings with which a requester waits for hours.
fn patient() -> ConnCfg {
    let mut cfg = ConnCfg::new();
    cfg.set_retry_count(7).expect("possible");
    cfg.set_ack_timeout(Some(31)).expect("possible");
    cfg
}

/// Settings with which it fails at once.
fn impatient() -> ConnCfg {
    let mut cfg = ConnCfg::new();
    cfg.set_retry_count(1).expect("possible");
    cfg.set_ack_timeout(Some(1)).expect("possible");
    cfg
}

/// The next completion.
fn completion(conn: &Conn) -> Wc {
    next_completion(conn.get_cq())
}

/// A completion says that the peer did not answer.
fn unanswered(wc: &Wc, op_context: u64) {
    let failure = wc.result().expect_err("nobody has answered");
    assert_eq!(
        (failure.status, failure.wr_id),
        (WcStatus::RETRY_EXC_ERR, op_context),
        "{failure}"
    );
}

/// There is no event.
fn nothing(conn: &Conn) {
    let event = conn.next_event_timeout(Duration::ZERO);
    assert!(matches!(event, Err(Error::NoEvent)), "{event:?}");
}

/// A write that is lost is not there, what was before it is, and what is behind it is flushed; each with the endless
/// retries that rxe has as well.
#[test]
fn a_lost_request_is_not_executed() {
    each(|world| {
        let both = world.both(&patient());
        world.link.lose_request(2);
        let [first, rest] = [0..8, 8..LEN].map(|range| both.source.slice(range).expect("inside"));
        let to = |range: std::ops::Range<u64>| remote(&both.target).slice(range).expect("inside");
        let mut batch = both.client.batch::<3>();
        batch.write(to(0..8), first, ALWAYS, 1).expect("added");
        batch
            .write(to(8..LEN as u64), rest, ALWAYS, 2)
            .expect("added");
        batch.write(to(16..24), first, ALWAYS, 3).expect("added");
        batch.post().expect("posted");
        opcode_of(&completion(&both.client), 1);
        unanswered(&completion(&both.client), 2);
        let flushed = completion(&both.client).result().expect_err("flushed");
        assert_eq!(flushed.status, WcStatus::WR_FLUSH_ERR);
        let mut expected = vec![0; LEN];
        expected[..8].copy_from_slice(&pattern(LEN, 1)[..8]);
        assert_eq!(both.written(), expected);
        let Some(Failure::Operation(failure)) = both.client.failure() else {
            panic!("an operation has failed: {:?}", both.client.failure());
        };
        assert_eq!(failure.status, WcStatus::RETRY_EXC_ERR);
    });
}

/// A failed write may have been executed all the same: nobody may conclude that it was not.
#[test]
fn a_lost_acknowledgement_leaves_what_was_written() {
    each(|world| {
        let both = world.both(&patient());
        world.link.lose_acknowledgement(1);
        both.write(1);
        unanswered(&completion(&both.client), 1);
        assert_eq!(both.written(), contents(&both.source));
    });
}

/// The same of each other operation: an atomic write and a message are there, and a read brings nothing.
#[test]
fn an_acknowledgement_of_anything_can_be_lost() {
    each(|world| {
        let both = world.both(&patient());
        world.link.lose_acknowledgement(1);
        let to = remote(&both.target).slice(8..16).expect("inside");
        both.client
            .atomic_write(to, &[7; 8], ALWAYS, 1)
            .expect("posted");
        unanswered(&completion(&both.client), 1);
        assert_eq!(both.written()[8..16], [7; 8]);

        let both = world.both(&patient());
        world.link.lose_acknowledgement(1);
        let before = contents(&both.source);
        let into = both.source.slice(..).expect("all");
        both.client
            .read(into, both.target(), ALWAYS, 2)
            .expect("posted");
        unanswered(&completion(&both.client), 2);
        assert_eq!(contents(&both.source), before);

        let both = world.both(&patient());
        world.link.lose_acknowledgement(1);
        both.server.recv(MrSlice::EMPTY, 4).expect("posted");
        both.client.send(MrSlice::EMPTY, ALWAYS, 3).expect("posted");
        unanswered(&completion(&both.client), 3);
        opcode_of(&completion(&both.server), 4);

        let both = world.both(&patient());
        world.link.lose_acknowledgement(1);
        both.client
            .flush(both.target(), FlushType::Visibility, ALWAYS, 5)
            .expect("posted");
        unanswered(&completion(&both.client), 5);
    });
}

/// A write may be there in part, and its beginning first. Only plain writes are counted for that.
#[test]
fn a_part_of_a_write() {
    for placed in [0, 1, 1024, 2048, LEN, LEN + 1] {
        each(|world| {
            let both = world.both(&patient());
            world.link.place_only(2, placed);
            both.server.recv(MrSlice::EMPTY, 1).expect("posted");
            both.client.send(MrSlice::EMPTY, ALWAYS, 1).expect("posted");
            opcode_of(&completion(&both.client), 1);
            both.client
                .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 2)
                .expect("posted");
            opcode_of(&completion(&both.client), 2);
            both.write(3);
            unanswered(&completion(&both.client), 3);
            let mut expected = contents(&both.source);
            expected[placed.min(LEN)..].fill(0);
            assert_eq!(both.written(), expected, "{placed} bytes");
        });
    }
}

/// A request that finds no receive and is repeated is one request, and the other direction is another link.
#[test]
fn requests_are_counted_once() {
    each(|world| {
        let both = world.both(&patient());
        world.link.lose_request(2);
        for n in 0..4 {
            both.server
                .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, n)
                .expect("posted");
            opcode_of(&completion(&both.server), n);
        }
        both.client.send(MrSlice::EMPTY, ALWAYS, 1).expect("posted");
        for _ in 0..100 {
            assert_empty(both.client.get_cq());
        }
        both.server.recv(MrSlice::EMPTY, 1).expect("posted");
        opcode_of(&completion(&both.client), 1);
        both.write(2);
        unanswered(&completion(&both.client), 2);
    });
}

/// What is delayed is not there before its time, nor completed, and arrives in order.
#[test]
fn delayed_requests_stay_in_order() {
    each(|world| {
        let both = world.both(&patient());
        let values = |n: u8| {
            let to = remote(&both.target).slice(0..8).expect("inside");
            let value = &[n; 8];
            both.client
                .atomic_write(to, value, ALWAYS, n.into())
                .expect("posted");
        };
        world.link.delay(Duration::from_secs(3600));
        (1..=3).for_each(values);
        assert_empty(both.client.get_cq());
        assert_eq!(both.written()[..8], [0; 8]);
        world.link.delay(Duration::ZERO);
        for n in 1..=3 {
            opcode_of(&completion(&both.client), n);
        }
        assert_eq!(both.written()[..8], [3; 8]);

        let delay = Duration::from_millis(20);
        world.link.delay(delay);
        let start = Instant::now();
        (4..=9).for_each(values);
        for n in 4..=9 {
            opcode_of(&completion(&both.client), n);
            assert!(start.elapsed() >= delay);
        }
        assert_eq!(both.written()[..8], [9; 8]);
    });
}

/// What is posted during a partition is done after it: with retries without end, however long it took, and in both
/// directions.
#[test]
fn a_partition_keeps_back() {
    each(|world| {
        let both = world.both(&patient());
        world.link.partition();
        both.write(1);
        both.client.send(MrSlice::EMPTY, ALWAYS, 2).expect("posted");
        both.server
            .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 3)
            .expect("posted");
        both.server.recv(MrSlice::EMPTY, 4).expect("posted");
        assert_empty(both.client.get_cq());
        assert_empty(both.server.get_cq());
        assert_eq!(both.written(), [0; LEN]);
        world.link.heal();
        opcode_of(&completion(&both.client), 1);
        opcode_of(&completion(&both.client), 2);
        let mut arrived = [3, 4].map(|_| completion(&both.server).wr_id());
        arrived.sort_unstable();
        assert_eq!(arrived, [3, 4]);
        assert_eq!(both.written(), contents(&both.source));
    });
}

/// And with a few retries it fails, also where 7 of them are without end.
#[test]
fn a_partition_exhausts_retries() {
    each(|world| {
        let both = world.both(&impatient());
        world.link.partition();
        both.write(1);
        unanswered(&completion(&both.client), 1);
        world.link.heal();
        assert_eq!(both.written(), [0; LEN]);
    });
}

/// Retries without end: however many there were, the request is done when the hosts reach each other.
#[test]
fn endless_retries_outlast_a_partition() {
    for profile in [Profile::RXE_6_12, Profile::RXE_6_1] {
        let world = World::new(&profile);
        let mut cfg = impatient();
        cfg.set_retry_count(7).expect("possible");
        let both = world.both(&cfg);
        world.link.partition();
        both.write(1);
        // Some thousand times as long as 8 tries take.
        thread::sleep(Duration::from_millis(100));
        assert_empty(both.client.get_cq());
        world.link.heal();
        opcode_of(&completion(&both.client), 1);
        assert_eq!(both.written(), contents(&both.source));
    }
}

/// A connection that is asked for, accepted or confirmed during a partition is there after it.
#[test]
fn connecting_across_a_partition() {
    each(|world| {
        let ep = world.listen();
        let request = |limit| ep.next_conn_req_timeout(&patient(), limit);
        let req = world.resolve(&ep, &patient()).expect("resolves");
        world.link.partition();
        let client = req.connect(b"it is me").expect("asks");
        let none = request(Duration::ZERO);
        assert!(matches!(none, Err(Error::NoEvent)), "{none:?}");
        world.link.heal();
        let req = request(LIMIT).expect("a request");
        assert!(req.get_private_data().starts_with(b"it is me"));

        world.link.partition();
        let server = req.connect(b"welcome").expect("accepts");
        nothing(&client);
        world.link.heal();

        world.link.partition();
        let client = client.wait_established(LIMIT).expect("accepted");
        assert!(client.get_private_data().starts_with(b"welcome"));
        client
            .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 1)
            .expect("posted");
        nothing(&server);
        world.link.heal();
        let _server = server.wait_established(LIMIT).expect("established");
        opcode_of(&completion(&client), 1);
    });
}

/// A reject is sent once: a client that does not get it asks again, and is heard again.
#[test]
fn a_reject_that_is_lost() {
    each(|world| {
        let ep = world.listen();
        let request = || ep.next_conn_req_timeout(&patient(), LIMIT);
        let client = world.ask(&ep);
        let req = request().expect("a request");
        world.link.partition();
        req.reject(b"not you").expect("rejects");
        nothing(&client);
        world.link.heal();
        let req = request().expect("it asks again");
        nothing(&client);
        req.reject(b"not you").expect("rejects");
        match event(&client) {
            ConnEvent::Rejected { private_data, .. } => {
                assert!(private_data.starts_with(b"not you"));
            }
            event => panic!("{event}"),
        }
    });
}

/// Ends that go away during a partition leave the other end what it would have of a dead host; nothing else fails.
#[test]
fn ends_that_go_away_unheard() {
    each(|world| {
        let ep = world.listen();
        let request = || ep.next_conn_req_timeout(&patient(), LIMIT);
        // A client that gives up: its server accepts in vain.
        let client = world.ask(&ep);
        let req = request().expect("a request");
        world.link.partition();
        drop(client);
        let server = req.connect(&[]).expect("accepts");
        world.link.heal();
        nothing(&server);
        drop(server);

        // A server that does.
        let client = world.ask(&ep);
        let req = request().expect("a request");
        world.link.partition();
        let server = req.connect(&[]).expect("accepts");
        drop(server);
        world.link.heal();
        drop(request().expect("the client asks again"));
        assert!(matches!(event(&client), ConnEvent::Rejected { .. }));

        // A listener that is gone.
        let req = world.resolve(&ep, &patient()).expect("resolves");
        world.link.partition();
        let client = req.connect(&[]).expect("asks");
        ep.shutdown().expect("is gone");
        nothing(&client);
        world.link.heal();
        assert!(matches!(event(&client), ConnEvent::Rejected { .. }));
    });
}

/// A host that is not reached has no address, and one that is reached in time has.
#[test]
fn resolving_across_a_partition() {
    each(|world| {
        let ep = world.listen();
        world.link.partition();
        let mut cfg = ConnCfg::new();
        cfg.set_timeout(Duration::from_millis(20));
        let error = world.resolve(&ep, &cfg).expect_err("nobody answers");
        assert!(error.to_string().contains("did not answer") || error.raw_os_error().is_some());

        cfg.set_timeout(LIMIT);
        let _entered = world.hosts[0].enter();
        let to = (world.hosts[1].addr(), ep.get_port()).into();
        let resolving = ConnReq::resolve(&world.client, to, &cfg).expect("begins");
        let Progress::Waiting(resolving) = resolving.advance().expect("nothing yet") else {
            panic!("it is not reached");
        };
        world.link.heal();
        let Progress::Ready(_) = resolving.advance().expect("it is there") else {
            panic!("it is resolved");
        };
    });
}

/// A disconnect does not wait for the peer, who learns of it when it is reached.
#[test]
fn disconnecting_across_a_partition() {
    each(|world| {
        let (client, server) = world.connect(&patient(), &patient());
        world.link.partition();
        client.disconnect().expect("says so");
        nothing(&client);
        nothing(&server);
        world.link.heal();
        assert_eq!(event(&server), ConnEvent::Closed);
        server.disconnect().expect("answers");
        assert_eq!(event(&client), ConnEvent::Closed);

        // Both at the same time: one answers the other.
        let (client, server) = world.connect(&patient(), &patient());
        world.link.partition();
        client.disconnect().expect("says so");
        server.disconnect().expect("says so");
        world.link.heal();
        assert_eq!(event(&server), ConnEvent::Closed);
        nothing(&client);
        server.delete().expect("is freed");
        assert_eq!(event(&client), ConnEvent::Closed);
    });
}

/// `Conn::close` keeps its limit, and says that nothing was acknowledged. The peer does not hear of it, and sees that
/// nobody is there when it sends something.
#[test]
fn closing_across_a_partition() {
    each(|world| {
        let (client, server) = world.connect(&patient(), &impatient());
        world.link.partition();
        let error = client.close(Duration::from_millis(10));
        let error = error.expect_err("nobody acknowledges").error;
        assert!(matches!(error, Error::TimedOut(_)), "{error:?}");
        world.link.heal();
        nothing(&server);
        drop(server);

        // The client's count is for both.
        let (client, server) = world.connect(&impatient(), &impatient());
        world.link.partition();
        drop(client);
        world.link.heal();
        nothing(&server);
        server
            .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 1)
            .expect("posted");
        unanswered(&completion(&server), 1);
    });
}

/// A device that stands still serves nobody, and serves them when it goes on.
#[test]
fn a_frozen_server() {
    each(|world| {
        let both = world.both(&patient());
        world.hosts[1].freeze();
        both.write(1);
        both.server
            .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 2)
            .expect("its threads go on");
        assert_empty(both.client.get_cq());
        assert_empty(both.server.get_cq());
        assert_eq!(both.written(), [0; LEN]);
        world.hosts[1].thaw();
        opcode_of(&completion(&both.client), 1);
        opcode_of(&completion(&both.server), 2);

        let both = world.both(&impatient());
        world.hosts[1].freeze();
        both.write(3);
        unanswered(&completion(&both.client), 3);
        world.hosts[1].thaw();
        assert_eq!(both.written(), [0; LEN]);
    });
}

/// The retries of a device that stands still do not count, and it flushes nothing.
#[test]
fn a_frozen_client() {
    each(|world| {
        let both = world.both(&impatient());
        world.hosts[0].freeze();
        both.write(1);
        // Much longer than its retries take.
        thread::sleep(Duration::from_millis(50));
        assert_empty(both.client.get_cq());
        assert_eq!(both.written(), [0; LEN]);
        world.hosts[0].thaw();
        opcode_of(&completion(&both.client), 1);
        assert_eq!(both.written(), contents(&both.source));

        world.hosts[0].freeze();
        both.write(2);
        both.client.disconnect().expect("is said later");
        assert_empty(both.client.get_cq());
        nothing(&both.server);
        world.hosts[0].thaw();
        let flushed = completion(&both.client).result().expect_err("flushed");
        assert_eq!(flushed.status, WcStatus::WR_FLUSH_ERR);
        assert_eq!(event(&both.server), ConnEvent::Closed);
    });
}

/// Neither do those count that it was waiting for when it stopped.
#[test]
fn a_client_that_is_frozen_while_nobody_answers() {
    each(|world| {
        let mut cfg = ConnCfg::new();
        cfg.set_retry_count(0).expect("possible");
        // 67 ms.
        cfg.set_ack_timeout(Some(14)).expect("possible");
        let goes_on = || {
            let both = world.both(&cfg);
            world.link.partition();
            let start = Instant::now();
            both.write(1);
            world.hosts[0].freeze();
            let in_time = start.elapsed() < Duration::from_millis(60);
            thread::sleep(Duration::from_millis(150));
            assert!(!in_time || both.client.failure().is_none());
            world.link.heal();
            world.hosts[0].thaw();
            let result = completion(&both.client).result().map(drop);
            in_time.then_some(result)
        };
        // Something else may have held this program up.
        let result = iter::repeat_with(goes_on)
            .take(20)
            .find_map(|result| result);
        result.expect("once in time").expect("it was tried again");
    });
}

/// A retry that was due while its device stood still is made when it goes on.
#[test]
fn a_client_that_is_frozen_while_it_retries() {
    each(|world| {
        let mut cfg = ConnCfg::new();
        cfg.set_retry_count(6).expect("possible");
        cfg.set_ack_timeout(Some(12)).expect("possible");
        let both = world.both(&cfg);
        both.client.send(MrSlice::EMPTY, ALWAYS, 1).expect("posted");
        world.hosts[0].freeze();
        both.server.recv(MrSlice::EMPTY, 2).expect("posted");
        thread::sleep(Duration::from_millis(50));
        assert_empty(both.server.get_cq());
        world.hosts[0].thaw();
        opcode_of(&completion(&both.client), 1);
        opcode_of(&completion(&both.server), 2);
    });
}

/// Receives that a shared queue has room for, and each has no bytes.
const DEPTH: u32 = 4;

/// A shared receive queue, with a completion queue of its own or without, and the settings of a
/// server that uses it.
fn shared(world: &World, rcq_size: u32) -> (Srq, ConnCfg) {
    let mut cfg = SrqCfg::new();
    cfg.set_rq_size(DEPTH).set_rcq_size(rcq_size);
    let srq = Srq::new(&world.server, &cfg).expect("a shared receive queue");
    let mut cfg = patient();
    cfg.set_srq(Some(&srq));
    (srq, cfg)
}

/// Posts receives until there are no free slots; how many, and the error then.
fn fill(srq: &Srq) -> (u32, Error) {
    for posted in 0.. {
        if let Err(error) = srq.recv(MrSlice::EMPTY, posted.into()) {
            return (posted, error);
        }
    }
    unreachable!("the queue has an end")
}

/// As [`fill`] of a queue that is full then.
fn fill_up(srq: &Srq) -> u32 {
    let (posted, error) = fill(srq);
    let Error::QueueFull {
        queue: Queue::SharedReceive,
        ..
    } = error
    else {
        panic!("{error:?}")
    };
    posted
}

/// A client that dies in the middle of a message.
fn break_a_message(world: &World, cfg: &ConnCfg) {
    let (client, server) = world.connect(&patient(), cfg);
    world.hosts[1].lose_receive(1);
    client.send(MrSlice::EMPTY, ALWAYS, 1).expect("posted");
    unanswered(&completion(&client), 1);
    drop(client);
    let _entered = world.hosts[1].enter();
    drop(server);
}

/// Whether a device returns the receive of an incomplete message. Then it is in the shared queue's
/// own completion queue, or was in that of the connection.
fn returned(profile: &Profile, srq: &Srq, count: u32) -> bool {
    let returns = *profile != Profile::RXE_6_12;
    if let Some(rcq) = srq.get_rcq().filter(|_| returns) {
        for _ in 0..count {
            let flushed = next_completion(rcq).result().expect_err("flushed");
            assert_eq!(flushed.status, WcStatus::WR_FLUSH_ERR, "{flushed}");
        }
    }
    returns
}

/// A message that is lost with its receive. Dropping its connection waits until the device has
/// returned the receive, where it does. Otherwise the slot of the shared queue stays counted, and
/// the queue reports it. The other receives go on serving the other clients.
#[test]
fn a_receive_of_an_incomplete_message() {
    for profile in Profile::ALL {
        let world = World::new(&profile);
        world.fabric.0.jump_over_waits();
        for rcq_size in [0, DEPTH] {
            let (srq, cfg) = shared(&world, rcq_size);
            assert_eq!(fill_up(&srq), DEPTH);
            let (client, server) = world.connect(&patient(), &cfg);
            break_a_message(&world, &cfg);
            let returns = returned(&profile, &srq, 1);
            let rcq = srq.get_rcq().unwrap_or(server.get_cq());
            assert_empty(rcq);
            for n in 1..DEPTH.into() {
                client.send(MrSlice::EMPTY, ALWAYS, n).expect("posted");
                opcode_of(&completion(&client), n);
                opcode_of(&next_completion(rcq), n);
            }
            let kept = u32::from(!returns);
            assert_eq!(srq.kept(), kept, "{}", profile.name());
            assert_eq!(fill_up(&srq), DEPTH - kept, "{}", profile.name());
        }
    }
}

/// As many broken messages as a shared queue has slots. Where the device keeps their receives, the
/// queue is used up and says so. A new queue serves new connections, while the old connections go
/// on without messages until they end.
#[test]
fn a_queue_that_is_used_up_is_replaced() {
    for profile in Profile::ALL {
        let world = World::new(&profile);
        world.fabric.0.jump_over_waits();
        for rcq_size in [0, DEPTH] {
            let (old, cfg) = shared(&world, rcq_size);
            assert_eq!(fill_up(&old), DEPTH);
            let (old_client, old_server) = world.connect(&patient(), &cfg);
            (0..DEPTH).for_each(|_| break_a_message(&world, &cfg));
            if returned(&profile, &old, DEPTH) {
                assert_eq!(fill_up(&old), DEPTH, "{}", profile.name());
                assert_eq!(old.kept(), 0, "all are new");
                continue;
            }
            assert_eq!(old.kept(), DEPTH);
            let (0, error) = fill(&old) else {
                panic!("no slot has come back")
            };
            let Error::ReceivesKept { kept, depth } = error else {
                panic!("{error:?}")
            };
            assert_eq!((kept, depth), (DEPTH, DEPTH));
            assert!(error.to_string().contains("Srq::new"), "{error}");

            let (new, cfg) = shared(&world, rcq_size);
            assert_eq!(fill_up(&new), DEPTH);
            let (client, server) = world.connect(&patient(), &cfg);
            client.send(MrSlice::EMPTY, ALWAYS, 1).expect("posted");
            opcode_of(&completion(&client), 1);
            let rcq = new.get_rcq().unwrap_or(server.get_cq());
            opcode_of(&next_completion(rcq), 0);
            // The old ones still write.
            let nothing = (RemoteSlice::EMPTY, MrSlice::EMPTY);
            let written = old_client.write(nothing.0, nothing.1, ALWAYS, 2);
            written.expect("posted");
            opcode_of(&completion(&old_client), 2);
            old_server.delete().expect("everything is freed");
            drop(cfg);
            old.delete().expect("everything is freed");
        }
    }
}

/// A device that never reports the last receive of a connection delays its drop for a limited
/// time, and the receive counts as kept until it comes back.
#[test]
fn a_last_receive_is_waited_for_with_a_limit() {
    each(|world| {
        let (srq, cfg) = shared(world, DEPTH);
        let (client, server) = world.connect(&patient(), &cfg);
        assert_eq!(fill_up(&srq), DEPTH);
        world.fabric.0.jump_over_waits();
        let start = now();
        {
            let _entered = world.hosts[1].enter();
            // Its device reports nothing.
            world.hosts[1].freeze();
            drop(server);
            world.hosts[1].thaw();
        }
        assert!(now() - start < Duration::from_secs(1));
        assert_eq!(srq.kept(), 1, "it may be");
        drop(client);
        // The last message of a later connection proves that all are there.
        let (client, _server) = world.connect(&patient(), &cfg);
        for n in 0..DEPTH.into() {
            client.send(MrSlice::EMPTY, ALWAYS, n).expect("posted");
            opcode_of(&completion(&client), n);
            opcode_of(&next_completion(srq.get_rcq().expect("its own")), n);
        }
        assert_eq!(srq.kept(), 0);
    });
}

/// A receive of a connection's own queue comes back when its connection ends.
#[test]
fn a_receive_of_ones_own_is_flushed() {
    each(|world| {
        let both = world.both(&patient());
        world.hosts[1].lose_receive(2);
        for n in 1..=3 {
            both.server.recv(MrSlice::EMPTY, n).expect("posted");
        }
        both.client.send(MrSlice::EMPTY, ALWAYS, 1).expect("posted");
        opcode_of(&completion(&both.client), 1);
        let to = both.target();
        let from = both.source.slice(..).expect("all");
        both.client
            .write_with_imm(to, from, ALWAYS, 7, 2)
            .expect("posted");
        unanswered(&completion(&both.client), 2);
        opcode_of(&completion(&both.server), 1);
        assert_empty(both.server.get_cq());
        assert_eq!(both.written(), [0; LEN]);
        let Both { client, server, .. } = both;
        drop(client);
        assert_eq!(event(&server), ConnEvent::Closed);
        let flushed = server.close(LIMIT).expect("closes");
        let flushed: Vec<_> = flushed.iter().map(Wc::wr_id).collect();
        assert_eq!(flushed, [2, 3]);
    });
}

/// A client asks for retries without end, and its host is gone. The server notices that after as
/// many retries as its own settings allow.
#[test]
fn an_accepting_side_counts_its_own_retries() {
    /// Its first try, and the retries.
    const TRIES: u32 = 4;
    /// 137 s: what this test itself takes does not matter beside it.
    const EXPONENT: u8 = 25;
    each(|world| {
        let mut cfg = ConnCfg::new();
        cfg.set_retry_count(TRIES as u8 - 1).expect("possible");
        cfg.set_ack_timeout(Some(EXPONENT)).expect("possible");
        let (_client, server) = world.connect(&patient(), &cfg);
        world.fabric.0.jump_over_waits();
        let _entered = world.hosts[1].enter();
        world.hosts[0].freeze();
        let start = now();
        let probe = server.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 1);
        let noticed = server.wait_for(probe.expect("posted"), 60 * LIMIT, |_| {});
        let noticed = noticed.expect_err("the client is gone");
        let Error::Operation(failure) = &noticed else {
            panic!("{noticed:?}");
        };
        assert_eq!(failure.status, WcStatus::RETRY_EXC_ERR, "{noticed}");
        let (took, one) = (now() - start, Duration::from_nanos(4_096 << EXPONENT));
        assert!(
            took >= one * TRIES && took < one * (TRIES + 1),
            "{took:?}, at {one:?} each"
        );
        world.hosts[0].thaw();
    });
}

/// The way back is closed: requests are executed, and complete when it is open again, each executed once.
#[test]
fn a_blocked_way_back_keeps_acknowledgements() {
    each(|world| {
        let both = world.both(&patient());
        let _entered = world.hosts[1].enter();
        for op_context in [7, 8] {
            both.server
                .recv(MrSlice::EMPTY, op_context)
                .expect("posted");
        }
        let back = world.fabric.0.between(&world.hosts[1], &world.hosts[0]);
        back.block();
        let written = both.write(1);
        let sent = both.client.send(MrSlice::EMPTY, ALWAYS, 2).expect("posted");
        let (to, from) = (both.source.slice(..8).expect("8"), remote(&both.target));
        let from = from.slice(..8).expect("8");
        let read = both.client.read(to, from, ALWAYS, 3).expect("posted");
        assert_eq!(both.written(), pattern(LEN, 1));
        assert_eq!(opcode_of(&completion(&both.server), 7), WcOpcode::RECV);
        let mut wcs = [Wc::default(); 4];
        assert_eq!(both.client.get_cq().get_wc(&mut wcs).expect("polls"), 0);
        // What the server says does not arrive either.
        let unheard = both
            .server
            .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 9);
        assert_eq!(both.server.get_cq().get_wc(&mut wcs).expect("polls"), 0);

        both.target.write_at(0, &[9; 8]).expect("inside");
        back.heal();
        for posted in [written, sent, read] {
            both.client
                .wait_for(posted, LIMIT, |_| {})
                .expect("acknowledged");
        }
        // A read that is sent again reads again.
        assert_eq!(contents(&both.source)[..8], [9; 8]);
        both.server
            .wait_for(unheard.expect("posted"), LIMIT, |_| {})
            .expect("it arrives");
        assert_eq!(both.server.get_cq().get_wc(&mut wcs).expect("polls"), 0);
    });
}

/// The first operation that fails need not be the first that was not executed: all of these were.
#[test]
fn acknowledgements_that_are_all_lost() {
    each(|world| {
        let both = world.both(&impatient());
        world.fabric.0.jump_over_waits();
        world.link.lose_acknowledgements(2);
        let slice = |from: usize| both.source.slice(from..from + 8).expect("8");
        let to = |from: u64| remote(&both.target).slice(from..from + 8).expect("8");
        let posted: Vec<_> = (0..4)
            .map(|n| {
                both.client
                    .write(to(8 * n), slice(8 * n as usize), ALWAYS, n)
            })
            .collect();
        both.client
            .wait_for(posted[0].as_ref().copied().expect("posted"), LIMIT, |_| {})
            .expect("acknowledged");
        unanswered(&completion(&both.client), 1);
        for op_context in [2, 3] {
            let flushed = completion(&both.client).result().expect_err("flushed");
            let is = (flushed.status, flushed.wr_id);
            assert_eq!(is, (WcStatus::WR_FLUSH_ERR, op_context));
        }
        assert_eq!(
            both.written()[..32],
            pattern(LEN, 1)[..32],
            "all were executed"
        );
    });
}

/// A request that is refused while the way back is closed: the responder has failed, and the requester hears nothing.
#[test]
fn a_refusal_that_is_not_heard() {
    each(|world| {
        let both = world.both(&impatient());
        world.fabric.0.jump_over_waits();
        world
            .fabric
            .0
            .between(&world.hosts[1], &world.hosts[0])
            .block();
        let Both {
            client,
            server,
            source,
            target,
            ..
        } = both;
        let to = remote(&target).slice(..).expect("all");
        drop(target);
        let from = source.slice(..).expect("all");
        client.write(to, from, ALWAYS, 1).expect("posted");
        unanswered(&completion(&client), 1);
        if server.recv(MrSlice::EMPTY, 2).is_ok() {
            let flushed = completion(&server);
            flushed.result().expect_err("it has failed");
        }
        world
            .fabric
            .0
            .between(&world.hosts[1], &world.hosts[0])
            .heal();
    });
}

/// Held requests stay on their way without a limit, and arrive in their order; those of a requester that has gone
/// meanwhile, too.
#[test]
fn held_requests_are_released() {
    each(|world| {
        let both = world.both(&impatient());
        world.fabric.0.jump_over_waits();
        let _entered = world.hosts[0].enter();
        world.link.hold();
        let written = both.write(1);
        let waited = both
            .client
            .wait_for(written, Duration::from_secs(3600), |_| {});
        assert!(matches!(waited, Err(Error::TimedOut(_))), "{waited:?}");
        assert!(both.written().iter().all(|byte| *byte == 0));
        world.link.release();
        both.client
            .wait_for(written, LIMIT, |_| {})
            .expect("it arrives");
        assert_eq!(both.written(), pattern(LEN, 1));

        both.target.write_at(0, &[0; LEN]).expect("inside");
        let mut landed = false;
        for _ in 0..20 {
            world.link.hold();
            let (client, server) = world.connect(&impatient(), &impatient());
            let from = both.source.slice(..).expect("all");
            client
                .write(both.target(), from, ALWAYS, 2)
                .expect("posted");
            drop(client);
            assert!(both.written().iter().all(|byte| *byte == 0));
            world.link.release();
            landed |= both.written() == pattern(LEN, 1);
            both.target.write_at(0, &[0; LEN]).expect("inside");
            drop(server);
        }
        assert!(landed, "by chance");
    });
}

/// A lost packet, and an acknowledgement that is lost once, cost a time-out each, and nothing else.
#[test]
fn what_is_sent_again_takes_a_time_out() {
    each(|world| {
        let mut cfg = ConnCfg::new();
        cfg.set_ack_timeout(Some(20)).expect("possible");
        let one = Duration::from_nanos(4_096 << 20);
        let both = world.both(&cfg);
        world.fabric.0.jump_over_waits();
        let _entered = world.hosts[0].enter();
        both.server.recv(MrSlice::EMPTY, 7).expect("posted");
        for lost in [Link::lose_packet, Link::lose_answer] {
            lost(&world.link, 1);
            let start = now();
            let written = both.write(1);
            let first = both.write(2);
            both.client
                .wait_for(written, LIMIT, |_| {})
                .expect("sent again");
            both.client
                .wait_for(first, LIMIT, |_| {})
                .expect("sent again");
            assert!(now() - start >= one, "{:?}", now() - start);
            assert_eq!(both.written(), pattern(LEN, 1));
        }
        // A message is delivered once.
        world.link.lose_answer(1);
        let sent = both.client.send(MrSlice::EMPTY, ALWAYS, 3).expect("posted");
        both.client
            .wait_for(sent, LIMIT, |_| {})
            .expect("sent again");
        assert_eq!(opcode_of(&completion(&both.server), 7), WcOpcode::RECV);
        let count = both.server.get_cq().get_wc(&mut [Wc::default()]);
        assert_eq!(count.expect("polls"), 0);
    });
}

/// A network that loses packets and delays by chance: everything is written, in order, and another seed takes another
/// time.
#[test]
fn a_bad_network_loses_time_alone() {
    fn takes(profile: &Profile, seed: u64) -> Duration {
        let world = World::on(Fabric::seeded(profile.clone(), seed));
        let _entered = world.hosts[0].enter();
        let both = world.both(&ConnCfg::new());
        world.link.delay_up_to(Duration::from_millis(10));
        world.link.lose_packets(5);
        let start = now();
        for number in 0..30_u8 {
            both.source.write_at(0, &[number; LEN]).expect("inside");
            let written = both.write(number.into());
            both.client
                .wait_for(written, LIMIT, |_| {})
                .expect("sent again");
            assert_eq!(both.written(), [number; LEN]);
        }
        now() - start
    }
    for profile in Profile::ALL {
        let mut times: Vec<_> = (1..=5).map(|seed| takes(&profile, seed)).collect();
        assert_eq!(takes(&profile, 1), times[0]);
        // Some packets were lost.
        assert!(
            times.iter().all(|time| *time > Duration::from_millis(500)),
            "{times:?}"
        );
        times.sort_unstable();
        times.dedup();
        assert_eq!(times.len(), 5);
    }
}

/// On soft-RoCE of Linux 6.12 a native flush cannot be sent again: alone, after a message that waits for a receive, or if
/// its answer was lost.
#[test]
fn a_native_flush_that_is_sent_again() {
    /// How the flush ends.
    fn ends(profile: &Profile, accident: impl FnOnce(&World, &Both)) -> Option<WcStatus> {
        let world = World::new(profile);
        let both = world.both(&impatient());
        world.fabric.0.jump_over_waits();
        let _entered = world.hosts[0].enter();
        accident(&world, &both);
        let mut batch = both.client.batch::<2>();
        let flags = Flags::COMPLETION_ON_ERROR;
        batch.send(MrSlice::EMPTY, flags, 1).expect("added");
        batch
            .flush(both.target(), FlushType::Visibility, ALWAYS, 2)
            .expect("added");
        let flushed = batch.post().expect("posted");
        let waiting = world.hosts[1].spawn({
            let server = both.server;
            move || {
                sleep(Duration::from_millis(1));
                let posted = server.recv(MrSlice::EMPTY, 3);
                sleep(Duration::from_secs(60));
                posted.map(|()| server)
            }
        });
        let ended = both.client.wait_for(flushed, LIMIT, |_| {});
        drop(waiting.join());
        match ended {
            Ok(_) => None,
            Err(Error::Operation(failure)) => Some(failure.status),
            Err(error) => panic!("{error:?}"),
        }
    }
    let ready = |both: &Both| both.server.recv(MrSlice::EMPTY, 4).expect("posted");
    for profile in Profile::ALL {
        let flawed = profile == Profile::RXE_6_12;
        let access = flawed.then_some(WcStatus::REM_ACCESS_ERR);
        let packet = ends(&profile, |world, both| {
            ready(both);
            world.link.lose_packet(2);
        });
        assert_eq!(packet, access, "{}", profile.name());
        let behind = ends(&profile, |world, both| {
            ready(both);
            world.link.lose_packet(1);
        });
        assert_eq!(behind, access, "{}", profile.name());
        let waited = ends(&profile, |_, _| {});
        assert_eq!(waited, access, "{}", profile.name());
        let answer = ends(&profile, |world, both| {
            ready(both);
            world.link.lose_answer(2);
        });
        let unanswered = flawed.then_some(WcStatus::RETRY_EXC_ERR);
        assert_eq!(answer, unanswered, "{}", profile.name());
    }
}

/// A host that stands still loses nothing: a native flush completes when it goes on, also where it could not be sent
/// again. (Two guests: `two hosts: frozen for 1 s, native`.)
#[test]
fn a_native_flush_waits_for_a_frozen_host() {
    each(|world| {
        let mut cfg = ConnCfg::new();
        cfg.set_ack_timeout(Some(14)).expect("possible");
        cfg.set_retry_count(6).expect("possible");
        let both = world.both(&cfg);
        world.fabric.0.jump_over_waits();
        let _entered = world.hosts[0].enter();
        world.hosts[1].freeze();
        let flushed = both
            .client
            .flush(both.target(), FlushType::Visibility, ALWAYS, 1)
            .expect("posted");
        let waited = both
            .client
            .wait_for(flushed, Duration::from_millis(200), |_| {});
        assert!(matches!(waited, Err(Error::TimedOut(_))), "{waited:?}");
        world.hosts[1].thaw();
        both.client
            .wait_for(flushed, LIMIT, |_| {})
            .expect("it goes on");
    });
}

/// An error names the next step: after a time-out, for an operation that was polled already, after a failed post, and
/// when this host's device is gone.
#[test]
fn errors_name_the_next_step() {
    fn has<T: std::fmt::Debug>(result: rpma::Result<T>, step: &str) {
        let text = result.expect_err("an error").to_string();
        assert!(text.contains(step), "{step}: {text}");
    }
    each(|world| {
        let both = world.both(&impatient());
        world.fabric.0.jump_over_waits();
        let _entered = world.hosts[0].enter();
        world.link.hold();
        let written = both.write(1);
        let wait = || {
            both.client
                .wait_for(written, Duration::from_millis(1), |_| {})
        };
        has(wait(), "wait for it again or drop the connection");
        world.link.release();
        both.client
            .wait_for(written, LIMIT, |_| {})
            .expect("it arrives");
        has(wait(), "polled already");
        world.link.lose_request(1);
        let lost = both.write(2);
        has(both.client.wait_for(lost, LIMIT, |_| {}), "connect again");
        has(both.client.wait_for(lost, LIMIT, |_| {}), "Conn::failure");

        let (client, _server) = world.connect(&impatient(), &impatient());
        let failing = world.fabric.0.fail("ibv_post_send").next(Errno::IO);
        let write = || client.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 1);
        has(
            write(),
            "This failed post ended the connection: connect again",
        );
        assert!(!failing.is_pending());
        let failure = client.failure().expect("a failed post").to_string();
        assert!(failure.contains("connect again"), "{failure}");
        has(write(), "Conn::failure");

        let (client, _server) = world.connect(&impatient(), &impatient());
        world.hosts[0].kill();
        has(client.next_event(), "device was removed");
    });
}

/// A prefix of the requests that are on their way lands after their requester has gone, whether it is destroyed or only
/// disconnected, unless the responder has gone first.
#[test]
fn requests_that_outlive_their_requester() {
    /// The number of writes that have landed.
    fn landed(profile: &Profile, seed: u64, disconnects: bool, server_stays: bool) -> usize {
        let world = World::on(Fabric::seeded(profile.clone(), seed));
        let _entered = world.hosts[0].enter();
        let Both {
            client,
            server,
            source,
            target,
            ..
        } = world.both(&patient());
        world.link.delay(Duration::from_millis(50));
        for n in 0..3 {
            let from = source.slice(8 * n..8 * n + 8).expect("8");
            let at = 8 * n as u64;
            let to = remote(&target).slice(at..at + 8).expect("8");
            client.write(to, from, ALWAYS, 0).expect("posted");
        }
        if disconnects {
            client.disconnect().expect("fails its queue pair");
        } else {
            drop((client, source));
        }
        let server = server_stays.then_some(server);
        sleep(Duration::from_secs(1));
        drop(server);
        let (bytes, whole) = (contents(&target), pattern(LEN, 1));
        let count = (0..3).take_while(|n| bytes[8 * n..8 * n + 8] == whole[8 * n..8 * n + 8]);
        let count = count.count();
        assert!(bytes[8 * count..].iter().all(|byte| *byte == 0), "a prefix");
        count
    }
    for profile in Profile::ALL {
        for disconnects in [true, false] {
            let mut counts: Vec<_> = (0..40)
                .map(|seed| landed(&profile, seed, disconnects, true))
                .collect();
            counts.sort_unstable();
            counts.dedup();
            assert_eq!(counts, [0, 1, 2, 3], "{}", profile.name());
            let gone = (0..10).map(|seed| landed(&profile, seed, disconnects, false));
            assert_eq!(gone.sum::<usize>(), 0, "the responder has gone");
        }
    }
}

/// Nobody waits for ever: what is not answered ends after the kernel's time.
#[test]
fn the_connection_manager_gives_up() {
    let world = World::new(&Profile::RXE_6_12);
    world.fabric.0.jump_over_waits();
    let _entered = world.hosts[0].enter();
    let ep = world.listen();
    let request = || ep.next_conn_req_timeout(&patient(), LIMIT);
    let accepted = world.ask(&ep);
    let req = request().expect("a request");
    let (disconnected, other) = world.connect(&patient(), &patient());
    let asking = world.resolve(&ep, &patient()).expect("resolves");
    world.link.partition();
    let start = now();
    let asking = asking.connect(&[]).expect("asks");
    let accepting = req.connect(&[]).expect("accepts");
    disconnected.disconnect().expect("says so");
    let late = |conn: &Conn| conn.next_event_timeout(2 * LIMIT).expect("an event");
    assert!(matches!(
        late(&asking),
        ConnEvent::Unreachable { status: -110 }
    ));
    assert!(now() - start > Duration::from_secs(68));
    assert!(matches!(
        late(&accepting),
        ConnEvent::Unreachable { status: -110 }
    ));
    assert_eq!(late(&disconnected), ConnEvent::Closed);
    assert_eq!(late(&disconnected), ConnEvent::TimewaitExit);
    world.link.heal();
    nothing(&other);
    // Its server has given up, so that its repetition is a new request; the others have not asked.
    let server = request().expect("it asks again").connect(&[]);
    let server = server.expect("accepts");
    let client = accepted.wait_established(LIMIT).expect("accepted");
    drop((client, server));
    let none = ep.next_conn_req_timeout(&patient(), Duration::ZERO);
    assert!(matches!(none, Err(Error::NoEvent)), "{none:?}");
}

/// What was armed and has not happened can be taken back, and counted: of this way and no other.
#[test]
fn faults_that_have_not_happened_are_taken_back() {
    let world = World::new(&Profile::RXE_6_12);
    let both = world.both(&patient());
    let back = world.fabric.0.between(&world.hosts[1], &world.hosts[0]);
    world.link.lose_request(1);
    world.link.lose_acknowledgement(2);
    world.link.place_only(3, 8);
    back.lose_request(1);
    assert_eq!((world.link.disarm(), world.link.disarm()), (3, 0));
    let written = both.write(1);
    let done = both.client.wait_for(written, LIMIT, |_| {});
    done.expect("nothing happens to it");
    assert_eq!(back.disarm(), 1);
}

/// A fault that could never happen is refused, so that no test stands on it.
#[test]
fn faults_that_cannot_be_are_refused() {
    let [here, there] = [(); 2].map(|()| Fabric::new(Profile::STRICT));
    let [own, other] = [here.host("own"), there.host("other")];
    let refused = |run: &dyn Fn()| {
        catch_unwind(AssertUnwindSafe(run)).expect_err("it is refused");
    };
    refused(&|| drop(here.between(&own, &other)));
    refused(&|| drop(here.between(&other, &own)));
    let link = here.between(&own, &own);
    refused(&|| link.lose_request(0));
    refused(&|| link.lose_acknowledgement(0));
    refused(&|| link.place_only(0, 1));
    refused(&|| own.lose_receive(0));
}

/// Promise: after a time-out the operation goes on, and its completion satisfies no other wait, although both have the
/// same `op_context`. A log whose flush took longer than its limit acknowledged the next record by it.
#[test]
fn a_late_completion_satisfies_no_later_wait() {
    each(|world| {
        let both = world.both(&patient());
        let flush = || {
            let flush = FlushType::Visibility;
            let posted = both.client.flush(both.target(), flush, ALWAYS, 1);
            posted.expect("posted")
        };
        world.hosts[1].freeze();
        let first = flush();
        for limit in [Duration::ZERO, Duration::from_millis(20)] {
            let late = both.client.wait_for(first, limit, |wc| panic!("{wc:?}"));
            assert!(matches!(late, Err(Error::TimedOut(_))), "{late:?}");
        }
        let second = flush();
        world.hosts[1].thaw();
        let mut others = Vec::new();
        let wc = both
            .client
            .wait_for(second, LIMIT, |wc| others.push(wc.posted()));
        assert_eq!(wc.expect("it is flushed").posted(), Some(second));
        assert_eq!(others, [Some(first)]);
        // The name of an operation with a time-out is good for another wait.
        world.hosts[1].freeze();
        let third = flush();
        let late = both.client.wait_for(third, Duration::ZERO, |_| {});
        assert!(matches!(late, Err(Error::TimedOut(_))), "{late:?}");
        world.hosts[1].thaw();
        let wc = both.client.wait_for(third, LIMIT, |wc| panic!("{wc:?}"));
        assert_eq!(wc.expect("it is flushed").posted(), Some(third));
    });
}

/// Promise: a wait looks once more before it returns `TimedOut`: a queue for solicited events gives none for a
/// completion that has come meanwhile.
#[test]
fn a_wait_looks_once_more_at_its_limit() {
    each(|world| {
        let both = world.both(&patient());
        let solicited = both.client.get_cq().req_notify(Notify::Solicited);
        solicited.expect("armed");
        world.link.delay(Duration::from_millis(50));
        // The first one takes the event that the queue was made for.
        for number in 1..=2 {
            let written = both.write(number);
            // Less than the second after which each wait looks by itself.
            let limit = Duration::from_millis(500);
            let wc = both.client.wait_for(written, limit, |_| {});
            assert_eq!(wc.expect("it has come").posted(), Some(written));
        }
    });
}

/// When a program changes a buffer that it has posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reuse {
    /// After the write's completion.
    AfterItsCompletion,
    /// Right after the post.
    AfterThePost,
}

/// Sends numbered buffers out of the same memory; how many of them arrived as another one, and how many as a mixture.
fn reuse(profile: &Profile, how: Reuse, loses_packets: bool, seed: u64) -> (usize, usize) {
    const COUNT: usize = 8;
    let world = World::on(Fabric::seeded(profile.clone(), seed));
    let both = world.both(&ConnCfg::new());
    if loses_packets {
        world.link.lose_packets(3);
    }
    let part = LEN / 2;
    let (mut other, mut mixed) = (0, 0);
    for number in 1..=COUNT as u8 {
        both.source
            .write_at(0, &vec![number; part])
            .expect("inside");
        let from = both.source.slice(..part).expect("inside");
        let to = remote(&both.target).slice(..part as u64).expect("inside");
        let posted = both.client.write(to, from, ALWAYS, 1).expect("posted");
        if how == Reuse::AfterThePost {
            both.source.write_at(0, &vec![0xEE; part]).expect("inside");
        }
        let waited = both.client.wait_for(posted, LIMIT, |_| {});
        waited.expect("it completes");
        let written = &both.written()[..part];
        match written.iter().filter(|byte| **byte != number).count() {
            0 => {}
            all if all == part => other += 1,
            _ => mixed += 1,
        }
    }
    (other, mixed)
}

/// A buffer belongs to the device until its completion: a program that changes it before sends other bytes, or a
/// mixture. On adapters that happens by itself, and everywhere when a packet is sent again.
#[test]
fn a_buffer_that_is_used_again_too_early() {
    for profile in Profile::ALL {
        for loses_packets in [false, true] {
            let runs = |how| (1..=10).map(move |seed| (how, seed));
            let count = |how| {
                let all = runs(how).map(|(how, seed)| reuse(&profile, how, loses_packets, seed));
                all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
            };
            let name = profile.name();
            assert_eq!(count(Reuse::AfterItsCompletion), (0, 0), "{name}");
            let (other, mixed) = count(Reuse::AfterThePost);
            match loses_packets || profile.is_adapter() {
                true => assert!(other > 0 && mixed > 0, "{name}: {other} and {mixed} of 80"),
                false => assert_eq!((other, mixed), (0, 0), "{name}"),
            }
        }
    }
}

/// Memory that is given back has all that devices have executed, and nothing is written to it later: a write that was late
/// lands before its region is gone.
#[test]
fn late_writes_land_before_their_memory_is_freed() {
    for profile in Profile::ALL {
        for seed in 1..=10 {
            let world = World::on(Fabric::seeded(profile.clone(), seed));
            let both = world.both(&ConnCfg::new());
            let written = both.write(1);
            let waited = both.client.wait_for(written, LIMIT, |_| {});
            waited.expect("it completes");
            let Both { target, .. } = both;
            let memory = target.dereg().expect("deregisters");
            assert_eq!(
                memory[..],
                pattern(LEN, 1)[..],
                "{}, {seed}",
                profile.name()
            );
        }
    }
}
