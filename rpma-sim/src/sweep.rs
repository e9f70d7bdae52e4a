//! A program under each fault, one at a time.

use std::env;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::str::FromStr;

use rustix::io::Errno;

use crate::fabric::Fabric;
use crate::links;
use crate::profile::Profile;

/// The variable that has the only fault of a sweep.
const ONLY: &str = "RPMA_SIM_FAULT";

/// What goes wrong in one run.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    /// This call fails with `EIO`, and has done nothing.
    Call(String, u32),
    /// This request, of all connections, is lost for good.
    Request(u32),
    /// Its acknowledgement is lost for good.
    Acknowledgement(u32),
    /// It is sent again.
    Packet(u32),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(call, nth) => write!(f, "{call} {nth}"),
            Self::Request(nth) => write!(f, "request {nth}"),
            Self::Acknowledgement(nth) => write!(f, "acknowledgement {nth}"),
            Self::Packet(nth) => write!(f, "packet {nth}"),
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{ONLY} is {text:?}: a call, request, acknowledgement or packet, and its number"
            )
        };
        let (what, nth) = text.split_once(' ').ok_or_else(wrong)?;
        let nth = nth.parse().ok().filter(|nth| *nth > 0).ok_or_else(wrong)?;
        Ok(match what {
            "request" => Self::Request(nth),
            "acknowledgement" => Self::Acknowledgement(nth),
            "packet" => Self::Packet(nth),
            call => Self::Call(call.to_owned(), nth),
        })
    }
}

impl Fault {
    fn arm(&self, fabric: &Fabric) {
        let (nth, fault) = match self {
            Self::Call(call, nth) => {
                drop(fabric.fail(call).nth(*nth, Errno::IO));
                return;
            }
            Self::Request(nth) => (*nth, links::Fault::Request),
            Self::Acknowledgement(nth) => (*nth, links::Fault::Acknowledgement),
            Self::Packet(nth) => (*nth, links::Fault::Packet),
        };
        let mut state = fabric.shared().lock();
        state.links.arm(None, None, nth, fault);
    }
}

/// Runs a program again and again, each time with one fault: each of its calls of verbs fails once, and each of its
/// requests is lost once, its acknowledgement is lost once, and it is sent again once. Returns the number of runs.
///
/// The program gets a new fabric for each run, makes its hosts there, and judges itself: it may fail in any way that it
/// documents, and panics if it breaks a promise, or if something is left of it (`Fabric::objects`). Its waits have limits,
/// which pass at once: the fabric is a [seeded](Fabric::seeded) one.
///
/// When it panics, the fault is printed, and a variable with which it is the only one:
///
/// ```text
/// with the fault "ibv_reg_mr 2": run it alone with RPMA_SIM_FAULT="ibv_reg_mr 2"
/// ```
///
/// # Panics
///
/// If the program does, or if the variable has no fault.
pub fn sweep(profile: &Profile, program: impl Fn(&Fabric)) -> usize {
    let faults = match env::var(ONLY) {
        Ok(text) => vec![text.parse().unwrap_or_else(|error| panic!("{error}"))],
        Err(_) => faults_of(profile, &program),
    };
    for fault in &faults {
        let fabric = Fabric::seeded(profile.clone(), 1);
        fault.arm(&fabric);
        let ended = catch_unwind(AssertUnwindSafe(|| program(&fabric)));
        if let Err(panic) = ended {
            eprintln!("with the fault \"{fault}\": run it alone with {ONLY}=\"{fault}\"");
            drop(fabric);
            resume_unwind(panic);
        }
    }
    faults.len() + 1
}

/// The faults that a program can have, by a run without any.
fn faults_of(profile: &Profile, program: impl Fn(&Fabric)) -> Vec<Fault> {
    let fabric = Fabric::seeded(profile.clone(), 1);
    program(&fabric);
    let calls = fabric.calls().into_iter();
    let mut faults: Vec<Fault> = calls
        .flat_map(|(call, count)| (1..=count as u32).map(|nth| Fault::Call(call.to_owned(), nth)))
        .collect();
    let requests = fabric.shared().lock().links.requests();
    for nth in 1..=requests {
        faults.extend([
            Fault::Request(nth),
            Fault::Acknowledgement(nth),
            Fault::Packet(nth),
        ]);
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fault is written as it is read.
    #[test]
    fn a_fault_comes_back_from_its_text() {
        for text in ["ibv_reg_mr 2", "request 1", "acknowledgement 3", "packet 4"] {
            let fault: Fault = text.parse().expect("a fault");
            assert_eq!(fault.to_string(), text);
        }
        for text in ["", "request", "request 0", "packet x"] {
            text.parse::<Fault>().expect_err("no fault");
        }
    }
}
