//! The bytes of an [`Offer`].

use super::{Identity, Offer};
use crate::error::{Error, Result};
use crate::flush::FlushType;
use crate::method::{Limits, Method};
use crate::mr::MrRemote;
use crate::peer_cfg::{Durable, PeerCfg};
use crate::site::Site;

const MAGIC: [u8; 3] = *b"rpm";
pub(super) const VERSION: u8 = 3;
/// The bytes that each offer has.
pub(super) const HEAD: usize = 8;
const LIMITS: usize = 7;
const IDENTITY: usize = 24;
/// The bytes of each identity of a site.
const SITE: usize = 8;
/// The bytes of each region.
pub(super) const REGION: usize = 21;

/// A bit of the platform's byte.
const REORDERS: u8 = 1 << 2;
const HAS_LIMITS: u8 = 1 << 3;
const HAS_IDENTITY: u8 = 1 << 4;
/// The bits of the identities of a site.
const HAS_SITE: [u8; 3] = [1 << 5, 1 << 6, 1 << 7];
/// A bit of the method's byte.
const VISIBLE: u8 = 1 << 4;

impl Offer {
    pub(super) fn len(&self) -> usize {
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
            let optional = [
                (self.limits.is_some(), "limits".to_owned()),
                (self.identity.is_some(), "an identity".to_owned()),
                (site > 0, format!("{site} identities of its site")),
            ];
            let parts: String = optional
                .into_iter()
                .filter(|(is_there, _)| *is_there)
                .map(|(_, part)| format!("{part}, "))
                .collect();
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
        // What InfiniBand and RoCE pad with zeros, iWARP leaves empty.
        if bytes.iter().take(MAGIC.len()).all(|byte| *byte == 0) {
            return refused(
                "the peer sent no Offer: its program passes the bytes of Offer::encode to ConnReq::connect"
                    .to_owned(),
            );
        }
        let Some((head, _)) = bytes.split_first_chunk::<HEAD>() else {
            return refused(format!(
                "an offer has {HEAD} bytes at least, and these are {}: did the peer send one?",
                bytes.len()
            ));
        };
        let [m0, m1, m2, version, len, flags, method, regions] = *head;
        if [m0, m1, m2] != MAGIC {
            return refused(format!(
                "the peer's private data is not an offer: it begins with {m0:#04x} {m1:#04x} {m2:#04x}"
            ));
        }
        if version != VERSION {
            return refused(format!(
                "the peer's offer has the version {version}, and this library knows {VERSION}: use \
                 versions of it that know each other's"
            ));
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
