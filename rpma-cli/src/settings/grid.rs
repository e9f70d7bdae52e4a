//! [`Sweep`]: the settings that differ from point to point, such as `size=64..64k,depth=1/8`.

use std::str::FromStr;

use clap::builder::Resettable;
use clap::{Args, Command, FromArgMatches};

use super::setting::Setting;

/// The most points of a run.
const MOST: usize = 10_000;
/// The limits of a rate: one operation in 1000 s, and one in a nanosecond.
const SLOWEST: f64 = 0.001;
const FASTEST: f64 = 1e9;

/// The values of each axis, which is an option of a [`Setting`]. The last axis changes fastest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sweep(Vec<(String, Vec<String>)>);

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut sweep = Self::default();
        let options = options();
        let options = options
            .get_arguments()
            .map(|option| option.get_id().as_str());
        let options: Vec<&str> = options.collect();
        for part in text.split_terminator(',') {
            let (axis, values) = part.split_once('=').ok_or_else(|| {
                format!("{part:?} is no axis: give them as size=64..64k,depth=1/8/64")
            })?;
            if !options.contains(&axis) {
                let all = options.join(", ");
                return Err(format!("{axis:?} is no axis: they are {all}"));
            }
            if sweep.0.iter().any(|(other, _)| other == axis) {
                return Err(format!("{axis} is there twice: give each axis once"));
            }
            let values = match values.split_once("..") {
                Some((first, last)) if axis == "rate" => {
                    doubled(parse_rate(first)?, parse_rate(last)?)?
                }
                Some((first, last)) => {
                    doubled(parse_size(first)? as f64, parse_size(last)? as f64)?
                }
                None => values.split('/').map(str::to_owned).collect(),
            };
            for value in &values {
                with(Setting::default(), axis, value)?;
            }
            sweep.0.push((axis.to_owned(), values));
        }
        let mut lens = sweep.0.iter().map(|(_, values)| values.len());
        let points = lens.try_fold(1, |product: usize, len| product.checked_mul(len));
        match points {
            Some(..=MOST) => Ok(sweep),
            _ => Err(format!(
                "these are more than {MOST} points: give fewer values"
            )),
        }
    }
}

/// The first number, its doubles, and the last number.
fn doubled(first: f64, last: f64) -> Result<Vec<String>, String> {
    if first > last {
        return Err(format!(
            "{first}..{last} goes down: give the smaller number first"
        ));
    }
    let doubles = std::iter::successors(Some(first), |number| Some(2.0 * number));
    let smaller = doubles.take_while(|number| *number < last);
    let all = smaller.chain([last]).map(|number| number.to_string());
    Ok(all.collect())
}

/// A setting with another value of an option.
fn with(mut setting: Setting, axis: &str, value: &str) -> Result<Setting, String> {
    let matches = options().try_get_matches_from([format!("--{axis}={value}")]);
    let changed = matches.and_then(|matches| setting.update_from_arg_matches(&matches));
    changed.map(|()| setting).map_err(|error| {
        let text = error.to_string();
        let (reason, _help) = text.split_once("\n\n").unwrap_or((&text, ""));
        reason.trim_start_matches("error: ").replace('\n', " ")
    })
}

/// The options of a setting. Those that are not given do not change it.
fn options() -> Command {
    let options = Setting::augment_args(Command::new("").no_binary_name(true));
    options.mut_args(|option| option.default_value(Resettable::Reset))
}

/// A number of at least 1, with its unit.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    match parse_number(text)? {
        0 => Err("it is too small: give 1 or more".into()),
        number => Ok(number),
    }
}

/// A count of 1 to `most`, with its unit.
pub(super) fn count(most: u32) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| match u32::try_from(parse_number(text)?) {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        _ => Err(format!("give 1 to {most}")),
    }
}

/// A number that may have `k`, `m` or `g` for 2^10, 2^20 and 2^30.
fn parse_number(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let at = lower.find(|c: char| !c.is_ascii_digit());
    let (digits, unit) = lower.split_at(at.unwrap_or(lower.len()));
    let refused = |remedy: &str| Err(format!("{text:?} is no number: {remedy}"));
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ if digits.is_empty() => return refused("give it as 4096 or 4k"),
        _ => return refused("its unit is k, m or g for KiB, MiB or GiB, or there is none"),
    };
    let number = digits.parse().ok();
    let number = number.and_then(|number: u64| number.checked_mul(1 << shift));
    number.map_or_else(|| refused("it is too large or empty"), Ok)
}

/// Operations in a second. It may have `k` or `m` for a thousand and a million.
pub(super) fn parse_rate(text: &str) -> Result<f64, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = match lower.strip_suffix('k') {
        Some(digits) => (digits, 1e3),
        None => lower
            .strip_suffix('m')
            .map_or((&*lower, 1.0), |digits| (digits, 1e6)),
    };
    match digits.parse::<f64>().map(|rate| rate * unit) {
        Ok(rate) if (SLOWEST..=FASTEST).contains(&rate) => Ok(rate),
        Ok(_) => Err(format!(
            "{text} operations a second are not possible: give {SLOWEST} to {FASTEST:e}, or no rate for a closed loop"
        )),
        Err(_) => Err(format!(
            "{text:?} is no rate: give operations a second, such as 5000, 5k or 5m"
        )),
    }
}

impl Sweep {
    /// The settings of all points: `first`, with the values of each axis.
    pub(crate) fn points(&self, first: Setting) -> Vec<Setting> {
        let mut points = vec![first];
        for (axis, values) in &self.0 {
            let of_point = |point: Setting| {
                // The values were tried when they were parsed.
                values
                    .iter()
                    .filter_map(move |value| with(point, axis, value).ok())
            };
            points = points.into_iter().flat_map(of_point).collect();
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::super::setting::{Completions, Flush, Method, Op};
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
                   completions=wait,rate=6k,copies=7";
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
            completions: Completions::Wait,
            rate: Some(6000.0),
            copies: Some(7),
            servers: 1,
        };
        assert_eq!(points, [expected]);
        Ok(())
    }

    /// Promise: a refused number has its limits, and one that is none is named so.
    #[test]
    fn a_wrong_count_has_its_limits() {
        assert_eq!(count(1024)("1k"), Ok(1024));
        for (most, text, words) in [
            (1024, "0", "give 1 to 1024"),
            (1024, "1025", "give 1 to 1024"),
            (u32::MAX, "5g", "give 1 to 4294967295"),
            (u32::MAX, "1.5", "is no number"),
        ] {
            let error = count(most)(text).expect_err(text);
            assert!(error.contains(words), "{error}");
        }
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
            ("size=1t", "k, m or g for KiB, MiB or GiB"),
            ("size=-1", "no number"),
            ("rate=1mm", "no rate"),
            ("size=99999999999999999999", "no number"),
            ("size=17179869184g", "no number"),
            ("depth=0", "give 1 to"),
            ("op=fly", "write, read"),
            ("depth=5000000000", "give 1 to 4294967295"),
            ("op=write..read", "no number"),
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
