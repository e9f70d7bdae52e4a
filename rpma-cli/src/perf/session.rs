//! The connections that are measured.

use std::time::Duration;

use rpma::commit::{self, Writer, WriterCfg};
use rpma::{Conn, ConnCfg, Peer};

use crate::client::{Result, Session, plain};
use crate::settings::{Flush, Method, Op, Setting};
use crate::wire::Expect;

/// For a connection to be established.
pub(super) const LIMIT: Duration = Duration::from_secs(10);
/// The receives for each message in flight: the server posts one again after its completion.
pub(super) const RECEIVES: u32 = 2;

/// A connection for the operations of a setting.
pub(super) fn conn(server: &mut Session, peer: &Peer, setting: &Setting) -> Result<Conn> {
    let (number, cfg) = (announce(server, setting)?, conn_cfg(setting)?);
    server.conn(peer, &cfg, number)
}

/// A writer for the commits of a setting.
pub(super) fn writer(server: &mut Session, peer: &Peer, setting: &Setting) -> Result<Writer> {
    let number = announce(server, setting)?;
    let mut cfg = WriterCfg::new(method(setting));
    let depth = u16::try_from(setting.depth).unwrap_or(u16::MAX);
    cfg.set_flush_type(flush_type(setting))?
        .set_in_flight(depth)?
        .set_parts(1)?;
    server.writer(peer, &cfg, &conn_cfg(setting)?, number)
}

/// Tells the server that the next connection is for this session. The limit of making it begins.
fn announce(server: &mut Session, setting: &Setting) -> Result<u32> {
    let line = server.next_line();
    let receives = match setting.op {
        Op::Send => (RECEIVES * setting.depth, setting.size as u32),
        _ => (0, 0),
    };
    server.expect(Expect {
        receives,
        refills: true,
        ..plain(line, setting.method == Some(Method::Reading))
    })?;
    server.clock.restart(LIMIT);
    Ok(line)
}

/// The settings of a connection. The time until a loss is noticed is the library's default.
pub(super) fn conn_cfg(setting: &Setting) -> Result<ConnCfg> {
    let mut cfg = ConnCfg::new();
    let flushes = match setting.op {
        Op::WriteFlush => setting.depth / setting.batch,
        _ => 0,
    };
    cfg.set_force_fallback(setting.method == Some(Method::Reading))
        .set_sq_size(setting.depth + flushes)
        .set_rq_size(1);
    Ok(cfg)
}

/// The library's name of a setting's method. A setting without one has no commits.
pub(super) fn method(setting: &Setting) -> commit::Method {
    match setting.method {
        Some(Method::Native) | None => commit::Method::Native,
        Some(Method::Reading) => commit::Method::Reading,
        Some(Method::Server) => commit::Method::Server,
    }
}

pub(super) fn flush_type(setting: &Setting) -> rpma::FlushType {
    match setting.flush {
        Some(Flush::Durable) => rpma::FlushType::Persistent,
        Some(Flush::Visible) | None => rpma::FlushType::Visibility,
    }
}
