//! The arguments of each command.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

pub(crate) use crate::endpoint::Endpoint;
use crate::settings::{Limit, Setting, Sweep, parse_size};

/// Look at this host: can a remote flush work here?
///
/// Each line has a verdict: `good`, `BAD` (a remote flush cannot work), `note` (a limit of this
/// host) or `unseen` (this user cannot see it). A remedy follows its finding. Nothing is changed,
/// and no root is needed.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  rpma doctor                            all RDMA devices of this host
  rpma doctor 192.0.2.2                  the device that has this address
  rpma doctor mlx5_0 --memory /dev/dax0.0
  rpma doctor --format json

Exit status: 0 if a remote flush can work, 1 if not, 2 for wrong arguments.")]
pub(crate) struct Doctor {
    /// An address of this host, or the name of an RDMA device, that the program will use
    #[arg(value_name = "ADDR|DEVICE")]
    pub(crate) target: Option<String>,
    /// Also look at this memory: a device-DAX, or a file
    #[arg(long, value_name = "PATH")]
    pub(crate) memory: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Answer the checks and measurements of another host, until ctrl-c
///
/// Clients are served one after the other. The peers are not authenticated: use a network that you
/// trust, and memory without data.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  rpma serve 192.0.2.2
  rpma serve 192.0.2.2:7300 --memory /dev/dax0.0 --ddio off
  rpma serve '[fd00::2]:7300'

It does not run in the simulated build, whose fabric is inside one process.")]
pub(crate) struct Serve {
    /// The address of an RDMA device of this host, and the port to listen on (7204)
    #[arg(value_name = "ADDR[:PORT]")]
    pub(crate) addr: Endpoint,
    /// Offer this memory: a device-DAX, or a file. Without it: ordinary memory
    ///
    /// Clients overwrite the bytes that are offered, so memory with data is refused. ctrl-c or
    /// SIGTERM makes the overwritten bytes zero again. A kill or an error leaves a mark at the
    /// beginning of the memory, with their number. The next server overwrites these bytes, no
    /// others, and its end makes them zero.
    #[arg(long, value_name = "PATH")]
    pub(crate) memory: Option<PathBuf>,
    /// The bytes of memory to offer: a number, with k, m or g for KiB, MiB or GiB. A check needs
    /// 2 MiB, and `rpma perf` may need more
    #[arg(long, value_name = "BYTES", default_value = "2m", value_parser = parse_size)]
    #[cfg_attr(feature = "sim", arg(hide = true))]
    pub(crate) size: u64,
    /// Accept memory with data. All bytes that are offered are lost when the first client comes
    #[arg(long, requires = "memory")]
    pub(crate) overwrite: bool,
    /// Serve although the memory has the mark of a server on this host that used another device
    /// node, as in another container. Only if you have seen that server end: one that is frozen has
    /// not ended, and its adapter still writes
    #[arg(long, requires = "memory")]
    pub(crate) other_is_gone: bool,
    /// Whether the adapter writes into the caches of the processor (DDIO): the operator's word
    #[arg(long, value_enum, value_name = "SETTING", default_value_t = Ddio::On)]
    pub(crate) ddio: Ddio,
    /// A fault to put in, for tests of `rpma check`
    #[arg(long, value_enum, value_name = "NAME", hide = true)]
    pub(crate) fault: Option<Fault>,
}

/// Try every operation of the library against `rpma serve` on another host
///
/// Each case ends as passed, failed or not possible here. A failed case names the expected and the
/// actual result. The report also has both hosts: device, firmware, kernel, rdma-core and memory.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  rpma check 192.0.2.2
  rpma check 192.0.2.2 --out report.json
  rpma check 192.0.2.2 --fallback --only flush commit
  rpma check --list

Exit status: 0 if no case failed and one passed, 1 if not or for an error, 2 for wrong arguments.")]
pub(crate) struct Check {
    /// The address of the server, and its port (7204)
    #[arg(value_name = "SERVER[:PORT]")]
    #[cfg_attr(not(feature = "sim"), arg(required_unless_present = "list"))]
    pub(crate) server: Option<Endpoint>,
    #[command(flatten)]
    pub(crate) form: Form,
    /// Run only the cases whose names begin so
    #[arg(long, value_name = "CASE", num_args = 1..)]
    pub(crate) only: Vec<String>,
    /// List the cases instead of running them
    #[arg(long, conflicts_with_all = ["format", "out"])]
    pub(crate) list: bool,
    /// Use no native flush and no native atomic write, as on a device without them
    #[arg(long)]
    pub(crate) fallback: bool,
    /// The fault of the simulated server
    #[cfg(feature = "sim")]
    #[arg(long, value_enum, value_name = "NAME", hide = true)]
    pub(crate) fault: Option<Fault>,
}

/// Measure operations against `rpma serve` on another host, or draw the results
///
/// A closed loop (without --rate) begins an operation when an earlier one has completed. An open
/// loop begins operations at the times of its rate, and measures from these times: a pause of the
/// server or of the network is in the latency of each operation that it delayed.
#[derive(Clone, Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = PERF_HELP
)]
pub(crate) struct Perf {
    #[command(subcommand)]
    pub(crate) command: Option<PerfCommand>,
    #[command(flatten)]
    pub(crate) measure: Measure,
}

const PERF_HELP: &str = "\
Examples:
  rpma perf 192.0.2.2                                   writes of 64 bytes, one at a time
  rpma perf 192.0.2.2 --op write-flush --rate 20k       an open loop
  rpma perf 192.0.2.2 --op commit --depth 16 --completions wait
  rpma perf 192.0.2.2 192.0.2.3 192.0.2.4 --op commit --copies 2
  rpma perf 192.0.2.2 --sweep size=64..64k,depth=1..64 --out results.jsonl
  rpma perf 192.0.2.2 --op commit --fail-if 'p99>20us'
  rpma perf report results.jsonl -o report.html
  rpma perf --op commit --servers 3 --copies 2          in the simulated build, whose times
                                                        are the work of the simulator

Exit status: 0 if all points were measured to their end and none is bad by --fail-if, 1 if not or
for an error, 2 for wrong arguments.";

/// Connect to `rpma serve` on another host, write and flush for a second, and print the times
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  rpma ping 192.0.2.2
  rpma ping --profile strict      in the simulated build, whose times are the work of the simulator

Exit status: 0 if the server answered, 1 if not, 2 for wrong arguments.")]
pub(crate) struct Ping {
    /// The address of the server, and its port (7204)
    #[cfg_attr(
        not(feature = "sim"),
        arg(required = true, value_name = "SERVER[:PORT]")
    )]
    #[cfg_attr(feature = "sim", arg(skip))]
    pub(crate) server: Option<Endpoint>,
    #[command(flatten)]
    pub(crate) form: Form,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum PerfCommand {
    /// Draw the results of one or several runs, as a page for a browser
    #[command(after_help = "Example:\n  rpma perf report before.jsonl after.jsonl -o report.html")]
    Report {
        /// Files of results, from `rpma perf --out`
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// The page to write. It needs no network and no other file
        #[arg(short, long, value_name = "FILE", default_value = "report.html")]
        out: PathBuf,
    },
}

/// What is measured, and how.
#[derive(Clone, Debug, Args)]
pub(crate) struct Measure {
    /// The servers, with their ports (7204). Several are for commits with copies
    #[cfg(not(feature = "sim"))]
    #[arg(required = true, value_name = "SERVER[:PORT]")]
    pub(crate) servers: Vec<Endpoint>,
    #[cfg(feature = "sim")]
    #[arg(skip)]
    pub(crate) servers: Vec<Endpoint>,
    #[command(flatten)]
    pub(crate) setting: Setting,
    #[command(flatten)]
    pub(crate) span: Span,
    /// End with status 1 if this holds for a point, such as p99>20us. The quantities
    /// are least, mean, p50, p90, p99, p99.9, p99.99 and most (times), rate (operations a second),
    /// gbps and not-begun
    #[arg(long, value_name = "CONDITION")]
    pub(crate) fail_if: Vec<Limit>,
    /// Measure each pair of these values, as one run. a..b is a, its doubles and b; a/b is a and b
    #[arg(
        long,
        value_name = "AXIS=VALUES,...",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) sweep: Sweep,
    #[command(flatten)]
    pub(crate) form: Form,
    /// The number of simulated servers
    #[cfg(feature = "sim")]
    #[arg(long = "servers", value_name = "COUNT", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) simulated_servers: u32,
}

/// How long a measurement takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Span {
    /// The time before the measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds(0.0))]
    pub(crate) warm_up: f64,
    /// The time of the measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds(0.001))]
    pub(crate) time: f64,
    /// The operations of the measurement, instead of a time
    #[arg(long, value_name = "COUNT", conflicts_with = "time", value_parser = parse_size)]
    pub(crate) count: Option<u64>,
}

/// The options of each command with a result: its form, its file, and the devices of the simulated
/// build.
#[derive(Clone, Debug, Args)]
pub(crate) struct Form {
    /// Print text, JSON or CSV. `rpma perf` prints a line of JSON for each point
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// Also write the result as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// The kind of the simulated devices: rxe-6.12, rxe-6.1, strict, adapter or siw-6.12
    #[cfg(feature = "sim")]
    #[arg(long, value_name = "NAME", default_value = "rxe-6.12", value_parser = profile)]
    pub(crate) profile: rpma::sim::Profile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
    Csv,
}

/// The longest measurement: a day.
const LONGEST: f64 = 86_400.0;

/// Seconds, of which there are at least so many.
fn seconds(least: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let fault = match text.parse::<f64>() {
            Ok(seconds) if (least..=LONGEST).contains(&seconds) => return Ok(seconds),
            Ok(seconds) if seconds < least => "it is too short",
            Ok(seconds) if seconds > LONGEST => "it is too long",
            _ => "it is no number",
        };
        Err(format!(
            "{fault}: give {least} to {LONGEST}, in seconds and without a unit"
        ))
    }
}

/// The profile of a name, which is also a value of `RPMA_SIM_PROFILE`.
#[cfg(feature = "sim")]
pub(crate) fn profile(name: &str) -> Result<rpma::sim::Profile, String> {
    use rpma::sim::Profile;

    match name {
        "rxe-6.12" => Ok(Profile::RXE_6_12),
        "rxe-6.1" => Ok(Profile::RXE_6_1),
        "strict" => Ok(Profile::STRICT),
        "adapter" => Ok(Profile::ADAPTER),
        "siw-6.12" => Ok(Profile::SIW_6_12),
        _ => Err("the profiles are rxe-6.12, rxe-6.1, strict, adapter and siw-6.12".to_owned()),
    }
}

/// The operator's word about DDIO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ddio {
    On,
    Off,
}

impl From<Ddio> for rpma::pmem::Ddio {
    fn from(ddio: Ddio) -> Self {
        match ddio {
            Ddio::On => Self::On,
            Ddio::Off => Self::Off,
        }
    }
}

/// A fault of the server, that a check has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    /// Flips a byte that arrived
    WrongByte,
    /// Offers a region without a right
    Refuses,
    /// Declares what its device or memory does not keep
    Lies,
    /// Ends in the middle
    Dies,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a refused number has its limits, and one that is none is named so.
    #[test]
    fn wrong_numbers_are_named() {
        for (error, words) in [
            (seconds(0.001)("nan").expect_err("nan"), "it is no number"),
            (seconds(0.001)("inf").expect_err("inf"), "it is too long"),
            (seconds(0.001)("-1").expect_err("-1"), "it is too short"),
        ] {
            assert!(error.contains(words), "{error}");
        }
    }
}
