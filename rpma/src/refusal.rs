//! [`Refusal`]: the reason of a reject, in its private data.

use std::fmt;

use crate::error::{Error, Result};

/// The reason for which a server rejects a client: a code for the program, the epoch that the
/// server keeps, and words for the operator.
///
/// A server makes it, and gives [`encode`](Self::encode)'s bytes to
/// [`ConnReq::reject`](crate::ConnReq::reject). A client finds it in the error of its wait
/// ([`Error::refusal`], [`ConnEvent::refusal`](crate::ConnEvent::refusal)), whose text shows the
/// words.
///
/// # Encoding
///
/// Little endian.
///
/// | bytes | |
/// |---|---|
/// | 3 | `rpx` |
/// | 1 | the version, 1 |
/// | 1 | the code: 1 broken, 2 old epoch, 3 taken, 4 full, 5 refused, 6 not cut off |
/// | 8 | the epoch that the server keeps for the client's key, or 0 |
/// | 1 | the length of the words |
/// | at most 134 | the words: ASCII letters, digits, punctuation and spaces |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    code: RefusalCode,
    epoch: u64,
    words: Box<str>,
}

/// The codes of a [`Refusal`]. [`is_temporary`](Self::is_temporary) returns whether the client can
/// try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalCode {
    /// The client's private data is no offer that the server can read (code 1).
    Broken,
    /// The client's epoch is lower than [the server's](Refusal::epoch): another writer has taken
    /// over (code 2).
    OldEpoch,
    /// The client's epoch is [the server's](Refusal::epoch), and belongs to another instance
    /// (code 3). The program may decide to take over, with a higher epoch.
    Taken,
    /// The server has no room for another client at the moment (code 4).
    Full,
    /// The server does not serve this client, or not by its method (code 5).
    Refused,
    /// The server could not end the key's old connection: writes from it may still land (code 6).
    NotCutOff,
    /// A code that is unknown to this version.
    Other(u8),
}

pub(crate) const MAX_REJECT_DATA: usize = 148;

const MAGIC: [u8; 3] = *b"rpx";
const VERSION: u8 = 1;
const HEAD: usize = 14;
const MAX_WORDS: usize = MAX_REJECT_DATA - HEAD;
/// The end of words that were cut.
const DOTS: &str = "...";

impl RefusalCode {
    /// Returns whether the same request may be accepted later: [`Full`](Self::Full) and
    /// [`NotCutOff`](Self::NotCutOff). A client waits before it tries again. After every other
    /// code it stops.
    #[must_use]
    pub fn is_temporary(self) -> bool {
        matches!(self, Self::Full | Self::NotCutOff)
    }

    fn number(self) -> u8 {
        match self {
            Self::Broken => 1,
            Self::OldEpoch => 2,
            Self::Taken => 3,
            Self::Full => 4,
            Self::Refused => 5,
            Self::NotCutOff => 6,
            Self::Other(number) => number,
        }
    }

    fn of(number: u8) -> Self {
        match number {
            1 => Self::Broken,
            2 => Self::OldEpoch,
            3 => Self::Taken,
            4 => Self::Full,
            5 => Self::Refused,
            6 => Self::NotCutOff,
            number => Self::Other(number),
        }
    }
}

impl Refusal {
    /// A refusal with these words and the epoch 0. More than 134 characters are cut after a whole
    /// word, and end with `...`. Each character that is not plain ASCII becomes a question mark.
    #[must_use]
    pub fn new(code: RefusalCode, words: &str) -> Self {
        let plain = |char: char| if is_plain(char) { char } else { '?' };
        let mut plain: String = words.chars().take(MAX_WORDS + 1).map(plain).collect();
        if plain.len() > MAX_WORDS {
            // The space after the last word may have the place of the first dot.
            let most = MAX_WORDS - DOTS.len();
            let end = plain[..=most].rfind(' ').unwrap_or(most);
            plain.truncate(match plain[..end].trim_end().len() {
                0 => most,
                whole => whole,
            });
            plain.push_str(DOTS);
        }
        Self {
            code,
            epoch: 0,
            words: plain.into(),
        }
    }

    /// Sets the epoch that the server keeps for the client's key. It is for programs that keep
    /// epochs without a [`serve::Server`](crate::serve::Server), which sets it by itself.
    pub fn set_epoch(&mut self, epoch: u64) -> &mut Self {
        self.epoch = epoch;
        self
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> RefusalCode {
        self.code
    }

    /// The epoch that the server keeps for the client's key, or 0 without one.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The words.
    #[must_use]
    pub fn words(&self) -> &str {
        &self.words
    }

    /// The bytes: at most 148.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([VERSION, self.code.number()]);
        bytes.extend(self.epoch.to_le_bytes());
        bytes.push(self.words.len() as u8);
        bytes.extend(self.words.as_bytes());
        bytes
    }

    /// Decodes a refusal. Bytes after its end are ignored: the transport pads with zeros.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the bytes are no refusal, are a refusal of another version,
    /// or are only the beginning of one, or if the words are not plain ASCII.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let refused = |why: &str| {
            Err(Error::invalid(format!(
                "the private data is not a refusal of this library: {why}"
            )))
        };
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else {
            return refused("it is too short");
        };
        let [m0, m1, m2, version, code, epoch @ .., len] = *head;
        if [m0, m1, m2] != MAGIC {
            return refused("it begins with other bytes");
        }
        if version != VERSION {
            return refused(&format!(
                "it has the version {version}, and {VERSION} is known"
            ));
        }
        let words = rest.get(..len.into());
        match words.and_then(|words| std::str::from_utf8(words).ok()) {
            Some(words) if words.chars().all(is_plain) => Ok(Self {
                code: RefusalCode::of(code),
                epoch: u64::from_le_bytes(epoch),
                words: words.into(),
            }),
            _ => refused("its words are cut off, or are not plain text"),
        }
    }
}

/// Words go to terminals and logs, and a peer chose them.
fn is_plain(char: char) -> bool {
    char == ' ' || char.is_ascii_graphic()
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bytes_are_these() {
        let mut refusal = Refusal::new(RefusalCode::Refused, "no");
        assert_eq!(refusal.encode(), *b"rpx\x01\x05\0\0\0\0\0\0\0\0\x02no");
        refusal.set_epoch(0x0102_0304_0506_0708);
        let bytes = refusal.encode();
        assert_eq!(bytes, *b"rpx\x01\x05\x08\x07\x06\x05\x04\x03\x02\x01\x02no");
        assert_eq!(Refusal::decode(&bytes).expect("a refusal"), refusal);
    }

    /// Programs of other versions read the numbers, and clients go by `is_temporary`.
    #[test]
    fn the_codes_have_these_numbers() {
        use RefusalCode::{Broken, Full, NotCutOff, OldEpoch, Other, Refused, Taken};
        let codes = [
            Other(0),
            Broken,
            OldEpoch,
            Taken,
            Full,
            Refused,
            NotCutOff,
            Other(7),
        ];
        for (number, code) in (0..).zip(codes) {
            let bytes = Refusal::new(code, "").encode();
            assert_eq!(bytes[4], number);
            assert_eq!(Refusal::decode(&bytes).expect("a refusal").code(), code);
            assert_eq!(code.is_temporary(), [4, 6].contains(&number));
        }
    }

    #[test]
    fn words_are_cut_and_made_plain() {
        let long = Refusal::new(RefusalCode::Broken, &"\u{e9}\n".repeat(100));
        assert_eq!(long.words(), format!("{}...", "?".repeat(131)));
        assert_eq!(long.encode().len(), MAX_REJECT_DATA);
    }

    /// Promise: words that fit are whole; longer ones end after a whole word, and show that they
    /// were cut. A first word that does not fit is cut.
    #[test]
    fn words_are_cut_after_a_whole_word() {
        let of = |words: &str| Refusal::new(RefusalCode::Refused, words).words().to_owned();
        let a = |len: usize| "a".repeat(len);
        for fits in [a(134), format!("{} bc", a(131)), a(131) + "   "] {
            assert_eq!(of(&fits), fits);
        }
        for (words, cut) in [
            (format!("{} bcd", a(131)), a(131) + "..."),
            (format!("{} bcde", a(130)), a(130) + "..."),
            (format!("{}   bcde", a(128)), a(128) + "..."),
            (format!("{} b cde", a(129)), a(129) + " b..."),
            (a(135), a(131) + "..."),
            (format!(" {}", a(134)), format!(" {}...", a(130))),
        ] {
            assert_eq!(of(&words), cut);
        }
    }

    #[test]
    fn what_is_no_refusal_is_refused_with_the_reason() {
        let good = Refusal::new(RefusalCode::Broken, "words").encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        for (bytes, reason) in [
            (good[..13].to_vec(), "too short"),
            (with(2, b'm'), "other bytes"),
            (with(3, 2), "version 2"),
            (good[..18].to_vec(), "cut off"),
            (with(14, 0x1b), "not plain"),
            (with(14, 0xff), "not plain"),
        ] {
            let text = Refusal::decode(&bytes).expect_err(reason).to_string();
            assert!(text.contains(reason), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_refusal_survives_padding(words: String, code: u8, epoch: u64) {
            let mut refusal = Refusal::new(RefusalCode::of(code), &words);
            refusal.set_epoch(epoch);
            let mut bytes = refusal.encode();
            bytes.resize(MAX_REJECT_DATA, 0);
            prop_assert_eq!(Refusal::decode(&bytes).expect("a refusal"), refusal);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Refusal::decode(&bytes);
            let _ = Refusal::decode(&[&b"rpx\x01"[..], &bytes].concat());
        }
    }
}
