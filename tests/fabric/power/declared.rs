//! `PeerCfg::detect` beside the simulator's own table.

use rpma::pmem::Ddio;

use crate::common::prelude::*;
use crate::power::world::{Own, SIZE, fabric};

/// Promise: on each platform and device, a host that asks its kernel declares exactly the flushes
/// that the simulator keeps, and never more.
#[test]
fn a_declaration_is_the_simulators_table() -> Result {
    for profile in Profile::EVERY {
        for platform in Platform::ALL {
            let own = Own::new(fabric(&profile), platform, SIZE);
            let ddio = match platform {
                Platform::AdrDdioOff => Ddio::Off,
                _ => Ddio::On,
            };
            let declared = PeerCfg::detect(&own.map, &peer()?, ddio)?.get_durable();
            let may = |native| own.host.may_promise_direct_write(native);
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
