//! [`Offer`]: the private data of a connection, in one encoding for the needs of nearly all
//! programs. librpma leaves it to each program.

mod encoding;
mod identity;
#[cfg(test)]
mod tests;

pub use self::identity::Identity;
use crate::error::{Error, Result};
use crate::flush::FlushType;
use crate::method::{Limits, Method};
use crate::mr::{Mr, MrRemote};
use crate::peer_cfg::{Durable, PeerCfg};
use crate::refusal::{Refusal, RefusalCode};
use crate::site::Site;

/// Encodes the private data of a connection, for either direction: memory regions, the declaration
/// of this host's platform ([`PeerCfg`]), and bytes of the program.
///
/// One side makes it and gives it to [`ConnReq::establish`](crate::ConnReq::establish), or
/// [`encode`](Self::encode)'s bytes to [`ConnReq::connect`](crate::ConnReq::connect). The other
/// side reads it with [`Conn::offer`](crate::Conn::offer), or decodes it from
/// [`ConnReq::get_private_data`](crate::ConnReq::get_private_data).
///
/// ```no_run
/// use rpma::{Conn, Ep, Error, Mr, Offer, PeerCfg, pmem::PmemMap};
/// # use rpma::ConnCfg;
/// # const LIMIT: std::time::Duration = std::time::Duration::from_secs(10);
///
/// # fn server(ep: &Ep, memory: &Mr<PmemMap>, platform: &PeerCfg) -> Result<(), Error> {
/// // The side that has the memory, when it accepts:
/// let mut offer = Offer::new(platform);
/// offer.add_region(memory).set_data(b"log v3");
/// let conn = ep.next_conn_req(&ConnCfg::new())?.establish(&offer, LIMIT)?;
/// # Ok(()) }
/// # fn client(conn: &Conn) -> Result<(), Error> {
/// // The side that writes, when it is connected:
/// let log = conn.offer()?.memory(4096)?;
/// # Ok(()) }
/// ```
///
/// # Encoding
///
/// Little endian. Parts that are not there take no room.
///
/// | bytes | |
/// |---|---|
/// | 3 | `rpm` |
/// | 1 | the version, 3 |
/// | 1 | the length of the whole offer |
/// | 1 | bits 0 and 1: [`Durable`] (0 nothing, 1 native flushes, 2 direct writes); bit 2: the device reorders ([`PeerCfg::set_reorders`]); bit 3: limits follow; bit 4: an identity follows; bits 5, 6 and 7: the identity of the memory, of the host, and of its failure domain follows |
/// | 1 | the method: 0 none, 1 native, 2 reading, 3 server; bit 4: for visibility only |
/// | 1 | how many regions follow |
/// | 7 | the limits: credits u16, ranges u8, bytes u32 |
/// | 24 | the identity: key, epoch, instance, u64 each |
/// | 8 each | the [`Site`]: the identities of the memory, of the host, and of its failure domain |
/// | 21 each | the regions ([`Mr::get_descriptor`]) |
/// | the rest | the program's data |
///
/// A client's private data has room for an identity, and for one region or 24 bytes of data. A
/// server's has room for limits, a whole site and 7 regions, or 6 regions with an identity as well.
/// See [`left`](Self::left).
///
/// An offer of another version is refused, with both numbers.
///
/// An offer is sent without authentication or encryption. Its regions are keys: a program that gets
/// hold of them may be able to use the memory ([security](crate::guide::security)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    platform: PeerCfg,
    method: Option<(Method, FlushType)>,
    limits: Option<Limits>,
    identity: Option<Identity>,
    site: Site,
    regions: Vec<MrRemote>,
    data: Vec<u8>,
}

impl Offer {
    /// The most bytes of private data in a request for a connection.
    pub const CONNECT: usize = 56;
    /// The most bytes of private data in the answer that accepts a request.
    pub const ACCEPT: usize = 196;

    /// Makes an offer without memory, with the declaration of this host's platform.
    #[must_use]
    pub fn new(platform: &PeerCfg) -> Self {
        Self {
            platform: *platform,
            ..Self::default()
        }
    }

    /// Adds a memory region, after those that are there. If its device is an
    /// [adapter](crate#terms), the offer also declares that the device
    /// [reorders](PeerCfg::set_reorders).
    pub fn add_region<M>(&mut self, region: &Mr<M>) -> &mut Self {
        self.regions.push(region.as_remote());
        if region.device_reorders() {
            self.platform.set_reorders(true);
        }
        self
    }

    /// Sets the bytes of the program.
    pub fn set_data(&mut self, data: &[u8]) -> &mut Self {
        self.data = data.to_vec();
        self
    }

    /// Names the method of this client, and whether its commits are to be durable or only visible.
    /// If the server does not serve that method, it refuses the connection
    /// ([`judge`](Self::judge)). A [`Writer`](crate::commit::Writer) sets it by itself: the call is
    /// for clients that commit without one ([`Conn::commit`](crate::Conn::commit)).
    pub fn set_method(&mut self, method: Method, flush_type: FlushType) -> &mut Self {
        self.method = Some((method, flush_type));
        self
    }

    /// The method that the client named.
    #[must_use]
    pub fn method(&self) -> Option<(Method, FlushType)> {
        self.method
    }

    /// Offers [`Method::Server`], with these limits. They are those of the
    /// [`Responder`](crate::commit::Responder) that serves the requests.
    pub fn set_limits(&mut self, limits: Limits) -> &mut Self {
        self.limits = Some(limits);
        self
    }

    /// The limits of [`Method::Server`]. `None` if the server does not serve it.
    #[must_use]
    pub fn limits(&self) -> Option<Limits> {
        self.limits
    }

    /// Sets the identity.
    pub fn set_identity(&mut self, identity: Identity) -> &mut Self {
        self.identity = Some(identity);
        self
    }

    /// The identity, if there is one.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// Sets the identities of the offered memory, of its host and of the host's failure domain, so
    /// that a client notices two copies in one place
    /// ([`Replicas::add`](crate::commit::Replicas::add)).
    pub fn set_site(&mut self, site: Site) -> &mut Self {
        self.site = site;
        self
    }

    /// The identities of the peer's memory, host and failure domain, as far as the peer sent them.
    /// They are the peer's word, as the rest of the offer.
    #[must_use]
    pub fn site(&self) -> Site {
        self.site
    }

    /// Returns whether commits by this method become durable, or visible, in the memory of this
    /// offer's host.
    ///
    /// | method | durable | only visible |
    /// |---|---|---|
    /// | [`Method::Native`] | with [`Durable::NativeFlushes`] or [`Durable::DirectWrites`] | always |
    /// | [`Method::Reading`] | with [`Durable::DirectWrites`] | always |
    /// | [`Method::Server`] | if the offer has [`limits`](Self::limits) | never: it makes all data durable |
    #[must_use]
    pub fn serves(&self, method: Method, flush_type: FlushType) -> bool {
        let durable = self.platform.get_durable();
        match (method, flush_type) {
            (Method::Server, FlushType::Persistent) => self.limits.is_some(),
            (Method::Server, FlushType::Visibility) => false,
            (_, FlushType::Visibility) => true,
            (Method::Native, _) => durable != Durable::Nothing,
            (Method::Reading, _) => durable == Durable::DirectWrites,
        }
    }

    /// Decodes the offer of a client that asks for a connection, and checks that its method is
    /// [served](Self::serves) by this offer. A client need not name a method.
    ///
    /// ```no_run
    /// # use rpma::{ConnReq, Offer, Result};
    /// # fn admit(req: ConnReq, own: &Offer) -> Result<()> {
    /// match own.judge(req.get_private_data()) {
    ///     Ok(_client) => drop(req.connect(&own.encode(Offer::ACCEPT)?)?),
    ///     Err(refusal) => req.reject(&refusal.encode())?,
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// A [`Refusal`], for [`ConnReq::reject`](crate::ConnReq::reject).
    pub fn judge(&self, client: &[u8]) -> Result<Self, Refusal> {
        let broken = |error: Error| Refusal::new(RefusalCode::Broken, &error.to_string());
        let client = Self::decode(client).map_err(broken)?;
        match client.method {
            Some((method, flush_type)) if !self.serves(method, flush_type) => {
                let promise = match flush_type {
                    FlushType::Persistent => "durable",
                    FlushType::Visibility => "visible",
                };
                let durable = self.platform.get_durable();
                let served = match (durable, self.limits) {
                    (Durable::Nothing, None) => "no method is served".to_owned(),
                    (Durable::Nothing, Some(_)) => "only the server's method is served".to_owned(),
                    (durable, None) => format!("served are {durable}"),
                    (durable, Some(_)) => format!("served are {durable}, and the server's method"),
                };
                let words = format!("no {promise} commits by {method}: {served}");
                Err(Refusal::new(RefusalCode::Refused, &words))
            }
            _ => Ok(client),
        }
    }

    /// Returns how many more bytes of data fit into private data of `room` bytes
    /// ([`CONNECT`](Self::CONNECT) or [`ACCEPT`](Self::ACCEPT)). `None` if the offer is too long
    /// already.
    #[must_use]
    pub fn left(&self, room: usize) -> Option<usize> {
        room.checked_sub(self.len())
    }

    /// The regions, in the order in which they were added.
    #[must_use]
    pub fn regions(&self) -> &[MrRemote] {
        &self.regions
    }

    /// The first region, if it has `at_least` bytes or more. Most servers offer one.
    ///
    /// ```no_run
    /// # fn client(conn: &rpma::Conn) -> rpma::Result<()> {
    /// let offer = rpma::Offer::decode(conn.get_private_data())?;
    /// let log = offer.memory(4096)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotSupported`] if the peer offers no region, or a shorter one. The error has both
    /// lengths.
    pub fn memory(&self, at_least: u64) -> Result<MrRemote> {
        let Some(region) = self.regions.first() else {
            return Err(Error::not_supported("the server offers no memory"));
        };
        match region.get_size() {
            has if has < at_least => Err(Error::not_supported(format!(
                "the server offers {has} bytes of memory, and the program needs {at_least}"
            ))),
            _ => Ok(*region),
        }
    }

    /// The declaration of the peer's platform, for
    /// [`Conn::apply_remote_peer_cfg`](crate::Conn::apply_remote_peer_cfg).
    #[must_use]
    pub fn platform(&self) -> &PeerCfg {
        &self.platform
    }

    /// The bytes of the program.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.data
    }
}
