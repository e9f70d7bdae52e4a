//! The lines of a course, and ranges of numbers: repetitions that differ only in rising numbers are
//! folded.

use std::fmt;

/// Numbers that follow each other are a range.
pub(crate) fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let text = |run: &[usize]| match run {
        [one] => one.to_string(),
        _ => format!("{} to {}", run[0], run[run.len() - 1]),
    };
    Vec::from_iter(runs.map(text)).join(", ")
}

/// A part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    /// A word for one number, and for several.
    Words(&'static str, &'static str),
    Numbers(Numbers),
    /// Texts that may differ: the first and the last one of a fold.
    Any(String, Option<String>),
}

/// The first and the last number of a fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    first: u64,
    last: u64,
    /// Each is one more than the number before it, and not only higher.
    is_next: bool,
}

impl Part {
    /// A number that is folded with the one after it.
    pub(crate) fn next(number: u64) -> Self {
        Self::number(number, true)
    }

    /// A number that is folded with a higher one.
    pub(crate) fn higher(number: u64) -> Self {
        Self::number(number, false)
    }

    fn number(number: u64, is_next: bool) -> Self {
        Self::Numbers(Numbers {
            first: number,
            last: number,
            is_next,
        })
    }

    fn and(&self, next: &Self) -> Option<Self> {
        match (self, next) {
            (Self::Numbers(of), Self::Numbers(next)) => {
                let rises = match of.is_next {
                    true => of.last + 1 == next.first,
                    false => of.last < next.first,
                };
                let last = next.last;
                rises.then_some(Self::Numbers(Numbers { last, ..*of }))
            }
            (Self::Any(first, _), Self::Any(next, last)) => {
                let last = last.clone().unwrap_or_else(|| next.clone());
                Some(Self::Any(first.clone(), Some(last)))
            }
            (same, next) => (same == next).then(|| same.clone()),
        }
    }
}

/// A line, or several that are folded.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    parts: Vec<Part>,
    is_fold: bool,
}

impl Line {
    pub(crate) fn new(parts: impl IntoIterator<Item = Part>) -> Self {
        Self {
            parts: parts.into_iter().collect(),
            is_fold: false,
        }
    }

    fn has_numbers(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| matches!(part, Part::Numbers(_)))
    }

    fn and(&self, next: &Self) -> Option<Self> {
        let is_like = self.parts.len() == next.parts.len();
        let parts = self.parts.iter().zip(&next.parts);
        let parts = parts.map(|(part, next)| part.and(next));
        let parts = is_like.then(|| parts.collect::<Option<_>>()).flatten()?;
        Some(Self {
            parts,
            is_fold: true,
        })
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.iter().try_for_each(|part| match part {
            Part::Text(text) => f.write_str(text),
            Part::Words(_, several) if self.is_fold => f.write_str(several),
            Part::Words(one, _) => f.write_str(one),
            Part::Numbers(of) if of.first == of.last => write!(f, "{}", of.first),
            Part::Numbers(of) => write!(f, "{} to {}", of.first, of.last),
            Part::Any(first, None) => f.write_str(first),
            Part::Any(first, Some(last)) => write!(f, "{first} … {last}"),
        })
    }
}

/// The most lines that are repeated by turns.
const TURNS: usize = 4;

/// A repetition of so many lines at the beginning of others: the fold, and how often it is there.
fn repeated(lines: &[Line], turns: usize) -> Option<(Vec<Line>, usize)> {
    let mut chunks = lines.chunks_exact(turns);
    let (mut fold, mut times) = (chunks.next()?.to_vec(), 1);
    for chunk in chunks {
        let both = fold.iter().zip(chunk).map(|(line, next)| line.and(next));
        let Some(both) = both.collect() else { break };
        (fold, times) = (both, times + 1);
    }
    Some((fold, times))
}

/// The lines, with one for those that follow each other.
fn runs(mut lines: &[Line]) -> Vec<Line> {
    let mut runs = Vec::new();
    while let [first, rest @ ..] = lines {
        match repeated(lines, 1) {
            Some((fold, times)) if first.has_numbers() => {
                runs.extend(fold);
                lines = &lines[times..];
            }
            _ => {
                runs.push(first.clone());
                lines = rest;
            }
        }
    }
    runs
}

/// The texts of lines, with their repetitions folded.
pub(crate) fn folded(lines: &[Line]) -> Vec<String> {
    let (runs, mut texts) = (runs(lines), Vec::new());
    let mut lines = &runs[..];
    while let [first, rest @ ..] = lines {
        let fold = (1..=TURNS).find_map(|turns| {
            let (fold, times) = repeated(lines, turns)?;
            (times > 2).then_some((turns, fold, times))
        });
        let Some((turns, fold, times)) = fold else {
            texts.push(first.to_string());
            lines = rest;
            continue;
        };
        texts.push(format!("{times} times:"));
        texts.extend(fold.iter().map(|line| format!("    {line}")));
        lines = &lines[turns * times..];
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Line {
        Line::new([Part::Text(text.to_owned())])
    }

    /// Promise: equal lines stay as many as they are, and three turns of some are folded.
    #[test]
    fn only_turns_are_folded() {
        let all = ["a", "a", "b", "c", "b", "c", "b", "c", "b"].map(text);
        let right = ["a", "a", "3 times:", "    b", "    c", "b"];
        assert_eq!(folded(&all), right);
        assert_eq!(folded(&all[2..6]), ["b", "c", "b", "c"]);
        let same = ["a", "a", "a"].map(text);
        assert_eq!(folded(&same), ["3 times:", "    a"]);
    }

    /// Promise: turns of runs are folded, and texts that may differ have the first and the last one.
    #[test]
    fn turns_of_runs_are_folded() {
        let line = |number: u64| {
            let any = Part::Any(format!("read {number}"), None);
            [
                Line::new([Part::next(number)]),
                Line::new([Part::next(number + 1)]),
                Line::new([any]),
            ]
        };
        let all = [1, 3, 5].map(line).concat();
        assert_eq!(
            folded(&all),
            ["3 times:", "    1 to 6", "    read 1 … read 5"]
        );
        assert_eq!(folded(&all[..4]), ["1 to 2", "read 1", "3"]);
    }

    /// Promise: a line is folded with that of the next number, and not with that of a later one.
    #[test]
    fn the_next_numbers_are_folded() {
        let all = [1, 2, 4].map(|number| Line::new([Part::next(number)]));
        assert_eq!(folded(&all), ["1 to 2", "4"]);
        let all = [1, 2, 4, 4].map(|number| Line::new([Part::higher(number)]));
        assert_eq!(folded(&all), ["1 to 4", "4"]);
    }
}
