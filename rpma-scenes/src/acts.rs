//! [`Acts`]: the course of a scene, for the report of its failure: the calls of the subject with
//! their answers, and what the scene did to the hosts.

use std::fmt;

use crate::subject::Appended;

/// The acts of a scene, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct Acts(Vec<Act>);

#[derive(Debug)]
struct Act {
    text: String,
    /// `None`: it has not ended, or it has no answer.
    answer: Option<String>,
    /// The writer's epoch, the length and the number of a record.
    appends: Option<(u64, usize, usize)>,
    /// The record's position, if it is durable.
    at: Option<u64>,
}

/// The most lines of a report.
const LINES: usize = 40;

impl Acts {
    fn push(&mut self, text: String, appends: Option<(u64, usize, usize)>) -> usize {
        self.0.push(Act {
            text,
            answer: None,
            appends,
            at: None,
        });
        self.0.len() - 1
    }

    /// The scene does this to a host. It has no answer.
    pub(crate) fn does(&mut self, text: String) {
        self.push(text, None);
    }

    /// A call of the subject. Returns its number for the answer.
    pub(crate) fn calls(&mut self, text: String) -> usize {
        let number = self.push(text, None);
        self.0[number].answer = Some("no answer".to_owned());
        number
    }

    pub(crate) fn answers(&mut self, act: usize, answer: String) {
        self.0[act].answer = Some(answer);
    }

    /// A writer appends a record.
    pub(crate) fn appends(&mut self, epoch: u64, number: usize, len: usize) -> usize {
        let text = format!("writer {epoch} appends record {number}, {len} bytes");
        let number = self.push(text, Some((epoch, len, number)));
        self.0[number].answer = Some("no answer".to_owned());
        number
    }

    pub(crate) fn appended(&mut self, act: usize, outcome: &Appended) {
        let act = &mut self.0[act];
        act.answer = Some(match outcome {
            Appended::Durable(at) => format!("durable at {at}"),
            Appended::Refused(why) => format!("refused: {why}"),
            Appended::Unknown(why) => format!("unknown: {why}"),
        });
        if let Appended::Durable(at) = outcome {
            act.at = Some(*at);
        }
    }

    /// The acts of the writers that recover from an image.
    pub(crate) fn of_recovery(&self) -> String {
        self.text("The recoveries from the image, one after the other:")
    }

    fn text(&self, head: &str) -> String {
        let lines = self.lines();
        let left = lines.len().saturating_sub(LINES);
        let before = (left > 0).then(|| format!("({left} lines before these)"));
        let all = [head.to_owned()].into_iter().chain(before);
        let all = all.chain(lines[left..].iter().cloned());
        Vec::from_iter(all).join("\n    ")
    }

    /// The lines, with one line for records that follow each other.
    fn lines(&self) -> Vec<String> {
        let (mut lines, mut n) = (Vec::new(), 0);
        while let Some(first) = self.0.get(n) {
            let rest = &self.0[n..];
            let run = rest.iter().zip(0..).take_while(|(act, more)| {
                let next = first
                    .appends
                    .map(|(epoch, len, number)| (epoch, len, number + more));
                act.at.is_some() && act.appends == next
            });
            let run = run.count();
            n += run.max(1);
            lines.push(match (first.appends, rest[run.saturating_sub(1)].at) {
                (Some((epoch, len, number)), Some(last)) if run > 1 => format!(
                    "writer {epoch} appends the records {number} to {}, {len} bytes each: durable at {} to {last}",
                    number + run - 1,
                    first.at.unwrap_or_default()
                ),
                _ => match &first.answer {
                    Some(answer) => format!("{}: {answer}", first.text),
                    None => first.text.clone(),
                },
            });
        }
        lines
    }
}

impl fmt::Display for Acts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text("The calls of the log, and what happened to its hosts:"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: acts have their order and their answers, and durable records that follow each other
    /// are one line.
    #[test]
    fn records_that_follow_each_other_are_one_line() {
        let mut acts = Acts::default();
        for number in 0..3 {
            let act = acts.appends(1, number, 40);
            acts.appended(act, &Appended::Durable(100 * number as u64));
        }
        acts.does("the power of server 2 fails".to_owned());
        let act = acts.appends(1, 3, 40);
        acts.appended(act, &Appended::Unknown("late".to_owned()));
        let act = acts.calls("writer 2 opens".to_owned());
        acts.calls("writer 3 opens".to_owned());
        acts.answers(act, "no quorum".to_owned());
        let lines = [
            "writer 1 appends the records 0 to 2, 40 bytes each: durable at 0 to 200",
            "the power of server 2 fails",
            "writer 1 appends record 3, 40 bytes: unknown: late",
            "writer 2 opens: no quorum",
            "writer 3 opens: no answer",
        ];
        assert_eq!(acts.lines(), lines);
        for _ in 0..LINES {
            acts.does("a line".to_owned());
        }
        assert!(acts.to_string().contains("(5 lines before these)"));
    }
}
