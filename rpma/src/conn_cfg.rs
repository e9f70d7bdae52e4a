//! [`ConnCfg`]: how a connection is made (`struct rpma_conn_cfg`).

use std::time::Duration;

use crate::compl_channel::{ComplChannel, CompletionChannel};
use crate::error::{Error, Result};
use crate::srq::Srq;
use crate::verbs::Notify;

/// Holds the settings of a connection. Plain data: it is read when a request is made, and may be
/// changed or dropped afterwards.
///
/// ```no_run
/// # fn main() -> rpma::Result<()> {
/// # use rpma::{Device, Peer, Side};
/// # let peer = Peer::at("192.0.2.1")?;
/// use std::time::Duration;
///
/// use rpma::{ConnCfg, ConnReq};
///
/// let mut cfg = ConnCfg::new();
/// // 64 operations in flight, and receives that complete in a queue of their own.
/// cfg.set_sq_size(64).set_cq_size(64).set_rq_size(16).set_rcq_size(16);
/// // The connection ends after 6 s without a sign of life.
/// cfg.set_keep_alive(Some(Duration::from_secs(6)))?;
/// let request = ConnReq::new(&peer, "192.0.2.7", 7204, &cfg)?;
/// # drop(request);
/// # Ok(())
/// # }
/// ```
///
/// The defaults are librpma's, except those of [`set_retry_count`](Self::set_retry_count) and
/// [`set_min_rnr_timer`](Self::set_min_rnr_timer).
#[doc(alias = "rpma_conn_cfg_delete")]
#[derive(Clone, Debug)]
pub struct ConnCfg {
    timeout: Duration,
    cq_size: u32,
    rcq_size: u32,
    rcq_notify: Notify,
    rcq_channel: Option<(CompletionChannel, u64)>,
    sq_size: u32,
    rq_size: u32,
    max_send_sge: u32,
    max_inline_data: u32,
    compl_channel: ComplChannel,
    srq: Option<Srq>,
    retry_count: u8,
    rnr_retry_count: u8,
    ack_timeout: Option<u8>,
    min_rnr_timer: Option<u8>,
    force_fallback: bool,
    keep_alive: Option<Duration>,
    spin: Duration,
}

impl Default for ConnCfg {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(1000),
            cq_size: 10,
            rcq_size: 0,
            rcq_notify: Notify::Any,
            rcq_channel: None,
            sq_size: 10,
            rq_size: 10,
            max_send_sge: 1,
            max_inline_data: 8,
            compl_channel: ComplChannel::PerCq,
            srq: None,
            retry_count: 6,
            rnr_retry_count: 7,
            ack_timeout: None,
            min_rnr_timer: Some(12),
            force_fallback: false,
            keep_alive: None,
            spin: Duration::ZERO,
        }
    }
}

impl ConnCfg {
    /// Makes the default settings.
    #[doc(alias = "rpma_conn_cfg_new")]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time limit for resolving the address of an outgoing request. The same limit then
    /// holds for resolving its route. The default is 1 s. If a host name has several addresses, the
    /// limit applies to each of them.
    ///
    /// The setting does not limit the peer's answer. It does not limit the look-up of a host name
    /// either: the system resolver's `resolv.conf` does.
    #[doc(alias = "rpma_conn_cfg_set_timeout")]
    pub fn set_timeout(&mut self, limit: Duration) -> &mut Self {
        self.timeout = limit;
        self
    }

    /// See [`set_timeout`](Self::set_timeout).
    #[doc(alias = "rpma_conn_cfg_get_timeout")]
    #[must_use]
    pub fn get_timeout(&self) -> Duration {
        self.timeout
    }

    /// Sets the minimum size of the completion queue. The default is 10.
    ///
    /// It always gets room for every operation that the other queues can hold, so that no
    /// completion is ever lost.
    #[doc(alias = "rpma_conn_cfg_set_cq_size")]
    pub fn set_cq_size(&mut self, entries: u32) -> &mut Self {
        self.cq_size = entries;
        self
    }

    /// See [`set_cq_size`](Self::set_cq_size).
    #[doc(alias = "rpma_conn_cfg_get_cq_size")]
    #[must_use]
    pub fn get_cq_size(&self) -> u32 {
        self.cq_size
    }

    /// Sets the minimum size of a separate completion queue for receives. The queue always gets
    /// room for every receive. If the size is 0, the default, there is no such queue: receives
    /// complete in the main queue. The setting has no effect if a shared receive queue has its own
    /// completion queue ([`SrqCfg::set_rcq_size`](crate::SrqCfg::set_rcq_size)).
    #[doc(alias = "rpma_conn_cfg_set_rcq_size")]
    pub fn set_rcq_size(&mut self, entries: u32) -> &mut Self {
        self.rcq_size = entries;
        self
    }

    /// See [`set_rcq_size`](Self::set_rcq_size).
    #[doc(alias = "rpma_conn_cfg_get_rcq_size")]
    #[must_use]
    pub fn get_rcq_size(&self) -> u32 {
        self.rcq_size
    }

    /// Sets the kind of completions that give events in the completion queue for receives. The
    /// default is [`Notify::Any`]. If the connection has no such queue
    /// ([`set_rcq_size`](Self::set_rcq_size)), making the request with [`Notify::Solicited`] is an
    /// error: in the main queue, it would leave sends without events.
    ///
    /// It is for [`Cq::wait`](crate::Cq::wait), [`Conn::wait`](crate::Conn::wait) and
    /// [`CompletionChannel::wait`]. [`Conn::next`](crate::Conn::next) and
    /// [`Wait::add`](crate::wait::Wait::add) refuse such a queue. See [`Notify::Solicited`] for the
    /// completions without an event, and for the waits that return after a second.
    pub fn set_rcq_notify(&mut self, notify: Notify) -> &mut Self {
        self.rcq_notify = notify;
        self
    }

    /// See [`set_rcq_notify`](Self::set_rcq_notify).
    #[must_use]
    pub fn get_rcq_notify(&self) -> Notify {
        self.rcq_notify
    }

    /// Sets where the completion events arrive. The default is [`ComplChannel::PerCq`];
    /// [`ComplChannel::Shared`] is librpma's shared completion channel.
    #[doc(alias = "rpma_conn_cfg_set_compl_channel")]
    pub fn set_compl_channel(&mut self, channel: ComplChannel) -> &mut Self {
        self.compl_channel = channel;
        self
    }

    /// See [`set_compl_channel`](Self::set_compl_channel).
    #[doc(alias = "rpma_conn_cfg_get_compl_channel")]
    #[must_use]
    pub fn get_compl_channel(&self) -> &ComplChannel {
        &self.compl_channel
    }

    /// Puts the completion queue for receives on this channel, apart from the main queue. Its
    /// events there carry the key. So two threads can serve the connection's two queues. `None`,
    /// the default, puts it on the channel of [`set_compl_channel`](Self::set_compl_channel).
    ///
    /// Making the request is an error if there is no such queue
    /// ([`set_rcq_size`](Self::set_rcq_size)), or with [`ComplChannel::Shared`].
    pub fn set_rcq_channel(&mut self, channel: Option<(CompletionChannel, u64)>) -> &mut Self {
        self.rcq_channel = channel;
        self
    }

    /// See [`set_rcq_channel`](Self::set_rcq_channel).
    #[must_use]
    pub fn get_rcq_channel(&self) -> Option<&(CompletionChannel, u64)> {
        self.rcq_channel.as_ref()
    }

    /// Makes the connection receive from a shared receive queue of the same [`Peer`](crate::Peer).
    /// `None`, the default, gives the connection its own receive queue.
    #[doc(alias = "rpma_conn_cfg_set_srq")]
    pub fn set_srq(&mut self, srq: Option<&Srq>) -> &mut Self {
        self.srq = srq.cloned();
        self
    }

    /// See [`set_srq`](Self::set_srq).
    #[doc(alias = "rpma_conn_cfg_get_srq")]
    #[must_use]
    pub fn get_srq(&self) -> Option<&Srq> {
        self.srq.as_ref()
    }

    /// Sets the maximum number of local buffers per write or send (`max_send_sge`). By default this
    /// is 1. At most 16 are possible, or the device's limit if that is lower.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0.
    pub fn set_max_send_sge(&mut self, parts: u32) -> Result<&mut Self> {
        if parts == 0 {
            return Err(Error::invalid("an operation has at least 1 local part"));
        }
        self.max_send_sge = parts;
        Ok(self)
    }

    /// See [`set_max_send_sge`](Self::set_max_send_sge).
    #[must_use]
    pub fn get_max_send_sge(&self) -> u32 {
        self.max_send_sge
    }

    /// Sets how many bytes an operation with [`Flags::INLINE`](crate::Flags::INLINE) can have. The
    /// default is 8, which every device has. A larger value is checked against the device when the
    /// request is made.
    pub fn set_max_inline_data(&mut self, bytes: u32) -> &mut Self {
        self.max_inline_data = bytes;
        self
    }

    /// See [`set_max_inline_data`](Self::set_max_inline_data).
    #[must_use]
    pub fn get_max_inline_data(&self) -> u32 {
        self.max_inline_data
    }

    /// Sets the number of slots of the send queue: the maximum number of operations that are posted
    /// and not yet polled. The default is 10. See [`Queue::Send`](crate::Queue::Send).
    #[doc(alias = "rpma_conn_cfg_set_sq_size")]
    pub fn set_sq_size(&mut self, slots: u32) -> &mut Self {
        self.sq_size = slots;
        self
    }

    /// See [`set_sq_size`](Self::set_sq_size).
    #[doc(alias = "rpma_conn_cfg_get_sq_size")]
    #[must_use]
    pub fn get_sq_size(&self) -> u32 {
        self.sq_size
    }

    /// Sets how many slots the receive queue has. The default is 10. See
    /// [`Queue::Receive`](crate::Queue::Receive).
    #[doc(alias = "rpma_conn_cfg_set_rq_size")]
    pub fn set_rq_size(&mut self, slots: u32) -> &mut Self {
        self.rq_size = slots;
        self
    }

    /// See [`set_rq_size`](Self::set_rq_size).
    #[doc(alias = "rpma_conn_cfg_get_rq_size")]
    #[must_use]
    pub fn get_rq_size(&self) -> u32 {
        self.rq_size
    }

    /// Sets how often this side sends an unacknowledged message again: 0 to 7. The default is 6.
    /// librpma's default is 7, which means for ever on soft-RoCE: a dead peer is never noticed. It
    /// has no effect on iWARP, where TCP repeats for about 15 minutes: set a
    /// [keep-alive](Self::set_keep_alive) there.
    ///
    /// Each side's setting counts for its own messages. A client's request carries the client's
    /// count, but rpma's accepting side uses its own setting. librpma's accepting side uses the
    /// client's count.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for more than 7: the field has 3 bits.
    pub fn set_retry_count(&mut self, count: u8) -> Result<&mut Self> {
        self.retry_count = three_bits("retry", count)?;
        Ok(self)
    }

    /// See [`set_retry_count`](Self::set_retry_count).
    #[must_use]
    pub fn get_retry_count(&self) -> u8 {
        self.retry_count
    }

    /// Sets how often a message is sent again if the other side has no receive for it: 0 to 6, or
    /// 7 for ever. It has no effect on iWARP, where such a message ends the connection.
    ///
    /// The accepting side's setting counts for the messages of both sides: the client gets it with
    /// the answer. The connecting side's setting counts in one case only: an accepting side with
    /// another library, such as librpma, uses it for its own messages.
    ///
    /// The default is 7, as in librpma. With it, an operation may wait for ever for a live program
    /// that takes no message. If the peer's program has ended, or its host is gone,
    /// [`set_retry_count`](Self::set_retry_count) limits the wait. A finite default would fail
    /// operations if the other program is slow to take its messages. A server that sends to
    /// clients that it does not trust sets a finite count.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for more than 7: the field has 3 bits.
    pub fn set_rnr_retry_count(&mut self, count: u8) -> Result<&mut Self> {
        self.rnr_retry_count = three_bits("rnr retry", count)?;
        Ok(self)
    }

    /// See [`set_rnr_retry_count`](Self::set_rnr_retry_count).
    #[must_use]
    pub fn get_rnr_retry_count(&self) -> u8 {
        self.rnr_retry_count
    }

    /// Sets the time after which an unacknowledged message is sent again: 4.096 µs · 2^`exponent`.
    /// The default, `None`, leaves the exponent to the kernel: 17 on Linux 6.12, about 0.5 s, and
    /// 19 on 6.1. If the [retry count](Self::set_retry_count) is n, this side notices a dead peer
    /// after n + 1 such periods. It has no effect on iWARP.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] outside 1 to 31: the field has 5 bits, and 0 means for ever.
    pub fn set_ack_timeout(&mut self, exponent: Option<u8>) -> Result<&mut Self> {
        if let Some(exponent @ (0 | 32..)) = exponent {
            return Err(Error::invalid(format!(
                "an acknowledge timeout of 4.096 µs · 2^{exponent}: the exponent is 1 to 31"
            )));
        }
        self.ack_timeout = exponent;
        Ok(self)
    }

    /// See [`set_ack_timeout`](Self::set_ack_timeout).
    #[must_use]
    pub fn get_ack_timeout(&self) -> Option<u8> {
        self.ack_timeout
    }

    /// Sets the pause of the **peer** after a message for which this side had no receive. After
    /// the pause the peer sends the message again. The value is a code of the specification: 1 is
    /// 0.01 ms, 12 (the default) is 0.64 ms, 31 is 491.52 ms. `None` or 0 is the longest time,
    /// 655.36 ms, as in librpma.
    ///
    /// It is for receivers that post their receives after the messages come. A short pause delivers
    /// a waiting message soon. A long one sends it fewer times. It has no effect on iWARP, where no
    /// message waits for a receive.
    ///
    /// On soft-RoCE this longest time exceeds the acknowledgement time-out. So a message that waits
    /// for a receive fails after some seconds, as if the peer were dead. If the receiver is a C
    /// program, which uses the longest time, set [`set_ack_timeout`](Self::set_ack_timeout) to at
    /// least 18 on the sending side.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for more than 31: the field has 5 bits.
    pub fn set_min_rnr_timer(&mut self, code: Option<u8>) -> Result<&mut Self> {
        if let Some(code @ 32..) = code {
            return Err(Error::invalid(format!(
                "a minimal rnr timer of code {code}: it is 0 to 31"
            )));
        }
        self.min_rnr_timer = code;
        Ok(self)
    }

    /// See [`set_min_rnr_timer`](Self::set_min_rnr_timer).
    #[must_use]
    pub fn get_min_rnr_timer(&self) -> Option<u8> {
        self.min_rnr_timer
    }

    /// Makes the connection use the fallbacks of flush and atomic write even where the device has
    /// the native operations. The default is `false`.
    ///
    /// [`Conn::flush`](crate::Conn::flush) lists the cases that need it, such as a peer whose
    /// device has no native flush.
    pub fn set_force_fallback(&mut self, force: bool) -> &mut Self {
        self.force_fallback = force;
        self
    }

    /// See [`set_force_fallback`](Self::set_force_fallback).
    #[must_use]
    pub fn get_force_fallback(&self) -> bool {
        self.force_fallback
    }

    /// Ends the connection when the peer gives no sign of life for this time. With `None`, the
    /// default, a lost host of the peer is not noticed while no operation is in flight.
    ///
    /// Set it in a program that only serves, or that has endless retries ([dead
    /// peers](crate::guide::failures#dead-peers)). Each side sets its own. The time counts from
    /// [`ConnEvent::Established`](crate::ConnEvent::Established).
    ///
    /// # Promise
    ///
    /// While the program is in a wait, a silence of this time ends the connection. A silence of
    /// half of this time does not. A connection to a peer that answers never ends, however long it
    /// is idle. A sign of life is a completion of an operation or of a receive. After 3/16 to 6/16
    /// of the time without a sign of life, the library posts a probe: a write of 0 bytes, which
    /// the peer's device answers. On iWARP, where operations complete without an answer, only
    /// receives and probes are signs of life, and a probe is a read
    /// ([`Conn`](crate::Conn#which-completions-are-answers)). A wait that finds a completion at once
    /// looks for no silence, so a program that only writes there calls it until nothing comes. The
    /// send queue has one more slot for the probe. The program does not get its completion.
    ///
    /// The end: the queue pair goes to the error state, so that all operations in flight complete.
    /// After their completions comes [`ConnEvent::Lost`](crate::ConnEvent::Lost) with the status
    /// `-ETIMEDOUT`, and [`Conn::failure`](crate::Conn::failure) is
    /// [`Failure::Silent`](crate::Failure::Silent).
    ///
    /// The device may give up the probe earlier, when its retries are used up. The connection then
    /// ends with [`Failure::Probe`](crate::Failure::Probe), perhaps after less than half of the
    /// time. To prevent this on soft-RoCE, set the retry count to 7, which has no end there.
    ///
    /// # Waits
    ///
    /// These keep watch: [`Wait::next`](crate::wait::Wait::next),
    /// [`Conn::next`](crate::Conn::next), [`Conn::wait_for`](crate::Conn::wait_for),
    /// [`Conn::wait`](crate::Conn::wait), and the waits of [`commit`](crate::commit). An event
    /// loop of another kind calls [`Conn::keep_alive`](crate::Conn::keep_alive).
    /// [`Cq::wait`](crate::Cq::wait), [`CompletionChannel::wait`](crate::CompletionChannel::wait),
    /// [`Conn::wait_ended`](crate::Conn::wait_ended) and
    /// [`Conn::next_event`](crate::Conn::next_event) alone do not. In `rpma-async` the driver
    /// of a reactor keeps watch over all its connections, and no task needs to wait.
    ///
    /// While the program or this host stands still, no connection ends. After such a pause the
    /// library does not end a connection at once: it polls for an answer again, 3/16 of the
    /// keep-alive time later. So an answer that has already arrived counts.
    ///
    /// # Limits
    ///
    /// * The answer comes from the peer's device, for ever if the peer's program is stopped and
    ///   its host lives.
    /// * A probe is executed after the operations before it, and a slow operation delays it. So
    ///   while operations are in flight, some completion must come within three quarters of the
    ///   time.
    /// * A message that waits for a receive of the peer keeps the probe back as well. So a peer
    ///   that posts no receive for this time counts as gone.
    /// * The shortest time is four acknowledgement time-outs
    ///   ([`set_ack_timeout`](Self::set_ack_timeout); by default 2.2 s on Linux 6.12, and 8.6 s on
    ///   6.1), so that a lost packet is repeated in time. On an [adapter](crate#terms) set eight
    ///   time-outs or more: the adapter may wait for up to four time-outs before it repeats a
    ///   packet (InfiniBand specification 9.7.6.1.3). On iWARP the shortest time is 0.8 s: TCP sends
    ///   again after 0.2 s at the earliest.
    ///
    /// A shorter time is refused. If [`set_ack_timeout`](Self::set_ack_timeout) is set, making the
    /// request fails. Otherwise the check needs the kernel's time-out, and comes later. On the
    /// accepting side, [`Request::into_req`](crate::Request::into_req) and
    /// [`Server::admit`](crate::serve::Server::admit) refuse it before they change anything. On
    /// the connecting side, the error comes instead of
    /// [`ConnEvent::Established`](crate::ConnEvent::Established).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] below a millisecond.
    pub fn set_keep_alive(&mut self, silence: Option<Duration>) -> Result<&mut Self> {
        const SHORTEST: Duration = Duration::from_millis(1);
        if let Some(silence) = silence.filter(|silence| *silence < SHORTEST) {
            return Err(Error::invalid(format!(
                "a keep-alive of {silence:?} is too short for any answer of the peer: set {SHORTEST:?} at \
                 least, or None for no keep-alive"
            )));
        }
        self.keep_alive = silence;
        Ok(self)
    }

    /// See [`set_keep_alive`](Self::set_keep_alive).
    #[must_use]
    pub fn get_keep_alive(&self) -> Option<Duration> {
        self.keep_alive
    }

    /// Sets for how long a wait polls the completion queues before it sleeps. The default is 0: a
    /// wait sleeps as soon as the queues are empty, and leaves the processor to others.
    ///
    /// On an [adapter](crate#terms) a completion comes a few microseconds after the post. A wait
    /// that polls for this time finds it without a system call.
    /// [Performance](crate::guide::performance#polling-before-the-sleep) has a way to find a value,
    /// and its price.
    ///
    /// These waits poll for so long: [`Conn::wait_for`](crate::Conn::wait_for),
    /// [`Conn::write_durable`](crate::Conn::write_durable), [`Conn::next`](crate::Conn::next), and
    /// those of [`Writer`](crate::commit::Writer). Those of [`Replicas`](crate::commit::Replicas)
    /// poll for the longest time of their connections, and for 50 ms at most. All other waits
    /// sleep at once, for example [`Wait::next`](crate::wait::Wait::next),
    /// [`Cq::wait`](crate::Cq::wait), [`Conn::wait_ended`](crate::Conn::wait_ended) and
    /// [`Conn::close`](crate::Conn::close). In `rpma-async` no task polls in this way.
    ///
    /// A wait keeps its limit and the steps of a keep-alive, and holds no lock while it polls. It
    /// takes the events of the connection only before and after it polls, so it notices an end at
    /// most this time later. On a simulated clock, 32 polls take 1 µs.
    pub fn set_spin(&mut self, time: Duration) -> &mut Self {
        self.spin = time;
        self
    }

    /// See [`set_spin`](Self::set_spin).
    #[must_use]
    pub fn get_spin(&self) -> Duration {
        self.spin
    }
}

fn three_bits(what: &str, count: u8) -> Result<u8> {
    match count {
        0..=7 => Ok(count),
        _ => Err(Error::invalid(format!(
            "a {what} count of {count}: it is 0 to 7"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_librpmas_but_for_the_endless_retry() {
        let cfg = ConnCfg::new();
        assert_eq!(cfg.get_timeout(), Duration::from_secs(1));
        assert_eq!(
            (cfg.get_cq_size(), cfg.get_sq_size(), cfg.get_rq_size()),
            (10, 10, 10)
        );
        assert_eq!((cfg.get_rcq_size(), cfg.get_max_inline_data()), (0, 8));
        assert!(matches!(cfg.get_compl_channel(), ComplChannel::PerCq));
        assert!(cfg.get_srq().is_none());
        assert_eq!((cfg.get_retry_count(), cfg.get_rnr_retry_count()), (6, 7));
        assert_eq!(cfg.get_min_rnr_timer(), Some(12), "not the longest");
        assert_eq!(cfg.get_ack_timeout(), None);
        assert!(!cfg.get_force_fallback());
        assert_eq!(cfg.get_keep_alive(), None);
        assert_eq!(cfg.get_spin(), Duration::ZERO);
    }

    #[test]
    fn what_the_wire_cannot_carry_is_refused() {
        let mut cfg = ConnCfg::new();
        assert!(cfg.set_retry_count(8).is_err());
        assert!(cfg.set_rnr_retry_count(8).is_err());
        assert!(cfg.set_ack_timeout(Some(0)).is_err());
        assert!(cfg.set_ack_timeout(Some(32)).is_err());
        assert!(cfg.set_ack_timeout(Some(31)).is_ok());
        assert!(cfg.set_max_send_sge(0).is_err());
        assert!(cfg.set_min_rnr_timer(Some(32)).is_err());
        assert!(cfg.set_keep_alive(Some(Duration::ZERO)).is_err());
        assert_eq!(cfg.get_retry_count(), 6, "a refused value changes nothing");
    }
}
