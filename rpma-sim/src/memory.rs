//! Protection domains, memory regions, and the accesses of devices.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use rustix::io::Errno;

use crate::call::{Result, errno_of, null};
use crate::handle::{of, of_context};
use crate::state::State;
use crate::types::{
    ib_uverbs_advise_mr_advice, ibv_access_flags, ibv_context, ibv_mr, ibv_pd, ibv_sge,
};

/// The rights of regions and queue pairs.
pub(crate) mod access {
    use super::ibv_access_flags as Flags;

    pub(crate) const LOCAL_WRITE: u32 = Flags::IBV_ACCESS_LOCAL_WRITE.0;
    pub(crate) const REMOTE_WRITE: u32 = Flags::IBV_ACCESS_REMOTE_WRITE.0;
    pub(crate) const REMOTE_READ: u32 = Flags::IBV_ACCESS_REMOTE_READ.0;
    pub(crate) const REMOTE_ATOMIC: u32 = Flags::IBV_ACCESS_REMOTE_ATOMIC.0;
    pub(crate) const ON_DEMAND: u32 = Flags::IBV_ACCESS_ON_DEMAND.0;
    pub(crate) const FLUSH_GLOBAL: u32 = 1 << 8;
    pub(crate) const FLUSH_PERSISTENT: u32 = 1 << 9;
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    object: NonNull<ibv_pd>,
    pub(crate) nic: usize,
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    object: NonNull<ibv_mr>,
    pub(crate) pd: u32,
    key: u32,
    base: *mut u8,
    len: u64,
    rights: u32,
}

impl Mr {
    pub(crate) fn overlaps(&self, part: Part) -> bool {
        let (start, other) = (self.base.addr(), part.address.addr());
        start < other + part.len && other < start + self.len as usize
    }
}

/// A part of a region that an access was allowed to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) address: *mut u8,
    pub(crate) len: usize,
}

/// That a region does not allow an access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Denied;

impl State {
    /// The part of a region of a domain that a key and an address name, if the region has the
    /// rights.
    pub(crate) fn part(
        &self,
        pd: u32,
        key: u32,
        address: u64,
        len: u64,
        rights: u32,
    ) -> std::result::Result<Part, Denied> {
        let mr = self.mrs.get(key >> 8).ok_or(Denied)?;
        let start = address.checked_sub(mr.base.addr() as u64).ok_or(Denied)?;
        let end = start.checked_add(len).ok_or(Denied)?;
        let allowed = mr.key == key && mr.pd == pd && end <= mr.len && mr.rights & rights == rights;
        if allowed {
            Ok(Part {
                address: mr.base.wrapping_add(start as usize),
                len: len as usize,
            })
        } else {
            Err(Denied)
        }
    }

    /// The local buffers of a request.
    pub(crate) fn parts(
        &self,
        pd: u32,
        sges: &[ibv_sge],
        rights: u32,
    ) -> std::result::Result<Vec<Part>, Denied> {
        let part = |sge: &ibv_sge| self.part(pd, sge.lkey, sge.addr, sge.length.into(), rights);
        let some = sges.iter().filter(|sge| sge.length > 0);
        some.map(part).collect()
    }

    fn register(
        &mut self,
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        number: u32,
        (base, len): (*mut u8, usize),
        rights: u32,
    ) -> Result<*mut ibv_mr> {
        let nic = self.pds[number].nic;
        self.call("ibv_reg_mr", nic).object()?;
        let known = (1 << 10) - 1;
        // `IBV_ACCESS_OPTIONAL_RANGE`: the rights that a device may ignore.
        let rights = rights & !(0x3FF << 20);
        let native = access::FLUSH_GLOBAL | access::FLUSH_PERSISTENT;
        let writes = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
        if rights & access::ON_DEMAND != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if len == 0
            || rights & !known != 0
            || rights & writes != 0 && rights & access::LOCAL_WRITE == 0
            || rights & native != 0 && !self.profile(nic).native
            || rights & access::FLUSH_PERSISTENT != 0
                && !self.is_persistent(Part { address: base, len })
        {
            return Err(Errno::INVAL);
        }
        // A key has 24 bits of the number.
        if self.mrs.next() >> 24 != 0 {
            return Err(Errno::NOMEM);
        }
        let end = base.addr().checked_add(len).ok_or(Errno::INVAL)?;
        if base.is_null() || isize::try_from(end).is_err() {
            return Err(Errno::FAULT);
        }
        let number = self.mrs.add(|own| {
            // The last byte is there to be guessed wrong.
            let key = own << 8 | own.wrapping_mul(0x9D) & 0xFF;
            let object = Box::new(ibv_mr {
                context,
                pd,
                addr: base.cast(),
                length: len,
                handle: own,
                lkey: key,
                rkey: key,
            });
            Mr {
                object: NonNull::from(Box::leak(object)),
                pd: number,
                key,
                base,
                len: len as u64,
                rights,
            }
        });
        Ok(self.mrs[number].object.as_ptr())
    }
}

/// Copies as a device does: 8 aligned bytes at once, the others one by one. The program may look
/// at any time.
pub(crate) fn copy(from: &[u8], to: Part) {
    assert!(from.len() <= to.len, "it was checked");
    let mut done = 0;
    // Bytes that were placed before are there before later ones.
    fence(Ordering::Release);
    while done < from.len() {
        let at = to.address.wrapping_add(done);
        let word = from.get(done..done + 8);
        let word = word.filter(|_| at.addr() % 8 == 0 && has_words(from.len()));
        if let Some(word) = word {
            let value = u64::from_ne_bytes(word.try_into().expect("8 bytes"));
            // SAFETY: `to` is a part of a region, or of a `Memory` that its fabric keeps, and `done
            // + 8` is at most its length. `ibv_dereg_mr` takes a region away under the lock of the
            // state, which the caller holds. Others may write there at the same time. `at` is
            // aligned.
            let place = unsafe { AtomicU64::from_ptr(at.cast()) };
            place.store(value, Ordering::Release);
            done += 8;
        } else {
            // SAFETY: `to` is a part that stays while the caller holds the lock of the state, and
            // `done` is below its length. A byte has no alignment.
            let place = unsafe { AtomicU8::from_ptr(at) };
            place.store(from[done], Ordering::Release);
            done += 1;
        }
    }
}

/// The bytes of a cache line, even while they are written.
pub(crate) fn line(part: Part) -> [u8; 64] {
    let mut line = [0; 64];
    for (word, to) in line.chunks_exact_mut(8).enumerate() {
        let at = part.address.wrapping_add(8 * word);
        if has_words(64) {
            // SAFETY: the caller keeps the `Memory` that the line is in; a line is aligned, and has
            // 8 words.
            let place = unsafe { AtomicU64::from_ptr(at.cast()) };
            to.copy_from_slice(&place.load(Ordering::Relaxed).to_ne_bytes());
            continue;
        }
        for (byte, to) in to.iter_mut().enumerate() {
            // SAFETY: the caller keeps the `Memory` that the line is in, and `byte` is inside. A
            // byte has no alignment.
            let place = unsafe { AtomicU8::from_ptr(at.wrapping_add(byte)) };
            *to = place.load(Ordering::Relaxed);
        }
    }
    line
}

/// As [`copy`], out of a region.
pub(crate) fn fetch(from: Part, to: &mut Vec<u8>) {
    let mut done = 0;
    while done < from.len {
        let at = from.address.wrapping_add(done);
        if from.len - done >= 8 && at.addr() % 8 == 0 && has_words(from.len) {
            // SAFETY: `from` is a part of a region, and `done + 8` is at most its length.
            // `ibv_dereg_mr` takes a region away under the lock of the state, which the caller
            // holds. Others may write there at the same time. `at` is aligned.
            let place = unsafe { AtomicU64::from_ptr(at.cast()) };
            to.extend(place.load(Ordering::Relaxed).to_ne_bytes());
            done += 8;
        } else {
            // SAFETY: `from` is a part that stays while the caller holds the lock of the state, and
            // `done` is below its length. A byte has no alignment.
            let place = unsafe { AtomicU8::from_ptr(at) };
            to.push(place.load(Ordering::Relaxed));
            done += 1;
        }
    }
    // Bytes that were placed before it are read before later ones. (Loads that are allowed on
    // read-only memory are relaxed.)
    fence(Ordering::Acquire);
}

/// Whether so many bytes are copied in words. Where the program's own copies are portable ones,
/// and so of single bytes, only 8 bytes alone are: Rust has no accesses of different sizes at the
/// same time.
fn has_words(len: usize) -> bool {
    len == 8 || !cfg!(any(miri, rpma_portable_copies))
}

/// `ibv_alloc_pd(3)`.
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: by C's rules `context` is that of an id which is bound to its device and not
    // destroyed yet.
    let (shared, nic) = unsafe { of_context(context) };
    let mut state = shared.lock();
    null((|| {
        state.call("ibv_alloc_pd", nic).object()?;
        let number = state.pds.add(|handle| Pd {
            object: NonNull::from(Box::leak(Box::new(ibv_pd { context, handle }))),
            nic,
        });
        Ok(state.pds[number].object.as_ptr())
    })())
}

/// `ibv_dealloc_pd(3)`.
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: by C's rules `pd` is of `ibv_alloc_pd`, and not deallocated yet.
    let of = unsafe { of(pd) };
    let mut state = of.shared.lock();
    errno_of((|| {
        let fate = state.call("ibv_dealloc_pd", of.nic).begin()?;
        let used = state.mrs.iter().any(|(_, mr)| mr.pd == of.number)
            || state.qps.iter().any(|(_, qp)| qp.pd == of.number)
            || state.srqs.iter().any(|(_, srq)| srq.pd == of.number);
        if used {
            return Err(Errno::BUSY);
        }
        let gone = state.pds.remove(of.number).expect("it is alive");
        // SAFETY: `ibv_alloc_pd` made it of a box, and by C's rules the caller uses it no more.
        drop(unsafe { Box::from_raw(gone.object.as_ptr()) });
        fate.end()
    })())
}

/// `ibv_reg_mr(3)`.
pub unsafe extern "C" fn rpma_sys_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    rights: u32,
) -> *mut ibv_mr {
    // SAFETY: by C's rules `pd` is of `ibv_alloc_pd`, and not deallocated yet.
    let of = unsafe { of(pd) };
    // SAFETY: by C's rules `pd` is of `ibv_alloc_pd`, and not deallocated yet.
    let context = unsafe { (*pd).context };
    // Other code refers to memory by a number, and may reach it through this pointer.
    addr.expose_provenance();
    let mut state = of.shared.lock();
    null(state.register(context, pd, of.number, (addr.cast(), len), rights))
}

/// `ibv_dereg_mr(3)`.
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: by C's rules `mr` is of `ibv_reg_mr`, and not deregistered yet.
    let of = unsafe { of(mr) };
    let mut state = of.shared.lock();
    errno_of((|| {
        let fate = state.call("ibv_dereg_mr", of.nic).begin()?;
        let gone = state.mrs.remove(of.number).expect("it is alive");
        // The part is of this host: other hosts have addresses of their own, in this process.
        let part = Part {
            address: gone.base,
            len: gone.len as usize,
        };
        state.land_in(part);
        state.settle_region(part);
        // SAFETY: `register` made it of a box, and by C's rules the caller uses it no more.
        drop(unsafe { Box::from_raw(gone.object.as_ptr()) });
        fate.end()
    })())
}

/// `ibv_advise_mr(3)`: no device here has on-demand paging, or anything to do.
pub unsafe extern "C" fn ibv_advise_mr(
    pd: *mut ibv_pd,
    _advice: ib_uverbs_advise_mr_advice,
    _flags: u32,
    _sges: *mut ibv_sge,
    _count: u32,
) -> c_int {
    // SAFETY: by C's rules `pd` is of `ibv_alloc_pd`, and not deallocated yet.
    let of = unsafe { of(pd) };
    let mut state = of.shared.lock();
    errno_of(
        state
            .call("ibv_advise_mr", of.nic)
            .begin()
            .and(Err(Errno::OPNOTSUPP)),
    )
}
