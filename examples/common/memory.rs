//! The memory of an example: persistent memory, if a path was given, or else DRAM.

use std::ops::Range;

use anyhow::{Context, Result, anyhow, ensure};
use rpma::pmem::PmemMap;
use rpma::{AlignedBuf, Mr, MrSlice, MrUsage, Peer};

/// What the examples' usage lines leave open.
pub(crate) const NOTES: &str = "\
where <pmem-path> can be:
  - a Device DAX (/dev/dax0.0 for example) or
  - a file on File System DAX (/mnt/pmem/file for example)
";

/// Says that the persistent memory after it was initialised.
const SIGNATURE: &[u8; 17] = b"RPMA_EXAMPLE_SIG\0";

/// Memory that is not registered yet.
pub(crate) enum Memory {
    Dram(AlignedBuf),
    /// The map, and where the data begins in it.
    Pmem(PmemMap, usize),
}

impl Memory {
    /// `size` bytes of DRAM that begin with `initial`.
    pub(crate) fn dram(size: usize, initial: &[u8]) -> Result<Self> {
        log::info!("No <pmem-path> provided. Using DRAM instead.");
        let mut memory = AlignedBuf::zeroed(size)?;
        memory[..initial.len()].copy_from_slice(initial);
        Ok(Self::Dram(memory))
    }

    /// The persistent memory at `path`: at `offset` the signature, then `size` bytes of data. What
    /// an earlier run has left there stays; if there is no signature, the data begins with `initial`.
    pub(crate) fn pmem(path: &str, offset: usize, size: usize, initial: &[u8]) -> Result<Self> {
        let needed = offset.checked_add(SIGNATURE.len() + size);
        let map = PmemMap::open(path, needed.context("the offset is too large")?)?;
        let data_offset = offset + SIGNATURE.len();
        ensure!(
            map.is_pmem(),
            "{path} is not an actual PMEM: it is an {}",
            map.kind()
        );
        let mut found = [0; SIGNATURE.len()];
        map.read_at(offset, &mut found)?;
        if found != *SIGNATURE {
            // The signature comes last, and only when the data is safe: whenever the power fails,
            // the next run finds good data behind a signature, or none.
            map.write_at(data_offset, initial)?;
            map.persist(data_offset..data_offset + initial.len())?;
            map.write_at(offset, SIGNATURE)?;
            map.persist(offset..data_offset)?;
        }
        Ok(Self::Pmem(map, data_offset))
    }

    /// Registers all of the memory, so that the device can reach it.
    pub(crate) fn register(self, peer: &Peer, usage: MrUsage) -> Result<Region> {
        Ok(match self {
            Self::Dram(memory) => Region::Dram(Mr::reg(peer, memory, usage)?),
            Self::Pmem(map, data_offset) => Region::Pmem(Mr::reg(peer, map, usage)?, data_offset),
        })
    }
}

/// Registered memory. Offsets count from where the data begins.
pub(crate) enum Region {
    Dram(Mr<AlignedBuf>),
    Pmem(Mr<PmemMap>, usize),
}

impl Region {
    /// Where the data begins in the memory region, as a peer is told.
    pub(crate) fn data_offset(&self) -> Result<u16> {
        match self {
            Self::Dram(_) => Ok(0),
            Self::Pmem(_, offset) => u16::try_from(*offset).map_err(|_| {
                anyhow!("the data begins at {offset}, beyond the 65535 that a peer can be told")
            }),
        }
    }

    /// With this a peer can use the region.
    pub(crate) fn descriptor(&self) -> [u8; 21] {
        match self {
            Self::Dram(mr) => mr.get_descriptor(),
            Self::Pmem(mr, _) => mr.get_descriptor(),
        }
    }

    /// A part of the data, for an operation.
    pub(crate) fn slice(&self, range: Range<usize>) -> rpma::Result<MrSlice<'_>> {
        match self {
            Self::Dram(mr) => mr.slice(range),
            Self::Pmem(mr, data) => mr.slice(data + range.start..data + range.end),
        }
    }

    /// The first `N` bytes of the data.
    pub(crate) fn load<const N: usize>(&self) -> rpma::Result<[u8; N]> {
        let mut bytes = [0; N];
        match self {
            Self::Dram(mr) => mr.read_at(0, &mut bytes)?,
            Self::Pmem(mr, data) => mr.read_at(*data, &mut bytes)?,
        }
        Ok(bytes)
    }

    /// Stores `bytes` at the beginning of the data, and makes them durable where that is possible.
    pub(crate) fn store(&self, bytes: &[u8]) -> rpma::Result<()> {
        match self {
            Self::Dram(mr) => mr.write_at(0, bytes),
            Self::Pmem(mr, data) => {
                mr.write_at(*data, bytes)?;
                mr.persist(*data..data + bytes.len())
            }
        }
    }
}
