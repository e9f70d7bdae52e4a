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
            ns if ns < 999.5e3 => write!(f, "{:.3} µs", Digits(ns / 1e3)),
            ns if ns < 999.5e6 => write!(f, "{:.3} ms", Digits(ns / 1e6)),
            ns => write!(f, "{:.3} s", Digits(ns / 1e9)),
        }
    }
}

/// A number in a second: `950`, `12.3 k`, `4.56 M`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerSecond(pub(crate) f64);

impl fmt::Display for PerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n < 999.5 => write!(f, "{:.3} /s", Digits(n)),
            n if n < 999.5e3 => write!(f, "{:.3} k/s", Digits(n / 1e3)),
            n if n < 999.5e6 => write!(f, "{:.3} M/s", Digits(n / 1e6)),
            n => write!(f, "{:.3} G/s", Digits(n / 1e9)),
        }
    }
}

/// A number with as many significant digits as its precision asks for.
struct Digits(f64);

impl fmt::Display for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(3);
        let before = match self.0 {
            n if n >= 100.0 => 3,
            n if n >= 10.0 => 2,
            _ => 1,
        };
        write!(f, "{:.*}", digits.saturating_sub(before), self.0)
    }
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
