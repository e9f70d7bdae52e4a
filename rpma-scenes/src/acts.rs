//! [`Acts`]: the course of a scene, for the report of its failure: the calls of the subject with
//! their answers, and what the scene did to the hosts.

use crate::course::{Line, Part, folded};
use crate::model::Model;
use crate::subject::Appended;
use crate::world::name;

/// The acts of a scene, in their order.
#[derive(Debug, Default)]
pub(crate) struct Acts {
    calls: Vec<Call>,
    events: Vec<Event>,
}

/// A call of the subject.
#[derive(Debug)]
struct Call {
    parts: Vec<Part>,
    /// `None`: it has not ended.
    answer: Option<Vec<Part>>,
}

#[derive(Debug)]
enum Event {
    /// The scene has done this to a host.
    Done(String),
    /// The power of a server has failed, and this is left of its memory.
    Cut(usize, Vec<u8>),
    /// A call of this number.
    Begun(usize),
    Ended(usize),
}

/// The most lines of a report.
const LINES: usize = 40;
/// Before an answer that did not come at once, and after its call.
const LATER: &str = "…";

impl Acts {
    /// The scene does this to a host. It has no answer.
    pub(crate) fn does(&mut self, text: String) {
        self.events.push(Event::Done(text));
    }

    /// The power of a server has failed, and this is left of its memory.
    pub(crate) fn cuts(&mut self, server: usize, left: Vec<u8>) {
        self.events.push(Event::Cut(server, left));
    }

    fn begins(&mut self, parts: Vec<Part>) -> usize {
        let answer = None;
        self.calls.push(Call { parts, answer });
        let number = self.calls.len() - 1;
        self.events.push(Event::Begun(number));
        number
    }

    fn ends(&mut self, call: usize, answer: Vec<Part>) {
        self.calls[call].answer = Some(answer);
        self.events.push(Event::Ended(call));
    }

    /// A call of the subject. Returns its number for the answer.
    pub(crate) fn calls(&mut self, text: String) -> usize {
        self.begins(vec![Part::Text(text)])
    }

    pub(crate) fn answers(&mut self, call: usize, answer: String) {
        self.ends(call, vec![Part::Text(answer)]);
    }

    /// A call has read these records, which the scene has judged or judges now.
    pub(crate) fn read(&mut self, call: usize, records: String) {
        self.ends(call, vec![Part::Any(records, None)]);
    }

    /// A writer appends a record.
    pub(crate) fn appends(&mut self, epoch: u64, number: usize, len: usize) -> usize {
        self.begins(vec![
            Part::Text(format!("writer {epoch} appends ")),
            Part::Words("record ", "the records "),
            Part::next(number as u64),
            Part::Text(format!(", {len} bytes")),
            Part::Words("", " each"),
        ])
    }

    pub(crate) fn appended(&mut self, call: usize, outcome: &Appended) {
        let answer = match outcome {
            Appended::Durable(at) => vec![Part::Text("durable at ".to_owned()), Part::higher(*at)],
            Appended::Refused(why) => vec![Part::Text(format!("refused: {why}"))],
            Appended::Unknown(why) => vec![Part::Text(format!("unknown: {why}"))],
        };
        self.ends(call, answer);
    }

    /// A writer forgets the records before a position.
    pub(crate) fn forgets(&mut self, epoch: u64, to: u64) -> usize {
        let text = format!("writer {epoch} forgets the records before ");
        self.begins(vec![Part::Text(text), Part::higher(to)])
    }

    /// The acts of a scene, whose records are those of a model.
    pub(crate) fn text(&self, model: &Model) -> String {
        self.under(
            "The calls of the log, and what happened to its hosts",
            model,
        )
    }

    /// The acts of the writers that recover from an image.
    pub(crate) fn of_recovery(&self, model: &Model) -> String {
        self.under("The recoveries from the image, one after the other", model)
    }

    fn under(&self, head: &str, model: &Model) -> String {
        let lines = folded(&self.lines(model));
        let has_later = lines
            .iter()
            .any(|line| line.trim_start().starts_with(LATER));
        let how = if has_later {
            format!(" (an answer after {LATER} is that of an earlier call)")
        } else {
            String::new()
        };
        let left = lines.len().saturating_sub(LINES);
        let before = (left > 0).then(|| format!("({left} lines before these)"));
        let all = [format!("{head}{how}:")].into_iter().chain(before);
        let all = all.chain(lines[left..].iter().cloned());
        Vec::from_iter(all).join("\n    ")
    }

    /// An answer has a line of its own if something lay between it and its call.
    fn lines(&self, model: &Model) -> Vec<Line> {
        let is_at_once = |begun: usize| {
            let pair = self.events.get(begun..begun + 2);
            matches!(pair, Some([Event::Begun(call), Event::Ended(ended)]) if call == ended)
        };
        let line = |(at, event): (usize, &Event)| match event {
            Event::Done(text) => Some(Line::new([Part::Text(text.clone())])),
            Event::Cut(server, left) => Some(Line::new([Part::Text(format!(
                "the power of {} fails. Records that are left in its memory: {}",
                name(*server),
                model.records_in(left)
            ))])),
            Event::Begun(call) => {
                let Call { parts, answer } = &self.calls[*call];
                let rest = match answer {
                    None => vec![Part::Text(": no answer".to_owned())],
                    Some(answer) if is_at_once(at) => after(": ", answer),
                    Some(_) => vec![Part::Text(format!(" {LATER}"))],
                };
                Some(Line::new([parts.clone(), rest].concat()))
            }
            Event::Ended(_) if at > 0 && is_at_once(at - 1) => None,
            Event::Ended(call) => {
                let Call { parts, answer } = &self.calls[*call];
                let answer = after(": ", answer.as_deref().unwrap_or_default());
                let later = vec![Part::Text(format!("{LATER} "))];
                Some(Line::new([later, parts.clone(), answer].concat()))
            }
        };
        self.events.iter().enumerate().filter_map(line).collect()
    }
}

fn after(text: &str, parts: &[Part]) -> Vec<Part> {
    [&[Part::Text(text.to_owned())], parts].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines below the head.
    fn lines(acts: &Acts) -> Vec<String> {
        let text = acts.text(&Model::default());
        let lines = text.lines().skip(1);
        lines.map(|line| line[4..].to_owned()).collect()
    }

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
        acts.answers(act, "no quorum".to_owned());
        acts.calls("writer 3 opens".to_owned());
        let right = [
            "writer 1 appends the records 0 to 2, 40 bytes each: durable at 0 to 200",
            "the power of server 2 fails",
            "writer 1 appends record 3, 40 bytes: unknown: late",
            "writer 2 opens: no quorum",
            "writer 3 opens: no answer",
        ];
        assert_eq!(lines(&acts), right);
        for number in 0..LINES {
            acts.does(format!("line {number}"));
        }
        let text = acts.text(&Model::default());
        assert!(text.contains("(5 lines before these)"), "{text}");
    }

    /// Promise: an answer is where it came, if something lay between it and its call.
    #[test]
    fn an_answer_is_where_it_came() {
        let mut acts = Acts::default();
        let [one, two] = [0, 1].map(|number| acts.appends(1, number, 40));
        acts.does("server-0 ends".to_owned());
        acts.appended(one, &Appended::Durable(5));
        let three = acts.calls("writer 2 opens the log".to_owned());
        acts.appended(two, &Appended::Durable(7));
        acts.answers(three, "open".to_owned());
        let right = [
            "writer 1 appends the records 0 to 1, 40 bytes each …",
            "server-0 ends",
            "… writer 1 appends record 0, 40 bytes: durable at 5",
            "writer 2 opens the log …",
            "… writer 1 appends record 1, 40 bytes: durable at 7",
            "… writer 2 opens the log: open",
        ];
        assert_eq!(lines(&acts), right);
    }

    /// Promise: each loss of power has the records that are left in the server's memory.
    #[test]
    fn a_loss_of_power_has_the_records_that_are_left() {
        let (mut acts, mut model) = (Acts::default(), Model::default());
        let (_, bytes) = model.begin(1, 40);
        acts.cuts(0, [vec![0; 3], bytes].concat());
        acts.cuts(1, vec![0; 50]);
        let text = acts.text(&model);
        let right = "\n    the power of server-0 fails. Records that are left in its memory: 0\
                     \n    the power of server-1 fails. Records that are left in its memory: none";
        assert!(text.ends_with(right), "{text}");
    }

    /// Promise: calls by turns are folded, and a position that does not rise ends a fold.
    #[test]
    fn calls_by_turns_are_folded() {
        let mut acts = Acts::default();
        for number in 0..5 {
            let act = acts.appends(1, number, 80);
            acts.appended(act, &Appended::Durable(20 + 2 * number.min(3) as u64));
            let act = acts.forgets(1, 10 + number as u64);
            acts.answers(act, "done".to_owned());
        }
        let right = [
            "4 times:",
            "    writer 1 appends the records 0 to 3, 80 bytes each: durable at 20 to 26",
            "    writer 1 forgets the records before 10 to 13: done",
            "writer 1 appends record 4, 80 bytes: durable at 26",
            "writer 1 forgets the records before 14: done",
        ];
        assert_eq!(lines(&acts), right);
    }
}
