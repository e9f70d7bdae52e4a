//! `PeerCfg::for_platform` beside the simulator's own table.

use rpma::pmem::{Ddio, DevicePath, Domain};
use rpma::sim::{Platform, Profile};
use rpma::{Device, Durable, Peer, PeerCfg, Side};

use crate::pair::fabric;

/// Promise: on each platform and device, a host declares exactly the flushes that the simulator
/// keeps, and never more.
#[test]
fn a_declaration_is_the_simulators_table() {
    for profile in Profile::ALL {
        for platform in Platform::ALL {
            let host = fabric(&profile).host("server");
            host.set_platform(platform);
            let (domain, ddio) = match platform {
                Platform::AdrDdioOn => (Domain::MemoryController, Ddio::On),
                Platform::AdrDdioOff => (Domain::MemoryController, Ddio::Off),
                Platform::Eadr => (Domain::CpuCaches, Ddio::On),
                Platform::Volatile => (Domain::Volatile, Ddio::On),
                other => panic!("a row is missing: {other}"),
            };
            let path = {
                let _entered = host.enter();
                let addr = host.addr().to_string();
                let device = Device::from_addr(&addr, Side::Local).expect("a device");
                DevicePath::of(&Peer::new(&device).expect("a peer"), ddio)
            };
            let declared = PeerCfg::for_platform(domain, path).get_durable();
            let may = |native| host.may_promise_direct_write(native);
            let kept = match (may(false), profile.flushes_natively() && may(true)) {
                (true, _) => Durable::DirectWrites,
                (false, true) => Durable::NativeFlushes,
                (false, false) => Durable::Nothing,
            };
            assert_eq!(declared, kept, "{}, {platform}", profile.name());
        }
    }
}
