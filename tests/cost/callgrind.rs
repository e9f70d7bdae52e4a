//! What callgrind writes: the instructions that each function took itself, function by function, with
//! the object that the function is in.

use std::arch::asm;
use std::collections::BTreeMap;
use std::ffi::CString;

/// Lets callgrind write what it has counted, with this name, and begin again at 0
/// (`CALLGRIND_DUMP_STATS_AT` of its header). Without callgrind it does nothing.
pub(crate) fn dump(name: &str) {
    const DUMP_STATS_AT: usize = 0x4354_0003;
    let name = CString::new(name).expect("a name without a 0");
    let request = [DUMP_STATS_AT, name.as_ptr().addr(), 0, 0, 0, 0];
    // SAFETY: outside of valgrind these instructions change nothing; valgrind reads the request, and
    // through it the name, and answers in rdx.
    unsafe {
        asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") 0usize => _,
            options(nostack),
        );
    }
    drop(name);
}

/// The instructions of each object, by its path, between two dumps.
pub(crate) type Objects = BTreeMap<String, u64>;

/// Reads one dump: the function behind which it was made, and the costs.
pub(crate) fn read(text: &str) -> Option<(String, Objects)> {
    let (mut trigger, mut names, mut objects) = (None, BTreeMap::new(), Objects::new());
    let mut object = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(function) = line.strip_prefix("desc: Trigger: Client Request: ") {
            trigger = Some(function.to_owned());
        } else if let Some(name) = line.strip_prefix("ob=") {
            object = whole(name, &mut names);
        } else if let Some(name) = line.strip_prefix("cob=") {
            // Only to know the name.
            whole(name, &mut names);
        } else if line.starts_with("calls=") {
            // The next line has the cost of the call, which is counted where it arises.
            lines.next();
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost = line.split_whitespace().nth(1)?.parse::<u64>().ok()?;
            *objects.entry(object.clone()).or_default() += cost;
        }
    }
    Some((trigger?, objects))
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
