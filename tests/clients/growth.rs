//! The costs of one client and of one key, beside few others and beside many: an error if they grow
//! by more than half.

use crate::common;
use crate::count::{Costs, Outcome, cost_of, count, no_more, said};
use crate::server;

/// All calls of the simulated fabric.
const FABRIC: [&str; 2] = ["rpma_sim::", "<rpma_sim::"];

/// The cost of one, beside each of these numbers of others.
struct Row {
    what: &'static str,
    numbers: Vec<usize>,
    costs: Vec<u64>,
}

impl Row {
    fn has_grown(&self) -> bool {
        self.costs.iter().any(|cost| cost * 2 > self.costs[0] * 3)
    }
}

/// Counts, prints the rows, and compares. `all` counts all admissions, which takes minutes.
pub(crate) fn compare(program: &str, all: bool) -> Outcome {
    let mut rows = of_clients(program, all)?;
    rows.extend(of_directories(program)?);
    rows.extend(of_bytes(program)?);
    let mut grown = Vec::new();
    for row in &rows {
        let Row {
            what,
            numbers,
            costs,
        } = row;
        println!("{what}, beside {numbers:?}: {costs:?}");
        if row.has_grown() {
            grown.push(format!("{what} grows beside {numbers:?}: {costs:?}"));
        }
    }
    no_more(&grown)
}

fn of_clients(program: &str, all: bool) -> Outcome<Vec<Row>> {
    let most = server::most()?;
    let words = [most.to_string(), all.to_string()];
    let (mut costs, _) = counted_parts(&[program, "clients", &words[0], &words[1]])?;
    costs.extend(counted_parts(&[program, "asking"])?.0);
    let row = |what, name: &str, numbers: &[usize]| -> Outcome<Row> {
        let cost = |number| Ok(cost_of(&costs, &format!("{name}_{number}"))?.0);
        Ok(Row {
            what,
            numbers: numbers.to_vec(),
            costs: numbers.iter().map(cost).collect::<Outcome<_>>()?,
        })
    };
    let numbers = server::numbers(most);
    let counted = numbers.len() - usize::from(!all);
    let before = "an admission before, on the average";
    let asking = "an admission while questions are open";
    Ok(vec![
        row("an admission", "admission", &numbers)?,
        row(before, "before", &numbers[..counted])?,
        row(asking, "asking", &server::QUESTIONS)?,
        row("the end of a connection", "end", &numbers)?,
        row("cutting a client off", "cut_off", &numbers)?,
    ])
}

fn of_directories(program: &str) -> Outcome<[Row; 2]> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("directory");
    let (mut costs, mut bytes) = (Vec::new(), Vec::new());
    for keys in server::KEYS {
        let mut written = Ok(());
        common::on_fabric(|| written = server::write_directory(&path, keys));
        written?;
        let (path, keys) = (path.display().to_string(), keys.to_string());
        let (of_keys, of_key) = counted_parts(&[program, "directory", &path, &keys])?;
        costs.push(cost_of(&of_keys, &format!("key_opened_{keys}"))?.0);
        bytes.push(of_key.trim().parse()?);
    }
    let rows = [
        ("a key of a directory that is opened", costs),
        ("bytes of a key of a directory", bytes),
    ];
    Ok(rows.map(|(what, costs)| Row {
        what,
        numbers: server::KEYS.map(|keys| keys as usize).to_vec(),
        costs,
    }))
}

fn of_bytes(program: &str) -> Outcome<[Row; 2]> {
    let mut bytes = [Vec::new(), Vec::new()];
    for clients in server::WEIGHED {
        let both = said(&[program, "bytes", &clients.to_string()])?;
        for (bytes, of) in bytes.iter_mut().zip(both) {
            bytes.push(of);
        }
    }
    let [of_conn, of_key] = bytes;
    let rows = [
        ("bytes of a connection with a keep-alive", of_conn),
        ("bytes of a key of a server", of_key),
    ];
    Ok(rows.map(|(what, costs)| Row {
        what,
        numbers: server::WEIGHED.to_vec(),
        costs,
    }))
}

/// Counts the instructions of a program that begins and ends the counting by itself: those between
/// its dumps, without the fabric. Returns the output of the program as well.
fn counted_parts(command: &[&str]) -> Outcome<(Costs, String)> {
    count(command, &["--instr-atstart=no"], &FABRIC)
}
