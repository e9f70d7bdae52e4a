//! Commits above one connection: data and the pointer that shows it, durable by the method that
//! the memory's platform needs.
//!
//! A [`Method`] is how writes become durable: by the device's own flush, by a read, or by the
//! processor of the memory's host, which a server's program offers with its [`Limits`].

mod method;

pub use self::method::{Limits, Method};
