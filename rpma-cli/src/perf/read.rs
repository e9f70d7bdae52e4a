//! Reads files of results, and checks each line: a report has no figure of a damaged line.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use serde_json::Value;

use super::result::{FORMAT, Latency, Measured, Point, VERSION};
use crate::problem::Problem;
use crate::settings::Setting;

/// A point with its histogram has a few kilobytes.
const MAX_LINE: u64 = 1 << 20;
/// A page with more results cannot be read, and a browser takes long to show it.
const MAX_RESULTS: usize = 2000;
/// The bytes of a histogram after its inflation. With three digits it has less than a tenth.
const MAX_HISTOGRAM: u64 = 16 << 20;

const REMEASURE: &str = "Run the measurement again, or remove the line";
const WRONG_FILE: &str = "Give files that `rpma perf` wrote";

/// A result that has passed the checks.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) point: Point,
    /// Whether the histogram has no latency.
    pub(crate) is_empty: bool,
    /// The significant digits of the histogram.
    pub(crate) digits: u8,
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
        let mut lines = Lines::open(path)?;
        while let Some(line) = lines.next()? {
            let entry = parse(&line).map_err(|Fault(what, remedy)| lines.problem(what, remedy))?;
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
        if lines.results == 0 {
            let what = format!("{} has no results", path.display());
            return Err(Problem::new(
                what,
                "Run `rpma perf` again, or leave this file out",
            ));
        }
    }
    Ok(entries)
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

/// The lines of a file.
struct Lines<'a> {
    path: &'a Path,
    reader: BufReader<File>,
    /// The number of the last line that was read.
    number: u64,
    results: u64,
}

impl<'a> Lines<'a> {
    fn open(path: &'a Path) -> Result<Self, Problem> {
        let name = path.display();
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?.is_dir(), file)));
        match opened {
            Ok((false, file)) => Ok(Self {
                path,
                reader: BufReader::new(file),
                number: 0,
                results: 0,
            }),
            Ok((true, _)) => {
                let what = format!("{name} is a directory");
                Err(Problem::new(what, "Give the files of results in it"))
            }
            Err(error) => {
                let what = format!("{name} cannot be opened: {error}");
                Err(Problem::new(what, WRONG_FILE))
            }
        }
    }

    /// The next line that is not empty.
    fn next(&mut self) -> Result<Option<Vec<u8>>, Problem> {
        loop {
            let mut line = Vec::new();
            let mut limited = self.reader.by_ref().take(MAX_LINE + 1);
            let length = limited.read_until(b'\n', &mut line).map_err(|error| {
                let what = format!("{} cannot be read: {error}", self.path.display());
                Problem::new(what, WRONG_FILE)
            })?;
            if length == 0 {
                return Ok(None);
            }
            self.number += 1;
            if line.len() as u64 > MAX_LINE {
                return Err(self.problem("is longer than 1 MiB", WRONG_FILE));
            }
            if !line.trim_ascii().is_empty() {
                self.results += 1;
                return Ok(Some(line));
            }
        }
    }

    fn problem(&self, what: impl Display, remedy: impl Into<String>) -> Problem {
        let line = format!("line {} of {}", self.number, self.path.display());
        Problem::new(format!("{line} {what}"), remedy)
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

fn parse(line: &[u8]) -> Result<Entry, Fault> {
    let value: Value = serde_json::from_slice(line).map_err(|error| {
        if error.is_eof() {
            Fault::new("is cut off", REMEASURE)
        } else {
            Fault::new("is no result of `rpma perf`", WRONG_FILE)
        }
    })?;
    if value["format"] != FORMAT {
        return Err(Fault::new("is no result of `rpma perf`", WRONG_FILE));
    }
    if value["version"] != VERSION {
        return Err(other_version(&value));
    }
    let point: Point = serde_json::from_value(value).map_err(Fault::damaged)?;
    check_setting(&point.setting).map_err(Fault::damaged)?;
    check_numbers(&point.result).map_err(Fault::damaged)?;
    let histogram = histogram(&point.result.histogram).map_err(Fault::damaged)?;
    check_latencies(&point.result.latency, &histogram).map_err(Fault::damaged)?;
    Ok(Entry {
        is_empty: histogram.is_empty(),
        digits: histogram.sigfig(),
        curve: curve(&histogram),
        point,
    })
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

fn check_setting(setting: &Setting) -> Result<(), String> {
    for (value, name) in [
        (setting.depth, "depth"),
        (setting.batch, "batch"),
        (setting.threads, "threads"),
        (setting.connections, "connections"),
        (setting.servers, "servers"),
    ] {
        if value == 0 {
            return Err(format!("`{name}` is 0"));
        }
    }
    match (setting.rate, setting.copies) {
        (Some(rate), _) if !(rate.is_finite() && rate > 0.0) => Err(format!("`rate` is {rate}")),
        (_, Some(copies)) if copies > setting.servers => Err(format!(
            "`copies` is {copies}, with {} servers",
            setting.servers
        )),
        _ => Ok(()),
    }
}

fn check_numbers(result: &Measured) -> Result<(), String> {
    for (value, name) in [
        (result.seconds, "seconds"),
        (result.operations_per_second, "operations_per_second"),
        (result.bytes_per_second, "bytes_per_second"),
        (result.cpu_ns_per_operation, "cpu_ns_per_operation"),
        (result.own_cpu_ns_per_operation, "own_cpu_ns_per_operation"),
        (result.latency.mean, "mean"),
    ] {
        if !(value.is_finite() && value >= 0.0) {
            return Err(format!("`{name}` is {value}"));
        }
    }
    let operations = result.operations as f64;
    let difference = result.operations_per_second * result.seconds - operations;
    if difference.abs() <= 1.0 + operations / 100.0 {
        Ok(())
    } else {
        Err("`operations`, `seconds` and `operations_per_second` contradict".into())
    }
}

/// The latencies must be those of the histogram, within its precision.
fn check_latencies(written: &Latency, histogram: &Histogram<u64>) -> Result<(), String> {
    let counted = Latency::of(histogram);
    let precision = 2.0 / 10_f64.powi(histogram.sigfig().into());
    for (written, counted, name) in [
        (written.least, counted.least, "least"),
        (written.p50, counted.p50, "p50"),
        (written.p90, counted.p90, "p90"),
        (written.p99, counted.p99, "p99"),
        (written.p99_9, counted.p99_9, "p99_9"),
        (written.p99_99, counted.p99_99, "p99_99"),
        (written.most, counted.most, "most"),
    ] {
        let allowed = (counted as f64 * precision).max(1.0);
        if written.abs_diff(counted) as f64 > allowed {
            let why = format!("`{name}` is {written} ns, and {counted} ns in the histogram");
            return Err(why);
        }
    }
    Ok(())
}

/// Inflates with a limit, because a few bytes can become gigabytes. The library has none.
fn histogram(text: &str) -> Result<Histogram<u64>, String> {
    const INVALID: &str = "its histogram is invalid";
    let invalid = |error: &dyn Display| format!("{INVALID}: {error}");
    let bytes = STANDARD.decode(text).map_err(|error| invalid(&error))?;
    // The cookie, and the length of the rest.
    let Some((_, deflated)) = bytes.split_at_checked(8) else {
        return Err(format!("{INVALID}: it is too short"));
    };
    let mut inflated = Vec::new();
    ZlibDecoder::new(deflated)
        .take(MAX_HISTOGRAM)
        .read_to_end(&mut inflated)
        .map_err(|error| invalid(&error))?;
    // A header of 40 bytes, with the length of the rest after the cookie.
    let length = inflated.get(4..8).and_then(|bytes| bytes.try_into().ok());
    let length = length.map(u32::from_be_bytes);
    if length.map(|length| length as usize) != inflated.len().checked_sub(40) {
        return Err(format!("{INVALID}: its length is wrong"));
    }
    let histogram = Deserializer::new().deserialize(&mut &inflated[..]);
    histogram.map_err(|error| invalid(&error))
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
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;
    use serde_json::json;
    use tempfile::{TempDir, tempdir};

    use super::*;
    use crate::perf::samples::{commit, empty, encoded, lines, new_histogram, point, setting};

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

    fn deflated(inflated: &[u8]) -> String {
        let mut bytes = vec![0; 8];
        let mut encoder = ZlibEncoder::new(&mut bytes, Compression::fast());
        encoder.write_all(inflated).expect("memory");
        encoder.finish().expect("memory");
        STANDARD.encode(bytes)
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
        assert_eq!(entries[0].digits, 3);
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
            (missing.as_path(), "cannot be opened"),
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
        assert!(
            problem.contains("a.jsonl is longer than 1 MiB. Give"),
            "{problem}"
        );
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
    fn figures_that_cannot_be_are_refused() {
        for (place, value, words) in [
            ("/setting/op", json!("walk"), "unknown variant `walk`"),
            ("/setting/depth", json!(0), "`depth` is 0"),
            ("/setting/servers", json!(0), "`servers` is 0"),
            ("/setting/copies", json!(4), "`copies` is 4, with 3 servers"),
            ("/result/seconds", json!(-1.0), "`seconds` is -1"),
            ("/result/seconds", json!(1e6), "contradict"),
            ("/result/operations", json!(-1), "invalid value"),
            ("/result/operations", json!(7), "contradict"),
            (
                "/result/operations_per_second",
                Value::Null,
                "invalid type: null",
            ),
            (
                "/result/bytes_per_second",
                json!(-0.1),
                "`bytes_per_second` is -0.1",
            ),
            ("/result/latency/p99", json!(1), "`p99` is 1 ns, and "),
            ("/result/latency/most", json!(u64::MAX), "`most` is "),
            (
                "/result/histogram",
                json!(encoded(&new_histogram())),
                "`least` is ",
            ),
        ] {
            let problem = problem(changed(place, value));
            assert!(problem.contains("a.jsonl is damaged: "), "{problem}");
            assert!(problem.contains(words), "{problem}");
        }
        let mut line: Value =
            serde_json::from_str(&changed("/setting/depth", json!(1))).expect("JSON");
        line["setting"]["rate"] = json!(0.0);
        assert!(problem(line.to_string()).contains("`rate` is 0"));
    }

    #[test]
    fn invalid_histograms_are_refused() {
        let valid = point(setting()).result.histogram;
        let mut header = [0; 40];
        header[..4].copy_from_slice(&0x1c84_9303_u32.to_be_bytes());
        // They claim and become more than the limits.
        let mut claims = header;
        claims[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
        for text in [
            "",
            "?",
            "AAAA",
            &valid[..valid.len() / 2 / 4 * 4],
            &deflated(&header),
            &deflated(&claims),
            &deflated(&vec![0; 64 << 20]),
        ] {
            let problem = problem(changed("/result/histogram", json!(text)));
            assert!(
                problem.contains("is damaged: its histogram is invalid: "),
                "{problem}"
            );
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
