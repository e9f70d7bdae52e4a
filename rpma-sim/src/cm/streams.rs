//! Connections that are TCP streams: those of iWARP devices. The kernel connects their queue pairs,
//! and each end learns of the end of a connection by itself.

use std::sync::MutexGuard;

use rustix::io::Errno;

use super::channel::Kind;
use super::messages::Message;
use super::{Depths, Stage};
use crate::call::Result;
use crate::profile::Tcp;
use crate::qp::QpState;
use crate::state::{Shared, State};
use crate::timer::Timer;
use crate::types::rdma_cm_event_type;

/// Waits until an id's request reaches the host that it goes to, if its connection is to be a TCP
/// stream: the kernel makes a blocking connect (`siw_connect`).
pub(super) fn await_stream<'a>(
    shared: &'a Shared,
    mut state: MutexGuard<'a, State>,
    number: u32,
) -> MutexGuard<'a, State> {
    let limit = state.tcp_of_id(number).map(|tcp| tcp.connects);
    let Some(limit) = limit.filter(|_| state.waits_for_stream(number)) else {
        return state;
    };
    let until = state.clock.now() + limit;
    state.clock.after(limit, Timer::Wake);
    shared.wait_until(state, |state| {
        state.clock.now() >= until || !state.waits_for_stream(number)
    })
}

impl State {
    pub(super) fn tcp_of_id(&self, number: u32) -> Option<&Tcp> {
        let id = self.ids.get(number)?;
        self.profiles[id.host].tcp.as_ref()
    }

    pub(super) fn is_stream(&self, number: u32) -> bool {
        self.tcp_of_id(number).is_some()
    }

    /// Whether an id that may ask for a connection gets no answer from the host.
    fn waits_for_stream(&self, number: u32) -> bool {
        let resolved = self.has_stage(number, &[Stage::RouteResolved]);
        resolved && {
            let (from, to) = self.ends(number);
            !self.reaches(from, to) || !self.reaches(to, from)
        }
    }

    /// Whether an id gets a TCP stream, if it needs one.
    pub(super) fn check_stream(&self, number: u32) -> Result<()> {
        if !self.is_stream(number) || !self.has_stage(number, &[Stage::RouteResolved]) {
            return Ok(());
        }
        if self.waits_for_stream(number) {
            return Err(Errno::TIMEDOUT);
        }
        let dst = self.ids[number].dst.expect("it is resolved");
        let listens = |listener: u32| self.is_stream(listener);
        match self.listener(dst).is_some_and(listens) {
            true => Ok(()),
            false => Err(Errno::CONNREFUSED),
        }
    }

    /// The error of a call for a request that has no client any more.
    pub(super) fn client_is_gone(&self, number: u32) -> Errno {
        let id = &self.ids[number];
        let is_gone = id.stage == Stage::Over && !id.is_client;
        match is_gone && self.is_stream(number) {
            true => Errno::CONNRESET,
            false => Errno::INVAL,
        }
    }

    /// A server accepts a request: its queue pair is connected at once.
    pub(super) fn accept_stream(
        &mut self,
        number: u32,
        depths: Depths,
        qp_num: u32,
        data: &[u8],
    ) -> Result<()> {
        let room = self.private_data(number).reply;
        let may_connect = |state: &Self| {
            let qp = state.qps.get(qp_num)?;
            (qp.state < QpState::ReadyToSend).then_some(())
        };
        if data.len() > room || may_connect(self).is_none() {
            self.reject(number, &[])?;
            if self.qps.get(qp_num).is_some() {
                self.fail_qp(qp_num);
            }
            return Err(Errno::INVAL);
        }
        let (_, to) = self.ends(number);
        let data = self.private_data(number).arrives(data, room);
        let id = &mut self.ids[number];
        // It serves as many reads as the client has asked for, and has no more in flight than the
        // client serves (`siw_accept`).
        id.own = Depths {
            initiator_depth: depths.initiator_depth.min(id.theirs.responder_resources),
            responder_resources: depths.responder_resources.max(id.theirs.initiator_depth),
            ..depths
        };
        id.own_qp = qp_num;
        let (peer, own) = (id.their_qp, id.own);
        let reads = (own.initiator_depth, own.responder_resources);
        self.connect_stream(qp_num, peer, to, reads);
        self.enter(number, Stage::Established);
        self.notify(number, Kind::Established);
        self.send(
            number,
            Message::Reply {
                server: number,
                data,
            },
        );
        Ok(())
    }

    /// A client learns that it was accepted: the kernel connects its queue pair, before the program
    /// reads the event.
    pub(super) fn stream_is_accepted(&mut self, number: u32, data: Vec<u8>) {
        let (_, to) = self.ends(number);
        let id = &self.ids[number];
        let (qp, peer, theirs, server) = (id.own_qp, id.their_qp, id.theirs, id.peer);
        let may_connect = self.qps.get(qp).map(|qp| qp.state < QpState::ReadyToSend);
        if may_connect == Some(true) {
            let reads = (theirs.responder_resources, theirs.initiator_depth);
            self.connect_stream(qp, peer, to, reads);
            self.enter(number, Stage::Established);
            return self.notify(number, Kind::Response(data));
        }
        self.enter(number, Stage::Over);
        self.ids[number].peer = None;
        if let Some(to) = server {
            self.send(number, Message::Closed { to });
        }
        let failed = rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_ERROR.0;
        let status = -Errno::INVAL.raw_os_error();
        self.notify(number, Kind::ByItself(failed, status));
    }

    pub(crate) fn id_of_stream(&self, qp: u32) -> Option<u32> {
        let mut ids = self.ids.iter();
        let own = ids.find(|(_, id)| id.own_qp == qp && id.stage == Stage::Established);
        own.map(|(number, _)| number)
    }

    /// A queue pair leaves its connection, and its id learns that at once. Returns the id at the
    /// other end.
    pub(crate) fn hangs_up(&mut self, qp: u32) -> Option<u32> {
        let own = self.id_of_stream(qp)?;
        self.enter(own, Stage::Over);
        self.notify(own, Kind::Disconnected(0));
        self.ids[own].peer.take()
    }

    /// The stream of an id has ended at the other end.
    pub(crate) fn closed(&mut self, number: u32) {
        let Some(id) = self.ids.get(number) else {
            return;
        };
        let (stage, qp) = (id.stage, id.own_qp);
        match stage {
            Stage::Asked => self.rejected(number, self.profiles[id.host].rejected, &[]),
            // The program does not learn of it before it answers.
            Stage::Requested => {
                self.enter(number, Stage::Over);
                self.ids[number].peer = None;
            }
            Stage::Established => {
                self.enter(number, Stage::Over);
                self.ids[number].peer = None;
                if self.qps.get(qp).is_some() {
                    // Nothing that it has leaves it any more.
                    self.qps[qp].tcp = None;
                    self.fail_qp(qp);
                }
                self.notify(number, Kind::Disconnected(0));
            }
            _ => {}
        }
    }
}
