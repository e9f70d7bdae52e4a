//! Registered memory lives on.

use rpma::commit::{Limits, Method, WriterCfg};
use rpma::reconnect::{Connects, Reconnect, ToConn, ToWriter};

use crate::common::prelude::*;
use crate::reconnect::support::{LEN, Server, connect, identified, quick};

const RECONNECTS: u64 = if cfg!(feature = "sim") { 200 } else { 10 };

/// How often memory was registered.
fn registrations() -> u64 {
    #[cfg(feature = "sim")]
    return with_fabric(|fabric, _| fabric.calls().get("ibv_reg_mr").copied().unwrap_or(0));
    #[cfg(not(feature = "sim"))]
    0
}

/// Connects again and again, and uses each connection. No memory is registered after the first one.
fn reconnects<C: Connects>(
    server: &Server,
    peer: &Peer,
    connects: C,
    answer: &[u8],
    mut used: impl FnMut(&C::Connected, u64) -> Result,
) -> Result {
    let mut client = Reconnect::to_addrs(peer, &[server.at_addr()?], identified(1), connects)?;
    client.set_cfg(&quick()?);
    let (mut current, mut registered) = (None, None);
    for number in 0..=RECONNECTS {
        let connected = connect(&mut client, || server.accept_with(answer, &mut current))?;
        used(&connected, number)?;
        let once = *registered.get_or_insert_with(registrations);
        assert_eq!(registrations(), once);
    }
    assert_eq!(client.connected(), RECONNECTS + 1);
    Ok(())
}

/// Promise: a plain connection writes from the region that was registered once.
#[test]
fn a_connection_is_made_again_with_the_same_memory() -> Result {
    let _test = device_test();
    let server = Server::new()?;
    let peer = peer()?;
    let source = region(&peer, LEN, MrUsage::WRITE_SRC)?;
    let write = |conn: &Conn, number: u64| {
        let bytes = number.to_le_bytes();
        source.write_at(0, &bytes)?;
        let to = offered(conn)?.slice(..8)?;
        conn.write(to, source.slice(..8)?, Flags::COMPLETION_ON_ERROR, 1)?;
        let flushed = conn.flush(to, FlushType::Visibility, ALWAYS, 2);
        conn.wait_for(flushed?, LIMIT, |_| {})?;
        assert_eq!(contents(&server.memory)?[..8], bytes);
        Ok(())
    };
    reconnects(&server, &peer, ToConn, &server.offer(), write)
}

/// Promise: so is a writer, by each method.
#[test]
fn a_writer_is_made_again_with_the_same_memory() -> Result {
    let _test = device_test();
    let server = Server::new()?;
    let peer = peer()?;
    let mut methods = vec![Method::Reading, Method::Server];
    if peer.is_native_flush_capable() {
        methods.push(Method::Native);
    }
    let answer = served_offer(&server)?;
    for method in methods {
        let mut cfg = WriterCfg::new(method);
        if method != Method::Server {
            cfg.set_flush_type(FlushType::Visibility)?;
        }
        reconnects(&server, &peer, ToWriter::new(&cfg), &answer, |writer, _| {
            assert_eq!(writer.cfg().method(), method);
            assert_eq!(writer.offer().regions().len(), 1);
            Ok(())
        })?;
    }
    Ok(())
}

/// The answer of a server that serves the server's method.
fn served_offer(server: &Server) -> Result<Vec<u8>> {
    let mut offer = Offer::new(&PeerCfg::new());
    offer.add_region(&server.memory);
    offer.set_limits(Limits::new(16, 2, 4096)?);
    Ok(offer.encode(Offer::ACCEPT)?)
}

/// A client of the server's method, and the server's answer to it.
fn writes_to(server: &Server) -> Result<(Reconnect<ToWriter>, Vec<u8>)> {
    let to_writer = ToWriter::new(&WriterCfg::new(Method::Server));
    let client = server.client_with(identified(1), to_writer)?;
    Ok((client, served_offer(server)?))
}

/// Promise: the memory of a dropped writer is not used again if its queue pair could not be
/// destroyed.
#[cfg(feature = "sim")]
#[test]
fn messages_of_a_queue_pair_that_stays_are_not_used_again() -> Result {
    let left = [("qp", 1), ("cq", 1), ("pd", 1)];
    leaving(&left, || {
        let server = Server::new()?;
        let (mut client, answer) = writes_to(&server)?;
        let mut accepted = Vec::new();
        let mut next = || {
            connect(&mut client, || {
                if let Some(req) = server.request() {
                    accepted.push(req.connect(&answer).expect("accepts"));
                }
            })
        };
        let writer = next()?;
        with_fabric(|fabric, _| {
            drop(fabric.fail("ibv_destroy_qp").next(rpma::sim::Errno::IO));
        });
        drop(writer);
        let before = registrations();
        drop(next()?);
        assert_eq!(registrations() - before, 1, "the queue pair may use it");
        Ok(())
    })
}

/// Promise: a writer that is still there, or has its connection, keeps the memory of its messages
/// for itself.
#[test]
fn messages_are_not_shared() -> Result {
    let _test = device_test();
    let server = Server::new()?;
    let (mut client, answer) = writes_to(&server)?;
    let mut accepted = Vec::new();
    let mut next = || -> Result<_> {
        let before = registrations();
        let writer = connect(&mut client, || {
            if let Some(req) = server.request() {
                accepted.push(req.connect(&answer).expect("accepts"));
            }
        });
        Ok((writer?, registrations() - before))
    };
    let one_more = u64::from(cfg!(feature = "sim"));
    let (first, _) = next()?;
    let (second, registered) = next()?;
    assert_eq!(registered, one_more, "the first one is there");
    let conn = second.into_conn();
    let (third, registered) = next()?;
    assert_eq!(registered, one_more, "its connection is there");
    drop(third);
    let (fourth, registered) = next()?;
    assert_eq!(registered, 0, "it is free");
    drop((first, conn, fourth));
    Ok(())
}
