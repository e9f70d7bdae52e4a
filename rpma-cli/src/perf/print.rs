//! [`Printer`]: the results as a table, as lines of JSON, or as CSV; and the file of results.

use std::fmt::Display;

use serde_json::Value;

use super::result::Point;
use crate::args::{Format, Measure};
use crate::host::{self, Host};
use crate::problem::{Result, one_line};
use crate::report::{Output, ResultFile, error_line, unwritten};

/// The columns of CSV: places in the JSON of a point.
const COLUMNS: &str = "setting/op setting/method setting/flush setting/size setting/depth setting/batch \
                       setting/threads setting/connections setting/completions setting/rate \
                       setting/copies setting/servers simulated result/operations result/seconds \
                       result/operations_per_second result/bytes_per_second result/cpu_ns_per_operation \
                       result/not_begun result/latency/least \
                       result/latency/mean result/latency/p50 result/latency/p90 result/latency/p99 \
                       result/latency/p99_9 result/latency/p99_99 result/latency/most ended_early";

/// Where results go.
pub(super) struct Printer<'a> {
    out: &'a mut Output,
    format: Format,
    file: Option<ResultFile>,
    /// Whether the table has its names.
    has_head: bool,
}

impl<'a> Printer<'a> {
    pub(super) fn new(args: &Measure, out: &'a mut Output) -> Result<Self> {
        Ok(Self {
            out,
            format: args.form.format,
            file: ResultFile::of(&args.form)?,
            has_head: false,
        })
    }

    /// The hosts of the run.
    pub(super) fn head(&mut self, client: &Host, servers: &[&Host]) -> Result {
        if self.format != Format::Text {
            return Ok(());
        }
        let lines = host::lines(client, servers);
        lines.iter().try_for_each(|line| self.out.line(line))
    }

    pub(super) fn point(&mut self, point: &Point) -> Result {
        let line = serde_json::to_string(point).map_err(unwritten)? + "\n";
        if let Some(file) = &mut self.file {
            file.write(&line)?;
        }
        match self.format {
            Format::Json => self.out.bytes(line.as_bytes()),
            Format::Csv => self.csv(point),
            Format::Text => self.row(point),
        }
    }

    /// A line about the results, which is no result.
    pub(super) fn note(&mut self, text: &str) -> Result {
        if self.format == Format::Text {
            return self.out.line(text);
        }
        error_line(&one_line(text));
        Ok(())
    }

    /// The end of all points.
    pub(super) fn end(&mut self) -> Result {
        match &self.file {
            Some(file) if self.format == Format::Text => self.out.line(format!(
                "`rpma perf report {} -o report.html` draws these results",
                file.path().display()
            )),
            _ => Ok(()),
        }
    }

    fn row(&mut self, point: &Point) -> Result {
        let result = &point.result;
        let (names, cells): (Vec<&str>, Vec<String>) = result.columns().into_iter().unzip();
        if !std::mem::replace(&mut self.has_head, true) {
            self.out.line(row(&names, "operation"))?;
        }
        self.out.line(row(&cells, &point.setting.to_string()))?;
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

    fn csv(&mut self, point: &Point) -> Result {
        let columns = || COLUMNS.split_whitespace();
        if !std::mem::replace(&mut self.has_head, true) {
            let name = |column: &str| column.rsplit('/').next().unwrap_or_default().to_owned();
            self.out.csv(&[columns().map(name).collect::<Vec<_>>()])?;
        }
        let point = serde_json::to_value(point).map_err(unwritten)?;
        let cell = |column| match point.pointer(&format!("/{column}")) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        self.out.csv(&[columns().map(cell).collect::<Vec<_>>()])
    }
}

/// The figures first: the settings have other lengths.
fn row(columns: &[impl Display], setting: &str) -> String {
    let columns: Vec<String> = columns.iter().map(|text| format!("{text:>9}")).collect();
    format!("{}  {setting}", columns.join(" "))
}
