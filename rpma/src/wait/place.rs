//! [`Place`]: the settings that put a connection's queues on a wait; and the descriptors of the
//! wait.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::epoll;

use super::inbox::Inbox;
use super::member::{Member, Members};
use crate::clock;
use crate::compl_channel::{ComplChannel, CompletionChannel};
use crate::conn_cfg::ConnCfg;
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::peer::Peer;
use crate::srq::SrqCfg;
use crate::verbs::{CompChannel, DeviceWatch};

/// A place for one connection, or for one shared receive queue, in a [`Wait`](super::Wait).
///
/// A completion queue reports to one channel as long as it lives. So the queues of a connection
/// must be made on the channel of their wait: [`cfg`](Self::cfg) returns the settings for that.
/// Make one connection for a place, and [add](super::Wait::add) it with that place. Dropping a
/// place gives it back.
pub struct Place {
    pub(super) member: Member,
    pub(super) channels: Arc<Channels>,
    pub(super) is_used: bool,
}

impl Place {
    /// Returns a copy of `cfg` for one connection, whose queues report to the wait of this place.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the settings name a completion channel
    /// ([`ConnCfg::set_compl_channel`], [`ConnCfg::set_rcq_channel`]). [`Error::Provider`] if this
    /// is the first place of a device and `ibv_create_comp_channel` or `epoll_ctl` fails.
    pub fn cfg(&self, peer: &Peer, cfg: &ConnCfg) -> Result<ConnCfg> {
        let has_channel = !matches!(cfg.get_compl_channel(), ComplChannel::PerCq);
        if has_channel || cfg.get_rcq_channel().is_some() {
            return Err(Error::invalid(
                "the settings name a completion channel, and a Place puts the queues on its own: leave out \
                 ConnCfg::set_compl_channel and set_rcq_channel",
            ));
        }
        let mut cfg = cfg.clone();
        cfg.set_compl_channel(ComplChannel::Of {
            channel: self.channels.of(peer)?,
            key: self.member.key(),
        });
        Ok(cfg)
    }

    /// As [`cfg`](Self::cfg), for a shared receive queue with a completion queue of its own.
    ///
    /// # Errors
    ///
    /// As [`cfg`](Self::cfg), and [`Error::InvalidArgument`] if the settings ask for no completion
    /// queue ([`SrqCfg::set_rcq_size`]): its receives complete in the connections' queues then.
    pub fn srq_cfg(&self, peer: &Peer, cfg: &SrqCfg) -> Result<SrqCfg> {
        if cfg.get_compl_channel().is_some() || cfg.get_rcq_size() == 0 {
            return Err(Error::invalid(
                "a Place is for a shared receive queue that has a completion queue \
                 (SrqCfg::set_rcq_size) and names no completion channel (SrqCfg::set_compl_channel)",
            ));
        }
        let mut cfg = cfg.clone();
        cfg.set_compl_channel(Some((self.channels.of(peer)?, self.member.key())));
        Ok(cfg)
    }

    pub(super) fn is_of(&self, cq: &Cq) -> bool {
        let queue = cq.queue();
        let is_here = |each: &ChannelOfDevice| Arc::ptr_eq(each.channel.channel(), queue.channel());
        queue.tag().key == self.member.key() && self.channels.lock().iter().flatten().any(is_here)
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place")
            .field("member", &self.member)
            .finish_non_exhaustive()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_used {
            self.channels.inbox.leave(self.member);
        }
    }
}

/// Which descriptor is readable: the data of the wait's epoll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Member(Member),
    /// The completion channel of the device with this number.
    Channel(u32),
    /// The events of that device itself.
    Device(u32),
    Inbox,
}

impl Source {
    const CHANNELS: u64 = 0;
    const DEVICES: u64 = 1;
    const INBOX: u64 = 2;
    const NUMBER: u32 = 28;

    fn data(self) -> epoll::EventData {
        let other = |kind: u64, number: u32| {
            (kind << Self::NUMBER | u64::from(number)) << 32 | u64::from(Members::NO_INDEX)
        };
        epoll::EventData::new_u64(match self {
            Self::Member(member) => member.key(),
            Self::Channel(number) => other(Self::CHANNELS, number),
            Self::Device(number) => other(Self::DEVICES, number),
            Self::Inbox => other(Self::INBOX, 0),
        })
    }

    pub(super) fn of(data: epoll::EventData) -> Self {
        let data = data.u64();
        if data as u32 != Members::NO_INDEX {
            return Self::Member(Member::of_key(data));
        }
        let number = (data >> 32) as u32 & ((1 << Self::NUMBER) - 1);
        match data >> 32 >> Self::NUMBER {
            Self::CHANNELS => Self::Channel(number),
            Self::DEVICES => Self::Device(number),
            _ => Self::Inbox,
        }
    }
}

/// The descriptors of a wait: its epoll, and a completion channel for each of its devices.
#[derive(Debug)]
pub(super) struct Channels {
    epoll: OwnedFd,
    pub(super) inbox: Arc<Inbox>,
    devices: Mutex<Vec<Option<ChannelOfDevice>>>,
}

#[derive(Clone, Debug)]
pub(super) struct ChannelOfDevice {
    pub(super) channel: CompletionChannel,
    _watch: Arc<DeviceWatch>,
}

impl Channels {
    pub(super) fn new() -> Result<Self> {
        let flags = epoll::CreateFlags::CLOEXEC;
        let channels = Self {
            epoll: epoll::create(flags).map_err(|errno| Error::provider("epoll_create1", errno))?,
            inbox: Arc::new(Inbox::new()?),
            devices: Mutex::default(),
        };
        channels.watch(channels.inbox.as_fd(), Source::Inbox)?;
        Ok(channels)
    }

    /// The channel of the device of `peer`. The first call for a device makes it.
    fn of(&self, peer: &Peer) -> Result<CompletionChannel> {
        let mut devices = self.lock();
        let of_device = |device: &&ChannelOfDevice| device.channel.for_peer(peer).is_ok();
        if let Some(device) = devices.iter().flatten().find(of_device) {
            return Ok(device.channel.clone());
        }
        let number = devices.len() as u32;
        let channel = CompletionChannel::new(peer)?;
        self.watch(channel.as_fd(), Source::Channel(number))?;
        // Last: this descriptor stays open if the rest fails.
        self.watch(channel.channel().device_fd(), Source::Device(number))?;
        let (inbox, name) = (
            Arc::clone(&self.inbox),
            peer.pd().context().name().to_owned(),
        );
        let told = Arc::new(move |kind| inbox.post_device(&name, kind));
        devices.push(Some(ChannelOfDevice {
            _watch: Arc::new(channel.channel().watch_device(told)),
            channel: channel.clone(),
        }));
        Ok(channel)
    }

    pub(super) fn device(&self, number: u32) -> Option<ChannelOfDevice> {
        self.lock().get(number as usize)?.clone()
    }

    /// Forgets a channel, which is of no more use.
    pub(super) fn give_up(&self, number: u32, channel: &CompChannel) {
        self.unwatch(channel.as_fd());
        self.unwatch(channel.device_fd());
        if let Some(device) = self.lock().get_mut(number as usize) {
            *device = None;
        }
    }

    pub(super) fn watch(&self, fd: BorrowedFd<'_>, source: Source) -> Result<()> {
        let flags = epoll::EventFlags::IN;
        epoll::add(&self.epoll, fd, source.data(), flags)
            .map_err(|errno| Error::provider("epoll_ctl", errno))
    }

    pub(super) fn unwatch(&self, fd: BorrowedFd<'_>) {
        if let Err(errno) = epoll::delete(&self.epoll, fd) {
            log::debug!("epoll_ctl: {errno}");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<ChannelOfDevice>>> {
        clock::lock(&self.devices)
    }
}

impl AsFd for Channels {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_comes_back_from_its_data() {
        for source in [
            Source::Member(Member::of_key(0)),
            Source::Member(Member::of_key(u64::MAX - 1)),
            Source::Channel(0),
            Source::Channel(3),
            Source::Device(0),
            Source::Device(7),
            Source::Inbox,
        ] {
            assert_eq!(Source::of(source.data()), source);
        }
    }
}
