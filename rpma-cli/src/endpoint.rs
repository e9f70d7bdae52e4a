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
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        let port = match port.map_or(Ok(DEFAULT_PORT), str::parse) {
            Ok(port) if port > 0 => port,
            _ => return Err("its port is no number of 1 to 65535".into()),
        };
        let inside = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        let host = inside.unwrap_or(host);
        let is_wrong = |c: char| c.is_whitespace() || c.is_control() || "[]".contains(c);
        if host.is_empty() || host.contains(is_wrong) {
            return Err(
                "an address is needed, such as 192.0.2.2, 192.0.2.2:7204 or [fd00::2]:7204".into(),
            );
        }
        let host = host.to_owned();
        Ok(Self { host, port })
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
