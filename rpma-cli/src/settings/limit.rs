//! [`Limit`]: a condition under which a result is bad, such as `p99>20us`.

use std::str::FromStr;

use super::figures::Measured;
use super::grid::parse_rate;
use super::units::Nanos;

/// A quantity, and the value above or below which the result is bad.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    of: Figure,
    unit: Unit,
    is_above: bool,
    value: f64,
    /// As it was given.
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Time,
    Rate,
    Number,
}

type Figure = fn(&Measured) -> f64;

/// The figures of a result, and their names in arguments.
const QUANTITIES: [(&str, Unit, Figure); 11] = [
    ("least", Unit::Time, |of| of.latency.least as f64),
    ("mean", Unit::Time, |of| of.latency.mean),
    ("p50", Unit::Time, |of| of.latency.p50 as f64),
    ("p90", Unit::Time, |of| of.latency.p90 as f64),
    ("p99", Unit::Time, |of| of.latency.p99 as f64),
    ("p99.9", Unit::Time, |of| of.latency.p99_9 as f64),
    ("p99.99", Unit::Time, |of| of.latency.p99_99 as f64),
    ("most", Unit::Time, |of| of.latency.most as f64),
    ("rate", Unit::Rate, |of| of.operations_per_second),
    ("gbps", Unit::Number, Measured::gigabits_per_second),
    ("not-begun", Unit::Number, |of| of.not_begun as f64),
];

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let at = text.find(['<', '>']);
        let (name, rest) =
            text.split_at(at.ok_or("give a quantity, > or <, and a value: p99>20us")?);
        let known = QUANTITIES.iter().find(|(known, ..)| *known == name.trim());
        let (_, unit, of) = *known.ok_or_else(|| {
            let names = QUANTITIES.map(|(name, ..)| name).join(", ");
            format!("{name:?} is no quantity: they are {names}")
        })?;
        let (is_above, value) = (rest.starts_with('>'), rest[1..].trim());
        let value = match unit {
            Unit::Time => parse_nanos(value)?,
            Unit::Rate => parse_rate(value)?,
            Unit::Number => number(value)?,
        };
        Ok(Self {
            of,
            unit,
            is_above,
            value,
            text: text.to_owned(),
        })
    }
}

/// A time with its unit, in nanoseconds.
fn parse_nanos(text: &str) -> Result<f64, String> {
    let units = [
        ("ns", 1.0),
        ("us", 1e3),
        ("µs", 1e3),
        ("ms", 1e6),
        ("s", 1e9),
    ];
    let with_unit = units
        .iter()
        .find_map(|(unit, nanos)| Some((text.strip_suffix(unit)?, nanos)));
    let (digits, nanos) =
        with_unit.ok_or_else(|| format!("{text:?} has no unit: give ns, us, ms or s"))?;
    Ok(number(digits)? * nanos)
}

fn number(text: &str) -> Result<f64, String> {
    let number = text.trim().parse::<f64>().ok();
    number
        .filter(|number| number.is_finite() && *number >= 0.0)
        .ok_or_else(|| format!("{text:?} is no number"))
}

impl Limit {
    /// Why a result is bad. `None` if it is good.
    pub(crate) fn fault(&self, result: &Measured) -> Option<String> {
        self.fault_of((self.of)(result))
    }

    fn fault_of(&self, figure: f64) -> Option<String> {
        let is_bad = if self.is_above {
            figure > self.value
        } else {
            figure < self.value
        };
        let figure = match self.unit {
            Unit::Time => Nanos(figure).to_string(),
            Unit::Rate | Unit::Number => format!("{figure:.3}"),
        };
        is_bad.then(|| format!("failed: {} (it is {figure})", self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::samples::{point, setting};

    fn fault(limit: &str, figure: f64) -> Option<String> {
        limit.parse::<Limit>().expect(limit).fault_of(figure)
    }

    #[test]
    fn a_figure_beyond_its_limit_is_bad() {
        for (limit, bad, good) in [
            ("p99>20us", 20_001.0, 20_000.0),
            ("p99.9 > 1.5ms", 1.6e6, 1.5e6),
            ("least<800ns", 799.0, 800.0),
            ("most>2s", 2.1e9, 0.0),
            ("rate<10k", 9_999.0, 10_000.0),
            ("gbps<90", 89.9, 90.0),
            ("not-begun>0", 1.0, 0.0),
        ] {
            assert!(fault(limit, bad).is_some(), "{limit}");
            assert_eq!(fault(limit, good), None, "{limit}");
        }
        let text = fault("p99>20us", 25_000.0);
        assert_eq!(text.as_deref(), Some("failed: p99>20us (it is 25.0 µs)"));
    }

    /// Promise: a name has the figure of its result.
    #[test]
    fn each_quantity_is_a_figure_of_the_result() {
        let result = point(setting()).result;
        let json = serde_json::to_value(&result).expect("JSON");
        for (name, unit, of) in QUANTITIES {
            let known = match name {
                "rate" => &json["operations_per_second"],
                "not-begun" => &json["not_begun"],
                _ if unit == Unit::Time => &json["latency"][name.replace('.', "_")],
                _ => continue,
            };
            assert_eq!(known.as_f64(), Some(of(&result)), "{name}");
        }
    }

    #[test]
    fn a_wrong_limit_is_refused_with_what_there_is() {
        for (text, words) in [
            ("", "p99>20us"),
            ("p99=20us", "> or <"),
            ("p98>20us", "they are least, mean, p50"),
            (">20us", "no quantity"),
            ("p99>20", "give ns, us, ms or s"),
            ("p99>us", "no number"),
            ("p99>-1us", "no number"),
            ("p99>nanus", "no number"),
            ("rate<0", "not possible"),
            ("gbps<x", "no number"),
        ] {
            let error = text.parse::<Limit>().expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
