//! Two hosts, a connection between them, and persistent memory of the server, all in one thread;
//! and the images of memory that a loss of power may leave.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::Result;
use rpma::pmem::PmemKind;
use rpma::sim::Entered;

use crate::common::prelude::*;

pub(crate) const LIMIT: Duration = Duration::from_secs(10);
pub(crate) const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;
pub(crate) const ON_ERROR: Flags = Flags::COMPLETION_ON_ERROR;

/// The size of the server's memory, and of the client's.
pub(crate) const SIZE: usize = 4096;

/// The platforms with persistent memory.
pub(crate) const PLATFORMS: [Platform; 3] =
    [Platform::AdrDdioOn, Platform::AdrDdioOff, Platform::Eadr];

/// What is left of a program under every cut: it may fail where an operation takes too long.
pub(crate) type Ran = Result<Result<()>, Loss>;

/// How the two are connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) platform: Platform,
    /// Whether the client flushes by reading, also where it need not.
    pub(crate) by_reading: bool,
    /// Whether the server promises direct writes to persistent memory also where it may not.
    pub(crate) promises: bool,
}

impl Way {
    /// With the device's own flush, and the promise that the server may give.
    pub(crate) fn on(platform: Platform) -> Self {
        Self {
            platform,
            by_reading: false,
            promises: false,
        }
    }

    pub(crate) fn by_reading(mut self, by_reading: bool) -> Self {
        self.by_reading = by_reading;
        self
    }

    pub(crate) fn promising(mut self) -> Self {
        self.promises = true;
        self
    }

    /// Whether the server may promise direct writes to persistent memory.
    pub(crate) fn is_safe(self, profile: &Profile) -> bool {
        let host = fabric(profile).host("server");
        host.set_platform(self.platform);
        host.may_promise_direct_write(profile.flushes_natively() && !self.by_reading)
    }
}

/// Each device, platform and kind of flush that makes data durable. (On a device without a native
/// flush there is one kind.)
pub(crate) fn ways() -> Vec<(Profile, Way)> {
    let mut ways = Vec::new();
    for profile in Profile::EVERY {
        for platform in PLATFORMS {
            for by_reading in [false, true] {
                let way = Way::on(platform).by_reading(by_reading);
                let is_another = !by_reading || profile.flushes_natively();
                if is_another && way.is_safe(&profile) {
                    ways.push((profile.clone(), way));
                }
            }
        }
    }
    ways
}

/// Runs a test of each platform, in a thread of its own.
pub(crate) fn on_each_platform(test: impl Fn(Platform) + Sync) {
    thread::scope(|scope| {
        for platform in PLATFORMS {
            let test = &test;
            scope.spawn(move || test(platform));
        }
    });
}

/// A client, and a server with persistent memory.
#[derive(Clone)]
pub(crate) struct Hosts {
    pub(crate) fabric: Fabric,
    pub(crate) client: Host,
    pub(crate) server: Host,
    pub(crate) pmem: Pmem,
    way: Way,
}

impl Hosts {
    pub(crate) fn new(fabric: &Fabric, [client, server]: [Host; 2], way: Way, size: usize) -> Self {
        server.set_platform(way.platform);
        Self {
            fabric: fabric.clone(),
            client,
            pmem: server.pmem("log", size),
            server,
            way,
        }
    }

    pub(crate) fn link(&self) -> Link {
        self.fabric.between(&self.client, &self.server)
    }

    /// Two connections to the server's memory.
    pub(crate) fn connect(self) -> Result<World> {
        let _on_client = self.client.enter();
        let addr = self.server.addr().to_string();
        let mut cfg = ConnCfg::new();
        // Two commits of two parts, with a flush each.
        cfg.set_force_fallback(self.way.by_reading).set_sq_size(12);
        // Retries end, also on soft-RoCE.
        cfg.set_retry_count(2)?.set_max_send_sge(2)?;
        let far_peer = peer_of(&self.server);
        let usage = MrUsage::WRITE_DST
            | MrUsage::READ_SRC
            | MrUsage::FLUSH_TYPE_VISIBILITY
            | MrUsage::FLUSH_TYPE_PERSISTENT;
        let target = register(&self.server, &far_peer, &self.pmem, usage)?;
        let messages = Mr::reg(&far_peer, vec![0; 16], MrUsage::SEND | MrUsage::RECV)?;

        let peer = peer_of(&self.client);
        let usage = MrUsage::WRITE_SRC | MrUsage::SEND | MrUsage::RECV | MrUsage::READ_DST;
        let source = Mr::reg(&peer, vec![0; self.pmem.len()], usage)?;
        let (near, far) = ((&peer, &cfg), (&far_peer, &ConnCfg::new()));
        let connect = || Pair::between(&addr, near, far, (&[], &target.get_descriptor()));
        let ((conn, far), other) = (connect()?.ends(), connect()?.ends());
        let may = self
            .server
            .may_promise_direct_write(conn.has_native_flush());
        let mut promise = PeerCfg::new();
        promise.set_direct_write_to_pmem(self.way.promises || may);
        conn.apply_remote_peer_cfg(&promise);
        other.0.apply_remote_peer_cfg(&promise);
        let world = World {
            hosts: self,
            remote: MrRemote::from_descriptor(conn.get_private_data())?,
            conn,
            far,
            target,
            source,
            other,
            messages,
            peers: (peer, far_peer),
        };
        world.expect_request()?;
        Ok(world)
    }

    /// The images that the memory may leave now: so many.
    pub(crate) fn images(&self, limit: usize) -> Vec<Vec<u8>> {
        images(&self.fabric, &self.pmem, limit, || ())
    }

    /// As [`under_every_cut`], of this memory.
    pub(crate) fn under_every_cut<T>(
        &self,
        check: impl Fn(&[u8], u64) + Send,
        run: impl FnOnce(&dyn Fn(u64)) -> T,
    ) -> Result<T, Loss> {
        under_every_cut(&self.fabric, &self.pmem, check, run)
    }
}

/// Runs a program, and cuts the power at every event. The program tells how much it has promised;
/// the check gets the bytes of each image, and what was told last.
pub(crate) fn under_every_cut<T>(
    fabric: &Fabric,
    pmem: &Pmem,
    check: impl Fn(&[u8], u64) + Send,
    run: impl FnOnce(&dyn Fn(u64)) -> T,
) -> Result<T, Loss> {
    let told = &AtomicU64::new(0);
    let check_all = move |cut: &Cut<'_>| {
        for image in cut.images(pmem) {
            check(image.bytes(), told.load(Ordering::Relaxed));
        }
    };
    fabric.find_loss(check_all, || {
        run(&|number| told.store(number, Ordering::Relaxed))
    })
}

/// The last images of a memory when `run` has ended: so many.
pub(crate) fn images(
    fabric: &Fabric,
    pmem: &Pmem,
    limit: usize,
    run: impl FnOnce(),
) -> Vec<Vec<u8>> {
    let mut last = Vec::new();
    let check = |cut: &Cut<'_>| {
        let images = cut.images_up_to(pmem, limit);
        last = images.map(|image| image.bytes().to_vec()).collect();
    };
    fabric.on_every_event(check, run);
    last
}

/// The word at the beginning of an image.
pub(crate) fn word(image: &[u8]) -> u64 {
    u64::from_le_bytes(image[..8].try_into().expect("8 bytes"))
}

/// A region of a host's persistent memory.
pub(crate) fn register(
    host: &Host,
    peer: &Peer,
    pmem: &Pmem,
    usage: MrUsage,
) -> Result<Mr<PmemMap>> {
    let _on = host.enter();
    Ok(Mr::reg(
        peer,
        PmemMap::open(pmem.path(), pmem.len())?,
        usage,
    )?)
}

pub(crate) struct World {
    pub(crate) hosts: Hosts,
    pub(crate) conn: Conn,
    /// The server's end.
    pub(crate) far: Conn,
    pub(crate) target: Mr<PmemMap>,
    pub(crate) remote: MrRemote,
    pub(crate) source: Mr<Vec<u8>>,
    /// Another connection between the two.
    pub(crate) other: (Conn, Conn),
    /// The server's messages, in volatile memory.
    pub(crate) messages: Mr<Vec<u8>>,
    /// Those of the client, and of the server.
    pub(crate) peers: (Peer, Peer),
}

impl Deref for World {
    type Target = Hosts;

    fn deref(&self) -> &Hosts {
        &self.hosts
    }
}

impl World {
    /// On a [`fabric`] of these devices.
    pub(crate) fn of(profile: &Profile, way: Way) -> Result<Self> {
        Self::new(&fabric(profile), way)
    }

    pub(crate) fn new(fabric: &Fabric, way: Way) -> Result<Self> {
        Self::sized(fabric, way, SIZE)
    }

    /// With memories of another size.
    pub(crate) fn sized(fabric: &Fabric, way: Way, size: usize) -> Result<Self> {
        let hosts = ["client", "server"].map(|name| fabric.host(name));
        Hosts::new(fabric, hosts, way, size).connect()
    }

    /// Writes to the server's memory the bytes in the same place of the client's.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.write_with(offset, bytes, ON_ERROR)
    }

    pub(crate) fn write_with(&self, offset: usize, bytes: &[u8], flags: Flags) -> Result<()> {
        self.source.write_at(offset, bytes)?;
        let (to, from) = self.places(offset, bytes.len())?;
        self.conn.write(to, from, flags, 0)?;
        Ok(())
    }

    /// Waits until a write after all others has completed.
    pub(crate) fn wait_for_write(&self) -> Result<()> {
        let (to, from) = self.places(SIZE - 8, 8)?;
        self.wait(self.conn.write(to, from, ALWAYS, 6)?)
    }

    /// Writes 8 bytes at once, after all earlier flushes.
    pub(crate) fn atomic_write(&self, offset: usize, bytes: &[u8; 8]) -> Result<()> {
        let (to, _) = self.places(offset, 8)?;
        self.conn.atomic_write(to, bytes, ON_ERROR, 0)?;
        Ok(())
    }

    /// Flushes a part of it, and waits for that.
    pub(crate) fn flush(&self, offset: usize, len: usize) -> Result<()> {
        self.flush_as(offset, len, FlushType::Persistent)
    }

    pub(crate) fn flush_as(&self, offset: usize, len: usize, kind: FlushType) -> Result<()> {
        let (to, _) = self.places(offset, len)?;
        self.wait(self.conn.flush(to, kind, ALWAYS, 1)?)
    }

    /// Flushes a part of it, for a wait that comes later.
    pub(crate) fn begin_flush(&self, offset: usize, len: usize) -> Result<Posted> {
        let (to, _) = self.places(offset, len)?;
        Ok(self.conn.flush(to, FlushType::Persistent, ALWAYS, 1)?)
    }

    /// Flushes a part of it, without waiting.
    pub(crate) fn post_flush(&self, offset: usize, len: usize, kind: FlushType) -> Result<()> {
        let (to, _) = self.places(offset, len)?;
        self.conn.flush(to, kind, ON_ERROR, 0)?;
        Ok(())
    }

    /// Appends a record and the tail that shows it, posted together.
    pub(crate) fn append_as_batch(&self, at: usize, bytes: &[u8], tail: &[u8; 8]) -> Result<()> {
        self.source.write_at(at, bytes)?;
        let (to, from) = self.places(at, bytes.len())?;
        let (tail_to, _) = self.places(0, 8)?;
        let kind = FlushType::Persistent;
        let mut batch = self.conn.batch::<4>();
        batch.write(to, from, ON_ERROR, 0)?;
        batch.flush(to, kind, ON_ERROR, 0)?;
        batch.atomic_write(tail_to, tail, ON_ERROR, 0)?;
        batch.flush(tail_to, kind, ALWAYS, 1)?;
        self.wait(batch.post()?)
    }

    /// Flushes a part of it on another connection, and waits for that.
    pub(crate) fn flush_on_other(&self, offset: usize, len: usize) -> Result<()> {
        let (to, _) = self.places(offset, len)?;
        let other = &self.other.0;
        let flushed = other.flush(to, FlushType::Persistent, ALWAYS, 1)?;
        other.wait_for(flushed, LIMIT, |_| {})?;
        Ok(())
    }

    pub(crate) fn wait(&self, posted: Posted) -> Result<()> {
        self.conn.wait_for(posted, LIMIT, |_| {})?;
        Ok(())
    }

    pub(crate) fn places(&self, offset: usize, len: usize) -> Result<(RemoteSlice, MrSlice<'_>)> {
        let to = self.remote.slice(offset as u64..(offset + len) as u64)?;
        Ok((to, self.source.slice(offset..offset + len)?))
    }

    /// Reads the word at the beginning of the server's memory.
    pub(crate) fn read_word(&self) -> Result<u64> {
        let (from, to) = (self.remote.slice(..8)?, self.source.slice(SIZE - 8..)?);
        self.wait(self.conn.read(to, from, ALWAYS, 7)?)?;
        let mut word = [0; 8];
        self.source.read_at(SIZE - 8, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// The first bytes of the server's memory, as a program there sees them.
    pub(crate) fn seen<const N: usize>(&self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.target.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Asks the server's program to make a part durable, and waits until it has: the
    /// general-purpose server's method.
    pub(crate) fn ask_to_persist(&self, offset: usize, len: usize) -> Result<()> {
        self.ask(offset, len)?;
        self.answer(true)?;
        self.wait_for_answer()
    }

    /// The server's program waits for a request from now on.
    pub(crate) fn expect_request(&self) -> Result<()> {
        Ok(self.far.recv(self.messages.slice(..8)?, 4)?)
    }

    /// Sends a message without any bytes.
    pub(crate) fn notify(&self, flags: Flags) -> Result<()> {
        self.conn.send(MrSlice::EMPTY, flags, 3)?;
        Ok(())
    }

    pub(crate) fn wait_for_answer(&self) -> Result<()> {
        arrives(&self.conn, 2)
    }

    /// Sends the request; [`wait_for_answer`](Self::wait_for_answer) waits for the answer.
    pub(crate) fn ask(&self, offset: usize, len: usize) -> Result<()> {
        const MESSAGE: usize = SIZE - 64;
        let answer = self.source.slice(MESSAGE..MESSAGE + 8)?;
        self.conn.recv(answer, 2)?;
        let request = [(offset as u32).to_le_bytes(), (len as u32).to_le_bytes()].concat();
        self.source.write_at(MESSAGE + 8, &request)?;
        let message = self.source.slice(MESSAGE + 8..MESSAGE + 16)?;
        self.conn.send(message, ALWAYS, 3)?;
        Ok(())
    }

    /// The server's program: makes the requested bytes durable, and answers.
    pub(crate) fn answer(&self, persists: bool) -> Result<()> {
        arrives(&self.far, 4)?;
        let mut asked = [0; 8];
        self.messages.read_at(0, &mut asked)?;
        let [offset, len] = [&asked[..4], &asked[4..]]
            .map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes")) as usize);
        if persists {
            self.target.persist(offset..offset + len)?;
        }
        // The next request may come as soon as this is answered.
        self.expect_request()?;
        let answer = self.messages.slice(8..)?;
        let sent = self.far.send(answer, ALWAYS, 5)?;
        self.far.wait_for(sent, LIMIT, |_| {})?;
        Ok(())
    }
}

/// Waits until a message has arrived in the receive with this number.
pub(crate) fn arrives(conn: &Conn, op_context: u64) -> Result<()> {
    let mut wcs = [Wc::default()];
    loop {
        if let Next::Completions(_) = conn.next(&mut wcs, LIMIT)? {
            wcs[0].result()?;
            if wcs[0].posted().is_none() && wcs[0].wr_id() == op_context {
                return Ok(());
            }
        }
    }
}

/// A fabric of these devices, with time that goes by calls: the load of the machine makes no
/// difference.
pub(crate) fn fabric(profile: &Profile) -> Fabric {
    Rig::of(profile).seed(1).fabric()
}

/// One host, on which the calling thread is, and its persistent memory.
pub(crate) struct Own {
    pub(crate) map: PmemMap,
    pub(crate) pmem: Pmem,
    pub(crate) host: Host,
    pub(crate) fabric: Fabric,
    _entered: Entered,
}

impl Own {
    pub(crate) fn new(fabric: Fabric, platform: Platform, size: usize) -> Self {
        let host = fabric.host("host");
        host.set_platform(platform);
        let pmem = host.pmem("log", size);
        let entered = host.enter();
        let map = PmemMap::open(pmem.path(), pmem.len()).expect("memory");
        assert_eq!((map.kind(), map.len()), (PmemKind::DeviceDax, pmem.len()));
        Self {
            map,
            pmem,
            host,
            fabric,
            _entered: entered,
        }
    }

    /// One page, of the strict adapter's fabric.
    pub(crate) fn page(platform: Platform) -> Self {
        Self::new(fabric(&Profile::STRICT), platform, 1)
    }

    /// The images that the memory may leave now: so many.
    pub(crate) fn images(&self, limit: usize) -> Vec<Vec<u8>> {
        images(&self.fabric, &self.pmem, limit, || ())
    }
}
