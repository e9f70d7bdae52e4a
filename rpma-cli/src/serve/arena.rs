//! [`Arena`]: the memory that a server offers.

use std::ops::Range;
use std::sync::Arc;

use rpma::pmem::PmemMap;
use rpma::{AlignedBuf, Error, Mr, MrUsage, Offer, Peer, PeerCfg};

use super::contents::Contents;
use crate::args::{Fault, Serve};
use crate::host::{Memory, REFUSED, VOLATILE as VOLATILE_MEMORY};
use crate::problem::{Problem, Result, in_words};
use crate::wire::{ARENA, FIRST, Part};

/// The bytes of a descriptor: an address, a length, a key, and the rights.
const DESCRIPTOR: usize = 21;

const VOLATILE: MrUsage = MrUsage::READ_SRC
    .union(MrUsage::WRITE_DST)
    .union(MrUsage::FLUSH_TYPE_VISIBILITY);

/// Memory that is registered for all that a client does. A check uses its first [`ARENA`] bytes.
pub(super) enum Arena {
    Plain(Mr<AlignedBuf>),
    /// From [`FIRST`] on: no client can write to the marks before that.
    Pmem(Arc<Mr<PmemMap>>, Contents),
}

/// The same for both kinds of memory.
macro_rules! of_region {
    ($arena:expr, $region:ident => $of:expr) => {
        match $arena {
            Self::Plain($region) => $of,
            Self::Pmem($region, _) => $of,
        }
    };
}

impl Arena {
    /// Returns the host's declaration and description of the memory as well.
    pub(super) fn open(peer: &Peer, args: &Serve) -> Result<(Self, PeerCfg, Memory)> {
        let usage = match args.fault {
            Some(Fault::Refuses) => MrUsage::WRITE_DST,
            _ => VOLATILE,
        };
        let size = size(args)?;
        let (arena, platform, (kind, domain, not_persistent)) = match &args.memory {
            None => {
                let domain = "volatile: the server has no --memory";
                (
                    Self::Plain(Mr::reg(peer, AlignedBuf::zeroed(size)?, usage)?),
                    *PeerCfg::new().set_processor_persists(false),
                    ("ordinary memory".to_owned(), domain.to_owned(), None),
                )
            }
            Some(path) => {
                let all = PmemMap::open(path, size)?;
                let (overwrite, gone) = (args.overwrite, args.other_is_gone);
                let contents = Contents::look(path, &all, size, overwrite, gone)?;
                let map = all.part(FIRST as usize..size)?;
                let platform = PeerCfg::detect(&map, peer, args.ddio.into())?;
                let (kind, domain) = (map.kind().to_string(), map.persistence_domain()?);
                let (region, not_persistent) = register(peer, map, usage)?;
                let arena = Self::Pmem(Arc::new(region), contents);
                (arena, platform, (kind, domain, not_persistent))
            }
        };
        let memory = Memory {
            kind,
            domain,
            ddio: args.ddio,
            durable: platform.get_durable(),
            not_persistent,
        };
        Ok((arena, platform, memory))
    }

    /// Before a client can write to the memory.
    pub(super) fn begin(&mut self) -> rpma::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Pmem(_, contents) => contents.begin(),
        }
    }

    /// When no client can write any more. Returns a line for the operator, if there was a mark.
    pub(super) fn end(&mut self) -> rpma::Result<Option<String>> {
        match self {
            Self::Plain(_) => Ok(None),
            Self::Pmem(_, contents) => contents.end(),
        }
    }

    /// The bytes of a part, as the processor sees them.
    pub(super) fn read(&self, part: Part) -> Result<Vec<u8>, String> {
        let range = inside(part)?;
        let mut bytes = vec![0; range.len()];
        let at = range.start - self.before();
        let read = of_region!(self, region => region.read_at(at, &mut bytes));
        read.map(|()| bytes).map_err(in_words)
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), String> {
        let at = inside(Part::new(at, bytes.len()))?.start - self.before();
        of_region!(self, region => region.write_at(at, bytes)).map_err(in_words)
    }

    /// The 8 bytes there, at once. What was written before them is visible afterwards.
    pub(super) fn load(&self, at: u64) -> Result<u64, String> {
        let at = inside(Part::new(at, 8))?.start - self.before();
        of_region!(self, region => region.load_u64(at)).map_err(in_words)
    }

    pub(super) fn add_to(&self, offer: &mut Offer) {
        of_region!(self, region => offer.add_region(region));
    }

    /// The memory, if its processor may make commits durable.
    pub(super) fn persistent(&self) -> Option<&Arc<Mr<PmemMap>>> {
        match self {
            Self::Plain(_) => None,
            Self::Pmem(region, _) => Some(region),
        }
    }

    /// The bytes of the memory before the region.
    fn before(&self) -> usize {
        match self {
            Self::Plain(_) => 0,
            Self::Pmem(..) => FIRST as usize,
        }
    }

    /// Changes an encoded offer: its region has the descriptor for clients, or one with all rights.
    pub(super) fn describe(&self, offer: &mut [u8], has_all_rights: bool) {
        let own = of_region!(self, region => region.get_descriptor());
        let mut descriptor = self.descriptor();
        if has_all_rights {
            descriptor[DESCRIPTOR - 1] = VOLATILE.bits();
        }
        let mut places = offer.windows(DESCRIPTOR);
        if let Some(at) = places.position(|bytes| bytes == own) {
            offer[at..at + DESCRIPTOR].copy_from_slice(&descriptor);
        }
    }

    /// For clients, whose offsets are from the beginning of the memory. The device refuses what is
    /// before the region.
    pub(super) fn descriptor(&self) -> [u8; DESCRIPTOR] {
        let mut descriptor = of_region!(self, region => region.get_descriptor());
        let before = self.before() as u64;
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| descriptor[at + n]));
        let (begin, len) = (number(0) - before, number(8) + before);
        descriptor[..8].copy_from_slice(&begin.to_le_bytes());
        descriptor[8..16].copy_from_slice(&len.to_le_bytes());
        descriptor
    }
}

/// The range of a part that lies behind the mark.
fn inside(part: Part) -> Result<Range<usize>, String> {
    let end = part.at.checked_add(part.len);
    match end.filter(|end| part.at >= FIRST && *end <= ARENA as u64) {
        Some(end) => Ok(part.at as usize..end as usize),
        None => Err(format!("{part:?} is not inside the memory for cases")),
    }
}

/// The bytes to offer.
fn size(args: &Serve) -> Result<usize> {
    let size = usize::try_from(args.size).ok();
    size.filter(|size| *size >= ARENA).ok_or_else(|| {
        Problem::new(
            format!(
                "{} bytes of memory are not possible: a check needs {ARENA}",
                args.size
            ),
            "Give another --size, such as 2m or 1g",
        )
    })
}

/// Registers a map for persistent flushes too, if that is possible. Otherwise the text has the
/// reason.
fn register(peer: &Peer, map: PmemMap, usage: MrUsage) -> Result<(Mr<PmemMap>, Option<String>)> {
    // A right to flush would be one to read.
    let persistent = if usage.contains(VOLATILE) {
        usage | MrUsage::FLUSH_TYPE_PERSISTENT
    } else {
        usage
    };
    match Mr::reg(peer, map, persistent) {
        Ok(region) => Ok((region, None)),
        Err(refused) => {
            let region = Mr::reg(peer, refused.object, usage)?;
            let why = match refused.error {
                Error::Provider { .. } => REFUSED,
                _ => VOLATILE_MEMORY,
            };
            Ok((region, Some(why.to_owned())))
        }
    }
}
