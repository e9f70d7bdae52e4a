//! The memory of an example: persistent memory, if a path was given, or else DRAM.
//!
//! # Differences from librpma's
//!
//! * Memory that is not persistent causes an error that names this cause. libpmem crashes.
//! * With an offset into persistent memory, the program initialises the place where its data is.
//!   librpma's initialises base + 2·offset + 17, so the first run reads an empty greeting.
//! * `Mr::advise` is not called for files on a DAX file system. Soft-RoCE before Linux 6.15 cannot
//!   register such files at all, and a device with on-demand paging registers them without advice,
//!   which only makes the first access faster.
//! * Both programs may use the same persistent memory, if the client gets an offset of 4096.
//!   librpma's `run-all-examples.sh` has 1024, where the end of the server's data overwrites the
//!   client's signature.

use std::ops::Range;

use anyhow::{Context, Result, anyhow, ensure};
use rpma::pmem::PmemMap;
use rpma::{AlignedBuf, Mr, MrSlice, MrUsage, Peer, RegisterableMemory};

/// Notes on the examples' usage lines.
pub(crate) const NOTES: &str = "\
where <pmem-path> can be:
  - a Device DAX (/dev/dax0.0 for example) or
  - a file on File System DAX (/mnt/pmem/file for example)
";

/// As above, for a server that also takes "on", the word of its operator.
pub(crate) const NOTES_ON: &str = "\
where <pmem-path> can be:
  - a Device DAX (/dev/dax0.0 for example) or
  - a file on File System DAX (/mnt/pmem/file for example)
and \"on\" is your word that what an RDMA device has written there is not lost with the power
";

/// Memory that is not registered yet.
pub(crate) struct Memory {
    owner: Box<dyn RegisterableMemory>,
    /// If the memory is persistent, all of it: for making stores durable.
    map: Option<PmemMap>,
    /// Where the data begins.
    data: usize,
}

/// The contents of an example's memory.
pub(crate) struct Contents<'a> {
    /// Stands before the data in persistent memory, and marks the data as initialised.
    pub(crate) signature: &'a [u8],
    /// The size of the data.
    pub(crate) size: usize,
    /// How the data begins at first; the rest is zeros in DRAM, and anything in persistent memory.
    pub(crate) initial: &'a [u8],
}

impl Memory {
    /// DRAM with its data at `data`.
    pub(crate) fn dram(data: usize, contents: &Contents<'_>) -> Result<Self> {
        log::info!("No <pmem-path> provided. Using DRAM instead.");
        let mut memory = AlignedBuf::zeroed(data + contents.size)?;
        memory.as_mut_slice()[data..][..contents.initial.len()].copy_from_slice(contents.initial);
        Ok(Self {
            owner: Box::new(memory),
            map: None,
            data,
        })
    }

    /// The persistent memory at `path`: at `offset` the signature, then the data. The data of an
    /// earlier run stays, if the signature is there.
    pub(crate) fn pmem(path: &str, offset: usize, contents: &Contents<'_>) -> Result<Self> {
        let Contents {
            signature,
            size,
            initial,
        } = *contents;
        let needed = offset.checked_add(signature.len() + size);
        let map = PmemMap::open(path, needed.context("the offset is too large")?)?;
        let data = offset + signature.len();
        ensure!(
            map.is_pmem(),
            "{path} is not an actual PMEM: it is an {}",
            map.kind()
        );
        let mut found = vec![0; signature.len()];
        map.read_at(offset, &mut found)?;
        if found != signature {
            // The signature comes last, and only when the data is safe: if the power fails
            // meanwhile, the next run finds good data after a signature, or no signature.
            map.write_at(data, initial)?;
            map.persist(data..data + initial.len())?;
            map.write_at(offset, signature)?;
            map.persist(offset..data)?;
        }
        Ok(Self {
            map: Some(map.part(..)?),
            owner: Box::new(map),
            data,
        })
    }

    /// Whether it is persistent memory.
    pub(crate) fn is_pmem(&self) -> bool {
        self.map.is_some()
    }

    /// Registers all of the memory, so that the device can reach it.
    pub(crate) fn register(self, peer: &Peer, usage: MrUsage) -> Result<Region> {
        Ok(Region {
            mr: Mr::reg(peer, self.owner, usage).map_err(rpma::Error::from)?,
            map: self.map,
            data: self.data,
        })
    }
}

/// Registered memory. Offsets count from where the data begins.
pub(crate) struct Region {
    mr: Mr<Box<dyn RegisterableMemory>>,
    map: Option<PmemMap>,
    data: usize,
}

impl Region {
    /// Returns the place of byte `at` of the data in the memory region, for a peer.
    pub(crate) fn offset_of(&self, at: usize) -> Result<u16> {
        let offset = self.data + at;
        u16::try_from(offset).map_err(|_| {
            anyhow!("the data is at {offset}, beyond the 65535 that a peer can be told")
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

    /// Stores `bytes` at the beginning of the data, and makes them durable.
    pub(crate) fn store(&self, bytes: &[u8]) -> rpma::Result<()> {
        self.mr.write_at(self.data, bytes)?;
        self.persist(0..bytes.len())
    }

    /// Makes a part of the data durable, if the memory is persistent.
    pub(crate) fn persist(&self, range: Range<usize>) -> rpma::Result<()> {
        match &self.map {
            Some(map) => map.persist(self.data + range.start..self.data + range.end),
            None => Ok(()),
        }
    }
}
