//! Offers as values, and their bytes.

use proptest::prelude::*;

use super::encoding::{HEAD, REGION, VERSION};
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
                let is_served = served.contains(&method) || method == Server && limits.is_some();
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
        (vec![], "the peer sent no Offer"),
        (vec![0; 2], "the peer sent no Offer"),
        (good[..7].to_vec(), "these are 7"),
        (vec![0; 56], "the peer sent no Offer"),
        (vec![1; 56], "not an offer: it begins with 0x01"),
        (with(3, 2), "has the version 2, and this library knows 3"),
        (with(3, 4), "has the version 4, and this library knows 3"),
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
        let _ = Offer::decode(&[&[b'r', b'p', b'm', VERSION], &bytes[..]].concat());
        let len = (HEAD + bytes.len()) as u8;
        let _ = Offer::decode(&[&[b'r', b'p', b'm', VERSION, len], &bytes[..]].concat());
    }
}
