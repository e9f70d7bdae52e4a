//! The output of callgrind: the instructions that each function took itself, function by function,
//! with the object that the function is in.

use std::arch::asm;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;

/// Lets callgrind write its counts, with this name, and begin again at 0 (`CALLGRIND_DUMP_STATS_AT`
/// of its header). Without callgrind it has no effect.
pub(crate) fn dump(name: &str) {
    let name = CString::new(name).expect("a name without a 0");
    request(3, name.as_ptr().addr());
}

/// A request of callgrind, by its number in the header.
pub(crate) fn request(number: usize, argument: usize) {
    const OF_CALLGRIND: usize = 0x4354_0000;
    let request = [OF_CALLGRIND + number, argument, 0, 0, 0, 0];
    // SAFETY: outside of valgrind these instructions have no effect; valgrind reads the request,
    // and through it the name that the argument may be, and answers in rdx.
    unsafe {
        asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") 0usize => _,
            options(nostack),
        );
    }
}

/// The instructions of each object, by its path, between two dumps.
pub(crate) type Objects = BTreeMap<String, u64>;

/// The begin of a type of tokio.
const TOKIO: &str = "<tokio::";

/// The call that takes a lock of the simulated fabric.
const LOCK: &str = "rpma_sim::sync::mutex::Mutex<T>::lock";
/// The instructions of one of std's, from its lock to the end of its guard, if no other thread has
/// it (counted by callgrind, Rust 1.95).
const OF_STD: u64 = 20;

/// Reads one dump: the function after which it was made, and the costs. If there were calls of the
/// simulated fabric, they are one object, with those of tokio, and all else is another one. The
/// functions that are called there begin with `layers`.
pub(crate) fn read(text: &str, layers: &[&str]) -> Option<(String, Objects)> {
    let (mut trigger, mut names, mut functions) = (None, BTreeMap::new(), BTreeMap::new());
    let (mut object, mut function, mut called) = (String::new(), String::new(), String::new());
    let (mut objects, mut calls) = (Objects::new(), Calls::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(function) = line.strip_prefix("desc: Trigger: Client Request: ") {
            trigger = Some(function.to_owned());
        } else if let Some(name) = line.strip_prefix("ob=") {
            object = whole(name, &mut names);
        } else if let Some(name) = line.strip_prefix("cob=") {
            // Only to get the name.
            whole(name, &mut names);
        } else if let Some(name) = line.strip_prefix("fn=") {
            function = whole(name, &mut functions);
        } else if let Some(name) = line.strip_prefix("cfn=") {
            called = whole(name, &mut functions);
        } else if let Some(times) = line.strip_prefix("calls=") {
            // The next line has the cost of the call with all below, which is counted where it
            // arises.
            let call = Call {
                to: called.clone(),
                times: times.split_whitespace().next()?.parse().ok()?,
                cost: cost(lines.next()?)?,
            };
            calls.entry(function.clone()).or_default().push(call);
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            *objects.entry(object.clone()).or_default() += cost(line)?;
        }
    }
    let (below, locks) = below(&calls, layers);
    if below > 0 {
        let all: u64 = objects.values().sum();
        let both = [
            ("program", all - below + locks * OF_STD),
            ("fabric.so", below),
        ];
        objects = both.map(|(name, cost)| (name.to_owned(), cost)).into();
    }
    Some((trigger?, objects))
}

/// The calls that a function makes of another one, and their cost with all that they call.
struct Call {
    to: String,
    times: u64,
    cost: u64,
}

type Calls = BTreeMap<String, Vec<Call>>;

/// The instructions of the layers below, as far as they are called by a function that is measured,
/// or by one that this calls; and the locks that such functions take.
fn below(calls: &Calls, layers: &[&str]) -> (u64, u64) {
    let mut seen: BTreeSet<&str> = calls
        .keys()
        .map(String::as_str)
        .filter(|function| is_measured(function) && !is_below(function, layers))
        .collect();
    let (mut left, mut below, mut locks) = (Vec::from_iter(seen.clone()), 0, 0);
    while let Some(function) = left.pop() {
        for Call { to, times, cost } in calls.get(function).into_iter().flatten() {
            if is_below(to, layers) {
                below += cost;
                if to.starts_with(LOCK) {
                    locks += times;
                }
            } else if seen.insert(to) {
                left.push(to);
            }
        }
    }
    (below, locks)
}

/// Whether callgrind may begin to count there.
fn is_measured(function: &str) -> bool {
    function.contains("measured_") || function.ends_with("::thread_start")
}

/// The second number of a line.
fn cost(line: &str) -> Option<u64> {
    line.split_whitespace().nth(1)?.parse().ok()
}

/// A function inside of such a call has a longer name, and one with a type of tokio is tokio's, if
/// that is a layer.
fn is_below(function: &str, layers: &[&str]) -> bool {
    let is_call = |call: &&str| {
        let rest = function.strip_prefix(*call);
        rest.is_some_and(|rest| !rest.contains("{{"))
    };
    let is_type = layers.contains(&TOKIO) && function.contains(TOKIO);
    is_type || layers.iter().any(is_call)
}

/// `(1) name` gives a name its number, `(1)` is that name again.
fn whole(text: &str, names: &mut BTreeMap<String, String>) -> String {
    match text.split_once(' ') {
        Some((number, name)) => {
            names.insert(number.to_owned(), name.to_owned());
            name.to_owned()
        }
        None => names.get(text).cloned().unwrap_or_default(),
    }
}
