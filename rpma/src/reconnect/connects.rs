//! [`Connects`]: the steps of a reconnect that follow the queues; for a plain connection and for a
//! writer.

use crate::commit::{Connecting, Messages, Writer, WriterCfg};
use crate::conn::Conn;
use crate::conn_cfg::ConnCfg;
use crate::conn_req::ConnReq;
use crate::error::Result;
use crate::offer::Offer;

/// How a request becomes a connection: the last steps of each try.
///
/// [`ToConn`] and [`ToWriter`] are ready-made. A program implements `Connects` itself if it posts
/// receives before it connects, or sends private data that is no [`Offer`].
pub trait Connects {
    /// A connection that is asked for.
    type Asked;
    /// The connection when it is established.
    type Connected;

    /// Returns the settings of the connection: those of `cfg`, with the changes that this kind of
    /// connection needs, such as longer queues.
    ///
    /// # Errors
    ///
    /// An error ends the reconnect before its first try.
    fn conn_cfg(&self, cfg: &ConnCfg) -> Result<ConnCfg> {
        Ok(cfg.clone())
    }

    /// Asks the server for the connection. This call does not wait.
    ///
    /// # Errors
    ///
    /// An error fails the try. [`Error::InvalidArgument`](crate::Error::InvalidArgument) and
    /// [`Error::NotSupported`](crate::Error::NotSupported) end the reconnect, unless another
    /// address of the round may give another result.
    fn ask(&mut self, req: ConnReq, offer: &Offer) -> Result<Self::Asked>;

    /// Returns the connection.
    fn conn(asked: &Self::Asked) -> &Conn;

    /// Returns the connection after its [`ConnEvent::Established`](crate::ConnEvent::Established).
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    fn finish(&mut self, asked: Self::Asked) -> Result<Self::Connected>;
}

/// Makes a [`Conn`], and sends the offer as private data.
///
/// The program applies the platform of the server's offer ([`Conn::apply_remote_peer_cfg`]).
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "it has no settings")]
pub struct ToConn;

impl Connects for ToConn {
    type Asked = Conn;
    type Connected = Conn;

    fn ask(&mut self, req: ConnReq, offer: &Offer) -> Result<Conn> {
        Ok(req.connect(&offer.encode(Offer::CONNECT)?)?)
    }

    fn conn(asked: &Conn) -> &Conn {
        asked
    }

    fn finish(&mut self, asked: Conn) -> Result<Conn> {
        Ok(asked)
    }
}

/// Makes a [`Writer`].
///
/// A client with a writer recovers after each connect, and then appends until an error. `recover`
/// is the second half of `come_back` in [the client that comes
/// back](crate::guide::failures#the-client-that-comes-back).
///
/// ```no_run
/// use rpma::commit::{Method, Writer, WriterCfg};
/// use rpma::reconnect::{Reconnect, ToWriter};
/// use rpma::{ConnCfg, Error, Identity, Offer, Peer, PeerCfg};
///
/// /// Writes for ever. `recover` and `append` use memory that was registered before.
/// fn write_for_ever(
///     peer: &Peer,
///     key: u64,
///     epoch: u64,
///     recover: impl Fn(&mut Writer) -> Result<u64, Error>,
///     append: impl Fn(&mut Writer, u64) -> Error,
/// ) -> Result<(), Error> {
///     let mut offer = Offer::new(&PeerCfg::new());
///     // Once in the life of this program: the identity stays the same for all connections.
///     offer.set_identity(Identity::new(key, epoch)?);
///     let to_writer = ToWriter::new(&WriterCfg::new(Method::Reading));
///     let mut server = Reconnect::new(peer, "server.example", 7204, offer, to_writer)?;
///     loop {
///         let mut writer = match server.connect(&ConnCfg::new()) {
///             Ok(writer) => writer,
///             // The server is down for longer than the limit of one reconnect.
///             Err(Error::GaveUp(last)) => {
///                 eprintln!("{last}");
///                 continue;
///             }
///             Err(error) => {
///                 // A program that is not meant to take over ends here.
///                 if let Some(epoch) = error.other_epoch() {
///                     eprintln!("another writer has the epoch {epoch}");
///                 }
///                 return Err(error);
///             }
///         };
///         // Reads the tail, writes it again, and waits until it is durable.
///         let error = match recover(&mut writer) {
///             Ok(tail) => append(&mut writer, tail),
///             Err(error) => error,
///         };
///         match error {
///             // A mistake of this program: the next connection would have the same error.
///             Error::InvalidArgument(_) | Error::NotSupported(_) => return Err(error),
///             // The writer is dropped here, before the next one is asked for.
///             _ => eprintln!("{error}: connecting again"),
///         }
///     }
/// }
/// ```
///
/// With [`Method::Server`](crate::commit::Method::Server) a writer has registered memory for its
/// messages. The next writer uses this memory again if the writer before was dropped.
#[derive(Debug)]
pub struct ToWriter {
    cfg: WriterCfg,
    messages: Option<Messages>,
}

impl ToWriter {
    /// Makes writers with these settings. [`WriterCfg::conn_cfg`] is applied to the settings of
    /// each connection.
    #[must_use]
    pub fn new(cfg: &WriterCfg) -> Self {
        Self {
            cfg: *cfg,
            messages: None,
        }
    }
}

impl Connects for ToWriter {
    type Asked = Connecting;
    type Connected = Writer;

    fn conn_cfg(&self, cfg: &ConnCfg) -> Result<ConnCfg> {
        self.cfg.conn_cfg(cfg)
    }

    fn ask(&mut self, req: ConnReq, offer: &Offer) -> Result<Connecting> {
        Ok(Writer::connect_with(
            req,
            &self.cfg,
            offer,
            &mut self.messages,
        )?)
    }

    fn conn(asked: &Connecting) -> &Conn {
        asked.conn()
    }

    fn finish(&mut self, asked: Connecting) -> Result<Writer> {
        asked.finish()
    }
}
