//! The first program of docs/getting-started.md works on each profile.

use std::panic::resume_unwind;

use rpma::sim::{Fabric, Profile};

#[path = "../examples/hello/hello.rs"]
#[allow(unreachable_pub, reason = "a library on that page")]
mod hello;

#[test]
fn the_bytes_arrive() -> hello::Result<()> {
    for profile in Profile::ALL {
        let fabric = Fabric::new(profile);
        let (client, server) = (fabric.host("client"), fabric.host("server"));
        let addr = server.addr().to_string();

        // Until the end of the block, this thread runs on the server.
        let (port, serving) = {
            let _entered = server.enter();
            let (peer, ep) = hello::listen(&addr, 0)?;
            (
                ep.get_port(),
                server.spawn(move || hello::serve(&peer, &ep)),
            )
        };
        {
            let _entered = client.enter();
            hello::write(&addr, port, b"Hello world!")?;
        }
        let memory = serving
            .join()
            .unwrap_or_else(|panic| resume_unwind(panic))?;
        assert_eq!(&memory[..12], b"Hello world!");
        assert!(fabric.objects().is_empty(), "everything was freed");
    }
    Ok(())
}
