//! Reads files of results.

use std::error::Error;
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use serde_json::Value;

use super::result::{FORMAT, Point, VERSION};
use crate::problem::{Problem, Result};

/// A file is not read beyond this. A result has a few kilobytes.
const MAX_FILE: u64 = 256 << 20;
/// A page with more results cannot be read, and a browser takes long to show it.
const MAX_RESULTS: usize = 2000;

/// The cookie of a deflated histogram, which its length follows.
pub(crate) const DEFLATED: [u8; 4] = [0x1c, 0x84, 0x93, 0x14];
/// The bytes before the counts of a histogram. The length of the counts is in bytes 4 to 8.
const HEADER: usize = 40;
/// The most bytes of an inflated histogram. That of a result has some kilobytes.
const MAX_HISTOGRAM: u64 = 1 << 20;

const REMEASURE: &str = "Run the measurement again, or remove the line";
const WRONG_FILE: &str = "Give files that `rpma perf --out` wrote";

/// A result.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) point: Point,
    /// The latencies in nanoseconds, each with 1 / (1 - quantile). It ends where less than one
    /// operation is slower.
    pub(crate) curve: Vec<(f64, f64)>,
}

/// Reads all results.
pub(crate) fn read(files: &[PathBuf]) -> Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    // The first file of each kind.
    let mut kinds: [Option<&Path>; 2] = [None, None];
    for path in files {
        let name = path.display();
        let text = text(path)?;
        if text.trim().is_empty() {
            let remedy = "Run `rpma perf` again, or leave this file out";
            return Err(Problem::new(format!("{name} has no results"), remedy));
        }
        let mut rest = text.as_str();
        for (number, line) in (1..).zip(text.split_inclusive('\n')) {
            let from = rest;
            rest = &rest[line.len()..];
            if line.trim().is_empty() {
                continue;
            }
            let entry = parse(line, from).map_err(|(what, remedy)| {
                Problem::new(format!("line {number} of {name} {what}"), remedy)
            })?;
            kinds[usize::from(entry.point.simulated)].get_or_insert(path);
            if let [Some(real), Some(simulated)] = kinds {
                return Err(mixed(real, simulated));
            }
            if entries.len() == MAX_RESULTS {
                let what = format!("the files have more than {MAX_RESULTS} results");
                return Err(Problem::new(what, "Give fewer files"));
            }
            entries.push(entry);
        }
    }
    Ok(entries)
}

/// The text of a file. Windows programs add a byte-order mark.
fn text(path: &Path) -> Result<String> {
    let name = path.display();
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes));
    let (what, remedy) = match read {
        Err(_) if path.is_dir() => (
            format!("{name} is a directory"),
            "Give the files of results in it",
        ),
        Err(error) => (format!("{name} cannot be read: {error}"), WRONG_FILE),
        Ok(_) if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) => (
            format!("{name} has a byte-order mark: its text is UTF-16"),
            "Convert it to UTF-8: iconv -f UTF-16 -t UTF-8",
        ),
        Ok(_) => {
            let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
            return Ok(String::from_utf8_lossy(bytes).into_owned());
        }
    };
    Err(Problem::new(what, remedy))
}

fn mixed(real: &Path, simulated: &Path) -> Problem {
    Problem::new(
        format!(
            "{} has simulated results and {} has results of devices: they cannot be compared",
            simulated.display(),
            real.display()
        ),
        "Make one report of each kind",
    )
}

/// The fault of a line, and its remedy.
type Fault = (String, &'static str);

fn damaged(why: impl Display) -> Fault {
    (format!("is damaged: {why}"), REMEASURE)
}

/// The result of a line. `from` is the text from this line on.
fn parse(line: &str, from: &str) -> Result<Entry, Fault> {
    let value: Value = serde_json::from_str(line).map_err(|_| no_json(from))?;
    if value["format"] != FORMAT {
        return Err(foreign(&value));
    }
    if value["version"] != VERSION {
        let version = &value["version"];
        let what =
            format!("has version {version} of the format, and this rpma reads version {VERSION}");
        return Err((what, "Install the version of rpma-cli that wrote it"));
    }
    let point: Point = serde_json::from_value(value).map_err(damaged)?;
    let histogram = histogram(&point.result.histogram)
        .map_err(|error| damaged(format!("its histogram is invalid: {error}")))?;
    let curve = curve(&histogram);
    Ok(Entry { point, curve })
}

/// The fault of a line that is no JSON. Other tools write a value on many lines.
fn no_json(from: &str) -> Fault {
    let mut values = serde_json::Deserializer::from_str(from).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) if value["format"] == FORMAT => (
            "begins a result on several lines: this file is pretty-printed JSON".to_owned(),
            "Give each result its line: `jq -c .` does that",
        ),
        Some(Ok(value)) => foreign(&value),
        _ if from.starts_with(r#"{"format":""#) => ("is cut off".to_owned(), REMEASURE),
        _ => foreign(&Value::Null),
    }
}

/// The fault of another tool's file.
fn foreign(value: &Value) -> Fault {
    let whose = match value {
        _ if value.get("fio version").is_some() => "a result of fio, and not of `rpma perf`",
        _ if value["command"].is_string() => "a report of another command of rpma",
        _ => "no result of `rpma perf`",
    };
    (format!("is {whose}"), WRONG_FILE)
}

/// The histogram of a result.
fn histogram(text: &str) -> Result<Histogram<u64>, Box<dyn Error>> {
    let inflated = inflate(&STANDARD.decode(text)?)?;
    let histogram = Deserializer::new().deserialize(&mut &inflated[..])?;
    if histogram.is_empty() {
        return Err("it has no operation".into());
    }
    Ok(histogram)
}

/// The bytes of a deflated histogram. The decoder takes as much memory as its header asks for, so the
/// header must not ask for more than there is.
fn inflate(bytes: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let deflated = bytes.strip_prefix(&DEFLATED).and_then(|rest| rest.get(4..));
    let deflated = deflated.ok_or("it is not deflated")?;
    let mut inflated = Vec::new();
    let mut deflated = ZlibDecoder::new(deflated).take(MAX_HISTOGRAM);
    deflated.read_to_end(&mut inflated)?;
    let counts = inflated.get(4..).and_then(|rest| rest.first_chunk());
    match counts.map(|len| u32::from_be_bytes(*len) as usize) {
        Some(len) if HEADER + len <= inflated.len() => Ok(inflated),
        _ => Err("it is cut off".into()),
    }
}

/// Sixteen points for each digit of the quantile, from the median to 99.99 %.
fn curve(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    const MEDIAN: f64 = 2.0;
    let steps = (5..=64).map(|step| 10_f64.powf(f64::from(step) / 16.0));
    let count = histogram.len() as f64;
    let latency = |one_in: f64| histogram.value_at_quantile(1.0 - 1.0 / one_in) as f64;
    [MEDIAN]
        .into_iter()
        .chain(steps)
        .take_while(|one_in| *one_in <= count)
        .map(|one_in| (one_in, latency(one_in)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use flate2::Compression;
    use flate2::read::ZlibEncoder;
    use serde_json::json;
    use tempfile::{TempDir, tempdir};

    use super::*;
    use crate::perf::samples::{commit, encoded, lines, new_histogram, point, setting};

    /// A folder with a file.
    fn file(bytes: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
        let folder = tempdir().expect("a folder");
        let path = folder.path().join("a.jsonl");
        fs::write(&path, bytes).expect("a file");
        (folder, path)
    }

    /// The problem of a file.
    fn problem(bytes: impl AsRef<[u8]>) -> String {
        let (_folder, path) = file(bytes);
        let problem = read(&[path]).expect_err("it is refused").to_string();
        assert!(
            !problem.contains('\n') && problem.contains(". "),
            "{problem:?}"
        );
        problem
    }

    /// A line, with another value at one place.
    fn changed(place: &str, value: Value) -> String {
        let mut line = serde_json::to_value(point(commit())).expect("JSON");
        *line.pointer_mut(place).expect(place) = value;
        line.to_string() + "\n"
    }

    #[test]
    fn all_results_are_read_in_their_order() {
        let points = [point(setting()), point(commit())];
        // The last line has no end, and there are empty lines and other ends of lines.
        let text = lines(&points).replace('\n', "\r\n\n");
        let (_folder, path) = file(text.trim_end());
        let entries = read(&[path]).expect("they are valid");
        let settings = entries.iter().map(|entry| entry.point.setting);
        assert!(settings.eq(points.iter().map(|point| point.setting)));
    }

    #[test]
    fn a_curve_has_the_percentiles_of_the_result() {
        let (_folder, path) = file(lines(&[point(setting())]));
        let entry = &read(&[path]).expect("it is valid")[0];
        let latency = entry.point.result.latency;
        for (one_in, expected) in [
            (2.0, latency.p50),
            (10.0, latency.p90),
            (100.0, latency.p99),
            (1_000.0, latency.p99_9),
            (10_000.0, latency.p99_99),
        ] {
            let is_there = |point: &&(f64, f64)| (point.0 / one_in - 1.0_f64).abs() < 1e-9;
            let point = entry.curve.iter().find(is_there);
            assert_eq!(
                point.map(|point| point.1 as u64),
                Some(expected),
                "{one_in}"
            );
        }
    }

    #[test]
    fn a_curve_ends_with_the_count_of_its_operations() {
        let mut histogram = new_histogram();
        for latency in 1..=50 {
            histogram.record(latency).expect("it grows");
        }
        let last = curve(&histogram).pop().expect("50 operations");
        assert!((30.0..=50.0).contains(&last.0), "{last:?}");
    }

    #[test]
    fn files_that_cannot_be_read_have_a_remedy() {
        let folder = tempdir().expect("a folder");
        let missing = folder.path().join("missing");
        for (path, words) in [
            (missing.as_path(), "cannot be read"),
            (
                folder.path(),
                "is a directory. Give the files of results in it",
            ),
        ] {
            let problem = read(&[path.to_owned()]).expect_err(words).to_string();
            assert!(problem.contains(words), "{problem}");
            assert!(
                problem.starts_with(&path.display().to_string()),
                "{problem}"
            );
        }
        for nothing in ["", "\n \r\n"] {
            assert!(problem(nothing).contains("a.jsonl has no results. Run"));
        }
    }

    #[test]
    fn lines_of_other_files_are_refused() {
        let not_perf = json!({ "format": "fio", "version": 1 }).to_string();
        for bytes in [
            &b"hello"[..],
            b"\x89PNG\r\n\0",
            b"[1]",
            b"7",
            not_perf.as_bytes(),
        ] {
            let problem = problem(bytes);
            assert!(
                problem.contains("is no result of `rpma perf`. Give"),
                "{problem}"
            );
        }
        // As /dev/zero has.
        let problem = problem(vec![0; 3 << 20]);
        assert!(problem.contains("line 1 of"), "{problem}");
        assert!(problem.contains("is no result"), "{problem}");
    }

    /// Promise: JSON of another tool, JSON on many lines and a byte-order mark are named, and are no
    /// line that is cut off.
    #[test]
    fn other_forms_of_json_are_named() {
        let fio = json!({ "fio version": "fio-3.35", "jobs": [{ "jobname": "a" }] });
        let check = json!({ "version": 1, "command": "check", "cases": [] });
        let own = serde_json::to_value(point(setting())).expect("JSON");
        let pretty = |value: &Value| serde_json::to_string_pretty(value).expect("JSON") + "\n";
        for (text, words) in [
            (pretty(&fio), "a result of fio, and not of `rpma perf`"),
            (fio.to_string(), "a result of fio, and not of `rpma perf`"),
            (pretty(&check), "a report of another command of rpma"),
            (pretty(&json!([1, 2])), "is no result of `rpma perf`"),
            (
                pretty(&own).repeat(2),
                "pretty-printed JSON. Give each result its line",
            ),
            (
                lines(&[point(commit())]) + &pretty(&own),
                "pretty-printed JSON",
            ),
        ] {
            let problem = problem(&text);
            assert!(problem.contains(words), "{problem}");
            assert!(!problem.contains("cut off"), "{problem}");
        }
        let utf16: Vec<u8> = [0xff, 0xfe].into_iter().chain([b'{', 0]).collect();
        assert!(problem(utf16).contains("has a byte-order mark: its text is UTF-16"));
        let utf8 = format!("\u{feff}{}", lines(&[point(setting())]));
        let (_folder, path) = file(utf8);
        assert_eq!(read(&[path]).expect("it is read").len(), 1);
    }

    #[test]
    fn a_line_that_is_cut_off_has_its_number() {
        let whole = lines(&[point(setting()), point(commit())]);
        for length in [whole.len() - 2, whole.len() / 2 + 60] {
            let problem = problem(&whole[..length]);
            assert!(problem.starts_with("line 2 of "), "{problem}");
            assert!(
                problem
                    .ends_with("a.jsonl is cut off. Run the measurement again, or remove the line")
            );
        }
    }

    #[test]
    fn another_version_is_named() {
        for (version, shown) in [(json!(2), "2"), (json!("x"), "\"x\"")] {
            let newer = problem(changed("/version", version));
            let words = format!("version {shown} of the format, and this rpma reads version 1. ");
            assert!(newer.contains(&words), "{newer}");
            assert!(newer.ends_with("Install the version of rpma-cli that wrote it"));
        }
    }

    #[test]
    fn fields_of_other_types_are_refused() {
        for (place, value, words) in [
            ("/setting/op", json!("walk"), "unknown variant `walk`"),
            ("/result/operations", json!(-1), "invalid value"),
            (
                "/result/operations_per_second",
                Value::Null,
                "invalid type: null",
            ),
        ] {
            let problem = problem(changed(place, value));
            assert!(problem.contains("a.jsonl is damaged: "), "{problem}");
            assert!(problem.contains(words), "{problem}");
        }
    }

    #[test]
    fn invalid_histograms_are_refused() {
        let valid = point(setting()).result.histogram;
        let empty = encoded(&new_histogram());
        for text in ["", "?", "AAAA", &empty, &valid[..valid.len() / 2 / 4 * 4]] {
            let problem = problem(changed("/result/histogram", json!(text)));
            assert!(
                problem.contains("is damaged: its histogram is invalid: "),
                "{problem}"
            );
        }
    }

    /// Promise: a histogram of some bytes that asks for 4 GiB of counts gets no memory for them.
    #[test]
    fn a_histogram_without_its_counts_is_refused() {
        let mut plain = [0; HEADER];
        plain[..8].copy_from_slice(&[0x1c, 0x84, 0x93, 0x13, 0xff, 0xff, 0xff, 0xff]);
        let mut deflated = Vec::new();
        let read = ZlibEncoder::new(&plain[..], Compression::fast()).read_to_end(&mut deflated);
        read.expect("memory is enough");
        let len = (deflated.len() as u32).to_be_bytes();
        let whole = [&DEFLATED, &len[..], &deflated].concat();
        for (bytes, words) in [
            (&whole[..], "it is cut off"),
            (&plain, "it is not deflated"),
        ] {
            let text = STANDARD.encode(bytes);
            let problem = problem(changed("/result/histogram", json!(text)));
            assert!(problem.contains(words), "{problem}");
        }
    }

    #[test]
    fn simulated_results_are_not_compared_with_real_ones() {
        let simulated = changed("/simulated", json!(true));
        let (_one, first) = file(lines(&[point(setting())]));
        let (_other, second) = file(&simulated);
        for files in [[&first, &second], [&second, &first]] {
            let problem = read(&files.map(Clone::clone))
                .expect_err("they differ")
                .to_string();
            let words = format!(
                "{} has simulated results and {} has",
                second.display(),
                first.display()
            );
            assert!(problem.starts_with(&words), "{problem}");
        }
        assert_eq!(read(&[second]).expect("one kind").len(), 1);
    }

    #[test]
    fn more_results_than_a_page_can_show_are_refused() {
        let problem = problem(lines(&[point(setting())]).repeat(MAX_RESULTS + 1));
        assert_eq!(
            problem,
            "the files have more than 2000 results. Give fewer files"
        );
    }
}
