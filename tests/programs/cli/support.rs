//! Running `rpma`, and lines of shell around it.

use std::path::PathBuf;

pub(crate) use crate::common::prelude::*;
use crate::common::program::{Ended, Program};

/// The path of the program, which cargo has built beside this test.
pub(crate) fn executable() -> String {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.ancestors().nth(2).expect("the build directory");
    let path: PathBuf = profile.join("rpma");
    let built = path.is_file();
    assert!(built, "{path:?}: `cargo build -p rpma-cli` comes first");
    path.to_str().expect("text").to_owned()
}

/// Runs `rpma` to its end.
pub(crate) fn rpma(args: &[&str]) -> Ended {
    Program::start(&[&[&*executable()], args].concat(), LIMIT).finish()
}

/// Runs lines of shell, which have mounts of their own. `$rpma` is the program, and `$user` the
/// beginning of a command of an ordinary user. Only root may do that.
pub(crate) fn shell(lines: &str) -> Ended {
    const USER: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let script = format!("set -eu; rpma={}; user='{USER}'\n{lines}", executable());
    Program::start(&["unshare", "--mount", "sh", "-c", &script], LIMIT).finish()
}

/// The line of standard output that has `text` in it, and the line after it.
pub(crate) fn found<'a>(ended: &'a Ended, text: &str) -> (&'a str, &'a str) {
    let at = ended.stdout.iter().position(|line| line.contains(text));
    let at = at.unwrap_or_else(|| panic!("{text:?} in {ended:#?}"));
    let next = ended.stdout.get(at + 1).map_or("", String::as_str);
    (&ended.stdout[at], next)
}

/// It has ended with status 1, and has a bad finding with this text and this remedy.
pub(crate) fn finds(ended: &Ended, text: &str, remedy: &str) {
    assert_eq!(ended.status, Some(1), "{ended:#?}");
    let (line, next) = found(ended, text);
    assert!(line.starts_with("BAD"), "{line}");
    let is_remedy = next.trim_start().starts_with("-> ") && next.contains(remedy);
    assert!(is_remedy, "{next}");
}
