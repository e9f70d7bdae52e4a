//! The kinds of requests, and the `wr_id` with which a request is posted.

/// In the send queue, entries for [`Kind::AllSent`], [`Kind::SendsFlushed`] and [`Kind::Probe`].
pub(crate) const SEND_MARKERS: u32 = 3;
/// In the receive queue, an entry for [`Kind::ReceivesFlushed`].
pub(crate) const RECEIVE_MARKERS: u32 = 1;

/// The kind of a work request: the upper bits of its `wr_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Kind {
    /// A request of the send queue.
    ///
    /// 0, so that the number of the entry is the whole `wr_id` already.
    Send = 0,
    /// A request of the connection's own receive queue.
    Receive = 1,
    SharedReceive = 2,
    /// The marker after all operations.
    AllSent = 3,
    /// The marker after the last send that is flushed.
    SendsFlushed = 4,
    /// The marker after the last receive.
    ReceivesFlushed = 5,
    /// The question of the keep-alive whether the peer's host is there.
    Probe = 6,
}

impl Kind {
    pub(super) const ALL: [Self; 7] = [
        Self::Send,
        Self::Receive,
        Self::SharedReceive,
        Self::AllSent,
        Self::SendsFlushed,
        Self::ReceivesFlushed,
        Self::Probe,
    ];

    /// The bits of a `wr_id` that have the number.
    pub(super) const NUMBER: u32 = 61;

    #[inline]
    pub(crate) fn wr_id(self, number: u64) -> u64 {
        (self as u64) << Self::NUMBER | number
    }

    /// A marker is the library's own: no program gets its completion.
    pub(crate) fn is_marker(self) -> bool {
        matches!(
            self,
            Self::AllSent | Self::SendsFlushed | Self::ReceivesFlushed | Self::Probe
        )
    }

    /// The bits for a marker that has come, and for one that has succeeded.
    pub(super) fn marker_bits(self) -> (u32, u32) {
        (1 << (2 * self as u64), 2 << (2 * self as u64))
    }

    /// The kind and the number of a request; `None` if it is not ours.
    #[inline]
    pub(crate) fn of(wr_id: u64) -> Option<(Self, u64)> {
        let kind = Self::ALL.get((wr_id >> Self::NUMBER) as usize)?;
        Some((*kind, wr_id & ((1 << Self::NUMBER) - 1)))
    }
}
