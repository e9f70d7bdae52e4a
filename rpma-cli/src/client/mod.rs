//! The client's side of a session with `rpma serve`: the connection for messages, and the ends of
//! waits.

mod control;
mod session;
mod stop;

pub(crate) use self::control::unreachable;
pub(crate) use self::session::{Session, plain};
pub(crate) use self::stop::{Clock, InStep, Result, Stop, failed, not_possible};
