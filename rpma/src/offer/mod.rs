//! [`Offer`]: what two programs tell each other in the private data of their connection.
//!
//! librpma leaves that to each program; its examples have a layout of their own. Here is one
//! encoding for the needs of nearly all programs: the place of the memory, the promises of the
//! platform, and some bytes of the program's own.

use crate::error::{Error, Result};
use crate::flush::FlushType;
use crate::method::{Limits, Method};
use crate::mr::{Mr, MrRemote};
use crate::peer_cfg::{Durable, PeerCfg};
use crate::refusal::{Refusal, RefusalCode};
use crate::site::Site;
use crate::verbs::random;

/// Encodes the private data of a connection, for either direction: memory regions, the declaration
/// of this host's platform ([`PeerCfg`]), and bytes of the program.
///
/// One side makes it and gives [`encode`](Self::encode)'s bytes to
/// [`ConnReq::connect`](crate::ConnReq::connect). The other side decodes it from
/// [`Conn::get_private_data`](crate::Conn::get_private_data) or
/// [`ConnReq::get_private_data`](crate::ConnReq::get_private_data). The transport pads private data
/// with zeros. An offer has its own length in it.
///
/// ```no_run
/// use rpma::{Conn, Ep, Error, Mr, Offer, PeerCfg, pmem::PmemMap};
/// # use rpma::ConnCfg;
///
/// # fn server(ep: &Ep, memory: &Mr<PmemMap>, platform: &PeerCfg) -> Result<(), Error> {
/// // The side that has the memory, when it accepts:
/// let mut offer = Offer::new(platform);
/// offer.add_region(memory).set_data(b"log v3");
/// let conn = ep.next_conn_req(&ConnCfg::new())?.connect(&offer.encode(Offer::ACCEPT)?)?;
/// # Ok(()) }
/// # fn client(conn: &Conn) -> Result<(), Error> {
/// // The side that writes, when it is connected:
/// let offer = Offer::decode(conn.get_private_data())?;
/// conn.apply_remote_peer_cfg(offer.platform());
/// let log = offer.memory(4096)?;
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
/// Version 2 had no site. This library reads it, as an offer without identities, and always writes
/// version 3. A library of version 2 refuses it, with both numbers.
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

/// Names a client to a [`serve::Server`](crate::serve::Server), so that the server recognises it on
/// each new connection.
///
/// * The **key** names the client's memory on the server. The program chooses it.
/// * The **epoch** is a number that the program chooses. A writer with a higher epoch takes over
///   the key, and the server refuses lower ones from then on.
/// * The **instance** is a random number. It distinguishes two writers with the same key and epoch.
///
/// [Serving clients](crate::serve) has the table of the server's decisions. An [`Offer`] only
/// carries the identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "the 24 bytes of the encoding")]
pub struct Identity {
    /// Names the client's memory on the server; never 0.
    pub key: u64,
    /// Decides who may write: a higher epoch takes over the key.
    pub epoch: u64,
    /// The random number of one writer, from [`new`](Self::new).
    pub instance: u64,
}

impl Identity {
    /// Makes the identity of a new writer, with this key and epoch. It draws the instance at random
    /// (`getrandom(2)`), so no other writer has the same one, in this process or in another.
    ///
    /// Call it once in the life of a writer, and use the result for all its connections. A process
    /// that is started again is another writer: it needs a higher epoch. Two writers with the same
    /// instance would cut each other off without end.
    ///
    /// On a simulated fabric with a seed, the instance follows from the seed.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for the key 0 and for the epoch `u64::MAX`, which no server
    /// accepts. [`Error::Provider`] if `getrandom` fails.
    pub fn new(key: u64, epoch: u64) -> Result<Self> {
        let identity = Self {
            key,
            epoch,
            instance: random()?,
        };
        identity.check().map(|()| identity)
    }

    /// Refuses an identity that no server accepts.
    pub(crate) fn check(&self) -> Result<()> {
        if self.key == 0 {
            return Err(Error::invalid("the key is 0: a key is any other number"));
        }
        if self.epoch == u64::MAX {
            return Err(Error::invalid(
                "the epoch is 2^64-1, above which no writer could take over",
            ));
        }
        Ok(())
    }
}

const MAGIC: [u8; 3] = *b"rpm";
const VERSION: u8 = 3;
/// The version without a site.
const OLD: u8 = 2;
/// The bytes that each offer has.
const HEAD: usize = 8;
const LIMITS: usize = 7;
const IDENTITY: usize = 24;
/// Of each identity of a site.
const SITE: usize = 8;
/// Of each region.
const REGION: usize = 21;

/// A bit of the platform's byte.
const REORDERS: u8 = 1 << 2;
const HAS_LIMITS: u8 = 1 << 3;
const HAS_IDENTITY: u8 = 1 << 4;
/// The bits of the identities of a site.
const HAS_SITE: [u8; 3] = [1 << 5, 1 << 6, 1 << 7];
/// A bit of the method's byte.
const VISIBLE: u8 = 1 << 4;

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
    /// ([`judge`](Self::judge)).
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

    fn len(&self) -> usize {
        let limits = self.limits.map_or(0, |_| LIMITS);
        let identity = self.identity.map_or(0, |_| IDENTITY);
        let site = self.site.to_words().into_iter().flatten().count() * SITE;
        HEAD + limits + identity + site + self.regions.len() * REGION + self.data.len()
    }

    /// The bytes to send as private data of up to `room` bytes: [`CONNECT`](Self::CONNECT) or
    /// [`ACCEPT`](Self::ACCEPT).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the offer is longer. The text has its length.
    pub fn encode(&self, room: usize) -> Result<Vec<u8>> {
        let len = u8::try_from(self.len()).ok();
        let Some(len) = len.filter(|_| self.left(room).is_some()) else {
            let site = self.site.to_words().into_iter().flatten().count();
            let parts = [
                (self.limits.is_some(), "limits".to_owned()),
                (self.identity.is_some(), "an identity".to_owned()),
                (site > 0, format!("{site} identities of its site")),
            ];
            let parts = parts.into_iter().filter(|(is_there, _)| *is_there);
            let parts: String = parts.map(|(_, part)| format!("{part}, ")).collect();
            return Err(Error::invalid(format!(
                "an offer with {parts}{} region(s) and {} bytes of data has {} bytes, and {room} \
                 fit (255 at most)",
                self.regions.len(),
                self.data.len(),
                self.len()
            )));
        };
        let mut bytes = MAGIC.to_vec();
        let regions = self.regions.len() as u8;
        bytes.extend([VERSION, len, self.flags(), self.method_byte(), regions]);
        if let Some(limits) = &self.limits {
            bytes.extend(limits.credits().to_le_bytes());
            bytes.push(limits.ranges());
            bytes.extend(limits.bytes().to_le_bytes());
        }
        if let Some(identity) = &self.identity {
            for field in [identity.key, identity.epoch, identity.instance] {
                bytes.extend(field.to_le_bytes());
            }
        }
        for word in self.site.to_words().into_iter().flatten() {
            bytes.extend(word.to_le_bytes());
        }
        for region in &self.regions {
            bytes.extend(region.to_descriptor());
        }
        bytes.extend(&self.data);
        Ok(bytes)
    }

    fn flags(&self) -> u8 {
        let durable = match self.platform.get_durable() {
            Durable::Nothing => 0,
            Durable::NativeFlushes => 1,
            Durable::DirectWrites => 2,
        };
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        durable
            | bit(self.platform.get_reorders(), REORDERS)
            | bit(self.limits.is_some(), HAS_LIMITS)
            | bit(self.identity.is_some(), HAS_IDENTITY)
            | HAS_SITE
                .into_iter()
                .zip(self.site.to_words())
                .fold(0, |bits, (one, word)| bits | bit(word.is_some(), one))
    }

    fn method_byte(&self) -> u8 {
        let Some((method, flush_type)) = self.method else {
            return 0;
        };
        let code = match method {
            Method::Native => 1,
            Method::Reading => 2,
            Method::Server => 3,
        };
        match flush_type {
            FlushType::Persistent => code,
            FlushType::Visibility => code | VISIBLE,
        }
    }

    /// Decodes the peer's offer. Bytes after its end are ignored: the transport pads private data
    /// with zeros.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the bytes are no offer, are an offer of another version, or
    /// are only the beginning of one. The same if their length is not that of the parts, if they
    /// have bits that are unknown to this version, or if they name impossible regions or limits.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let refused = |why: String| Err(Error::invalid(why));
        let Some((head, _)) = bytes.split_first_chunk::<HEAD>() else {
            return refused(format!(
                "an offer has {HEAD} bytes at least, and these are {}: did the peer send one?",
                bytes.len()
            ));
        };
        let [m0, m1, m2, version, len, flags, method, regions] = *head;
        if [m0, m1, m2] == [0; 3] {
            return refused(
                "the peer sent no Offer: its program passes the bytes of Offer::encode to ConnReq::connect"
                    .to_owned(),
            );
        }
        if [m0, m1, m2] != MAGIC {
            return refused(format!(
                "the peer's private data is not an offer: it begins with {m0:#04x} {m1:#04x} {m2:#04x}"
            ));
        }
        if version != VERSION && version != OLD {
            return refused(format!(
                "the peer's offer has the version {version}, and this library knows {OLD} and \
                 {VERSION}: use versions of it that know each other's"
            ));
        }
        if version == OLD && flags & HAS_SITE.into_iter().sum::<u8>() != 0 {
            return Err(unknown("platform", flags));
        }
        let Some(mut rest) = bytes.get(HEAD..len.into()) else {
            return refused(format!(
                "the peer's offer has a length of {len} bytes, and there are {} (an offer has {HEAD} \
                 at least)",
                bytes.len()
            ));
        };
        let mut take = |count: usize, part: &str| {
            let Some((taken, more)) = rest.split_at_checked(count) else {
                return Err(Error::invalid(format!(
                    "the peer's offer of {len} bytes ends inside its {part}"
                )));
            };
            rest = more;
            Ok(taken)
        };
        let mut offer = Self::new(&platform(flags)?);
        offer.method = method_of(method)?;
        if flags & HAS_LIMITS != 0 {
            offer.limits = Some(limits(take(LIMITS, "limits")?)?);
        }
        if flags & HAS_IDENTITY != 0 {
            let fields = take(IDENTITY, "identity")?;
            offer.identity = Some(Identity {
                key: u64::from_le_bytes(array_at(fields, 0)),
                epoch: u64::from_le_bytes(array_at(fields, 8)),
                instance: u64::from_le_bytes(array_at(fields, 16)),
            });
        }
        let mut site = [None; 3];
        for (word, bit) in site.iter_mut().zip(HAS_SITE) {
            if flags & bit != 0 {
                let bytes = take(SITE, "site")?;
                *word = Some(u64::from_le_bytes(array_at(bytes, 0)));
            }
        }
        offer.site = Site::from_words(site);
        for place in 0..regions {
            let region = take(REGION, "regions")?;
            let region = MrRemote::from_descriptor(region).map_err(|error| {
                Error::invalid(format!("region {place} of the peer's offer: {error}"))
            })?;
            offer.regions.push(region);
        }
        offer.data = rest.to_vec();
        Ok(offer)
    }

    /// The regions, in the order in which they were added.
    #[must_use]
    pub fn regions(&self) -> &[MrRemote] {
        &self.regions
    }

    /// The first region, if it has at least so many bytes. Most servers offer one.
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

/// The platform of an offer.
fn platform(flags: u8) -> Result<PeerCfg> {
    let durable = match flags & 3 {
        0 => Durable::Nothing,
        1 => Durable::NativeFlushes,
        2 => Durable::DirectWrites,
        _ => return Err(unknown("platform", flags)),
    };
    let mut platform = PeerCfg::new();
    platform.set_durable(durable);
    platform.set_reorders(flags & REORDERS != 0);
    Ok(platform)
}

fn method_of(byte: u8) -> Result<Option<(Method, FlushType)>> {
    let flush_type = match byte & VISIBLE {
        0 => FlushType::Persistent,
        _ => FlushType::Visibility,
    };
    match byte & !VISIBLE {
        0 if byte == 0 => Ok(None),
        1 => Ok(Some((Method::Native, flush_type))),
        2 => Ok(Some((Method::Reading, flush_type))),
        3 => Ok(Some((Method::Server, flush_type))),
        _ => Err(unknown("method", byte)),
    }
}

fn unknown(part: &str, byte: u8) -> Error {
    Error::invalid(format!(
        "the peer's offer has bits in the byte of its {part} that this library does not know: \
         {byte:#04x}"
    ))
}

fn limits(bytes: &[u8]) -> Result<Limits> {
    let (credits, size) = (array_at(bytes, 0), array_at(bytes, 3));
    Limits::new(
        u16::from_le_bytes(credits),
        bytes[2],
        u32::from_le_bytes(size),
    )
    .map_err(|error| Error::invalid(format!("the limits of the peer's offer: {error}")))
}

/// The bytes of a field. The callers' places are inside.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|n| bytes[at + n])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mr::MrUsage;

    fn offer(regions: usize, data: &[u8]) -> Offer {
        let mut platform = PeerCfg::new();
        platform.set_direct_write_to_pmem(true);
        let mut offer = Offer::new(&platform);
        for n in 0..regions as u64 {
            let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC;
            let region = MrRemote::new(0x1000 * n, 0x800, n as u32, usage);
            offer.regions.push(region);
        }
        offer.set_data(data);
        offer
    }

    /// A program gets the first region if it is as long as the program needs, and otherwise both
    /// lengths.
    #[test]
    fn memory_of_a_length() {
        let memory = |regions, at_least| offer(regions, b"").memory(at_least);
        for at_least in [0, 0x7FF, 0x800] {
            assert_eq!(memory(2, at_least).expect("long enough").get_size(), 0x800);
        }
        for (regions, at_least, words) in [
            (
                2,
                0x801,
                "the server offers 2048 bytes of memory, and the program needs 2049",
            ),
            (0, 0, "the server offers no memory"),
        ] {
            let error = memory(regions, at_least).expect_err("too short");
            assert!(matches!(error, Error::NotSupported(_)), "{error:?}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    /// Programs of other versions of this library read it.
    #[test]
    fn the_bytes_are_these() {
        let bytes = offer(1, b"hi").encode(Offer::CONNECT).expect("fits");
        let region = [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9,
        ];
        assert_eq!(bytes[..8], *b"rpm\x03\x1f\x02\0\x01");
        assert_eq!(bytes[8..29], region);
        assert_eq!(bytes[29..], *b"hi");
        let bytes = whole().encode(Offer::ACCEPT).expect("fits");
        assert_eq!(bytes[..8], *b"rpm\x03\x40\xfd\x12\0");
        assert_eq!(bytes[8..15], *b"\x02\x01\x03\x07\x06\x05\x04");
        assert_eq!(bytes[15..23], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[31..39], [3, 0, 0, 0, 0, 0, 0, 0]);
        for (at, word) in [(39, 4_u64), (47, 5), (55, 6)] {
            assert_eq!(bytes[at..at + 8], word.to_le_bytes());
        }
        assert_eq!(bytes[63..], *b"d");
    }

    /// An offer with everything but regions.
    fn whole() -> Offer {
        let mut platform = PeerCfg::new();
        platform
            .set_durable(Durable::NativeFlushes)
            .set_reorders(true);
        let limits = Limits::new(0x0102, 3, 0x0405_0607).expect("some");
        let (key, epoch, instance) = (1, 2, 3);
        let mut offer = Offer::new(&platform);
        offer
            .set_method(Method::Reading, FlushType::Visibility)
            .set_limits(limits)
            .set_identity(Identity {
                key,
                epoch,
                instance,
            })
            .set_site(Site::from_words([Some(4), Some(5), Some(6)]))
            .set_data(b"d");
        offer
    }

    /// Promise: the offer of a peer with version 2 is read, as one without identities. A site in it
    /// is an error.
    #[test]
    fn version_2_is_read() {
        // As the last library with version 2 wrote it.
        let region = [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9,
        ];
        let bytes = [&b"rpm\x02\x1f\x02\0\x01"[..], &region, b"hi"].concat();
        assert_eq!(Offer::decode(&bytes).expect("read"), offer(1, b"hi"));
        for bit in HAS_SITE {
            let mut bytes = bytes.clone();
            bytes[5] |= bit;
            let text = Offer::decode(&bytes).expect_err("refused").to_string();
            assert!(text.contains("the byte of its platform"), "{text}");
        }
    }

    /// Promise: each identity of a site travels by itself, and is never left out.
    #[test]
    fn each_identity_of_a_site_travels() {
        for known in 0..8_u64 {
            let words = [0, 1, 2].map(|n| (known >> n & 1 == 1).then_some(n + 10));
            let site = Site::from_words(words);
            let mut sent = offer(1, b"x");
            sent.set_site(site);
            let bytes = sent.encode(Offer::ACCEPT).expect("fits");
            assert_eq!(
                bytes.len(),
                HEAD + REGION + 1 + 8 * known.count_ones() as usize
            );
            assert_eq!(Offer::decode(&bytes).expect("an offer").site(), site);
        }
        let mut long = offer(8, b"");
        long.set_site(Site::from_words([Some(1), Some(2), Some(3)]));
        let text = long
            .encode(Offer::ACCEPT)
            .expect_err("too long")
            .to_string();
        assert!(
            text.contains("with 3 identities of its site, 8 region(s)"),
            "{text}"
        );
        assert!(text.contains("has 200 bytes, and 196 fit"), "{text}");
    }

    /// Two writers of one process are two instances, and an identity that no server accepts is
    /// refused early.
    #[test]
    fn each_identity_has_its_own_instance() {
        let [one, other] = [1, 2].map(|epoch| Identity::new(7, epoch).expect("an identity"));
        assert_eq!((one.key, one.epoch, other.epoch), (7, 1, 2));
        assert_ne!(one.instance, other.instance);
        for (key, epoch, text) in [(0, 1, "the key is 0"), (7, u64::MAX, "take over")] {
            let error = Identity::new(key, epoch).expect_err("refused");
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    /// The room that the documentation promises.
    #[test]
    fn an_identity_fits_beside_a_region() {
        let identity = Identity::default();
        let mut client = offer(1, b"");
        client.set_identity(identity);
        client.set_method(Method::Server, FlushType::Persistent);
        assert_eq!(client.left(Offer::CONNECT), Some(3));
        let mut client = offer(0, &[7; 24]);
        assert_eq!(client.set_identity(identity).left(Offer::CONNECT), Some(0));
        let mut server = offer(7, b"");
        server.set_identity(identity);
        server.set_limits(Limits::new(1, 1, 1).expect("some"));
        assert_eq!(server.left(Offer::ACCEPT), Some(10));
        let site = Site::from_words([Some(1), Some(2), Some(3)]);
        server.set_site(site);
        assert_eq!(server.left(Offer::ACCEPT), None);
        let mut server = offer(6, b"");
        server.set_identity(identity);
        server.set_limits(Limits::new(1, 1, 1).expect("some"));
        assert_eq!(server.set_site(site).left(Offer::ACCEPT), Some(7));
        let mut server = offer(7, b"");
        server.set_limits(Limits::new(1, 1, 1).expect("some"));
        assert_eq!(server.set_site(site).left(Offer::ACCEPT), Some(10));
    }

    #[test]
    fn a_method_is_served_where_the_platform_keeps_its_promise() {
        use FlushType::{Persistent, Visibility};
        use Method::{Native, Reading, Server};
        for (durable, served) in [
            (Durable::Nothing, &[][..]),
            (Durable::NativeFlushes, &[Native]),
            (Durable::DirectWrites, &[Native, Reading]),
        ] {
            for limits in [None, Some(Limits::new(1, 1, 1).expect("some"))] {
                let mut own = Offer::new(PeerCfg::new().set_durable(durable));
                own.limits = limits;
                for method in [Native, Reading, Server] {
                    let is_served =
                        served.contains(&method) || method == Server && limits.is_some();
                    assert_eq!(own.serves(method, Persistent), is_served);
                    assert_eq!(own.serves(method, Visibility), method != Server);
                    let mut client = Offer::default();
                    client.set_method(method, Persistent);
                    let bytes = client.encode(Offer::CONNECT).expect("fits");
                    match own.judge(&bytes) {
                        Ok(judged) => assert!(is_served && judged == client),
                        Err(refusal) => {
                            assert!(!is_served);
                            assert_eq!(refusal.code(), RefusalCode::Refused);
                            assert!(refusal.words().contains(&method.to_string()));
                        }
                    }
                }
            }
        }
        let refusal = Offer::default().judge(&[0; 56]).expect_err("no offer");
        assert_eq!(refusal.code(), RefusalCode::Broken);
        let silent = Offer::default().encode(Offer::CONNECT).expect("fits");
        Offer::default().judge(&silent).expect("it names no method");
    }

    #[test]
    fn what_is_left_can_be_used_and_no_more() {
        for (room, regions, left) in [
            (Offer::CONNECT, 0, Some(48)),
            (Offer::CONNECT, 1, Some(27)),
            (Offer::CONNECT, 2, Some(6)),
            (Offer::CONNECT, 3, None),
            (Offer::ACCEPT, 1, Some(167)),
            (Offer::ACCEPT, 8, Some(20)),
            (Offer::ACCEPT, 9, None),
        ] {
            assert_eq!(offer(regions, b"").left(room), left);
            let longest = vec![7; left.unwrap_or(0)];
            let encoded = offer(regions, &longest).encode(room);
            assert_eq!(encoded.is_ok(), left.is_some(), "{regions}");
            let longer = vec![7; left.unwrap_or(0) + 1];
            let text = offer(regions, &longer)
                .encode(room)
                .expect_err("too long")
                .to_string();
            assert!(text.contains(&format!("and {room} fit")), "{text}");
        }
    }

    #[test]
    fn what_is_not_an_offer_is_refused_with_the_reason() {
        let good = offer(1, b"data").encode(Offer::ACCEPT).expect("fits");
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        let whole = whole().encode(Offer::ACCEPT).expect("fits");
        let cut = |len: u8| {
            let mut bytes = whole.clone();
            bytes[4] = len;
            bytes
        };
        let zero_credits = {
            let mut bytes = whole.clone();
            bytes[8..10].fill(0);
            bytes
        };
        for (bytes, reason) in [
            (vec![], "these are 0"),
            (good[..7].to_vec(), "these are 7"),
            (vec![0; 56], "the peer sent no Offer"),
            (vec![1; 56], "not an offer: it begins with 0x01"),
            (
                with(3, 1),
                "has the version 1, and this library knows 2 and 3",
            ),
            (
                with(3, 4),
                "has the version 4, and this library knows 2 and 3",
            ),
            (
                good[..20].to_vec(),
                "a length of 33 bytes, and there are 20",
            ),
            (with(4, 7), "a length of 7 bytes"),
            (with(4, 28), "of 28 bytes ends inside its regions"),
            (with(7, 2), "of 33 bytes ends inside its regions"),
            (cut(14), "ends inside its limits"),
            (cut(38), "ends inside its identity"),
            (cut(62), "ends inside its site"),
            (zero_credits, "the limits of the peer's offer: limits of 0"),
            (with(5, 3), "platform that this library does not know: 0x03"),
            (with(5, 0x22), "of 33 bytes ends inside its regions"),
            (with(6, 4), "method that this library does not know"),
            (with(6, 0x10), "method that this library does not know"),
            (with(6, 0x21), "method that this library does not know"),
            (with(28, 0), "region 0 of the peer's offer"),
        ] {
            let text = Offer::decode(&bytes).expect_err(reason).to_string();
            assert!(text.contains(reason), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_offer_survives_padding(regions in 0..=7usize, data: [u8; 40], len in 0..=40usize) {
            let mut offer = offer(regions, &data[..len]);
            if regions < 4 {
                let whole = whole();
                offer.method = whole.method;
                offer.limits = whole.limits;
                offer.identity = whole.identity;
                offer.site = whole.site;
            }
            let mut bytes = offer.encode(Offer::ACCEPT).expect("fits");
            bytes.resize(Offer::ACCEPT, 0);
            prop_assert_eq!(Offer::decode(&bytes).expect("an offer"), offer);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Offer::decode(&bytes);
            for version in [OLD, VERSION] {
                let _ = Offer::decode(&[&[b'r', b'p', b'm', version], &bytes[..]].concat());
                let len = (HEAD + bytes.len()) as u8;
                let _ = Offer::decode(&[&[b'r', b'p', b'm', version, len], &bytes[..]].concat());
            }
        }
    }
}
