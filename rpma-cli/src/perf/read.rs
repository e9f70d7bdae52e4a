//! Reads files of results.

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
use crate::problem::Problem;

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
    /// Whether the histogram has no latency.
    pub(crate) is_empty: bool,
    /// The latencies in nanoseconds, each with 1 / (1 - quantile). It ends where less than one
    /// operation is slower.
    pub(crate) curve: Vec<(f64, u64)>,
}

/// Reads all results. A result that is in two files is read once.
pub(crate) fn read(files: &[PathBuf]) -> Result<Vec<Entry>, Problem> {
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
        let (mut rest, mut number) = (text.as_str(), 0);
        while !rest.trim().is_empty() {
            let (from, (line, after)) = (rest, rest.split_once('\n').unwrap_or((rest, "")));
            (rest, number) = (after, number + 1);
            if line.trim().is_empty() {
                continue;
            }
            let entry = parse(line, from).map_err(|Fault(what, remedy)| {
                Problem::new(format!("line {number} of {name} {what}"), remedy)
            })?;
            kinds[usize::from(entry.point.simulated)].get_or_insert(path);
            if let [Some(real), Some(simulated)] = kinds {
                return Err(mixed(real, simulated));
            }
            if entries.iter().any(|known| known.equals(&entry)) {
                continue;
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
fn text(path: &Path) -> Result<String, Problem> {
    let name = path.display();
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes));
    if path.is_dir() {
        let what = format!("{name} is a directory");
        return Err(Problem::new(what, "Give the files of results in it"));
    }
    if let Err(error) = read {
        return Err(Problem::new(
            format!("{name} cannot be read: {error}"),
            WRONG_FILE,
        ));
    }
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        let what = format!("{name} has a byte-order mark: its text is UTF-16");
        return Err(Problem::new(
            what,
            "Convert it to UTF-8: iconv -f UTF-16 -t UTF-8",
        ));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    Ok(String::from_utf8_lossy(bytes).into_owned())
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

impl Entry {
    /// The histograms come first, because they differ most.
    fn equals(&self, other: &Self) -> bool {
        self.point.result.histogram == other.point.result.histogram && self.point == other.point
    }
}

/// The fault of a line, and its remedy.
#[derive(Debug)]
struct Fault(String, String);

impl Fault {
    fn new(what: impl Into<String>, remedy: &str) -> Self {
        Self(what.into(), remedy.to_owned())
    }

    fn damaged(why: impl Display) -> Self {
        Self::new(format!("is damaged: {why}"), REMEASURE)
    }
}

/// The result of a line. `from` is the text from this line on.
fn parse(line: &str, from: &str) -> Result<Entry, Fault> {
    let value: Value = match serde_json::from_str(line) {
        Ok(value) => value,
        Err(_) => return Err(no_json(from)),
    };
    if value["format"] != FORMAT {
        return Err(foreign(&value));
    }
    if value["version"] != VERSION {
        return Err(other_version(&value));
    }
    let point: Point = serde_json::from_value(value).map_err(Fault::damaged)?;
    let histogram = histogram(&point.result.histogram).map_err(Fault::damaged)?;
    Ok(Entry {
        is_empty: histogram.is_empty(),
        curve: curve(&histogram),
        point,
    })
}

/// The fault of a line that is no JSON. Other tools write a value on many lines.
fn no_json(from: &str) -> Fault {
    let mut values = serde_json::Deserializer::from_str(from).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) if value["format"] == FORMAT => Fault::new(
            "begins a result on several lines: this file is pretty-printed JSON",
            "Give each result its line: `jq -c .` does that",
        ),
        Some(Ok(value)) => foreign(&value),
        _ if from.starts_with(r#"{"format":""#) => Fault::new("is cut off", REMEASURE),
        _ => Fault::new("is no result of `rpma perf`", WRONG_FILE),
    }
}

/// The fault of another tool's JSON.
fn foreign(value: &Value) -> Fault {
    let whose = match value {
        _ if value.get("fio version").is_some() => "a result of fio, and not of `rpma perf`",
        _ if value["command"].is_string() => "a report of another command of rpma",
        _ => "no result of `rpma perf`",
    };
    Fault::new(format!("is {whose}"), WRONG_FILE)
}

fn other_version(value: &Value) -> Fault {
    let version = value["version"].as_u64();
    let version = version.map_or_else(|| "an unknown version".into(), |n| format!("version {n}"));
    let what = format!("has {version} of the format, and this rpma reads version {VERSION}");
    let is_version = |text: &&str| {
        let mut bytes = text.bytes();
        text.len() < 40 && bytes.all(|byte| byte.is_ascii_alphanumeric() || b".-+".contains(&byte))
    };
    let remedy = match value["client"]["rpma"].as_str().filter(is_version) {
        Some(rpma) => format!("Install rpma-cli {rpma}, which wrote it"),
        None => "Install the version of rpma-cli that wrote it".into(),
    };
    Fault(what, remedy)
}

/// The histogram of a result.
fn histogram(text: &str) -> Result<Histogram<u64>, String> {
    let bytes = STANDARD.decode(text).map_err(|error| error.to_string());
    let inflated = bytes.and_then(|bytes| inflate(&bytes));
    let histogram = inflated.and_then(|bytes| {
        let histogram = Deserializer::new().deserialize(&mut &bytes[..]);
        histogram.map_err(|error| error.to_string())
    });
    histogram.map_err(|error| format!("its histogram is invalid: {error}"))
}

/// The bytes of a deflated histogram. The decoder takes as much memory as its header asks for, so the
/// header must not ask for more than there is.
fn inflate(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let deflated = bytes.strip_prefix(&DEFLATED).and_then(|rest| rest.get(4..));
    let deflated = deflated.ok_or("it is not deflated")?;
    let (mut inflated, limit) = (Vec::new(), MAX_HISTOGRAM);
    let read = ZlibDecoder::new(deflated)
        .take(limit)
        .read_to_end(&mut inflated);
    read.map_err(|error| error.to_string())?;
    let counts = inflated.get(4..).and_then(|rest| rest.first_chunk());
    let counts = counts.map(|len| u32::from_be_bytes(*len) as usize);
    match counts {
        Some(len) if HEADER + len <= inflated.len() => Ok(inflated),
        _ => Err("it is cut off".to_owned()),
    }
}

/// Sixteen points for each digit of the quantile, from the median to 99.99 %.
fn curve(histogram: &Histogram<u64>) -> Vec<(f64, u64)> {
    const MEDIAN: f64 = 2.0;
    let steps = (5..=64).map(|step| 10_f64.powf(f64::from(step) / 16.0));
    let count = histogram.len() as f64;
    [MEDIAN]
        .into_iter()
        .chain(steps)
        .take_while(|one_in| *one_in <= count)
        .map(|one_in| (one_in, histogram.value_at_quantile(1.0 - 1.0 / one_in)))
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
    use crate::perf::samples::{commit, empty, lines, new_histogram, point, setting};
    use crate::settings::Setting;

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
        let points = [point(setting()), point(commit()), empty(setting())];
        // The last line has no end, and there are empty lines and other ends of lines.
        let text = lines(&points).replace('\n', "\r\n\n");
        let (_folder, path) = file(text.trim_end());
        let entries = read(&[path]).expect("they are valid");
        let settings = entries.iter().map(|entry| entry.point.setting);
        assert!(settings.eq(points.iter().map(|point| point.setting)));
        assert!(entries[2].is_empty && entries[2].curve.is_empty());
    }

    #[test]
    fn a_result_in_two_files_is_read_once() {
        let (_one, first) = file(lines(&[point(setting())]));
        let (_other, second) = file(lines(&[point(commit()), point(setting())]));
        assert_eq!(read(&[first, second]).expect("they are valid").len(), 2);
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
            let is_there = |point: &&(f64, u64)| (point.0 / one_in - 1.0_f64).abs() < 1e-9;
            let point = entry.curve.iter().find(is_there);
            assert_eq!(point.map(|point| point.1), Some(expected), "{one_in}");
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
    fn another_version_leads_to_its_rpma() {
        let mut line: Value = serde_json::from_str(&changed("/version", json!(2))).expect("JSON");
        line["client"]["rpma"] = json!("9.1.0");
        let newer = problem(line.to_string());
        assert!(newer.contains("version 2 of the format, and this rpma reads version 1. "));
        assert!(newer.ends_with("Install rpma-cli 9.1.0, which wrote it"));
        line["client"]["rpma"] = json!("; rm -r /");
        line["version"] = json!("x");
        let unknown = problem(line.to_string());
        assert!(unknown.contains("an unknown version"));
        assert!(unknown.ends_with("Install the version of rpma-cli that wrote it"));
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
        for text in ["", "?", "AAAA", &valid[..valid.len() / 2 / 4 * 4]] {
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
        let line = |size| empty(Setting { size, ..setting() });
        let points: Vec<Point> = (0..=MAX_RESULTS as u64).map(line).collect();
        let problem = problem(lines(&points));
        assert_eq!(
            problem,
            "the files have more than 2000 results. Give fewer files"
        );
    }
}
