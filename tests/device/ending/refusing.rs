//! Refusing a request, with a reason.

use crate::common::prelude::*;
use crate::ending::support::{unanswered, write_nothing};

/// A reject brings its reason and its data, which the C library throws away; padded to the room
/// that the message has.
#[test]
fn a_reject_tells_why() -> Result {
    let _test = device_test();
    let peer = peer()?;
    for data in [&[][..], b"no room", &[5; 148]] {
        let (client, ep) = unanswered(&peer)?;
        let req = request(&ep, &ConnCfg::new())?;
        req.reject(data)?;
        match event(&client)? {
            ConnEvent::Rejected {
                reason,
                private_data,
            } => {
                assert_eq!(reason, RejectReason::CONSUMER);
                assert!(private_data.is_empty() || private_data.len() == 148);
                assert!(private_data.starts_with(data), "{private_data:?}");
                let padding = private_data.get(data.len()..).unwrap_or(&[]);
                assert!(padding.iter().all(|&byte| byte == 0), "{private_data:?}");
            }
            other => panic!("{other:?}"),
        }
        let error = write_nothing(&client, 1).expect_err("no connection");
        assert!(matches!(error, Error::NotConnected(_)), "{error:?}");
    }
    Ok(())
}

/// A reject that cannot be sent is refused before anything happens, and the request can still be
/// taken.
#[test]
fn every_refusal_of_a_reject() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let (client, ep) = unanswered(&peer)?;
    let req = request(&ep, &ConnCfg::new())?;
    let refused = req.reject(&[1; 149]).expect_err("148 bytes fit");
    let text = refused.to_string();
    assert!(text.contains("149") && text.contains("148"), "{text}");
    assert!(matches!(refused.error, Error::InvalidArgument(_)));
    let req = refused.req.ok_or("the request")?;
    let server = req.connect(&[])?;
    assert_eq!(event(&client)?, ConnEvent::Established);
    assert_eq!(event(&server)?, ConnEvent::Established);

    let req = ConnReq::new(&peer, &addr(), ep.get_port(), &ConnCfg::new())?;
    let refused = req.reject(b"what?").expect_err("it is this side's own");
    assert!(refused.to_string().contains("outgoing"), "{refused}");
    let client = refused.req.ok_or("the request")?.connect(&[])?;
    let req = request(&ep, &ConnCfg::new())?;
    drop(client);
    // The client is gone: an error or not, everything is freed.
    if let Err(error) = req.reject(b"too late") {
        assert!(error.req.is_none() && matches!(error.error, Error::Provider { .. }));
    }
    Ok(())
}
