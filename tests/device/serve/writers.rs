//! Two writers with one key, which stand still, come back and take over, on a server that loses its
//! power: no order lets both be acknowledged for the same place.
//!
//! `RPMA_SIM_RUNS` sets the number of seeds, and `RPMA_SIM_SEED` the only one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rpma::Refusal;
use rpma::commit::{Limits, Method, Writer, WriterCfg};
use rpma::serve::{Directory, Served, Server, ServerCfg};
use rpma::sim::{JoinHandle, now, sleep};

use crate::common::prelude::*;
use crate::serve::support::{LEN, identity, offer, usage};

const RUNS: u64 = 250;
const PORT: u16 = 7_777;
const KEY: u64 = 1;
/// Records of 16 bytes, after the tail.
const START: usize = 64;
const RECORD: usize = 16;
/// Each writer wants so many acknowledged, and takes over less often than this.
const RECORDS: u64 = 20;
const TAKE_OVERS: u64 = 4;
const SHORT: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(120);

/// Numbers that follow from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }
}

/// The record that was acknowledged for each place: writer and number.
type Acknowledged = Arc<Mutex<BTreeMap<u64, (u64, u64)>>>;

/// How a writer ended.
#[derive(Debug)]
enum Ended {
    Done,
    /// It got the refusal, and has no more take-overs.
    Told(Refusal),
}

struct Client {
    addr: String,
    method: Method,
    instance: u64,
    seed: u64,
    acknowledged: Acknowledged,
}

impl Client {
    /// Appends records until it has enough, or learns that another writer has the key.
    fn run(&self) -> Ended {
        let (mut epoch, mut take_overs, mut number) = (1, 0, 0);
        let mut random = Random(self.seed ^ self.instance << 32);
        let most = random.below(TAKE_OVERS);
        let begin = now();
        loop {
            assert!(now() - begin < LIMIT, "writer {} never ends", self.instance);
            match self.write(epoch, &mut number, &mut random) {
                Ok(()) => return Ended::Done,
                Err(Error::NotEstablished(event)) => {
                    let ConnEvent::Rejected { private_data, .. } = *event else {
                        continue;
                    };
                    let Ok(refusal) = Refusal::decode(&private_data) else {
                        sleep(SHORT);
                        continue;
                    };
                    match refusal.code() {
                        RefusalCode::OldEpoch | RefusalCode::Taken => {
                            assert!(refusal.epoch() >= epoch);
                            if take_overs == most {
                                return Ended::Told(refusal);
                            }
                            // Its program decides.
                            sleep(Duration::from_micros(random.below(50_000)));
                            take_overs += 1;
                            epoch = refusal.epoch() + 1;
                        }
                        code => {
                            assert!(code.is_temporary(), "{refusal}");
                            sleep(SHORT);
                        }
                    }
                }
                // It comes back.
                Err(_) => sleep(SHORT / 10),
            }
        }
    }

    fn write(&self, epoch: u64, number: &mut u64, random: &mut Random) -> rpma::Result<()> {
        let peer = Peer::toward(&self.addr)?;
        let source = Mr::reg(&peer, vec![0; LEN], MrUsage::WRITE_SRC | MrUsage::READ_DST)?;
        let cfg = WriterCfg::new(self.method);
        let mut patient = ConnCfg::new();
        patient.set_timeout(SHORT).set_retry_count(7)?;
        let req = ConnReq::new(&peer, &self.addr, PORT, &cfg.conn_cfg(&patient)?)?;
        let asks = offer(identity(KEY, epoch, self.instance));
        let mut writer = Writer::connect(req, &cfg, &asks)?.wait(4 * SHORT)?;
        let far = writer.offer().regions()[0];
        let mut tail = read_tail(&writer, &far, &source)?;
        while *number < RECORDS {
            self.append(&mut writer, &far, &source, (tail, *number))?;
            let was = self.acknowledge(tail, *number);
            assert_eq!(was, None, "place {tail}, and {} again", self.instance);
            tail += 1;
            *number += 1;
            // Some are appended at once.
            if random.below(2) == 0 {
                sleep(Duration::from_micros(random.below(30_000)));
            }
        }
        Ok(())
    }

    fn append(
        &self,
        writer: &mut Writer,
        far: &MrRemote,
        source: &Mr<Vec<u8>>,
        (place, number): (u64, u64),
    ) -> rpma::Result<()> {
        let at = START + place as usize * RECORD;
        source.write_at(at, &self.instance.to_le_bytes())?;
        source.write_at(at + 8, &number.to_le_bytes())?;
        let dst = far.slice(at as u64..(at + RECORD) as u64)?;
        let tail = (far.slice(..8)?, (place + 1).to_ne_bytes());
        let ticket = writer.commit(&[(dst, source.slice(at..at + RECORD)?)], Some(tail))?;
        writer.wait(ticket, 2 * SHORT, |_| {})
    }

    fn acknowledge(&self, place: u64, number: u64) -> Option<(u64, u64)> {
        let mut acknowledged = self.acknowledged.lock().expect("no panic");
        acknowledged.insert(place, (self.instance, number))
    }
}

fn read_tail(writer: &Writer, far: &MrRemote, source: &Mr<Vec<u8>>) -> rpma::Result<u64> {
    let (to, from) = (source.slice(..8)?, far.slice(..8)?);
    let read = writer.conn().read(to, from, ALWAYS, 1)?;
    writer.conn().wait_for(read, 2 * SHORT, |_| {})?;
    source.load_u64(0)
}

/// The server's program, until it is to stop or its host has lost its power.
fn serve(addr: &str, pmem: &Pmem, stops: &AtomicBool) -> rpma::Result<()> {
    let all = PmemMap::open(pmem.path(), 2 * LEN)?;
    let directory = Directory::open(all.part(..LEN)?)?;
    let device = Device::from_addr(addr, Side::Local)?;
    let ep = Ep::listen(&Peer::new(&device)?, addr, PORT)?;
    let mut cfg = ServerCfg::new();
    cfg.set_platform(PeerCfg::new().set_direct_write_to_pmem(true));
    cfg.set_commits(Some(Limits::new(4, 2, 4096)?));
    let mut server = Server::new(ep, directory, &cfg)?;
    let peer = Peer::new(&device)?;
    let region = Arc::new(Mr::reg(&peer, all.part(LEN..)?, usage())?);
    let mut wcs = [Wc::default(); 8];
    while !stops.load(Ordering::Relaxed) {
        match server.next(&mut wcs, SHORT)? {
            Some(Served::Asks(asked)) => drop(server.admit(asked, &peer, &region, &[])),
            Some(Served::Failed(error)) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Memory of the server's host, with a directory in its first half.
fn memory(near: &Host) -> Result<Pmem> {
    near.set_platform(Platform::Eadr);
    let pmem = near.pmem("memory", 2 * LEN);
    let _entered = near.enter();
    let all = PmemMap::open(pmem.path(), 2 * LEN)?;
    Directory::create(all.part(..LEN)?, 4)?;
    Ok(pmem)
}

/// The server's host, and the program on it.
struct Serving {
    near: Host,
    pmem: Pmem,
    stops: Arc<AtomicBool>,
    program: JoinHandle<()>,
}

impl Serving {
    fn new(near: Host) -> Self {
        let pmem = memory(&near).expect("inside");
        let stops = Arc::new(AtomicBool::new(false));
        let program = Self::start(&near, &pmem, &stops);
        Self {
            near,
            pmem,
            stops,
            program,
        }
    }

    fn start(near: &Host, pmem: &Pmem, stops: &Arc<AtomicBool>) -> JoinHandle<()> {
        let (addr, pmem, stops) = (near.addr().to_string(), pmem.clone(), Arc::clone(stops));
        near.spawn(move || {
            let served = serve(&addr, &pmem, &stops);
            log::debug!("the server ends: {served:?}");
        })
    }

    /// Its host loses its power, and starts again.
    fn restarted(self) -> Self {
        self.near.power_cut();
        self.program.join().expect("no panic");
        self.near.restart();
        let program = Self::start(&self.near, &self.pmem, &self.stops);
        Self { program, ..self }
    }

    /// Its program stops, and its host loses its power. Returns the bytes that are left.
    fn ended(self) -> Vec<u8> {
        self.stops.store(true, Ordering::Relaxed);
        self.program.join().expect("no panic");
        self.near.power_cut();
        self.pmem.bytes()
    }
}

/// Hosts of clients stand still, and the server's loses its power in some runs.
fn disturbed(mut server: Serving, hosts: &[Host; 2], random: &mut Random) -> Serving {
    let cuts = random.below(3) == 0;
    for step in 0..4 {
        sleep(Duration::from_micros(random.below(60_000)));
        if cuts && step == 2 {
            server = server.restarted();
        } else {
            let host = &hosts[random.below(2) as usize];
            host.freeze();
            sleep(Duration::from_micros(random.below(400_000)));
            host.thaw();
        }
    }
    server
}

/// Each place has the record that was acknowledged for it.
fn check_places(bytes: &[u8], acknowledged: &BTreeMap<u64, (u64, u64)>) {
    for (place, (instance, number)) in acknowledged {
        let at = LEN + START + *place as usize * RECORD;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let found = (word(at), word(at + 8));
        assert_eq!(found, (*instance, *number), "place {place}");
    }
    assert!(acknowledged.len() as u64 >= RECORDS);
}

/// One writer at least has written all of its records, and a refusal is for good.
fn check_ends(ended: &[Ended]) {
    for each in ended {
        if let Ended::Told(refusal) = each {
            assert!(!refusal.code().is_temporary(), "{refusal}");
        }
    }
    let is_done = |ended: &Ended| matches!(ended, Ended::Done);
    assert!(ended.iter().any(is_done), "{ended:?}");
}

/// One run: two writers, and a network and hosts with faults that the seed chooses.
fn run(seed: u64) {
    let mut random = Random(seed);
    let profile = Profile::EVERY[seed as usize % Profile::ALL.len()].clone();
    let method = match seed / 4 % 2 {
        0 => Method::Server,
        _ => Method::Reading,
    };
    let (fabric, [near]) = Rig::of(&profile).seed(seed).hosts(["server"]);
    let server = Serving::new(near.clone());
    let acknowledged = Acknowledged::default();
    let hosts = ["one", "other"].map(|name| fabric.host(name));
    let writers = [0, 1].map(|n: usize| {
        let client = Client {
            addr: near.addr().to_string(),
            method,
            instance: 10 + n as u64,
            seed,
            acknowledged: Arc::clone(&acknowledged),
        };
        hosts[n].spawn(move || client.run())
    });
    for host in &hosts {
        let link = fabric.between(host, &near);
        link.delay_up_to(Duration::from_micros(500));
    }
    let server = disturbed(server, &hosts, &mut random);
    let ended = writers.map(|writer| writer.join().expect("no panic"));
    check_places(&server.ended(), &acknowledged.lock().expect("no panic"));
    check_ends(&ended);
    assert_eq!(fabric.why_not_repeatable(), None);
}

/// Promise: two writers with one key, while hosts stand still and lose their power: one ends with a
/// reason, or both have written; each acknowledged record stays, and no place has two.
#[test]
fn two_writers_with_one_key() {
    with_seeds(RUNS, run);
}
