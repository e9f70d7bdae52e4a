//! How a client's writes become durable, and the limits of the server's method.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// How a client makes its writes durable, or visible, in the memory of a peer.
///
/// The platform of that memory decides which method is right:
/// [persistence](crate::guide::persistence) has the table. A client names one method in its
/// [`Offer`](crate::Offer), and the connection uses no other.
///
/// Settings and command lines name it `native`, `reading` or `server` ([`FromStr`]). [`Display`]
/// prints other words, for messages.
///
/// [`Display`]: fmt::Display
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// The device's own flush operation
    /// ([`Conn::has_native_flush`](crate::Conn::has_native_flush)).
    Native,
    /// A read after the writes: librpma's appliance method.
    Reading,
    /// The processor of the memory's host persists, and answers: librpma's general-purpose server
    /// method.
    Server,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native flush",
            Self::Reading => "flush by reading",
            Self::Server => "server's method",
        })
    }
}

/// Reads the name of a method: `native`, `reading` or `server`.
///
/// ```
/// use rpma::commit::Method;
///
/// assert_eq!("reading".parse::<Method>()?, Method::Reading);
/// assert_eq!(Method::Reading.to_string(), "flush by reading");
/// # Ok::<(), rpma::Error>(())
/// ```
impl FromStr for Method {
    type Err = Error;

    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for any other name: the text lists the three names.
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "native" => Ok(Self::Native),
            "reading" => Ok(Self::Reading),
            "server" => Ok(Self::Server),
            _ => Err(Error::invalid(format!(
                "no method is named {name:?}: the methods are native, reading and server"
            ))),
        }
    }
}

/// The limits that a server sets to its part of [`Method::Server`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    credits: u16,
    ranges: u8,
    bytes: u32,
}

impl Limits {
    /// Makes limits.
    ///
    /// * `credits`: the maximum number of unanswered requests on one connection.
    /// * `ranges`: the maximum number of ranges in one request.
    /// * `bytes`: the maximum number of bytes in one request, all its ranges together.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if one of the three is 0.
    pub fn new(credits: u16, ranges: u8, bytes: u32) -> Result<Self> {
        if credits == 0 || ranges == 0 || bytes == 0 {
            return Err(Error::invalid(format!(
                "limits of {credits} requests with {ranges} ranges and {bytes} bytes: each must \
                 be at least 1"
            )));
        }
        Ok(Self {
            credits,
            ranges,
            bytes,
        })
    }

    /// Returns the maximum number of unanswered requests on one connection.
    #[must_use]
    pub fn credits(&self) -> u16 {
        self.credits
    }

    /// Returns the maximum number of ranges in one request.
    #[must_use]
    pub fn ranges(&self) -> u8 {
        self.ranges
    }

    /// Returns the maximum number of bytes in one request, all its ranges together.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the three names are read, and an error lists them for every other word, also for
    /// those that `Display` prints.
    #[test]
    fn a_method_has_one_name() {
        for (name, method) in [
            ("native", Method::Native),
            ("reading", Method::Reading),
            ("server", Method::Server),
        ] {
            assert_eq!(name.parse::<Method>().expect("a name"), method);
            for other in ["", "Native", " server", &method.to_string()] {
                let error = other.parse::<Method>().expect_err("no name");
                let text = error.to_string();
                assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
                assert!(text.ends_with("are native, reading and server"), "{text}");
            }
        }
    }
}
