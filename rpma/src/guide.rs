//! The pages of the project's documentation, the directory `docs/` of its repository.
//!
//! The [crate's page](crate#the-pages) lists them by purpose.

#[expect(
    clippy::wildcard_imports,
    reason = "the page on porting links to nearly all items by their names"
)]
#[allow(unused_imports, reason = "only links use them")]
use super::*;

// build.rs turns the links between the pages into links between these modules.
macro_rules! page {
    ($(#[$attribute:meta])* $name:ident, $file:literal) => {
        $(#[$attribute])*
        #[doc = include_str!(concat!(env!("OUT_DIR"), "/", $file))]
        pub mod $name {}
    };
}

page!(architecture, "architecture.md");
// A test of the fabric has its program.
page!(
    #[cfg(not(doctest))]
    building_a_log,
    "building-a-log.md"
);
page!(completion_events, "completion-events.md");
page!(examples, "examples.md");
page!(failures, "failures.md");
page!(getting_started, "getting-started.md");
page!(hardware, "hardware.md");
page!(log_format, "log-format.md");
page!(performance, "performance.md");
page!(persistence, "persistence.md");
page!(
    #[doc(alias = "rpma_log_set_threshold")]
    #[doc(alias = "rpma_log_get_threshold")]
    #[doc(alias = "rpma_log_set_function")]
    porting_from_librpma,
    "porting-from-librpma.md"
);
page!(security, "security.md");
page!(testing, "testing.md");
// The documentation tests of rpma-async have the programs of these two.
page!(
    #[cfg(not(doctest))]
    rpma_async,
    "async.md"
);
page!(
    #[cfg(not(doctest))]
    testing_your_program,
    "testing-your-program.md"
);
