//! The first program of docs/getting-started.md works on each profile.

use std::panic::resume_unwind;

use rpma::sim::{Fabric, Platform, Profile};

#[path = "../examples/hello/hello.rs"]
#[allow(unreachable_pub, reason = "a library on that page")]
mod hello;

#[test]
fn the_bytes_are_durable() -> rpma::Result<()> {
    for profile in Profile::EVERY {
        let fabric = Fabric::new(profile);
        let (client, server) = (fabric.host("client"), fabric.host("server"));
        // The caches of the server keep their data when the power fails.
        server.set_platform(Platform::Eadr);
        let pmem = server.pmem("dax0.0", 4096);
        let (addr, path) = (server.addr().to_string(), pmem.path().display().to_string());

        // Until the end of the block, this thread runs on the server.
        let (port, serving) = {
            let _entered = server.enter();
            let (peer, ep) = hello::listen(&addr, 0)?;
            (
                ep.get_port(),
                server.spawn(move || hello::serve(&peer, &ep, &path).map(drop)),
            )
        };
        {
            let _entered = client.enter();
            hello::write(&addr, port, b"Hello world!")?;
        }
        serving
            .join()
            .unwrap_or_else(|panic| resume_unwind(panic))?;
        server.power_cut();
        assert_eq!(&pmem.bytes()[..12], b"Hello world!");
        assert!(fabric.objects().is_empty(), "everything was freed");
    }
    Ok(())
}
