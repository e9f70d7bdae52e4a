//! The error of a test: the place of the `?`, and the text of the error with its sources.

use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::panic::Location;

/// The result of a test, and of the functions that a test calls.
pub(crate) type Result<T = (), E = Failed> = std::result::Result<T, E>;

/// An error that ends a test.
///
/// It does not implement `Error`: otherwise the conversion below would overlap with that of a type
/// into itself.
pub(crate) struct Failed {
    at: &'static Location<'static>,
    text: String,
}

thread_local! {
    /// The last error of this thread.
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The last error of this thread, for the message of a check that fails when its test has failed.
#[allow(dead_code, reason = "not each program has such a check")]
pub(crate) fn after_error() -> String {
    let last = LAST.with_borrow(Option::clone);
    last.map_or_else(String::new, |last| format!(", after {last}"))
}

impl<'e, E: Into<Box<dyn Error + 'e>>> From<E> for Failed {
    #[track_caller]
    fn from(error: E) -> Self {
        let error = error.into();
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            let error_text = error.to_string();
            // Some texts have the text of their source.
            if !text.contains(&error_text) {
                text = format!("{text}: {error_text}");
            }
            source = error.source();
        }
        let failed = Self {
            at: Location::caller(),
            text,
        };
        LAST.set(Some(format!("{failed:?}")));
        failed
    }
}

/// For the tests that return the `Result` of anyhow.
impl From<Failed> for anyhow::Error {
    fn from(failed: Failed) -> Self {
        Self::msg(format!("{failed:?}"))
    }
}

/// The harness prints this.
impl fmt::Debug for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.text)
    }
}
