//! The operations that devices have executed while a test watches, by the program's lines and their
//! target hosts.
//!
//! A program may promise a record after one copy of three. Then nothing is lost of the memories
//! that have the record, and only these counts show the hosts that lack it.

use std::collections::{BTreeMap, BTreeSet};

use crate::qp::Send;
use crate::state::State;

/// A line of the program, or `None` of an operation that has no line.
type Line = Option<(&'static str, u32)>;

/// How many operations of a line a host has executed, and how many were posted to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    executed: u64,
    posted: u64,
}

type Counts = BTreeMap<Line, BTreeMap<usize, Count>>;

#[derive(Debug, Default)]
pub(crate) struct Executed(Counts);

fn count_in<'c>(counts: &'c mut Counts, send: &Send, host: usize) -> &'c mut Count {
    let line = send.caller.map(|caller| caller.line());
    counts.entry(line).or_default().entry(host).or_default()
}

impl State {
    /// A device has executed a request of a queue pair. The power could fail now.
    pub(crate) fn executed(&mut self, number: u32, send: &Send, how: &str) {
        self.effects.happens(|| self.describe(number, send));
        if self.power.watch.is_none() {
            return;
        }
        if let Some(host) = self.target_of(number) {
            let count = count_in(&mut self.power.executed.0, send, host);
            count.executed += 1;
            count.posted += 1;
        }
        self.visit(|state| format!("after {}{how}", state.describe(number, send)));
    }

    /// Counts the executed operations, and those that are posted and not executed yet.
    fn counts(&self) -> Counts {
        let mut counts = self.power.executed.0.clone();
        for (number, qp) in self.qps.iter() {
            let Some(host) = self.target_of(number) else {
                continue;
            };
            let waits = |send: &&Send| {
                send.done.is_none() && !send.way.is_executed() && !send.way.is_handed_over()
            };
            let in_stream = qp.tcp.iter().flat_map(|tcp| &tcp.unsent);
            let in_stream = in_stream.map(|(send, _)| send);
            for send in qp.sends.iter().filter(waits).chain(in_stream) {
                count_in(&mut counts, send, host).posted += 1;
            }
        }
        counts
    }

    /// Lists the lines with operations that not all hosts have executed. A host with persistent
    /// memory may have got none of a line.
    pub(crate) fn text_of_executed(&self) -> String {
        let mut counts = self.counts();
        // Probes of a keep-alive have no line, if the others have one.
        if counts.len() > 1 {
            counts.remove(&None);
        }
        let hosts = self.power.pmems.iter().map(|pmem| pmem.host);
        let hosts: BTreeSet<usize> = hosts.collect();
        let mut text = String::new();
        for (line, mut of_hosts) in counts {
            if of_hosts.keys().any(|host| hosts.contains(host)) {
                for host in &hosts {
                    of_hosts.entry(*host).or_default();
                }
            }
            let mut counts = of_hosts.values();
            let first = counts.next().copied().unwrap_or_default();
            if first.executed == first.posted && counts.all(|count| *count == first) {
                continue;
            }
            let line = line.map_or("without a line".to_owned(), |(file, line)| {
                format!("{file}:{line}")
            });
            let of_hosts = of_hosts.iter().map(|(host, count)| {
                let Count { executed, posted } = count;
                format!("{} {executed} of {posted}", self.hosts[*host])
            });
            let of_hosts: Vec<String> = of_hosts.collect();
            text += &format!("    {line}: {}\n", of_hosts.join(", "));
        }
        if text.is_empty() {
            return "All hosts have executed the same operations, and none is in flight. So the promise came before a \
                    post, if the power is the cause.\n"
                .to_owned();
        }
        format!("How many operations a host has executed, of those that were posted to it:\n{text}")
    }
}
