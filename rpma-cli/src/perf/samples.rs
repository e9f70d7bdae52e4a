//! Made-up results, for tests and fuzz targets.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use rpma::Durable;

use super::result::{FORMAT, Point, VERSION};
use crate::args::Ddio;
use crate::host::{Host, Memory};
use crate::settings::{Completions, Flush, Latency, Measured, Method, Op, Setting};

/// A write of 64 bytes in a closed loop.
pub(crate) fn setting() -> Setting {
    Setting {
        op: Op::Write,
        method: None,
        flush: None,
        size: 64,
        depth: 1,
        batch: 1,
        threads: 1,
        connections: 1,
        completions: Completions::Poll,
        rate: None,
        copies: None,
        servers: 1,
    }
}

/// A durable commit to two of three servers.
pub(crate) fn commit() -> Setting {
    Setting {
        op: Op::Commit,
        method: Some(Method::Native),
        flush: Some(Flush::Durable),
        copies: Some(2),
        servers: 3,
        ..setting()
    }
}

pub(super) fn host(device: &str) -> Host {
    Host {
        rpma: "0.1.0".into(),
        kernel: Some("6.12.43".into()),
        rdma_core: Some(50),
        built_with: Some(50),
        device: device.into(),
        description: Some("an adapter".into()),
        board: Some("MT_0000000223".into()),
        firmware: Some("20.31.1014".into()),
        link: Some("Ethernet".into()),
        rate: Some("100 Gb/sec (4X EDR)".into()),
        mtu: Some(4200),
        native_flush: true,
        native_atomic_write: false,
        on_demand_paging: true,
        memory: None,
    }
}

pub(super) fn server(device: &str) -> Host {
    Host {
        memory: Some(Memory {
            kind: "device-DAX of persistent memory".into(),
            domain: "memory and its controller (ADR): the nvdimm driver".into(),
            ddio: Ddio::Off,
            durable: Durable::DirectWrites,
            not_persistent: None,
        }),
        ..host(device)
    }
}

/// A result whose latencies grow with the size, the depth and the rate.
pub(crate) fn point(setting: Setting) -> Point {
    let base = match setting.op {
        Op::Commit | Op::WriteFlush => 4_800.0,
        _ => 1_900.0,
    };
    let load = setting.rate.map_or(0.0, |rate| rate / 450e3);
    let queue = f64::from(setting.depth).powf(0.9) / (1.0 - load.min(0.97));
    let typical = (base + setting.size as f64 * 0.09) * queue;
    let per_second = setting
        .rate
        .unwrap_or(f64::from(setting.depth) * 1e9 / typical);
    let mut histogram = new_histogram();
    let count = 20_000_u32;
    for index in 0..count {
        // A long tail, that begins at the 99th percentile.
        let place = (f64::from(index) + 0.5) / f64::from(count);
        let slow = (1.0 - place).powf(-0.12) + 0.004 / (1.0 - place);
        let latency = (typical * (0.8 + 0.2 * slow)) as u64;
        histogram.record(latency).expect("it grows");
    }
    let operations = u64::from(count);
    let not_begun = if load > 0.9 { 17 } else { 0 };
    with(
        setting,
        &histogram,
        operations as f64 / per_second,
        not_begun,
    )
}

pub(super) fn new_histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits")
}

fn with(setting: Setting, histogram: &Histogram<u64>, seconds: f64, not_begun: u64) -> Point {
    let operations_per_second = histogram.len() as f64 / seconds;
    Point {
        format: FORMAT.into(),
        version: VERSION,
        simulated: false,
        began: "2026-11-25T09:30:00Z".into(),
        client: host("mlx5_0"),
        servers: vec![server("mlx5_0"); setting.servers as usize],
        setting,
        result: Measured {
            operations: histogram.len(),
            seconds,
            operations_per_second,
            bytes_per_second: operations_per_second * setting.size as f64,
            cpu_ns_per_operation: 412.0,
            not_begun,
            latency: Latency::of(histogram),
            histogram: encoded(histogram),
        },
        ended_early: None,
    }
}

pub(super) fn encoded(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let result = serializer.serialize(histogram, &mut bytes);
    result.expect("memory is enough");
    STANDARD.encode(bytes)
}

/// The text of a file.
pub(crate) fn lines(points: &[Point]) -> String {
    let line = |point| serde_json::to_string(point).expect("a point is JSON") + "\n";
    points.iter().map(line).collect()
}
