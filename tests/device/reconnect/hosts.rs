//! Two hosts of a simulated fabric, in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rpma::Refusal;
use rpma::commit::Limits;
use rpma::reconnect::{Connects, Reconnect, ToConn};
use rpma::sim::{Entered, JoinHandle, now, sleep};

use crate::common::prelude::*;
use crate::reconnect::support::{LEN, identified, usage};

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
    _emptied: Option<Emptied>,
}

impl Hosts {
    /// No object is left on the hosts in the end.
    pub(crate) fn seeded(seed: u64) -> Self {
        let emptied = Rig::new().seed(seed).emptied();
        let hosts = Self::on(&emptied);
        Self {
            _emptied: Some(emptied),
            ..hosts
        }
    }

    pub(crate) fn on(fabric: &Fabric) -> Self {
        let [client, server] = ["client", "server"].map(|name| fabric.host(name));
        Self {
            link: fabric.between(&client, &server),
            client,
            server,
            fabric: fabric.clone(),
            _emptied: None,
        }
    }

    /// A client on its host, of the server's host.
    pub(crate) fn new_client(&self) -> rpma::Result<Reconnect<ToConn>> {
        let device = Device::from_addr(&self.client.addr().to_string(), Side::Local)?;
        let addr = self.server.addr().to_string();
        Reconnect::new(&Peer::new(&device)?, &addr, PORT, identified(1), ToConn)
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
        Serving {
            is_over,
            thread: Some(thread),
        }
    }

    /// Starts a server that accepts, after it has dropped the connection before.
    pub(crate) fn accept_each(&self) -> Serving {
        self.serve(|req, offer| {
            let offer = offer.encode(Offer::ACCEPT).expect("fits");
            req.connect(&offer).ok()
        })
    }

    /// As [`accept_each`](Self::accept_each). The server listens, and the calling thread is on the
    /// client's host.
    pub(crate) fn accepting(&self) -> (Serving, Entered) {
        let on = (self.accept_each(), self.client.enter());
        sleep(SECOND);
        on
    }

    /// Starts a server that rejects each request.
    pub(crate) fn reject_each(&self, code: RefusalCode, words: &str) -> Serving {
        let refusal = Refusal::new(code, words).encode();
        self.serve(move |req, _| {
            req.reject(&refusal).expect("rejects");
            None
        })
    }

    /// An endpoint on this host that takes no request.
    pub(crate) fn silent(&self, host: &Host) -> Result<Ep> {
        Ok(Ep::listen_on(&peer_of(host), (host.addr(), PORT).into())?)
    }
}

/// A server, which ends when this is dropped.
pub(crate) struct Serving {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let joined = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(joined, Some(Ok(()))));
    }
}

fn serve(
    addr: &str,
    is_over: &AtomicBool,
    mut answer: impl FnMut(ConnReq, &Offer) -> Option<Conn>,
) -> Result {
    let peer = Peer::at(addr)?;
    let memory = region(&peer, LEN, usage())?;
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

/// The persistent memory of a server.
pub(crate) const SIZE: usize = 4096;

/// A server with persistent memory, which accepts each client after it has dropped the one before,
/// until its host has no power or nobody asks for so long.
pub(crate) fn serve_memory(
    host: &Host,
    pmem: &Pmem,
    limits: Option<Limits>,
    longest: Duration,
) -> Result {
    let addr = host.addr().to_string();
    let peer = Peer::at(&addr)?;
    let memory = PmemMap::open(pmem.path(), SIZE)?;
    let memory = Mr::reg(&peer, memory, usage() | MrUsage::FLUSH_TYPE_PERSISTENT)?;
    let mut offer = Offer::new(PeerCfg::new().set_direct_write_to_pmem(true));
    offer.add_region(&memory);
    if let Some(limits) = limits {
        offer.set_limits(limits);
    }
    let offer = offer.encode(Offer::ACCEPT)?;
    let ep = Ep::listen(&peer, &addr, PORT)?;
    let mut current = None::<Conn>;
    loop {
        let req = ep.next_conn_req_timeout(&ConnCfg::new(), longest)?;
        drop(current.take());
        current = Some(req.connect(&offer)?);
    }
}

/// The end of a reconnect, and its cost.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) result: Result<(), Error>,
    pub(crate) took: Duration,
    /// When each try began, from the beginning on.
    pub(crate) tries: Vec<Duration>,
    /// Its tries, and those that became connections.
    pub(crate) counts: (u64, u64),
}

/// Connects in steps, as an event loop does, and notes when each try begins.
pub(crate) fn drive<C: Connects>(client: &mut Reconnect<C>) -> (Option<C::Connected>, Ended) {
    let (began, mut tries, before) = (now(), Vec::new(), client.tries());
    client.begin(&ConnCfg::new()).expect("begins");
    let mut steps = || -> Result<_, Error> {
        loop {
            let advanced = client.advance();
            while before + (tries.len() as u64) < client.tries() {
                tries.push(now() - began);
            }
            if let Some(connected) = advanced? {
                return Ok(connected);
            }
            let deadline = client.deadline().expect("one is under way");
            while !readable(&*client, Duration::ZERO) && now() < deadline {
                sleep((deadline - now()).min(LOOK));
            }
        }
    };
    let result = steps();
    ended(began, tries, client, result)
}

/// Connects in one call, or in steps.
pub(crate) fn block_or_drive<C: Connects>(
    client: &mut Reconnect<C>,
    is_blocking: bool,
) -> (Option<C::Connected>, Ended) {
    if is_blocking {
        block(client)
    } else {
        drive(client)
    }
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
    result: Result<C::Connected, Error>,
) -> (Option<C::Connected>, Ended) {
    let (connected, result) = match result {
        Ok(connected) => (Some(connected), Ok(())),
        Err(gave_up) => (None, Err(gave_up)),
    };
    let ended = Ended {
        result,
        took: now() - began,
        tries,
        counts: (client.tries(), client.connected()),
    };
    (connected, ended)
}
