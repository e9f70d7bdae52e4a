//! Errors that the types rule out. Each promise has a program that compiles, and a twin that must
//! not.
//!
//! The twins differ in one line, so that the error can have no other reason. rustdoc runs them. The
//! codes of their errors are checked by a nightly compiler only: `cargo +nightly test --doc -p rpma
//! compile_fail`.

/// A part of a region cannot be used after the region is gone.
///
/// ```
/// fn write(conn: &rpma::Conn, to: rpma::RemoteSlice, mr: rpma::Mr<Vec<u8>>) -> rpma::Result<()> {
///     let part = mr.slice(..)?;
///     conn.write(to, part, rpma::Flags::COMPLETION_ALWAYS, 0)?;
///     drop(mr);
///     Ok(())
/// }
/// ```
///
/// ```compile_fail,E0505
/// fn write(conn: &rpma::Conn, to: rpma::RemoteSlice, mr: rpma::Mr<Vec<u8>>) -> rpma::Result<()> {
///     let part = mr.slice(..)?;
///     drop(mr);
///     conn.write(to, part, rpma::Flags::COMPLETION_ALWAYS, 0)?;
///     Ok(())
/// }
/// ```
struct SliceOutlivesRegion;

/// Only owned memory can be registered: a forgotten region would outlive a borrow.
///
/// ```
/// fn register(peer: &rpma::Peer, bytes: Vec<u8>) {
///     let _ = rpma::Mr::reg(peer, bytes, rpma::MrUsage::READ_DST);
/// }
/// ```
///
/// ```compile_fail,E0277
/// fn register(peer: &rpma::Peer, bytes: &'static mut [u8]) {
///     let _ = rpma::Mr::reg(peer, bytes, rpma::MrUsage::READ_DST);
/// }
/// ```
///
/// ```compile_fail,E0277
/// fn register(peer: &rpma::Peer, bytes: std::sync::Arc<[u8]>) {
///     let _ = rpma::Mr::reg(peer, bytes, rpma::MrUsage::READ_DST);
/// }
/// ```
struct BorrowedMemory;

/// The choice of registerable memory is a promise that only `unsafe` code can make.
///
/// ```
/// struct Mine;
/// unsafe impl rpma::RegisterableMemory for Mine {
///     fn as_mut_ptr(&mut self) -> *mut u8 { std::ptr::null_mut() }
///     fn len(&self) -> usize { 0 }
/// }
/// ```
///
/// ```compile_fail,E0200
/// struct Mine;
/// impl rpma::RegisterableMemory for Mine {
///     fn as_mut_ptr(&mut self) -> *mut u8 { std::ptr::null_mut() }
///     fn len(&self) -> usize { 0 }
/// }
/// ```
struct UnpromisedMemory;

/// Safe code copies registered memory and never refers to it.
///
/// ```
/// fn first(mr: &rpma::Mr<Vec<u8>>) -> u8 {
///     unsafe { mr.as_slice()[0] }
/// }
/// ```
///
/// ```compile_fail,E0133
/// fn first(mr: &rpma::Mr<Vec<u8>>) -> u8 {
///     mr.as_slice()[0]
/// }
/// ```
///
/// ```compile_fail,E0608
/// fn first(mr: &rpma::Mr<Vec<u8>>) -> u8 {
///     mr[0]
/// }
/// ```
///
/// ```compile_fail,E0608
/// fn first(map: &rpma::pmem::PmemMap) -> u8 {
///     map[0]
/// }
/// ```
struct ReferenceIntoRegion;

/// Registering memory of another owner needs `unsafe`.
///
/// ```
/// fn register(peer: &rpma::Peer, at: std::ptr::NonNull<u8>) {
///     let _ = unsafe { rpma::Mr::reg_raw(peer, at, 8, rpma::MrUsage::READ_SRC) };
/// }
/// ```
///
/// ```compile_fail,E0133
/// fn register(peer: &rpma::Peer, at: std::ptr::NonNull<u8>) {
///     let _ = rpma::Mr::reg_raw(peer, at, 8, rpma::MrUsage::READ_SRC);
/// }
/// ```
struct ForeignMemory;

/// A region that was deregistered is gone.
///
/// ```
/// fn finish(mr: rpma::Mr<Vec<u8>>) -> rpma::Result<[u8; 21]> {
///     let descriptor = mr.get_descriptor();
///     mr.dereg()?;
///     Ok(descriptor)
/// }
/// ```
///
/// ```compile_fail,E0382
/// fn finish(mr: rpma::Mr<Vec<u8>>) -> rpma::Result<[u8; 21]> {
///     mr.dereg()?;
///     let descriptor = mr.get_descriptor();
///     Ok(descriptor)
/// }
/// ```
struct UseAfterDereg;

/// A request becomes a connection, once (W-35).
///
/// ```
/// fn connect(req: rpma::ConnReq) -> rpma::Result<rpma::Conn> {
///     Ok(req.connect(&[])?)
/// }
/// ```
///
/// ```compile_fail,E0382
/// fn connect(req: rpma::ConnReq) -> rpma::Result<rpma::Conn> {
///     req.connect(&[])?;
///     Ok(req.connect(&[])?)
/// }
/// ```
struct RequestUsedTwice;

/// A completion queue does not outlive its connection (W-26).
///
/// ```
/// fn poll(conn: rpma::Conn, wcs: &mut [rpma::Wc]) -> rpma::Result<usize> {
///     let cq = conn.get_cq();
///     let polled = cq.get_wc(wcs)?;
///     drop(conn);
///     Ok(polled)
/// }
/// ```
///
/// ```compile_fail,E0505
/// fn poll(conn: rpma::Conn, wcs: &mut [rpma::Wc]) -> rpma::Result<usize> {
///     let cq = conn.get_cq();
///     drop(conn);
///     let polled = cq.get_wc(wcs)?;
///     Ok(polled)
/// }
/// ```
struct QueueOutlivesConnection;

/// "No flags", which the C library refuses when it runs, cannot be written (W-13), and neither can
/// an unknown flush type (W-12).
///
/// ```
/// let flags = rpma::Flags::COMPLETION_ON_ERROR;
/// let flush_type = rpma::FlushType::Visibility;
/// ```
///
/// ```compile_fail,E0423
/// let flags = rpma::Flags(0);
/// ```
///
/// ```compile_fail,E0599
/// let flags = rpma::Flags::default();
/// ```
///
/// ```compile_fail,E0308
/// let flush_type: rpma::FlushType = 7;
/// ```
struct Flags;

/// The opcode of a failed completion cannot be read (W-24).
///
/// ```
/// fn opcode(wc: &rpma::Wc) -> Result<rpma::WcOpcode, rpma::WcFailure> {
///     Ok(wc.result()?.opcode())
/// }
/// ```
///
/// ```compile_fail,E0599
/// fn opcode(wc: &rpma::Wc) -> Result<rpma::WcOpcode, rpma::WcFailure> {
///     Ok(wc.opcode())
/// }
/// ```
struct OpcodeOfFailure;

/// Nor can its length and its immediate data.
///
/// ```
/// fn length(wc: &rpma::Wc) -> Result<Option<u32>, rpma::WcFailure> {
///     Ok(wc.result()?.byte_len())
/// }
/// ```
///
/// ```compile_fail,E0599
/// fn length(wc: &rpma::Wc) -> Result<Option<u32>, rpma::WcFailure> {
///     Ok(wc.byte_len())
/// }
/// ```
///
/// ```
/// fn number(wc: &rpma::Wc) -> Option<u32> {
///     wc.result().ok()?.imm_data()
/// }
/// ```
///
/// ```compile_fail,E0599
/// fn number(wc: &rpma::Wc) -> Option<u32> {
///     wc.result().err()?.imm_data()
/// }
/// ```
struct LengthOfFailure;

/// Operations take registered memory only.
///
/// ```
/// fn send(conn: &rpma::Conn, bytes: rpma::MrSlice<'_>) -> rpma::Result<rpma::Posted> {
///     conn.send(bytes, rpma::Flags::COMPLETION_ALWAYS, 0)
/// }
/// ```
///
/// ```compile_fail,E0308
/// fn send(conn: &rpma::Conn, bytes: &[u8]) -> rpma::Result<rpma::Posted> {
///     conn.send(bytes, rpma::Flags::COMPLETION_ALWAYS, 0)
/// }
/// ```
struct UnregisteredMemory;

/// Here and there cannot be confused.
///
/// ```
/// fn copy(conn: &rpma::Conn, near: rpma::MrSlice<'_>, far: rpma::RemoteSlice) -> rpma::Result<rpma::Posted> {
///     conn.write(far, near, rpma::Flags::COMPLETION_ALWAYS, 0)?;
///     conn.read(near, far, rpma::Flags::COMPLETION_ALWAYS, 1)
/// }
/// ```
///
/// ```compile_fail,E0308
/// fn copy(conn: &rpma::Conn, near: rpma::MrSlice<'_>, far: rpma::RemoteSlice) -> rpma::Result<rpma::Posted> {
///     conn.write(near, far, rpma::Flags::COMPLETION_ALWAYS, 0)?;
///     conn.read(near, far, rpma::Flags::COMPLETION_ALWAYS, 1)
/// }
/// ```
///
/// ```compile_fail,E0308
/// fn copy(conn: &rpma::Conn, near: rpma::MrSlice<'_>, far: rpma::RemoteSlice) -> rpma::Result<rpma::Posted> {
///     conn.write(far, near, rpma::Flags::COMPLETION_ALWAYS, 0)?;
///     conn.read(far, near, rpma::Flags::COMPLETION_ALWAYS, 1)
/// }
/// ```
struct LocalAndRemoteSwapped;

/// An atomic write is of 8 bytes (W-39).
///
/// ```
/// fn store(conn: &rpma::Conn, far: rpma::RemoteSlice, word: &[u8; 8]) -> rpma::Result<rpma::Posted> {
///     conn.atomic_write(far, word, rpma::Flags::COMPLETION_ALWAYS, 0)
/// }
/// ```
///
/// ```compile_fail,E0308
/// fn store(conn: &rpma::Conn, far: rpma::RemoteSlice, word: &[u8; 4]) -> rpma::Result<rpma::Posted> {
///     conn.atomic_write(far, word, rpma::Flags::COMPLETION_ALWAYS, 0)
/// }
/// ```
struct AtomicWriteOfFourBytes;

/// A connection need not have a completion queue for receives (W-33), nor a shared receive queue.
///
/// ```
/// fn poll(conn: &rpma::Conn, wcs: &mut [rpma::Wc]) -> rpma::Result<usize> {
///     conn.get_rcq().map_or(Ok(0), |rcq| rcq.get_wc(wcs))
/// }
/// ```
///
/// ```compile_fail,E0599
/// fn poll(conn: &rpma::Conn, wcs: &mut [rpma::Wc]) -> rpma::Result<usize> {
///     conn.get_rcq().get_wc(wcs)
/// }
/// ```
///
/// ```compile_fail,E0599
/// fn poll(srq: &rpma::Srq, wcs: &mut [rpma::Wc]) -> rpma::Result<usize> {
///     srq.get_rcq().get_wc(wcs)
/// }
/// ```
struct ReceiveQueueThatMayBeMissing;

/// Nor does that of a shared receive queue outlive it (W-26).
///
/// ```
/// fn poll(srq: rpma::Srq, wcs: &mut [rpma::Wc]) -> rpma::Result<usize> {
///     let rcq = srq.get_rcq().expect("one of its own");
///     let polled = rcq.get_wc(wcs)?;
///     drop(srq);
///     Ok(polled)
/// }
/// ```
///
/// ```compile_fail,E0505
/// fn poll(srq: rpma::Srq, wcs: &mut [rpma::Wc]) -> rpma::Result<usize> {
///     let rcq = srq.get_rcq().expect("one of its own");
///     drop(srq);
///     let polled = rcq.get_wc(wcs)?;
///     Ok(polled)
/// }
/// ```
struct QueueOutlivesSharedReceiveQueue;

/// An object is gone after its close, deletion or shutdown.
///
/// ```
/// fn finish(conn: rpma::Conn) -> rpma::Result<()> {
///     conn.disconnect()?;
///     conn.close(std::time::Duration::from_secs(1))?;
///     Ok(())
/// }
/// ```
///
/// ```compile_fail,E0382
/// fn finish(conn: rpma::Conn) -> rpma::Result<()> {
///     conn.close(std::time::Duration::from_secs(1))?;
///     conn.disconnect()?;
///     Ok(())
/// }
/// ```
///
/// ```
/// fn finish(conn: rpma::Conn) -> rpma::Result<()> {
///     conn.disconnect()?;
///     conn.delete()?;
///     Ok(())
/// }
/// ```
///
/// ```compile_fail,E0382
/// fn finish(conn: rpma::Conn) -> rpma::Result<()> {
///     conn.delete()?;
///     conn.disconnect()?;
///     Ok(())
/// }
/// ```
///
/// ```
/// fn finish(ep: rpma::Ep, cfg: &rpma::ConnCfg) -> rpma::Result<rpma::ConnReq> {
///     let req = ep.next_conn_req(cfg)?;
///     ep.shutdown()?;
///     Ok(req)
/// }
/// ```
///
/// ```compile_fail,E0382
/// fn finish(ep: rpma::Ep, cfg: &rpma::ConnCfg) -> rpma::Result<rpma::ConnReq> {
///     ep.shutdown()?;
///     let req = ep.next_conn_req(cfg)?;
///     Ok(req)
/// }
/// ```
///
/// ```
/// fn finish(srq: rpma::Srq) -> rpma::Result<()> {
///     srq.recv(rpma::MrSlice::EMPTY, 0)?;
///     srq.delete()?;
///     Ok(())
/// }
/// ```
///
/// ```compile_fail,E0382
/// fn finish(srq: rpma::Srq) -> rpma::Result<()> {
///     srq.delete()?;
///     srq.recv(rpma::MrSlice::EMPTY, 0)?;
///     Ok(())
/// }
/// ```
struct UseAfterTheEnd;

/// A request that was rejected cannot be accepted.
///
/// ```
/// fn answer(req: rpma::ConnReq) -> rpma::Result<()> {
///     req.connect(&[])?;
///     Ok(())
/// }
/// ```
///
/// ```
/// fn answer(req: rpma::ConnReq) -> rpma::Result<()> {
///     req.reject(&[])?;
///     Ok(())
/// }
/// ```
///
/// ```compile_fail,E0382
/// fn answer(req: rpma::ConnReq) -> rpma::Result<()> {
///     req.reject(&[])?;
///     req.connect(&[])?;
///     Ok(())
/// }
/// ```
struct ConnectAfterReject;

/// The sources of a batch live until it is posted: memory for `Flags::INLINE`, and the bytes of an
/// atomic write. And its connection does.
///
/// ```
/// use rpma::{Conn, Flags, Mr, RemoteSlice, Result};
/// fn send(conn: &Conn, to: RemoteSlice, source: Mr<Vec<u8>>) -> Result<()> {
///     let mut batch = conn.batch::<2>();
///     batch.write(to, source.slice(..)?, Flags::INLINE, 1)?;
///     batch.post()?;
///     drop(source);
///     Ok(())
/// }
/// ```
///
/// ```compile_fail,E0505
/// use rpma::{Conn, Flags, Mr, RemoteSlice, Result};
/// fn send(conn: &Conn, to: RemoteSlice, source: Mr<Vec<u8>>) -> Result<()> {
///     let mut batch = conn.batch::<2>();
///     batch.write(to, source.slice(..)?, Flags::INLINE, 1)?;
///     drop(source);
///     batch.post()?;
///     Ok(())
/// }
/// ```
///
/// ```
/// use rpma::{Conn, Flags, RemoteSlice, Result};
/// fn send(conn: &Conn, to: RemoteSlice) -> Result<rpma::Posted> {
///     let mut batch = conn.batch::<2>();
///     let tail = 7u64.to_le_bytes();
///     batch.atomic_write(to, &tail, Flags::COMPLETION_ALWAYS, 1)?;
///     batch.post()
/// }
/// ```
///
/// ```compile_fail,E0597
/// use rpma::{Conn, Flags, RemoteSlice, Result};
/// fn send(conn: &Conn, to: RemoteSlice) -> Result<rpma::Posted> {
///     let mut batch = conn.batch::<2>();
///     {
///         let tail = 7u64.to_le_bytes();
///         batch.atomic_write(to, &tail, Flags::COMPLETION_ALWAYS, 1)?;
///     }
///     batch.post()
/// }
/// ```
///
/// ```compile_fail,E0505
/// use rpma::{Conn, Result};
/// fn end(conn: Conn) -> Result<rpma::Posted> {
///     let mut batch = conn.batch::<2>();
///     drop(conn);
///     batch.post()
/// }
/// ```
struct BatchOutlivesWhatItReads;
