//! Remedies that need no host of files. `doctor/trees.rs` has the others.

use super::*;

#[test]
fn rights_have_the_name_of_the_user() {
    let remedy = memory_rights("/dev/dax0.0", "ann", None);
    assert!(remedy.starts_with("as root: chown ann /dev/dax0.0. The right lasts until"));
    for container in [None, Some(Container::Docker)] {
        let remedy = memory_rights("/mnt/f", "ann", container);
        assert_eq!(remedy, "as root: chown ann /mnt/f");
    }
    // Its root may not open the devices of the host.
    let remedy = memory_rights("/dev/dax0.0", "root", Some(Container::Docker));
    assert!(remedy.ends_with("--device /dev/dax0.0"), "{remedy}");
}

#[test]
fn soft_roce_gets_an_interface_of_this_host() {
    let facts = Facts {
        ethernet: vec!["roce0".into(), "ssh0".into()],
        ..Facts::default()
    };
    let remedy = no_device(&facts);
    assert!(
        remedy.contains("netdev roce0 (or another interface: ssh0)."),
        "{remedy}"
    );
    assert!(remedy.contains("until the next boot"), "{remedy}");
}
