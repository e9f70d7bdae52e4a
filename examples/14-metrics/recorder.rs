//! Stands in the place of an exporter (`metrics-exporter-prometheus`, say): keeps and prints
//! counters.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// The counters by their names and labels. Clones have the same ones.
#[derive(Clone, Default)]
pub(crate) struct Printer(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>);

impl Printer {
    pub(crate) fn print(&self) {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, value) in counters.iter() {
            println!("{name} {}", value.load(Ordering::Relaxed));
        }
    }
}

impl Recorder for Printer {
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let label = |label: &metrics::Label| format!("{}=\"{}\"", label.key(), label.value());
        let labels: Vec<_> = key.labels().map(label).collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        let mut counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Counter::from_arc(Arc::clone(counters.entry(name).or_default()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }

    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
}
