//! The server: one thread waits for everything that can happen at the endpoint and on the
//! connections, and never for one of them alone.

use anyhow::{Context, Result, bail, ensure};
use rpma::{
    AlignedBuf, ComplChannel, Conn, ConnCfg, ConnEvent, ConnReq, Device, Ep, Error, Flags, Mr,
    MrRemote, MrUsage, Peer, Side, Wc,
};

use crate::common::cli::{Role, timeout};
use crate::common::data::CommonData;
use crate::common::epoll::Epoll;
use crate::common::{hello, names};

pub(crate) const ROLE: Role = Role {
    usage: "<server_address> <port> [<timeout>]",
    notes: "",
    main,
};

const MAX_CLIENTS: usize = 10;
const MAX_FAILURES_IN_A_ROW: usize = 100;
/// The server ends after so many seconds without an event, if no argument has another number.
const LIMIT: u32 = 15;

fn main(addr: &str, port: u16, more: &[String]) -> Result<()> {
    let timeout = timeout(more, LIMIT)?;
    // The device that has the address, and a peer on it: with that this program registers memory
    // and makes connections.
    let device = Device::from_addr(addr, Side::Local)?;
    let peer = Peer::new(&device)?;

    let mut cfg = ConnCfg::new();
    cfg.set_compl_channel(ComplChannel::Shared);

    let size = MAX_CLIENTS * names::SIZE;
    let mut server = Server {
        epoll: Epoll::new()?,
        ep: Ep::listen(&peer, addr, port)?,
        cfg,
        names: Mr::reg(&peer, AlignedBuf::zeroed(size)?, MrUsage::READ_DST)?,
        clients: Default::default(),
        failures: 0,
        failures_in_a_row: 0,
    };
    server.epoll.add(&server.ep, Source::Endpoint.number())?;

    println!("Today I have got in touch with:");
    while let Some(number) = server.epoll.wait(timeout)? {
        server.handle(Source::of(number))?;
    }
    eprintln!("Server timed out.");
    let unserved = server.clients.iter().flatten().filter(|c| !c.served);
    let failures = server.failures + unserved.count();
    ensure!(failures == 0, "of the clients {failures} were not served");
    Ok(())
}

/// The sources of events.
enum Source {
    /// The endpoint, on which clients ask for connections.
    Endpoint,
    /// The connection in this slot: it is established, or has ended.
    Conn(usize),
    /// The channel of its completion queues.
    Channel(usize),
}

impl Source {
    /// Its number for epoll.
    fn number(&self) -> u64 {
        match *self {
            Self::Endpoint => 0,
            Self::Conn(slot) => 1 + 2 * slot as u64,
            Self::Channel(slot) => 2 + 2 * slot as u64,
        }
    }

    fn of(number: u64) -> Self {
        match (number as usize).checked_sub(1) {
            None => Self::Endpoint,
            Some(n) if n % 2 == 0 => Self::Conn(n / 2),
            Some(n) => Self::Channel(n / 2),
        }
    }
}

struct Server {
    epoll: Epoll,
    ep: Ep,
    /// The settings of the connections.
    cfg: ConnCfg,
    /// A name for each slot.
    names: Mr<AlignedBuf>,
    clients: [Option<Client>; MAX_CLIENTS],
    failures: usize,
    /// Those of the endpoint, since it last gave a request.
    failures_in_a_row: usize,
}

struct Client {
    conn: Conn,
    /// Its name is read, and its connection is ending.
    served: bool,
}

impl Server {
    fn handle(&mut self, source: Source) -> Result<()> {
        let (slot, outcome) = match source {
            Source::Endpoint => return self.accept(),
            Source::Conn(slot) => (slot, self.handle_event(slot)),
            Source::Channel(slot) => (slot, self.handle_completions(slot)),
        };
        if let Err(error) = outcome {
            self.fail(slot, &error);
        }
        Ok(())
    }

    /// One client's failure is not that of the others. Dropping its connection ends it.
    fn fail(&mut self, slot: usize, error: &anyhow::Error) {
        eprintln!("[{slot}] {error:#}");
        self.failures += 1;
        self.clients[slot] = None;
    }

    /// Takes a client in if there is a free slot.
    fn accept(&mut self) -> Result<()> {
        let req = match self.ep.next_conn_req(&self.cfg) {
            Ok(req) => req,
            Err(Error::NoEvent) => return Ok(()),
            // One request's failure is not that of the others. But an endpoint that fails again and
            // again would keep us busy for ever.
            Err(error) if self.failures_in_a_row < MAX_FAILURES_IN_A_ROW => {
                eprintln!("{error}");
                self.failures += 1;
                self.failures_in_a_row += 1;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        self.failures_in_a_row = 0;
        let Some(slot) = self.clients.iter().position(Option::is_none) else {
            eprintln!("No free slot: a client is rejected.");
            if let Err(error) = req.delete() {
                eprintln!("{error}");
                self.failures += 1;
            }
            return Ok(());
        };
        if let Err(error) = self.add_client(slot, req) {
            self.fail(slot, &error);
        }
        Ok(())
    }

    /// Accepts the client. That it is established is an event, which comes later.
    fn add_client(&mut self, slot: usize, req: ConnReq) -> Result<()> {
        let conn = req.connect(&[])?;
        self.epoll.add(&conn, Source::Conn(slot).number())?;
        // The descriptor of each completion queue is that of the channel (Conn::get_compl_fd).
        self.epoll
            .add(conn.get_cq(), Source::Channel(slot).number())?;
        let served = false;
        self.clients[slot] = Some(Client { conn, served });
        Ok(())
    }

    fn handle_event(&mut self, slot: usize) -> Result<()> {
        let Some(Client { conn, served }) = &self.clients[slot] else {
            return Ok(());
        };
        match conn.next_event() {
            Ok(ConnEvent::Established) => self.read_name(slot, conn),
            Ok(event) if !event.is_end() => Ok(()),
            // The client has answered, or is gone: its slot is free again.
            Ok(_end) if *served => {
                self.clients[slot] = None;
                Ok(())
            }
            Ok(event) => bail!("{event}, before the client's name was read"),
            Err(Error::NoEvent) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the client's name into its slot of the memory. The completion comes later.
    fn read_name(&self, slot: usize, conn: &Conn) -> Result<()> {
        let data = CommonData::from_bytes(conn.get_private_data())?;
        let remote = MrRemote::from_descriptor(&data.mr_desc)?;
        let src = remote.slice(data.range(names::SIZE))?;
        let at = slot * names::SIZE;
        let dst = self.names.slice(at..at + names::SIZE)?;
        conn.read(dst, src, Flags::COMPLETION_ALWAYS, 0)?;
        Ok(())
    }

    fn handle_completions(&mut self, slot: usize) -> Result<()> {
        let Some(Client { conn, served }) = &mut self.clients[slot] else {
            return Ok(());
        };
        // Waiting takes the event, asks for one for later completions, and returns which of the
        // connection's queues it was. (These connections have one queue, for want of receives.)
        let (cq, _kind) = match conn.wait() {
            Ok(queue) => queue,
            Err(Error::NoCompletion) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut wcs = [Wc::default()];
        while cq.get_wc(&mut wcs)? > 0 {
            wcs[0].result().context("the read of the client's name")?;
            let mut name = [0; names::SIZE];
            self.names.read_at(slot * names::SIZE, &mut name)?;
            println!("- {}", hello::text(&name));
            *served = true;
            conn.disconnect()?;
        }
        Ok(())
    }
}
