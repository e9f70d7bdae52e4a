//! Calls that fail on a device: `failing.c` beside this stands between the library and libibverbs
//! and librdmacm, in a process of each test's own.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};
use std::ptr::NonNull;

use rustix::io::Errno;

use crate::common::prelude::*;
use crate::common::program::{Program, alone, c_preload};
use crate::failing::support::How;

/// Runs a test in a process of its own, in which verbs can fail, with the name of the test in the
/// harness: the process is this program with that test and no other. `path` is that of the closure
/// which is its body.
pub(crate) fn with_failures(path: &str, test: impl FnOnce() -> Result) -> Result {
    if symbol(c"failing_arm").is_some() {
        return test();
    }
    // The path of a closure is that of its function, and `::{{closure}}`.
    let (name, _) = path.split_once("::{").expect("a closure");
    let (module, test) = name.rsplit_once("::").expect("a module");
    let test = alone(module, test);
    let preload = format!("LD_PRELOAD={}", c_preload("tests/device/failing/failing"));
    let mut words = vec!["env", &preload];
    words.extend(test.iter().map(String::as_str));
    let ended = Program::start(&words, LIMIT).finish();
    let one = |line: &String| line.starts_with("test result: ok. 1 passed");
    // Its output is of use only if it fails.
    assert!(
        ended.status == Some(0) && ended.stdout.iter().any(one),
        "{name}:\n{}\n{}\nstatus {:?}",
        ended.stdout.join("\n"),
        ended.stderr.join("\n"),
        ended.status
    );
    Ok(())
}

/// A call that is armed.
#[derive(Debug)]
pub(crate) struct Armed {
    call: &'static str,
    errno: Errno,
}

impl Armed {
    /// Takes it back if it is still to come, and returns whether it was.
    pub(crate) fn disarm(&self) -> bool {
        set(self.call, 0, self.errno, How::Refused).expect("a name")
    }
}

/// The `nth` call from now on fails.
pub(crate) fn arm(call: &'static str, nth: u32, errno: Errno, how: How) -> Result<Armed> {
    set(call, nth, errno, how)?;
    Ok(Armed { call, errno })
}

/// Arms a call (the `nth` one from now on), or takes that back (0) and returns whether it is still
/// to come.
fn set(call: &str, nth: u32, errno: Errno, how: How) -> Result<bool> {
    type Arm = extern "C" fn(*const c_char, c_uint, c_int, c_int) -> c_int;
    let arm = symbol(c"failing_arm").ok_or("with_failures comes first")?;
    // SAFETY: that is its type in failing.c. It has no preconditions but the string, which comes
    // below.
    let arm = unsafe { std::mem::transmute::<NonNull<c_void>, Arm>(arm) };
    let name = CString::new(call)?;
    let pending = arm(name.as_ptr(), nth, errno.raw_os_error(), how as c_int);
    assert!(pending >= 0, "failing.c knows no {call}");
    Ok(pending == 1)
}

/// From now on each post of this thread stops for so many microseconds, before and after its
/// request is in the queue, as if something else had the processor.
pub(crate) fn pause_in_posts(us: u32) {
    type Pause = extern "C" fn(c_long);
    let pause = symbol(c"failing_pause").expect("with_failures comes first");
    // SAFETY: that is its type in failing.c, and it has no preconditions.
    let pause = unsafe { std::mem::transmute::<NonNull<c_void>, Pause>(pause) };
    pause(us.into());
}

fn symbol(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: `name` is a C string, which `dlsym` only reads.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}
