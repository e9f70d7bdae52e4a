//! The responder: it serves the requests that reach it, and refuses some. The other end is
//! [`crate::requester`].

use crate::async_events::Element;
use crate::error_state::failed;
use crate::memory::{Part, access, fetch};
use crate::power::Flow;
use crate::qp::{Operation, Recv, Send};
use crate::state::State;
use crate::types::{
    ibv_event_type, ibv_send_flags, ibv_wc, ibv_wc__bindgen_ty_1, ibv_wc_flags, ibv_wc_opcode,
    ibv_wc_status,
};

/// Why a responder does not serve a request.
pub(crate) enum Refusal {
    NoReceive,
    /// The fields are the status at the requester, and the event that reports it here.
    Denied(ibv_wc_status, ibv_event_type),
}

impl State {
    /// The responder's memory that a request names.
    pub(crate) fn target(
        &self,
        peer: u32,
        send: &Send,
        len: u64,
        right: u32,
    ) -> Result<Option<Part>, Refusal> {
        let qp = &self.qps[peer];
        if qp.rights & right == 0 && self.profile_of(peer).qps_have_rights {
            return Err(invalid_request());
        }
        // Without any bytes the key is not looked at.
        if len == 0 {
            return Ok(None);
        }
        match self.part(qp.pd, send.key, send.address, len, right) {
            Ok(part) => Ok(Some(part)),
            Err(_) => Err(Refusal::Denied(
                ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
                ibv_event_type::IBV_EVENT_QP_ACCESS_ERR,
            )),
        }
    }

    pub(crate) fn serve_read(
        &mut self,
        peer: u32,
        from: u32,
        send: &Send,
    ) -> Result<Vec<u8>, Refusal> {
        let target = self.target(peer, send, send.data.len(), access::REMOTE_READ)?;
        let mut bytes = Vec::new();
        // A read of no bytes reads no memory, and pushes no write.
        if let Some(part) = target {
            self.push_own(from, peer, None);
            self.read_out(part);
            fetch(part, &mut bytes);
        }
        Ok(bytes)
    }

    pub(crate) fn serve(
        &mut self,
        peer: u32,
        from: u32,
        send: &Send,
        bytes: &[u8],
    ) -> Result<(), Refusal> {
        // If a write does not arrive as a whole, its first packet shows that.
        let len = send.data.len();
        match send.operation {
            Operation::Read => unreachable!("it is served elsewhere"),
            Operation::Write(imm) => {
                if imm.is_some() && !self.has_receive(peer) {
                    return Err(Refusal::NoReceive);
                }
                if let Some(part) = self.target(peer, send, len, access::REMOTE_WRITE)? {
                    match imm {
                        None => self.write(bytes, part, (from, peer), send),
                        Some(_) => self.place(bytes, part, Flow::Writes(from), |state| {
                            state.describe(from, send)
                        }),
                    }
                }
                if imm.is_some() {
                    let receive = self.take_receive(peer).expect("there is one");
                    let opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
                    self.received(peer, from, &receive, send, opcode, (bytes.len(), imm));
                }
                Ok(())
            }
            Operation::Send(imm) => self.serve_send(peer, from, send, bytes, imm),
            Operation::Flush { persistent, len } => {
                let right = if persistent {
                    access::FLUSH_PERSISTENT
                } else {
                    access::FLUSH_GLOBAL
                };
                // 32 bits of the length travel (rdma-core's provider). A responder takes up to 2³¹.
                let len = u64::from(len as u32);
                if len > 1 << 31 {
                    return Err(invalid_request());
                }
                if let Some(part) = self.target(peer, send, len, right)? {
                    self.push_own(from, peer, Some(part));
                    if persistent {
                        self.flush_pmem(Flow::Writes(from), part, |state| {
                            state.describe(from, send)
                        });
                    }
                }
                Ok(())
            }
            Operation::AtomicWrite => {
                if send.address % 8 != 0 {
                    return Err(invalid_request());
                }
                let target = self.target(peer, send, len, access::REMOTE_WRITE)?;
                let part = target.expect("it has 8 bytes");
                let host = self.nics[self.qps[peer].nic].host;
                self.land_of(from, host, None);
                self.place(bytes, part, Flow::Writes(from), |state| {
                    state.describe(from, send)
                });
                Ok(())
            }
        }
    }

    /// Whether a responder has served a request. If it refuses, it has failed.
    pub(crate) fn serve_or_fail(
        &mut self,
        peer: u32,
        from: u32,
        send: &Send,
        bytes: &[u8],
    ) -> bool {
        match self.serve(peer, from, send, bytes) {
            Ok(()) => return true,
            Err(Refusal::NoReceive) if !self.is_tcp(peer) => {}
            Err(refusal) => self.terminate(peer, refusal),
        }
        false
    }

    /// A responder has failed, which its device may report.
    pub(crate) fn peer_failed(&mut self, peer: u32, event: ibv_event_type) {
        let nic = self.qps[peer].nic;
        self.fail_qp(peer);
        if self.profile(nic).tells_failures {
            self.tell(nic, event, Element::Qp(peer));
        }
    }

    pub(crate) fn serve_send(
        &mut self,
        peer: u32,
        from: u32,
        send: &Send,
        bytes: &[u8],
        imm: Option<u32>,
    ) -> Result<(), Refusal> {
        let Some(receive) = self.take_receive(peer) else {
            return Err(Refusal::NoReceive);
        };
        let pd = self.qps[peer].pd;
        let room: u64 = receive.sges.iter().map(|sge| u64::from(sge.length)).sum();
        let (at_requester, here) = self.profile_of(peer).too_long;
        let failure = match self.parts(pd, &receive.sges, access::LOCAL_WRITE) {
            Ok(parts) if bytes.len() as u64 <= room => {
                self.scatter(bytes, &parts, from, send);
                let opcode = ibv_wc_opcode::IBV_WC_RECV;
                self.received(peer, from, &receive, send, opcode, (bytes.len(), imm));
                return Ok(());
            }
            Ok(_) => (at_requester, here),
            Err(_) => (
                ibv_wc_status::IBV_WC_REM_OP_ERR,
                self.profile_of(peer).receive_error,
            ),
        };
        let wc = failed(peer, receive.wr_id, failure.1);
        let solicited = self.profile_of(peer).errors_are_solicited;
        self.complete(self.qps[peer].recv_cq, wc, solicited, 0);
        Err(Refusal::Denied(
            failure.0,
            ibv_event_type::IBV_EVENT_QP_REQ_ERR,
        ))
    }

    /// The writes of a queue pair to its peer's memory become visible.
    pub(crate) fn push_own(&mut self, from: u32, peer: u32, part: Option<Part>) {
        let host = self.nics[self.qps[peer].nic].host;
        self.push(Flow::Writes(from), host, part);
    }

    /// Spreads bytes over parts of memory, in order.
    pub(crate) fn scatter(&mut self, mut from: &[u8], to: &[Part], by: u32, send: &Send) {
        for part in to {
            let (these, others) = from.split_at(from.len().min(part.len));
            let flow = match send.operation {
                Operation::Read => Flow::Reads(by),
                _ => Flow::Writes(by),
            };
            self.place(these, *part, flow, |state| state.describe(by, send));
            from = others;
        }
    }

    /// Returns the text of a request for reports.
    pub(crate) fn describe(&self, number: u32, send: &Send) -> String {
        let len = bytes_of(send.data.len());
        let what = match send.operation {
            Operation::Read => format!("a read of {len}"),
            Operation::Write(None) => format!("a write of {len}"),
            Operation::Write(Some(_)) => format!("a write of {len} with immediate data"),
            Operation::Send(_) => format!("a send of {len}"),
            Operation::Flush {
                persistent: true,
                len,
            } => format!("a native flush for persistence of {}", bytes_of(len)),
            Operation::Flush { len, .. } => {
                format!("a native flush for visibility of {}", bytes_of(len))
            }
            Operation::AtomicWrite => "an atomic write".to_owned(),
        };
        let by = send
            .caller
            .map_or_else(String::new, |by| format!(" ({by})"));
        format!("{what}{by} on {}", self.connection(number))
    }

    pub(crate) fn has_receive(&self, number: u32) -> bool {
        let qp = &self.qps[number];
        match qp.srq {
            Some(srq) => !self.srqs[srq].receives.is_empty(),
            None => !qp.receives.is_empty(),
        }
    }

    pub(crate) fn take_receive(&mut self, number: u32) -> Option<Recv> {
        let qp = &mut self.qps[number];
        match qp.srq {
            Some(srq) => self.srqs[srq].receives.pop_front(),
            None => qp.receives.pop_front(),
        }
    }

    pub(crate) fn received(
        &mut self,
        number: u32,
        from: u32,
        receive: &Recv,
        send: &Send,
        opcode: ibv_wc_opcode,
        (len, imm): (usize, Option<u32>),
    ) {
        let flags = match imm {
            Some(_) => ibv_wc_flags::IBV_WC_WITH_IMM.0,
            None => 0,
        };
        let wc = ibv_wc {
            wr_id: receive.wr_id,
            status: ibv_wc_status::IBV_WC_SUCCESS,
            opcode,
            byte_len: len as u32,
            qp_num: number,
            src_qp: from,
            wc_flags: flags,
            __bindgen_anon_1: ibv_wc__bindgen_ty_1 {
                imm_data: imm.unwrap_or(0),
            },
            ..Default::default()
        };
        // The program that polls it sees the earlier writes.
        self.push_own(from, number, None);
        let solicited = send.is(ibv_send_flags::IBV_SEND_SOLICITED);
        self.complete(self.qps[number].recv_cq, wc, solicited, 0);
    }
}

fn invalid_request() -> Refusal {
    Refusal::Denied(
        ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
        ibv_event_type::IBV_EVENT_QP_REQ_ERR,
    )
}

fn bytes_of(len: u64) -> String {
    match len {
        1 => "1 byte".to_owned(),
        _ => format!("{len} bytes"),
    }
}
