//! Work completions (`struct ibv_wc`): only the fields that are valid can be read.

use std::fmt;

use rpma_sys as sys;

use crate::posted::{ConnId, Posted};
use crate::status::{WcFailure, WcOpcode, WcStatus};

/// The bit that the opcodes of all receives have (`IBV_WC_RECV`).
const RECEIVE: u32 = WcOpcode::RECV.0;

/// A work completion: the outcome of one operation.
///
/// A failed completion carries only a few valid fields. On soft-RoCE its opcode reads as "send". So
/// the outcome decides which fields can be read: see [`result`](Self::result).
///
/// `Wc::default()` fills the array that [`Cq::get_wc`](crate::Cq::get_wc) polls into.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Wc(sys::ibv_wc);

impl Wc {
    /// Returns the `op_context` that was given when the operation was posted. Always valid.
    #[inline]
    #[must_use]
    pub fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// Returns the operation that completed. It is always valid for operations of the send queue,
    /// even failed ones, and `None` for receives.
    ///
    /// A native flush of more than 2 GiB is posted in parts. If a part fails, each part gives a
    /// completion. Only the completion of the last part has the name that the post returned.
    #[inline]
    #[must_use]
    pub fn posted(&self) -> Option<Posted> {
        if self.0.opcode.0 & RECEIVE != 0 {
            return None;
        }
        // SAFETY: both variants of the union are plain u32s, and any bits are valid.
        let upper = unsafe { self.0.__bindgen_anon_1.imm_data };
        let conn = ConnId::of_halves(self.0.byte_len, upper)?;
        let number = u64::from(self.0.src_qp) | u64::from(self.0.wc_flags) << 32;
        Some(Posted::new(conn, number, true))
    }

    /// Makes this the completion of a send queue's request that has succeeded: puts the program's
    /// `op_context` in the place of our `wr_id`, and the name of the request into fields that
    /// belong to receives. Two stores: the fields lie side by side.
    #[inline(always)]
    pub(crate) fn set_send(&mut self, op_context: u64, conn: ConnId, number: u64) {
        let (lower, upper) = conn.halves();
        self.0.wr_id = op_context;
        self.0.src_qp = number as u32;
        self.0.wc_flags = (number >> 32) as u32;
        self.0.byte_len = lower;
        self.0.__bindgen_anon_1.imm_data = upper;
    }

    /// Makes this the completion of a receive that has succeeded, which has no name.
    #[inline(always)]
    pub(crate) fn set_receive(&mut self, op_context: u64) {
        self.0.wr_id = op_context;
    }

    /// As [`set_send`](Self::set_send), even for a request that has failed: devices leave its
    /// opcode unchanged.
    pub(crate) fn set_any_send(&mut self, op_context: u64, conn: ConnId, number: u64) {
        if self.status() != WcStatus::SUCCESS {
            self.0.opcode = sys::ibv_wc_opcode(WcOpcode::SEND.0);
        }
        self.set_send(op_context, conn, number);
    }

    /// As [`set_receive`](Self::set_receive), even for a receive that has failed.
    pub(crate) fn set_any_receive(&mut self, op_context: u64) {
        if self.status() != WcStatus::SUCCESS {
            self.0.opcode = sys::ibv_wc_opcode(WcOpcode::RECV.0);
        }
        self.set_receive(op_context);
    }

    /// The queue pair is gone, and its number may be another one's.
    pub(crate) fn set_gone(&mut self) {
        self.0.qp_num = 0;
    }

    /// Returns the number of the queue pair, as [`Conn::get_qp_num`](crate::Conn::get_qp_num) does.
    /// Always valid. It is 0 for a completion of a shared receive queue that is polled after its
    /// connection was dropped, because another connection may have the number then.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num
    }

    /// Returns the status. Always valid.
    #[inline]
    #[must_use]
    pub fn status(&self) -> WcStatus {
        WcStatus(self.0.status.0)
    }

    /// Returns the valid fields of an operation that succeeded, or those of one that failed.
    ///
    /// # Errors
    ///
    /// [`WcFailure`] if the status is not [`WcStatus::SUCCESS`]. It is a [`std::error::Error`], so
    /// `?` passes it on. After the first failure of a connection every later operation fails as
    /// well: disconnect or drop the connection.
    pub fn result(&self) -> Result<WcSuccess<'_>, WcFailure> {
        match self.status() {
            WcStatus::SUCCESS => Ok(WcSuccess(&self.0)),
            status => Err(WcFailure::new(
                self.wr_id(),
                self.qp_num(),
                status,
                self.0.vendor_err,
            )),
        }
    }
}

#[cfg(test)]
impl Wc {
    pub(crate) fn for_test(wr_id: u64, status: WcStatus) -> Self {
        Self(sys::ibv_wc {
            wr_id,
            status: sys::ibv_wc_status(status.0),
            ..Default::default()
        })
    }
}

impl fmt::Debug for Wc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.result() {
            Ok(success) => success.fmt(f),
            Err(failure) => failure.fmt(f),
        }
    }
}

/// The completion of an operation that succeeded.
#[derive(Clone, Copy)]
pub struct WcSuccess<'wc>(&'wc sys::ibv_wc);

impl WcSuccess<'_> {
    /// Returns the kind of the operation that completed.
    ///
    /// A fallback flush is a [`WcOpcode::RDMA_READ`], a native one a [`WcOpcode::FLUSH`].
    #[must_use]
    pub fn opcode(&self) -> WcOpcode {
        WcOpcode(self.0.opcode.0)
    }

    /// Returns the length of the received message in bytes. The receive's memory may be longer. The
    /// result is `None` for every completion except that of a received message
    /// ([`WcOpcode::RECV`]). For the notice of a write see [`written_len`](Self::written_len).
    #[must_use]
    pub fn byte_len(&self) -> Option<u32> {
        (self.opcode() == WcOpcode::RECV).then_some(self.0.byte_len)
    }

    /// Returns the number of bytes of the peer's write with immediate data, for the receive that
    /// announces it ([`WcOpcode::RECV_RDMA_WITH_IMM`]). The peer chose this number. The bytes are
    /// not in the receive's memory, which stays unwritten. `None` for every other operation.
    #[must_use]
    pub fn written_len(&self) -> Option<u32> {
        (self.opcode() == WcOpcode::RECV_RDMA_WITH_IMM).then_some(self.0.byte_len)
    }

    /// Returns the immediate data that came with the message, in host byte order. It is `None` for
    /// operations of the send queue.
    #[must_use]
    pub fn imm_data(&self) -> Option<u32> {
        if !self.opcode().is_receive() || self.0.wc_flags & WITH_IMM == 0 {
            return None;
        }
        // SAFETY: by the flag the union holds immediate data; both variants are plain u32s.
        let imm_data = unsafe { self.0.__bindgen_anon_1.imm_data };
        Some(u32::from_be(imm_data))
    }
}

impl fmt::Debug for WcSuccess<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WcSuccess")
            .field("wr_id", &self.0.wr_id)
            .field("qp_num", &self.0.qp_num)
            .field("opcode", &self.opcode())
            .field("byte_len", &self.byte_len())
            .field("written_len", &self.written_len())
            .field("imm_data", &self.imm_data())
            .finish()
    }
}

/// The bit of `wc_flags` with which a completion carries immediate data.
const WITH_IMM: u32 = sys::ibv_wc_flags::IBV_WC_WITH_IMM.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn wc(status: u32) -> Wc {
        Wc(sys::ibv_wc {
            wr_id: 7,
            qp_num: 3,
            status: sys::ibv_wc_status(status),
            ..Default::default()
        })
    }

    #[test]
    fn a_failed_completion_shows_only_what_is_valid() {
        let failure = wc(10).result().expect_err("status 10 is a failure");
        assert_eq!(failure.status, WcStatus::REM_ACCESS_ERR);
        assert_eq!((failure.wr_id, failure.qp_num), (7, 3));
        let text = failure.to_string();
        assert!(text.contains("remote access error"), "{text}");
        assert!(text.contains("set_force_fallback"), "what to do: {text}");
    }

    /// The name stands in fields of receives, which must not show it, and a failure keeps it.
    #[test]
    fn a_send_keeps_its_name_and_a_receive_has_none() {
        let conn = ConnId::new();
        for (status, number) in [(0, 3), (5, u64::from(u32::MAX) + 2), (12, (1 << 61) - 1)] {
            let mut raw = wc(status);
            raw.set_send(9, conn, number);
            assert_eq!(raw.posted(), Some(Posted::new(conn, number, true)));
            assert_eq!((raw.wr_id(), raw.qp_num()), (9, 3));
            if let Ok(success) = raw.result() {
                assert_eq!(success.imm_data(), None);
            }
        }
        let mut receive = wc(0);
        receive.0.opcode = sys::ibv_wc_opcode::IBV_WC_RECV;
        receive.0.wc_flags = WITH_IMM;
        receive.0.__bindgen_anon_1.imm_data = 7_u32.to_be();
        // A device fills in fields of datagrams as it likes.
        (receive.0.slid, receive.0.pkey_index, receive.0.src_qp) = (1, 2, 3);
        receive.set_receive(9);
        assert_eq!((receive.wr_id(), receive.posted()), (9, None));
        assert_eq!(receive.result().expect("success").imm_data(), Some(7));
    }

    #[test]
    fn unknown_codes_stay_numbers() {
        let failure = wc(4711)
            .result()
            .expect_err("an unknown status is a failure");
        assert_eq!(failure.status, WcStatus(4711));
        assert_eq!(failure.status.to_string(), "unknown code 4711");
        assert_eq!(format!("{:?}", WcOpcode(77)), "WcOpcode(77)");
    }

    #[test]
    fn immediate_data_is_converted_from_network_order() {
        let mut raw = wc(0);
        assert_eq!(raw.result().expect("success").imm_data(), None);
        raw.0.wc_flags = WITH_IMM;
        raw.0.__bindgen_anon_1.imm_data = 0x0102_0304_u32.to_be();
        assert_eq!(
            raw.result().expect("success").imm_data(),
            None,
            "a send has none"
        );
        raw.0.opcode = sys::ibv_wc_opcode::IBV_WC_RECV;
        assert_eq!(raw.result().expect("success").imm_data(), Some(0x0102_0304));
    }

    /// A program may cut its receive's memory to the reported length: the peer must not choose that
    /// length.
    #[test]
    fn the_length_of_a_write_is_not_that_of_a_receive() {
        let mut raw = wc(0);
        raw.0.byte_len = 4096;
        for (opcode, lengths) in [
            (WcOpcode::RECV, (Some(4096), None)),
            (WcOpcode::RECV_RDMA_WITH_IMM, (None, Some(4096))),
            (WcOpcode::SEND, (None, None)),
            (WcOpcode::RDMA_READ, (None, None)),
        ] {
            raw.0.opcode = sys::ibv_wc_opcode(opcode.0);
            let success = raw.result().expect("success");
            assert_eq!((success.byte_len(), success.written_len()), lengths);
        }
    }

    #[test]
    fn the_codes_are_the_headers() {
        assert_eq!(WcOpcode::RECV.0, sys::ibv_wc_opcode::IBV_WC_RECV.0);
        assert_eq!(
            WcOpcode::RDMA_READ.0,
            sys::ibv_wc_opcode::IBV_WC_RDMA_READ.0
        );
        assert_eq!(
            WcStatus::REM_ACCESS_ERR.0,
            sys::ibv_wc_status::IBV_WC_REM_ACCESS_ERR.0
        );
        assert_eq!(
            WcStatus::GENERAL_ERR.0,
            sys::ibv_wc_status::IBV_WC_GENERAL_ERR.0
        );
        #[cfg(native_flush)]
        assert_eq!(WcOpcode::FLUSH.0, sys::ibv_wc_opcode::IBV_WC_FLUSH.0);
        #[cfg(native_atomic_write)]
        assert_eq!(
            WcOpcode::ATOMIC_WRITE.0,
            sys::ibv_wc_opcode::IBV_WC_ATOMIC_WRITE.0
        );
    }
}
