//! Two simulated hosts, and checks between them.

use std::env;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use rpma::sim::{Fabric, Host, Platform, Profile};
use serde_json::Value;

use crate::args::{self, Check, Ddio, Endpoint, Fault, Form, Format, Serve};
use crate::fabric::Running;
use crate::interrupt::Interrupt;
use crate::problem::Problem;
use crate::report::{Outcome, Output};
use crate::wire::ARENA;

pub(super) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const PORT: u16 = 7204;

/// The devices of this run: `RPMA_SIM_PROFILE`, as in tests/common/fabric.rs.
pub(super) fn profile() -> Profile {
    match env::var("RPMA_SIM_PROFILE").as_deref() {
        Err(_) => Profile::RXE_6_12,
        Ok(name) => args::profile(name).unwrap_or_else(|error| panic!("RPMA_SIM_PROFILE: {error}")),
    }
}

/// A client's host and a server's host.
pub(super) struct World {
    pub(super) fabric: Fabric,
    pub(super) client: Host,
    pub(super) server: Host,
}

/// The result of a check.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) outcome: Outcome,
    pub(super) report: Value,
}

impl World {
    pub(super) fn new() -> Self {
        Self::of(profile(), profile())
    }

    pub(super) fn of(client: Profile, server: Profile) -> Self {
        let fabric = Fabric::new(client.clone());
        let client = fabric.host_with("client", client);
        let server = fabric.host_with("server", server);
        Self {
            fabric,
            client,
            server,
        }
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        Endpoint {
            host: self.server.addr().to_string(),
            port: PORT,
        }
    }

    /// The arguments of a server with ordinary memory.
    pub(super) fn serve(&self) -> Serve {
        Serve {
            addr: self.endpoint(),
            memory: None,
            ddio: Ddio::On,
            overwrite: false,
            other_is_gone: false,
            size: ARENA as u64,
            fault: None,
        }
    }

    /// The arguments of a server with persistent memory.
    pub(super) fn serve_pmem(&self, platform: Platform) -> Serve {
        self.server.set_platform(platform);
        Serve {
            memory: Some(self.server.pmem("dax0.0", ARENA).path().to_owned()),
            ..self.serve()
        }
    }

    pub(super) fn start(&self, args: &Serve) -> Result<Running> {
        Ok(Running::start(&self.server, args)?)
    }

    pub(super) fn args(&self, only: &[&str]) -> Check {
        Check {
            server: Some(self.endpoint()),
            form: Form {
                format: Format::Json,
                out: None,
                profile: profile(),
            },
            only: only.iter().map(|case| (*case).to_owned()).collect(),
            list: false,
            fallback: false,
            fault: None,
        }
    }

    /// Runs these cases against a server that runs.
    pub(super) fn check(&self, only: &[&str]) -> Result<Checked> {
        self.check_with(&self.args(only), &Interrupt::default())
    }

    pub(super) fn check_with(&self, args: &Check, interrupt: &Interrupt) -> Result<Checked> {
        let text = Text::default();
        let outcome = {
            let _entered = self.client.enter();
            crate::check::run(args, interrupt, &mut Output::to(text.clone()))?
        };
        let text = text.string();
        assert!(!text.contains("::"), "the name of a function: {text}");
        let report = serde_json::from_str(&text)?;
        Ok(Checked { outcome, report })
    }

    /// The error of a check that cannot begin.
    pub(super) fn problem(&self) -> Result<String> {
        let _entered = self.client.enter();
        let mut out = Output::to(io::sink());
        match crate::check::run(&self.args(&[]), &Interrupt::default(), &mut out) {
            Ok(outcome) => Err(format!("it ran: {outcome:?}").into()),
            Err(problem) => one_line(&problem),
        }
    }

    /// A check against a server with this fault.
    pub(super) fn with_fault(&self, fault: Fault, only: &[&str]) -> Result<Checked> {
        let server = Serve {
            fault: Some(fault),
            ..self.serve_pmem(Platform::AdrDdioOn)
        };
        let server = self.start(&server)?;
        let checked = self.check(only);
        // The fault `dies` is an error of the server.
        let _ = server.stop();
        checked
    }

    /// Everything was freed.
    pub(super) fn is_empty(&self) -> bool {
        self.fabric.objects().is_empty()
    }
}

fn one_line(problem: &Problem) -> Result<String> {
    let text = problem.to_string();
    match text.contains('\n') {
        true => Err(format!("several lines: {text}").into()),
        false if text.contains("::") => Err(format!("the name of a function: {text}").into()),
        false => Ok(text),
    }
}

impl Checked {
    /// The result and the detail of a case.
    pub(super) fn case(&self, name: &str) -> Option<(&str, &str)> {
        let cases = self.report["cases"].as_array()?;
        let case = cases.iter().find(|case| case["case"] == name)?;
        Some((case["result"].as_str()?, case["detail"].as_str()?))
    }

    /// The names of the cases with this result.
    pub(super) fn with(&self, result: &str) -> Vec<&str> {
        let cases = self.report["cases"].as_array().into_iter().flatten();
        let has_it = cases.filter(|case| case["result"] == result);
        has_it.filter_map(|case| case["case"].as_str()).collect()
    }
}

/// Output that a test reads.
#[derive(Clone, Default)]
pub(super) struct Text(Arc<Mutex<Vec<u8>>>);

impl Text {
    pub(super) fn string(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
