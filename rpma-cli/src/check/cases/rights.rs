//! What the server's device has to refuse: bytes outside a region, a missing right, a wrong key.

use rpma::{Flags, MrRemote, MrUsage};

use super::super::bench::Bench;
use super::Group;
use crate::bytes::pattern;
use crate::client::{InStep, Result, plain};

pub(super) const GROUP: Group = Group {
    name: "rights",
    about: "the device refuses bytes outside a region, a missing right, and a wrong key",
    cases: &[("outside", outside), ("write", write), ("key", key)],
};

/// The fields of a descriptor.
const SIZE: std::ops::Range<usize> = 8..16;
const KEY: usize = 16;
const USAGE: usize = 20;

/// A read, which harms nothing if it is executed.
fn outside(bench: &mut Bench) -> Result<String> {
    let size = bench.arena.get_size();
    let mut descriptor = bench.server.arena.clone();
    descriptor[SIZE].copy_from_slice(&(size + 8).to_le_bytes());
    refused_read(bench, &descriptor, size - 4)
}

fn key(bench: &mut Bench) -> Result<String> {
    let mut descriptor = bench.server.arena.clone();
    // The part of a key that changes with each registration.
    descriptor[KEY] ^= 0x5a;
    refused_read(bench, &descriptor, 0)
}

fn refused_read(bench: &mut Bench, descriptor: &[u8], at: u64) -> Result<String> {
    let region = MrRemote::from_descriptor(descriptor)?;
    let line = bench.line(plain(0, false))?;
    let (src, dst) = (region.slice(at..at + 8)?, bench.own(0, 8)?);
    let read = line.conn.read(dst, src, Flags::COMPLETION_ALWAYS, 0)?;
    line.is_refused(bench, read)
}

/// The region that no client may write to, as if a client might.
pub(super) fn guarded(bench: &Bench) -> Result<MrRemote> {
    let mut descriptor = bench.server.guarded.clone();
    descriptor[USAGE] |= MrUsage::WRITE_DST.bits();
    Ok(MrRemote::from_descriptor(&descriptor)?)
}

fn write(bench: &mut Bench) -> Result<String> {
    let region = guarded(bench)?;
    let line = bench.line(plain(0, false))?;
    bench.put(0, 1, 64)?;
    let (dst, src) = (region.slice(64..128)?, bench.own(0, 64)?);
    let written = line.conn.write(dst, src, Flags::COMPLETION_ALWAYS, 0)?;
    let reason = line.is_refused(bench, written)?;
    is_unchanged(bench).step(|| "the region after a write that was refused".to_owned())?;
    Ok(reason)
}

/// Reads the region that nobody may write to.
fn is_unchanged(bench: &mut Bench) -> Result {
    let region = MrRemote::from_descriptor(&bench.server.guarded)?;
    let len = region.get_size() as usize;
    let line = bench.line(plain(0, false))?;
    let (dst, src) = (bench.local.slice(..len)?, region.slice(..)?);
    let read = line.conn.read(dst, src, Flags::COMPLETION_ALWAYS, 0)?;
    line.wait(read)?;
    bench.compare_local(0, &pattern(bench.server.guarded_seed, len))
}
