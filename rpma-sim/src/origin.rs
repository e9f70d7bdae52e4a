//! The line of the program that has led to a call, for the reports of sweeps.
//!
//! The caller of a verb is a line of `rpma`. A backtrace has the lines before it, if the build has
//! debug information.

use std::backtrace::Backtrace;
use std::path::Path;

/// The packages with lines that are not the program's.
const OWN: [&str; 4] = ["rpma", "rpma-async", "rpma-sim", "rpma-sys"];

/// The way to a call.
#[derive(Debug)]
pub(crate) struct Origin(Option<Backtrace>);

impl Origin {
    /// Keeps the way to this call. Its lines are looked up later, if at all.
    pub(crate) fn here() -> Self {
        // Miri has no backtraces of this kind.
        Self((!cfg!(miri)).then(Backtrace::force_capture))
    }

    /// Returns the innermost line of the program.
    pub(crate) fn line(&self) -> Option<String> {
        line_in(&self.0.as_ref()?.to_string())
    }
}

fn line_in(text: &str) -> Option<String> {
    let places = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("at "));
    // Without the column.
    let mut lines = places.filter_map(|place| Some(place.rsplit_once(':')?.0));
    let line = lines.find(|line| is_rust(line) && !is_own(line))?;
    Some(line.strip_prefix("./").unwrap_or(line).to_owned())
}

/// Whether a line is in a source of Rust. In a program without debug information, the lines of C's
/// library are the first ones that are not our own.
fn is_rust(line: &str) -> bool {
    let file = line.rsplit_once(':').map(|(file, _)| file);
    file.is_some_and(|file| file.ends_with(".rs"))
}

/// Whether a place is in `rpma`, in its other packages or in Rust's library.
fn is_own(place: &str) -> bool {
    let is_rust = place.starts_with("/rustc/") || place.contains("/rustlib/");
    let mut folders = Path::new(place).components().rev();
    let package = folders
        .find(|folder| folder.as_os_str() == "src")
        .and_then(|_| folders.next());
    let name = package.map(|package| package.as_os_str().to_string_lossy());
    let is_package = |own: &str| {
        let rest = name.as_deref().and_then(|name| name.strip_prefix(own));
        // In a registry a version follows.
        rest.is_some_and(|rest| {
            rest.chars()
                .all(|it| it.is_ascii_digit() || "-.".contains(it))
        })
    };
    is_rust || OWN.into_iter().any(is_package)
}

#[cfg(test)]
mod tests {
    use super::{is_own, line_in};

    /// Lines of the library and of Rust are distinguished from those of programs.
    #[test]
    fn a_program_is_told_from_the_library() {
        for own in [
            "./rpma/src/mr.rs:1:2",
            "./rpma-async/src/conn/ops.rs:1:2",
            "/home/me/clone/rpma-sim/src/fail.rs:1:2",
            "/home/me/.cargo/registry/src/host-1/rpma-sys-0.1.0/src/lib.rs:1:2",
            "/rustc/5980/library/std/src/thread/mod.rs:1:2",
            "/home/me/.rustup/toolchains/stable/lib/rustlib/src/rust/library/core/src/ops.rs:1:2",
        ] {
            assert!(is_own(own), "{own}");
        }
        for other in [
            "./src/log.rs:1:2",
            "./tests/storm.rs:1:2",
            "/home/me/rpma-log/src/main.rs:1:2",
            "/home/me/rpma/tests/storm.rs:1:2",
        ] {
            assert!(!is_own(other), "{other}");
        }
    }
    /// A program without debug information has no line, although C's library has some.
    #[test]
    fn a_program_without_debug_information_has_no_line() {
        const OWN: &str = "   0: rpma_sim::origin::Origin::here
             at ./rpma-sim/src/origin.rs:22:38
   1: program::log::append
";
        const LIBRARIES: &str =
            "             at /rustc/5980/library/core/src/ops/function.rs:287:21
             at ./csu/../sysdeps/nptl/libc_start_call_main.h:58:16
             at ./misc/../sysdeps/unix/sysv/linux/x86_64/clone3.S:81:0
";
        let line = "             at ./src/log.rs:70:9\n";
        assert_eq!(line_in(&format!("{OWN}{LIBRARIES}")), None);
        let found = line_in(&format!("{OWN}{line}{LIBRARIES}"));
        assert_eq!(found.as_deref(), Some("src/log.rs:70"));
    }
}
