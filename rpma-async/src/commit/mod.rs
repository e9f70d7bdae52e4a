//! Commits by a method, awaited: to one server ([`Writer`]), and to several ([`Replicas`]).

mod bytes;
mod reading;
mod replicas;
mod state;
mod writer;

pub use self::reading::Reading;
pub use self::replicas::Replicas;
pub use self::writer::Writer;
