//! The server: one thread waits for everything that can happen at the endpoint and on the
//! connections, and never for one of them alone.

use anyhow::{Context, Result, bail, ensure};
use rpma::wait::{Happened, Member, Wait};
use rpma::{
    AlignedBuf, ConnCfg, ConnEvent, Device, Ep, Error, Flags, Mr, MrRemote, MrUsage, Peer, Request,
    Side, Wc,
};

use crate::common::cli::{Role, timeout};
use crate::common::data::CommonData;
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

    let size = MAX_CLIENTS * names::SIZE;
    let mut wait = Wait::new()?;
    wait.add_ep(Ep::listen(&peer, addr, port)?)?;
    let mut server = Server {
        wait,
        names: Mr::reg(&peer, AlignedBuf::zeroed(size)?, MrUsage::READ_DST)?,
        peer,
        clients: Default::default(),
        failures: 0,
        failures_in_a_row: 0,
    };

    println!("Today I have got in touch with:");
    // A turn of a client is a completion: it has one at a time.
    let mut wcs = [Wc::default()];
    while let Some(happened) = server.wait.next(&mut wcs, timeout)? {
        server.handle(happened, &wcs[0])?;
    }
    eprintln!("Server timed out.");
    let unserved = server.clients.iter().flatten().filter(|c| !c.served);
    let failures = server.failures + unserved.count();
    ensure!(failures == 0, "of the clients {failures} were not served");
    Ok(())
}

struct Server {
    wait: Wait,
    peer: Peer,
    /// A name for each slot.
    names: Mr<AlignedBuf>,
    clients: [Option<Client>; MAX_CLIENTS],
    failures: usize,
    /// Those of the endpoint, since it last gave a request.
    failures_in_a_row: usize,
}

struct Client {
    member: Member,
    /// Its name is read, and its connection is ending.
    served: bool,
}

impl Server {
    fn handle(&mut self, happened: Happened, wc: &Wc) -> Result<()> {
        let (member, outcome) = match happened {
            Happened::Request(_endpoint, request) => {
                self.accept(request);
                return Ok(());
            }
            Happened::Event(member, event) => (member, self.handle_event(member, event)),
            Happened::Completions(member, _one) => (member, self.handle_completion(member, wc)),
            Happened::Failed(member, error) if self.slot(member).is_some() => {
                (member, Err(error.into()))
            }
            Happened::Failed(_endpoint, error) => return self.endpoint_failed(error),
            _ => return Ok(()),
        };
        if let (Err(error), Some(slot)) = (outcome, self.slot(member)) {
            self.fail(slot, &error);
        }
        Ok(())
    }

    /// The slot of a client.
    fn slot(&self, member: Member) -> Option<usize> {
        let has_it = |client: &Option<Client>| client.as_ref().is_some_and(|c| c.member == member);
        self.clients.iter().position(has_it)
    }

    /// One client's failure is not that of the others.
    fn fail(&mut self, slot: usize, error: &anyhow::Error) {
        eprintln!("[{slot}] {error:#}");
        self.failures += 1;
        self.remove(slot);
    }

    /// Dropping its connection ends it.
    fn remove(&mut self, slot: usize) {
        if let Some(client) = self.clients[slot].take() {
            drop(self.wait.remove(client.member));
        }
    }

    /// One request's failure is not that of the others. But an endpoint that fails again and again
    /// is of no use.
    fn endpoint_failed(&mut self, error: Error) -> Result<()> {
        if self.failures_in_a_row == MAX_FAILURES_IN_A_ROW {
            return Err(error.into());
        }
        eprintln!("{error}");
        self.failures += 1;
        self.failures_in_a_row += 1;
        Ok(())
    }

    /// Takes a client in if there is a free slot.
    fn accept(&mut self, request: Request) {
        self.failures_in_a_row = 0;
        let Some(slot) = self.clients.iter().position(Option::is_none) else {
            eprintln!("No free slot: a client is rejected.");
            if let Err(error) = request.reject(&[]) {
                eprintln!("{error}");
                self.failures += 1;
            }
            return;
        };
        if let Err(error) = self.add_client(slot, request) {
            self.fail(slot, &error);
        }
    }

    /// Accepts the client. That it is established is an event, which comes later.
    fn add_client(&mut self, slot: usize, request: Request) -> Result<()> {
        // The queues of the connection are made for its place in the wait.
        let place = self.wait.place();
        let cfg = place.cfg(&self.peer, &ConnCfg::new())?;
        let conn = request.into_req(&self.peer, &cfg)?.connect(&[])?;
        let member = self.wait.add(place, conn)?;
        let served = false;
        self.clients[slot] = Some(Client { member, served });
        Ok(())
    }

    fn handle_event(&mut self, member: Member, event: ConnEvent) -> Result<()> {
        let Some(slot) = self.slot(member) else {
            return Ok(());
        };
        let served = self.clients[slot]
            .as_ref()
            .is_some_and(|client| client.served);
        match event {
            ConnEvent::Established => self.read_name(slot, member),
            event if !event.is_end() => Ok(()),
            // The client has answered, or is gone: its slot is free again.
            _end if served => {
                self.remove(slot);
                Ok(())
            }
            event => bail!("{event}, before the client's name was read"),
        }
    }

    /// Reads the client's name into its slot of the memory. The completion comes later.
    fn read_name(&self, slot: usize, member: Member) -> Result<()> {
        let conn = self.wait.conn(member).context("it is a member")?;
        let data = CommonData::from_bytes(conn.get_private_data())?;
        let remote = MrRemote::from_descriptor(&data.mr_desc)?;
        let src = remote.slice(data.range(names::SIZE))?;
        let at = slot * names::SIZE;
        let dst = self.names.slice(at..at + names::SIZE)?;
        conn.read(dst, src, Flags::COMPLETION_ALWAYS, 0)?;
        Ok(())
    }

    fn handle_completion(&mut self, member: Member, wc: &Wc) -> Result<()> {
        let Some(slot) = self.slot(member) else {
            return Ok(());
        };
        wc.result().context("the read of the client's name")?;
        let mut name = [0; names::SIZE];
        self.names.read_at(slot * names::SIZE, &mut name)?;
        println!("- {}", hello::text(&name));
        if let Some(client) = &mut self.clients[slot] {
            client.served = true;
        }
        let conn = self.wait.conn(member).context("it is a member")?;
        Ok(conn.disconnect()?)
    }
}
