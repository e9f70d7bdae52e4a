//! The advice to a region, and its description.

use rpma::Advice;

use crate::common::prelude::*;
use crate::messages::support::any_use;

/// `Mr::advise` is for on-demand paging: bounds are checked anywhere, and a device without it
/// reports that.
#[test]
fn advice_on_a_region() -> Result {
    let (_test, peer) = peer_test()?;
    let mr = any_use(&peer, 4096)?;
    for range in [0..4097, 4096..4097, 5000..6000] {
        let text = invalid(mr.advise(range, Advice::Prefetch));
        assert!(text.contains("4096 bytes"), "{text}");
    }
    if peer.is_odp_capable() {
        return Ok(());
    }
    for advice in [
        Advice::Prefetch,
        Advice::PrefetchWrite,
        Advice::PrefetchNoFault,
    ] {
        not_supported(mr.advise(.., advice));
        not_supported(mr.advise_and_wait(.., advice));
    }
    Ok(())
}

/// A region and its descriptor report the same on both sides.
#[test]
fn what_a_region_says_of_itself() -> Result {
    let (_test, peer) = peer_test()?;
    let usage = MrUsage::WRITE_DST | MrUsage::RECV | MrUsage::FLUSH_TYPE_VISIBILITY;
    let mr = region(&peer, 100, usage)?;
    assert!(!mr.get_ptr().is_null());
    assert_eq!((mr.get_size(), mr.get_usage()), (100, usage));
    assert_eq!(mr.get_descriptor().len(), mr.get_descriptor_size());
    let far = remote(&mr);
    assert_eq!((far.get_size(), far.get_usage()), (100, usage));
    assert_eq!(far.get_flush_type(), MrUsage::FLUSH_TYPE_VISIBILITY);
    assert_eq!(far.slice(10..20)?.len(), 10);
    assert_eq!(mr.slice(10..20)?.len(), 10);
    Ok(())
}
