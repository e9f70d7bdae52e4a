//! [`Axis`]: the logarithmic range of a chart in one direction, with ticks at readable numbers.

use crate::settings::{Bytes, Nanos, PerSecond};

/// The percentiles that have ticks: 1 / (1 - quantile), and the text.
pub(super) const PERCENTILES: [(f64, &str); 5] = [
    (2.0, "50 %"),
    (10.0, "90 %"),
    (100.0, "99 %"),
    (1_000.0, "99.9 %"),
    (10_000.0, "99.99 %"),
];

/// The text of a value.
pub(super) type Text = fn(f64) -> String;

#[derive(Clone, Debug)]
pub(super) struct Axis {
    /// The logarithms of the first and the last value.
    ends: (f64, f64),
    ticks: Vec<f64>,
    text: Text,
}

impl Axis {
    /// By 1 / (1 - quantile): each further digit of the percentile has the same room. It ends with
    /// the percentile that has all points up to `last` before it.
    pub(super) fn percentiles(last: f64) -> Self {
        let all = PERCENTILES.map(|(one_in, _)| one_in);
        let before = |tick: &&f64| **tick < last * (1.0 - 1e-9);
        let count = all.iter().take_while(before).count() + 1;
        let ticks = all[..count.clamp(2, all.len())].to_vec();
        Self::new(ticks, percentile).padded(0.03)
    }

    /// A tick at each value, or at every second one and so on if they are many.
    pub(super) fn at_values(values: &[f64], text: Text) -> Self {
        const MOST_TICKS: usize = 7;
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let every = values.len().div_ceil(MOST_TICKS).max(1);
        let ticks = values.iter().copied().step_by(every).collect();
        Self {
            ticks,
            ..Self::new(values, text).padded(0.05)
        }
    }

    /// From a 1, 2 or 5 below all values to one above them.
    pub(super) fn around(values: &[f64], text: Text) -> Self {
        const MOST_TICKS: usize = 9;
        // A 0 has no place on this scale.
        let positive = || values.iter().copied().filter(|value| *value > 0.0);
        let low = positive().reduce(f64::min).unwrap_or(1.0);
        let high = positive().reduce(f64::max).unwrap_or(1.0);
        let all = rounds(low, high, &[1.0, 2.0, 5.0]);
        let first = all.iter().rposition(|value| *value <= low * (1.0 + 1e-9));
        let last = all.iter().position(|value| *value > high * (1.0 + 1e-9));
        let ticks = all[first.unwrap_or(0)..=last.unwrap_or(all.len() - 1)].to_vec();
        let mut axis = Self::new(ticks, text).padded(0.0);
        if axis.ticks.len() > MOST_TICKS {
            let inside = axis.ends.0 - 1e-9..=axis.ends.1 + 1e-9;
            axis.ticks = rounds(low, high, &[1.0]);
            axis.ticks.retain(|value| inside.contains(&value.log10()));
            let every = axis.ticks.len().div_ceil(MOST_TICKS);
            axis.ticks = axis.ticks.into_iter().step_by(every).collect();
        }
        axis
    }

    /// The share of the axis before a value. A 0 is at its begin.
    pub(super) fn place(&self, value: f64) -> f64 {
        let (low, high) = self.ends;
        (value.max(0.0).log10().clamp(low, high) - low) / (high - low)
    }

    pub(super) fn ticks(&self) -> &[f64] {
        &self.ticks
    }

    /// A value with its unit.
    pub(super) fn text(&self, value: f64) -> String {
        (self.text)(value)
    }

    /// From the first tick to the last one.
    fn new(ticks: Vec<f64>, text: Text) -> Self {
        let end = |tick: Option<&f64>| tick.map_or(0.0, |value| value.log10());
        let ends = (end(ticks.first()), end(ticks.last()));
        Self { ends, ticks, text }
    }

    /// With room for the marks of points on the ends, and with a width.
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
}

/// The factors with zeros, from below the one value to above the other.
fn rounds(from: f64, to: f64, factors: &[f64]) -> Vec<f64> {
    let powers = from.log10().floor() as i32 - 1..=to.log10().ceil() as i32 + 1;
    let of_power = |power| {
        factors
            .iter()
            .map(move |factor| factor * 10_f64.powi(power))
    };
    let finite = |round: &f64| round.is_finite();
    powers.flat_map(of_power).filter(finite).collect()
}

fn percentile(one_in: f64) -> String {
    let known = PERCENTILES
        .iter()
        .rfind(|(known, _)| *known <= one_in * 1.001);
    known.map_or_else(String::new, |(_, text)| (*text).to_owned())
}

pub(super) fn size(value: f64) -> String {
    Bytes(value as u64).to_string()
}

/// `500`, `20 k`, `1.5 M`.
pub(super) fn plain(value: f64) -> String {
    short(&PerSecond(value).to_string())
        .replace("/s", "")
        .trim_end()
        .to_owned()
}

pub(super) fn bytes(value: f64) -> String {
    short(&PerSecond(value).to_string()).replace("/s", "B")
}

pub(super) fn nanoseconds(value: f64) -> String {
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
        values.iter().all(|value| inside.contains(&value.log10()))
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
            let axis = Axis::around(values, nanoseconds);
            assert_eq!(texts(&axis), expected);
            assert!(holds(&axis, values), "{axis:?}");
        }
    }

    #[test]
    fn a_value_of_0_is_at_the_begin_of_an_axis() {
        for values in [&[0.0][..], &[0.0, 100.0]] {
            assert!(Axis::around(values, nanoseconds).place(0.0).abs() < 1e-9);
        }
    }

    #[test]
    fn figures_have_their_units() {
        let axis = Axis::around(&[200e3, 1.3e6], plain);
        assert_eq!(texts(&axis), ["200 k", "500 k", "1 M", "2 M"]);
        assert!((axis.place(632_456.0) - 0.5).abs() < 1e-3);
        assert_eq!([1.0, 50.0, 1500.0].map(plain), ["1", "50", "1.5 k"]);
        let axis = Axis::around(&[1e6, 5e9], bytes);
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
        let axis = Axis::at_values(&sizes, size);
        assert_eq!(texts(&axis), ["64 B", "4 KiB", "64 KiB"]);
        let many: Vec<f64> = (0..21).map(|power| f64::from(1 << power)).collect();
        let axis = Axis::at_values(&many, size);
        assert!((4..=12).contains(&axis.ticks.len()), "{:?}", axis.ticks);
        assert!(holds(&axis, &many));
    }

    #[test]
    fn one_value_has_an_axis_with_a_width() {
        for axis in [
            Axis::at_values(&[64.0], size),
            Axis::at_values(&[1.0], plain),
            Axis::around(&[7.0], plain),
            Axis::around(&[5e3], nanoseconds),
            Axis::percentiles(1e4),
        ] {
            assert!(axis.ends.0 < axis.ends.1, "{axis:?}");
            assert!((1..9).contains(&axis.ticks.len()), "{axis:?}");
        }
    }

    #[test]
    fn extreme_values_have_an_axis_too() {
        for value in [f64::MIN_POSITIVE, 1e-9, 1e300, f64::MAX] {
            for axis in [
                Axis::around(&[value], plain),
                Axis::around(&[value, 1.0], nanoseconds),
            ] {
                assert!((0.0..=1.0).contains(&axis.place(value)), "{axis:?}");
                assert!(axis.ticks.len() < 10, "{axis:?}");
            }
        }
    }
}
