//! The calls of a new program: offers that travel with `establish`, durable writes, and operations
//! without flags and numbers.

use std::thread;

use crate::common::prelude::*;

/// Promise: a write is durable, or refused before anything was sent.
#[test]
fn a_durable_write_is_there_or_refused() -> Result {
    let (_test, peer) = peer_test()?;
    for Pair { client, .. } in Pair::each(&peer, both_ways()) {
        let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
        let target = Mr::reg(&peer, PmemMap::open(devdax(), 4096)?.part(..64)?, usage)?;
        let source = region(&peer, 64, MrUsage::WRITE_SRC)?;
        let bytes = pattern(64, 7);
        source.write_at(0, &bytes)?;
        let write = || client.write_durable(remote(&target).slice(..)?, source.slice(..)?, LIMIT);

        let before = contents(&target)?;
        let text = not_supported(write());
        assert_says(&text, &["has not declared"]);
        client.apply_remote_peer_cfg(&PeerCfg::new());
        not_supported(write());
        assert_eq!(client.counters().posted, 0);
        assert_eq!(contents(&target)?, before);

        client.apply_remote_peer_cfg(PeerCfg::new().set_direct_write_to_pmem(true));
        write()?;
        assert_eq!(contents(&target)?, bytes);
        target.write_at(0, &[0; 64])?;
    }
    Ok(())
}

/// Promise: both offers arrive, and that of the server is applied when it is read.
#[test]
fn offers_travel_with_the_connection() -> Result {
    let (_test, peer) = peer_test()?;
    let memory = region(&peer, 64, FLUSHED)?;
    let mut from_server = Offer::new(PeerCfg::new().set_direct_write_to_pmem(true));
    from_server.add_region(&memory).set_data(&[7; 40]);
    let mut from_client = Offer::default();
    from_client.set_data(b"of the client");
    let ep = listen(&peer)?;
    let (client, server) = thread::scope(|scope| -> Result<_> {
        let accept = || -> Result<Conn> {
            Ok(request(&ep, &ConnCfg::new())?.establish(&from_server, LIMIT)?)
        };
        let server = scope.spawn(here(accept));
        let asks = resolve(&peer, &ep, &ConnCfg::new())?;
        let client = asks.establish(&from_client, LIMIT)?;
        Ok((client, server.join().expect("no panic")?))
    })?;
    assert_eq!(client.offer()?, from_server);
    assert_eq!(server.offer()?, from_client);
    // It is applied: the refusal is about the region.
    let to = remote(&memory).slice(..)?;
    let text = not_supported(client.post_flush(to, FlushType::Persistent));
    assert_says(&text, &["without FLUSH_TYPE_PERSISTENT"]);

    // One that is too long is refused before the peer gets anything.
    let long = resolve(&peer, &ep, &ConnCfg::new())?;
    assert_invalid(long.establish(&from_server, LIMIT), &["and 56 fit"]);
    Ok(())
}

/// Promise: these calls post the operations of the same name. Reads, flushes and sends can be
/// awaited, and writes have no completion.
#[test]
fn operations_need_no_flags() -> Result {
    let (_test, peer) = peer_test()?;
    for Pair { client, server } in Pair::each(&peer, both_ways()) {
        let memory = Memories::new(&peer, &peer, 64)?;
        let (to, from) = (memory.to()?, memory.source.slice(..)?);
        let written = client.post_write(to, from)?;
        client.post_atomic_write(remote(&memory.target).slice(..8)?, b"8 bytes.")?;
        let flushed = client.post_flush(to, FlushType::Visibility)?;
        client.wait_for(flushed, LIMIT, |other| panic!("{other:?}"))?;
        let mut expected = pattern(64, 1);
        expected[..8].copy_from_slice(b"8 bytes.");
        assert_eq!(contents(&memory.target)?, expected);
        assert_invalid(
            client.wait_for(written, LIMIT, |_| {}),
            &["COMPLETION_ALWAYS"],
        );

        let read = client.post_read(from, to)?;
        client.wait_for(read, LIMIT, |other| panic!("{other:?}"))?;
        assert_eq!(contents(&memory.source)?, expected);

        receive_nothing(&server, 3..4)?;
        let sent = client.post_send(MrSlice::EMPTY)?;
        client.wait_for(sent, LIMIT, |other| panic!("{other:?}"))?;
        assert_eq!(completion(&server)?.wr_id(), 3);
    }
    Ok(())
}
