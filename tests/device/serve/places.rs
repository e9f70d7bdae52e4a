//! Two copies are on two hosts: a set of replicas compares the identities of memory and host.

use rpma::Site;
use rpma::commit::{Method, ReplicaId, Replicas, Writer, WriterCfg};
use rpma::serve::Directory;

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

fn added(log: &mut Replicas, writer: Writer) -> Result<ReplicaId> {
    let remote = writer.offer().regions()[0];
    Ok(log.add(writer, remote)?)
}

fn is_refused(log: &mut Replicas, writer: Writer, words: &str) {
    let remote = writer.offer().regions()[0];
    assert_says(&log.add(writer, remote).expect_err(words).error, &[words]);
}

fn other_memory(mut site: Site) -> Result<Site> {
    site.set_memory_name(b"another memory")?;
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
        let id = added(&mut log, writer)?;
        assert_eq!(log.site(id), Some(site));
        let (_two, writer) = connect(&six, site)?;
        let remote = writer.offer().regions()[0];
        let refused = log.add(writer, remote).expect_err("the same memory");
        for words in ["have the same memory", &four, &six, "renew_identity"] {
            assert_says(&refused.error, &[words]);
        }
        let (_three, writer) = connect(&six, other_memory(site)?)?;
        is_refused(&mut log, writer, "have the same host");

        // A replica that was set aside is compared no more.
        log.set_aside(id, LIMIT)?;
        let (_again, writer) = connect(&six, site)?;
        added(&mut log, writer)?;

        log.permit_one_host();
        let (_four, writer) = connect(&four, site)?;
        is_refused(&mut log, writer, "have the same memory");
        // A server that registers its memory for each connection has another region each time.
        let other = Mr::reg(&peer, all.part(LEN..2 * LEN)?, USAGE)?;
        let (_other, writer) = self::connect((&peer, &peer), &four, (&other, site))?;
        is_refused(&mut log, writer, "have the same memory");
        let (_five, writer) = connect(&four, other_memory(site)?)?;
        added(&mut log, writer)?;
    }
    let mut log = Replicas::new(&peer, LEN, 4)?;
    let (_one, writer) = connect(&four, Site::default())?;
    added(&mut log, writer)?;
    let (_two, writer) = connect(&six, Site::default())?;
    added(&mut log, writer)?;
    let (_three, writer) = connect(&four, Site::default())?;
    is_refused(&mut log, writer, "the same region and address");
    Ok(())
}

/// Promise: two memories of this host have two identities, which stay when a memory is opened
/// again.
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
    use super::*;

    /// Promise: on each profile, one server that is reached through two adapters is one copy. Two
    /// hosts are two copies, unless they are in one failure domain.
    #[test]
    fn two_copies_are_on_two_hosts() -> Result {
        for profile in Profile::EVERY {
            let (_fabric, [client, a, b]) = Rig::of(&profile).hosts(["client", "a", "b"]);
            let nic = a.add_nic();
            let near = {
                let _entered = client.enter();
                Peer::toward(&a.addr().to_string())?
            };
            // A server on this host, at this address of it.
            let serve = |host: &Host, addr: &str, pmem: &Pmem, rack: Option<&str>| {
                let _entered = host.enter();
                let map = PmemMap::open(pmem.path(), LEN)?;
                let mut site = Site::of(&map);
                if let Some(rack) = rack {
                    site.set_failure_domain(rack)?;
                }
                let far = Peer::at(addr)?;
                let region = Mr::reg(&far, map, USAGE)?;
                let (conn, writer) = connect((&near, &far), addr, (&region, site))?;
                Ok::<_, failed::Failed>((conn, region, writer))
            };
            let [first, second] = [a.addr(), nic.addr()].map(|of| of.to_string());
            // One memory through two adapters.
            {
                let pmem = a.pmem("one", LEN);
                let mut log = Replicas::new(&near, LEN, 4)?;
                let (_one, _region, writer) = serve(&a, &first, &pmem, None)?;
                added(&mut log, writer)?;
                let (_two, _region, writer) = serve(&a, &second, &pmem, None)?;
                is_refused(&mut log, writer, "have the same memory");
            }
            let mut log = Replicas::new(&near, LEN, 4)?;
            let serve =
                |host: &Host, addr: &str, rack| serve(host, addr, &host.pmem(addr, LEN), rack);
            let (_a, _region_a, writer) = serve(&a, &first, Some("rack 1"))?;
            added(&mut log, writer)?;
            let (_b, _region_b, writer) = serve(&a, &second, None)?;
            is_refused(&mut log, writer, "have the same host");
            let (_c, _region_c, writer) = serve(&b, &b.addr().to_string(), Some("rack 1"))?;
            is_refused(&mut log, writer, "have the same failure domain");
            let (_d, _region_d, writer) = serve(&b, &b.addr6().to_string(), Some("rack 2"))?;
            added(&mut log, writer)?;
        }
        Ok(())
    }

    /// Promise: a host's identity changes with a loss of power and not with the end of a program.
    /// That of the memory stays.
    #[test]
    fn a_host_identity_is_that_of_a_boot() -> Result {
        let (_fabric, [host, other]) = Rig::strict().hosts(["a", "b"]);
        let pmem = host.pmem("memory", LEN);
        let site = || -> Result<Site> {
            let _entered = host.enter();
            Ok(Site::of(&PmemMap::open(pmem.path(), LEN)?))
        };
        assert_eq!(Site::here().host(), None, "this thread is on no host");
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
        assert_eq!(Site::here().host(), third.host());
        Ok(())
    }
}
