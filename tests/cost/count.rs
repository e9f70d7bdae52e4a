//! Counts of instructions: programs that callgrind runs, and what their functions cost.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::process::Command;

use crate::callgrind;

/// For each operation: the instructions of the program and the library together, and of the layers
/// below.
pub(crate) type Costs = BTreeMap<String, (u64, u64)>;

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The count since the last time is for so many calls of `what`.
pub(crate) fn counted(what: &str, times: usize) {
    callgrind::dump(&format!("{what} {times}"));
}

/// The cost of an operation, and that of the layers below.
pub(crate) fn cost_of(costs: &Costs, name: &str) -> Outcome<(u64, u64)> {
    let cost = costs.get(name);
    Ok(*cost.ok_or_else(|| format!("{name} was not counted"))?)
}

/// Fails if something costs more than it may.
pub(crate) fn no_more(more: &[String]) -> Outcome {
    if more.is_empty() {
        Ok(())
    } else {
        Err(more.join("; ").into())
    }
}

/// The numbers that a program prints.
pub(crate) fn said(command: &[&str]) -> Outcome<Vec<u64>> {
    let output = Command::new(command[0]).args(&command[1..]).output()?;
    let said = String::from_utf8(output.stdout)?;
    let numbers = said.split_whitespace().map(str::parse);
    match numbers.collect::<Result<Vec<_>, _>>() {
        Ok(numbers) if !numbers.is_empty() => Ok(numbers),
        _ => Err(format!("{command:?}: {said:?}").into()),
    }
}

/// Counts the instructions of a program between its dumps, with these arguments of valgrind. The
/// names of the functions of the layers below begin with those of `layers`. Returns the output of the
/// program as well.
pub(crate) fn count(command: &[&str], args: &[&str], layers: &[&str]) -> Outcome<(Costs, String)> {
    let dir = tempfile::tempdir()?;
    let out = dir.path().join("out");
    let output = Command::new("valgrind")
        .args(["--quiet", "--tool=callgrind", "--vgdb=no"])
        .args(["--collect-atstart=no", "--toggle-collect=*measured_*"])
        .args(args)
        .arg(format!("--callgrind-out-file={}", out.display()))
        .args(command)
        .output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?}: {}, {text}", output.status).into());
    }
    let mut costs = Costs::new();
    for file in fs::read_dir(dir.path())? {
        let text = fs::read_to_string(file?.path())?;
        let Some((trigger, objects)) = callgrind::read(&text, layers) else {
            continue;
        };
        let (name, times) = trigger.split_once(' ').ok_or("a dump without a name")?;
        let times: u64 = times.parse()?;
        let all: u64 = objects.values().sum();
        let own = objects.iter().filter(|(object, _)| !is_below(object));
        let own: u64 = own.map(|(_, cost)| cost).sum();
        costs.insert(name.to_owned(), (own / times, (all - own) / times));
    }
    Ok((costs, String::from_utf8(output.stdout)?))
}

/// Whether an object is a library below us: everything but the program, and librpma.
fn is_below(object: &str) -> bool {
    object.contains(".so") && !object.contains("/librpma.so")
}
