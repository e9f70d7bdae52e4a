//! What these tests share: a process in which verbs can fail, and calls that must tell it.

use std::any::type_name_of_val;
use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};
use std::fmt::Debug;
use std::io;
use std::ptr::NonNull;

use rpma::{Conn, Error, Flags, MrSlice, RemoteSlice};
use rustix::io::Errno;

use crate::common::LIMIT;
use crate::common::program::{Program, c_preload};

pub(crate) const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;

/// Runs a test in a process of its own, in which verbs can fail, with the name of the test: the one that
/// the harness knows, as the process is this program with that test and no other. `test` is the closure
/// that is its body.
pub(crate) fn with_failures(test: impl FnOnce()) {
    if symbol(c"failing_arm").is_some() {
        return test();
    }
    // The path of a closure is that of its function, and `::{{closure}}`.
    let path = type_name_of_val(&test);
    let name = path
        .split("::")
        .skip(1)
        .take_while(|part| !part.starts_with('{'));
    let name = name.collect::<Vec<_>>().join("::");
    let preload = format!("LD_PRELOAD={}", c_preload("tests/failing/failing"));
    let program = env::current_exe().expect("the path of this test");
    let program = program.to_str().expect("text");
    let words = [
        "env",
        &preload,
        program,
        "--exact",
        &name,
        "--nocapture",
        "--test-threads=1",
    ];
    let ended = Program::start(&words, LIMIT).finish();
    let one = |line: &String| line.starts_with("test result: ok. 1 passed");
    // What it says is of use only if it fails.
    assert!(
        ended.status == Some(0) && ended.stdout.iter().any(one),
        "{name}:\n{}\n{}\nstatus {:?}",
        ended.stdout.join("\n"),
        ended.stderr.join("\n"),
        ended.status
    );
}

/// How a call fails: as `enum how` of failing.c.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// It does nothing; one that posts says which request it refused.
    Refused = 0,
    /// It does everything first.
    Done = 1,
    /// It takes all requests of a chain but the last, and says that it refused that one.
    LastRefused = 2,
    /// As that, but it returns 0.
    LastDropped = 3,
}

impl How {
    pub(crate) fn happens(self) -> bool {
        matches!(self, Self::Done)
    }
}

/// A call that fails, once.
#[derive(Debug)]
pub(crate) struct Failing {
    call: &'static str,
    errno: Errno,
}

impl Failing {
    /// The next call from now on.
    pub(crate) fn next(call: &'static str, errno: Errno) -> Self {
        Self::nth(1, call, errno, How::Refused)
    }

    /// The `nth` call from now on.
    pub(crate) fn nth(nth: u32, call: &'static str, errno: Errno, how: How) -> Self {
        arm(call, nth, errno, how);
        Self { call, errno }
    }

    /// It has failed, which is what `result` must say.
    pub(crate) fn told<T: Debug, E: Into<Error> + Debug>(self, result: Result<T, E>) {
        self.text(result);
    }

    /// As `told`, in this text.
    pub(crate) fn text<T: Debug, E: Into<Error> + Debug>(self, result: Result<T, E>) -> String {
        self.happened();
        let error = match result {
            Ok(value) => panic!("{self:?} is swallowed: {value:?}"),
            Err(error) => error.into(),
        };
        assert!(
            matches!(error, Error::Provider { .. }),
            "{self:?}: {error:?}"
        );
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("{} failed: ", self.call)),
            "{self:?}: {text}"
        );
        // The one verb that does not tell why.
        if self.call != "ibv_poll_cq" {
            assert_eq!(
                error.raw_os_error(),
                Some(self.errno.raw_os_error()),
                "{text}"
            );
            let why = io::Error::from(self.errno).to_string();
            assert!(text.contains(&why), "{self:?}: {text}");
        }
        text
    }

    /// The call has been made, and has failed.
    pub(crate) fn happened(&self) {
        let pending = arm(self.call, 0, self.errno, How::Refused);
        assert!(!pending, "{self:?}: nobody calls it");
    }
}

/// Arms a call (the `nth` one from now on), or takes that back (0) and says whether it is still to come.
fn arm(call: &str, nth: u32, errno: Errno, how: How) -> bool {
    type Arm = extern "C" fn(*const c_char, c_uint, c_int, c_int) -> c_int;
    let arm = symbol(c"failing_arm").expect("with_failures comes first");
    // SAFETY: that is its type in failing.c. It has no preconditions but the string, which comes below.
    let arm = unsafe { std::mem::transmute::<NonNull<c_void>, Arm>(arm) };
    let name = CString::new(call).expect("a name");
    let pending = arm(name.as_ptr(), nth, errno.raw_os_error(), how as c_int);
    assert!(pending >= 0, "failing.c knows no {call}");
    pending == 1
}

/// From now on each post of this thread stops for so many microseconds, before and after its request is in
/// the queue, as if something else had the processor.
pub(crate) fn pause_in_posts(us: c_long) {
    type Pause = extern "C" fn(c_long);
    let pause = symbol(c"failing_pause").expect("with_failures comes first");
    // SAFETY: that is its type in failing.c, and it has no preconditions.
    let pause = unsafe { std::mem::transmute::<NonNull<c_void>, Pause>(pause) };
    pause(us);
}

fn symbol(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the name is a string.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

/// Posts a write of 0 bytes.
pub(crate) fn write(conn: &Conn, op_context: u64) -> Result<(), Error> {
    conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, op_context)
}
