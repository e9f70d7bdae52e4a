//! Programs that tests start: this repository's examples, and C programs that use librpma.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rpma::{Ep, Peer};
use rustix::process::{Pid, Signal, kill_process};

use super::addr;

/// A program at work. It ends after a minute at the latest, and when this is dropped.
pub(crate) struct Program {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

/// How a program ended, and what it printed.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit status: 124 if the program had to be ended, none after a signal.
    pub(crate) status: Option<i32>,
    /// What it printed to stdout, but for the lines that were read before.
    pub(crate) lines: Vec<String>,
    pub(crate) stderr: String,
}

impl Program {
    pub(crate) fn start(program: &str, args: &[&str]) -> Self {
        let mut child = Command::new("timeout")
            .args(["--kill-after=5", "60", program])
            .args(args)
            // An example says that it listens.
            .env("RUST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("`timeout` of coreutils starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        Self {
            child,
            stdout,
            stderr,
        }
    }

    /// A C program of this repository: the path of its source, without `.c`.
    pub(crate) fn c(source: &str, args: &[&str]) -> Self {
        Self::start(&executable(source), args)
    }

    /// Waits until a C server listens.
    pub(crate) fn listening(mut self) -> Self {
        assert_eq!(self.line(), "listening");
        self
    }

    /// An example: it was built beside the tests.
    pub(crate) fn example(name: &str, args: &[&str]) -> Self {
        let test = std::env::current_exe().expect("a path");
        let built = test.ancestors().nth(2).expect("a target directory");
        let program = built.join("examples").join(name);
        assert!(program.is_file(), "{} is built", program.display());
        Self::start(program.to_str().expect("text"), args)
    }

    /// The server of an example, once it listens: a client that comes too early would be refused.
    pub(crate) fn example_server(name: &str, addr: &str, port: u16, more: &[&str]) -> Self {
        let text = port.to_string();
        let mut server = Self::example(name, &[&["server", addr, &text], more].concat());
        // What the library logs says it sooner, and takes less, than asking the kernel again and again.
        let wanted = format!("waiting for connections on {addr}:{port}\n");
        let mut line = String::new();
        while !line.ends_with(&wanted) {
            line.clear();
            if server.stderr.read_line(&mut line).expect("text") == 0 {
                panic!("it ends before it listens: {:?}", server.end());
            }
        }
        server
    }

    /// The next line.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("text");
        if !line.ends_with('\n') {
            let text = self.stderr();
            panic!("{:?} after {line:?}: {text}", self.child.wait());
        }
        line.truncate(line.len() - 1);
        line
    }

    /// All lines up to the end.
    fn rest(&mut self) -> Vec<String> {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).expect("text");
        text.lines().map(str::to_owned).collect()
    }

    fn stderr(&mut self) -> String {
        let mut text = String::new();
        self.stderr.read_to_string(&mut text).expect("text");
        text
    }

    /// Waits for the end, whatever it is.
    pub(crate) fn end(mut self) -> Ended {
        Ended {
            lines: self.rest(),
            stderr: self.stderr(),
            status: self.child.wait().expect("its status").code(),
        }
    }

    /// Waits for the end of a C program, which must be a success, and returns the lines up to it.
    pub(crate) fn finish(self) -> Vec<String> {
        self.end().succeed()
    }
}

impl Ended {
    /// The lines of a C program, which must have been a success.
    pub(crate) fn succeed(mut self) -> Vec<String> {
        assert_eq!(self.status, Some(0), "{self:?}");
        assert_eq!(self.lines.pop().as_deref(), Some("done"), "{self:?}");
        self.lines
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // `timeout` passes it on.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

/// A port that nobody listens on, and that this gave to nobody before.
pub(crate) fn free_port(peer: &Peer) -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let ep = Ep::listen(peer, &addr(), 0).expect("a port that is free");
        let port = ep.get_port();
        ep.shutdown().expect("and is free again");
        let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
        if given.insert(port) {
            return port;
        }
    }
}

/// The path of a C program, which is compiled at its first use.
///
/// The file has no name any more, so that nothing is left behind: it runs through this descriptor.
fn executable(source: &str) -> String {
    static PROGRAMS: Mutex<BTreeMap<String, File>> = Mutex::new(BTreeMap::new());
    let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    let file = programs
        .entry(source.to_owned())
        .or_insert_with(|| compile(source));
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

fn compile(source: &str) -> File {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{source}.c"));
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("program");
    let output = Command::new("cc")
        .args(["-std=c11", "-D_POSIX_C_SOURCE=200809L"])
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"])
        .args([&program, &source])
        .args(["-lrpma", "-libverbs"])
        .output()
        .expect("`cc` starts: librpma-dev and a C compiler are needed");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}", source.display());
    File::open(program).expect("the program")
}

/// The rest of the line that begins with `name`.
pub(crate) fn find<'a>(lines: &'a [String], name: &str) -> &'a str {
    let found = lines.iter().find_map(|line| line.strip_prefix(name));
    found
        .unwrap_or_else(|| panic!("{name} in {lines:?}"))
        .trim()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(byte).collect()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
