//! Faults that tests put into a log by name, to see them found (the feature `faults`).
#![cfg_attr(
    not(feature = "faults"),
    expect(
        dead_code,
        unreachable_pub,
        reason = "without the feature there is no fault"
    )
)]

use std::str::FromStr;

use rpma::commit::WriterCfg;
use rpma::serve::ServerCfg;
use rpma::{Durable, FlushType, PeerCfg};

/// Declares the faults, with their names.
macro_rules! faults {
    ($(#[doc = $doc:literal] $fault:ident = $name:literal,)*) => {
        /// A fault, or none.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Fault {
            $(#[doc = $doc] $fault,)*
        }

        impl Fault {
            /// All of them, and `Nothing`.
            pub const ALL: &[Self] = &[$(Self::$fault),*];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$fault => $name,)*
                }
            }

            /// What it breaks.
            #[must_use]
            pub fn about(self) -> &'static str {
                match self {
                    $(Self::$fault => $doc.trim_ascii(),)*
                }
            }
        }
    };
}

faults! {
    /// No fault.
    Nothing = "nothing",
    /// Commits are visible and not durable.
    Visible = "visible",
    /// A server promises what its platform does not keep.
    Platform = "platform",
    /// A record counts as acknowledged when it is posted.
    Posted = "posted",
    /// One copy is enough.
    OneCopy = "one-copy",
    /// A record whose limit has passed counts as acknowledged.
    UnknownIsDone = "unknown-is-done",
    /// The tail shows records of the next group, which are not there yet.
    TailAhead = "tail-ahead",
    /// Room is used again before the truncation is durable.
    RoomEarly = "room-early",
    /// A new writer reads one server.
    ReadsOne = "reads-one",
    /// A server that was replaced counts as one that was read.
    BlankCounts = "blank-counts",
    /// The longest log counts as the newest.
    IgnoresEpochs = "ignores-epochs",
    /// A new writer keeps the epoch of the log that it found.
    KeepsEpoch = "keeps-epoch",
    /// Records are returned before enough servers have them under the new epoch.
    TellsEarly = "tells-early",
    /// A new process uses the instance of the one before.
    SameInstance = "same-instance",
    /// A server that was away takes commits before it is up to date.
    JoinsEarly = "joins-early",
    /// The last records are copied to a server while others are committed.
    JoinsUngated = "joins-ungated",
    /// A replaced server has its header before its records.
    HeaderFirst = "header-first",
    /// A server that has other records shows them while they are overwritten.
    NoSetBack = "no-set-back",
    /// A server that came back shows words that may only have been visible.
    TrustsWords = "trusts-words",
    /// After a server came back, no commit repeats the tail.
    NoRecount = "no-recount",
    /// A new server counts before the old servers know of it.
    NoJointList = "no-joint-list",
    /// A server that is being replaced still gets commits, and counts.
    KeepsOld = "keeps-old",
    /// A list is written over the only one before.
    ListInPlace = "list-in-place",
    /// A new writer believes its settings, and not the lists of the servers.
    IgnoresLists = "ignores-lists",
    /// A change that was cut is finished before enough servers know of it.
    FinishesEarly = "finishes-early",
    /// A new writer that finds a change which was cut asks the servers before it only.
    ReadsOldList = "reads-old-list",
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|fault| fault.name() == name);
        found.copied().ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|fault| fault.name()).collect();
            format!("no fault has the name {name:?}: {}", names.join(", "))
        })
    }
}

impl Fault {
    /// `with` if this is the fault, and otherwise `without`.
    pub(crate) fn either<T>(
        self,
        fault: Self,
        with: impl FnOnce() -> T,
        without: impl FnOnce() -> T,
    ) -> T {
        if self == fault { with() } else { without() }
    }

    /// Settings of writers that only make records visible.
    pub(crate) fn set_writers(self, cfg: &mut WriterCfg) -> rpma::Result<()> {
        if self == Self::Visible {
            cfg.set_flush_type(FlushType::Visibility)?;
        }
        Ok(())
    }

    /// Settings of a server that promises too much.
    pub(crate) fn set_server(self, cfg: &mut ServerCfg) {
        if self == Self::Platform {
            cfg.set_platform(PeerCfg::new().set_durable(Durable::DirectWrites));
        }
    }
}
