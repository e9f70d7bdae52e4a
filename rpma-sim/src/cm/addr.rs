//! Socket addresses, as C has them and as Rust has them.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6};
use rustix::io::Errno;

use crate::call::Result;

/// # Safety
///
/// It points to a socket address of the size of its family.
pub(super) unsafe fn read(addr: *const sockaddr) -> Result<SocketAddr> {
    // SAFETY: by `# Safety` there is a socket address at `addr`; this makes no reference.
    let family = unsafe { &raw const (*addr).sa_family };
    // SAFETY: by `# Safety` there is a socket address at `addr`, and this is read without an
    // alignment.
    let family = unsafe { family.read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the family is AF_INET, so by `# Safety` there is a whole sockaddr_in.
            let v4 = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
            let ip = IpAddr::V4(u32::from_be(v4.sin_addr.s_addr).into());
            Ok(SocketAddr::new(ip, u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: the family is AF_INET6, so by `# Safety` there is a whole sockaddr_in6.
            let v6 = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
            let (ip, port) = (v6.sin6_addr.s6_addr.into(), u16::from_be(v6.sin6_port));
            let v6 = SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id);
            Ok(SocketAddr::V6(v6))
        }
        _ => Err(Errno::AFNOSUPPORT),
    }
}

/// # Safety
///
/// There is room for an address of either family.
pub(super) unsafe fn write(addr: SocketAddr, to: *mut sockaddr) {
    match addr {
        SocketAddr::V4(v4) => {
            let raw = sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(*v4.ip()).to_be(),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: by `# Safety` there is room for an address of either family.
            unsafe { to.cast::<sockaddr_in>().write_unaligned(raw) };
        }
        SocketAddr::V6(v6) => {
            let raw = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: by `# Safety` there is room for an address of either family.
            unsafe { to.cast::<sockaddr_in6>().write_unaligned(raw) };
        }
    }
}
