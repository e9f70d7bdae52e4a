//! The server: a task for each client. Each awaits the read of its client's name.

use std::time::Duration;

use anyhow::{Result, ensure};
use rpma::{Device, MrRemote, Peer, Side};
use rpma_async::{Incoming, Lease, Pool, Reactor, Setup};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::common::cli::{Role, timeout};
use crate::common::data::CommonData;
use crate::common::{conn, hello, names};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> [<timeout>]",
    notes: "",
    main,
};

const MAX_CLIENTS: usize = 10;
/// The server ends after so many seconds without an event, if no argument has another number.
const LIMIT: u32 = 15;

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    let timeout = timeout(more, LIMIT)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let unserved = runtime.block_on(serve_all(addr, port, timeout))?;
    eprintln!("Server timed out.");
    ensure!(unserved == 0, "of the clients {unserved} were not served");
    Ok(())
}

/// Serves clients until no event comes any more. Returns how many were not served.
async fn serve_all(addr: &str, port: u16, timeout: Duration) -> Result<usize> {
    // The device that has the address, and a peer on it: with that this program registers memory.
    // The reactor makes connections, and its driver is a task, which wakes the other ones.
    let at = conn::socket_addr(addr, port)?;
    let peer = Peer::new(&Device::from_socket_addr(at, Side::Local)?)?;
    let reactor = Reactor::spawn(&peer)?;
    // Memory for a name of each client.
    let names = Pool::new(&peer, names::SIZE, MAX_CLIENTS)?;

    let listener = reactor.listen(at)?;
    log::info!("waiting for connections on {addr}:{port}");
    println!("Today I have got in touch with:");
    let (mut clients, mut unserved) = (JoinSet::new(), 0);
    loop {
        tokio::select! {
            request = listener.accept() => {
                // Dropping a request rejects it.
                let request = request?;
                match names.try_lease() {
                    Some(name) => _ = clients.spawn(serve(request, name)),
                    None => eprintln!("No free slot: a client is rejected."),
                }
            }
            // One client's failure is not that of the others.
            Some(served) = clients.join_next() => if let Err(error) = served? {
                eprintln!("{error:#}");
                unserved += 1;
            },
            () = sleep(timeout) => return Ok(unserved + clients.len()),
        }
    }
}

/// Reads the client's name, and ends the connection. These waits have no limit of their own: the
/// server ends, and all tasks with it, after so long without an event.
async fn serve(request: Incoming, name: Lease) -> Result<()> {
    let conn = request.accept(&Setup::default(), &[]).await?;
    let data = CommonData::from_bytes(conn.private_data())?;
    let src = MrRemote::from_descriptor(&data.mr_desc)?.slice(data.range(names::SIZE))?;

    // The device has the memory of the name until the read is complete, and gives it back.
    let name = conn.read(name, src)?.await?;
    println!("- {}", hello::text(&name));

    // The client answers, or is gone: then the memory is free for another client.
    Ok(conn.close(Duration::MAX).await?)
}
