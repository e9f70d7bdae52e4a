//! Refusing a request, with a reason.

use crate::common::prelude::*;
use crate::ending::support::asked;

/// A reject brings its reason and its data, which the C library throws away; padded to the room
/// that the message has.
#[test]
fn a_reject_tells_why() -> Result {
    let (_test, peer) = peer_test()?;
    for data in [&[][..], b"no room", &[5; 148]] {
        let (client, _ep, req) = asked(&peer)?;
        req.reject(data)?;
        match event(&client)? {
            ConnEvent::Rejected {
                reason,
                private_data,
            } => {
                assert_eq!(reason, ConnEvent::BY_PROGRAM);
                let len = private_data.len();
                assert!(len == 0 || len == arrives(data.len(), 148), "{len}");
                assert!(private_data.starts_with(data), "{private_data:?}");
                let padding = private_data.get(data.len()..).unwrap_or(&[]);
                assert!(padding.iter().all(|&byte| byte == 0), "{private_data:?}");
            }
            other => panic!("{other:?}"),
        }
        assert_not_connected(write_nothing(&client, 1));
    }
    Ok(())
}

/// A reject that cannot be sent is refused before anything happens, and the request can still be
/// taken.
#[test]
fn every_refusal_of_a_reject() -> Result {
    let (_test, peer) = peer_test()?;
    let (client, ep, req) = asked(&peer)?;
    let refused = req.reject(&[1; 149]).expect_err("148 bytes fit");
    assert_says(&refused, &["149", "148"]);
    assert!(matches!(refused.error, Error::InvalidArgument(_)));
    let server = refused.object.ok_or("the request")?.connect(&[])?;
    established(&client, &server)?;

    let req = resolve(&peer, &ep, &ConnCfg::new())?;
    let refused = req.reject(b"what?").expect_err("it is this side's own");
    assert!(refused.to_string().contains("outgoing"), "{refused}");
    let client = refused.object.ok_or("the request")?.connect(&[])?;
    let req = request(&ep, &ConnCfg::new())?;
    drop(client);
    // The client is gone: an error or not, everything is freed.
    if let Err(error) = req.reject(b"too late") {
        assert!(error.object.is_none() && matches!(error.error, Error::Provider { .. }));
    }
    Ok(())
}
