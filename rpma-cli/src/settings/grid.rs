//! [`Sweep`]: the settings that differ from point to point, such as `size=64..64k,depth=1/8`.

use std::str::FromStr;

use clap::ValueEnum;

use super::setting::{Completions, Flush, Method, Op, Setting};

/// The most points of a run.
const MOST: usize = 10_000;
/// The limits of a rate: one operation in 1000 s, and one in a nanosecond.
const SLOWEST: f64 = 0.001;
const FASTEST: f64 = 1e9;

/// The values of each axis. The last axis changes fastest.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sweep(Vec<(Axis, Vec<Value>)>);

/// A setting that a sweep changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Axis {
    Op,
    Method,
    Flush,
    Size,
    Depth,
    Batch,
    Threads,
    Connections,
    Completions,
    Rate,
    Copies,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Op(Op),
    Method(Method),
    Flush(Flush),
    Completions(Completions),
    Rate(f64),
    Number(u64),
}

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut axes: Vec<(Axis, Vec<Value>)> = Vec::new();
        if text.is_empty() {
            return Ok(Self::default());
        }
        for part in text.split(',') {
            let (name, values) = part.split_once('=').ok_or_else(|| {
                format!("{part:?} is no axis: give them as size=64..64k,depth=1/8/64")
            })?;
            let axis = Axis::from_str(name, false).map_err(|_| unknown_axis(name))?;
            if axes.iter().any(|(other, _)| *other == axis) {
                return Err(format!("{name} is there twice: give each axis once"));
            }
            axes.push((axis, parse_values(axis, values)?));
        }
        let sweep = Self(axes);
        match sweep.len() {
            Some(..=MOST) => Ok(sweep),
            _ => Err(format!(
                "these are more than {MOST} points: give fewer values"
            )),
        }
    }
}

fn unknown_axis(name: &str) -> String {
    let names: Vec<String> = Axis::value_variants()
        .iter()
        .map(|axis| super::setting::name(*axis))
        .collect();
    format!("{name:?} is no axis: they are {}", names.join(", "))
}

fn parse_values(axis: Axis, text: &str) -> Result<Vec<Value>, String> {
    match text.split_once("..") {
        None => text.split('/').map(|value| parse(axis, value)).collect(),
        Some((first, last)) => match (parse(axis, first)?, parse(axis, last)?) {
            (Value::Number(first), Value::Number(last)) => {
                let double = |number: &u64| number.checked_mul(2);
                doubled(first, last, double, Value::Number)
            }
            (Value::Rate(first), Value::Rate(last)) => {
                doubled(first, last, |rate| Some(2.0 * rate), Value::Rate)
            }
            _ => Err(format!(
                "{text:?}: give names with slashes, such as write/read"
            )),
        },
    }
}

/// The first number, its doubles, and the last number.
fn doubled<T: Copy + PartialOrd + std::fmt::Display>(
    first: T,
    last: T,
    double: impl FnMut(&T) -> Option<T>,
    value: fn(T) -> Value,
) -> Result<Vec<Value>, String> {
    if first > last {
        return Err(format!(
            "{first}..{last} goes down: give the smaller number first"
        ));
    }
    let doubles = std::iter::successors(Some(first), double);
    let smaller = doubles.take_while(|number| *number < last);
    Ok(smaller.chain([last]).map(value).collect())
}

fn parse(axis: Axis, text: &str) -> Result<Value, String> {
    fn of<T: ValueEnum>(text: &str, value: fn(T) -> Value) -> Result<Value, String> {
        T::from_str(text, false).map(value).map_err(|_| {
            let names = T::value_variants()
                .iter()
                .cloned()
                .map(super::setting::name);
            let names: Vec<String> = names.collect();
            format!("{text:?} is not one of {}", names.join(", "))
        })
    }
    match axis {
        Axis::Op => of(text, Value::Op),
        Axis::Method => of(text, Value::Method),
        Axis::Flush => of(text, Value::Flush),
        Axis::Completions => of(text, Value::Completions),
        Axis::Rate => parse_rate(text).map(Value::Rate),
        _ => match parse_number(text)? {
            0 => Err(format!("{text} is too small: give 1 or more")),
            number => Ok(Value::Number(number)),
        },
    }
}

/// A number that may have `k`, `m` or `g` for 2^10, 2^20 and 2^30.
pub(crate) fn parse_number(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let units = [('k', 10), ('m', 20), ('g', 30)];
    let mut with_units = units
        .iter()
        .filter_map(|(unit, shift)| Some((lower.strip_suffix(*unit)?, *shift)));
    let (digits, shift) = with_units.next().unwrap_or((&lower, 0));
    let number = digits.parse().ok();
    let number = number.and_then(|number: u64| number.checked_mul(1 << shift));
    number.ok_or_else(|| format!("{text:?} is no number: give it as 4096 or 4k"))
}

/// Operations in a second. It may have `k` or `m` for a thousand and a million.
pub(crate) fn parse_rate(text: &str) -> Result<f64, String> {
    let lower = text.to_ascii_lowercase();
    let mut with_units = [('k', 1e3), ('m', 1e6)]
        .into_iter()
        .filter_map(|(unit, factor)| Some((lower.strip_suffix(unit)?, factor)));
    let (digits, unit) = with_units.next().unwrap_or((&lower, 1.0));
    match digits.parse::<f64>().map(|rate| rate * unit) {
        Ok(rate) if (SLOWEST..=FASTEST).contains(&rate) => Ok(rate),
        Ok(_) => Err(format!(
            "{text} operations a second are not possible: give {SLOWEST} to {FASTEST:e}, or no rate for a closed loop"
        )),
        Err(_) => Err(format!("{text:?} is no rate: give it as 5000 or 5k")),
    }
}

impl Sweep {
    /// The number of points. `None` if it is too large for a number.
    fn len(&self) -> Option<usize> {
        let mut lens = self.0.iter().map(|(_, values)| values.len());
        lens.try_fold(1, |product: usize, len| product.checked_mul(len))
    }

    /// The settings of all points: `first`, with the values of each axis.
    pub(crate) fn points(&self, first: Setting) -> Vec<Setting> {
        let mut points = vec![first];
        for (axis, values) in &self.0 {
            let of_point = |point: &Setting| {
                let point = *point;
                values.iter().map(move |value| with(point, *axis, *value))
            };
            points = points.iter().flat_map(of_point).collect();
        }
        points
    }

    /// Whether the sweep changes the number of connections.
    pub(crate) fn has_connections(&self) -> bool {
        self.0.iter().any(|(axis, _)| *axis == Axis::Connections)
    }
}

fn with(mut setting: Setting, axis: Axis, value: Value) -> Setting {
    match value {
        Value::Op(op) => setting.op = op,
        Value::Method(method) => setting.method = Some(method),
        Value::Flush(flush) => setting.flush = Some(flush),
        Value::Completions(completions) => setting.completions = completions,
        Value::Rate(rate) => setting.rate = Some(rate),
        Value::Number(number) => set_number(&mut setting, axis, number),
    }
    setting
}

/// A number that is too large for its setting stays too large.
fn set_number(setting: &mut Setting, axis: Axis, number: u64) {
    let small = u32::try_from(number).unwrap_or(u32::MAX);
    match axis {
        Axis::Size => setting.size = number,
        Axis::Depth => setting.depth = small,
        Axis::Batch => setting.batch = small,
        Axis::Threads => setting.threads = small,
        Axis::Connections => setting.connections = small,
        Axis::Copies => setting.copies = Some(small),
        Axis::Op | Axis::Method | Axis::Flush | Axis::Completions | Axis::Rate => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::samples::setting;

    #[test]
    fn a_sweep_has_each_pair_of_values() -> Result<(), String> {
        let sweep: Sweep = "size=64..300,op=write/read".parse()?;
        let points = sweep.points(setting());
        let pairs: Vec<_> = points.iter().map(|point| (point.size, point.op)).collect();
        let sizes = [64, 128, 256, 300];
        let expected = sizes.map(|size| [(size, Op::Write), (size, Op::Read)]);
        assert_eq!(pairs, expected.concat());
        assert_eq!(Sweep::default().points(setting()), [setting()]);
        Ok(())
    }

    #[test]
    fn each_axis_changes_its_setting() -> Result<(), String> {
        let all = "op=commit,method=server,flush=durable,size=4k,depth=2,batch=3,threads=4,connections=5,\
                   completions=async,rate=6k,copies=7";
        let points = all.parse::<Sweep>()?.points(setting());
        let expected = Setting {
            op: Op::Commit,
            method: Some(Method::Server),
            flush: Some(Flush::Durable),
            size: 4096,
            depth: 2,
            batch: 3,
            threads: 4,
            connections: 5,
            completions: Completions::Async,
            rate: Some(6000.0),
            copies: Some(7),
            servers: 1,
        };
        assert_eq!(points, [expected]);
        Ok(())
    }

    #[test]
    fn a_wrong_sweep_is_refused_with_the_reason() {
        for (text, reason) in [
            (",", "no axis"),
            ("size", "no axis"),
            ("speed=1", "they are op, method"),
            ("size=1,size=2", "twice"),
            ("size=0..8", "too small"),
            ("size=8..4", "goes down"),
            ("rate=0", "not possible"),
            ("rate=nan", "not possible"),
            ("rate=fast", "no rate"),
            ("size=x", "no number"),
            ("size=1kk", "no number"),
            ("rate=1mm", "no rate"),
            ("size=99999999999999999999", "no number"),
            ("size=17179869184g", "no number"),
            ("depth=0", "too small"),
            ("op=fly", "write, read"),
            ("op=write..read", "slashes"),
            (
                "size=1/2/3/4/5/6/7/8/9/10,depth=1/2/3/4/5/6/7/8/9/10,rate=1/2/3/4/5/6/7/8/9/10,threads=1/2/3/4/5/6/7/8/9/10,connections=1/2",
                "points",
            ),
        ] {
            let error = text.parse::<Sweep>().expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
