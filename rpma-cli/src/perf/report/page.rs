//! Fills the page. The template escapes all texts: those of files can be hostile.

use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value, context};

use super::runs::{Item, Run};
use super::sections;
use super::words::{self, text};
use crate::host::Host;
use crate::problem::{Problem, Result};
use crate::settings::number;

/// Its name lets the template engine escape HTML.
const NAME: &str = "page.html";
const TEMPLATE: &str = include_str!("page.html");

/// In the place of an unknown value.
const ABSENT: &str = "–";

/// The page with all runs.
pub(super) fn render(runs: &[Run<'_>]) -> Result<String> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let rendered = environment.render_named_str(NAME, TEMPLATE, page(runs));
    rendered.map_err(|error| Problem::new(format!("the page cannot be made: {error}"), ""))
}

fn page(runs: &[Run<'_>]) -> Value {
    let items = || runs.iter().flat_map(|run| &run.items);
    // Without an open loop, each operation has begun.
    let is_open = items().any(|item| item.entry.point.setting.rate.is_some());
    let (common, settings) = settings(items());
    let mut settings = settings.into_iter();
    let sections = sections::sections(runs);
    let run_of_page = |(count, run): (usize, &Run<'_>)| {
        let results = run.items.iter().zip(&mut settings);
        let results = results.map(|(item, setting)| result(item, setting, is_open));
        let results: Vec<Value> = results.collect();
        let (machines, hosts): (Vec<String>, Vec<&Host>) = machines(run).into_iter().unzip();
        context! {
            name => match runs.len() {
                1 => String::new(),
                _ => format!("Run {count}"),
            },
            began => text(&run.point.began),
            is_wide => machines.len() > 2,
            machines,
            facts => facts(&hosts),
            results,
        }
    };
    let summary = summary(items(), runs.len());
    context! {
        rpma => env!("CARGO_PKG_VERSION"),
        simulated => items().any(|item| item.entry.point.simulated),
        summary,
        common,
        is_open,
        runs => (1..).zip(runs).map(run_of_page).collect::<Vec<_>>(),
        sections => Serde(&sections),
    }
}

/// The words that all results have, and those of each. Lines break after a comma only.
fn settings<'a>(items: impl Iterator<Item = &'a Item<'a>>) -> (String, Vec<String>) {
    // The runs have rows of their own.
    let words = items.map(|item| words::of_item(item).split_off(1));
    let (common, own) = words::divide(&words.collect::<Vec<_>>());
    let (common, own) = match &own[..] {
        [one] if one.is_empty() => (String::new(), vec![common]),
        _ => (common, own),
    };
    let unbroken = |setting: &String| setting.replace(' ', "\u{a0}").replace(",\u{a0}", ", ");
    (common, own.iter().map(unbroken).collect())
}

/// `12 results of 2 runs. 1 result ended early.`
fn summary<'a>(items: impl Iterator<Item = &'a Item<'a>>, runs: usize) -> String {
    let early: Vec<_> = items.map(|it| &it.entry.point.ended_early).collect();
    let (all, runs) = (number(early.len(), "result"), number(runs, "run"));
    match early.iter().filter(|early| early.is_some()).count() {
        0 => format!("{all} of {runs}."),
        early => format!("{all} of {runs}. {} ended early.", number(early, "result")),
    }
}

/// The hosts with their names. Neighbours that are the same have one column.
fn machines<'a>(run: &Run<'a>) -> Vec<(String, &'a Host)> {
    let mut machines = vec![("Client".to_owned(), &run.point.client)];
    let all = &run.point.servers;
    let mut first = 1;
    for same in all.chunk_by(|one, other| one == other) {
        let last = first + same.len() - 1;
        let name = match (all.len(), same.len()) {
            (1, _) => "Server".to_owned(),
            (_, 1) => format!("Server {first}"),
            _ => format!("Servers {first} to {last}"),
        };
        machines.push((name, &same[0]));
        first = last + 1;
    }
    machines
}

/// A row for each fact that is known of one host at least.
fn facts(hosts: &[&Host]) -> Vec<Value> {
    let known: Vec<_> = hosts.iter().map(|host| host.facts()).collect();
    let shown = |value: &Option<String>| value.as_deref().map_or(ABSENT.to_owned(), text);
    let fact = |row: usize| {
        let values = || known.iter().map(|facts| &facts[row].1);
        values().any(Option::is_some).then(|| {
            context! { name => known[0][row].0, values => values().map(shown).collect::<Vec<_>>() }
        })
    };
    (0..known[0].len()).filter_map(fact).collect()
}

fn result(item: &Item<'_>, setting: String, is_open: bool) -> Value {
    let point = &item.entry.point;
    let result = &point.result;
    let mut cells: Vec<String> = result.columns().map(|(_, cell)| cell).into();
    if is_open {
        let not_begun = point.setting.rate.map(|_| result.not_begun.to_string());
        cells.push(not_begun.unwrap_or_else(|| ABSENT.to_owned()));
    }
    context! {
        setting,
        cells,
        ended_early => point.ended_early.as_deref().map(text),
    }
}
