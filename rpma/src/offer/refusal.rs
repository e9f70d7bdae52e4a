//! [`Refusal`]: the reason of a reject, in its private data.

use std::fmt;

use crate::conn_req::MAX_REJECT_DATA;
use crate::error::{Error, Result};

/// The reason for which a server rejects a client: a code for the program, and words for its
/// operator.
///
/// A server makes it, and gives [`encode`](Self::encode)'s bytes to
/// [`ConnReq::reject`](crate::ConnReq::reject). A client decodes it from the private data of
/// [`ConnEvent::Rejected`](crate::ConnEvent::Rejected), whose text shows the words.
///
/// # Encoding
///
/// `rpx`, the version 1, the code, 8 bytes for an epoch (0 here), the length of the words, and the
/// words: ASCII letters, digits, punctuation and spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    code: RefusalCode,
    words: Box<str>,
}

/// The codes of a [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalCode {
    /// The client's private data is no offer that the server can read: the client stops (code 1).
    Broken,
    /// The server does not serve the client's method: the client stops (code 5).
    Refused,
    /// A code that this version does not know.
    Other(u8),
}

const MAGIC: [u8; 3] = *b"rpx";
const VERSION: u8 = 1;
const HEAD: usize = 14;
/// The most bytes of words.
const MAX_WORDS: usize = MAX_REJECT_DATA - HEAD;

impl RefusalCode {
    fn number(self) -> u8 {
        match self {
            Self::Broken => 1,
            Self::Refused => 5,
            Self::Other(number) => number,
        }
    }

    fn of(number: u8) -> Self {
        match number {
            1 => Self::Broken,
            5 => Self::Refused,
            number => Self::Other(number),
        }
    }
}

impl Refusal {
    /// A refusal with these words. Of more than 134 characters the first ones are taken. Each
    /// character that is not plain ASCII becomes a question mark.
    #[must_use]
    pub fn new(code: RefusalCode, words: &str) -> Self {
        let plain = |char: char| match is_plain(char) {
            true => char,
            false => '?',
        };
        Self {
            code,
            words: words.chars().take(MAX_WORDS).map(plain).collect(),
        }
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> RefusalCode {
        self.code
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
        bytes.extend([0; 8]);
        bytes.push(self.words.len() as u8);
        bytes.extend(self.words.as_bytes());
        bytes
    }

    /// Decodes a refusal. Bytes after its end are ignored: the transport pads with zeros.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the bytes are no refusal, are one of another version, or end
    /// before it does, or if the words are not plain ASCII.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let refused = |why: &str| Err(Error::invalid(format!("no refusal by this library: {why}")));
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else {
            return refused("it is too short");
        };
        let [m0, m1, m2, version, code, .., len] = *head;
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
        let bytes = Refusal::new(RefusalCode::Refused, "no").encode();
        assert_eq!(bytes, *b"rpx\x01\x05\0\0\0\0\0\0\0\0\x02no");
    }

    #[test]
    fn words_are_cut_and_made_plain() {
        let long = Refusal::new(RefusalCode::Broken, &"\u{e9}\n".repeat(100));
        assert_eq!(long.words(), "?".repeat(134));
        assert_eq!(long.encode().len(), MAX_REJECT_DATA);
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
        fn every_refusal_survives_padding(words: String, code: u8) {
            let refusal = Refusal::new(RefusalCode::of(code), &words);
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
