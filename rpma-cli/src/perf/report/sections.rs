//! Which charts a report has, and which lines are in them.

use serde::Serialize;

use super::axis::{Axis, PERCENTILES};
use super::chart::{self, Line, MOST_LINES};
use super::runs::{Item, Run};
use super::words;
use crate::perf::result::Latency;
use crate::problem::Problem;
use crate::settings::{Nanos, Setting};

/// Charts about the same question.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Section {
    heading: &'static str,
    note: &'static str,
    /// Whether its panels can be side by side.
    is_grid: bool,
    panels: Vec<Panel>,
}

/// Charts with the same lines.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Panel {
    /// The words that all lines have in common.
    common: String,
    legend: Vec<Key>,
    is_single: bool,
    charts: Vec<Chart>,
}

/// A line in a legend.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Key {
    swatch: String,
    text: String,
    /// Beside a chart that is alone.
    figures: String,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Chart {
    title: String,
    /// For readers who do not see it.
    description: String,
    svg: String,
}

/// A value on which the others depend.
struct Cause {
    heading: &'static str,
    note: &'static str,
    of: fn(&Setting) -> Option<f64>,
    /// Makes all settings equal that differ only in this value.
    remove: fn(Setting) -> Setting,
    axis: fn(&[f64]) -> Axis,
    /// The place of the value in the words of an item.
    word: usize,
}

const SIZE: Cause = Cause {
    heading: "By size",
    note: "Each line has results that differ only in their size.",
    of: |setting| Some(setting.size as f64).filter(|size| *size > 0.0),
    remove: |setting| Setting { size: 0, ..setting },
    axis: Axis::sizes,
    word: words::SIZE,
};

const DEPTH: Cause = Cause {
    heading: "By depth",
    note: "Each line has results that differ only in their depth: the operations in flight on each \
           connection.",
    of: |setting| Some(setting.depth.into()).filter(|depth| *depth > 0.0),
    remove: |setting| Setting {
        depth: 0,
        ..setting
    },
    axis: Axis::depths,
    word: words::DEPTH,
};

const RATE: Cause = Cause {
    heading: "By rate",
    note: "Each line has results that differ only in the intended rate of their open loop.",
    of: |setting| setting.rate.filter(|rate| *rate > 0.0),
    remove: |setting| Setting {
        rate: None,
        ..setting
    },
    axis: Axis::rates,
    word: words::RATE,
};

/// A figure that depends on a [`Cause`].
struct Effect {
    title: &'static str,
    of: fn(&Item<'_>) -> Option<f64>,
    /// Figures that have the same axis, so that charts can be compared.
    beside: &'static [fn(&Item<'_>) -> Option<f64>],
    axis: fn(&[f64]) -> Axis,
}

const EFFECTS: [Effect; 4] = [
    Effect {
        title: "Operations per second",
        of: |item| Some(item.entry.point.result.operations_per_second),
        beside: &[],
        axis: Axis::operations,
    },
    Effect {
        title: "Bytes per second",
        of: |item| Some(item.entry.point.result.bytes_per_second),
        beside: &[],
        axis: Axis::bytes,
    },
    Effect {
        title: "Latency, median (p50)",
        of: p50,
        beside: &[p99],
        axis: Axis::latencies,
    },
    Effect {
        title: "Latency, p99",
        of: p99,
        beside: &[p50],
        axis: Axis::latencies,
    },
];

fn p50(item: &Item<'_>) -> Option<f64> {
    latency(item, |latency| latency.p50)
}

fn p99(item: &Item<'_>) -> Option<f64> {
    latency(item, |latency| latency.p99)
}

/// Without an operation there is no latency.
fn latency(item: &Item<'_>, of: fn(&Latency) -> u64) -> Option<f64> {
    let is_measured = !item.entry.is_empty;
    is_measured.then(|| of(&item.entry.point.result.latency) as f64)
}

/// Each section that has a chart.
pub(super) fn sections(runs: &[Run<'_>]) -> Result<Vec<Section>, Problem> {
    let mut items: Vec<Item<'_>> = runs.iter().flat_map(|run| &run.items).copied().collect();
    items.sort_by(Item::order);
    let mut sections = vec![percentiles(&items)?];
    for cause in [&SIZE, &DEPTH, &RATE] {
        sections.push(by_cause(cause, &items)?);
    }
    sections.retain(|section| !section.panels.is_empty());
    Ok(sections)
}

fn percentiles(items: &[Item<'_>]) -> Result<Section, Problem> {
    let has_curve = |item: &&Item<'_>| !item.entry.curve.is_empty();
    let items: Vec<Item<'_>> = items.iter().filter(has_curve).copied().collect();
    let points: Vec<(f64, f64)> = items.iter().flat_map(|item| curve(item).points).collect();
    let latencies: Vec<f64> = points.iter().map(|point| point.1).collect();
    let last = points.iter().map(|point| point.0).fold(0.0, f64::max);
    let (x, y) = (Axis::percentiles(last), Axis::latencies(&latencies));
    let boxes = match items.len() {
        0..=MOST_LINES => vec![items],
        _ => boxes(&items, |item| &item.entry.point.setting),
    };
    let panel = |items: &Vec<Item<'_>>| -> Result<Panel, Problem> {
        let names: Vec<Vec<String>> = items.iter().map(words::of_item).collect();
        let lines: Vec<Line> = items.iter().map(curve).collect();
        let (common, own) = words::divide(&names);
        let chart = Chart::new("Latency by percentile", &common, &own, (&x, &y), &lines)?;
        let figures = items.iter().map(|item| {
            let latency = item.entry.point.result.latency;
            let [p50, p99, most] =
                [latency.p50, latency.p99, latency.most].map(|ns| Nanos(ns as f64));
            format!("p50 {p50}, p99 {p99}, most {most}")
        });
        let keys = own.into_iter().zip(figures).enumerate();
        let keys = keys.map(|(line, (text, figures))| Key::new(line, text, figures));
        Ok(Panel {
            common,
            legend: keys.collect::<Result<_, _>>()?,
            is_single: true,
            charts: vec![chart],
        })
    };
    let boxes: Vec<_> = boxes.iter().filter(|items| !items.is_empty()).collect();
    Ok(Section {
        is_grid: boxes.len() > 1,
        heading: "Latency by percentile",
        note: "All charts have the same axes. A line ends at the last percentile that has an operation beyond it.",
        panels: boxes.into_iter().map(panel).collect::<Result<_, _>>()?,
    })
}

fn curve(item: &Item<'_>) -> Line {
    let points = item.entry.curve.iter();
    let points: Vec<(f64, f64)> = points.map(|(one_in, ns)| (*one_in, *ns as f64)).collect();
    let has_mark = |point: &&(f64, f64)| {
        let near = |(one_in, _): &(f64, &str)| (point.0 / one_in - 1.0).abs() < 1e-6;
        PERCENTILES.iter().any(near)
    };
    let marks = points.iter().filter(has_mark).copied().collect();
    Line { points, marks }
}

/// The results of a line, which differ in one value.
#[derive(Clone)]
struct Series<'a> {
    items: Vec<Item<'a>>,
}

fn by_cause(cause: &Cause, items: &[Item<'_>]) -> Result<Section, Problem> {
    let all = series(cause, items);
    // All charts of a figure have the same axes.
    let axes = EFFECTS.each_ref().map(|effect| {
        let of = [&[effect.of][..], effect.beside].concat();
        let lines = of
            .iter()
            .flat_map(|of| all.iter().map(|series| line(cause, *of, series)));
        let points: Vec<(f64, f64)> = lines.flat_map(|line| line.points).collect();
        let causes: Vec<f64> = points.iter().map(|point| point.0).collect();
        let values: Vec<f64> = points.iter().map(|point| point.1).collect();
        let is_there = values.iter().any(|value| *value != 0.0);
        is_there.then(|| ((cause.axis)(&causes), (effect.axis)(&values)))
    });
    let panels = boxes(&all, |series| &series.items[0].entry.point.setting);
    let panels = panels.iter().map(|group| cause_panel(cause, group, &axes));
    let mut panels = panels.collect::<Result<Vec<_>, _>>()?;
    panels.retain(|panel| !panel.charts.is_empty());
    Ok(Section {
        heading: cause.heading,
        note: cause.note,
        is_grid: false,
        panels,
    })
}

/// All lines that have two points at least.
fn series<'a>(cause: &Cause, items: &[Item<'a>]) -> Vec<Series<'a>> {
    let has_value = |item: &&Item<'_>| (cause.of)(&item.entry.point.setting).is_some();
    let key = |item: &Item<'_>| {
        let setting = (cause.remove)(item.entry.point.setting);
        (item.run, item.repeat, setting)
    };
    let mut all: Vec<Series<'a>> = Vec::new();
    for item in items.iter().filter(has_value) {
        match all
            .iter_mut()
            .find(|series| key(&series.items[0]) == key(item))
        {
            Some(series) => series.items.push(*item),
            None => all.push(Series { items: vec![*item] }),
        }
    }
    all.retain(|series| series.items.len() > 1);
    for series in &mut all {
        let value = |item: &Item<'_>| (cause.of)(&item.entry.point.setting).unwrap_or_default();
        series
            .items
            .sort_by(|one, other| value(one).total_cmp(&value(other)));
    }
    all
}

fn cause_panel(
    cause: &Cause,
    group: &[Series<'_>],
    axes: &[Option<(Axis, Axis)>],
) -> Result<Panel, Problem> {
    let name = |series: &Series<'_>| {
        let mut words = words::of_item(&series.items[0]);
        words[cause.word] = String::new();
        words
    };
    let names: Vec<Vec<String>> = group.iter().map(name).collect();
    let (common, own) = words::divide(&names);
    let mut charts = Vec::new();
    for (effect, axes) in EFFECTS.iter().zip(axes) {
        let lines: Vec<Line> = group
            .iter()
            .map(|series| line(cause, effect.of, series))
            .collect();
        if let Some((x, y)) = axes {
            charts.push(Chart::new(effect.title, &common, &own, (x, y), &lines)?);
        }
    }
    // A single line is named above its charts.
    let keys = own.into_iter().enumerate().filter(|_| group.len() > 1);
    let keys = keys.map(|(line, text)| Key::new(line, text, String::new()));
    Ok(Panel {
        common,
        legend: keys.collect::<Result<_, _>>()?,
        is_single: charts.len() == 1,
        charts,
    })
}

fn line(cause: &Cause, of: fn(&Item<'_>) -> Option<f64>, series: &Series<'_>) -> Line {
    let point = |item: &Item<'_>| {
        let value = (cause.of)(&item.entry.point.setting)?;
        Some((value, of(item)?))
    };
    let points: Vec<(f64, f64)> = series.items.iter().filter_map(point).collect();
    let marks = points.clone();
    Line { points, marks }
}

/// The lines of each box: few enough for a reader. Those that differ only in their size are in one
/// box, if they can, and those of one setting in several runs are side by side. No box has several
/// operations.
fn boxes<T: Clone>(all: &[T], setting: impl Fn(&T) -> &Setting) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    for one in all {
        let key = |one: &T| (SIZE.remove)(*setting(one));
        match groups.iter_mut().find(|group| key(&group[0]) == key(one)) {
            Some(group) => group.push(one.clone()),
            None => groups.push(vec![one.clone()]),
        }
    }
    let mut boxes: Vec<Vec<T>> = Vec::new();
    for group in groups {
        let is_first = |one: &&T| setting(one) == setting(&group[0]);
        let runs = group.iter().take_while(is_first).count();
        let most = (MOST_LINES / runs).max(1) * runs;
        let parts = group.len().div_ceil(most.min(MOST_LINES));
        let lines = group.len().div_ceil(parts).next_multiple_of(runs);
        for part in group.chunks(lines.min(MOST_LINES)) {
            let operation = |one: &T| setting(one).operation();
            match boxes.last_mut() {
                Some(last)
                    if last.len() + part.len() <= MOST_LINES
                        && operation(&last[0]) == operation(&part[0]) =>
                {
                    last.extend_from_slice(part);
                }
                _ => boxes.push(part.to_vec()),
            }
        }
    }
    boxes
}

impl Key {
    fn new(line: usize, text: String, figures: String) -> Result<Self, Problem> {
        let swatch = chart::swatch(line)?;
        Ok(Self {
            swatch,
            text,
            figures,
        })
    }
}

impl Chart {
    fn new(
        title: &str,
        common: &str,
        own: &[String],
        (x, y): (&Axis, &Axis),
        lines: &[Line],
    ) -> Result<Self, Problem> {
        let line = |(line, name): (&Line, &String)| {
            let name = if name.is_empty() { common } else { name };
            let (first, last) = (line.points.first()?, line.points.last()?);
            let point = |point: &(f64, f64)| format!("{} at {}", y.text(point.1), x.text(point.0));
            Some(format!("{name}: {} to {}.", point(first), point(last)))
        };
        let lines_in_words: Vec<String> = lines.iter().zip(own).filter_map(line).collect();
        Ok(Self {
            title: title.to_owned(),
            description: lines_in_words.join(" "),
            svg: chart::draw(x, y, lines)?,
        })
    }
}
