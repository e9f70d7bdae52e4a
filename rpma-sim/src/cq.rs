//! Completion channels and completion queues.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::hash::{Hash, Hasher};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;

use crate::async_events::Element;
use crate::call::{Result, errno_of, minus_one, null};
use crate::handle::{CompChannel, of, of_context};
use crate::pipe::{Pipe, wait_readable};
use crate::power::NO_POWER;
use crate::state::State;
use crate::types::{ibv_comp_channel, ibv_context, ibv_cq, ibv_event_type, ibv_wc};

#[derive(Debug)]
pub(crate) struct Channel {
    object: NonNull<CompChannel>,
    /// The queues with unread events.
    events: VecDeque<u32>,
    pipe: Arc<Pipe>,
    pub(crate) nic: usize,
}

#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) object: NonNull<ibv_cq>,
    pub(crate) nic: usize,
    channel: Option<u32>,
    room: usize,
    completions: VecDeque<Completion>,
    armed: Armed,
    /// Completion events that were read and not acknowledged.
    unread: u32,
    /// As that, of asynchronous events.
    pub(crate) unacknowledged: u32,
}

/// A completion, and the objects that polling it frees.
#[derive(Clone, Copy, Debug)]
struct Completion {
    wc: ibv_wc,
    slots: u32,
}

/// Which completion gives the next event. More than was asked for is never taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Armed {
    Not,
    Solicited,
    Any,
}

impl Cq {
    pub(crate) fn is_empty(&self) -> bool {
        self.completions.is_empty()
    }

    /// All that a program can observe of it.
    pub(crate) fn hash_into(&self, hash: &mut impl Hasher) {
        (self.armed as u8, self.unread).hash(hash);
        for Completion { wc, slots } in &self.completions {
            (wc.wr_id, wc.status.0, slots).hash(hash);
        }
    }
}

impl State {
    /// A request is completed. Polling it frees `slots` of its send queue, of a device that frees
    /// them then.
    pub(crate) fn complete(&mut self, number: u32, wc: ibv_wc, solicited: bool, slots: u32) {
        let cq = &mut self.cqs[number];
        if cq.completions.len() == cq.room {
            // It is lost, and the queue pair goes on (`rxe_cq_post`).
            let nic = cq.nic;
            self.tell(nic, ibv_event_type::IBV_EVENT_CQ_ERR, Element::Cq(number));
            return;
        }
        cq.completions.push_back(Completion { wc, slots });
        let gives_event = match cq.armed {
            Armed::Not => false,
            Armed::Solicited => solicited,
            Armed::Any => true,
        };
        if gives_event {
            cq.armed = Armed::Not;
            if let Some(channel) = cq.channel {
                let channel = &mut self.channels[channel];
                channel.events.push_back(number);
                channel.pipe.add();
            }
        }
    }

    /// Takes the completions of a queue pair out of a queue.
    pub(crate) fn purge(&mut self, cq: u32, qp: u32) {
        let completions = &mut self.cqs[cq].completions;
        completions.retain(|completion| completion.wc.qp_num != qp);
    }

    /// Ends the waits for events of devices without power.
    pub(crate) fn wake_completion_channels(&mut self, host: usize) {
        for channel in self.channels.values_mut() {
            if self.nics[channel.nic].host == host {
                channel.pipe.add();
            }
        }
    }

    fn create_cq(
        &mut self,
        template: ibv_cq,
        nic: usize,
        channel: Option<u32>,
        entries: c_int,
    ) -> Result<*mut ibv_cq> {
        self.call("ibv_create_cq", nic).object()?;
        let asked = u32::try_from(entries).map_err(|_| Errno::INVAL)?;
        if asked == 0 || asked > self.profile(nic).limits.cqe {
            return Err(Errno::INVAL);
        }
        let room = self.profile(nic).room(asked);
        let number = self.cqs.add(|handle| {
            let object = Box::new(ibv_cq {
                handle,
                cqe: room as c_int,
                ..template
            });
            Cq {
                object: NonNull::from(Box::leak(object)),
                nic,
                channel,
                room: room as usize,
                completions: VecDeque::new(),
                armed: Armed::Not,
                unread: 0,
                unacknowledged: 0,
            }
        });
        Ok(self.cqs[number].object.as_ptr())
    }
}

/// `ibv_create_comp_channel(3)`.
pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: by C's rules `context` is that of an id which is bound to its device and not
    // destroyed yet.
    let (shared, nic) = unsafe { of_context(context) };
    let mut state = shared.lock();
    null((|| {
        state.call("ibv_create_comp_channel", nic).object()?;
        let pipe = Arc::new(Pipe::new()?);
        let number = state.channels.add(|number| {
            let object = Box::new(CompChannel {
                ibv: ibv_comp_channel {
                    context,
                    fd: pipe.fd(),
                    refcnt: 0,
                },
                number,
            });
            Channel {
                object: NonNull::from(Box::leak(object)),
                events: VecDeque::new(),
                pipe,
                nic,
            }
        });
        Ok(state.channels[number].object.as_ptr().cast())
    })())
}

/// `ibv_destroy_comp_channel(3)`.
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: by C's rules `channel` is of `ibv_create_comp_channel`, and not destroyed yet.
    let of = unsafe { of(channel) };
    let mut state = of.shared.lock();
    errno_of((|| {
        let fate = state.call("ibv_destroy_comp_channel", of.nic).begin()?;
        let number = Some(of.number);
        if state.cqs.iter().any(|(_, cq)| cq.channel == number) {
            return Err(Errno::BUSY);
        }
        let gone = state.channels.remove(of.number).expect("it is alive");
        // SAFETY: `ibv_create_comp_channel` made it of a box, and by C's rules the caller uses it
        // no more.
        drop(unsafe { Box::from_raw(gone.object.as_ptr()) });
        fate.end()
    })())
}

/// `ibv_create_cq(3)`.
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: by C's rules `context` is that of an id which is bound to its device and not
    // destroyed yet.
    let (shared, nic) = unsafe { of_context(context) };
    // SAFETY: it is not NULL, so by C's rules `channel` is of `ibv_create_comp_channel`, and not
    // destroyed yet.
    let number = (!channel.is_null()).then(|| unsafe { of(channel) }.number);
    let template = ibv_cq {
        context,
        channel,
        cq_context,
        ..Default::default()
    };
    null(shared.lock().create_cq(template, nic, number, entries))
}

/// `ibv_destroy_cq(3)`: it waits until each event that was read is acknowledged.
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: by C's rules `cq` is of `ibv_create_cq`, and not destroyed yet.
    let of = unsafe { of(cq) };
    let mut state = of.shared.lock();
    let number = of.number;
    let begun = (|| {
        let fate = state.call("ibv_destroy_cq", of.nic).begin()?;
        let used = state
            .qps
            .iter()
            .any(|(_, qp)| qp.send_cq == number || qp.recv_cq == number);
        if used { Err(Errno::BUSY) } else { Ok(fate) }
    })();
    let fate = match begun {
        Ok(fate) => fate,
        Err(errno) => return errno_of(Err(errno)),
    };
    if let Some(channel) = state.cqs[number].channel {
        let channel = &mut state.channels[channel];
        let before = channel.events.len();
        channel.events.retain(|event| *event != number);
        for _ in channel.events.len()..before {
            channel.pipe.take();
        }
    }
    state.untell(of.nic, Element::Cq(number));
    let mut state = of.shared.wait_until(state, |state| {
        let cq = &state.cqs[number];
        cq.unread == 0 && cq.unacknowledged == 0
    });
    let gone = state.cqs.remove(number).expect("it is alive");
    // SAFETY: `create_cq` made it of a box, and by C's rules the caller uses it no more.
    drop(unsafe { Box::from_raw(gone.object.as_ptr()) });
    errno_of(fate.end())
}

/// `ibv_req_notify_cq(3)`. Completions that are in the queue already give no event.
pub unsafe extern "C" fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: by C's rules `cq` is of `ibv_create_cq`, and not destroyed yet.
    let of = unsafe { of(cq) };
    let mut state = of.shared.lock();
    errno_of((|| {
        let fate = state.call("ibv_req_notify_cq", of.nic).begin()?;
        let asked = match solicited_only {
            0 => Armed::Any,
            _ => Armed::Solicited,
        };
        let last_counts = state.profile(of.nic).last_arm_counts;
        let armed = &mut state.cqs[of.number].armed;
        *armed = if last_counts {
            asked
        } else {
            asked.max(*armed)
        };
        fate.end()
    })())
}

/// `ibv_get_cq_event(3)`.
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: by C's rules `channel` is of `ibv_create_comp_channel`, and not destroyed yet.
    let of = unsafe { of(channel) };
    let fate = of.shared.lock().call("ibv_get_cq_event", of.nic);
    if let Err(errno) = fate.object() {
        return minus_one(Err(errno));
    }
    loop {
        let mut state = of.shared.lock();
        if state.nics[of.nic].is_dead() {
            return minus_one(Err(NO_POWER));
        }
        let own = &mut state.channels[of.number];
        if let Some(number) = own.events.pop_front() {
            own.pipe.take();
            let queue = &mut state.cqs[number];
            queue.unread += 1;
            let object = queue.object.as_ptr();
            // SAFETY: the queue is in the table, from which `ibv_destroy_cq` takes it before it
            // frees the struct.
            let its_context = unsafe { (*object).cq_context };
            // SAFETY: by C's rules `cq` leads to a place for the result.
            unsafe { cq.write(object) };
            // SAFETY: by C's rules `cq_context` leads to a place for the result.
            unsafe { cq_context.write(its_context) };
            state.choices.with_script(|script| script.step(number));
            return 0;
        }
        let pipe = Arc::clone(&own.pipe);
        drop(state);
        if let Err(errno) = wait_readable(pipe.reader()) {
            return minus_one(Err(errno));
        }
    }
}

/// `ibv_ack_cq_events(3)`.
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: u32) {
    // SAFETY: by C's rules `cq` is of `ibv_create_cq`, and not destroyed yet.
    let of = unsafe { of(cq) };
    let mut state = of.shared.lock();
    let unread = &mut state.cqs[of.number].unread;
    *unread = unread
        .checked_sub(count)
        .expect("more events are acknowledged than were read");
    drop(state);
    of.shared.changed.notify_all();
}

/// `ibv_poll_cq(3)`.
pub unsafe extern "C" fn ibv_poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: by C's rules `cq` is of `ibv_create_cq`, and not destroyed yet.
    let of = unsafe { of(cq) };
    let mut state = of.shared.lock();
    let fate = state.call("ibv_poll_cq", of.nic);
    if fate.begin().is_err() {
        return -1;
    }
    state.run_deferred(of.number);
    let mut polled = 0;
    while polled < entries {
        let Some(next) = state.cqs[of.number].completions.pop_front() else {
            break;
        };
        if let Some(qp) = state.qps.get_mut(next.wc.qp_num) {
            qp.free_slots(next.slots);
        }
        // SAFETY: by C's rules there is room for `entries` completions, and `polled` is less.
        unsafe { wc.wrapping_add(polled as usize).write(next.wc) };
        let (id, status) = (next.wc.wr_id, next.wc.status.0);
        state
            .choices
            .with_script(|script| script.work((id, status)));
        polled += 1;
    }
    if polled > 0 {
        state.stir();
    }
    match fate.end() {
        Ok(()) => polled,
        Err(_) => -1,
    }
}
