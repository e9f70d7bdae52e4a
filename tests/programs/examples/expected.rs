//! The output of a run, given the contents of the persistent memory before it; and the parts of two
//! runs' lines that are compared.

use crate::examples::runs::{EMPTY_LOG, GREETINGS, Program, Run, WORDS, WORDS_SIZE};

/// The values that the arguments stand for.
#[derive(Debug)]
pub(crate) struct Values<'a> {
    pub(crate) pmem: Option<&'a str>,
    pub(crate) wait: u32,
    /// The address and the port of the second server.
    pub(crate) second: Option<(&'a str, u16)>,
}

/// The contents of the persistent memory before a run: in the server's part a greeting, or a log to
/// which the words were added so many times, or neither; in the client's part a greeting. DRAM is
/// always empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    old: Option<usize>,
    logged: usize,
    next: usize,
}

impl Contents {
    pub(crate) const EMPTY: Self = Self {
        old: None,
        logged: 0,
        next: 0,
    };

    /// The contents after this run on persistent memory.
    pub(crate) fn after(self, run: &Run) -> Self {
        if run.server.prints.contains(&"{logged}") {
            return Self {
                old: None,
                logged: self.logged + 1,
                ..self
            };
        }
        Self {
            old: Some(self.next),
            logged: 0,
            next: 1 - self.next,
        }
    }
}

impl Values<'_> {
    /// The arguments of a program.
    pub(crate) fn args(&self, program: &Program) -> Vec<String> {
        let (addr, second) = self.second.unwrap_or_default();
        let fill = |arg: &&str| {
            arg.replace("{pmem}", self.pmem.unwrap_or_default())
                .replace("{wait}", &self.wait.to_string())
                .replace("{addr}", addr)
                .replace("{second}", &second.to_string())
        };
        program.args.iter().map(fill).collect()
    }
}

impl Contents {
    /// The output of a program then.
    pub(crate) fn printed(self, program: &Program) -> Vec<String> {
        let used = EMPTY_LOG + self.logged * WORDS_SIZE;
        let mut lines = Vec::new();
        for line in program.prints {
            let line = line
                .replace("{next}", GREETINGS[self.next])
                .replace("{other}", GREETINGS[1 - self.next])
                .replace("{used}", &used.to_string());
            if line == "{logged}" {
                for _ in 0..self.logged {
                    lines.extend(WORDS.iter().map(|&word| word.to_owned()));
                }
                continue;
            }
            match self.old {
                Some(old) => lines.push(line.replace("{old}", GREETINGS[old])),
                None if line.contains("{old}") => {}
                None => lines.push(line),
            }
        }
        lines
    }
}

/// The lines without the parts that differ from run to run: the numbers of processes and queue
/// pairs, and the order in which several clients are served. That of the lines about one client
/// stays.
pub(crate) fn canonical(lines: &[String]) -> Vec<String> {
    let (mut ordered, mut by_client) = (Vec::new(), Vec::<(&str, Vec<String>)>::new());
    for line in lines {
        match numbered(line, "[qp#") {
            Some((client, line)) => {
                match by_client.iter_mut().find(|(known, _)| *known == client) {
                    Some((_, lines)) => lines.push(line),
                    None => by_client.push((client, vec![line])),
                }
            }
            None => {
                let without = numbered(line, "[client #").map(|(_, line)| line);
                ordered.push(without.unwrap_or_else(|| line.clone()));
            }
        }
    }
    let mut by_client: Vec<_> = by_client.into_iter().map(|(_, lines)| lines).collect();
    by_client.sort();
    ordered.extend(by_client.into_iter().flatten());
    ordered
}

/// The number between `prefix` and "]", and the line with a "*" for it.
fn numbered<'a>(line: &'a str, prefix: &str) -> Option<(&'a str, String)> {
    let (before, after) = line.split_once(prefix)?;
    let (number, after) = after.split_once(']')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| (number, format!("{before}{prefix}*]{after}")))
}

mod tests {
    use super::*;
    use crate::common::Result;
    use crate::examples::runs::find;

    #[test]
    fn what_was_left_in_persistent_memory_is_known() -> Result {
        let run = |name| find(name).and_then(|example| example.pmem.as_ref());
        let run5 = run("05").ok_or("05 knows persistent memory")?;
        let first = Contents::EMPTY;
        assert_eq!(first.printed(&run5.server), ["New value: Hello world!"]);
        let second = first.after(run5);
        let lines = ["Old value: Hello world!", "New value: ¡Hola Mundo!"];
        assert_eq!(second.printed(&run5.server), lines);
        let third = second.after(run5);
        let lines = ["Old value: ¡Hola Mundo!", "New value: Hello world!"];
        assert_eq!(third.printed(&run5.server), lines);
        let log = run("07").ok_or("07 knows persistent memory")?;
        assert_eq!(third.printed(&log.clients[0]), ["used value: 16"]);
        let fourth = third.after(log);
        assert_eq!(fourth.printed(&log.clients[0]), ["used value: 43"]);
        assert_eq!(fourth.printed(&log.server).len(), 6);
        // The log overwrites the server's greeting, and the client's stays.
        assert_eq!(fourth.printed(&run5.server), ["New value: Hello world!"]);
        Ok(())
    }

    #[test]
    fn arguments_are_filled_in() -> Result {
        let values = Values {
            pmem: Some("/dev/dax0.0"),
            wait: 3,
            second: Some(("::1", 7)),
        };
        let run = find("05").and_then(|example| example.pmem.as_ref());
        let run = run.ok_or("05 knows persistent memory")?;
        assert_eq!(values.args(&run.server), ["/dev/dax0.0", "on"]);
        assert_eq!(values.args(&run.clients[0]), ["/dev/dax0.0", "4096"]);
        let run = &find("13").ok_or("known")?.dram;
        assert_eq!(values.args(&run.server), ["3"]);
        let run = &find("15").ok_or("known")?.dram;
        assert_eq!(values.args(&run.clients[0])[..2], ["::1", "7"]);
        Ok(())
    }

    #[test]
    fn clients_may_be_served_in_any_order() {
        let lines = |text: &str| {
            let lines: Vec<_> = text.lines().map(str::to_owned).collect();
            canonical(&lines)
        };
        let a = lines("start\nx 1 [qp#7]\nx 5 [qp#8]\nx 2 [qp#7]\nend [client #12] here");
        let b = lines("start\nx 5 [qp#1]\nx 1 [qp#2]\nx 2 [qp#2]\nend [client #3] here");
        assert_eq!(a, b);
        let c = lines("start\nx 5 [qp#1]\nx 2 [qp#2]\nx 1 [qp#2]\nend [client #3] here");
        assert_ne!(a, c, "of one client the order counts");
        let d = lines("start\nx 5 [qp#2]\nx 1 [qp#2]\nx 2 [qp#2]\nend [client #3] here");
        assert_ne!(a, d, "these are of one client");
        let e = lines("x 5 [qp#1]\nx 1 [qp#2]\nx 2 [qp#2]\nend [client #3] here\nstart");
        assert_ne!(a, e, "the other lines have an order");
    }
}
