//! Fills the page. The template escapes all texts: those of files can be hostile.

use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;

use super::chart::{self, LineStyle};
use super::runs::{Item, Run};
use super::sections::{self, Section};
use super::words::{self, text};
use crate::host::Host;
use crate::problem::Problem;
use crate::settings::{Nanos, PerSecond, number};

/// Its name lets the template engine escape HTML.
const NAME: &str = "page.html";
const TEMPLATE: &str = include_str!("page.html");

/// In the place of an unknown value.
const ABSENT: &str = "–";

/// The content of the page, for the template.
#[derive(Debug, Serialize)]
struct Page {
    rpma: &'static str,
    simulated: bool,
    summary: String,
    /// What all results have in common.
    common: String,
    /// Whether a result is of an open loop, and can have operations that did not begin.
    is_open: bool,
    runs: Vec<RunOfPage>,
    sections: Vec<Section>,
    /// The width of the charts.
    width: u32,
    height: u32,
    looks: Vec<LineStyle>,
    ink: String,
    grid: String,
}

#[derive(Debug, Serialize)]
struct RunOfPage {
    /// Empty if there is one run.
    name: String,
    began: String,
    is_wide: bool,
    machines: Vec<String>,
    facts: Vec<Fact>,
    results: Vec<ResultOfPage>,
}

/// A fact about each machine.
#[derive(Debug, Serialize)]
struct Fact {
    name: &'static str,
    values: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ResultOfPage {
    setting: String,
    cells: Vec<String>,
    ended_early: Option<String>,
}

/// The page with all runs.
pub(super) fn render(runs: &[Run<'_>]) -> Result<String, Problem> {
    let page = page(runs)?;
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let rendered = environment.render_named_str(NAME, TEMPLATE, Serde(&page));
    rendered.map_err(|error| Problem::new(format!("the page cannot be made: {error}"), ""))
}

fn page(runs: &[Run<'_>]) -> Result<Page, Problem> {
    let (ink, grid) = chart::ink_and_grid();
    let items = || runs.iter().flat_map(|run| &run.items);
    let is_open = items().any(|item| item.entry.point.setting.rate.is_some());
    let (common, mut settings) = settings(items());
    Ok(Page {
        rpma: env!("CARGO_PKG_VERSION"),
        simulated: runs.iter().any(|run| run.point.simulated),
        summary: summary(runs),
        sections: sections::sections(runs)?,
        runs: (1..)
            .zip(runs)
            .map(|(count, run)| RunOfPage {
                results: run
                    .items
                    .iter()
                    .zip(&mut settings)
                    .map(|(item, setting)| result(item, setting, is_open))
                    .collect(),
                ..run_of_page(count, run, runs.len())
            })
            .collect(),
        common,
        is_open,
        width: chart::CHART.0,
        height: chart::CHART.1,
        looks: chart::looks(),
        ink,
        grid,
    })
}

/// The words that all results have, and those of each. Lines break after a comma only.
fn settings<'a>(
    items: impl Iterator<Item = &'a Item<'a>>,
) -> (String, impl Iterator<Item = String>) {
    // The runs have rows of their own.
    let words = items.map(|item| words::of_item(item).split_off(1));
    let (common, own) = words::divide(&words.collect::<Vec<_>>());
    let (common, own) = match &own[..] {
        [one] if one.is_empty() => (String::new(), vec![common]),
        _ => (common, own),
    };
    let unbroken = |setting: String| {
        let parts: Vec<String> = setting
            .split(", ")
            .map(|part| part.replace(' ', "\u{a0}"))
            .collect();
        parts.join(", ")
    };
    (common, own.into_iter().map(unbroken))
}

/// `12 results of 2 runs. 1 result ended early.`
fn summary(runs: &[Run<'_>]) -> String {
    let points = || {
        runs.iter()
            .flat_map(|run| &run.items)
            .map(|item| &item.entry.point)
    };
    let all = number(points().count(), "result");
    let runs = number(runs.len(), "run");
    match points().filter(|point| point.ended_early.is_some()).count() {
        0 => format!("{all} of {runs}."),
        early => format!("{all} of {runs}. {} ended early.", number(early, "result")),
    }
}

fn run_of_page(count: usize, run: &Run<'_>, runs: usize) -> RunOfPage {
    let point = run.point;
    let servers = servers(&point.servers);
    let (mut machines, mut hosts) = (vec!["Client".to_owned()], vec![&point.client]);
    for (name, host) in servers {
        machines.push(name);
        hosts.push(host);
    }
    RunOfPage {
        name: match runs {
            1 => String::new(),
            _ => format!("Run {count}"),
        },
        began: text(&point.began),
        is_wide: machines.len() > 2,
        machines,
        facts: facts(&hosts),
        results: Vec::new(),
    }
}

/// The servers with their names. Neighbours that are the same have one column.
fn servers(all: &[Host]) -> Vec<(String, &Host)> {
    let mut servers = Vec::new();
    let mut first = 1;
    for same in all.chunk_by(|one, other| one == other) {
        let last = first + same.len() - 1;
        let name = match (all.len(), same.len()) {
            (1, _) => "Server".to_owned(),
            (_, 1) => format!("Server {first}"),
            _ => format!("Servers {first} to {last}"),
        };
        servers.extend(same.first().map(|host| (name, host)));
        first = last + 1;
    }
    servers
}

/// A row for each fact that is known of one host at least.
fn facts(hosts: &[&Host]) -> Vec<Fact> {
    let known: Vec<_> = hosts.iter().map(|host| host.facts()).collect();
    let shown = |value: &Option<String>| {
        value
            .as_ref()
            .map_or_else(|| ABSENT.to_owned(), |it| text(it))
    };
    let fact = |row: usize| {
        let is_known = known.iter().any(|facts| facts[row].1.is_some());
        is_known.then(|| Fact {
            name: known[0][row].0,
            values: known.iter().map(|facts| shown(&facts[row].1)).collect(),
        })
    };
    (0..known[0].len()).filter_map(fact).collect()
}

fn result(item: &Item<'_>, setting: String, is_open: bool) -> ResultOfPage {
    let point = &item.entry.point;
    let (result, latency) = (&point.result, &point.result.latency);
    let time = |time: Nanos| match item.entry.is_empty {
        true => ABSENT.to_owned(),
        false => time.to_string(),
    };
    let not_begun = match point.setting.rate {
        Some(_) => result.not_begun.to_string(),
        None => ABSENT.to_owned(),
    };
    let rates = [
        per_second(result.operations_per_second, ""),
        per_second(result.bytes_per_second, "B"),
        format!("{:.3}", result.gigabits_per_second()),
    ];
    let times = latency.columns().map(|(_, of)| time(of));
    let cost = Nanos(result.cpu_ns_per_operation).to_string();
    let cells = rates.into_iter().chain(times).chain([cost]);
    ResultOfPage {
        setting,
        cells: cells
            .into_iter()
            .chain(is_open.then_some(not_begun))
            .collect(),
        ended_early: point.ended_early.as_deref().map(|why| match text(why) {
            why if why.is_empty() => "for an unknown reason".to_owned(),
            why => why,
        }),
    }
}

/// `0`, `12.3 k/s`, `12.3 kB/s`.
fn per_second(value: f64, unit: &str) -> String {
    match value {
        0.0 => "0".to_owned(),
        _ => PerSecond(value)
            .to_string()
            .replace("/s", &format!("{unit}/s")),
    }
}
