//! From [`Counters`] to metrics: a program can take this file as it is.

use metrics::counter;
use rpma::Counters;

/// Hands the numbers over, with this name of the connection. A program calls it from time to time,
/// or when its exporter is asked; reading the counters takes no lock and no system call.
pub(crate) fn report(conn: &'static str, counters: &Counters) {
    for (name, value) in [
        ("rpma_requests_total", counters.posted),
        ("rpma_bytes_total", counters.bytes),
        ("rpma_receives_total", counters.receives),
        ("rpma_full_send_queue_total", counters.full_send_queue),
        ("rpma_full_receive_queue_total", counters.full_receive_queue),
        ("rpma_probes_lost_total", counters.probes_lost),
    ] {
        // The library has counted: the metric takes the number as it is.
        counter!(name, "conn" => conn).absolute(value);
    }
    for (status, value) in counters.failures() {
        let status = format!("{status:?}");
        counter!("rpma_failed_total", "conn" => conn, "status" => status).absolute(value);
    }
}
