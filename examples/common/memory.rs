//! The memory of an example: persistent memory, if a path was given, or else DRAM.

use std::ops::Range;

use anyhow::{Context, Result, anyhow, ensure};
use rpma::pmem::{Persister, PmemMap};
use rpma::{AlignedBuf, Mr, MrSlice, MrUsage, Peer, RegisterableMemory};

/// What the examples' usage lines leave open.
pub(crate) const NOTES: &str = "\
where <pmem-path> can be:
  - a Device DAX (/dev/dax0.0 for example) or
  - a file on File System DAX (/mnt/pmem/file for example)
";

/// Says that the persistent memory after it was initialised.
const SIGNATURE: &[u8; 17] = b"RPMA_EXAMPLE_SIG\0";

/// Memory that is not registered yet.
pub(crate) struct Memory {
    owner: Box<dyn RegisterableMemory>,
    /// Makes stores durable, if the memory is persistent.
    persister: Option<Persister>,
    /// Where the data begins.
    data: usize,
}

impl Memory {
    /// `size` bytes of DRAM that begin with `initial`.
    pub(crate) fn dram(size: usize, initial: &[u8]) -> Result<Self> {
        log::info!("No <pmem-path> provided. Using DRAM instead.");
        let mut memory = AlignedBuf::zeroed(size)?;
        memory[..initial.len()].copy_from_slice(initial);
        Ok(Self {
            owner: Box::new(memory),
            persister: None,
            data: 0,
        })
    }

    /// The persistent memory at `path`: at `offset` the signature, then `size` bytes of data. What
    /// an earlier run has left there stays; if there is no signature, the data begins with `initial`.
    pub(crate) fn pmem(path: &str, offset: usize, size: usize, initial: &[u8]) -> Result<Self> {
        let needed = offset.checked_add(SIGNATURE.len() + size);
        let map = PmemMap::open(path, needed.context("the offset is too large")?)?;
        let data = offset + SIGNATURE.len();
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
            map.write_at(data, initial)?;
            map.persist(data..data + initial.len())?;
            map.write_at(offset, SIGNATURE)?;
            map.persist(offset..data)?;
        }
        Ok(Self {
            persister: Some(map.persister()),
            owner: Box::new(map),
            data,
        })
    }

    /// Registers all of the memory, so that the device can reach it.
    pub(crate) fn register(self, peer: &Peer, usage: MrUsage) -> Result<Region> {
        Ok(Region {
            mr: Mr::reg(peer, self.owner, usage).map_err(rpma::Error::from)?,
            persister: self.persister,
            data: self.data,
        })
    }
}

/// Registered memory. Offsets count from where the data begins.
pub(crate) struct Region {
    mr: Mr<Box<dyn RegisterableMemory>>,
    persister: Option<Persister>,
    data: usize,
}

impl Region {
    /// Where the data begins in the memory region, as a peer is told.
    pub(crate) fn data_offset(&self) -> Result<u16> {
        u16::try_from(self.data).map_err(|_| {
            anyhow!(
                "the data begins at {}, beyond the 65535 that a peer can be told",
                self.data
            )
        })
    }

    /// With this a peer can use the region.
    pub(crate) fn descriptor(&self) -> [u8; 21] {
        self.mr.get_descriptor()
    }

    /// A part of the data, for an operation.
    pub(crate) fn slice(&self, range: Range<usize>) -> rpma::Result<MrSlice<'_>> {
        self.mr
            .slice(self.data + range.start..self.data + range.end)
    }

    /// The first `N` bytes of the data.
    pub(crate) fn load<const N: usize>(&self) -> rpma::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.mr.read_at(self.data, &mut bytes)?;
        Ok(bytes)
    }

    /// Stores `bytes` at the beginning of the data, and makes them durable where that is possible.
    pub(crate) fn store(&self, bytes: &[u8]) -> rpma::Result<()> {
        self.mr.write_at(self.data, bytes)?;
        match &self.persister {
            Some(persister) => persister.persist(self.data..self.data + bytes.len()),
            None => Ok(()),
        }
    }
}
