//! The server: whatever waits for a descriptor is a task, and tokio wakes it when the descriptor is readable.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rpma::{
    AlignedBuf, ConnCfg, ConnEvent, ConnReq, Device, Ep, Error, Flags, Mr, MrRemote, MrUsage, Next,
    Peer, Side, Wc,
};
use tokio::io::unix::AsyncFd;
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, timeout_at};

use crate::common::cli::Role;
use crate::common::data::CommonData;
use crate::common::{hello, names};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port>",
    notes: "",
    main,
};

const MAX_CLIENTS: usize = 10;
/// The server ends when nothing has happened for so long.
const LIMIT: Duration = Duration::from_secs(15);

fn main(addr: &str, port: u16, _more: &[String]) -> Result<()> {
    // The device that has the address, and a peer on it: with that this program registers memory and
    // makes connections.
    let device = Device::from_addr(addr, Side::Local)?;
    let peer = Peer::new(&device)?;

    let ep = Ep::listen(&peer, addr, port)?;
    ep.set_nonblocking(true)?;
    let memory = AlignedBuf::zeroed(MAX_CLIENTS * names::SIZE)?;
    let server = Rc::new(Server {
        names: Mr::reg(&peer, memory, MrUsage::READ_DST)?,
        free: RefCell::new((0..MAX_CLIENTS).rev().collect()),
        unserved: Cell::new(0),
        last: Cell::new(Instant::now()),
    });

    println!("Today I have got in touch with:");
    let runtime = Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, accept_all(ep, Rc::clone(&server)))?;
    eprintln!("Server timed out.");
    let failures = server.unserved.get();
    ensure!(failures == 0, "of the clients {failures} were not served");
    Ok(())
}

/// What the tasks have together. They are on one thread.
struct Server {
    /// A name for each slot.
    names: Mr<AlignedBuf>,
    /// The slots that no client has.
    free: RefCell<Vec<usize>>,
    unserved: Cell<usize>,
    /// When something happened for the last time.
    last: Cell<Instant>,
}

/// Takes clients in until nothing happens any more.
async fn accept_all(ep: Ep, server: Rc<Server>) -> Result<()> {
    let ep = watch(ep)?;
    loop {
        let until = server.last.get() + LIMIT;
        let cfg = ConnCfg::new();
        let req = match timeout_at(until, next(&ep, |ep| ep.next_conn_req(&cfg))).await {
            // Something else may have happened meanwhile.
            Err(_elapsed) if server.last.get() + LIMIT > Instant::now() => continue,
            Err(_elapsed) => return Ok(()),
            Ok(req) => req?,
        };
        server.last.set(Instant::now());
        let Some(slot) = server.free.borrow_mut().pop() else {
            eprintln!("No free slot: a client is rejected.");
            req.delete()?;
            continue;
        };
        let server = Rc::clone(&server);
        server.unserved.set(server.unserved.get() + 1);
        spawn_local(async move {
            // One client's failure is not that of the others. Dropping its connection ends it.
            match serve(&server, slot, req).await {
                Ok(()) => server.unserved.set(server.unserved.get() - 1),
                Err(error) => eprintln!("[{slot}] {error:#}"),
            }
            server.free.borrow_mut().push(slot);
            server.last.set(Instant::now());
        });
    }
}

/// Reads the client's name, and ends the connection. Its waits have no limit of their own: the server ends, and all
/// tasks with it, when nothing has happened for so long.
async fn serve(server: &Server, slot: usize, req: ConnReq) -> Result<()> {
    let conn = req.connect(&[])?;
    // One descriptor for what happens to the connection and for what completes on it.
    let something = watch(conn.get_next_fd()?.try_clone_to_owned()?)?;
    let mut wcs = [Wc::default()];

    match next(&something, |_| conn.next(&mut wcs, Duration::ZERO)).await? {
        Next::Event(ConnEvent::Established) => {}
        other => bail!("{other:?}, before the client's name was read"),
    }
    let data = CommonData::from_bytes(conn.get_private_data())?;
    let remote = MrRemote::from_descriptor(&data.mr_desc)?;
    let src = remote.slice(data.range(names::SIZE))?;
    let at = slot * names::SIZE;
    let dst = server.names.slice(at..at + names::SIZE)?;
    conn.read(dst, src, Flags::COMPLETION_ALWAYS, 0)?;

    match next(&something, |_| conn.next(&mut wcs, Duration::ZERO)).await? {
        Next::Completions(_) => wcs[0].result().context("the read of the client's name")?,
        Next::Event(event) => bail!("{event}, before the client's name was read"),
    };
    let mut name = [0; names::SIZE];
    server.names.read_at(at, &mut name)?;
    println!("- {}", hello::text(&name));

    // The client answers, or is gone: its slot is free again.
    conn.disconnect()?;
    next(&something, |_| conn.next(&mut wcs, Duration::ZERO)).await?;
    Ok(())
}

/// Has tokio watch a descriptor.
fn watch<T: AsRawFd>(what: T) -> Result<AsyncFd<T>> {
    // SAFETY: an `Ep` and an `OwnedFd` have one descriptor, which stays open and is nobody else's for as long as the
    // value exists; the result owns it.
    let watched = unsafe { AsyncFd::register(what) };
    Ok(watched.map_err(io::Error::from)?)
}

/// Takes what is there, or waits until there is something.
async fn next<T: AsRawFd, R>(
    watched: &AsyncFd<T>,
    mut take: impl FnMut(&T) -> Result<R, Error>,
) -> Result<R> {
    loop {
        let mut guard = watched.readable().await?;
        match take(watched.get_ref()) {
            // From now on tokio waits for the next time that it becomes readable.
            Err(Error::NoEvent | Error::TimedOut(_)) => guard.clear_ready(),
            taken => return Ok(taken?),
        }
    }
}
