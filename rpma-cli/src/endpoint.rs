//! Arguments of several parts: the address of a server, and a range of bytes.

use std::str::FromStr;

use crate::settings::parse_number;

/// The port of `rpma serve`, unless another one is given.
const DEFAULT_PORT: u16 = 7204;

/// An address or a host name, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl FromStr for Endpoint {
    type Err = String;

    /// An IPv6 address with a port is in brackets.
    fn from_str(text: &str) -> Result<Self, String> {
        let (host, port) = split(text)?;
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(
                "an address is needed, such as 192.0.2.2, 192.0.2.2:7204 or [fd00::2]:7204".into(),
            );
        }
        let port = match port {
            None => DEFAULT_PORT,
            Some(port) => parse_port(port)?,
        };
        Ok(Self {
            host: host.into(),
            port,
        })
    }
}

/// The host, and the port if there is one.
fn split(text: &str) -> Result<(&str, Option<&str>), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("the bracket `]` is missing")?;
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err("after `]` there is only a colon and a port".into()),
        };
    }
    match text.split_once(':') {
        // An IPv6 address without a port.
        Some((_, rest)) if rest.contains(':') => Ok((text, None)),
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((text, None)),
    }
}

fn parse_port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("{text:?} is no port: give a number of 1 to 65535")),
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A range of bytes, without its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (start, end) = text
            .split_once("..")
            .ok_or("give the begin and the end, such as 0..4m")?;
        let number = |name, text| match text {
            "" => Err(format!("its {name} is missing: give both, such as 0..4m")),
            text => parse_number(text),
        };
        let (start, end) = (number("begin", start)?, number("end", end)?);
        if start < end {
            Ok(Self { start, end })
        } else {
            Err("it has no bytes: give the smaller number first".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_port_or_not() {
        for (text, host, port) in [
            ("192.0.2.2", "192.0.2.2", DEFAULT_PORT),
            ("192.0.2.2:1", "192.0.2.2", 1),
            ("host.example:65535", "host.example", 65535),
            ("fd00::2", "fd00::2", DEFAULT_PORT),
            ("fe80::1%eth0", "fe80::1%eth0", DEFAULT_PORT),
            ("[fd00::2]", "fd00::2", DEFAULT_PORT),
            ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
        ] {
            let endpoint: Endpoint = text.parse().expect(text);
            assert_eq!((endpoint.host.as_str(), endpoint.port), (host, port));
            assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
        }
    }

    #[test]
    fn wrong_addresses_are_refused() {
        for text in [
            "", ":1", "a:", "a:0", "a:65536", "a:-1", "a:b", "[a", "[a]1", "[]:1", "a b", "a\n",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_range_has_bytes() {
        assert_eq!("0..8".parse(), Ok(Range { start: 0, end: 8 }));
        let (start, end) = (2 << 20, 1 << 30);
        assert_eq!("2M..1g".parse(), Ok(Range { start, end }));
        for (text, words) in [
            ("", "begin and the end"),
            ("8", "begin and the end"),
            ("..8", "begin is missing"),
            ("0..", "end is missing"),
            ("8..8", "no bytes"),
            ("4194304..2m", "smaller number first"),
            ("a..b", "no number"),
            ("-1..8", "no number"),
            ("0..=8", "no number"),
            ("0..2kk", "no number"),
        ] {
            let error = text.parse::<Range>().expect_err(text);
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }
}
