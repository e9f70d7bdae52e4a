//! [`Measured`]: the figures of a result.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::units::{Nanos, PerSecond};

/// The figures of a setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// The operations after the warm-up.
    pub(crate) operations: u64,
    /// The time of the measurement, in seconds.
    pub(crate) seconds: f64,
    pub(crate) operations_per_second: f64,
    /// The throughput of the operations' bytes, without headers and pointers.
    pub(crate) bytes_per_second: f64,
    /// The time of this program's threads on their processors, for each operation.
    pub(crate) cpu_ns_per_operation: f64,
    /// Open loop: the operations that were due before the end, and could not begin. Their latencies
    /// are in the histogram, up to the end.
    pub(crate) not_begun: u64,
    pub(crate) latency: Latency,
    /// All latencies in nanoseconds: HdrHistogram's format V2 with DEFLATE, in base64.
    pub(crate) histogram: String,
}

impl Measured {
    pub(crate) fn gigabits_per_second(&self) -> f64 {
        8.0 * self.bytes_per_second / 1e9
    }

    /// The figures of tables, with their names.
    pub(crate) fn columns(&self) -> [(&'static str, String); 10] {
        let (of, bytes) = (&self.latency, PerSecond(self.bytes_per_second));
        let time = |ns: u64| Nanos(ns as f64).to_string();
        [
            ("rate", PerSecond(self.operations_per_second).to_string()),
            ("bytes/s", bytes.to_string().replace("/s", "B/s")),
            ("Gb/s", format!("{:.3}", self.gigabits_per_second())),
            ("p50", time(of.p50)),
            ("p90", time(of.p90)),
            ("p99", time(of.p99)),
            ("p99.9", time(of.p99_9)),
            ("p99.99", time(of.p99_99)),
            ("most", time(of.most)),
            ("CPU", Nanos(self.cpu_ns_per_operation).to_string()),
        ]
    }
}

/// Latencies in nanoseconds: from the intended begin in an open loop, from the post in a closed
/// one, to the completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) least: u64,
    pub(crate) mean: f64,
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p99_9: u64,
    pub(crate) p99_99: u64,
    pub(crate) most: u64,
}

impl Latency {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile);
        Self {
            least: histogram.min(),
            mean: histogram.mean(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            most: histogram.max(),
        }
    }
}
