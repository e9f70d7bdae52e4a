//! Which charts a report has, and which lines are in them.

use std::cmp::Ordering;

use serde::Serialize;

use super::axis::{self, Axis, PERCENTILES, Text};
use super::chart::{Chart, Line, MOST_LINES};
use super::runs::{Item, Run};
use super::words;
use crate::settings::{Measured, Nanos, Setting};

/// Charts about the same question.
#[derive(Debug, Serialize)]
pub(super) struct Section {
    heading: &'static str,
    note: &'static str,
    /// The name of the horizontal axis.
    axis: &'static str,
    /// Whether its panels can be side by side.
    is_grid: bool,
    panels: Vec<Panel>,
}

/// Charts with the same lines.
#[derive(Debug, Serialize)]
struct Panel {
    /// The words that all lines have in common.
    common: String,
    legend: Vec<Key>,
    is_single: bool,
    charts: Vec<Chart>,
}

/// A line in a legend.
#[derive(Debug, Serialize)]
struct Key {
    text: String,
    /// Beside a chart that is alone.
    figures: String,
}

/// A value on which the others depend.
struct Cause {
    heading: &'static str,
    note: &'static str,
    axis: &'static str,
    of: fn(&Setting) -> f64,
    /// Makes all settings equal that differ only in this value.
    remove: fn(&mut Setting),
    text: Text,
    /// The place of the value in the words of an item.
    word: usize,
}

const CAUSES: [Cause; 3] = [
    Cause {
        heading: "By size",
        note: "Each line has results that differ only in their size.",
        axis: "size of an operation",
        of: |setting| setting.size as f64,
        remove: |setting| setting.size = 0,
        text: axis::size,
        word: words::SIZE,
    },
    Cause {
        heading: "By depth",
        note: "Each line has results that differ only in their depth: the operations in flight on \
               each connection.",
        axis: "depth",
        of: |setting| setting.depth.into(),
        remove: |setting| setting.depth = 0,
        text: axis::plain,
        word: words::DEPTH,
    },
    Cause {
        heading: "By rate",
        note: "Each line has results that differ only in the intended rate of their open loop.",
        axis: "intended operations/s",
        of: |setting| setting.rate.unwrap_or_default(),
        remove: |setting| setting.rate = None,
        text: axis::plain,
        word: words::RATE,
    },
];

/// A figure of a result.
type Figure = (&'static str, fn(&Measured) -> f64);

/// The figures that depend on a [`Cause`]. Those beside each other have the same axis, so that their
/// charts can be compared.
const EFFECTS: [(Text, &[Figure]); 3] = [
    (
        axis::plain,
        &[("Operations per second", |of| of.operations_per_second)],
    ),
    (
        axis::bytes,
        &[("Bytes per second", |of| of.bytes_per_second)],
    ),
    (
        axis::nanoseconds,
        &[
            ("Latency, median (p50)", |of| of.latency.p50 as f64),
            ("Latency, p99", |of| of.latency.p99 as f64),
        ],
    ),
];

/// Each section that has a chart.
pub(super) fn sections(runs: &[Run<'_>]) -> Vec<Section> {
    let mut items: Vec<Item<'_>> = runs.iter().flat_map(|run| &run.items).copied().collect();
    items.sort_by(Item::order);
    let by_cause = CAUSES.iter().map(|cause| by_cause(cause, &items));
    let mut sections = vec![percentiles(&items)];
    sections.extend(by_cause);
    sections.retain(|section| !section.panels.is_empty());
    sections
}

fn percentiles(items: &[Item<'_>]) -> Section {
    let has_curve = |item: &&Item<'_>| !item.entry.curve.is_empty();
    let items: Vec<Item<'_>> = items.iter().filter(has_curve).copied().collect();
    let points = || items.iter().flat_map(|item| &item.entry.curve);
    let last = points().map(|point| point.0).fold(0.0, f64::max);
    let latencies: Vec<f64> = points().map(|point| point.1).collect();
    let x = Axis::percentiles(last);
    let y = Axis::around(&latencies, axis::nanoseconds);
    let boxes = match items.len() {
        1..=MOST_LINES => vec![items],
        _ => boxes(&items, |item| item.entry.point.setting),
    };
    let panel = |items: &Vec<Item<'_>>| {
        let points = items.iter().map(|item| item.entry.curve.clone());
        let charts = [("Latency by percentile", (&x, &y), points.collect())];
        let figures = |item: &Item<'_>| {
            let latency = item.entry.point.result.latency;
            let [p50, p99, most] =
                [latency.p50, latency.p99, latency.most].map(|ns| Nanos(ns as f64));
            format!("p50 {p50}, p99 {p99}, most {most}")
        };
        let figures = items.iter().map(figures).collect();
        Panel::new(items.iter().map(words::of_item), figures, &charts, is_known)
    };
    Section {
        is_grid: boxes.len() > 1,
        heading: "Latency by percentile",
        note: "All charts have the same axes. A line ends at the last percentile that has an operation beyond it.",
        axis: "percentile of the operations",
        panels: boxes.iter().map(panel).collect(),
    }
}

/// Whether a percentile has a tick.
fn is_known(one_in: f64) -> bool {
    let mut known = PERCENTILES.iter().map(|(known, _)| one_in / known - 1.0);
    known.any(|distance| distance.abs() < 1e-6)
}

/// The results of a line, which differ in one value.
type Series<'a> = Vec<Item<'a>>;

fn by_cause(cause: &Cause, items: &[Item<'_>]) -> Section {
    let all = series(cause, items);
    let value = |item: &Item<'_>| (cause.of)(&item.entry.point.setting);
    let causes: Vec<f64> = all.iter().flatten().map(value).collect();
    let x = Axis::at_values(&causes, cause.text);
    // All charts of a figure have the same axes.
    let axes = EFFECTS.map(|(text, figures)| {
        let results = || all.iter().flatten().map(|item| &item.entry.point.result);
        let values = figures.iter().flat_map(|(_, of)| results().map(of));
        let values: Vec<f64> = values.collect();
        Axis::around(&values, text)
    });
    let name = |series: &Series<'_>| {
        let mut words = words::of_item(&series[0]);
        words[cause.word] = String::new();
        words
    };
    let panel = |group: &Vec<Series<'_>>| {
        let figures = EFFECTS.iter().zip(&axes);
        let figures =
            figures.flat_map(|((_, figures), y)| figures.iter().map(move |figure| (figure, y)));
        let charts = figures.map(|((title, of), y)| {
            let point = |item: &Item<'_>| (value(item), of(&item.entry.point.result));
            let line = |series: &Series<'_>| series.iter().map(point).collect();
            (*title, (&x, y), group.iter().map(line).collect())
        });
        // A single line is named above its charts.
        let keys = if group.len() > 1 { group.len() } else { 0 };
        let charts: Vec<Drawing<'_>> = charts.collect();
        Panel::new(
            group.iter().map(name),
            vec![String::new(); keys],
            &charts,
            |_| true,
        )
    };
    let boxes = boxes(&all, |series| series[0].entry.point.setting);
    Section {
        heading: cause.heading,
        note: cause.note,
        axis: cause.axis,
        is_grid: false,
        panels: boxes.iter().map(panel).collect(),
    }
}

/// All lines that have two points at least.
fn series<'a>(cause: &Cause, items: &[Item<'a>]) -> Vec<Series<'a>> {
    let value = |item: &Item<'_>| (cause.of)(&item.entry.point.setting);
    let key = |item: &Item<'_>| {
        let mut setting = item.entry.point.setting;
        (cause.remove)(&mut setting);
        (item.run, item.repeat, setting)
    };
    let mut all: Vec<Series<'a>> = Vec::new();
    for item in items.iter().filter(|item| value(item) > 0.0) {
        match all.iter_mut().find(|series| key(&series[0]) == key(item)) {
            Some(series) => series.push(*item),
            None => all.push(vec![*item]),
        }
    }
    all.retain(|series| series.len() > 1);
    for series in &mut all {
        series.sort_by(|one, other| value(one).total_cmp(&value(other)));
    }
    all
}

/// The lines of each box: few enough for a reader. Those that differ only in their size are in one
/// box, if they can, and those of one setting in several runs are side by side. No box has several
/// operations.
fn boxes<T: Clone>(all: &[T], setting: impl Fn(&T) -> Setting) -> Vec<Vec<T>> {
    let shape = |one: &T| Setting {
        size: 0,
        ..setting(one)
    };
    let mut sorted = all.to_vec();
    let order = |one: &T, other: &T| shape(one).partial_cmp(&shape(other));
    sorted.sort_by(|one, other| order(one, other).unwrap_or(Ordering::Equal));
    let mut boxes: Vec<Vec<T>> = Vec::new();
    for group in sorted.chunk_by(|one, other| shape(one) == shape(other)) {
        let parts: Vec<&[T]> = match group.len() {
            ..=MOST_LINES => vec![group],
            _ => {
                let same = group.chunk_by(|one, other| setting(one) == setting(other));
                same.flat_map(|same| same.chunks(MOST_LINES)).collect()
            }
        };
        for part in parts {
            let operation = |one: &T| setting(one).operation();
            let fits = |last: &&mut Vec<T>| {
                last.len() + part.len() <= MOST_LINES && operation(&last[0]) == operation(&part[0])
            };
            match boxes.last_mut().filter(fits) {
                Some(last) => last.extend_from_slice(part),
                None => boxes.push(part.to_vec()),
            }
        }
    }
    boxes
}

/// A chart's title, its axes, and the points of its lines.
type Drawing<'a> = (&'static str, (&'a Axis, &'a Axis), Vec<Vec<(f64, f64)>>);

impl Panel {
    /// `names` are the words of each line. There is a key for each of the figures.
    fn new(
        names: impl Iterator<Item = Vec<String>>,
        figures: Vec<String>,
        charts: &[Drawing<'_>],
        has_mark: fn(f64) -> bool,
    ) -> Self {
        let (common, own) = words::divide(&names.collect::<Vec<_>>());
        let line = |(points, name): (&Vec<(f64, f64)>, &String)| Line {
            name: if name.is_empty() { &common } else { name }.clone(),
            points: points.clone(),
            has_mark,
        };
        let chart = |(title, axes, lines): &Drawing<'_>| {
            let lines: Vec<Line> = lines.iter().zip(&own).map(line).collect();
            Chart::new(title, *axes, &lines)
        };
        let charts: Vec<Chart> = charts.iter().map(chart).collect();
        let keys = own.into_iter().zip(figures);
        Self {
            legend: keys.map(|(text, figures)| Key { text, figures }).collect(),
            common,
            is_single: charts.len() == 1,
            charts,
        }
    }
}
