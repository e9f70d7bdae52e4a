//! The devices of a fabric as they are, for the state of an exploration.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::Meeting;
use crate::state::State;
use crate::timer::Timer;

impl State {
    /// Notes the state of the devices for the script of an exploration.
    pub(crate) fn note_devices(&self) {
        self.choices
            .with_script(|script| script.devices = self.devices());
    }

    pub(crate) fn note_event(&self, what: &str) {
        self.choices.with_script(|script| {
            // Any thread's call may come next.
            let is_call = ["before ibv_", "before rdma_"]
                .iter()
                .any(|it| what.starts_with(it));
            let what = if is_call { "before a call" } else { what };
            script.event(what, self.power.digest());
        });
    }

    /// Notes a call. Calls of the data path change devices alone.
    pub(crate) fn note_call(&self, call: &'static str, host: usize) {
        const OF_DEVICES: [&str; 5] = [
            "ibv_post",
            "ibv_wr",
            "ibv_poll",
            "ibv_req_notify",
            "ibv_get_cq_event",
        ];
        let is_of_device = OF_DEVICES.iter().any(|name| call.starts_with(name));
        self.choices.with_script(|script| match is_of_device {
            true => {
                script.step(call);
                script.uses_device(host);
            }
            false => script.meet(Meeting::Host(host), call),
        });
    }

    fn devices(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        for (number, qp) in self.qps.iter() {
            (
                number,
                qp.state as u8,
                qp.ignores_polls,
                qp.kept_since.is_some(),
            )
                .hash(&mut hash);
            (qp.kept_slots, qp.unpolled, qp.dead_sends, qp.dead_receives).hash(&mut hash);
            format!("{:?}", qp.waiting).hash(&mut hash);
            for send in &qp.sends {
                (send.wr_id, send.done.is_some(), send.fetched.as_deref()).hash(&mut hash);
                send.way.state().hash(&mut hash);
            }
            let receives = qp.receives.iter().map(|receive| receive.wr_id);
            receives.collect::<Vec<_>>().hash(&mut hash);
            let unsent = qp.tcp.as_ref().map_or(0, |tcp| tcp.unsent.len());
            unsent.hash(&mut hash);
        }
        self.cqs.iter().for_each(|(_, cq)| cq.hash_into(&mut hash));
        self.srqs
            .iter()
            .for_each(|(number, srq)| (number, srq.receives.len()).hash(&mut hash));
        self.late.hash_into(&mut hash);
        self.links
            .strays
            .lengths()
            .for_each(|of| of.hash(&mut hash));
        self.hash_timers(&mut hash);
        hash.finish()
    }

    /// The first request of a queue pair that a delay is about, as a number.
    fn first_of_delay(&self, number: u32, delay: u64) -> u32 {
        let sends = self.qps.get(number).map(|qp| &qp.sends);
        let first = sends.and_then(|sends| sends.iter().position(|send| send.way.is(Some(delay))));
        first.map_or(number, |first| number << 16 | first as u32)
    }

    /// The work that is put off, in its order. The time that is left decides whether later work comes
    /// before it. A few calls more or less make no difference to that.
    fn hash_timers(&self, hash: &mut DefaultHasher) {
        const UNIT: u128 = 100;
        for (left, timer) in self.clock.timers() {
            (left.as_micros() / UNIT).hash(hash);
            match timer {
                Timer::Try { qp, .. } => (1, *qp),
                Timer::Unresolved { id } => (2, *id),
                Timer::Timewait { id } => (3, *id),
                Timer::Unanswered { id, .. } => (4, *id),
                Timer::LastReceive { qp } => (5, *qp),
                Timer::Arrival { qp, delay } => (6, self.first_of_delay(*qp, *delay)),
                Timer::Late { number } => (7, self.late.hash_of(*number) as u32),
                Timer::Wake => (8, 0),
            }
            .hash(hash);
        }
    }
}
