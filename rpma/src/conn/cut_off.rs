//! Cutting a peer off: [`Conn::cut_off`]. Unlike a drop it returns whether that worked, and the
//! completions.

use std::time::Duration;

use super::Conn;
use crate::error::GivenBack;
use crate::hints::Hint;
use crate::slots::ConnState;
use crate::verbs::{Freed, Wc};

/// Devices that work take less than a millisecond.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);
const NOT_CUT_OFF: Hint = &[
    "The peer may still write",
    "deregister each region that it can reach (Mr::dereg)",
];

impl Conn {
    /// Cuts the peer off: after `Ok`, no data that the peer sends by this connection reaches this
    /// host's memory. Call it before another writer gets the memory.
    ///
    /// The connection takes no more operations, the queue pair enters the error state, all
    /// completions are polled, and the queue pair is destroyed (`ibv_destroy_qp`). `Ok` depends on
    /// that last call alone. Every other failure is logged, and its object is leaked.
    ///
    /// It returns the completions that had not been polled, those of each queue in their order. If
    /// an operation of this side has no completion there and none was polled before, its outcome
    /// is unknown: its bytes may have reached the peer. Do not act on a message whose receive is
    /// among these completions, even if the receive succeeded.
    ///
    /// This takes about a millisecond, and waits neither for the peer nor for the network. It waits
    /// at most a second for a device that does not flush the queues. If the connection uses a
    /// shared receive queue, it also waits for the last receive, as a drop does. On soft-RoCE it
    /// may take some seconds if the peer's host is gone, as [a drop](Conn#dropping) may.
    ///
    /// # Limits
    ///
    /// * It makes no data durable: persist bytes that landed before
    ///   ([`Mr::persist`](crate::Mr::persist)) before you rely on them.
    /// * It does not revoke the key: cut off each connection of the writer, and give each writer a
    ///   [`Peer`](crate::Peer) of its own.
    /// * Requests that arrived before stay in a `Responder`: call
    ///   [`Responder::remove`](crate::commit::Responder::remove) as well.
    ///
    /// Before you cut off a member of a [`Wait`](crate::wait::Wait), take its connection out with
    /// [`Wait::remove`](crate::wait::Wait::remove).
    ///
    /// # Why nothing lands any more
    ///
    /// The error state alone is not enough: the device may still place the packet that it works on.
    /// After `ibv_destroy_qp` no queue pair is left to place it.
    ///
    /// * soft-RoCE (Linux 6.1 and 6.12): `__rxe_cleanup` removes the queue pair from the index by
    ///   which packets find it, and waits for packets that found it before. `rxe_qp_do_cleanup`
    ///   ends the responder's task. The error state only schedules that task (`rxe_qp_error`).
    /// * soft-iWARP (Linux 6.12): bytes are placed only in the callback of the TCP stream, which
    ///   takes a lock of the queue pair to read and gives up in any state but that of a connected
    ///   one (`siw_qp_llp_data_ready`). `siw_destroy_qp` changes the state with that lock held to
    ///   write, and so waits for a callback that is under way.
    /// * Adapters: in the error state queue processing is stopped (InfiniBand specification, volume
    ///   1, table 91). mlx5, for example, also resets the queue pair before it destroys it
    ///   (`destroy_qp_common`).
    ///
    /// # Errors
    ///
    /// [`GivenBack`], with the completions and [`Error::Provider`](crate::Error::Provider), if
    /// `ibv_destroy_qp` fails. Then the peer is not cut off: the queue pair stays for ever, if
    /// possible in the error state, and the peer may still write. The remedy is to deregister each
    /// region that the peer can reach ([`Mr::dereg`](crate::Mr::dereg)). After that its key reaches
    /// no memory.
    pub fn cut_off(mut self) -> Result<Vec<Wc>, GivenBack<Vec<Wc>>> {
        let ends = self.queues.ends;
        log::info!("{ends}: cutting the peer off");
        self.queues.slots.end(ConnState::Closed);
        // Before the completions are polled: the last receive is one of them.
        self.queues.qp.end_shared_receives();
        let mut completions = Vec::new();
        if let Err(error) = self.flush_rest(FLUSH_LIMIT, &mut completions) {
            log::warn!("{ends}: {error}; completions may be missing");
        }
        let Freed { queue_pair, rest } = self.queues.destroy();
        if let Err(error) = rest {
            log::error!("{ends}: {error}; the object is leaked");
        }
        match queue_pair {
            Ok(()) => Ok(completions),
            Err(error) => Err(GivenBack {
                error: error.with_hint(NOT_CUT_OFF),
                object: completions,
            }),
        }
    }
}
