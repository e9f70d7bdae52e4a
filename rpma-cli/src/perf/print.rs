//! [`Printer`]: the results as a table, as lines of JSON, or as CSV; and the file of results.

use serde::Serialize;

use super::result::Point;
use crate::args::{Format, Measure};
use crate::host::Host;
use crate::problem::{Problem, one_line};
use crate::report::{Output, ResultFile};
use crate::settings::{Completions, Flush, Method, Op, Setting};
use crate::settings::{Nanos, PerSecond};

/// Where results go.
pub(super) struct Printer<'a> {
    out: &'a mut Output,
    format: Format,
    file: Option<ResultFile>,
    /// Whether something was printed.
    has_head: bool,
}

impl<'a> Printer<'a> {
    pub(super) fn new(args: &Measure, out: &'a mut Output) -> Result<Self, Problem> {
        Ok(Self {
            out,
            format: args.format,
            file: args.out.as_deref().map(ResultFile::open).transpose()?,
            has_head: false,
        })
    }

    /// The hosts of the run.
    pub(super) fn head<'h>(
        &mut self,
        client: &Host,
        servers: impl Iterator<Item = &'h Host>,
    ) -> Result<(), Problem> {
        if self.format != Format::Table {
            return Ok(());
        }
        self.out.line(format!("client: {client}"))?;
        for server in servers {
            self.out.line(format!("server: {server}"))?;
            if let Some(memory) = &server.memory {
                self.out.line(format!("  memory: {memory}"))?;
            }
        }
        Ok(())
    }

    pub(super) fn point(&mut self, point: &Point) -> Result<(), Problem> {
        let line = json_line(point)?;
        if let Some(file) = &mut self.file {
            file.write(&line)?;
        }
        match self.format {
            Format::Json => {
                self.has_head = true;
                self.out.bytes(line.as_bytes())
            }
            Format::Csv => self.csv(point),
            Format::Table => self.row(point),
        }
    }

    /// Whether there is a result.
    pub(super) fn has_result(&self) -> bool {
        self.has_head
    }

    /// A point without a result.
    pub(super) fn not_measured(&mut self, setting: &Setting, why: &str) -> Result<(), Problem> {
        let text = one_line(&format!("{setting}: not measured: {why}"));
        match self.format {
            Format::Table => self.out.line(text),
            _ => {
                eprintln!("{}{text}", crate::report::LABEL);
                Ok(())
            }
        }
    }

    /// Why no other point is measured.
    pub(super) fn ended_early(&mut self, why: &str) -> Result<(), Problem> {
        match self.format {
            Format::Table => self.out.line(format!("ended early: {why}")),
            _ => {
                eprintln!("{}ended early: {why}", crate::report::LABEL);
                Ok(())
            }
        }
    }

    /// The end of all points.
    pub(super) fn end(&mut self) -> Result<(), Problem> {
        match &self.file {
            Some(file) if self.format == Format::Table => self.out.line(format!(
                "`rpma perf report {} -o report.html` draws these results",
                file.path().display()
            )),
            _ => Ok(()),
        }
    }

    fn row(&mut self, point: &Point) -> Result<(), Problem> {
        if !std::mem::replace(&mut self.has_head, true) {
            let names = [
                "rate", "bytes/s", "p50", "p90", "p99", "p99.9", "p99.99", "most", "CPU",
            ];
            self.out.line(row(&names.map(str::to_owned), "operation"))?;
        }
        let (result, latency) = (&point.result, &point.result.latency);
        let times = [
            latency.p50,
            latency.p90,
            latency.p99,
            latency.p99_9,
            latency.p99_99,
            latency.most,
        ];
        let mut columns = vec![
            PerSecond(result.operations_per_second).to_string(),
            PerSecond(result.bytes_per_second).to_string(),
        ];
        columns.extend(times.map(|time| Nanos(time as f64).to_string()));
        columns.push(Nanos(result.cpu_ns_per_operation).to_string());
        self.out.line(row(&columns, &point.setting.to_string()))?;
        if result.not_begun > 0 {
            self.out.line(format!(
                "  {} operations were due and could not begin: their waits are in the percentiles",
                result.not_begun
            ))?;
        }
        match &point.ended_early {
            Some(why) => self.out.line(format!("  ended early: {why}")),
            None => Ok(()),
        }
    }

    fn csv(&mut self, point: &Point) -> Result<(), Problem> {
        let is_first = !std::mem::replace(&mut self.has_head, true);
        let mut writer = csv::WriterBuilder::new()
            .has_headers(is_first)
            .from_writer(Vec::new());
        let written = writer.serialize(Row::of(point));
        let bytes = written
            .map_err(|error| error.to_string())
            .and_then(|()| writer.into_inner().map_err(|error| error.to_string()));
        match bytes {
            Ok(bytes) => self.out.bytes(&bytes),
            Err(error) => Err(Problem::new(
                format!("a result cannot be written: {error}"),
                "",
            )),
        }
    }
}

fn json_line(point: &Point) -> Result<String, Problem> {
    match serde_json::to_string(point) {
        Ok(line) => Ok(line + "\n"),
        Err(error) => Err(Problem::new(
            format!("a result cannot be written: {error}"),
            "",
        )),
    }
}

/// The figures first: the settings have other lengths.
fn row(columns: &[String], setting: &str) -> String {
    let columns: Vec<String> = columns.iter().map(|text| format!("{text:>9}")).collect();
    format!("{}  {setting}", columns.join(" "))
}

/// A result as a line of CSV.
#[derive(Serialize)]
struct Row {
    op: Op,
    method: Option<Method>,
    flush: Option<Flush>,
    size: u64,
    depth: u32,
    batch: u32,
    threads: u32,
    connections: u32,
    completions: Completions,
    rate: Option<f64>,
    copies: Option<u32>,
    servers: u32,
    simulated: bool,
    operations: u64,
    seconds: f64,
    operations_per_second: f64,
    bytes_per_second: f64,
    cpu_ns_per_operation: f64,
    own_cpu_ns_per_operation: f64,
    not_begun: u64,
    least_ns: u64,
    mean_ns: f64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p99_9_ns: u64,
    p99_99_ns: u64,
    most_ns: u64,
    ended_early: Option<String>,
}

impl Row {
    fn of(point: &Point) -> Self {
        let (setting, result) = (point.setting, &point.result);
        let latency = result.latency;
        Self {
            op: setting.op,
            method: setting.method,
            flush: setting.flush,
            size: setting.size,
            depth: setting.depth,
            batch: setting.batch,
            threads: setting.threads,
            connections: setting.connections,
            completions: setting.completions,
            rate: setting.rate,
            copies: setting.copies,
            servers: setting.servers,
            simulated: point.simulated,
            operations: result.operations,
            seconds: result.seconds,
            operations_per_second: result.operations_per_second,
            bytes_per_second: result.bytes_per_second,
            cpu_ns_per_operation: result.cpu_ns_per_operation,
            own_cpu_ns_per_operation: result.own_cpu_ns_per_operation,
            not_begun: result.not_begun,
            least_ns: latency.least,
            mean_ns: latency.mean,
            p50_ns: latency.p50,
            p90_ns: latency.p90,
            p99_ns: latency.p99,
            p99_9_ns: latency.p99_9,
            p99_99_ns: latency.p99_99,
            most_ns: latency.most,
            ended_early: point.ended_early.clone(),
        }
    }
}
