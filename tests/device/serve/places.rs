//! Two copies are on two hosts: a set of replicas compares the identities of memory and host.

use rpma::commit::{Method, Replicas, Writer, WriterCfg};
use rpma::serve::Directory;
use rpma::{MemoryId, Site};

use crate::common::prelude::*;
use crate::serve::support::{LEN, directory_of, new_directory};

const USAGE: MrUsage = MrUsage::WRITE_DST
    .union(MrUsage::READ_SRC)
    .union(MrUsage::FLUSH_TYPE_VISIBILITY);

/// A connection to a server of this region, which offers it with this site.
fn connect(
    (near, far): (&Peer, &Peer),
    addr: &str,
    (region, site): (&Mr<PmemMap>, Site),
) -> Result<(Conn, Writer)> {
    let ep = Ep::listen(far, addr, 0)?;
    let mut commits = WriterCfg::new(Method::Reading);
    commits.set_flush_type(FlushType::Visibility)?;
    let cfg = commits.conn_cfg(&ConnCfg::new())?;
    let req = ConnReq::new(near, addr, ep.get_port(), &cfg)?;
    let connecting = Writer::connect(req, &commits, &Offer::default())?;
    let mut offer = Offer::new(&PeerCfg::new());
    offer.add_region(region).set_site(site);
    let req = ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT)?;
    let conn = req.connect(&offer.encode(Offer::ACCEPT)?)?;
    let writer = connecting.wait(LIMIT)?;
    Ok((conn.wait_established(LIMIT)?, writer))
}

fn remote(writer: &Writer) -> MrRemote {
    writer.offer().regions()[0]
}

fn refused(log: &mut Replicas, writer: Writer) -> String {
    let remote = remote(&writer);
    let refused = log.add(writer, remote).expect_err("refused");
    refused.error.to_string()
}

fn other_memory(mut site: Site) -> Result<Site> {
    site.set_memory(MemoryId::named(b"another memory")?);
    Ok(site)
}

/// Promise: one server that is reached by IPv4 and by IPv6 is one copy, not two. Another memory of
/// the same host is refused as well, unless the program permits it. Without identities, only the
/// address and the region are compared.
#[test]
fn one_server_with_two_addresses_is_one_copy() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let all = PmemMap::open(devdax(), 2 * LEN)?;
    let directory = new_directory(directory_of(&all)?, 2)?;
    let region = Mr::reg(&peer, all.part(LEN..2 * LEN)?, USAGE)?;
    let connect = |addr: &str, site| connect((&peer, &peer), addr, (&region, site));
    let (four, six) = (addr(), addr6());
    for site in [directory.site(), Site::of(&all)] {
        assert!(site.memory().is_some() && site.host().is_some(), "{site}");
        let mut log = Replicas::new(&peer, LEN, 4)?;
        let (_one, writer) = connect(&four, site)?;
        let region = remote(&writer);
        let id = log.add(writer, region)?;
        assert_eq!(log.site(id), Some(site));
        let (_two, writer) = connect(&six, site)?;
        let text = refused(&mut log, writer);
        for words in ["have the same memory", &four, &six, "renew_identity"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let (_three, writer) = connect(&six, other_memory(site)?)?;
        let text = refused(&mut log, writer);
        assert!(text.contains("have the same host"), "{text}");

        // A replica that was set aside is compared no more.
        log.set_aside(id, LIMIT)?;
        let (_again, writer) = connect(&six, site)?;
        log.add(writer, region)?;

        log.permit_one_host();
        let (_four, writer) = connect(&four, site)?;
        let text = refused(&mut log, writer);
        assert!(text.contains("have the same memory"), "{text}");
        // A server that registers its memory for each connection has another region each time.
        let other = Mr::reg(&peer, all.part(LEN..2 * LEN)?, USAGE)?;
        let (_other, writer) = self::connect((&peer, &peer), &four, (&other, site))?;
        let text = refused(&mut log, writer);
        assert!(text.contains("have the same memory"), "{text}");
        let (_five, writer) = connect(&four, other_memory(site)?)?;
        log.add(writer, region)?;
    }
    let mut log = Replicas::new(&peer, LEN, 4)?;
    let (_one, writer) = connect(&four, Site::default())?;
    let region = remote(&writer);
    log.add(writer, region)?;
    let (_two, writer) = connect(&six, Site::default())?;
    log.add(writer, region)?;
    let (_three, writer) = connect(&four, Site::default())?;
    let text = refused(&mut log, writer);
    assert!(text.contains("the same region and address"), "{text}");
    Ok(())
}

/// Promise: two memories of this host have two identities, which stay when a memory is opened again.
#[test]
fn each_memory_has_its_own_identity() -> Result {
    let _test = device_test();
    let all = PmemMap::open(devdax(), 2 * LEN)?;
    let own = Site::of(&all).memory();
    assert!(own.is_some(), "{}", Site::of(&all));
    drop(all);
    let all = PmemMap::open(devdax(), 2 * LEN)?;
    assert_eq!(Site::of(&all.part(..LEN)?).memory(), own);
    let mut directory = new_directory(directory_of(&all)?, 2)?;
    let first = directory.site();
    assert_ne!(first.memory(), own);
    assert_eq!(first.host(), Site::of(&all).host());
    directory.renew_identity()?;
    assert_ne!(directory.site().memory(), first.memory());
    let renewed = directory.site();
    drop(directory);
    assert_eq!(Directory::open(directory_of(&all)?)?.site(), renewed);
    Ok(())
}

/// Promise: a file's identity comes from its file system and its inode.
#[test]
#[cfg(not(feature = "sim"))]
fn files_have_identities() -> Result {
    for folder in [ext4(), fsdax()] {
        let file = tempfile::NamedTempFile::new_in(folder)?;
        std::fs::write(file.path(), [0; LEN])?;
        let site = Site::of(&PmemMap::open(file.path(), LEN)?);
        assert!(site.memory().is_some() && site.host().is_some(), "{site}");
    }
    Ok(())
}

#[cfg(feature = "sim")]
mod fabric {
    use rpma::sim::Profile;
    use rpma::{Device, FailureDomain, Side};

    use super::*;

    /// Promise: on each profile, one server that is reached through two adapters is one copy. Two
    /// hosts are two copies, unless they are in one failure domain.
    #[test]
    fn two_copies_are_on_two_hosts() -> Result {
        for profile in Profile::ALL {
            let fabric = Rig::of(&profile).fabric();
            let (client, hosts) = (
                fabric.host("client"),
                ["a", "b"].map(|name| fabric.host(name)),
            );
            let nic = hosts[0].add_nic();
            let peer_at = |addr: &str, side| Peer::new(&Device::from_addr(addr, side)?);
            let near = {
                let _entered = client.enter();
                peer_at(&hosts[0].addr().to_string(), Side::Remote)?
            };
            let served = |host: usize, addr: String, site: &dyn Fn(&PmemMap) -> Result<Site>| {
                let _entered = hosts[host].enter();
                let pmem = hosts[host].pmem(&addr, LEN);
                let map = PmemMap::open(pmem.path(), LEN)?;
                let site = site(&map)?;
                let far = peer_at(&addr, Side::Local)?;
                let region = Mr::reg(&far, map, USAGE)?;
                let (conn, writer) = connect((&near, &far), &addr, (&region, site))?;
                Ok::<_, failed::Failed>((conn, region, writer))
            };
            let addrs = [hosts[0].addr(), nic.addr(), hosts[1].addr()].map(|of| of.to_string());
            let [first, second, other] = addrs;
            let rack = |name: &'static str| {
                move |map: &PmemMap| {
                    let mut site = Site::of(map);
                    site.set_failure_domain(FailureDomain::new(name)?);
                    Ok(site)
                }
            };
            // One memory through two adapters.
            {
                let pmem = hosts[0].pmem("one", LEN);
                let mut log = Replicas::new(&near, LEN, 4)?;
                let mut ends = Vec::new();
                for (n, addr) in [hosts[0].addr(), nic.addr()].iter().enumerate() {
                    let _entered = hosts[0].enter();
                    let map = PmemMap::open(pmem.path(), LEN)?;
                    let site = Site::of(&map);
                    let far = peer_at(&addr.to_string(), Side::Local)?;
                    let region = Mr::reg(&far, map, USAGE)?;
                    let (near, addr) = (&near, addr.to_string());
                    let (conn, writer) = connect((near, &far), &addr, (&region, site))?;
                    ends.push((conn, region));
                    let remote = remote(&writer);
                    match (n, log.add(writer, remote)) {
                        (0, Ok(_)) => {}
                        (1, Err(refused)) => {
                            let text = refused.error.to_string();
                            assert!(text.contains("have the same memory"), "{text}");
                        }
                        (_, added) => panic!("{added:?}"),
                    }
                }
            }
            let mut log = Replicas::new(&near, LEN, 4)?;
            let (_a, _region_a, writer) = served(0, first, &rack("rack 1"))?;
            let region = remote(&writer);
            log.add(writer, region)?;
            let (_b, _region_b, writer) = served(0, second, &|map| Ok(Site::of(map)))?;
            let text = refused(&mut log, writer);
            assert!(text.contains("have the same host"), "{text}");
            let (_c, _region_c, writer) = served(1, other, &rack("rack 1"))?;
            let text = refused(&mut log, writer);
            assert!(text.contains("have the same failure domain"), "{text}");
            let other = hosts[1].addr6().to_string();
            let (_d, _region_d, writer) = served(1, other, &rack("rack 2"))?;
            let region = remote(&writer);
            log.add(writer, region)?;
        }
        Ok(())
    }

    /// Promise: a host's identity changes with a loss of power and not with the end of a program.
    /// That of the memory stays.
    #[test]
    fn a_host_identity_is_that_of_a_boot() -> Result {
        let fabric = Rig::strict().fabric();
        let (host, other) = (fabric.host("a"), fabric.host("b"));
        let pmem = host.pmem("memory", LEN);
        let site = || -> Result<Site> {
            let _entered = host.enter();
            Ok(Site::of(&PmemMap::open(pmem.path(), LEN)?))
        };
        assert_eq!(rpma::HostId::read(), None, "this thread is on no host");
        let first = site()?;
        host.kill();
        assert_eq!(site()?, first);
        host.power_cut();
        host.restart();
        let second = site()?;
        assert_eq!(second.memory(), first.memory());
        assert_ne!(second.host(), first.host());
        let pmem = other.pmem("memory", LEN);
        let _entered = other.enter();
        let third = Site::of(&PmemMap::open(pmem.path(), LEN)?);
        assert_ne!(third.memory(), first.memory());
        assert_ne!(third.host(), second.host());
        assert_eq!(rpma::HostId::read(), third.host());
        Ok(())
    }
}
