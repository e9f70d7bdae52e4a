//! The names that most tests use: of the library, of the simulator, and of the rig.

pub(crate) use std::time::{Duration, Instant};

pub(crate) use rpma::pmem::PmemMap;
#[cfg(feature = "sim")]
pub(crate) use rpma::sim::{Cut, Fabric, Host, How, Link, Loss, Platform, Pmem, Profile};
pub(crate) use rpma::{
    Batch, ComplChannel, CompletionChannel, Conn, ConnCfg, ConnEvent, ConnReq, Cq, CqKind, Device,
    Durable, Ep, Error, Failure, Flags, FlushType, Identity, Mr, MrRemote, MrSlice, MrUsage, Next,
    NotConnected, Notify, Offer, Peer, PeerCfg, Posted, Queue, RefusalCode, RegisterableMemory,
    RemoteSlice, Side, Srq, SrqCfg, Wc, WcOpcode, WcStatus,
};

pub(crate) use super::*;
