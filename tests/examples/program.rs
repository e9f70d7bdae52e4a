//! The programs of the examples at work: started, read line by line, and never left behind.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rpma::Ep;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{LIMIT, peer};

/// A program at work. It ends at a time limit, and when this is dropped.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    child: Child,
    lines: Receiver<Line>,
    stdout: Vec<String>,
    stderr: Vec<String>,
    deadline: Instant,
}

#[derive(Debug)]
enum Line {
    Out(String),
    Err(String),
}

/// How a program has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<String>,
    pub(crate) stderr: Vec<String>,
}

impl Program {
    /// The client or the server of an example.
    pub(crate) fn example(name: &str, args: &[&str]) -> Self {
        Self::start(&[&[&*executable(name)], args].concat(), LIMIT)
    }

    /// `words` are the program and its arguments.
    pub(crate) fn start(words: &[&str], limit: Duration) -> Self {
        // If this test is killed, nobody drops this: `timeout` ends the program then.
        let mut child = Command::new("timeout")
            .args(["--kill-after=5", &limit.as_secs().to_string()])
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("`timeout` of coreutils starts");
        let (sender, lines) = mpsc::channel();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        read(stdout.expect("a pipe"), sender.clone(), Line::Out);
        read(stderr.expect("a pipe"), sender, Line::Err);
        Self {
            name: words.join(" "),
            child,
            lines,
            stdout: Vec::new(),
            stderr: Vec::new(),
            deadline: Instant::now() + limit,
        }
    }

    /// Waits until the kernel says that somebody listens on `port`: a client that comes too early
    /// would be rejected.
    pub(crate) fn wait_listening(&mut self, port: u16) {
        let wanted = format!(":{port} ");
        loop {
            let output = Command::new("rdma")
                .args(["resource", "show", "cm_id"])
                .output()
                .expect("`rdma` of iproute2 shows the kernel's objects");
            let ids = String::from_utf8_lossy(&output.stdout).into_owned();
            let mut ids = ids.lines().filter(|id| id.contains("state LISTEN"));
            if ids.any(|id| id.contains(&wanted)) {
                return;
            }
            if !self.runs() || Instant::now() > self.deadline {
                let ended = self.end();
                panic!("{} does not listen: {ended:?}", self.name);
            }
            thread::sleep(Duration::from_millis(30));
        }
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

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().expect("its status").is_none()
    }

    /// Waits for its end.
    pub(crate) fn finish(mut self) -> Ended {
        self.end()
    }

    /// Kills it.
    pub(crate) fn kill(self) {
        drop(self);
    }

    fn end(&mut self) -> Ended {
        while self.next().is_some() {}
        Ended {
            status: self.child.wait().expect("its status"),
            stdout: std::mem::take(&mut self.stdout),
            stderr: std::mem::take(&mut self.stderr),
        }
    }

    /// The next line of either stream, until both have ended.
    fn next(&mut self) -> Option<String> {
        // `timeout` and its child end before.
        let late = self.deadline + Duration::from_secs(20);
        let line = match self.lines.recv_timeout(late - Instant::now()) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {
                panic!("{} hangs: {:?} {:?}", self.name, self.stdout, self.stderr)
            }
        };
        let (seen, line) = match line {
            Line::Out(line) => (&mut self.stdout, line),
            Line::Err(line) => (&mut self.stderr, line),
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
    /// It must have succeeded.
    pub(crate) fn success(self, what: &str) -> Self {
        assert!(self.status.success(), "{what}: {self:?}");
        self
    }

    /// It must have failed with this status, and said why.
    pub(crate) fn failure(self, status: i32, what: &str) -> Self {
        assert_eq!(self.status.code(), Some(status), "{what}: {self:?}");
        assert!(!self.stderr.is_empty(), "{what} says why: {self:?}");
        self
    }

    /// Whether a line on stderr has `text` in it.
    pub(crate) fn says(&self, text: &str) -> bool {
        self.stderr.iter().any(|line| line.contains(text))
    }
}

fn read(stream: impl Read + Send + 'static, sender: Sender<Line>, line: fn(String) -> Line) {
    thread::spawn(move || {
        for bytes in BufReader::new(stream).split(b'\n') {
            let text = String::from_utf8_lossy(&bytes.expect("a pipe")).into_owned();
            if sender.send(line(text)).is_err() {
                break;
            }
        }
    });
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

/// A port on which nobody listens, and which nobody gets by chance: it is given once, and lies below
/// those that the kernel picks for itself.
pub(crate) fn free_port(addr: &str) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    let peer = peer();
    let is_free = |port: &u16| match Ep::listen(&peer, addr, *port) {
        Ok(ep) => ep.shutdown().is_ok(),
        Err(_) => false,
    };
    let mut ports = (0..1000).map(|_| NEXT.fetch_add(1, Ordering::Relaxed));
    ports.find(is_free).expect("a port that is free")
}
