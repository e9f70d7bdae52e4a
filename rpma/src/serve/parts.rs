//! A whole server of equal parts: [`Server::listen`], [`Server::serve`] and [`Server::answer`].
//!
//! [`Parts`] own a [`Peer`] and a region for each key. From an admission on `Keys` holds both as
//! well. The connections are dropped before both.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use super::keys::ALIGN;
use super::{Asked, Layout, Refused, Served, Server, ServerCfg};
use crate::address::Side;
use crate::device::Device;
use crate::ep::Ep;
use crate::error::{Error, Result};
use crate::mr::{Mr, MrUsage};
use crate::peer::Peer;
use crate::pmem::PmemMap;
use crate::refusal::RefusalCode;
use crate::verbs::Wc;

/// The memory of each key of a [`Layout`], registered for clients.
#[derive(Debug)]
pub(super) struct Parts {
    device: Device,
    usage: MrUsage,
    /// From the key 1 on. `None`: it could not be registered again.
    by_key: Vec<Option<KeptPart>>,
    /// The memory of keys that could not be registered again. The next request tries it.
    unregistered: BTreeMap<u64, PmemMap>,
}

#[derive(Clone, Debug)]
struct KeptPart {
    peer: Peer,
    region: Arc<Mr<PmemMap>>,
}

impl Parts {
    /// Registers the part of each key, on this device. Nothing stays registered after an error.
    fn reg(device: &Device, all: &PmemMap, layout: &Layout, usage: MrUsage) -> Result<Self> {
        if all.as_ptr().addr() % ALIGN != 0 {
            return Err(Error::invalid(format!(
                "the memory of a layout must begin at a multiple of {ALIGN}, the length of a cache \
                 line"
            )));
        }
        let mut parts = Self {
            device: device.clone(),
            usage,
            by_key: Vec::new(),
            unregistered: BTreeMap::new(),
        };
        let ranges = (1..).map_while(|key| layout.part(key));
        for range in ranges {
            let kept = parts.register(all.part(range)?).map_err(|lost| lost.0)?;
            parts.by_key.push(Some(kept));
        }
        Ok(parts)
    }

    /// Registers memory with a `Peer` of its own, or gives it back.
    fn register(&self, memory: PmemMap) -> Result<KeptPart, (Error, PmemMap)> {
        let peer = match Peer::new(&self.device) {
            Ok(peer) => peer,
            Err(error) => return Err((error, memory)),
        };
        match Mr::reg(&peer, memory, self.usage) {
            Ok(region) => Ok(KeptPart {
                peer,
                region: Arc::new(region),
            }),
            Err(refused) => Err((refused.error, refused.object)),
        }
    }

    /// Registers the memory of the key at this index, and keeps it if that fails.
    fn register_again(&mut self, at: usize, memory: PmemMap) -> Result<()> {
        match self.register(memory) {
            Ok(kept) => {
                self.by_key[at] = Some(kept);
                Ok(())
            }
            Err((error, memory)) => {
                self.unregistered.insert(at as u64 + 1, memory);
                Err(error)
            }
        }
    }

    fn get(&self, key: u64) -> Option<&KeptPart> {
        self.by_key.get(index(key)?)?.as_ref()
    }

    pub(super) fn region(&self, key: u64) -> Option<&Arc<Mr<PmemMap>>> {
        self.get(key).map(|kept| &kept.region)
    }

    /// The part of a key that asks. Tries its registration again, if that failed.
    fn asked(&mut self, key: u64) -> Result<KeptPart, NoPart> {
        let tried = match (index(key), self.unregistered.remove(&key)) {
            (Some(at), Some(memory)) => self.register_again(at, memory),
            _ => Ok(()),
        };
        self.get(key).cloned().ok_or_else(|| {
            let keys = self.by_key.len();
            let words = match index(key) {
                Some(at) if at < keys => {
                    "the memory of this key could not be registered again".into()
                }
                _ => format!("no memory for this key: the keys are 1 to {keys}"),
            };
            (words, tried.err())
        })
    }
}

/// The words for a client whose key has no part, and the error of its registration.
type NoPart = (String, Option<Error>);

/// The index of a key in [`Parts::by_key`].
fn index(key: u64) -> Option<usize> {
    usize::try_from(key.checked_sub(1)?).ok()
}

/// Completions that [`Server::serve`] polls at most in one turn.
const POLLED: usize = 16;

impl Server {
    /// Makes a server at this address whose keys have equal parts of one memory, and registers the
    /// parts. [`serve`](Self::serve) is its loop.
    ///
    /// The port 0 lets the kernel choose one ([`get_port`](Self::get_port)). The server has the
    /// device of the address. The server declares the platform that it detects from the memory and
    /// the device ([`PeerCfg::detect`], [`ServerCfg::set_ddio`]), unless the settings have a
    /// declaration.
    ///
    /// Clients can use their memory as `usage` permits. Each key has a [`Peer`] of its own. The
    /// directory is in no part, and is never registered.
    ///
    /// The lock of the memory comes first ([`PmemMap::lock`]): of two servers of one memory, the
    /// second one is refused before it registers memory or listens. The directory is opened last
    /// ([`Layout::open_directory`]): if this call fails before, the memory is unchanged.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `all` is shorter than the layout, begins at no multiple of 64,
    /// or has other bytes than a directory of this layout. [`Error::NotSupported`] for commits
    /// ([`ServerCfg::set_commits`]) on a platform whose processor makes nothing durable.
    /// [`Error::Claimed`], or [`Error::Provider`] with `EWOULDBLOCK` of `flock`, if another server
    /// has the memory. Otherwise as [`Device::from_socket_addr`], [`PeerCfg::detect`],
    /// [`Peer::new`], [`Mr::reg`], [`Ep::listen_on`] and [`Server::new`]. Nothing stays registered
    /// then.
    ///
    /// [`PeerCfg::detect`]: crate::PeerCfg::detect
    pub fn listen(
        addr: SocketAddr,
        all: &PmemMap,
        layout: &Layout,
        usage: MrUsage,
        cfg: &ServerCfg,
    ) -> Result<Self> {
        layout.check(all)?;
        all.lock()?;
        let device = Device::from_socket_addr(addr, Side::Local)?;
        let peer = Peer::new(&device)?;
        let cfg = cfg.for_platform(all, &peer)?;
        let parts = Parts::reg(&device, all, layout, usage)?;
        let ep = Ep::listen_on(&peer, addr)?;
        let directory = layout.open_directory(all)?;
        let mut server = Self::new(ep, directory, &cfg)?;
        server.parts = Some(parts);
        Ok(server)
    }

    /// Serves clients until the server is woken ([`waker`](Self::waker)): calls
    /// [`next`](Self::next) and [`answer`](Self::answer) in a loop. It has no limit of time.
    ///
    /// It passes each result to `note`, for the program's log: refusals, arrivals and ends of
    /// clients, events of the device, and failures. A key whose memory could not be registered
    /// again is noted as [`Served::Failed`] with [`Error::PartLost`], and the other keys are served
    /// as before. If `note` panics, the server is whole. A server without parts
    /// ([`new`](Self::new)) passes requests to `note` as well, and refuses those that `note` drops.
    ///
    /// It drops completions of operations that the program posted on a client's connection. A
    /// program with such operations calls `next` by itself.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] with `ENODEV` if this host's device is gone: drop the server. Otherwise
    /// as [`next`](Self::next).
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn serve(&mut self, mut note: impl FnMut(Served)) -> Result<()> {
        let mut wcs = [Wc::default(); POLLED];
        loop {
            if let Some(served) = self.next(&mut wcs, Duration::MAX)? {
                if self.handle(served, &mut note)?.is_break() {
                    return Ok(());
                }
            }
        }
    }

    /// Handles one result of [`next`](Self::next) as [`serve`](Self::serve) does: the body of its
    /// loop. `Break` means that the server was woken.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] with `ENODEV` if this host's device is gone.
    pub fn handle(
        &mut self,
        served: Served,
        mut note: impl FnMut(Served),
    ) -> Result<ControlFlow<()>> {
        match self.answer(served) {
            Ok(Some(Served::Woken)) => return Ok(ControlFlow::Break(())),
            Ok(Some(Served::Failed(error))) if error.raw_os_error() == Some(libc::ENODEV) => {
                return Err(error);
            }
            Ok(None | Some(Served::Completions(..))) => {}
            Ok(Some(served)) => note(served),
            Err(error) => note(Served::Failed(error)),
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Handles one result of [`next`](Self::next): answers a client's request with the part of its
    /// key, and returns every other result. This call is the body of a server's loop
    /// ([`serve`](Self::serve)).
    ///
    /// | from [`next`](Self::next) | this does | this returns |
    /// |---|---|---|
    /// | [`Served::Asks`] for a key with a part | it admits the client | `None`; [`Served::Arrived`] or [`Served::Gone`] follows |
    /// | the same, and the admission fails | the client was refused | [`Served::Refused`], with the error if there is one |
    /// | [`Served::Asks`] for a key without one | it refuses the client, with words | [`Served::Refused`] |
    /// | [`Served::Gone`], and the key's connection could not be cut off | it registers the key's memory again | [`Served::Gone`] |
    /// | anything else, or a server of [`new`](Self::new) | nothing | the argument |
    ///
    /// So all refusals are [`Served::Refused`]. If a client gives up before it is refused, the
    /// error is in [`Refused::error`], and this call does not fail. If the answer comes after the
    /// limit ([`ServerCfg::set_answer_limit`]), the server's own [`Served::Refused`] comes as
    /// well.
    ///
    /// If a connection could not be cut off, its writes may still land, and no client of its key is
    /// admitted. Then this call deregisters the key's memory ([`release`](Self::release)), and
    /// registers it with another [`Peer`]. It also does so if an admission failed and its queue
    /// pair could not be destroyed. The next client of the key is admitted.
    ///
    /// # Errors
    ///
    /// [`Error::PartLost`] names a key whose memory could not be registered again, with the reason.
    /// The key has no part then. The next request for the key tries the registration again, and is
    /// refused with the reason if that fails. If the memory could not be deregistered, the key has
    /// no part until the program ends. Other keys are served as before. The following call of
    /// [`next`](Self::next) returns the event that this call had to return.
    pub fn answer(&mut self, served: Served) -> Result<Option<Served>> {
        let Some(parts) = &mut self.parts else {
            return Ok(Some(served));
        };
        let (key, served) = match served {
            Served::Asks(asked) => {
                let key = asked.identity().key;
                let part = parts.asked(key);
                match self.admit_to(asked, part) {
                    None => return Ok(None),
                    Some(refused) => (key, Served::Refused(refused)),
                }
            }
            Served::Gone(gone) => (gone.identity.key, Served::Gone(gone)),
            other => return Ok(Some(other)),
        };
        if let Err(cause) = self.renew(key) {
            self.told.push_back(served);
            self.keep_readable();
            let cause = Box::new(cause);
            return Err(Error::PartLost { key, cause });
        }
        Ok(Some(served))
    }

    /// Admits a client to its part, or returns its refusal.
    fn admit_to(&mut self, asked: Asked, part: Result<KeptPart, NoPart>) -> Option<Box<Refused>> {
        let (words, error) = match part {
            Ok(KeptPart { peer, region }) => {
                let data = Arc::clone(&self.cfg.data);
                return self.admit(asked, &peer, &region, &data).err();
            }
            Err(no_part) => no_part,
        };
        let refusal = self.refusal(RefusalCode::Refused, asked.identity().key, &words);
        let mut refused = asked.refused(refusal, error);
        if let Err(error) = self.refuse(asked, &words) {
            refused.error.get_or_insert(error);
        }
        Some(refused)
    }

    /// Registers the memory of a key again if a queue pair that is not destroyed may write to it.
    fn renew(&mut self, key: u64) -> Result<()> {
        let Some(parts) = &mut self.parts else {
            return Ok(());
        };
        let used = self.keys.region(key).filter(|_| !self.keys.is_cut_off(key));
        let is_used = |kept: &KeptPart| used.is_some_and(|used| Arc::ptr_eq(used, &kept.region));
        let Some(at) = index(key).filter(|at| *at < parts.by_key.len()) else {
            return Ok(());
        };
        // Only the keys may hold the region.
        if parts.by_key[at].take_if(|kept| is_used(kept)).is_none() {
            return Ok(());
        }
        let memory = self.keys.release(key)?;
        parts.register_again(at, memory)
    }
}
