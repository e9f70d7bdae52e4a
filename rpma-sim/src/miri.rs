//! A shim for a call of rustix that Miri does not have: `ppoll`, made of `epoll`, which it has.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{epoll_event, nfds_t, pollfd, sigset_t, timespec};

/// `ppoll(2)`, without a signal mask.
#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    limit: *const timespec,
    _mask: *const sigset_t,
) -> c_int {
    // SAFETY: by C's rules there are `count` entries at `fds`.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    // SAFETY: by C's rules `limit` is NULL or leads to a time.
    let limit = unsafe { limit.as_ref() };
    let milliseconds = limit.map_or(-1, |limit| {
        let nanoseconds = limit.tv_sec.saturating_mul(1_000_000_000) + limit.tv_nsec;
        c_int::try_from((nanoseconds + 999_999) / 1_000_000).unwrap_or(c_int::MAX)
    });
    // SAFETY: no preconditions.
    let epoll = unsafe { libc::epoll_create1(0) };
    assert!(epoll >= 0, "Miri has a descriptor");
    // SAFETY: `epoll_create1` has just returned it, and no other code has it.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    for fd in &mut *fds {
        fd.revents = 0;
        let mut wanted = epoll_event {
            // The only kind that Miri supports. A descriptor that is ready when it is added is
            // reported, too.
            events: (libc::EPOLLIN | libc::EPOLLET) as u32,
            u64: fd.fd as u64,
        };
        // SAFETY: `epoll` is owned here, and by C's rules the entries have open descriptors. One
        // that is there twice is refused the second time.
        unsafe {
            libc::epoll_ctl(
                epoll.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                fd.fd,
                &raw mut wanted,
            )
        };
    }
    let mut ready = [epoll_event { events: 0, u64: 0 }; 8];
    // SAFETY: `ready` has room for the 8 events that are asked for.
    let found = unsafe { libc::epoll_wait(epoll.as_raw_fd(), ready.as_mut_ptr(), 8, milliseconds) };
    if found < 0 {
        return found;
    }
    let ready = &ready[..found as usize];
    for fd in &mut *fds {
        let of = |event: &&epoll_event| { event.u64 } == fd.fd as u64;
        if let Some(event) = ready.iter().find(of) {
            fd.revents = { event.events } as i16;
        }
    }
    fds.iter().filter(|fd| fd.revents != 0).count() as c_int
}
