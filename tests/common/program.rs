//! Programs that tests start, this repository's examples and C programs that use librpma: read line
//! by line, and never left running.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rpma::Ep;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::{LIMIT, Result, device_test, peer};

/// A program at work. It ends at a time limit, and when this is dropped.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    child: Child,
    lines: Receiver<Read>,
    stdout: Vec<String>,
    /// How many lines of `stdout` were read one by one.
    read: usize,
    stderr: Vec<String>,
    /// When the last line of stdout came, or else when the program was started.
    last_line: Instant,
    /// When stdout was closed.
    closed: Option<Instant>,
    deadline: Instant,
}

/// The result of reading a stream.
#[derive(Debug)]
enum Read {
    Out(String, Instant),
    Err(String),
    /// The end of stdout.
    Closed(Instant),
}

/// How a program has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit status: 124 if the program had to be ended, `None` after a signal.
    pub(crate) status: Option<i32>,
    /// Its output, except for the lines that were read before.
    pub(crate) stdout: Vec<String>,
    pub(crate) stderr: Vec<String>,
    /// For how long it had printed no line when it ended, whenever the test has looked.
    pub(crate) silent: Duration,
}

impl Program {
    /// The client or the server of an example.
    pub(crate) fn example(name: &str, args: &[&str]) -> Self {
        Self::start(&[&[&*executable(name)], args].concat(), LIMIT)
    }

    /// The server of an example, once it listens.
    pub(crate) fn example_server(name: &str, addr: &str, port: u16, more: &[&str]) -> Self {
        let text = port.to_string();
        let mut server = Self::example(name, &[&["server", addr, &text], more].concat());
        server.wait_listening(addr, port);
        server
    }

    /// A C program of this repository: the path of its source, without `.c`.
    pub(crate) fn c(source: &str, args: &[&str]) -> Self {
        Self::start(&[&[&*c_executable(source)], args].concat(), LIMIT)
    }

    /// Waits until a C server listens.
    pub(crate) fn listening(mut self) -> Self {
        assert_eq!(self.line(), "listening");
        self
    }

    /// `words` are the program and its arguments.
    pub(crate) fn start(words: &[&str], limit: Duration) -> Self {
        // If this test is killed, this is not dropped: `timeout` ends the program then.
        let mut child = Command::new("timeout")
            .args(["--kill-after=5", &limit.as_secs().to_string()])
            .args(words)
            // An example's log has a line when it listens.
            .env("RUST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("`timeout` of coreutils starts");
        let (to_err, lines) = mpsc::channel();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let to_out = to_err.clone();
        thread::spawn(move || {
            for line in lines_of(stdout.expect("a pipe")) {
                if to_out.send(Read::Out(line, Instant::now())).is_err() {
                    return;
                }
            }
            // The receiver may be gone.
            let _ = to_out.send(Read::Closed(Instant::now()));
        });
        thread::spawn(move || {
            let mut lines = lines_of(stderr.expect("a pipe"));
            lines.try_for_each(|line| to_err.send(Read::Err(line)))
        });
        Self {
            name: words.join(" "),
            child,
            lines,
            stdout: Vec::new(),
            read: 0,
            stderr: Vec::new(),
            last_line: Instant::now(),
            closed: None,
            deadline: Instant::now() + limit,
        }
    }

    /// Waits until an example listens: a client that comes too early would be rejected. Reading the
    /// library's log is quicker and cheaper than asking the kernel again and again.
    pub(crate) fn wait_listening(&mut self, addr: &str, port: u16) {
        self.wait_for(&format!("waiting for connections on {addr}:{port}"));
    }

    /// The next line on stdout.
    pub(crate) fn line(&mut self) -> String {
        while self.stdout.len() == self.read {
            if self.next().is_none() {
                let ended = self.end();
                panic!("{} ended: {ended:?}", self.name);
            }
        }
        self.read += 1;
        self.stdout[self.read - 1].clone()
    }

    /// Waits for a line on either stream that has `text` in it.
    pub(crate) fn wait_for(&mut self, text: &str) {
        while let Some(line) = self.next() {
            if line.contains(text) {
                return;
            }
        }
        let ended = self.end();
        panic!("{} ended without {text:?}: {ended:?}", self.name);
    }

    /// Whether a line on either stream, of those that are here by now, has `text` in it.
    pub(crate) fn has_said(&mut self, text: &str) -> bool {
        while let Ok(read) = self.lines.try_recv() {
            self.take(read);
        }
        let mut lines = self.stdout.iter().chain(&self.stderr);
        lines.any(|line| line.contains(text))
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits for its end.
    pub(crate) fn finish(mut self) -> Ended {
        self.end()
    }

    /// Waits for the end of a C program, which must be a success, and returns its lines.
    pub(crate) fn done(self) -> Vec<String> {
        self.finish().done()
    }

    /// Does something while the program stands still, as on a busy machine.
    pub(crate) fn standing_still(&self, act: impl FnOnce() -> Result) -> Result {
        /// Needed even if `act` panics: a program that stands still cannot be ended.
        struct GoOn(Pid);
        impl Drop for GoOn {
            fn drop(&mut self) {
                let _ = kill_process_group(self.0, Signal::CONT);
            }
        }
        // `timeout` is the leader of a group.
        let group = Pid::from_child(&self.child);
        kill_process_group(group, Signal::STOP)?;
        let _go_on = GoOn(group);
        act()?;
        Ok(())
    }

    /// Kills it.
    pub(crate) fn kill(self) {
        drop(self);
    }

    fn end(&mut self) -> Ended {
        while self.next().is_some() {}
        let closed = self.closed.expect("both streams have ended");
        Ended {
            status: self.child.wait().expect("its status").code(),
            stdout: self.stdout.split_off(self.read),
            stderr: std::mem::take(&mut self.stderr),
            silent: closed - self.last_line,
        }
    }

    /// The next line of either stream, until both have ended.
    fn next(&mut self) -> Option<String> {
        // `timeout` and its child end before.
        let late = self.deadline + Duration::from_secs(20);
        loop {
            match self.lines.recv_timeout(late - Instant::now()) {
                Ok(read) => {
                    if let Some(line) = self.take(read) {
                        return Some(line);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{} hangs: {:?} {:?}", self.name, self.stdout, self.stderr)
                }
            }
        }
    }

    /// Keeps the result, and returns the line if it is one.
    fn take(&mut self, read: Read) -> Option<String> {
        let (seen, line) = match read {
            Read::Out(line, at) => {
                self.last_line = at;
                (&mut self.stdout, line)
            }
            Read::Err(line) => (&mut self.stderr, line),
            Read::Closed(at) => {
                self.closed = Some(at);
                return None;
            }
        };
        seen.push(line.clone());
        Some(line)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // `timeout` passes it on, and waits.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

impl Ended {
    /// The lines of a C program, which must have been a success.
    pub(crate) fn done(mut self) -> Vec<String> {
        assert_eq!(self.status, Some(0), "{self:?}");
        assert_eq!(self.stdout.pop().as_deref(), Some("done"), "{self:?}");
        self.stdout
    }

    /// It must have succeeded.
    pub(crate) fn success(self, what: &str) -> Self {
        assert_eq!(self.status, Some(0), "{what}: {self:?}");
        self
    }

    /// It must have failed with this status, and said why.
    pub(crate) fn failure(self, status: i32, what: &str) -> Self {
        assert_eq!(self.status, Some(status), "{what}: {self:?}");
        assert!(!self.stderr.is_empty(), "{what} says why: {self:?}");
        self
    }

    /// Whether a line on stderr has `text` in it.
    pub(crate) fn says(&self, text: &str) -> bool {
        self.stderr.iter().any(|line| line.contains(text))
    }
}

fn lines_of(stream: impl io::Read) -> impl Iterator<Item = String> {
    let lines = BufReader::new(stream).split(b'\n');
    lines.map(|bytes| String::from_utf8_lossy(&bytes.expect("a pipe")).into_owned())
}

/// The words that run one test of this program in a process of its own, with its output. The test is
/// of the module that is `module_path!()`.
pub(crate) fn alone(module: &str, test: &str) -> Vec<String> {
    let program = std::env::current_exe().expect("the path of this test");
    let program = program.to_str().expect("text");
    let (_, module) = module.split_once("::").expect("a module of the program");
    let test = format!("{module}::{test}");
    let words = [program, &test, "--exact", "--nocapture", "--test-threads=1"];
    words.map(str::to_owned).to_vec()
}

/// The command of [`alone`].
pub(crate) fn command_alone(module: &str, test: &str) -> Command {
    let words = alone(module, test);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// The path of an example, which cargo has built beside this test.
pub(crate) fn executable(name: &str) -> String {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.ancestors().nth(2).expect("the build directory");
    let path: PathBuf = profile.join("examples").join(name);
    let built = path.is_file();
    assert!(built, "{path:?}: `cargo build --examples` comes first");
    path.to_str().expect("text").to_owned()
}

/// A port without a listener, which no other program gets by chance: it is given once, and lies
/// below those that the kernel picks for itself.
pub(crate) fn free_port(addr: &str) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    let peer = peer().expect("a peer on the test device");
    let is_free = |port: &u16| match Ep::listen(&peer, addr, *port) {
        Ok(ep) => ep.shutdown().is_ok(),
        Err(_) => false,
    };
    let mut ports = (0..1000).map(|_| NEXT.fetch_add(1, Ordering::Relaxed));
    ports.find(is_free).expect("a port that is free")
}

/// The path of a C program that uses librpma, which is compiled at its first use.
pub(crate) fn c_executable(source: &str) -> String {
    compiled(source, &["-lrpma", "-libverbs"])
}

/// The path of a shared object for `LD_PRELOAD`, which is compiled at its first use: that of its
/// source, without `.c`.
pub(crate) fn c_preload(source: &str) -> String {
    compiled(source, &["-shared", "-fPIC", "-ldl"])
}

/// The file has no name any more, so that no file stays: it is there through this descriptor.
fn compiled(source: &str, options: &[&str]) -> String {
    static PROGRAMS: Mutex<BTreeMap<String, File>> = Mutex::new(BTreeMap::new());
    let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    let file = programs
        .entry(source.to_owned())
        .or_insert_with(|| compile(source, options).expect("the program"));
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

fn compile(source: &str, options: &[&str]) -> Result<File> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{source}.c"));
    let dir = tempfile::tempdir()?;
    let program = dir.path().join("program");
    let output = Command::new("cc")
        .args(["-std=c11", "-D_POSIX_C_SOURCE=200809L"])
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"])
        .args([&program, &source])
        .args(options)
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}", source.display());
    Ok(File::open(program)?)
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

/// The words, for the arguments of a program.
pub(crate) fn words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// A device test that checks each case, all of them at the same time: most of it is waiting for
/// programs to start.
pub(crate) fn together<T: Sync>(cases: &[T], check: impl Fn(&T) + Sync) {
    let _test = device_test();
    thread::scope(|scope| {
        for case in cases {
            scope.spawn(|| check(case));
        }
    });
}
