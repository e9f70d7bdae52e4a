//! `rpma check`: every operation of the library, against a server of another host.

mod bench;
mod cases;
mod report;
#[cfg(all(test, feature = "sim"))]
mod tests;

use std::time::{Duration, Instant};

use self::bench::Bench;
use self::cases::Case;
pub(crate) use self::cases::known as known_case;
use self::report::{CaseResult, CheckReport, Verdict};
use crate::args::{Check, Format};
use crate::client::{Result as CaseEnd, Stop};
use crate::facts::published;
use crate::host::{self, Host};
use crate::interrupt::Interrupt;
use crate::problem::{Problem, Result, one_line};
use crate::report::{Outcome, Output, ResultFile};

/// The limit of a case.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the cases, and reports their results.
pub(crate) fn run(args: &Check, interrupt: &Interrupt, out: &mut Output) -> Result<Outcome> {
    if args.list {
        let cases = cases::chosen(&args.only);
        for group in cases.chunk_by(|case, next| case.about == next.about) {
            let names: Vec<_> = group.iter().map(|case| &*case.name).collect();
            out.line(group[0].about)?;
            out.line(format!("    {}", names.join(", ")))?;
        }
        return Ok(Outcome::Good);
    }
    let file = ResultFile::of(&args.form)?;
    let Some(server) = &args.server else {
        return Err(Problem::new("no server is given", "`rpma check SERVER`"));
    };
    let mut bench = Bench::connect(server, args.fallback, interrupt)?;
    let report = run_cases(args, &mut bench, out)?;
    out.report(&args.form, file, &report, &report.cases)?;
    Ok(report.result)
}

/// Runs cases until the last one, or until none can run any more.
fn run_cases(args: &Check, bench: &mut Bench, out: &mut Output) -> Result<CheckReport> {
    let (client, server) = (Host::of(&bench.peer), bench.server.host.clone());
    let mut report = CheckReport::new(client, server, args.fallback);
    let quiet = args.form.format != Format::Text;
    let mut say = |line: String| if quiet { Ok(()) } else { out.line(line) };
    say(format!("rpma check, {}", report.time))?;
    let hosts = host::lines(&report.client, &[&report.server]);
    hosts.into_iter().try_for_each(&mut say)?;
    for case in cases::chosen(&args.only) {
        let (started, end) = (Instant::now(), run_case(&case, bench));
        let (result, detail) = match end {
            Ok(detail) => (Verdict::Passed, detail),
            Err(Stop::Failed(detail)) => (Verdict::Failed, detail),
            Err(Stop::NotPossible(detail)) => (Verdict::NotPossible, detail),
            Err(Stop::Over(problem)) => {
                let reason = published::scrubbed(&problem.to_string());
                report.ended_early = Some(format!("in {}, {reason}", case.name));
                break;
            }
            Err(Stop::Interrupted) => {
                report.ended_early = Some(format!("interrupted in {}", case.name));
                break;
            }
        };
        let result = CaseResult {
            case: case.name,
            result,
            detail: published::scrubbed(&one_line(&detail)),
            milliseconds: started.elapsed().as_millis(),
        };
        say(result.line())?;
        report.add(result);
    }
    let is_good = report.failed == 0 && report.passed > 0 && report.ended_early.is_none();
    report.result = Outcome::of(is_good);
    say(report.summary())?;
    Ok(report)
}

fn run_case(case: &Case, bench: &mut Bench) -> CaseEnd<String> {
    bench.clock.restart(LIMIT);
    let end = (case.run)(bench);
    if matches!(end, Err(Stop::Over(_) | Stop::Interrupted)) {
        return end;
    }
    // The next case begins without connections of this one.
    bench.clock.restart(LIMIT);
    bench.clear().and(end)
}
