//! `rpma perf report`: results of files as one HTML page, that needs no network and no script.

mod axis;
mod chart;
mod page;
mod runs;
mod sections;
#[cfg(test)]
mod tests;
mod words;

use std::path::{Path, PathBuf};

use super::read::{Entry, read};
use crate::problem::{Problem, Result};
use crate::report::{Outcome, Output, ResultFile};
use crate::settings::number;

/// Writes the page. An older page at the same place stays if the results are not good.
pub(crate) fn write(files: &[PathBuf], place: &Path, out: &mut Output) -> Result<Outcome> {
    let entries = read(files)?;
    let is_place = |file: &PathBuf| match (file.canonicalize(), place.canonicalize()) {
        (Ok(file), Ok(place)) => file == place,
        _ => false,
    };
    if files.iter().any(is_place) {
        let what = format!("{} is a file of results", place.display());
        return Err(Problem::new(what, "Give another path with -o"));
    }
    let (page, runs) = page(&entries)?;
    ResultFile::open(place)?.write(&page)?;
    out.line(format!(
        "{}: {} of {}",
        place.display(),
        number(entries.len(), "result"),
        number(runs, "run")
    ))?;
    Ok(Outcome::Good)
}

/// The page of these results, and the number of their runs.
pub(crate) fn page(entries: &[Entry]) -> Result<(String, usize)> {
    let runs = runs::runs(entries);
    Ok((page::render(&runs)?, runs.len()))
}
