//! [`Axis`]: the range of a chart in one direction, with ticks at readable numbers.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

use crate::settings::{Bytes, Nanos, PerSecond};

/// Values that differ more are on a logarithmic scale.
const LINEAR: f64 = 20.0;

/// The percentiles that have ticks: 1 / (1 - quantile), and the text.
pub(super) const PERCENTILES: [(f64, &str); 5] = [
    (2.0, "50 %"),
    (10.0, "90 %"),
    (100.0, "99 %"),
    (1_000.0, "99.9 %"),
    (10_000.0, "99.99 %"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    Linear,
    Log,
}

impl Scale {
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Log => value.log10(),
        }
    }
}

/// The text of a value.
type Text = fn(f64) -> String;

#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) name: &'static str,
    scale: Scale,
    /// On the scale.
    ends: (f64, f64),
    ticks: Vec<f64>,
    text: Text,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    /// A 0 on a logarithmic scale is at its begin.
    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let (low, high) = self.ends;
        let place = self.scale.place(*value).clamp(low, high);
        let share = (place - low) / (high - low);
        first + (f64::from(last - first) * share).round() as i32
    }

    /// There are no lines between ticks.
    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            Vec::new()
        } else {
            self.ticks.clone()
        }
    }

    fn range(&self) -> Range<f64> {
        let value = |place: f64| match self.scale {
            Scale::Linear => place,
            Scale::Log => 10_f64.powf(place),
        };
        value(self.ends.0)..value(self.ends.1)
    }
}

impl Axis {
    /// By 1 / (1 - quantile): each further digit of the percentile has the same room. It ends with
    /// the percentile that has all points up to `last` before it.
    pub(super) fn percentiles(last: f64) -> Self {
        let all = PERCENTILES.map(|(one_in, _)| one_in);
        let before = |tick: &&f64| **tick < last * (1.0 - 1e-9);
        let count = all.iter().take_while(before).count() + 1;
        let ticks = all[..count.clamp(2, all.len())].to_vec();
        Self::new(
            "percentile of the operations",
            Scale::Log,
            ticks,
            percentile,
        )
        .padded(0.03)
    }

    /// Bytes, each twice the former ones at the same distance.
    pub(super) fn sizes(values: &[f64]) -> Self {
        let text = |value| Bytes(value as u64).to_string();
        Self::at_values("size of an operation", values, text)
    }

    pub(super) fn depths(values: &[f64]) -> Self {
        Self::at_values("depth", values, plain)
    }

    pub(super) fn rates(values: &[f64]) -> Self {
        Self::readable("intended operations/s", values, plain).padded(0.03)
    }

    pub(super) fn operations(values: &[f64]) -> Self {
        Self::readable("operations/s", values, plain)
    }

    pub(super) fn bytes(values: &[f64]) -> Self {
        Self::readable("bytes/s", values, bytes)
    }

    /// Nanoseconds, on a logarithmic scale.
    pub(super) fn latencies(values: &[f64]) -> Self {
        Self::logarithmic("latency", values, nanoseconds)
    }

    /// A value with its unit.
    pub(super) fn text(&self, value: f64) -> String {
        (self.text)(value)
    }

    /// From the first tick to the last one.
    fn new(name: &'static str, scale: Scale, ticks: Vec<f64>, text: Text) -> Self {
        let end = |tick: Option<&f64>| tick.map_or(0.0, |value| scale.place(*value));
        Self {
            name,
            scale,
            ends: (end(ticks.first()), end(ticks.last())),
            ticks,
            text,
        }
    }

    /// With room for the marks of points on the ends.
    fn padded(mut self, share: f64) -> Self {
        let (low, high) = self.ends;
        let room = if high > low {
            (high - low) * share
        } else {
            0.5
        };
        self.ends = (low - room, high + room);
        self
    }

    /// A tick at each value, if there is room for its text.
    fn at_values(name: &'static str, values: &[f64], text: Text) -> Self {
        // The share of a chart's width that a letter takes.
        const LETTER: f64 = 0.026;
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let mut axis = Self::new(name, Scale::Log, values, text).padded(0.05);
        let width = axis.ends.1 - axis.ends.0;
        let mut free = f64::NEG_INFINITY;
        axis.ticks.retain(|value| {
            let place = axis.scale.place(*value);
            let half = (text(*value).chars().count() + 1) as f64 * LETTER * width / 2.0;
            let fits = place - half >= free;
            if fits {
                free = place + half;
            }
            fits
        });
        axis
    }

    /// From 0, or on a logarithmic scale if the values differ much.
    fn readable(name: &'static str, values: &[f64], text: Text) -> Self {
        let (low, high) = extremes(values);
        if low > 0.0 && high / low > LINEAR {
            return Self::logarithmic(name, values, text);
        }
        let step = step(high);
        let last = (high / step - 1e-9).ceil().max(1.0) as u32;
        let ticks = (0..=last).map(|count| f64::from(count) * step).collect();
        Self::new(name, Scale::Linear, ticks, text)
    }

    /// From a 1, 2 or 5 below all values to one above them.
    fn logarithmic(name: &'static str, values: &[f64], text: Text) -> Self {
        const MOST_TICKS: usize = 9;
        // A 0 has no place on this scale.
        let values: Vec<f64> = values
            .iter()
            .copied()
            .filter(|value| *value > 0.0)
            .collect();
        let (low, high) = if values.is_empty() {
            (1.0, 1.0)
        } else {
            extremes(&values)
        };
        let all = rounds(low, high, &[1.0, 2.0, 5.0]);
        let first = all.iter().rposition(|value| *value <= low * (1.0 + 1e-9));
        let last = all.iter().position(|value| *value > high * (1.0 + 1e-9));
        let ticks = all[first.unwrap_or(0)..=last.unwrap_or(all.len() - 1)].to_vec();
        let mut axis = Self::new(name, Scale::Log, ticks, text);
        if axis.ticks.len() > MOST_TICKS {
            let inside = axis.ends.0 - 1e-9..=axis.ends.1 + 1e-9;
            axis.ticks = rounds(low, high, &[1.0]);
            axis.ticks.retain(|value| inside.contains(&value.log10()));
            let every = axis.ticks.len().div_ceil(MOST_TICKS);
            axis.ticks = axis.ticks.into_iter().step_by(every).collect();
        }
        axis
    }
}

/// The factors with zeros, from below the one value to above the other.
fn rounds(from: f64, to: f64, factors: &[f64]) -> Vec<f64> {
    let powers = from.log10().floor() as i32 - 1..=to.log10().ceil() as i32 + 1;
    let of_power = |power| {
        factors
            .iter()
            .map(move |factor| factor * 10_f64.powi(power))
    };
    powers.flat_map(of_power).collect()
}

fn extremes(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    (low.min(high), high)
}

/// A 1, 2 or 5 with zeros. The value has at most five of them.
fn step(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let rough = value / 5.0 * 0.999;
    let all = rounds(rough, rough, &[1.0, 2.0, 5.0]);
    all.into_iter().find(|step| *step >= rough).unwrap_or(value)
}

fn percentile(one_in: f64) -> String {
    let known = PERCENTILES
        .iter()
        .rfind(|(known, _)| *known <= one_in * 1.001);
    known.map_or_else(String::new, |(_, text)| (*text).to_owned())
}

/// `500`, `20 k`, `1.5 M`.
fn plain(value: f64) -> String {
    per_second(value, "")
}

fn bytes(value: f64) -> String {
    per_second(value, "B")
}

fn per_second(value: f64, unit: &str) -> String {
    let text = short(&PerSecond(value).to_string());
    text.replace("/s", unit).trim_end().to_owned()
}

fn nanoseconds(value: f64) -> String {
    short(&Nanos(value).to_string())
}

/// A number with its unit, without zeros at the end of the number.
fn short(text: &str) -> String {
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            let number = number.trim_end_matches('0').trim_end_matches('.');
            format!("{number} {unit}")
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<String> {
        axis.ticks.iter().map(|value| axis.text(*value)).collect()
    }

    /// Whether all values are between the ends.
    fn holds(axis: &Axis, values: &[f64]) -> bool {
        let inside = axis.ends.0..=axis.ends.1;
        values
            .iter()
            .all(|value| inside.contains(&axis.scale.place(*value)))
    }

    #[test]
    fn latencies_have_round_ticks_around_all_values() {
        for (values, expected) in [
            (&[2100.0, 2900.0][..], &["2 µs", "5 µs"][..]),
            (
                &[800.0, 13_000.0],
                &["500 ns", "1 µs", "2 µs", "5 µs", "10 µs", "20 µs"],
            ),
            (
                &[3.0, 4e6],
                &["10 ns", "100 ns", "1 µs", "10 µs", "100 µs", "1 ms"],
            ),
            (&[1000.0], &["1 µs", "2 µs"]),
        ] {
            let axis = Axis::latencies(values);
            assert_eq!(texts(&axis), expected);
            assert!(holds(&axis, values), "{axis:?}");
        }
    }

    #[test]
    fn a_value_of_0_is_at_the_begin_of_a_logarithmic_axis() {
        for values in [&[0.0][..], &[0.0, 100.0]] {
            assert_eq!(Axis::latencies(values).map(&0.0, (50, 10)), 50);
        }
    }

    #[test]
    fn figures_that_differ_little_begin_at_0() {
        let axis = Axis::operations(&[200e3, 1.3e6]);
        assert_eq!(texts(&axis), ["0", "500 k", "1 M", "1.5 M"]);
        assert_eq!(axis.map(&750e3, (0, 100)), 50);
        assert_eq!(texts(&Axis::bytes(&[0.0, 0.0])), ["0 B", "1 B"]);
        let axis = Axis::bytes(&[1e6, 5e9]);
        assert_eq!(texts(&axis), ["1 MB", "10 MB", "100 MB", "1 GB", "10 GB"]);
        assert!(holds(&axis, &[1e6, 5e9]));
    }

    /// Promise: no third of a chart is empty because of percentiles that no line reaches.
    #[test]
    fn percentiles_end_where_the_lines_end() {
        let texts = |last| texts(&Axis::percentiles(last)).len();
        assert_eq!(
            [2.0, 10.0, 60.0, 100.0, 101.0, 1e4, 1e6].map(texts),
            [2, 2, 3, 3, 4, 5, 5]
        );
    }

    #[test]
    fn each_size_has_a_tick_if_there_is_room() {
        let sizes = [4096.0, 64.0, 64.0, 65536.0];
        assert_eq!(texts(&Axis::sizes(&sizes)), ["64 B", "4 KiB", "64 KiB"]);
        let many: Vec<f64> = (0..21).map(|power| f64::from(1 << power)).collect();
        let axis = Axis::sizes(&many);
        assert!((4..=12).contains(&axis.ticks.len()), "{:?}", axis.ticks);
        assert!(holds(&axis, &many));
    }

    #[test]
    fn one_value_has_an_axis_with_a_width() {
        for axis in [
            Axis::sizes(&[64.0]),
            Axis::depths(&[1.0]),
            Axis::rates(&[1000.0]),
            Axis::operations(&[7.0]),
            Axis::latencies(&[5e3]),
            Axis::percentiles(1e4),
        ] {
            assert!(axis.ends.0 < axis.ends.1, "{axis:?}");
            assert!((1..9).contains(&axis.ticks.len()), "{axis:?}");
        }
    }

    #[test]
    fn extreme_values_have_an_axis_too() {
        for value in [f64::MIN_POSITIVE, 1e-9, 1e300, f64::MAX] {
            for axis in [Axis::operations(&[value]), Axis::latencies(&[value, 1.0])] {
                assert!(axis.map(&value, (0, 100)) <= 100, "{axis:?}");
                assert!(axis.ticks.len() < 10, "{axis:?}");
            }
        }
    }
}
