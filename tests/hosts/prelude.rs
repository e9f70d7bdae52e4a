//! The names that most of these files use.

pub(crate) use std::thread;
pub(crate) use std::time::{Duration, Instant};

pub(crate) use rpma::pmem::PmemMap;
pub(crate) use rpma::wait::{Happened, Wait};
pub(crate) use rpma::{
    Conn, ConnCfg, ConnEvent, ConnReq, Ep, Error, Flags, FlushType, Mr, MrRemote, MrUsage, Next,
    Offer, Peer, PeerCfg, Wc,
};

pub(crate) use crate::Result;
