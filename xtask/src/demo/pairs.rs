//! librpma's examples: a server and its clients, on DRAM and, where they know it, on persistent
//! memory.

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::build;
use super::place::{DEVDAX, GUEST_ADDRESS, HostDevice, LIMIT, Place};
use super::runs::{Contents, EXAMPLES, Example, LOG, Run, Values, canonical, find};
use crate::guest::Guest;
use crate::host::Workspace;
use crate::progress::Step;
use crate::vm::{Lifetime, Remote, Vm};

/// librpma's own default.
const PORT: &str = "7204";
/// For how many seconds a server waits for one more client. Three start within this time, emulated
/// and on a busy machine.
const WAIT: u32 = 20;

/// One example.
#[derive(Clone, Copy, Debug)]
pub(super) enum Show {
    Pair(&'static Example),
    Log,
}

impl Show {
    pub(super) fn find(name: &str) -> Result<Self> {
        if name == LOG {
            return Ok(Self::Log);
        }
        if let Some(example) = find(name) {
            return Ok(Self::Pair(example));
        }
        let mut known = String::new();
        for show in Self::all() {
            known += &format!("\n  {:<42} {}", show.name(), show.shows());
        }
        bail!(
            "no example is called \"{name}\". The examples are (the beginning of a name is enough, \
             such as 05 or 08srq):{known}"
        );
    }

    fn all() -> impl Iterator<Item = Self> {
        EXAMPLES.iter().map(Self::Pair).chain([Self::Log])
    }

    fn name(self) -> &'static str {
        match self {
            Self::Pair(example) => example.name,
            Self::Log => LOG,
        }
    }

    fn shows(self) -> &'static str {
        match self {
            Self::Pair(example) => example.shows,
            Self::Log => "what the library logs, and taking its log into one's own hands",
        }
    }
}

/// Shows one example, with what its programs print.
pub(super) fn one(workspace: &Workspace, show: Show, host: bool) -> Result<()> {
    println!("{}: {}\n", show.name(), show.shows());
    let theatre = Theatre::build(workspace, &[show.name()], host)?;
    theatre.open()?.show(show, &mut say)?;
    Ok(())
}

/// Runs all examples, with one line for each. Tells whether all went well.
pub(super) fn all(workspace: &Workspace, host: bool) -> Result<bool> {
    let names: Vec<_> = Show::all().map(Show::name).collect();
    let theatre = Theatre::build(workspace, &names, host)?;
    let (passed, opened) = each(
        || theatre.open(),
        |stage, show| {
            let step = Step::start(show.name());
            match stage.show(show, &mut |_| {}) {
                Ok(note) => step.done(&note),
                Err(error) => {
                    step.failed("");
                    println!("\nFAILED {}: {error:#}\n", show.name());
                    return false;
                }
            }
            true
        },
    );
    println!("\n{passed} passed, {} failed", names.len() - passed);
    opened.context("the remaining examples had no place to run")?;
    Ok(passed == names.len())
}

/// Runs all examples; tells how many went well, and why some were not run, if so.
///
/// A stage serves until an example fails on it. Nobody knows then what is in its memory, and whether
/// a server that was left alone still has the port: the next example gets a new stage.
fn each<S>(
    open: impl Fn() -> Result<S>,
    mut act: impl FnMut(&mut S, Show) -> bool,
) -> (usize, Result<()>) {
    let (mut passed, mut kept) = (0, None);
    for show in Show::all() {
        let mut stage = match kept.take().map_or_else(&open, Ok) {
            Ok(stage) => stage,
            Err(error) => return (passed, Err(error)),
        };
        if act(&mut stage, show) {
            passed += 1;
            kept = Some(stage);
        }
    }
    (passed, Ok(()))
}

/// The programs, and where their stages come from.
#[derive(Debug)]
struct Theatre<'a> {
    workspace: &'a Workspace,
    programs: PathBuf,
    address: String,
    pmem: Option<String>,
    /// `None`: this host.
    guest: Option<Guest>,
    /// The guest's memory is in here.
    dir: PathBuf,
    /// On `dir`.
    _lock: File,
}

impl<'a> Theatre<'a> {
    /// Builds the examples.
    fn build(workspace: &'a Workspace, examples: &[&str], host: bool) -> Result<Self> {
        let (dir, lock) = workspace.own_dir("demo")?;
        let (address, pmem, guest, programs);
        if host {
            let device = HostDevice::find()?;
            (address, pmem, guest) = (device.address, device.devdax, None);
            programs = build::on_host(workspace, examples)?;
        } else {
            let found = Guest::get(workspace)?;
            programs = build::in_guest(workspace, &found, examples)?;
            (address, pmem) = (GUEST_ADDRESS.to_owned(), Some(DEVDAX.to_owned()));
            guest = Some(found);
        }
        Ok(Self {
            workspace,
            programs,
            address,
            pmem,
            guest,
            dir,
            _lock: lock,
        })
    }

    /// A guest that has just booted, with nothing in its memory; or this host.
    fn open(&self) -> Result<Stage> {
        let (mut vm, mut contents, mut place) = (None, None, Place::Host);
        if let Some(guest) = &self.guest {
            Vm::forget_memory(&self.dir)?;
            contents = Some(Contents::EMPTY);
            let booted = Vm::boot(guest, self.workspace, &self.dir, Lifetime::Ours, "boot")?;
            place = Place::Guest(booted.ssh().clone());
            vm = Some(booted);
        }
        Ok(Stage {
            logs: self.workspace.state_dir("logs")?,
            programs: self.programs.clone(),
            address: self.address.clone(),
            pmem: self.pmem.clone(),
            contents,
            place,
            _vm: vm,
        })
    }
}

impl Drop for Theatre<'_> {
    fn drop(&mut self) {
        let _ = Vm::forget_memory(&self.dir);
    }
}

/// Where the examples run.
#[derive(Debug)]
struct Stage {
    logs: PathBuf,
    programs: PathBuf,
    address: String,
    pmem: Option<String>,
    /// What is in the persistent memory, if that is known: then what is printed is known as well.
    contents: Option<Contents>,
    place: Place,
    /// The guest, which ends with this.
    _vm: Option<Vm>,
}

impl Stage {
    /// Runs an example; tells on what. `say` gets the lines to show.
    fn show(&mut self, show: Show, say: &mut dyn FnMut(&str)) -> Result<String> {
        let example = match show {
            Show::Pair(example) => example,
            Show::Log => {
                // Both streams: what it has to show goes to stderr.
                let log = self.log("log");
                let program = self.programs.join(LOG);
                let command = self.place.command(&[&program.display().to_string()]);
                Remote::start(LOG, command, &log)?.finish(LIMIT)?;
                for line in fs::read_to_string(log)?.lines() {
                    say(&format!("  {line}"));
                }
                return Ok(String::new());
            }
        };
        say("\nOn DRAM");
        self.run(example, &example.dram, None, Some(Contents::EMPTY), say)?;
        let (Some(run), Some(path)) = (&example.pmem, self.pmem.clone()) else {
            return Ok("DRAM".to_owned());
        };
        say(&format!("\nOn persistent memory, {path}"));
        self.run(example, run, Some(&path), self.contents, say)?;
        self.contents = self.contents.map(|contents| contents.after(run));
        Ok(format!("DRAM, {path}"))
    }

    /// Runs a server and its clients. Each must succeed and, if the contents of the memory are known,
    /// print what it should.
    fn run(
        &self,
        example: &Example,
        run: &Run,
        pmem: Option<&str>,
        contents: Option<Contents>,
        say: &mut dyn FnMut(&str),
    ) -> Result<()> {
        let values = Values { pmem, wait: WAIT };
        let words = |role: &str, args: Vec<String>| {
            let fixed = [role, &self.address, PORT].map(str::to_owned);
            [&fixed[..], &args].concat()
        };
        let server_words = words("server", run.server.args(&values));
        say(&format!("  $ {} {}", example.name, server_words.join(" ")));
        let mut server = self.start("server", example.name, &server_words)?;
        self.place
            .wait_listening(&mut server, &self.address, PORT)?;

        let check = |program: &super::runs::Program, remote: &Remote| match contents {
            Some(contents) => compare(&program.prints(contents), remote.seen()),
            None => Ok(()),
        };
        let mut clients = Vec::new();
        for (i, client) in run.clients.iter().enumerate() {
            let client_words = words("client", client.args(&values));
            say(&format!("  $ {} {}", example.name, client_words.join(" ")));
            let log = format!("client-{}", i + 1);
            let mut remote = self.start(&log, example.name, &client_words)?;
            if run.together {
                clients.push((client, remote));
            } else {
                finish(&mut remote, "client", say)?;
                check(client, &remote).context("the client")?;
            }
        }
        for (client, remote) in &mut clients {
            finish(remote, "client", say)?;
            check(client, remote).context("the client")?;
        }
        finish(&mut server, "server", say)?;
        check(&run.server, &server).context("the server")
    }

    /// Starts a program of an example. What it says on stderr goes to the log of `who`.
    fn start(&self, who: &str, example: &str, args: &[String]) -> Result<Remote> {
        let program = self.programs.join(example).display().to_string();
        let words: Vec<&str> = [&*program]
            .into_iter()
            .chain(args.iter().map(String::as_str))
            .collect();
        Remote::start(who, self.place.command(&words), &self.log(who))
    }

    fn log(&self, who: &str) -> PathBuf {
        self.logs.join(format!("demo-{who}.log"))
    }
}

fn say(line: &str) {
    println!("{line}");
}

/// Waits until a program has ended well, and shows what it has printed.
fn finish(remote: &mut Remote, who: &str, say: &mut dyn FnMut(&str)) -> Result<()> {
    let result = remote.finish(LIMIT);
    for line in remote.seen() {
        say(&format!("  {who}  {line}"));
    }
    result
}

fn compare(expected: &[String], seen: &[String]) -> Result<()> {
    if canonical(expected) == canonical(seen) {
        return Ok(());
    }
    bail!(
        "should have printed\n    {}\nand has printed\n    {}",
        expected.join("\n    "),
        seen.join("\n    ")
    )
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::Path;

    use super::*;

    /// What plays the programs of example 04 on new memory, and `rdma`. The server waits for a client, and
    /// a client that comes before the server listens fails.
    const PROGRAMS: &str = r#"
        case "$1 $2" in
        rdma*)
            test ! -s server || echo "link rxe0/- state LISTEN ps TCP src-addr 10.77.0.1:7204"
            ;;
        *server)
            rm -f client
            echo $$ >server
            until test -e client; do sleep 0.1; done
            rm server
            echo "New value: Hello world!"
            ;;
        *client)
            test -s server || exit 3
            test ! -e broken || exit 4
            echo "Next value: Hello world!"
            echo "translating..."
            echo "Translation: ¡Hola Mundo!"
            touch client
            ;;
        esac"#;

    fn stage(dir: &Path, contents: Option<Contents>) -> Stage {
        Stage {
            logs: dir.to_owned(),
            programs: PathBuf::from("/programs"),
            address: GUEST_ADDRESS.to_owned(),
            pmem: Some(DEVDAX.to_owned()),
            contents,
            place: Place::Script(format!("cd '{}' || exit\n{PROGRAMS}", dir.display())),
            _vm: None,
        }
    }

    fn example(name: &str) -> Show {
        Show::find(name).expect("a known example")
    }

    /// The server is started first, each program with its arguments, and all that they print is shown.
    #[test]
    fn an_example_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let mut said = Vec::new();
        let mut say = |line: &str| said.push(line.to_owned());
        let mut stage = stage(dir.path(), Some(Contents::EMPTY));
        let note = stage.show(example("04"), &mut say).unwrap();
        assert_eq!(note, "DRAM, /dev/dax0.0");
        let shown = [
            "\nOn DRAM",
            "  $ 04-write-to-persistent server 10.77.0.1 7204",
            "  $ 04-write-to-persistent client 10.77.0.1 7204",
            "  client  Next value: Hello world!",
            "  client  translating...",
            "  client  Translation: ¡Hola Mundo!",
            "  server  New value: Hello world!",
            "\nOn persistent memory, /dev/dax0.0",
            "  $ 04-write-to-persistent server 10.77.0.1 7204 /dev/dax0.0",
            "  $ 04-write-to-persistent client 10.77.0.1 7204 /dev/dax0.0 4096",
            "  client  Next value: Hello world!",
            "  client  translating...",
            "  client  Translation: ¡Hola Mundo!",
            "  server  New value: Hello world!",
        ];
        assert_eq!(said, shown);
    }

    /// What one run leaves in known memory the next one has to find; in a host's there may be anything.
    #[test]
    fn only_known_memory_is_compared() {
        let dir = tempfile::tempdir().unwrap();
        let show = |stage: &mut Stage| stage.show(example("04"), &mut |_| {});
        let mut guest = stage(dir.path(), Some(Contents::EMPTY));
        show(&mut guest).unwrap();
        let text = format!("{:#}", show(&mut guest).unwrap_err());
        let expected = "the client: should have printed\n    Next value: ¡Hola Mundo!\n";
        assert!(text.starts_with(expected), "{text}");

        let dir = tempfile::tempdir().unwrap();
        let mut host = stage(dir.path(), None);
        show(&mut host).unwrap();
        show(&mut host).unwrap();
    }

    /// A server that waits for ever for a client that has failed would keep its port.
    #[test]
    fn a_failed_run_ends_its_server() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("broken"), "").unwrap();
        let mut stage = stage(dir.path(), None);
        let error = stage.show(example("04"), &mut |_| {}).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("the client-1 failed (exit status: 4)"),
            "{text}"
        );
        let server = fs::read_to_string(dir.path().join("server")).unwrap();
        assert!(!Path::new("/proc").join(server.trim()).exists());
    }

    /// After a failure nobody knows what is on the stage.
    #[test]
    fn a_stage_is_used_until_an_example_fails_on_it() {
        let (opened, last) = (Cell::new(0), Show::all().count() - 1);
        let open = || {
            opened.set(opened.get() + 1);
            Ok(opened.get())
        };
        let (mut used, mut failing) = (Vec::new(), [0, 1, 5, last].into_iter().peekable());
        let (passed, all) = each(open, |stage, _| {
            used.push(*stage);
            failing.next_if_eq(&(used.len() - 1)).is_none()
        });
        all.unwrap();
        assert_eq!(passed, last + 1 - 4);
        assert_eq!(used[..8], [1, 2, 3, 3, 3, 3, 4, 4]);
        assert_eq!(used[last], 4);
        assert_eq!(opened.get(), 4, "none is opened for nothing");
    }

    /// A guest that does not boot again: what went well before is told all the same.
    #[test]
    fn the_examples_before_a_stage_that_cannot_be_opened_count() {
        let opened = Cell::new(0);
        let open = || match opened.replace(opened.get() + 1) {
            0 => Ok(()),
            _ => bail!("no machine"),
        };
        let mut runs = 0;
        let (passed, all) = each(open, |(), _| {
            runs += 1;
            runs < 3
        });
        assert_eq!(passed, 2);
        assert_eq!(all.unwrap_err().to_string(), "no machine");
        assert_eq!(runs, 3, "nothing runs without a stage");
    }

    fn name(text: &str) -> String {
        match Show::find(text) {
            Ok(show) => show.name().to_owned(),
            Err(error) => format!("{error}"),
        }
    }

    #[test]
    fn the_beginning_of_a_name_is_enough() {
        assert_eq!(name("01"), "01-connection");
        assert_eq!(name("08-messages-ping-pong"), "08-messages-ping-pong");
        assert_eq!(name("08"), "08-messages-ping-pong", "and not 08srq");
        assert_eq!(name("08srq"), "08srq-simple-messages-ping-pong-with-srq");
        assert_eq!(name("06s"), "06scch-multiple-connections");
        assert_eq!(name("log"), "log");
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        for unknown in ["", "0", "1", "l", "5", "05-flush-to-persistent-x"] {
            let text = name(unknown);
            for show in Show::all() {
                assert!(text.contains(show.name()), "{unknown:?}: {text}");
            }
        }
    }

    /// A prefix that leads to one example leads to that very one.
    #[test]
    fn every_example_is_found_by_its_name() {
        for show in Show::all() {
            assert_eq!(name(show.name()), show.name());
            let (number, _) = show.name().split_once('-').unwrap_or((show.name(), ""));
            assert_eq!(name(number), show.name());
        }
    }

    #[test]
    fn what_was_left_in_persistent_memory_is_known() {
        let Some(Show::Pair(example)) = Show::find("05").ok() else {
            panic!("05 is a pair");
        };
        let run = example.pmem.as_ref().expect("05 knows persistent memory");
        let first = Contents::EMPTY;
        assert_eq!(run.server.prints(first), ["New value: Hello world!"]);
        let second = first.after(run);
        assert_eq!(
            run.server.prints(second),
            ["Old value: Hello world!", "New value: ¡Hola Mundo!"]
        );
        let third = second.after(run);
        assert_eq!(
            run.server.prints(third),
            ["Old value: ¡Hola Mundo!", "New value: Hello world!"]
        );
        let Some(Show::Pair(example)) = Show::find("07").ok() else {
            panic!("07 is a pair");
        };
        let log = example.pmem.as_ref().expect("07 knows persistent memory");
        assert_eq!(log.clients[0].prints(third), ["used value: 16"]);
        let fourth = third.after(log);
        assert_eq!(log.clients[0].prints(fourth), ["used value: 43"]);
        assert_eq!(log.server.prints(fourth).len(), 6);
        // The log overwrites the server's greeting, and the client's stays.
        assert_eq!(run.server.prints(fourth), ["New value: Hello world!"]);
    }

    #[test]
    fn arguments_are_filled_in() {
        let values = Values {
            pmem: Some("/dev/dax0.0"),
            wait: 3,
        };
        let run = find("05").and_then(|example| example.pmem.as_ref());
        let run = run.expect("05 knows persistent memory");
        assert_eq!(run.server.args(&values), ["/dev/dax0.0", "on"]);
        assert_eq!(run.clients[0].args(&values), ["/dev/dax0.0", "4096"]);
        let run = &find("13").expect("known").dram;
        assert_eq!(run.server.args(&values), ["3"]);
    }

    #[test]
    fn clients_may_be_served_in_any_order() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let a = lines("start\nx 1 [qp#7]\nx 5 [qp#8]\nx 2 [qp#7]\nend [client #12] here");
        let b = lines("start\nx 5 [qp#1]\nx 1 [qp#2]\nx 2 [qp#2]\nend [client #3] here");
        assert_eq!(canonical(&a), canonical(&b));
        let c = lines("start\nx 5 [qp#1]\nx 2 [qp#2]\nx 1 [qp#2]\nend [client #3] here");
        assert_ne!(
            canonical(&a),
            canonical(&c),
            "of one client the order counts"
        );
        let d = lines("start\nx 5 [qp#2]\nx 1 [qp#2]\nx 2 [qp#2]\nend [client #3] here");
        assert_ne!(canonical(&a), canonical(&d), "these are of one client");
        let e = lines("x 5 [qp#1]\nx 1 [qp#2]\nx 2 [qp#2]\nend [client #3] here\nstart");
        assert_ne!(
            canonical(&a),
            canonical(&e),
            "the other lines have an order"
        );
    }

    #[test]
    fn other_output_is_an_error_that_shows_both() {
        let (expected, seen) = (["a".to_owned()], ["b".to_owned()]);
        assert!(compare(&expected, &expected).is_ok());
        let text = compare(&expected, &seen).unwrap_err().to_string();
        assert!(
            text.contains("    a\n") && text.ends_with("    b"),
            "{text}"
        );
    }
}
