//! Addresses, ports and settings; unknown codes.

use std::net::Ipv4Addr;

use crate::common::prelude::*;

/// An endpoint on port 0 gets a port of its own, which can be read, and taken again afterwards.
#[test]
fn the_kernel_chooses_a_port() -> Result {
    let (_test, peer) = peer_test()?;
    for addr in [addr(), addr6()] {
        let one = Ep::listen(&peer, &addr, 0)?;
        let other = Ep::listen(&peer, &addr, 0)?;
        assert_ne!(one.get_port(), 0);
        assert_ne!(one.get_port(), other.get_port());
        assert!(one.get_fd() >= 0 && one.get_fd() != other.get_fd());
        let port = one.get_port();
        one.shutdown()?;
        let again = Ep::listen(&peer, &addr, port)?;
        assert_eq!(again.get_port(), port);
    }
    Ok(())
}

/// Addresses of both families work throughout, also spelt in another way. A name is resolved. If no
/// address of it leads to an RDMA device, the error reports that, with the remedy.
#[test]
fn addresses_and_names() -> Result {
    let (_test, peer) = peer_test()?;
    // A name for the resolver: the last two numbers as one.
    let octets = addr().parse::<Ipv4Addr>()?.octets();
    let host = u16::from_be_bytes([octets[2], octets[3]]);
    let name = format!("{}.{}.{host}", octets[0], octets[1]);
    let spelt_out = addr6().replace("::", ":0:0:0:0:0:0:");
    for (listen, ask) in [
        (addr(), addr()),
        (addr6(), addr6()),
        (addr6(), spelt_out),
        (addr(), name.clone()),
        (name, addr()),
    ] {
        let ep = Ep::listen(&peer, &listen, 0)?;
        let req = ConnReq::new(&peer, &ask, ep.get_port(), &ConnCfg::new())?;
        let client = req.connect(&[])?;
        let server = accept(&ep, &ConnCfg::new())?;
        established(&client, &server)?;
        write_nothing(&client, 1)?;
        done(&client, 1)?;
    }
    // The resolver accepts 127.1 on every host.
    for name in ["127.1", "127.0.0.1", "::1"] {
        for error in [
            Device::from_addr(name, Side::Local).err(),
            Ep::listen(&peer, name, 0).err(),
            ConnReq::new(&peer, name, 7204, &ConnCfg::new()).err(),
        ] {
            assert_says(&error.ok_or("no device has it")?, &["RDMA device"]);
        }
    }
    let text = invalid(ConnReq::new(&peer, "no such host", 1, &ConnCfg::new()));
    assert!(
        text.contains("\"no such host\" cannot be resolved"),
        "{text}"
    );
    Ok(())
}

/// Accepted settings can be read back, and refused ones have no effect.
#[test]
fn settings_of_a_connection() -> Result {
    let (_test, peer) = peer_test()?;
    let srq = Srq::new(&peer, &SrqCfg::new())?;
    let mut cfg = ConnCfg::new();
    cfg.set_timeout(Duration::from_secs(3))
        .set_cq_size(11)
        .set_rcq_size(12)
        .set_rcq_notify(Notify::Solicited)
        .set_sq_size(13)
        .set_rq_size(14)
        .set_max_inline_data(15)
        .set_compl_channel(ComplChannel::Shared)
        .set_srq(Some(&srq))
        .set_force_fallback(true);
    cfg.set_max_send_sge(2)?;
    cfg.set_retry_count(3)?;
    cfg.set_rnr_retry_count(4)?;
    cfg.set_ack_timeout(Some(5))?;
    cfg.set_min_rnr_timer(Some(6))?;
    assert!(invalid(cfg.set_min_rnr_timer(Some(32))).contains("0 to 31"));
    assert!(invalid(cfg.set_retry_count(8)).contains("0 to 7"));
    assert!(invalid(cfg.set_rnr_retry_count(8)).contains("0 to 7"));
    assert!(invalid(cfg.set_ack_timeout(Some(32))).contains("1 to 31"));
    assert!(invalid(cfg.set_max_send_sge(0)).contains("at least 1"));
    let copy = cfg.clone();
    drop(cfg);
    assert_eq!(copy.get_timeout(), Duration::from_secs(3));
    assert_eq!((copy.get_cq_size(), copy.get_rcq_size()), (11, 12));
    assert_eq!(copy.get_rcq_notify(), Notify::Solicited);
    assert_eq!((copy.get_sq_size(), copy.get_rq_size()), (13, 14));
    assert_eq!(
        (copy.get_max_inline_data(), copy.get_max_send_sge()),
        (15, 2)
    );
    assert!(matches!(copy.get_compl_channel(), ComplChannel::Shared));
    assert!(copy.get_srq().is_some() && copy.get_force_fallback());
    assert_eq!((copy.get_retry_count(), copy.get_rnr_retry_count()), (3, 4));
    assert_eq!(copy.get_ack_timeout(), Some(5));
    assert_eq!(copy.get_min_rnr_timer(), Some(6));
    Ok(())
}

/// Unknown codes are shown as numbers, and never stop a program.
#[test]
fn what_is_unknown_stays_a_number() {
    let event = ConnEvent::Other {
        event: 4711,
        status: -110,
    };
    assert_says(&event, &["4711", "timed out"]);
    let rejected = ConnEvent::Rejected {
        reason: 77,
        private_data: Box::default(),
    };
    assert_says(&rejected, &["rejected: reason 77"]);
    assert_eq!(WcStatus(1234).to_string(), "unknown code 1234");
    assert_eq!(WcOpcode(1234).to_string(), "unknown code 1234");
    assert!(!WcOpcode(1).is_receive() && WcOpcode(130).is_receive());
    for known in [
        ConnEvent::Established,
        ConnEvent::Closed,
        ConnEvent::TimewaitExit,
    ] {
        assert!(known.to_string().starts_with("Connection "), "{known}");
    }
}
