//! `PeerCfg::for_platform` beside the simulator's own table.

use rpma::pmem::{self, Ddio, DevicePath};

use crate::common::prelude::*;
use crate::power::world::fabric;
use anyhow::Result;

/// Promise: on each platform and device, a host that asks its kernel declares exactly the flushes
/// that the simulator keeps, and never more.
#[test]
fn a_declaration_is_the_simulators_table() -> Result<()> {
    for profile in Profile::ALL {
        for platform in Platform::ALL {
            let host = fabric(&profile).host("server");
            host.set_platform(platform);
            let pmem = host.pmem("log", 4096);
            let ddio = match platform {
                Platform::AdrDdioOff => Ddio::Off,
                _ => Ddio::On,
            };
            let declared = {
                let _entered = host.enter();
                let map = PmemMap::open(pmem.path(), 4096)?;
                let domain = pmem::Platform::detect(&map)?.domain();
                let addr = host.addr().to_string();
                let device = Device::from_addr(&addr, Side::Local)?;
                let path = DevicePath::of(&Peer::new(&device)?, ddio);
                PeerCfg::for_platform(domain, path).get_durable()
            };
            let may = |native| host.may_promise_direct_write(native);
            let kept = match (may(false), profile.flushes_natively() && may(true)) {
                (true, _) => Durable::DirectWrites,
                (false, true) => Durable::NativeFlushes,
                (false, false) => Durable::Nothing,
            };
            assert_eq!(declared, kept, "{}, {platform}", profile.name());
        }
    }
    Ok(())
}
