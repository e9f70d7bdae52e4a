//! The messages between `rpma serve` and its clients, `rpma check` and `rpma perf`, and the private
//! data of their connections.
//!
//! One connection of a session carries requests and answers, one after the other. Each message is
//! one send of up to [`MAX`] bytes: the JSON of a [`Request`] or an [`Answer`].
//!
//! The private data of each connection are an [`Offer`](rpma::Offer), whose data are a [`Tag`].
//! Some cases announce other bytes instead ([`Asks::Bytes`]).

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::host::Host;

/// Both sides need the same.
pub(crate) const VERSION: u16 = 1;
/// The most bytes of a message.
pub(crate) const MAX: usize = 4096;

const MAGIC: [u8; 4] = *b"rpmC";

/// The bytes of memory that the server offers. The first page has a mark, and tests nothing. A
/// fabric compares all touched persistent memory again and again, so it has less.
pub(crate) const ARENA: usize = if cfg!(feature = "sim") {
    256 << 10
} else {
    2 << 20
};
/// The longest transfer of a case.
pub(crate) const LONGEST: usize = ARENA / 2;
/// The first bytes for cases.
pub(crate) const FIRST: u64 = 4096;
/// The most bytes that an answer has.
pub(crate) const MOST_BYTES: u64 = 256;
/// The most connections of a session at once.
pub(crate) const MOST_LINES: usize = 32;
/// The most receives of a connection.
pub(crate) const MOST_RECEIVES: u32 = 1024;
/// The most bytes of the receives of a connection.
pub(crate) const RECEIVED: u64 = 16 << 20;
/// The longest private data of librdmacm.
const MOST_PRIVATE_DATA: u32 = 196;

/// A part of the server's memory: an offset and a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) at: u64,
    pub(crate) len: u64,
}

impl Part {
    pub(crate) const fn new(at: u64, len: usize) -> Self {
        let len = len as u64;
        Self { at, len }
    }
}

/// What the client asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Request {
    /// The session begins: who are you?
    Begin,
    /// Fill a part with the bytes of a seed.
    Fill { part: Part, seed: u64 },
    /// Set 8 bytes to 0.
    Zero { word: u64 },
    /// The checksum of a part, as the server's processor sees it.
    Sum(Part),
    /// The bytes of a part, as the server's processor sees them.
    Bytes(Part),
    /// Expect a connection, as the next one.
    Expect(Expect),
    /// Send the bytes of a seed as a message.
    Send(Send),
    /// Wait until the receive of a connection with this number has completed.
    Arrived { line: u32, number: u32 },
    /// Wait for the end of a connection.
    Ended { line: u32 },
    /// Cut a connection off, and then sum a part.
    CutOff { line: u32, part: Part },
    /// Let the queue pair of a connection fail, and do not tell the peer.
    Vanish { line: u32 },
    /// Drop a connection.
    Drop { line: u32 },
    /// Drop all connections.
    Clear,
    /// Look at a word that the client writes, until its last value is there.
    Spin(Spin),
}

/// A message from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Send {
    pub(crate) line: u32,
    pub(crate) len: u32,
    pub(crate) seed: u64,
    pub(crate) imm: Option<u32>,
}

/// A connection that the client is about to make.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Expect {
    /// Its name in later requests.
    pub(crate) line: u32,
    pub(crate) asks: Asks,
    pub(crate) answers: Answers,
    pub(crate) fallback: bool,
    pub(crate) keep_alive_ms: Option<u64>,
    /// The number of receives, each of so many bytes.
    pub(crate) receives: (u32, u32),
    /// Whether each receive is posted again when it has completed, and its message is not kept.
    pub(crate) refills: bool,
    /// A part that is summed when a receive completes.
    pub(crate) watch: Option<Part>,
}

impl Expect {
    /// Refuses a connection for which the server would need more than a client needs.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (count, each) = self.receives;
        if count > MOST_RECEIVES || u64::from(count) * u64::from(each) > RECEIVED {
            return Err(format!(
                "{count} receives of {each} bytes: a connection has at most {MOST_RECEIVES}, with \
                 {RECEIVED} bytes in all"
            ));
        }
        let asked = match self.asks {
            Asks::Offer => 0,
            Asks::Bytes { len, .. } => len,
        };
        let answered = match self.answers {
            Answers::Offer => 0,
            Answers::Accept { len, .. } | Answers::Reject { len, .. } => len,
        };
        match asked.max(answered) {
            ..=MOST_PRIVATE_DATA => Ok(()),
            len => Err(format!(
                "{len} bytes of private data: they have at most {MOST_PRIVATE_DATA}"
            )),
        }
    }
}

/// The private data with which the client asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Asks {
    /// An offer with the [`Tag`] of this connection.
    #[default]
    Offer,
    /// The bytes of a seed.
    Bytes { len: u32, seed: u64 },
}

/// How the server answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answers {
    /// It accepts, with its offer.
    #[default]
    Offer,
    /// It accepts, with the bytes of a seed.
    Accept { len: u32, seed: u64 },
    /// It rejects, with the bytes of a seed.
    Reject { len: u32, seed: u64 },
}

/// A word to look at, and the bytes that its values show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spin {
    /// The offset of the word. Its values are `n` in each of its 8 bytes, for `n` from 1 on.
    pub(crate) word: u64,
    /// The last `n`.
    pub(crate) last: u8,
    /// Where the bytes of the first value are. Those of each value follow those before it.
    pub(crate) data: u64,
    /// The bytes that each value shows: those of the seed `seed + n`.
    pub(crate) data_len: u32,
    pub(crate) seed: u64,
}

/// What the server answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    Done,
    Server(Box<Server>),
    Sum(u64),
    Bytes(Vec<u8>),
    /// `None` if it has not completed in time.
    Arrival(Option<Arrival>),
    /// How a connection ended, or that it did not.
    Ended(Option<String>),
    /// The server looks at the word: [`Answer::Spun`] follows.
    Spins,
    Spun(Spun),
    /// The request cannot be served, for this reason.
    Cannot(String),
}

/// The server, at the beginning of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Server {
    pub(crate) host: Host,
    /// The descriptor of the memory for cases.
    pub(crate) arena: Vec<u8>,
    /// The descriptor of a region that nobody may write to.
    pub(crate) guarded: Vec<u8>,
    /// The seed of its bytes.
    pub(crate) guarded_seed: u64,
}

/// A receive that has completed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Arrival {
    /// The bytes of the message, or of the write with immediate data.
    pub(crate) len: u32,
    pub(crate) imm: Option<u32>,
    /// The checksum of the message.
    pub(crate) sum: u64,
    /// The checksum of the watched part at this moment.
    pub(crate) watched: Option<u64>,
    /// The status of a receive that failed.
    pub(crate) failed: Option<String>,
}

/// What the server saw of the word.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spun {
    /// How many values it saw.
    pub(crate) seen: u32,
    /// The last value.
    pub(crate) last: u64,
    /// A value that is not 8 times the same byte.
    pub(crate) torn: Option<u64>,
    /// The first value that showed bytes which were not there.
    pub(crate) early: Option<u8>,
}

/// The name of a connection, in the data of its offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    /// The number of the session. 0 asks for a session.
    pub(crate) session: u64,
    /// The number of the connection in its session. 0 is the one of the messages.
    pub(crate) line: u32,
}

impl Tag {
    /// Asks for a session.
    pub(crate) const BEGIN: Self = Self {
        session: 0,
        line: 0,
    };
    pub(crate) fn encode(self) -> Vec<u8> {
        self.encode_as(VERSION)
    }

    pub(crate) fn encode_as(self, version: u16) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend(self.session.to_le_bytes());
        bytes.extend(self.line.to_le_bytes());
        bytes
    }

    /// The error is a sentence about private data.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let other = || "they do not belong to `rpma serve` and its clients".to_owned();
        let rest = bytes.strip_prefix(&MAGIC).ok_or_else(other)?;
        let (version, rest) = rest.split_first_chunk().ok_or_else(other)?;
        let version = u16::from_le_bytes(*version);
        if version != VERSION {
            return Err(format!(
                "they have the version {version} of `rpma serve`, and this is {VERSION}: install \
                 the same rpma on both hosts"
            ));
        }
        let (session, line) = rest.split_first_chunk().ok_or_else(other)?;
        Ok(Self {
            session: u64::from_le_bytes(*session),
            line: u32::from_le_bytes(line.try_into().map_err(|_| other())?),
        })
    }
}

/// The bytes of a message. The error is one line.
pub(crate) fn encode(message: &impl Serialize) -> Result<Vec<u8>, String> {
    let json = serde_json::to_vec(message).map_err(|error| error.to_string())?;
    match json.len() {
        ..=MAX => Ok(json),
        len => Err(format!("a message of {len} bytes is too long: {MAX} fit")),
    }
}

/// The message in these bytes. The error is one line.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("a message cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEND: Request = Request::Send(Send {
        line: 3,
        len: 65,
        seed: u64::MAX,
        imm: Some(7),
    });

    #[test]
    fn a_message_survives() -> Result<(), String> {
        let bytes = encode(&SEND)?;
        assert_eq!(decode::<Request>(&bytes)?, SEND);
        Ok(())
    }

    #[test]
    fn a_message_of_wrong_bytes_is_refused_with_the_reason() -> Result<(), String> {
        let good = encode(&SEND)?;
        for bytes in [&b""[..], b"rpmC", &good[..good.len() - 1], &[0; 16]] {
            let error = decode::<Request>(bytes).expect_err("no message");
            assert!(error.contains("cannot be read"), "{error}");
        }
        Ok(())
    }

    #[test]
    fn a_message_that_is_too_long_is_refused() {
        let error = encode(&Answer::Cannot("x".repeat(MAX))).expect_err("too long");
        assert!(error.contains("too long"), "{error}");
    }

    /// Promise: the longest answers fit.
    #[test]
    fn the_longest_answers_fit() -> Result<(), String> {
        let arrival = Arrival {
            len: u32::MAX,
            imm: Some(u32::MAX),
            sum: u64::MAX,
            watched: Some(u64::MAX),
            failed: Some("x".repeat(80)),
        };
        encode(&Answer::Arrival(Some(arrival)))?;
        encode(&Answer::Bytes(vec![255; MOST_BYTES as usize]))?;
        Ok(())
    }

    #[test]
    fn a_tag_of_another_version_is_named() {
        let tag = Tag {
            session: 0x0102_0304_0506_0708,
            line: 9,
        };
        assert_eq!(Tag::decode(&tag.encode()), Ok(tag));
        for (bytes, words) in [
            (&tag.encode_as(2)[..], "the version 2"),
            (&tag.encode()[..17], "do not belong"),
            (b"", "do not belong"),
        ] {
            let error = Tag::decode(bytes).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
    }
}
