//! The address of a server, as an argument.

use std::str::FromStr;

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
}
