//! Events that the kernel sends to an id by itself, without a call of either program.

use rustix::io::Errno;

use super::channel::Kind;
use super::{Id, STALE, Stage};
use crate::fabric::Host;
use crate::state::State;
use crate::types::rdma_cm_event_type as Type;

/// The first number that `enum rdma_cm_event_type` does not have.
const UNKNOWN: u32 = Type::RDMA_CM_EVENT_TIMEWAIT_EXIT.0 + 1;

/// The events that the kernel may send by itself, for tests of all of them. The last one has no
/// name: a later kernel's.
pub(crate) const BY_ITSELF: [u32; 5] = [
    Type::RDMA_CM_EVENT_ADDR_CHANGE.0,
    UNKNOWN,
    Type::RDMA_CM_EVENT_UNREACHABLE.0,
    Type::RDMA_CM_EVENT_REJECTED.0,
    Type::RDMA_CM_EVENT_DEVICE_REMOVAL.0,
];

/// Those that the connection manager of InfiniBand and RoCE sends alone.
const IB_ONLY: [u32; 2] = [BY_ITSELF[2], BY_ITSELF[3]];

/// Those that change nothing.
pub(crate) const NOTICES: [u32; 2] = [BY_ITSELF[0], BY_ITSELF[1]];

impl Host {
    /// Sends an event of the connection manager to the ids of this host, as the kernel does without
    /// a call of a program. Returns the number of ids that get it: those to which the kernel may
    /// send it in their present state.
    ///
    /// | event | gets it | means |
    /// |---|---|---|
    /// | 7 `UNREACHABLE` | a client, from the resolution of its route on | the neighbour has another hardware address (`cma_netevent_callback`) |
    /// | 8 `REJECTED` | a connection that is asked for, or established | the peer's kernel does not know it (`cm_rej_handler`, reason 10) |
    /// | 11 `DEVICE_REMOVAL` | any id that is bound to a device | the device goes (`cma_send_device_removal_put`); here the device stays |
    /// | 14 `ADDR_CHANGE` | any id that is bound to a device | a bond has failed over (`cma_netdev_change`): a notice |
    /// | 16 and more | any id | an event of a later kernel: a notice |
    ///
    /// An id of an iWARP device never gets 7 or 8 by itself.
    ///
    /// The functions are those of Linux 6.12 (drivers/infiniband/core). A rejected connection is
    /// over for this host, and not for its peer. The other events change no state.
    ///
    /// # Panics
    ///
    /// For any other number. The kernel sends those only as the answer to a call, and the simulated
    /// fabric does the same: 0 to 4, 6, 9, 10 and 15. It never sends 5 to an id with a queue pair,
    /// and 12 and 13 only to members of a multicast group.
    pub fn cm_event(&self, event: u32) -> usize {
        self.shared().lock_to_look().cm_event(self.index(), event)
    }
}

impl State {
    pub(crate) fn cm_event(&mut self, host: usize, event: u32) -> usize {
        assert!(
            BY_ITSELF.contains(&event) || event >= UNKNOWN,
            "the kernel never sends the event {event} by itself; it may send {BY_ITSELF:?} and higher numbers"
        );
        let gets = |(number, id): (u32, &Id)| {
            let is_of_iwarp = self.is_stream(number) && IB_ONLY.contains(&event);
            let gets = id.host == host && id.user.is_some() && id.may_get(event);
            (gets && !is_of_iwarp).then_some(number)
        };
        let ids: Vec<u32> = self.ids.iter().filter_map(gets).collect();
        for &number in &ids {
            if event == Type::RDMA_CM_EVENT_REJECTED.0 {
                self.rejected(number, STALE, &[]);
                continue;
            }
            let status = if event == Type::RDMA_CM_EVENT_UNREACHABLE.0 {
                -Errno::TIMEDOUT.raw_os_error()
            } else {
                0
            };
            self.notify(number, Kind::ByItself(event, status));
        }
        ids.len()
    }
}

impl Id {
    fn may_get(&self, event: u32) -> bool {
        const UNREACHABLE: u32 = Type::RDMA_CM_EVENT_UNREACHABLE.0;
        const REJECTED: u32 = Type::RDMA_CM_EVENT_REJECTED.0;
        const REMOVAL: u32 = Type::RDMA_CM_EVENT_DEVICE_REMOVAL.0;
        const CHANGE: u32 = Type::RDMA_CM_EVENT_ADDR_CHANGE.0;
        match event {
            UNREACHABLE => self.is_client_or_resolved() && self.stage != Stage::Over,
            REJECTED => matches!(
                self.stage,
                Stage::Asked | Stage::Accepted | Stage::Answered | Stage::Established
            ),
            REMOVAL | CHANGE => self.nic.is_some(),
            _ => true,
        }
    }

    fn is_client_or_resolved(&self) -> bool {
        self.is_client || self.stage == Stage::RouteResolved
    }
}
