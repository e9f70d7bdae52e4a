//! Functions of these tests: a server with memory for some keys, and its clients.

use std::collections::BTreeMap;
use std::sync::Arc;

use rpma::Refusal;
use rpma::commit::Method;
use rpma::serve::{Asked, Client, Directory, Gone, Refused, Served, Server, ServerCfg};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::common::prelude::*;

/// The memory of a key.
pub(crate) const LEN: usize = 4096;
pub(crate) const SHORT: Duration = Duration::from_millis(50);

pub(crate) type KeyPart = (Peer, Arc<Mr<PmemMap>>);

/// A server, and a part for each key from 1 on.
pub(crate) struct Site {
    pub(crate) device: Device,
    /// That of the clients.
    pub(crate) far: Peer,
    pub(crate) all: PmemMap,
    pub(crate) server: Server,
    pub(crate) parts: BTreeMap<u64, KeyPart>,
}

pub(crate) fn identity(key: u64, epoch: u64, instance: u64) -> Identity {
    Identity {
        key,
        epoch,
        instance,
    }
}

pub(crate) fn usage() -> MrUsage {
    MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT
}

/// The bytes of each key: of many keys less, because a test's memory has 4 MiB.
fn len_of(keys: u64) -> usize {
    match keys {
        ..500 => LEN,
        _ => 1024,
    }
}

/// Lets this process have as many descriptors as it may.
pub(crate) fn more_descriptors() -> Result {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised)?;
    Ok(())
}

/// The memory of the directory, a page, which is before that of the keys.
pub(crate) fn directory_of(all: &PmemMap) -> Result<PmemMap> {
    Ok(all.part(..LEN)?)
}

/// The first bytes of a memory.
pub(crate) fn bytes(memory: &PmemMap) -> Result<Vec<u8>> {
    let mut bytes = vec![0; LEN];
    memory.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// An empty directory in memory that may have one of an earlier test.
pub(crate) fn new_directory(memory: PmemMap, slots: u32) -> Result<Directory> {
    memory.store_u64(0, 0)?;
    Ok(Directory::create(memory, slots)?)
}

impl Site {
    pub(crate) fn new(keys: u64) -> Result<Self> {
        Self::with(keys, &ServerCfg::new())
    }

    pub(crate) fn with(keys: u64, cfg: &ServerCfg) -> Result<Self> {
        Self::with_slots(keys, cfg, 31)
    }

    /// The directory is after the keys' memory if it has more slots than fit into a page.
    pub(crate) fn with_slots(keys: u64, cfg: &ServerCfg, slots: u32) -> Result<Self> {
        let end = LEN + len_of(keys) * keys as usize;
        let len = Directory::len_for(slots);
        let all = PmemMap::open(devdax(), end + len)?;
        let directory = if len <= LEN {
            directory_of(&all)?
        } else {
            all.part(end..end + len)?
        };
        Self::over(keys, cfg, all, new_directory(directory, slots)?)
    }

    /// A server of this memory and directory.
    pub(crate) fn over(
        keys: u64,
        cfg: &ServerCfg,
        all: PmemMap,
        directory: Directory,
    ) -> Result<Self> {
        let device = Device::from_addr(&addr(), Side::Local)?;
        let ep = listen(&Peer::new(&device)?)?;
        let mut site = Self {
            server: Server::new(ep, directory, cfg)?,
            far: Peer::new(&device)?,
            device,
            all,
            parts: BTreeMap::new(),
        };
        let len = len_of(keys);
        for (key, at) in (1..=keys).zip((LEN..).step_by(len)) {
            let part = site.region(at..at + len, usage())?;
            site.parts.insert(key, part);
        }
        Ok(site)
    }

    /// A part of the memory, with a peer of its own.
    pub(crate) fn region(&self, range: std::ops::Range<usize>, usage: MrUsage) -> Result<KeyPart> {
        let peer = Peer::new(&self.device)?;
        let region = Mr::reg(&peer, self.all.part(range)?, usage)?;
        Ok((peer, Arc::new(region)))
    }

    /// A server in the memory of a simulated host, which the calling thread must be on.
    #[cfg(feature = "sim")]
    pub(crate) fn on(pmem: &Pmem, keys: u64, cfg: &ServerCfg) -> Result<Self> {
        let all = PmemMap::open(pmem.path(), LEN * (1 + keys as usize))?;
        let directory = Directory::create(directory_of(&all)?, 2)?;
        Self::over(keys, cfg, all, directory)
    }

    /// A client asks with this private data.
    pub(crate) fn ask_with(&self, data: &[u8]) -> Result<Conn> {
        let req = ConnReq::new(&self.far, &addr(), self.server.get_port(), &ConnCfg::new())?;
        Ok(req.connect(data)?)
    }

    /// A client of this identity asks.
    pub(crate) fn ask(&self, identity: Identity) -> Result<Conn> {
        self.ask_with(&data(identity)?)
    }

    /// A client on the second host asks this server on the first one.
    #[cfg(feature = "sim")]
    pub(crate) fn ask_from(&self, [near, far]: [&Host; 2], offer: &Offer) -> Result<Conn> {
        let (addr, port) = (near.addr().to_string(), self.server.get_port());
        let _entered = far.enter();
        ask_at((&addr, port), offer)
    }

    /// A client of this identity, and its question.
    pub(crate) fn question(&mut self, identity: Identity) -> Result<(Conn, Asked)> {
        Ok((self.ask(identity)?, self.asked()?))
    }

    /// The next thing that happens, in time.
    pub(crate) fn next(&mut self) -> Result<Served> {
        let served = self.server.next(&mut [Wc::default(); 4], LIMIT);
        Ok(served?.ok_or("something in time")?)
    }

    /// Checks that no event comes for a while.
    pub(crate) fn nothing(&mut self) -> Result {
        let served = self.server.next(&mut [Wc::default()], SHORT)?;
        assert!(served.is_none(), "{served:?}");
        Ok(())
    }

    /// The next question. Clients that were admitted may arrive before it.
    pub(crate) fn asked(&mut self) -> Result<Asked> {
        loop {
            match self.next()? {
                Served::Asks(asked) => return Ok(asked),
                Served::Arrived(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next client that is gone, as [`asked`](Self::asked).
    pub(crate) fn gone(&mut self) -> Result<Gone> {
        loop {
            match self.next()? {
                Served::Gone(gone) => return Ok(*gone),
                Served::Arrived(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Admits with the key's own part.
    pub(crate) fn admit(&mut self, asked: Asked) -> Result<Client, Box<Refused>> {
        let (peer, region) = self.parts[&asked.identity().key].clone();
        self.admit_with(asked, &(peer, region), b"data")
    }

    pub(crate) fn admit_with(
        &mut self,
        asked: Asked,
        (peer, region): &KeyPart,
        data: &[u8],
    ) -> Result<Client, Box<Refused>> {
        self.server.admit(asked, peer, region, data)
    }

    /// Admits the client of a question, which is established then.
    pub(crate) fn establish(&mut self, conn: &Conn, asked: Asked) -> Result<Client> {
        let client = self.admit(asked)?;
        assert_eq!(event(conn)?, ConnEvent::Established);
        self.arrives(client)?;
        Ok(client)
    }

    /// A client of this identity that is admitted and established.
    pub(crate) fn client(&mut self, identity: Identity) -> Result<(Conn, Client)> {
        let (conn, asked) = self.question(identity)?;
        assert_eq!(asked.identity(), identity);
        let client = self.establish(&conn, asked)?;
        Ok((conn, client))
    }

    /// The client of a question is not admitted, and gets the same refusal as the program.
    pub(crate) fn not_admitted(
        &mut self,
        (conn, asked): (Conn, Asked),
        code: RefusalCode,
        epoch: u64,
        words: &str,
    ) -> Result<Box<Refused>> {
        let refused = self.admit(asked).expect_err(words);
        is_refusal(&refused.refusal, code, epoch, words);
        assert_eq!(refusal(&conn)?, refused.refusal);
        Ok(refused)
    }

    /// A client is established; an earlier one of its key may be gone.
    pub(crate) fn arrives(&mut self, client: Client) -> Result {
        loop {
            match self.next()? {
                Served::Arrived(of) if of == client => return Ok(()),
                Served::Gone(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// A client of this identity asks and is refused by the server itself.
    pub(crate) fn refused(
        &mut self,
        identity: Identity,
        code: RefusalCode,
        epoch: u64,
        words: &str,
    ) -> Result {
        let conn = self.ask(identity)?;
        self.is_refused(&conn, code, epoch, words).map(drop)
    }

    /// The next event is the refusal of this client, which gets the same one.
    pub(crate) fn is_refused(
        &mut self,
        conn: &Conn,
        code: RefusalCode,
        epoch: u64,
        words: &str,
    ) -> Result<Option<Identity>> {
        match self.next()? {
            Served::Refused(refused) => {
                assert_eq!(refusal(conn)?, refused.refusal);
                assert!(refused.peer_addr.is_some());
                is_refusal(&refused.refusal, code, epoch, words);
                Ok(refused.identity)
            }
            other => panic!("{words}: {other:?}"),
        }
    }
}

/// A client of this host asks the server at this address.
#[cfg(feature = "sim")]
pub(crate) fn ask_at((addr, port): (&str, u16), offer: &Offer) -> Result<Conn> {
    let peer = Peer::toward(addr)?;
    let req = ConnReq::new(&peer, addr, port, &ConnCfg::new())?;
    Ok(req.connect(&offer.encode(Offer::CONNECT)?)?)
}

/// Whether an event loop would call the server now.
pub(crate) fn is_readable(site: &Site) -> bool {
    readable(&site.server, Duration::ZERO)
}

/// The client goes on: it writes.
pub(crate) fn goes_on(conn: &Conn) -> Result {
    write_nothing(conn, 1)?;
    completion(conn)?.result()?;
    Ok(())
}

pub(crate) fn is_refusal(refusal: &Refusal, code: RefusalCode, epoch: u64, words: &str) {
    assert_eq!(refusal.code(), code, "{refusal}");
    assert_eq!(refusal.epoch(), epoch, "{refusal}");
    assert!(refusal.words().contains(words), "{words}: {refusal}");
}

pub(crate) fn offer(identity: Identity) -> Offer {
    let mut offer = Offer::default();
    offer.set_identity(identity);
    offer
}

/// The private data of a client of this identity.
pub(crate) fn data(identity: Identity) -> Result<Vec<u8>> {
    Ok(offer(identity).encode(Offer::CONNECT)?)
}

/// The offer of a client that commits by this method.
pub(crate) fn offer_by(identity: Identity, method: Method) -> Offer {
    let mut offer = offer(identity);
    offer.set_method(method, FlushType::Persistent);
    offer
}

/// The reason for which the server rejected this client.
pub(crate) fn refusal(conn: &Conn) -> Result<Refusal> {
    match event(conn)? {
        ConnEvent::Rejected { private_data, .. } => Ok(Refusal::decode(&private_data)?),
        other => panic!("{other}"),
    }
}
