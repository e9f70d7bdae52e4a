//! The commands of the simulated build: both sides run in this process, on a fabric of their own.

use std::io;
use std::path::PathBuf;

use rpma::sim::{Fabric, Host, JoinHandle, Profile};
use rpma::{Device, Peer, Side};

use crate::args::{Check, Ddio, Doctor, Endpoint, Fault, Measure, Ping, Serve};
use crate::facts::{Dax, DaxState, Facts, Pmem, Port, RdmaDevice};
use crate::interrupt::Interrupt;
use crate::problem::{Problem, Result};
use crate::report::{Outcome, Output};
use crate::serve::Server;
use crate::wire::ARENA;
use crate::{check as checks, doctor, perf};

/// The path of the simulated device-DAX begins so.
const DAX: &str = "/dev/dax";
/// Its size.
const DAX_LEN: usize = 64 << 10;

/// `rpma doctor` on a simulated host.
pub(crate) fn diagnose(args: &Doctor, interrupt: &Interrupt, out: &mut Output) -> Result<Outcome> {
    let profile = &args.form.profile;
    let fabric = Fabric::new(profile.clone());
    let host = fabric.host("host");
    let _entered = host.enter();
    let mut args = args.clone();
    let is_dax = |path: &&mut PathBuf| path.to_str().is_some_and(|path| path.starts_with(DAX));
    if let Some(path) = args.memory.as_mut().filter(is_dax) {
        *path = host.pmem("dax0.0", DAX_LEN).path().into();
    }
    doctor::examine(&args, &simulated(&host, profile)?, interrupt, out)
}

/// What files would show of a simulated host.
fn simulated(host: &Host, profile: &Profile) -> Result<doctor::Host> {
    let addresses = vec![host.addr().to_string(), host.addr6().to_string()];
    let device = Device::from_addr(&addresses[0], Side::Local)?;
    let port = Port {
        number: 1,
        state: Some("ACTIVE"),
        link_layer: Some("Ethernet"),
        ..Port::default()
    };
    let device = RdmaDevice {
        name: device.get_name().into(),
        node_type: Peer::new(&device)?.is_iwarp().then_some("RNIC"),
        description: Some(profile.name().into()),
        ports: vec![port],
        ..RdmaDevice::default()
    };
    let facts = Facts {
        devices: vec![device],
        addresses,
        pmem: Pmem {
            dax: vec![Dax {
                name: "dax0.0".into(),
                state: DaxState::Usable,
                is_persistent: true,
                region: None,
            }],
            ..Pmem::default()
        },
        ..Facts::default()
    };
    Ok(doctor::Host {
        facts,
        open: doctor::addresses::device,
        is_simulated: true,
    })
}

/// No other process reaches a fabric.
pub(crate) fn serve(_args: &Serve, _interrupt: &Interrupt, _out: &mut Output) -> Result<Outcome> {
    Err(Problem::new(
        "the simulated fabric is inside one process, so no client can reach a server",
        "Run `rpma check` or `rpma perf`, which start their own servers",
    ))
}

/// `rpma check` against a server on another simulated host.
pub(crate) fn check(args: &Check, interrupt: &Interrupt, out: &mut Output) -> Result<Outcome> {
    with_servers(&args.form.profile, 1, args.fault, |mut servers| {
        let mut args = args.clone();
        args.server = servers.pop();
        checks::run(&args, interrupt, out)
    })
}

/// `rpma perf` against servers on other simulated hosts.
pub(crate) fn measure(args: &Measure, interrupt: &Interrupt, out: &mut Output) -> Result<Outcome> {
    let (profile, count) = (&args.form.profile, args.simulated_servers);
    with_servers(profile, count, None, |servers| {
        let mut args = args.clone();
        args.servers = servers;
        perf::run(&args, interrupt, out)
    })
}

/// `rpma ping` to a server on another simulated host.
pub(crate) fn ping(args: &Ping, interrupt: &Interrupt, out: &mut Output) -> Result<Outcome> {
    with_servers(&args.form.profile, 1, None, |mut servers| {
        let mut args = args.clone();
        args.server = servers.pop();
        perf::ping::run(&args, interrupt, out)
    })
}

/// Runs a client on a host of its own. A server that ends by its fault is in the client's result.
fn with_servers(
    profile: &Profile,
    count: u32,
    fault: Option<Fault>,
    client: impl FnOnce(Vec<Endpoint>) -> Result<Outcome>,
) -> Result<Outcome> {
    let fabric = Fabric::new(profile.clone());
    let host = fabric.host("client");
    let servers = (1..=count).map(|number| server(&fabric.host(&format!("server{number}")), fault));
    let (servers, addrs): (Vec<_>, Vec<_>) =
        servers.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    let outcome = {
        let _entered = host.enter();
        client(addrs)
    };
    let stopped = servers.into_iter().try_for_each(Running::stop);
    match fault {
        None => stopped.and(outcome),
        Some(_) => outcome,
    }
}

/// Starts a server with persistent memory.
pub(crate) fn server(host: &Host, fault: Option<Fault>) -> Result<(Running, Endpoint)> {
    let args = args_of(host, fault);
    Ok((Running::start(host, &args)?, args.addr))
}

/// The arguments of a server with persistent memory.
pub(crate) fn args_of(host: &Host, fault: Option<Fault>) -> Serve {
    let addr = Endpoint {
        host: host.addr().to_string(),
        port: PORT,
    };
    let memory = host.pmem("dax0.0", ARENA);
    Serve {
        addr,
        memory: Some(memory.path().to_owned()),
        ddio: Ddio::On,
        overwrite: false,
        other_is_gone: false,
        size: ARENA as u64,
        fault,
    }
}

/// Any port: no other program is on the fabric.
const PORT: u16 = 7204;

/// A server in a thread.
pub(crate) struct Running {
    thread: JoinHandle<Result>,
    interrupt: Interrupt,
}

impl Running {
    /// Starts it on a host. It listens when this returns.
    pub(crate) fn start(host: &Host, args: &Serve) -> Result<Self> {
        let mut server = {
            let _entered = host.enter();
            Server::open(args)?
        };
        let interrupt = Interrupt::default();
        let ends = interrupt.clone();
        let thread = host.spawn(move || server.serve(&ends, &mut Output::to(io::sink())));
        Ok(Self { thread, interrupt })
    }

    /// Ends it, and returns its result.
    pub(crate) fn stop(self) -> Result {
        self.interrupt.set();
        let joined = self.thread.join();
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::doctor::tests::Text;
    use crate::facts::Interface;

    /// Examines a simulated host that a test has changed.
    fn examine(args: &[&str], change: impl FnOnce(&mut doctor::Host)) -> (Outcome, String) {
        let fabric = Fabric::new(Profile::RXE_6_12);
        let host = fabric.host("host");
        let _entered = host.enter();
        let memory = host.pmem("dax0.0", DAX_LEN).path().display().to_string();
        let args = args.iter().map(|arg| arg.replace("MEMORY", &memory));
        let args = ["rpma".to_owned(), "doctor".to_owned()]
            .into_iter()
            .chain(args);
        let Command::Doctor(args) = Cli::parse_from(args).command else {
            panic!("another command");
        };
        let mut simulated = simulated(&host, &Profile::RXE_6_12).expect("a host");
        change(&mut simulated);
        let text = Text::default();
        let mut out = Output::to(text.clone());
        let outcome = doctor::examine(&args, &simulated, &Interrupt::default(), &mut out);
        (outcome.expect("it is printed"), text.read())
    }

    /// A part of the memory can be registered with this limit. A program registers all of it.
    #[test]
    fn memory_above_the_limit_of_locked_memory_is_bad() {
        let limit = |host: &mut doctor::Host| host.facts.locked_memory.limit = Some(DAX_LEN as u64);
        let (outcome, text) = examine(&["--memory", "MEMORY"], limit);
        assert_eq!(outcome, Outcome::Bad);
        let found = "BAD     registration: the memory has 64 KiB, and this process may lock only 64 KiB, with a page of \
                     rpma's own";
        assert!(text.contains(found), "{text}");
        assert!(text.contains("memlock unlimited"), "{text}");
        assert!(text.contains("unseen  durable: on rxe0"), "{text}");

        let (outcome, text) = examine(&["--memory", "MEMORY"], |host| {
            limit(host);
            host.facts.locked_memory.ignored = true;
        });
        assert_eq!(outcome, Outcome::Good, "{text}");
    }
    /// The remedy is the command with the right target.
    #[test]
    fn an_interface_and_an_address_without_its_interface_are_named() {
        let change = |host: &mut doctor::Host| {
            host.facts.addresses.push("fe80::77%roce0".into());
            let roce0 = Interface {
                name: "roce0".into(),
                ..Interface::default()
            };
            host.facts.devices[0].ports[0].interfaces.push(roce0);
        };
        for (target, found, remedy) in [
            (
                "roce0",
                "roce0 is the network interface of rxe0",
                "rpma doctor rxe0",
            ),
            (
                "fe80::77",
                "fe80::77 is a link-local address, which needs its interface",
                "rpma doctor fe80::77%roce0",
            ),
        ] {
            let (outcome, text) = examine(&[target], change);
            assert_eq!(outcome, Outcome::Bad);
            let lines = format!("BAD     address: {found}\n        -> {remedy}\n");
            assert!(text.contains(&lines), "{text}");
        }
    }
}
