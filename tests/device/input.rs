//! Bad input: each mistake gives one clear error that names the limit and the remedy, before any
//! message is sent, and leaves no object.

use std::env;
use std::process::Command;
use std::ptr::NonNull;

use memmap2::MmapMut;
use rpma::pmem::PmemKind;
use rpma::{AlignedBuf, GivenBack};
use rustix::io::Errno;

use crate::common::prelude::*;
use crate::common::program::alone;

const RIGHTS: MrUsage = MrUsage::WRITE_DST.union(MrUsage::READ_SRC);

/// A verb must have reported this error, whose text has these words.
#[track_caller]
fn assert_reported(error: impl Into<Error>, call: &str, errno: Errno, words: &[&str]) {
    let error = error.into();
    assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()), "{error}");
    assert!(error.to_string().starts_with(call), "{error}");
    assert_says(&error, words);
}

/// Memory that cannot be registered, for a reason with these words, comes back.
#[track_caller]
fn assert_unfit<M: RegisterableMemory>(
    registered: Result<Mr<M>, GivenBack<M>>,
    words: &[&str],
) -> M {
    let Err(GivenBack {
        object: memory,
        error,
    }) = registered
    else {
        panic!("it is registered")
    };
    assert_invalid(Err::<(), _>(error), words);
    memory
}

/// A file of `len` bytes, removed when the test ends.
fn file(dir: &str, len: u64) -> Result<tempfile::TempPath> {
    let file = tempfile::NamedTempFile::new_in(dir)?;
    file.as_file().set_len(len)?;
    Ok(file.into_temp_path())
}

#[test]
fn addresses() -> Result {
    let (_test, peer) = peer_test()?;
    let cfg = ConnCfg::new();
    for wildcard in ["0.0.0.0", "::"] {
        for side in [Side::Local, Side::Remote] {
            assert!(invalid(Device::from_addr(wildcard, side)).contains("wildcard"));
        }
        assert!(invalid(Ep::listen(&peer, wildcard, 0)).contains("wildcard"));
        assert!(invalid(ConnReq::new(&peer, wildcard, 1, &cfg)).contains("wildcard"));
    }
    for wrong in ["", "not an address", "10.77.0.1.2"] {
        assert!(invalid(Device::from_addr(wrong, Side::Local)).contains("cannot be resolved"));
    }
    // An address that no interface of this host has.
    for refused in [
        Device::from_addr("192.0.2.1", Side::Local).map(drop),
        Ep::listen(&peer, "192.0.2.1", 0).map(drop),
    ] {
        let error = refused.expect_err("not here");
        assert_says(&error, &["rdma_bind_addr", "rdma link"]);
    }
    // An interface without an RDMA device.
    let error = Device::from_addr("127.0.0.1", Side::Local).expect_err("no device");
    assert_says(&error, &["RDMA device"]);
    let text = invalid(Ep::listen(&peer, "127.0.0.1", 0));
    assert!(text.contains("belongs to no RDMA device"), "{text}");
    Ok(())
}

/// Objects of two devices never meet: librdmacm would refuse that with a bare EINVAL, or only when
/// the connection is used (W-20).
#[test]
fn devices_are_not_mixed() -> Result {
    let (_test, peer) = peer_test()?;
    let device = Device::from_addr(&other_addr(), Side::Local)?;
    let other = Peer::new(&device)?;
    let another = "belongs to another RDMA device";
    assert!(invalid(Ep::listen(&peer, &other_addr(), 0)).contains(another));
    let elsewhere = ConnReq::new(&peer, &other_addr(), 1, &ConnCfg::new());
    assert_invalid(elsewhere, &[another]);

    let connect = |cfg: &ConnCfg| invalid(ConnReq::new(&peer, &addr(), 1, cfg));
    let channel = CompletionChannel::new(&other)?;
    let of = ComplChannel::Of { channel, key: 1 };
    let text = connect(ConnCfg::new().set_compl_channel(of));
    assert!(text.contains("was made for the device"), "{text}");

    let srq = Srq::new(&other, &SrqCfg::new())?;
    assert!(connect(ConnCfg::new().set_srq(Some(&srq))).contains("another Peer"));

    let foreign = region(&other, 8, MrUsage::READ_DST | MrUsage::WRITE_SRC)?;
    let own = region(&peer, 8, MrUsage::READ_SRC | MrUsage::WRITE_DST)?;
    let pair = Pair::new(&peer)?;
    let (from, to) = (foreign.slice(..)?, remote(&own).slice(..)?);
    assert_invalid(pair.client.write(to, from, ALWAYS, 1), &["another Peer"]);

    // Each by itself works.
    let ep = Ep::listen(&other, &other_addr(), 0)?;
    ConnReq::new(&other, &other_addr(), ep.get_port(), &ConnCfg::new())?;
    Ok(())
}

/// A setting of a completion queue that is not made would be ignored, and a program that counts on
/// it would sleep for ever.
#[test]
fn settings_of_a_queue_that_is_not_there() -> Result {
    let (_test, peer) = peer_test()?;
    let channel = CompletionChannel::new(&peer)?;
    let refused = |cfg: &ConnCfg, what: &str| {
        assert_invalid(ConnReq::new(&peer, &addr(), 1, cfg), &[what]);
    };
    let mut cfg = ConnCfg::new();
    refused(cfg.set_rcq_notify(Notify::Solicited), "set_rcq_notify");
    let srq = Srq::new(&peer, &SrqCfg::new())?;
    refused(cfg.set_rcq_size(10).set_srq(Some(&srq)), "SrqCfg");
    let mut cfg = ConnCfg::new();
    let own = Some((channel.clone(), 1));
    refused(cfg.set_rcq_channel(own), "set_rcq_channel");
    let shared = ComplChannel::Shared;
    refused(cfg.set_rcq_size(10).set_compl_channel(shared), "Shared");

    let cfg = SrqCfg::new().set_rcq_size(0).clone();
    for cfg in [
        cfg.clone().set_rcq_notify(Notify::Solicited),
        cfg.clone().set_compl_channel(Some((channel, 1))),
    ] {
        assert_invalid(Srq::new(&peer, cfg), &["set_rcq_size"]);
    }
    Ok(())
}

#[test]
fn a_port_that_is_taken() -> Result {
    let (_test, peer) = peer_test()?;
    let ep = listen(&peer)?;
    let taken = Ep::listen(&peer, &addr(), ep.get_port()).expect_err("taken");
    let words = ["choose another"];
    assert_reported(taken, "rdma_bind_addr", Errno::ADDRINUSE, &words);
    Ok(())
}

#[test]
fn persistent_memory_that_is_not_there_or_too_small() -> Result {
    let _test = device_test();
    let missing = PmemMap::open("/dev/dax-there-is-none", 1).expect_err("missing");
    assert_says(&missing, &["/dev/dax-there-is-none"]);
    let small = PmemMap::open(devdax(), usize::MAX);
    assert_invalid(small, &[&devdax(), &usize::MAX.to_string()]);
    let small = file(&ext4(), 4096)?;
    assert!(invalid(PmemMap::open(&small, 4097)).contains("4096"));
    Ok(())
}

/// Promise: the domain is the firmware's word in the kernel, and a page cache has none.
#[test]
#[cfg_attr(feature = "sim", ignore = "on a device only: the kernel's sysfs")]
fn the_persistence_domain_is_read_from_the_kernel() -> Result {
    let _test = device_test();
    let fsdax = file(&fsdax(), 1 << 20)?;
    for path in [devdax(), fsdax.to_str().expect("text").to_owned()] {
        let map = PmemMap::open(&path, 4096)?;
        // xtask gives guest 1 this domain, and its firmware counts no unsafe shutdowns.
        let domain = map.persistence_domain()?;
        let words = "memory and its controller (ADR): ";
        assert!(domain.starts_with(words), "{domain}");
        assert_says(&domain, &["persistence_domain is \"memory_controller\""]);
        assert_eq!(map.unsafe_shutdowns()?, None);
    }
    let file = PmemMap::open(file(&ext4(), 4096)?, 4096)?;
    let domain = file.persistence_domain()?;
    assert_eq!(domain, "volatile: an ordinary file");
    Ok(())
}

/// A program that registers a file on a DAX file system must learn why it does not work, and which
/// file does.
#[test]
#[cfg_attr(feature = "sim", ignore = "on a device only: a DAX file system")]
fn a_dax_file_without_on_demand_paging() -> Result {
    let _test = device_test();
    let device = Device::from_addr(&addr(), Side::Local)?;
    let peer = Peer::new(&device)?;
    // If rxe has it one day, the test needs another device.
    assert!(!peer.is_odp_capable() && !device.is_odp_capable()?);
    let path = file(&fsdax(), 1 << 20)?;
    let map = PmemMap::open(&path, 1)?;
    assert_eq!(map.kind(), PmemKind::FsDax);
    let error = Mr::reg(&peer, map, RIGHTS).expect_err("cannot be pinned");
    assert_eq!(error.object.len(), 1 << 20, "the memory comes back");
    let words = ["on-demand paging", "device-DAX"];
    assert_reported(error, "ibv_reg_mr", Errno::OPNOTSUPP, &words);
    Ok(())
}

/// Linux 6.5 and newer do not pin a page-cache mapping for writing; reading from it works.
#[test]
#[cfg_attr(
    feature = "sim",
    ignore = "on a device only: what the kernel does not pin"
)]
fn an_ordinary_file_that_a_peer_wants_to_write() -> Result {
    let (_test, peer) = peer_test()?;
    let path = file(&ext4(), 1 << 20)?;
    let map = PmemMap::open(&path, 1)?;
    assert_eq!(map.kind(), PmemKind::File);
    let error = Mr::reg(&peer, map, RIGHTS).expect_err("cannot be pinned for writing");
    let words = ["6.5", "device-DAX"];
    assert_reported(error.error, "ibv_reg_mr", Errno::FAULT, &words);
    Mr::reg(&peer, error.object, MrUsage::READ_SRC | MrUsage::WRITE_SRC)?;
    Ok(())
}

/// Memory that is volatile, or may be, is refused on every device, and comes back. With
/// `Mr::reg_raw` the caller vouches; a device that looks refuses even then.
#[test]
fn dram_is_not_persistent_memory() -> Result {
    fn refused<M: RegisterableMemory>(peer: &Peer, memory: M) {
        let registered = Mr::reg(peer, memory, MrUsage::FLUSH_TYPE_PERSISTENT);
        assert_unfit(registered, &["reg_raw"]);
    }
    let (_test, peer) = peer_test()?;
    refused(&peer, vec![0; 64]);
    refused(&peer, vec![0; 64].into_boxed_slice());
    refused(&peer, AlignedBuf::zeroed(64)?);
    refused::<Box<dyn RegisterableMemory>>(&peer, Box::new(vec![0; 64]));
    let path = file(&ext4(), 4096)?;
    refused(&peer, PmemMap::open(&path, 1)?);

    let map = || MmapMut::map_anon(4096);
    refused(&peer, map()?);
    refused(&peer, map()?.make_read_only()?);

    let mut vouched = map()?;
    let address = NonNull::new(vouched.as_mut_ptr()).ok_or("mapped")?;
    let usage = MrUsage::FLUSH_TYPE_PERSISTENT;
    // SAFETY: `vouched` is dropped after `registered`, which was made later, and no code uses
    // it meanwhile.
    let registered = unsafe { Mr::reg_raw(&peer, address, vouched.len(), usage) };
    if peer.is_native_flush_capable() {
        let error = registered.expect_err("it is volatile");
        assert_reported(error, "ibv_reg_mr", Errno::INVAL, &["persistent memory"]);
    } else {
        registered?;
    }
    Ok(())
}

#[test]
fn memory_that_cannot_be_registered() -> Result {
    let (_test, peer) = peer_test()?;
    assert_unfit(Mr::reg(&peer, Vec::new(), MrUsage::SEND), &["0 bytes"]);
    let aimless = assert_unfit(Mr::reg(&peer, vec![1, 2], MrUsage::empty()), &["usage"]);
    assert_eq!(aimless, [1, 2], "the memory comes back");
    let read_only = || MmapMut::map_anon(4096).and_then(MmapMut::make_read_only);
    for usage in [MrUsage::READ_DST, MrUsage::WRITE_DST, MrUsage::RECV] {
        assert_unfit(Mr::reg(&peer, read_only()?, usage), &["read-only"]);
    }
    let mr = Mr::reg(&peer, read_only()?, MrUsage::WRITE_SRC | MrUsage::SEND)?;
    assert_invalid(mr.write_at(0, &[1]), &["read-only"]);
    assert_invalid(mr.store_u64(0, 1), &["read-only"]);
    Ok(())
}

#[test]
fn every_kind_of_memory_can_be_registered_and_comes_back() -> Result {
    let _test = device_test();
    fn round_trip<M: RegisterableMemory>(peer: &Peer, memory: M) -> Result<M> {
        let mr = Mr::reg(peer, memory, RIGHTS)?;
        mr.write_at(3, b"here")?;
        let mut bytes = [0; 6];
        mr.read_at(2, &mut bytes)?;
        assert_eq!(&bytes, b"\0here\0");
        mr.store_u64(8, 0x0102_0304_0506_0708)?;
        assert_eq!(mr.load_u64(8)?, 0x0102_0304_0506_0708);
        Ok(mr.dereg()?)
    }
    let peer = peer()?;
    let boxed = round_trip(&peer, vec![0; 64].into_boxed_slice())?;
    assert_eq!(&boxed[3..7], b"here");
    assert_eq!(&round_trip(&peer, vec![0; 64])?[3..7], b"here");
    let aligned = round_trip(&peer, AlignedBuf::zeroed(64)?)?;
    assert_eq!(&aligned.as_slice()[3..7], b"here");
    assert_eq!(&round_trip(&peer, MmapMut::map_anon(64)?)?[3..7], b"here");
    let map = PmemMap::open(devdax(), 4096)?;
    map.write_at(0, &[0; 16])?;
    let map = round_trip(&peer, map)?;
    let mut bytes = [0; 4];
    map.read_at(3, &mut bytes)?;
    assert_eq!(&bytes, b"here");
    Ok(())
}

#[test]
fn ranges_outside_a_region() -> Result {
    let (_test, peer) = peer_test()?;
    let mr = region(&peer, 64, MrUsage::all() - MrUsage::FLUSH_TYPE_PERSISTENT)?;
    let far = remote(&mr);
    const MAX: usize = usize::MAX;
    for (start, end) in [(0, 65), (64, 65), (65, 65), (10, 9), (0, MAX), (MAX, 0)] {
        assert_invalid(mr.slice(start..end), &["64 bytes"]);
        assert_invalid(far.slice(start as u64..end as u64), &["64 bytes"]);
    }
    for (offset, len) in [(0, 65), (64, 1), (MAX, 1), (MAX, 2)] {
        assert_invalid(mr.read_at(offset, &mut vec![0; len]), &["64 bytes"]);
        assert_invalid(mr.write_at(offset, &vec![0; len]), &["64 bytes"]);
    }
    mr.read_at(64, &mut [])?;
    let odd = mr.get_ptr().align_offset(8) + 1;
    assert_invalid(mr.load_u64(odd), &["multiple of 8"]);
    assert_invalid(mr.store_u64(57, 1), &["64 bytes"]);
    Ok(())
}

/// A message longer than the port takes is refused with the limit, also when it is gathered from
/// parts that fit; one of exactly the limit is not. And no length is cut to 32 bits (W-8).
#[test]
fn a_message_that_is_too_long() -> Result {
    const PARTS: usize = 16;
    let (_test, peer) = peer_test()?;
    let cfg = ConnCfg::new().set_max_send_sge(PARTS as u32)?.clone();
    let pair = Pair::with(&peer, &cfg, &ConnCfg::new())?;
    let conn = &pair.client;
    // Virtual memory only: registration would pin it, so the region is made up.
    let len = ((1u64 << 32) + 64).to_le_bytes();
    let make_up = |bytes: &mut [u8]| bytes[8..16].copy_from_slice(&len);
    let far = forged(&region(&peer, 64, RIGHTS)?, make_up);
    let mr = region(&peer, 64, MrUsage::WRITE_SRC)?;
    let written = conn.write(far.slice(..)?, mr.slice(..)?, ALWAYS, 1);
    assert_invalid(written, &["64 bytes and the remote part 4294967360"]);

    // The same memory again and again is as long as it takes.
    let mr = region(&peer, (1 << 27) + 1, MrUsage::WRITE_SRC | MrUsage::SEND)?;
    let parts = |mut len: usize| {
        [(); PARTS].map(|()| {
            let part = len.min(mr.get_size());
            len -= part;
            mr.slice(..part).expect("inside")
        })
    };
    let write = |len: usize| {
        let to = far.slice(..len as u64).expect("inside");
        conn.write_gather(to, &parts(len), ALWAYS, 1)
    };
    let send = |len: usize| conn.send_gather(&parts(len), ALWAYS, 1);
    let most = PARTS * mr.get_size();
    let text = invalid(write(most));
    assert_eq!(text, invalid(send(most)));
    let said = format!("{most} bytes are more than one message");
    assert!(text.starts_with(&said), "{text}");
    let (_, limit) = text.split_once("can carry (").ok_or("the limit")?;
    let (limit, _) = limit.split_once(')').ok_or("the limit")?;
    let limit: usize = limit.parse()?;
    assert!(limit < most, "{text}");
    let text = text.replace(&most.to_string(), &(limit + 1).to_string());
    assert_eq!(invalid(write(limit + 1)), text);
    assert_eq!(invalid(send(limit + 1)), text);
    no_completion(conn)?;
    // Only looked at: so much data takes its time.
    conn.disconnect()?;
    assert_not_connected(write(limit));
    assert_not_connected(send(limit));
    Ok(())
}

/// Bounded by RLIMIT_MEMLOCK unless the process may lock anything: so it runs without that right.
#[test]
#[cfg_attr(
    feature = "sim",
    ignore = "on a device only: what the kernel does not pin"
)]
fn too_little_lockable_memory() -> Result {
    const CHILD: &str = "RPMA_TEST_WITHOUT_CAP_IPC_LOCK";
    const NAME: &str = "too_little_lockable_memory";
    if env::var_os(CHILD).is_some() {
        let (_test, peer) = peer_test()?;
        let error = Mr::reg(&peer, vec![0; 1 << 20], RIGHTS).expect_err("64 KiB may be locked");
        assert_eq!(error.object.len(), 1 << 20, "the memory comes back");
        assert_reported(error, "ibv_reg_mr", Errno::NOMEM, &["RLIMIT_MEMLOCK"]);
        // Memory that fits still works.
        Mr::reg(&peer, vec![0; 64], RIGHTS)?;
        return Ok(());
    }
    let output = Command::new("setpriv")
        .args(["--bounding-set", "-ipc_lock", "prlimit", "--memlock=65536"])
        .args(alone(module_path!(), NAME))
        .env(CHILD, "1")
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("1 passed"), "{text}");
    Ok(())
}

/// The peer's descriptor is not checked before it is used: a wrong one ends the connection, with a
/// failure that reports it.
#[test]
fn a_descriptor_that_lies() -> Result {
    let (_test, peer) = peer_test()?;
    let source = region(&peer, 64, MrUsage::WRITE_SRC)?;
    let target = region(&peer, 64, MrUsage::READ_SRC)?;
    let lie = forged(&target, |bytes| bytes[20] = MrUsage::all().bits());
    let pair = Pair::new(&peer)?;
    let (part, local) = (lie.slice(..)?, source.slice(..)?);
    pair.client.write(part, local, ALWAYS, 7)?;
    assert_eq!(outcome(&pair.client, 7)?, refused());
    Ok(())
}
