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
use std::time::Duration;

use rpma::commit::WriterCfg;
use rpma::serve::ServerCfg;
use rpma::{Durable, FlushType, Identity, PeerCfg};

use crate::format::{LINE, RING};

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
    /// A server that is behind gets the head after the records.
    HeadLast = "head-last",
    /// A record takes the place of one whose outcome is unknown.
    TakesPlace = "takes-place",
    /// A server that came back shows words that may only have been visible.
    TrustsWords = "trusts-words",
    /// A server keeps the records after its tail, which may only have been visible.
    TrustsRecords = "trusts-records",
    /// After a server came back, no commit repeats the tail.
    NoRecount = "no-recount",
    /// A new server counts before the old servers know of it.
    NoJointList = "no-joint-list",
    /// A server that is being replaced still gets commits, and counts.
    KeepsOld = "keeps-old",
    /// A server that comes back while it is replaced joins the others after the change.
    TakesBack = "takes-back",
    /// A list is written over the only one before.
    ListInPlace = "list-in-place",
    /// A new writer believes its settings, and not the lists of the servers.
    IgnoresLists = "ignores-lists",
    /// A change that was cut is finished before enough servers know of it.
    FinishesEarly = "finishes-early",
    /// A new writer that finds a change which was cut asks the servers before it only.
    ReadsOldList = "reads-old-list",
    /// A record that waits for the commit before it does not wake the work that commits it.
    LostWakeUp = "lost-wake-up",
    /// Records that came while a commit was on its way count with it.
    CountsMore = "counts-more",
    /// A server that comes back with empty memory gets only the records after its return.
    KeepsCount = "keeps-count",
    /// A server that comes back counts as one more copy.
    CountsAgain = "counts-again",
    /// A server that comes back counts for the records that it shows, durable or not.
    CountsShown = "counts-shown",
    /// A server that cannot be reached for 25 seconds is given up.
    GivesUp = "gives-up",
    /// Records that wait for copies take no room.
    TakesNoRoom = "takes-no-room",
    /// Servers drop the writer before, and let it come back, whatever the epochs are.
    DropsOnly = "drops-only",
    /// A record that is moved to the beginning of the ring leaves an older one before it.
    KeepsOlder = "keeps-older",
    /// A later writer makes a log where the servers that it reads have none.
    MakesAnew = "makes-anew",
    /// A truncation returns at once if it was called before.
    ForgetsAtOnce = "forgets-at-once",
    /// An empty record is taken, and is not read.
    LosesEmpty = "loses-empty",
    /// The checksum of an entry leaves out its length.
    NoLength = "no-length",
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

    /// The identity of a writer that servers drop and do not refuse.
    pub(crate) fn set_identity(self, identity: &mut Identity) {
        match self {
            Self::SameInstance => identity.instance = 1,
            Self::DropsOnly => (identity.epoch, identity.instance) = (1, 1),
            _ => {}
        }
    }

    /// The limit of attempts to connect.
    pub(crate) fn until_given_up(self, limit: Duration) -> Duration {
        self.either(Self::GivesUp, || Duration::from_secs(25), || limit)
    }

    /// Seals entries whose length alone is wrong.
    pub(crate) fn mend_lengths(self, memory: &mut [u8]) {
        let ring = match self {
            Self::NoLength => &mut memory[RING as usize..],
            _ => return,
        };
        for at in (0..ring.len()).step_by(LINE as usize) {
            let word =
                |at: usize| u32::from_le_bytes(ring[at..at + 4].try_into().expect("4 bytes"));
            let (sum, length) = (word(at), word(at + 4));
            let seal = |length: u32| {
                let entry = ring.get(at + 8..at + 24 + length as usize)?;
                Some(crc32c::crc32c_append(
                    crc32c::crc32c(&length.to_le_bytes()),
                    entry,
                ))
            };
            let is_sealed = (0..32).any(|bit| seal(length ^ 1 << bit) == Some(sum));
            if let Some(sum) = seal(length).filter(|_| is_sealed) {
                ring[at..at + 4].copy_from_slice(&sum.to_le_bytes());
            }
        }
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
