//! A server and its clients, and directories of keys: what one of them costs is counted here.
//!
//! The clients are connections of the simulated fabric. Their ends are on hosts that lose their
//! power, except for the ends that are counted: a connection whose client is gone has two
//! descriptors, and one with both ends has six. The server notices nothing, because its keep-alives
//! are not due before the end of the bench.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rpma::Result;
use rpma::serve::{Asked, Client, Directory, Gone, Served, Server, ServerCfg};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::common::place::with_fabric;
use crate::common::prelude::*;
use crate::count::{Outcome, counted};
use crate::{bytes, callgrind};

/// The numbers of keys of the directories.
pub(crate) const KEYS: [u32; 2] = [1_000, 100_000];
/// The numbers of open questions. A pass over 2,000 would cost about as much as an admission.
pub(crate) const QUESTIONS: [usize; 2] = [10, 2_000];
/// How many admissions and ends are counted at each number of clients.
const COUNTED: usize = 5;
/// Up to so many clients, all admissions are counted in any case.
const COUNTED_WHOLE: usize = 1_000;
/// How many clients a host has before it loses its power.
const OF_HOST: usize = 50;
/// The numbers of clients whose bytes are counted. With the endpoint the wait has 64 or 1,024
/// members, so its lists have no spare room.
pub(crate) const WEIGHED: [usize; 2] = [63, 1_023];
/// The memory of a client.
const PART: usize = 64;
/// Longer than the bench.
const KEEP_ALIVE: Duration = Duration::from_secs(24 * 3600);
const LIMIT: Duration = Duration::from_secs(60);

/// The highest number of clients: 10,000, or fewer if this process may not have the descriptors.
pub(crate) fn most() -> Outcome<usize> {
    /// A connection whose client is gone.
    const EACH: usize = 2;
    const OTHERS: usize = 800;
    let files = getrlimit(Resource::Nofile).maximum;
    let files = files.map_or(usize::MAX, |files| files as usize);
    // `place_of` needs an even number.
    let possible = files.saturating_sub(OTHERS) / EACH / 2 * 2;
    if possible < QUESTIONS[1] {
        let text = format!("{files} descriptors are too few: raise the hard limit (`ulimit -Hn`)");
        return Err(text.into());
    }
    Ok(possible.min(10_000))
}

/// As many open files as are possible.
fn many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("more open files");
}

/// Begins or ends the counting of instructions (`CALLGRIND_START_INSTRUMENTATION`,
/// `CALLGRIND_STOP_INSTRUMENTATION`). Without it the program runs many times faster.
fn instrument(counts: bool) {
    callgrind::request(if counts { 4 } else { 5 }, 0);
}

/// The numbers of clients beside which one is counted.
pub(crate) fn numbers(most: usize) -> [usize; 3] {
    [10, COUNTED_WHOLE, most]
}

/// A server, and its clients.
struct Site {
    addr: String,
    all: PmemMap,
    start: usize,
    device: Device,
    server: Server,
    /// Those whose hosts have no power.
    dead: Vec<Client>,
    admitted: usize,
    far: Far,
    /// Whether the bytes of the server are attributed.
    weighs: bool,
}

/// A host of clients.
struct Far {
    host: Host,
    peer: Peer,
}

impl Far {
    fn new(addr: &str, number: usize) -> Result<Self> {
        let host = with_fabric(|fabric, _| fabric.host(&format!("far-{number}")));
        let _entered = host.enter();
        let peer = Peer::toward(addr)?;
        Ok(Self { host, peer })
    }
}

/// A client that asks, its part, and its end of the connection.
struct Asking {
    asked: Asked,
    peer: Peer,
    region: Arc<Mr<PmemMap>>,
    conn: Conn,
}

impl Site {
    fn new(addr: &str, most: usize) -> Result<Self> {
        let start = Directory::len_for(most as u32);
        let len = start + most * PART;
        let all = PmemMap::open(path_of(&file(len)), len)?;
        let device = Device::from_addr(addr, Side::Local)?;
        let ep = Ep::listen(&Peer::new(&device)?, addr, 0)?;
        let directory = Directory::create(all.part(..start)?, most as u32)?;
        let mut conn = ConnCfg::new();
        conn.set_keep_alive(Some(KEEP_ALIVE))?;
        let mut cfg = ServerCfg::new();
        cfg.set_most_clients(most)?.set_conn(&conn);
        cfg.set_most_questions(most)?.set_answer_limit(KEEP_ALIVE);
        Ok(Self {
            addr: addr.to_owned(),
            all,
            start,
            device,
            server: Server::new(ep, directory, &cfg)?,
            dead: Vec::new(),
            admitted: 0,
            far: Far::new(addr, 0)?,
            weighs: false,
        })
    }

    /// The next client asks.
    fn ask(&mut self) -> Result<Asking> {
        let number = self.admitted;
        self.admitted += 1;
        let slots = self.server.directory().slots() as usize;
        let at = self.start + place_of(number, slots) * PART;
        let peer = Peer::new(&self.device)?;
        let region = Mr::reg(&peer, self.all.part(at..at + PART)?, MrUsage::WRITE_DST)?;
        let port = self.server.get_port();
        let req = ConnReq::new(&self.far.peer, &self.addr, port, &ConnCfg::new())?;
        let mut offer = Offer::default();
        offer.set_identity(identity(number));
        let conn = req.connect(&offer.encode(Offer::CONNECT)?)?;
        match self.next()? {
            Served::Asks(asked) => Ok(Asking {
                asked,
                peer,
                region: Arc::new(region),
                conn,
            }),
            other => panic!("{other:?}"),
        }
    }

    /// Admits the next client. Returns it and its end of the connection.
    fn admit(&mut self) -> Result<(Client, Conn)> {
        let Asking {
            asked,
            peer,
            region,
            conn,
        } = self.ask()?;
        bytes::attribute(self.weighs);
        let client = measured_admit(&mut self.server, asked, &peer, &region)?;
        bytes::attribute(false);
        assert_eq!(conn.next_event()?, ConnEvent::Established);
        let served = self.next()?;
        assert!(matches!(served, Served::Arrived(_)), "{served:?}");
        Ok((client, conn))
    }

    fn next(&mut self) -> Result<Served> {
        bytes::attribute(self.weighs);
        let served = measured_next(&mut self.server);
        bytes::attribute(false);
        Ok(served?.expect("in time"))
    }

    /// Admits so many clients, whose hosts lose their power.
    fn admit_many(&mut self, clients: usize) -> Result<()> {
        self.each_without_power(clients, |site| {
            let (client, conn) = site.admit()?;
            site.dead.push(client);
            Ok(conn)
        })
    }

    /// Calls `connect` so often. The hosts of these connections lose their power.
    fn each_without_power(
        &mut self,
        times: usize,
        mut connect: impl FnMut(&mut Self) -> Result<Conn>,
    ) -> Result<()> {
        let mut conns = Vec::new();
        for left in (0..times).rev() {
            conns.push(connect(self)?);
            if conns.len() == OF_HOST || left == 0 {
                self.far.host.power_cut();
                conns.clear();
                self.far = Far::new(&self.addr, self.admitted)?;
            }
        }
        Ok(())
    }

    /// Cuts off clients without power. They are in the midst of the others.
    fn cut_off(&mut self, clients: usize) {
        for _ in 0..clients {
            let client = self.dead.swap_remove(self.dead.len() / 2);
            bytes::attribute(self.weighs);
            let gone = measured_cut_off(&mut self.server, client).expect("it is there");
            bytes::attribute(false);
            assert!(gone.not_cut_off.is_none(), "{gone:?}");
        }
    }
}

/// A file without a disk. The fabric does not watch its memory: that takes the longer, the more
/// memory there is.
fn file(len: usize) -> OwnedFd {
    let file = memfd_create("memory", MemfdFlags::CLOEXEC).expect("memfd_create");
    ftruncate(&file, len as u64).expect("ftruncate");
    file
}

fn path_of(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// The identity of a client. The keys are in no order.
fn identity(number: usize) -> Identity {
    Identity {
        // An odd factor: all keys are different.
        key: (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15),
        epoch: 1,
        instance: 1,
    }
}

/// The parts of the clients are in another order than that of their admission: each of an even
/// number of parts is used once.
fn place_of(number: usize, slots: usize) -> usize {
    // A prime number, twice which is more than there are clients.
    number * 7919 % slots
}

/// A call of the server's loop.
#[inline(never)]
fn measured_next(server: &mut Server) -> Result<Option<Served>> {
    server.next(&mut [Wc::default(); 4], LIMIT)
}

#[inline(never)]
fn measured_admit(
    server: &mut Server,
    asked: Asked,
    peer: &Peer,
    region: &Arc<Mr<PmemMap>>,
) -> Result<Client> {
    Ok(server.admit(asked, peer, region, &[])?)
}

#[inline(never)]
fn measured_cut_off(server: &mut Server, client: Client) -> Option<Gone> {
    server.cut_off(client)
}

/// For each number of clients: counts the admissions of the last ones, and as many ends. First they
/// end by themselves, and then by the server. `all` counts the other admissions as well.
pub(crate) fn run(addr: &str, most: usize, all: bool) -> Result<()> {
    many_files();
    let numbers = numbers(most);
    let mut site = Site::new(addr, most + 2 * COUNTED * numbers.len())?;
    for number in numbers {
        let before = number - COUNTED - site.dead.len();
        instrument(all || number <= COUNTED_WHOLE);
        site.admit_many(before)?;
        counted(&format!("before_{number}"), before);
        instrument(true);
        let living = (0..COUNTED).map(|_| site.admit());
        let living = living.collect::<Result<Vec<_>>>()?;
        counted(&format!("admission_{number}"), COUNTED);
        for (client, conn) in living {
            drop(conn);
            match site.next()? {
                Served::Gone(gone) => assert_eq!(gone.client, client),
                other => panic!("{other:?}"),
            }
        }
        counted(&format!("end_{number}"), COUNTED);
        site.cut_off(COUNTED);
        counted(&format!("cut_off_{number}"), COUNTED);
        instrument(false);
    }
    // Its connections end when the process does.
    std::process::exit(0);
}

/// Counts the admissions of clients while questions of others are open.
pub(crate) fn run_asking(addr: &str) -> Result<()> {
    many_files();
    let [_, most] = QUESTIONS;
    let mut site = Site::new(addr, most + COUNTED * QUESTIONS.len())?;
    let (mut open, mut living) = (Vec::new(), Vec::new());
    for number in QUESTIONS {
        site.each_without_power(number - open.len(), |site| {
            let Asking { asked, conn, .. } = site.ask()?;
            open.push(asked);
            Ok(conn)
        })?;
        instrument(true);
        for _ in 0..COUNTED {
            living.push(site.admit()?);
        }
        counted(&format!("asking_{number}"), COUNTED);
        instrument(false);
        site.far = Far::new(addr, site.admitted)?;
    }
    std::process::exit(0);
}

/// Prints the library's bytes of a connection with a keep-alive, and of a key whose connection has
/// ended.
pub(crate) fn weigh(addr: &str, clients: usize) -> Result<()> {
    many_files();
    let mut site = Site::new(addr, clients + 1)?;
    // The first one makes what all share.
    site.admit_many(1)?;
    site.cut_off(1);
    site.weighs = true;
    site.admit_many(clients)?;
    let connected = bytes::own();
    site.cut_off(clients);
    let idle = bytes::own();
    println!("{} {}", (connected - idle) / clients, idle / clients);
    Ok(())
}

/// Writes the bytes of a directory with so many keys to a file.
pub(crate) fn write_directory(path: &Path, keys: u32) -> Outcome {
    let file = file(Directory::len_for(keys));
    let mut directory = Directory::create(PmemMap::open(path_of(&file), 0)?, keys)?;
    for number in 0..keys as usize {
        directory.keep(identity(number))?;
    }
    // The memory has no mark of this program then.
    drop(directory);
    Ok(fs::write(path, fs::read(path_of(&file))?)?)
}

/// Counts the opening of a directory, and prints the bytes of a key in memory.
pub(crate) fn open(path: &str, keys: u32) -> Result<()> {
    let memory = PmemMap::open(path, Directory::len_for(keys))?;
    let before = bytes::live();
    instrument(true);
    let directory = measured_open(memory)?;
    counted(&format!("key_opened_{keys}"), keys as usize);
    instrument(false);
    println!("{}", (bytes::live() - before) / keys as usize);
    assert_eq!(directory.identities().count(), keys as usize);
    Ok(())
}

#[inline(never)]
fn measured_open(memory: PmemMap) -> Result<Directory> {
    Directory::open(memory)
}
