//! Two hosts of a simulated fabric, in virtual time.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rpma::reconnect::{Connects, Counts, GaveUp, Reconnect, ToConn};
use rpma::sim::{JoinHandle, now, sleep};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::common::prelude::*;
use crate::reconnect::support::{LEN, identified};

pub(crate) const PORT: u16 = 7204;
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The time of calls beside limits and waits, at a microsecond each.
pub(crate) const SLACK: Duration = Duration::from_millis(10);
/// How often a loop looks.
const LOOK: Duration = Duration::from_millis(5);

pub(crate) struct Hosts {
    pub(crate) client: Host,
    pub(crate) server: Host,
    pub(crate) link: Link,
    pub(crate) fabric: Fabric,
}

impl Hosts {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self::on(&Rig::new().seed(seed).fabric())
    }

    pub(crate) fn on(fabric: &Fabric) -> Self {
        let [client, server] = ["client", "server"].map(|name| fabric.host(name));
        Self {
            link: fabric.between(&client, &server),
            client,
            server,
            fabric: fabric.clone(),
        }
    }

    /// A client on its host, of the server's host.
    pub(crate) fn new_client(&self) -> rpma::Result<Reconnect<ToConn>> {
        self.new_client_with(ToConn)
    }

    pub(crate) fn new_client_with<C: Connects>(&self, connects: C) -> rpma::Result<Reconnect<C>> {
        let device = Device::from_addr(&self.client.addr().to_string(), Side::Local)?;
        let addr = self.server.addr().to_string();
        Reconnect::new(&Peer::new(&device)?, &addr, PORT, identified(1), connects)
    }

    pub(crate) fn client(&self) -> Reconnect<ToConn> {
        self.new_client().expect("a client")
    }

    /// Starts a server that answers each request so.
    pub(crate) fn serve(
        &self,
        answer: impl FnMut(ConnReq, &Offer) -> Option<Conn> + Send + 'static,
    ) -> Serving {
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, addr) = (Arc::clone(&is_over), self.server.addr().to_string());
        let thread = self.server.spawn(move || {
            // Without power it ends.
            let _ = serve(&addr, &over, answer);
        });
        Serving { is_over, thread }
    }

    /// Starts a server that accepts, after it has dropped the connection before.
    pub(crate) fn accept_each(&self) -> Serving {
        self.serve(|req, offer| {
            let offer = offer.encode(Offer::ACCEPT).expect("fits");
            req.connect(&offer).ok()
        })
    }

    /// No object is left on the hosts.
    pub(crate) fn are_empty(&self) {
        assert!(
            self.fabric.objects().is_empty(),
            "{:?}",
            self.fabric.objects()
        );
    }
}

pub(crate) struct Serving {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Serving {
    pub(crate) fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic");
    }
}

fn serve(
    addr: &str,
    is_over: &AtomicBool,
    mut answer: impl FnMut(ConnReq, &Offer) -> Option<Conn>,
) -> rpma::Result<()> {
    let peer = Peer::new(&Device::from_addr(addr, Side::Local)?)?;
    let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
    let memory = Mr::reg(&peer, vec![0; LEN], usage).map_err(|error| error.error)?;
    let mut offer = Offer::new(&PeerCfg::new());
    offer.add_region(&memory);
    let ep = Ep::listen(&peer, addr, PORT)?;
    let mut current = None;
    while !is_over.load(Ordering::Relaxed) {
        match ep.next_conn_req_timeout(&ConnCfg::new(), SECOND) {
            Ok(req) => {
                drop(current.take());
                current = answer(req, &offer);
            }
            Err(Error::NoEvent) => {}
            // A host without power, or a call that has failed.
            Err(_) => sleep(SECOND),
        }
        if Host::current().is_none() {
            break;
        }
    }
    Ok(())
}

/// The end of a reconnect, and its cost.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) result: Result<(), GaveUp>,
    pub(crate) took: Duration,
    /// When each try began, from the beginning on.
    pub(crate) tries: Vec<Duration>,
    pub(crate) counts: Counts,
}

/// Connects in steps, as an event loop does, and notes when each try begins.
pub(crate) fn drive<C: Connects>(client: &mut Reconnect<C>) -> (Option<C::Connected>, Ended) {
    let (began, mut tries, before) = (now(), Vec::new(), client.counts().tries);
    let result = client
        .begin(&ConnCfg::new())
        .map_err(|error| panic!("{error}"));
    let result = result.and_then(|()| {
        loop {
            let advanced = client.advance();
            while before + (tries.len() as u64) < client.counts().tries {
                tries.push(now() - began);
            }
            if let Some(connected) = advanced? {
                return Ok(connected);
            }
            let deadline = client.deadline().expect("one is under way");
            while !is_readable(client) && now() < deadline {
                sleep((deadline - now()).min(LOOK));
            }
        }
    });
    ended(began, tries, client, result)
}

/// Connects in one call.
pub(crate) fn block<C: Connects>(client: &mut Reconnect<C>) -> (Option<C::Connected>, Ended) {
    let began = now();
    let result = client.connect(&ConnCfg::new());
    ended(began, Vec::new(), client, result)
}

fn ended<C: Connects>(
    began: Instant,
    tries: Vec<Duration>,
    client: &Reconnect<C>,
    result: Result<C::Connected, GaveUp>,
) -> (Option<C::Connected>, Ended) {
    let (connected, result) = match result {
        Ok(connected) => (Some(connected), Ok(())),
        Err(gave_up) => (None, Err(gave_up)),
    };
    let took = now() - began;
    let counts = client.counts();
    let ended = Ended {
        result,
        took,
        tries,
        counts,
    };
    (connected, ended)
}

fn is_readable(fd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).expect("polls") > 0
}
