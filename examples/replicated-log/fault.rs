//! Faults that can be put into the log by name, to see them found: `--break NAME`.

use rpma::commit::WriterCfg;
use rpma::serve::ServerCfg;
use rpma::{Durable, FlushType, PeerCfg};

/// A fault, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Fault {
    #[default]
    Nothing,
    /// Commits are visible and not durable.
    Visible,
    /// A replica promises what its platform does not keep.
    Platform,
    /// A record counts as acknowledged when it is posted.
    Posted,
    /// One copy is enough.
    OneCopy,
    /// A record whose limit has passed counts as acknowledged.
    UnknownIsDone,
    /// The tail shows records of the next group, which are not there yet.
    TailAhead,
    /// Room is used again before the truncation is durable.
    RoomEarly,
    /// A new writer reads one replica.
    ReadsOne,
    /// A replica that was replaced counts as one that was read.
    BlankCounts,
    /// The longest log counts as the newest.
    IgnoresEpochs,
    /// A new writer keeps the epoch of the log that it found.
    KeepsEpoch,
    /// Records are returned before enough replicas have them under the new epoch.
    TellsEarly,
    /// A new process uses the instance of the one before.
    SameInstance,
    /// A replica that was away takes commits before it is up to date.
    JoinsEarly,
    /// The last records are copied to a replica while others are committed.
    JoinsUngated,
    /// A replaced replica has its header before its records.
    HeaderFirst,
    /// A replica that has other records shows them while they are overwritten.
    NoSetBack,
    /// After a replica came back, no commit repeats the tail.
    NoRecount,
}

impl Fault {
    /// `with` if this is the fault, and otherwise `without`.
    pub(crate) fn either<T>(self, fault: Self, with: T, without: T) -> T {
        if self == fault { with } else { without }
    }

    /// Settings of writers that only make records visible.
    pub(super) fn set_writers(self, cfg: &mut WriterCfg) -> rpma::Result<()> {
        if self == Self::Visible {
            cfg.set_flush_type(FlushType::Visibility)?;
        }
        Ok(())
    }

    /// Settings of a replica that promises too much.
    pub(super) fn set_server(self, cfg: &mut ServerCfg) {
        if self == Self::Platform {
            cfg.set_platform(PeerCfg::new().set_durable(Durable::DirectWrites));
        }
    }
}
