//! The program with calls that fail: both sides in one thread, so that each run makes the same
//! calls in the same order.

use anyhow::{Context, Result, bail, ensure};

use crate::common::prelude::*;

/// Its phases, one after the other.
pub(crate) const PHASES: [&str; 5] = [
    "it makes what is there before connections",
    "it connects",
    "it works",
    "it closes connections",
    "it frees the rest",
];

const LIMIT: Duration = Duration::from_secs(1);
const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;
const LEN: usize = 64;

pub(crate) struct Sides {
    pub(crate) client: Host,
    pub(crate) server: Host,
}

/// The objects of each side before connections.
struct Base {
    peer: Peer,
    source: Mr<Vec<u8>>,
    target: Mr<Vec<u8>>,
}

impl Base {
    fn new(addr: &str, side: Side) -> Result<Self> {
        let peer = Peer::new(&Device::from_addr(addr, side)?)?;
        let sends = MrUsage::WRITE_SRC | MrUsage::SEND | MrUsage::RECV | MrUsage::READ_DST;
        let source = Mr::reg(&peer, vec![7; LEN], sends)?;
        let receives =
            MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::RECV | MrUsage::FLUSH_TYPE_VISIBILITY;
        let target = Mr::reg(&peer, vec![0; LEN], receives)?;
        Ok(Self {
            peer,
            source,
            target,
        })
    }
}

impl Sides {
    /// Runs all of it, and reports when a phase has ended, except for the last one.
    pub(crate) fn run(&self, mut phase_ends: impl FnMut()) -> Result<()> {
        let addr = self.server.addr().to_string();
        let client = {
            let _entered = self.client.enter();
            Base::new(&addr, Side::Remote)?
        };
        let in_server = self.server.enter();
        let server = Base::new(&addr, Side::Local)?;
        let channel = CompletionChannel::new(&server.peer)?;
        let mut cfg = SrqCfg::new();
        cfg.set_rq_size(8).set_rcq_size(8);
        cfg.set_compl_channel(Some((channel.clone(), 7)));
        let srq = Srq::new(&server.peer, &cfg)?;
        let ep = Ep::listen(&server.peer, &addr, 0)?;
        drop(in_server);
        phase_ends();

        let mut plain = ConnCfg::new();
        plain.set_min_rnr_timer(Some(1))?;
        plain.set_ack_timeout(Some(12))?;
        plain.set_rcq_size(8).set_max_send_sge(2)?;
        let mut shared = ConnCfg::new();
        shared.set_srq(Some(&srq)).set_force_fallback(true);
        shared.set_compl_channel(ComplChannel::Of {
            channel: channel.clone(),
            key: 8,
        });
        let mut fallback = ConnCfg::new();
        fallback.set_force_fallback(true).set_rcq_size(8);
        fallback.set_max_send_sge(2)?;
        fallback.set_compl_channel(ComplChannel::Shared);
        self.rejected(&addr, &client.peer, &ep)?;
        let native = self.connect(&addr, (&client, &plain), (&server, &plain), &ep)?;
        let other = self.connect(&addr, (&client, &fallback), (&server, &shared), &ep)?;
        phase_ends();

        for ends in [&native, &other] {
            one_sided(&ends.client, &client, &server)?;
            batch(&ends.client, &client, &server)?;
        }
        messages(&native, &client, &server)?;
        shared_messages(&other, &client, &server, &srq, &channel)?;
        phase_ends();

        // One end closes, the other one is closed. The waits are those of a host: its clock jumps.
        let _on_client = self.client.enter();
        let Pair {
            client: closing,
            server: closed,
        } = native;
        closing.close(LIMIT)?;
        let mut wcs = [Wc::default(); 4];
        loop {
            match closed.next(&mut wcs, LIMIT)? {
                Next::Completions(_) => {}
                Next::Event(ConnEvent::Closed) => break,
                Next::Event(event) => bail!("{event} in the place of the end"),
            }
        }
        closed.delete()?;
        // One end disconnects, the other one is cut off.
        other.client.disconnect()?;
        expect(&other.server, &ConnEvent::Closed)?;
        other.server.cut_off()?;
        drop(other.client);
        phase_ends();

        srq.delete()?;
        ep.shutdown()?;
        for side in [client, server] {
            side.source.dereg()?;
            side.target.dereg()?;
        }
        Ok(())
    }

    /// A request that is rejected, and one that is dropped.
    fn rejected(&self, addr: &str, client: &Peer, ep: &Ep) -> Result<()> {
        for words in [&b"no"[..], b""] {
            let _entered = self.client.enter();
            let req = ConnReq::new(client, addr, ep.get_port(), &ConnCfg::new())?;
            let asking = req.connect(&[])?;
            let req = ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT)?;
            match words {
                b"" => req.delete()?,
                words => req.reject(words)?,
            }
            match asking.next_event_timeout(LIMIT)? {
                ConnEvent::Rejected { .. } => asking.delete()?,
                event => bail!("{event} in the place of a reject"),
            }
        }
        Ok(())
    }

    fn connect(
        &self,
        addr: &str,
        (client, client_cfg): (&Base, &ConnCfg),
        (server, server_cfg): (&Base, &ConnCfg),
        ep: &Ep,
    ) -> Result<Pair> {
        let in_client = self.client.enter();
        let req = ConnReq::new(&client.peer, addr, ep.get_port(), client_cfg)?;
        req.recv(client.target.slice(..8)?, 100)?;
        let asking = req.connect(b"hello")?;
        drop(in_client);
        let req = ep.next_conn_req_timeout(server_cfg, LIMIT)?;
        if server_cfg.get_srq().is_none() {
            let part = server.target.slice(..8)?;
            req.recv_many(&[(part, 100), (part, 101)])?;
        }
        let accepted = req.connect(b"welcome")?;
        let client = asking.wait_established(LIMIT)?;
        expect(&accepted, &ConnEvent::Established)?;
        Ok(Pair {
            client,
            server: accepted,
        })
    }
}

fn expect(conn: &Conn, event: &ConnEvent) -> Result<()> {
    let next = conn.next_event_timeout(LIMIT)?;
    ensure!(next == *event, "{next} in the place of {event}");
    Ok(())
}

/// Waits for completions, which must all be successes.
fn all_done(conn: &Conn, mut count: usize) -> Result<()> {
    let mut wcs = [Wc::default(); 4];
    while count > 0 {
        let Next::Completions(polled) = conn.next(&mut wcs, LIMIT)? else {
            bail!("an event in the place of a completion");
        };
        for wc in &wcs[..polled] {
            wc.result()?;
        }
        count = count.checked_sub(polled).context("too many completions")?;
    }
    Ok(())
}

fn one_sided(conn: &Conn, own: &Base, other: &Base) -> Result<()> {
    let (to, from) = (remote(&other.target).slice(..8)?, own.source.slice(..8)?);
    conn.write(to, from, ALWAYS, 1)?;
    all_done(conn, 1)?;
    conn.flush(to, FlushType::Visibility, ALWAYS, 2)?;
    let cq = conn.get_cq();
    match cq.wait_timeout(LIMIT) {
        // Its events arrive on a channel that others share.
        Err(Error::SharedChannel) => {}
        waited => waited?,
    }
    all_done(conn, 1)?;
    conn.atomic_write(to, &[9; 8], ALWAYS, 3)?;
    conn.read(from, to, ALWAYS, 4)?;
    all_done(conn, 2)?;
    cq.req_notify(Notify::Any)?;
    Ok(())
}

fn batch(conn: &Conn, own: &Base, other: &Base) -> Result<()> {
    let (to, from) = (remote(&other.target).slice(..8)?, own.source.slice(..8)?);
    let mut batch = conn.batch::<8>();
    batch.write(to, from, Flags::COMPLETION_ON_ERROR, 1)?;
    let parts = [own.source.slice(..4)?, own.source.slice(4..8)?];
    batch.write_gather(to, &parts, ALWAYS, 2)?;
    batch.flush(to, FlushType::Visibility, ALWAYS, 3)?;
    batch.atomic_write(to, &[1; 8], ALWAYS, 4)?;
    batch.post()?;
    all_done(conn, 3)
}

/// Messages to receives of a connection's own.
fn messages(ends: &Pair, client: &Base, server: &Base) -> Result<()> {
    let from = client.source.slice(..8)?;
    ends.client.send(from, ALWAYS, 1)?;
    let to = remote(&server.target).slice(..8)?;
    let written = ends.client.write_with_imm(to, from, ALWAYS, 5, 2)?;
    ends.client.wait_for(written, LIMIT, |_| {})?;
    all_done(&ends.server, 2)?;
    ends.server.recv_many(&[(MrSlice::EMPTY, 3)])?;
    ends.client.send_with_imm(MrSlice::EMPTY, ALWAYS, 6, 3)?;
    all_done(&ends.client, 1)?;
    all_done(&ends.server, 1)?;
    // To the receive that was posted before connecting.
    ends.server.send(server.source.slice(..8)?, ALWAYS, 4)?;
    all_done(&ends.server, 1)?;
    all_done(&ends.client, 1)
}

/// Messages to a shared receive queue.
fn shared_messages(
    ends: &Pair,
    client: &Base,
    server: &Base,
    srq: &Srq,
    channel: &CompletionChannel,
) -> Result<()> {
    let part = server.target.slice(8..16)?;
    srq.recv(part, 1)?;
    srq.recv_many(&[(part, 2), (part, 3)])?;
    let rcq = srq.get_rcq().context("it has one")?;
    let from = client.source.slice(..8)?;
    for number in 0..2 {
        ends.client.send(from, ALWAYS, number)?;
        all_done(&ends.client, 1)?;
        channel.wait_timeout(LIMIT)?;
        let mut wcs = [Wc::default(); 2];
        ensure!(rcq.get_wc(&mut wcs)? == 1, "one message");
        wcs[0].result()?;
    }
    Ok(())
}
