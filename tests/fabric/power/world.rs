//! Two hosts, a connection between them, and persistent memory of the server, all in one thread.

use anyhow::Result;

use crate::common::prelude::*;

pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// The size of the server's memory, and of the client's.
pub(crate) const SIZE: usize = 4096;

pub(crate) struct World {
    pub(crate) client: Host,
    pub(crate) server: Host,
    pub(crate) pmem: Pmem,
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

/// How the two are connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) platform: Platform,
    /// Whether the client flushes by reading, also where it need not.
    pub(crate) by_reading: bool,
    /// Whether the server promises direct writes to persistent memory; `None`: as it may.
    pub(crate) promise: Option<bool>,
}

impl World {
    pub(crate) fn new(fabric: &Fabric, way: Way) -> Result<Self> {
        Self::sized(fabric, way, SIZE)
    }

    /// With memories of another size.
    pub(crate) fn sized(fabric: &Fabric, way: Way, size: usize) -> Result<Self> {
        let (client, server) = (fabric.host("client"), fabric.host("server"));
        server.set_platform(way.platform);
        let pmem = server.pmem("log", size);
        Self::connect(client, server, pmem, way)
    }

    /// A connection to the memory of a host that has some.
    pub(crate) fn connect(client: Host, server: Host, pmem: Pmem, way: Way) -> Result<Self> {
        let addr = server.addr().to_string();
        let mut cfg = ConnCfg::new();
        cfg.set_force_fallback(way.by_reading);
        // Retries end, also on soft-RoCE.
        cfg.set_retry_count(2)?;
        cfg.set_max_send_sge(2)?;
        // Two commits of two parts, with a flush each.
        cfg.set_sq_size(12);
        let on_server = server.enter();
        let peer = Peer::new(&Device::from_addr(&addr, Side::Local)?)?;
        let usage = MrUsage::WRITE_DST
            | MrUsage::READ_SRC
            | MrUsage::FLUSH_TYPE_VISIBILITY
            | MrUsage::FLUSH_TYPE_PERSISTENT;
        let target = Mr::reg(&peer, PmemMap::open(pmem.path(), pmem.len())?, usage)?;
        let messages = Mr::reg(&peer, vec![0; 16], MrUsage::SEND | MrUsage::RECV)?;
        drop(on_server);

        let far_peer = peer;
        let _on_client = client.enter();
        let peer = Peer::new(&Device::from_addr(&addr, Side::Remote)?)?;
        let usage = MrUsage::WRITE_SRC | MrUsage::SEND | MrUsage::RECV | MrUsage::READ_DST;
        let source = Mr::reg(&peer, vec![0; pmem.len()], usage)?;
        let (near, far) = ((&peer, &cfg), (&far_peer, &ConnCfg::new()));
        let connect = || Pair::between(&addr, near, far, (&[], &target.get_descriptor()));
        let ((conn, far), other) = (connect()?.ends(), connect()?.ends());
        let remote = MrRemote::from_descriptor(conn.get_private_data())?;
        let may = server.may_promise_direct_write(conn.has_native_flush());
        let mut promise = PeerCfg::new();
        promise.set_direct_write_to_pmem(way.promise.unwrap_or(may));
        conn.apply_remote_peer_cfg(&promise);
        other.0.apply_remote_peer_cfg(&promise);
        let world = Self {
            client,
            server,
            pmem,
            conn,
            far,
            target,
            remote,
            source,
            other,
            messages,
            peers: (peer, far_peer),
        };
        world.expect_request()?;
        Ok(world)
    }

    /// Writes to the server's memory the bytes in the same place of the client's.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.write_with(offset, bytes, Flags::COMPLETION_ON_ERROR)
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
        self.wait(self.conn.write(to, from, Flags::COMPLETION_ALWAYS, 6)?)
    }

    /// Writes 8 bytes at once, after all earlier flushes.
    pub(crate) fn atomic_write(&self, offset: usize, bytes: &[u8; 8]) -> Result<()> {
        let to = self.remote.slice(offset as u64..offset as u64 + 8)?;
        self.conn
            .atomic_write(to, bytes, Flags::COMPLETION_ON_ERROR, 0)?;
        Ok(())
    }

    /// Flushes a part of it, and waits for that.
    pub(crate) fn flush(&self, offset: usize, len: usize) -> Result<()> {
        self.flush_as(offset, len, FlushType::Persistent)
    }

    pub(crate) fn flush_as(&self, offset: usize, len: usize, kind: FlushType) -> Result<()> {
        let (to, _) = self.places(offset, len)?;
        self.wait(self.conn.flush(to, kind, Flags::COMPLETION_ALWAYS, 1)?)
    }

    /// Flushes a part of it, without waiting.
    pub(crate) fn post_flush(&self, offset: usize, len: usize, kind: FlushType) -> Result<()> {
        let (to, _) = self.places(offset, len)?;
        self.conn.flush(to, kind, Flags::COMPLETION_ON_ERROR, 0)?;
        Ok(())
    }

    /// Appends a record and the tail that shows it, posted together.
    pub(crate) fn append_as_batch(&self, at: usize, bytes: &[u8], tail: &[u8; 8]) -> Result<()> {
        self.source.write_at(at, bytes)?;
        let (to, from) = self.places(at, bytes.len())?;
        let (tail_to, _) = self.places(0, 8)?;
        let (kind, quiet) = (FlushType::Persistent, Flags::COMPLETION_ON_ERROR);
        let mut batch = self.conn.batch::<4>();
        batch.write(to, from, quiet, 0)?;
        batch.flush(to, kind, quiet, 0)?;
        batch.atomic_write(tail_to, tail, quiet, 0)?;
        batch.flush(tail_to, kind, Flags::COMPLETION_ALWAYS, 1)?;
        self.wait(batch.post()?)
    }

    /// Flushes a part of it on another connection, and waits for that.
    pub(crate) fn flush_on_other(&self, offset: usize, len: usize) -> Result<()> {
        let (to, _) = self.places(offset, len)?;
        let other = &self.other.0;
        let flushed = other.flush(to, FlushType::Persistent, Flags::COMPLETION_ALWAYS, 1)?;
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
        self.conn.send(message, Flags::COMPLETION_ALWAYS, 3)?;
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
        let sent = self.far.send(answer, Flags::COMPLETION_ALWAYS, 5)?;
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
