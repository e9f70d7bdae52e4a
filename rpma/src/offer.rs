//! [`Offer`]: what two programs tell each other in the private data of their connection.
//!
//! librpma leaves that to each program; its examples have a layout of their own. Here is one encoding for what
//! nearly all need: where the memory is, what the platform promises, and some bytes of the program's.

use crate::error::{Error, Result};
use crate::mr::{Mr, MrRemote};
use crate::peer_cfg::PeerCfg;

/// "This is my memory, this is what my platform promises, and these are bytes of my program": one encoding for the
/// private data of both directions.
///
/// One side makes it and gives [`encode`](Self::encode)'s bytes to
/// [`ConnReq::connect`](crate::ConnReq::connect); the other side makes it again of what
/// [`Conn::get_private_data`](crate::Conn::get_private_data) or
/// [`ConnReq::get_private_data`](crate::ConnReq::get_private_data) gives. The transport pads private data with zeros;
/// an offer knows its own length.
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
/// let log = offer.regions().first().expect("the server offers one");
/// # Ok(()) }
/// ```
///
/// # Encoding
///
/// Six bytes: `rpm` in ASCII, the version 1, how many regions, how many bytes of data; one byte for the platform: bit 0
/// is its descriptor ([`PeerCfg::get_descriptor`]), bit 1 is set if its device reorders ([`PeerCfg::set_reorders`]),
/// and the others are 0; the regions, 21 bytes each ([`Mr::get_descriptor`]); the data. With one
/// region that leaves 28 bytes of data to a client and 168 to a server: see [`left`](Self::left).
///
/// It is the peer's word, sent without authentication or encryption: who has it can use the regions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    platform: PeerCfg,
    regions: Vec<MrRemote>,
    data: Vec<u8>,
}

const MAGIC: [u8; 3] = *b"rpm";
const VERSION: u8 = 1;
/// What stands before the regions.
const HEAD: usize = MAGIC.len() + 4;
/// Of each region.
const REGION: usize = 21;

impl Offer {
    /// How many bytes of private data go with a request for a connection.
    pub const CONNECT: usize = 56;
    /// How many go with the answer that accepts one.
    pub const ACCEPT: usize = 196;

    /// An offer of no memory, with what this host's platform promises.
    #[must_use]
    pub fn new(platform: &PeerCfg) -> Self {
        Self {
            platform: *platform,
            ..Self::default()
        }
    }

    /// Adds a memory region, behind those that are there. If its device is an adapter, the platform
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

    /// How many bytes are left of private data of `room` bytes ([`CONNECT`](Self::CONNECT) or
    /// [`ACCEPT`](Self::ACCEPT)): so much more may the program's bytes have. `None` if it is too long already.
    #[must_use]
    pub fn left(&self, room: usize) -> Option<usize> {
        room.checked_sub(self.len())
    }

    fn len(&self) -> usize {
        HEAD + self.regions.len() * REGION + self.data.len()
    }

    /// The bytes to send as private data of up to `room` bytes: [`CONNECT`](Self::CONNECT) or
    /// [`ACCEPT`](Self::ACCEPT).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if they are more: the text says how many.
    pub fn encode(&self, room: usize) -> Result<Vec<u8>> {
        let counts = u8::try_from(self.regions.len())
            .ok()
            .zip(u8::try_from(self.data.len()).ok());
        let Some((regions, data)) = counts.filter(|_| self.left(room).is_some()) else {
            return Err(Error::invalid(format!(
                "an offer with {} region(s) and {} bytes of data (255 at most of each) has {} bytes, and {room} fit",
                self.regions.len(),
                self.data.len(),
                self.len()
            )));
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend([VERSION, regions, data]);
        bytes.push(self.platform.to_offer());
        for region in &self.regions {
            bytes.extend(region.to_descriptor());
        }
        bytes.extend(&self.data);
        Ok(bytes)
    }

    /// Makes the offer again that the peer has encoded. What stands behind it is not looked at: the transport pads
    /// private data with zeros.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the bytes are not an offer, are one of another version, end before it does, or
    /// name a region that cannot be.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else {
            return Err(Error::invalid(format!(
                "an offer has {HEAD} bytes at least, and these are {}: did the peer send one?",
                bytes.len()
            )));
        };
        let [m0, m1, m2, version, regions, data, platform] = *head;
        if [m0, m1, m2] != MAGIC {
            return Err(Error::invalid(format!(
                "the peer's private data is not an offer: it begins with {m0:#04x} {m1:#04x} {m2:#04x}"
            )));
        }
        if version != VERSION {
            return Err(Error::invalid(format!(
                "the peer's offer has the version {version}, and this library knows {VERSION}: both sides need \
                 the same"
            )));
        }
        let (regions, data) = (usize::from(regions), usize::from(data));
        let len = regions * REGION + data;
        let Some(rest) = rest.get(..len) else {
            return Err(Error::invalid(format!(
                "the peer's offer says that it has {regions} regions and {data} bytes of data, which are {} bytes, \
                 and there are {}",
                HEAD + len,
                bytes.len()
            )));
        };
        let (regions, data) = rest.split_at(regions * REGION);
        let regions = regions
            .chunks_exact(REGION)
            .enumerate()
            .map(|(place, region)| {
                MrRemote::from_descriptor(region).map_err(|error| {
                    Error::invalid(format!("region {place} of the peer's offer: {error}"))
                })
            });
        let Some(platform) = PeerCfg::from_offer(platform) else {
            return Err(Error::invalid(format!(
                "the peer's offer has bits in the byte of its platform that this library does not know: {platform:#04x}"
            )));
        };
        Ok(Self {
            platform,
            regions: regions.collect::<Result<_>>()?,
            data: data.to_vec(),
        })
    }

    /// The regions, in the order in which they were added.
    #[must_use]
    pub fn regions(&self) -> &[MrRemote] {
        &self.regions
    }

    /// What the platform promises: for [`Conn::apply_remote_peer_cfg`](crate::Conn::apply_remote_peer_cfg).
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

    /// Programs of other versions of this library read it.
    #[test]
    fn the_bytes_are_these() {
        let bytes = offer(1, b"hi").encode(Offer::CONNECT).expect("fits");
        let region = [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9,
        ];
        assert_eq!(bytes[..7], *b"rpm\x01\x01\x02\x01");
        assert_eq!(bytes[7..28], region);
        assert_eq!(bytes[28..], *b"hi");
    }

    #[test]
    fn what_is_left_can_be_used_and_no_more() {
        for (room, regions, left) in [
            (Offer::CONNECT, 0, Some(49)),
            (Offer::CONNECT, 1, Some(28)),
            (Offer::CONNECT, 2, Some(7)),
            (Offer::CONNECT, 3, None),
            (Offer::ACCEPT, 1, Some(168)),
            (Offer::ACCEPT, 9, Some(0)),
            (Offer::ACCEPT, 10, None),
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
        for (bytes, reason) in [
            (vec![], "these are 0"),
            (good[..6].to_vec(), "these are 6"),
            (vec![0; 56], "not an offer: it begins with 0x00"),
            (with(3, 2), "has the version 2, and this library knows 1"),
            (
                good[..20].to_vec(),
                "1 regions and 4 bytes of data, which are 32 bytes, and there are 20",
            ),
            (
                with(4, 2),
                "2 regions and 4 bytes of data, which are 53 bytes, and there are 32",
            ),
            (with(5, 5), "which are 33 bytes"),
            (with(27, 0), "region 0 of the peer's offer"),
        ] {
            let text = Offer::decode(&bytes).expect_err(reason).to_string();
            assert!(text.contains(reason), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_offer_survives_padding(regions in 0..=7usize, data: [u8; 40], len in 0..=40usize) {
            let offer = offer(regions, &data[..len]);
            let mut bytes = offer.encode(Offer::ACCEPT).expect("fits");
            bytes.resize(Offer::ACCEPT, 0);
            prop_assert_eq!(Offer::decode(&bytes).expect("an offer"), offer);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Offer::decode(&bytes);
            let _ = Offer::decode(&[&b"rpm\x01"[..], &bytes].concat());
        }
    }
}
