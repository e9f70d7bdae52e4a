//! Remote persistent memory access.

#![deny(unsafe_code)]

mod address;
mod conn;
mod conn_cfg;
mod conn_req;
mod cq;
mod credits;
mod device;
mod ep;
mod error;
mod event;
mod flags;
mod flush;
mod hints;
mod mr;
mod peer;
mod peer_cfg;
pub mod pmem;
mod verbs;

pub use crate::conn::Conn;
pub use crate::conn_cfg::ConnCfg;
pub use crate::conn_req::{ConnReq, ConnectError};
pub use crate::cq::Cq;
pub use crate::device::{Device, Side};
pub use crate::ep::Ep;
pub use crate::error::{Error, Queue, Result};
pub use crate::event::{ConnEvent, RejectReason};
pub use crate::flags::Flags;
pub use crate::flush::FlushType;
pub use crate::mr::{Mr, MrRemote, MrSlice, MrUsage, RegError, RemoteSlice};
pub use crate::peer::Peer;
pub use crate::peer_cfg::PeerCfg;
pub use crate::verbs::{
    AlignedBuf, RawMemory, RegisterableMemory, Wc, WcFailure, WcFlags, WcOpcode, WcStatus,
    WcSuccess,
};
