//! [`Problem`]: the error of every command, one line that ends with what to do.

use std::fmt;

use crate::words::for_operator;

/// The reason why a command could not go on, and what to do about it.
#[derive(Debug)]
pub(crate) struct Problem {
    what: String,
    remedy: String,
    /// Whether the reader of the output has gone, which needs no words.
    is_closed_pipe: bool,
}

impl Problem {
    /// Both are sentences without a full stop. `remedy` is empty if `what` has it.
    pub(crate) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            remedy: remedy.into(),
            is_closed_pipe: false,
        }
    }

    /// The reader of the output has gone.
    pub(crate) fn closed_pipe() -> Self {
        Self {
            is_closed_pipe: true,
            ..Self::new("the reader of the output has gone", "")
        }
    }

    pub(crate) fn is_closed_pipe(&self) -> bool {
        self.is_closed_pipe
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = one_line(&self.what);
        f.write_str(&what)?;
        if !self.remedy.is_empty() {
            let ends = what.ends_with(['.', '?', '!', ':']);
            let stop = if ends { " " } else { ". " };
            write!(f, "{stop}{}", one_line(&self.remedy))?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

/// The messages of the library have their remedies, which [`one_line`] puts into other words.
impl From<rpma::Error> for Problem {
    fn from(error: rpma::Error) -> Self {
        Self::new(error.to_string(), "")
    }
}

/// The same text without line ends and without commands to a terminal: it can be another host's.
/// Remedies of the library are for users of the command.
pub(crate) fn one_line(text: &str) -> String {
    let printable = |character: char| {
        if character.is_control() {
            ' '
        } else {
            character
        }
    };
    let text: String = text.trim().chars().map(printable).collect();
    for_operator(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_line_with_its_remedy() {
        let problem = Problem::new("no\nanswer\u{1b}[2J", "start\tthe server");
        assert_eq!(problem.to_string(), "no answer [2J. start the server");
        assert_eq!(Problem::new("all in one", "").to_string(), "all in one");
        let asked = Problem::new("is there a route to it?", "look");
        assert_eq!(asked.to_string(), "is there a route to it? look");
    }
}
