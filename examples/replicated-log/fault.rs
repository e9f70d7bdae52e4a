//! Faults that can be put into the log by name, to see them found: `--break NAME`.

/// A fault, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    pub(crate) const ALL: [(&'static str, Self); 18] = [
        ("visible", Self::Visible),
        ("platform", Self::Platform),
        ("posted", Self::Posted),
        ("one-copy", Self::OneCopy),
        ("unknown-is-done", Self::UnknownIsDone),
        ("tail-ahead", Self::TailAhead),
        ("room-early", Self::RoomEarly),
        ("reads-one", Self::ReadsOne),
        ("blank-counts", Self::BlankCounts),
        ("ignores-epochs", Self::IgnoresEpochs),
        ("keeps-epoch", Self::KeepsEpoch),
        ("tells-early", Self::TellsEarly),
        ("same-instance", Self::SameInstance),
        ("joins-early", Self::JoinsEarly),
        ("joins-ungated", Self::JoinsUngated),
        ("header-first", Self::HeaderFirst),
        ("no-set-back", Self::NoSetBack),
        ("no-recount", Self::NoRecount),
    ];

    /// The fault of this name.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        if name == "nothing" {
            return Ok(Self::Nothing);
        }
        let found = Self::ALL.iter().find(|(of, _)| *of == name);
        let names = || Self::ALL.map(|(name, _)| name).join(", ");
        found.map_or_else(
            || Err(format!("the faults are {}", names())),
            |(_, fault)| Ok(*fault),
        )
    }
}
