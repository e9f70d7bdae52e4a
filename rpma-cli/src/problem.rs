//! [`Problem`]: the error of every command, one line that ends with what to do.

use std::fmt;

use rpma::{Error, WcStatus};

/// The result of a command, or of a step of it.
pub(crate) type Result<T = (), E = Problem> = std::result::Result<T, E>;

/// The reason why a command could not go on, and what to do about it.
#[derive(Debug)]
pub(crate) struct Problem {
    what: String,
    remedy: String,
}

impl Problem {
    /// Both are sentences without a full stop. `remedy` is empty if `what` has it.
    pub(crate) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    /// The reader of the output has gone, which needs no words.
    pub(crate) fn closed_pipe() -> Self {
        Self::new("", "")
    }

    pub(crate) fn is_closed_pipe(&self) -> bool {
        self.what.is_empty()
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

impl<E: Into<Error>> From<E> for Problem {
    fn from(error: E) -> Self {
        Self::new(in_words(error), "")
    }
}

/// An error of the library for a user of the command, who has no program to change: the reason, and
/// a remedy of the command or of the host.
pub(crate) fn in_words(error: impl Into<Error>) -> String {
    let error = error.into();
    let reason = reason(&error);
    match remedy(&error) {
        Some(remedy) => format!("{reason}: {remedy}"),
        None => reason,
    }
}

/// The reason alone.
pub(crate) fn reason(error: &Error) -> String {
    let reason = error.reason();
    match error {
        Error::InvalidArgument(_) | Error::NotSupported(_) => {
            let sentences: Vec<&str> = reason.split(". ").filter_map(without_remedy).collect();
            sentences.join(". ")
        }
        _ => reason,
    }
}

/// A sentence without the remedy for programs, which names a function: that is the sentence, or its
/// end after a colon.
fn without_remedy(sentence: &str) -> Option<&str> {
    let names_function = |text: &&str| text.contains("::");
    match sentence.split_once(": ") {
        _ if !names_function(&sentence) => Some(sentence),
        Some((reason, _)) => Some(reason).filter(|reason| !names_function(reason)),
        None => None,
    }
}

const AGAIN: &str = "start the command again when they are back. On a network that loses packets, use `rpma check \
                     --fallback` or `rpma perf --method reading`";
const FALLBACK: &str = "without native operations, as by `rpma check --fallback` or `rpma perf --method reading`, it may succeed";

/// The remedy, if it needs no program.
pub(crate) fn remedy(error: &Error) -> Option<&'static str> {
    match error {
        Error::GaveUp(cause) | Error::PartLost { cause, .. } => remedy(cause),
        Error::NoAddress(tried) => remedy(&tried.last()?.1),
        Error::Operation(failure) => match failure.status {
            WcStatus::RETRY_EXC_ERR => Some(AGAIN),
            WcStatus::REM_ACCESS_ERR | WcStatus::REM_INV_REQ_ERR => Some(FALLBACK),
            _ => None,
        },
        Error::Provider { .. } => error.remedy().filter(|remedy| {
            // These are for programs.
            !remedy.contains("::") && *remedy != "connect again"
        }),
        _ => None,
    }
}

/// The same text without line ends and without commands to a terminal: it can be another host's.
pub(crate) fn one_line(text: &str) -> String {
    text.trim().replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: no function of the library is a remedy for a user of the command.
    #[test]
    fn errors_of_the_library_have_remedies_for_users() {
        let provider = |hint| Error::Provider {
            call: "ibv_reg_mr",
            cause: std::io::Error::other("no"),
            hint: Some(hint),
        };
        for (error, text) in [
            (
                provider(&["Why", "raise it"]),
                "ibv_reg_mr failed: no. Why: raise it",
            ),
            (
                provider(&["Why", "call Mr::dereg"]),
                "ibv_reg_mr failed: no. Why",
            ),
            (
                provider(&["Why", "connect again"]),
                "ibv_reg_mr failed: no. Why",
            ),
            (
                Error::NotConnected(rpma::NotConnected::NotYet),
                "the connection is not established yet",
            ),
            (
                Error::InvalidArgument("it is 7. Call Mr::reg. Or not".into()),
                "it is 7. Or not",
            ),
            (
                Error::NotSupported("no Offer came: pass Offer::encode".into()),
                "no Offer came",
            ),
            (
                Error::GaveUp(Box::new(provider(&["", "Raise it"]))),
                "gave up at the limit; the last error: ibv_reg_mr failed: no: Raise it",
            ),
        ] {
            assert_eq!(in_words(error), text);
        }
    }

    #[test]
    fn a_problem_is_one_line_with_its_remedy() {
        let problem = Problem::new("no\nanswer\u{1b}[2J", "start\tthe server");
        assert_eq!(problem.to_string(), "no answer [2J. start the server");
        assert_eq!(Problem::new("all in one", "").to_string(), "all in one");
        let asked = Problem::new("is there a route to it?", "look");
        assert_eq!(asked.to_string(), "is there a route to it? look");
    }
}
