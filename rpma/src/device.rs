//! [`Device`]: an open RDMA device (`rpma_utils_get_ibv_context`).
//!
//! A device is found through an address of it. It owns a connection-manager id that is bound to
//! that address and keeps librdmacm's device open. The id is destroyed when the last [`Peer`],
//! region or connection of the device is gone.
//!
//! [`Peer`]: crate::Peer

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::address::{self, Side};
use crate::error::{Error, Result};
use crate::verbs::{CmId, Context};

/// The C library's fixed limit for resolving a remote address.
const RESOLVE_LIMIT: Duration = Duration::from_secs(1);

/// An open RDMA device. Clones are handles of the same device.
///
/// # Threads
///
/// Any thread may use it: verbs may be called from any thread, and the fields that are read never
/// change.
#[derive(Clone)]
pub struct Device {
    context: Arc<Context>,
}

impl Device {
    /// Opens the device to which `addr` belongs ([`Side::Local`]) or through which it is reached
    /// ([`Side::Remote`]). The latter takes up to 1 s for each address that a host name stands for.
    ///
    /// `addr` is an IPv4 or IPv6 address (link-local ones with their scope: `fe80::1%eth0`), or a
    /// host name. If there are several addresses, the first one that works is taken. An IPv4 address
    /// in an IPv6 one (`::ffff:10.0.0.1`) is that IPv4 address.
    ///
    /// [`Side::Remote`] needs the other host: while that is down, this fails (`ETIMEDOUT`,
    /// `EHOSTUNREACH`). A program that starts before its peer tries again. Or it opens the device
    /// by an address of this host with [`Side::Local`]: connections to other hosts work with it as
    /// well.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a wildcard address (`0.0.0.0`, `::`), which belongs to no
    /// device in particular, and for a name that cannot be resolved. [`Error::Provider`] if the
    /// host has no RDMA device, or no device with that address: `rdma_create_event_channel`,
    /// `rdma_create_id`, `rdma_bind_addr` (`ENODEV`, `EADDRNOTAVAIL`) or `rdma_resolve_addr`
    /// (`ENODEV`, `ENETUNREACH`, `ETIMEDOUT`).
    #[doc(alias = "rpma_utils_get_ibv_context")]
    pub fn from_addr(addr: &str, side: Side) -> Result<Self> {
        address::try_each(addr, 0, |found| Self::from_socket_addr(found, side))
    }

    /// As [`from_addr`](Self::from_addr), for a socket address: no name is looked up, and the port
    /// is ignored.
    ///
    /// # Errors
    ///
    /// As [`from_addr`](Self::from_addr).
    pub fn from_socket_addr(addr: SocketAddr, side: Side) -> Result<Self> {
        let addr = address::usable(addr)?;
        let mut id = CmId::new()?;
        let bound = match side {
            Side::Local => {
                // The id stays: if it also had the port, no endpoint could listen on that.
                let mut at_any_port = addr;
                at_any_port.set_port(0);
                id.bind_addr(at_any_port)
            }
            Side::Remote => id.resolve_addr_now(addr, RESOLVE_LIMIT),
        };
        bound.map_err(|error| address::hint(error, addr, side))?;
        let context = Context::of(id).map_err(|_id| {
            Error::invalid(format!(
                "{} belongs to no RDMA device: use an address of a network interface that has one \
                 (`rdma link` lists them)",
                addr.ip()
            ))
        })?;
        Ok(Self { context })
    }

    /// Returns the device's name, as `ibv_devices` and `rdma link` print it.
    #[must_use]
    pub fn get_name(&self) -> &str {
        self.context.name()
    }

    /// Returns whether the device supports on-demand paging for reads and writes of reliable
    /// connections. Without it, a file on a DAX file system cannot be registered.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `ibv_query_device_ex` fails.
    #[doc(alias = "rpma_utils_ibv_context_is_odp_capable")]
    pub fn is_odp_capable(&self) -> Result<bool> {
        Ok(self.context.query_device()?.odp)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.get_name())
            .finish()
    }
}
