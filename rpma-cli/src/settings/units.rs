//! Numbers with their units, for people.

use std::fmt;

/// A number of bytes: `64 B`, `4 KiB`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["GiB", "MiB", "KiB"].into_iter().zip([30, 20, 10]);
        for (unit, shift) in units {
            if self.0 >= 1 << shift && self.0 % (1 << shift) == 0 {
                return write!(f, "{} {unit}", self.0 >> shift);
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// Nanoseconds: `850 ns`, `12.3 µs`, `4.56 ms`, `1.20 s`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nanos(pub(crate) f64);

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ns if ns < 999.5 => write!(f, "{ns:.0} ns"),
            ns => scaled(f, ns, ["ns", "µs", "ms", "s"]),
        }
    }
}

/// A number in a second: `950`, `12.3 k`, `4.56 M`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerSecond(pub(crate) f64);

impl fmt::Display for PerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, ["/s", "k/s", "M/s", "G/s"])
    }
}

/// A number with three digits at least, and the unit for its thousands.
fn scaled(f: &mut fmt::Formatter<'_>, mut number: f64, units: [&str; 4]) -> fmt::Result {
    let mut unit = 0;
    while number >= 999.5 && unit < 3 {
        (number, unit) = (number / 1e3, unit + 1);
    }
    let digits = match number {
        n if n >= 100.0 => 0,
        n if n >= 10.0 => 1,
        _ => 2,
    };
    write!(f, "{number:.digits$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (ns, text) in [
            (0.0, "0 ns"),
            (850.0, "850 ns"),
            (999.9, "1.00 µs"),
            (12_345.0, "12.3 µs"),
            (123_456.0, "123 µs"),
            (4.56e6, "4.56 ms"),
            (1.2e9, "1.20 s"),
            (3.6e12, "3600 s"),
        ] {
            assert_eq!(Nanos(ns).to_string(), text);
        }
        assert_eq!(PerSecond(950.0).to_string(), "950 /s");
        assert_eq!(PerSecond(12_345.0).to_string(), "12.3 k/s");
        assert_eq!(PerSecond(1.5e9).to_string(), "1.50 G/s");
    }

    #[test]
    fn bytes_have_the_largest_unit_that_fits() {
        for (bytes, text) in [
            (0, "0 B"),
            (100, "100 B"),
            (4096, "4 KiB"),
            (3 << 20, "3 MiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(Bytes(1500).to_string(), "1500 B");
    }
}
