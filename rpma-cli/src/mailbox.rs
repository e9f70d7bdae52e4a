//! [`Mailbox`]: one side's messages of a session.

use std::time::Duration;

use rpma::{AlignedBuf, Conn, ConnCfg, ConnReq, Flags, Mr, MrSlice, MrUsage, Peer, Wc, WcStatus};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::wire::{self, MAX};

/// The receives, and as many places for sends. A side sends two messages at most before the other
/// one answers.
const PLACES: usize = 4;
/// A host that gives no sign of life for so long ends the session.
const KEEP_ALIVE: Duration = Duration::from_secs(6);
/// 0.27 s: a lost packet is sent again in time.
const ACK_TIMEOUT: u8 = 16;

/// The memory of the messages of one side.
#[derive(Debug)]
pub(crate) struct Mailbox {
    places: Mr<AlignedBuf>,
    sent: usize,
}

/// The settings of the connection for messages.
pub(crate) fn conn_cfg() -> rpma::Result<ConnCfg> {
    let mut cfg = ConnCfg::new();
    cfg.set_keep_alive(Some(KEEP_ALIVE))?
        .set_ack_timeout(Some(ACK_TIMEOUT))?
        .set_rnr_retry_count(6)?;
    Ok(cfg)
}

impl Mailbox {
    /// Posts the receives of a connection that is about to be made.
    pub(crate) fn new(peer: &Peer, req: &ConnReq) -> rpma::Result<Self> {
        let memory = AlignedBuf::zeroed(2 * PLACES * MAX)?;
        let places = Mr::reg(peer, memory, MrUsage::SEND | MrUsage::RECV)?;
        let mailbox = Self { places, sent: 0 };
        for place in 0..PLACES {
            req.recv(mailbox.place(place, MAX)?, place as u64)?;
        }
        Ok(mailbox)
    }

    /// Sends a message. The error is one line.
    pub(crate) fn send(&mut self, conn: &Conn, message: &impl Serialize) -> Result<(), String> {
        let bytes = wire::encode(message)?;
        let place = PLACES + self.sent % PLACES;
        self.sent += 1;
        let sent = self.places.write_at(place * MAX, &bytes).and_then(|()| {
            let src = self.place(place, bytes.len())?;
            conn.send(src, Flags::COMPLETION_ALWAYS, 0)
        });
        sent.map(drop).map_err(|error| error.to_string())
    }

    /// The message of a completion. `None` if it is a send's, or if the connection has ended, which
    /// an event reports. The error is one line.
    pub(crate) fn take<T: DeserializeOwned>(
        &self,
        conn: &Conn,
        wc: &Wc,
    ) -> Result<Option<T>, String> {
        let len = match wc.result() {
            Err(failure) if failure.status == WcStatus::WR_FLUSH_ERR => None,
            result => result.map_err(|failure| failure.to_string())?.byte_len(),
        };
        let Some(len) = len else {
            return Ok(None);
        };
        let place = wc.wr_id() as usize;
        let mut bytes = vec![0; len as usize];
        let taken = self.places.read_at(place * MAX, &mut bytes);
        let again = taken.and_then(|()| conn.recv(self.place(place, MAX)?, place as u64));
        again.map_err(|error| error.to_string())?;
        wire::decode(&bytes).map(Some)
    }

    fn place(&self, place: usize, len: usize) -> rpma::Result<MrSlice<'_>> {
        self.places.slice(place * MAX..place * MAX + len)
    }
}
