//! The part of a runtime: it watches one descriptor and one time.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};
use std::time::Instant;

/// One of the runtimes that this crate is built for.
#[derive(Debug)]
pub(crate) enum Watch {
    #[cfg(feature = "tokio")]
    Tokio(on_tokio::Watch),
    #[cfg(feature = "async-io")]
    AsyncIo(on_async_io::Watch),
}

impl Watch {
    /// Pending until the descriptor may be readable. Then it calls `take`, which takes the events
    /// and returns whether none is left. If none is, the descriptor must become readable again.
    #[cfg_attr(
        not(any(feature = "tokio", feature = "async-io")),
        expect(unused_variables, reason = "no runtime")
    )]
    #[inline(always)]
    pub(crate) fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce() -> bool,
    ) -> Poll<io::Result<()>> {
        match *self {
            #[cfg(feature = "tokio")]
            Self::Tokio(ref mut watch) => watch.poll_take(cx, take),
            #[cfg(feature = "async-io")]
            Self::AsyncIo(ref mut watch) => watch.poll_take(cx, take),
        }
    }

    /// Sets the time of [`poll_time`](Self::poll_time); without one it is pending for ever.
    #[cfg_attr(
        not(any(feature = "tokio", feature = "async-io")),
        expect(unused_variables, reason = "no runtime")
    )]
    pub(crate) fn set_time(&mut self, at: Option<Instant>) {
        match *self {
            #[cfg(feature = "tokio")]
            Self::Tokio(ref mut watch) => watch.set_time(at),
            #[cfg(feature = "async-io")]
            Self::AsyncIo(ref mut watch) => watch.set_time(at),
        }
    }

    /// Pending until the time has come. Then it needs another time.
    #[inline(always)]
    #[cfg_attr(
        not(any(feature = "tokio", feature = "async-io")),
        expect(unused_variables, reason = "no runtime")
    )]
    pub(crate) fn poll_time(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match *self {
            #[cfg(feature = "tokio")]
            Self::Tokio(ref mut watch) => watch.poll_time(cx),
            #[cfg(feature = "async-io")]
            Self::AsyncIo(ref mut watch) => watch.poll_time(cx),
        }
    }
}

/// A runtime's watch of a descriptor.
#[cfg_attr(
    not(any(feature = "tokio", feature = "async-io")),
    expect(unused_variables, reason = "no runtime")
)]
pub(crate) fn of_this_runtime(descriptor: OwnedFd) -> rpma::Result<Watch> {
    #[cfg(feature = "tokio")]
    if tokio::runtime::Handle::try_current().is_ok() {
        return on_tokio::Watch::new(descriptor).map(Watch::Tokio);
    }
    #[cfg(feature = "async-io")]
    return on_async_io::Watch::new(descriptor).map(Watch::AsyncIo);
    #[cfg(not(feature = "async-io"))]
    Err(crate::error::invalid(
        "this is outside of a tokio runtime: call it in one, or use Reactor::on_thread (or the feature \
         `async-io`, for other executors)",
    ))
}

#[cfg(feature = "tokio")]
mod on_tokio {
    //! On tokio: `AsyncFd`, and tokio's clock, which a test may have paused.

    use std::future::Future;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::panic::catch_unwind;
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};
    use std::time::Instant;

    use tokio::io::unix::AsyncFd;
    use tokio::time::{self, Sleep};

    use crate::error::invalid;
    use crate::raw;

    #[derive(Debug)]
    pub(crate) struct Watch {
        readable: AsyncFd<OwnedFd>,
        sleep: Pin<Box<Sleep>>,
        /// Until when it sleeps.
        until: Option<Instant>,
    }

    impl Watch {
        pub(super) fn new(descriptor: OwnedFd) -> rpma::Result<Self> {
            // tokio panics if the runtime lacks one of its drivers, and there is no way to ask.
            let drivers = |_| {
                invalid(
                    "the tokio runtime has no I/O driver, or no time driver: build it with Builder::enable_all",
                )
            };
            let sleep = catch_unwind(|| Box::pin(time::sleep(std::time::Duration::ZERO)));
            let watched = catch_unwind(|| raw::watch(descriptor));
            let sleep = sleep.map_err(drivers)?;
            let readable = watched
                .map_err(drivers)?
                .map_err(|cause| rpma::Error::Provider {
                    call: "AsyncFd::register",
                    cause,
                    hint: None,
                })?;
            Ok(Self {
                readable,
                sleep,
                until: None,
            })
        }

        pub(super) fn poll_take(
            &mut self,
            cx: &mut Context<'_>,
            take: impl FnOnce() -> bool,
        ) -> Poll<io::Result<()>> {
            let mut ready = ready!(self.readable.poll_read_ready(cx))?;
            if take() {
                // tokio keeps the readiness if the descriptor has become readable since then.
                ready.clear_ready();
            }
            Poll::Ready(Ok(()))
        }

        pub(super) fn set_time(&mut self, at: Option<Instant>) {
            if let Some(at) = at.filter(|_| self.until != at) {
                self.sleep.as_mut().reset(time::Instant::from_std(at));
            }
            self.until = at;
        }

        #[inline]
        pub(super) fn poll_time(&mut self, cx: &mut Context<'_>) -> Poll<()> {
            if self.until.is_none() {
                return Poll::Pending;
            }
            ready!(self.sleep.as_mut().poll(cx));
            self.until = None;
            Poll::Ready(())
        }
    }
}

#[cfg(feature = "async-io")]
mod on_async_io {
    //! On async-io. Its own thread polls, so any executor will do.

    use std::future::Future;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};
    use std::time::Instant;

    use async_io::{Async, Timer};

    #[derive(Debug)]
    pub(crate) struct Watch {
        readable: Async<OwnedFd>,
        timer: Timer,
        /// Until when it sleeps.
        until: Option<Instant>,
    }

    impl Watch {
        pub(super) fn new(descriptor: OwnedFd) -> rpma::Result<Self> {
            let readable = Async::new(descriptor).map_err(|cause| rpma::Error::Provider {
                call: "Async::new",
                cause,
                hint: None,
            })?;
            Ok(Self {
                readable,
                timer: Timer::never(),
                until: None,
            })
        }

        pub(super) fn poll_take(
            &mut self,
            cx: &mut Context<'_>,
            take: impl FnOnce() -> bool,
        ) -> Poll<io::Result<()>> {
            ready!(self.readable.poll_readable(cx))?;
            // async-io polls the descriptor again, so events that are left make it readable.
            take();
            Poll::Ready(Ok(()))
        }

        pub(super) fn set_time(&mut self, at: Option<Instant>) {
            if let Some(at) = at.filter(|_| self.until != at) {
                self.timer.set_at(at);
            }
            self.until = at;
        }

        #[inline]
        pub(super) fn poll_time(&mut self, cx: &mut Context<'_>) -> Poll<()> {
            if self.until.is_none() {
                return Poll::Pending;
            }
            ready!(Pin::new(&mut self.timer).poll(cx));
            self.until = None;
            Poll::Ready(())
        }
    }
}
