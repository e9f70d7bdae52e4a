//! Programs under faults: `sweep`, `storm` and `Fabric::at_step` of the simulated fabric.
//!
//! Promises: a host that is frozen, killed or cut from the power at any step is found where the
//! program breaks its promise under it; several faults at once are drawn, shrunk, and run again by
//! their text.

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rpma::sim::{find_fault, find_faults, storm, sweep};

use crate::common::prelude::*;
use crate::common::program::command_alone;

const LIMIT: Duration = Duration::from_secs(10);
const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;
const RECORD: [u8; 8] = [7; 8];
const LEN: usize = 4096;

/// Set in a process that runs a wrong program.
const WRONG: &str = "RPMA_TEST_STORM";
const FAULT: &str = "RPMA_SIM_FAULT";

/// The sign by which a program takes a record for safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Safe {
    /// The completion of a persistent flush on one replica.
    Flushed,
    /// The same, and the peer's disconnect before that.
    Closed,
    /// The same, and that the operations have failed on both replicas.
    FailedOnBoth,
    /// The same, waited for without a limit.
    WithoutLimit,
}

struct Replica {
    pmem: Pmem,
    /// Dropped in this order.
    conn: Conn,
    source: Mr<Vec<u8>>,
    to: MrRemote,
    _peer: Peer,
    _far: (Conn, Mr<PmemMap>, Peer),
}

fn connect(client: &Host, server: &Host) -> Result<Replica> {
    server.set_platform(Platform::Eadr);
    let pmem = server.pmem("log", LEN);
    let addr = server.addr().to_string();
    let on_server = server.enter();
    let far_peer = Peer::at(&addr)?;
    let usage =
        MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY | MrUsage::FLUSH_TYPE_PERSISTENT;
    let target = Mr::reg(&far_peer, PmemMap::open(pmem.path(), LEN)?, usage)?;
    let ep = Ep::listen(&far_peer, &addr, 0)?;
    drop(on_server);
    let _on_client = client.enter();
    let peer = Peer::toward(&addr)?;
    let source = Mr::reg(&peer, RECORD.to_vec(), MrUsage::WRITE_SRC)?;
    let mut cfg = ConnCfg::new();
    cfg.set_retry_count(2)?;
    let asking = ConnReq::new(&peer, &addr, ep.get_port(), &cfg)?.connect(&[])?;
    let request = ep.next_conn_req_timeout(&cfg, LIMIT)?;
    let far = request.connect(&target.get_descriptor())?;
    let conn = asking.wait_established(LIMIT)?;
    let far = far.wait_established(LIMIT)?;
    conn.apply_remote_peer_cfg(PeerCfg::new().set_direct_write_to_pmem(true));
    Ok(Replica {
        pmem,
        to: MrRemote::from_descriptor(conn.get_private_data())?,
        conn,
        source,
        _peer: peer,
        _far: (far, target, far_peer),
    })
}

impl Replica {
    fn append(&self, safe: Safe) -> rpma::Result<()> {
        let to = self.to.slice(..8)?;
        self.conn.write(to, self.source.slice(..)?, ALWAYS, 1)?;
        let flushed = self.conn.flush(to, FlushType::Persistent, ALWAYS, 2)?;
        let limit = match safe {
            Safe::WithoutLimit => Duration::MAX,
            _ => LIMIT,
        };
        self.conn.wait_for(flushed, limit, |_| {}).map(drop)
    }
}

/// Appends a record to two replicas, and returns whether it reported the record as safe.
fn append(fabric: &Fabric, safe: Safe) -> Result<bool> {
    let client = fabric.host("client");
    let servers = ["one", "the other"].map(|name| fabric.host(name));
    let connect = |number: usize| connect(&client, &servers[number]);
    let replicas = [connect(0)?, connect(1)?];
    let _on_client = client.enter();
    let appended = replicas.each_ref().map(|replica| replica.append(safe));
    let is_safe = |result: &rpma::Result<()>| match result {
        Ok(()) => true,
        Err(error) => safe == Safe::Closed && matches!(error, Error::Ended(_)),
    };
    let failed = |result: &rpma::Result<()>| matches!(result, Err(Error::Operation(_)));
    // The power fails now, everywhere.
    for server in servers.iter().filter(|server| server.has_power()) {
        server.power_cut();
    }
    let has_it = |replica: &Replica| replica.pmem.bytes()[..8] == RECORD;
    let mut both = replicas.iter().zip(&appended);
    let keeps = both.all(|(replica, appended)| !is_safe(appended) || has_it(replica));
    assert!(keeps, "{safe:?}: a record is lost");
    let is_told = safe == Safe::FailedOnBoth && appended.iter().all(failed);
    let keeps = !is_told || replicas.iter().any(has_it);
    assert!(keeps, "{safe:?}: a record is lost");
    Ok(is_told || appended.iter().any(is_safe))
}

/// A program that waits with limits for flushes keeps its promise under each fault, and under
/// several.
#[test]
fn a_right_program_survives_every_fault() {
    for profile in share("profiles", 2, Profile::ALL) {
        let program = |fabric: &Fabric| drop(append(fabric, Safe::Flushed));
        let runs = sweep(&profile, program);
        assert!(runs > 500, "{runs}");
        storm(
            &profile,
            share_of_runs("runs with several faults", 200),
            program,
        );
    }
}

fn finds(profile: &Profile, safe: Safe) -> bool {
    let program = || sweep(profile, |fabric| drop(append(fabric, safe)));
    catch_unwind(AssertUnwindSafe(program)).is_err()
}

/// A killed peer's disconnect is taken for its word; a wait without a limit meets a frozen host.
#[test]
fn faults_of_hosts_are_found() {
    for profile in Profile::ALL {
        assert!(finds(&profile, Safe::Closed), "{}: killed", profile.name());
    }
    assert!(finds(&Profile::STRICT, Safe::WithoutLimit), "frozen");
}

/// A program that treats two failures at once as success is found, and not by a sweep, which has
/// one at a time.
#[test]
fn two_faults_at_once_are_found() {
    for profile in share("profiles", 2, Profile::ALL) {
        let program = |fabric: &Fabric| drop(append(fabric, Safe::FailedOnBoth));
        sweep(&profile, program);
        panic_of(|| storm(&profile, 200, program));
    }
}

/// A storm prints the faults that the program needs to break its promise, and the variable that
/// brings them does.
#[test]
fn a_storm_prints_the_faults_that_it_needs() -> Result {
    if env::var(WRONG).is_ok() {
        storm(&Profile::STRICT, 200, |fabric| {
            drop(append(fabric, Safe::FailedOnBoth));
        });
        return Ok(());
    }
    let run = |fault| run_wrong("a_storm_prints_the_faults_that_it_needs", fault);
    let printed = run(None)?;
    let fault = |printed: &str| -> Result<_> {
        let rest = printed.split_once("RPMA_SIM_FAULT=\"");
        let (_, rest) = rest.ok_or("the variable")?;
        Ok(rest.split('"').next().unwrap_or_default().to_owned())
    };
    let faults = fault(&printed)?;
    assert_eq!(faults.split("; ").count(), 2, "{faults}");
    assert_eq!(fault(&run(Some(&faults))?)?, faults);
    Ok(())
}

/// A test that expects a failure gets the faults, their lines and the panic. A right program passes.
#[test]
fn a_test_gets_the_faults() {
    let failed = find_fault(&Profile::STRICT, wants_no_error).expect_err("a call fails");
    let first = format!(
        "with the fault \"{0}\": run it alone with {FAULT}=\"{0}\"",
        failed.fault
    );
    assert_eq!(failed.lines[0], first);
    assert!(failed.lines[1].starts_with("    on "), "{failed}");
    assert!(failed.text.starts_with("a connection: "), "{failed}");
    let both = |fabric: &Fabric| drop(append(fabric, Safe::FailedOnBoth));
    let runs = find_fault(&Profile::STRICT, both).expect("two faults are needed");
    assert!(runs > 500, "{runs}");
    let failed = find_faults(&Profile::STRICT, 200, both).expect_err("two faults");
    assert_eq!(failed.fault.split("; ").count(), 2, "{failed}");
    assert!(failed.lines[0].starts_with("seed "), "{failed}");
    assert!(failed.lines[1].contains(&failed.fault), "{failed}");
}

/// Runs another test of this program, with the variable that asks it for a wrong program; returns
/// its errors.
fn run_wrong(test: &str, fault: Option<&str>) -> Result<String> {
    let mut command = command_alone(module_path!(), test);
    command.env(WRONG, "1").env_remove(FAULT);
    command.envs(fault.map(|fault| (FAULT, fault)));
    let output = command.output()?;
    assert!(!output.status.success(), "the promise is broken");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Appends to one replica, and panics when anything fails.
fn wants_no_error(fabric: &Fabric) {
    let (client, server) = (fabric.host("client"), fabric.host("one"));
    let replica = connect(&client, &server).expect("a connection");
    let _on_client = client.enter();
    replica.append(Safe::Flushed).expect("it is written");
}

#[test]
fn planted() {
    if env::var(WRONG).is_ok() {
        sweep(&Profile::STRICT, wants_no_error);
    }
}

#[test]
fn planted_without_a_fault() {
    if env::var(WRONG).is_ok() {
        sweep(&Profile::STRICT, |fabric| {
            wants_no_error(fabric);
            panic!("in any case");
        });
    }
}

/// The line after a fault has its host, its call or operation, and the line of the program.
#[test]
fn a_sweep_names_the_place_of_its_fault() -> Result {
    let line_of = |part: &str| -> Result<_> {
        let lines = include_str!("storm.rs").lines();
        let mut lines = lines.zip(1..);
        let (_, line) = lines.find(|(line, _)| line.contains(part)).ok_or(part)?;
        Ok(format!("{}:{line}", file!()))
    };
    let registers = line_of("Mr::reg(&peer, RECORD")?;
    let writes = line_of("self.conn.write(to")?;
    let flushes = line_of("self.conn.flush(to")?;
    for (fault, begin, end) in [
        (
            "ibv_reg_mr 2",
            "on client, ibv_reg_mr failed: ".to_owned(),
            format!(", at {registers}\n"),
        ),
        (
            "ibv_post_send 1",
            format!("on client, ibv_post_send (op_context 1, {writes}) failed: "),
            ")\n".to_owned(),
        ),
        (
            "request 2",
            format!(" (op_context 2, {flushes}) on connection 17 of client to one: it is lost"),
            "\n".to_owned(),
        ),
        (
            "kill one 20",
            "on one, the programs are killed at step 20, in thread storm::planted (last call: "
                .to_owned(),
            format!("), at {}:", file!()),
        ),
    ] {
        let printed = run_wrong("planted", Some(fault))?;
        let head =
            format!("with the fault \"{fault}\": run it alone with {FAULT}=\"{fault}\"\n    ");
        let rest = printed.split_once(&head);
        let (_, rest) = rest.unwrap_or_else(|| panic!("{printed}"));
        let line = rest.split_inclusive('\n').next().unwrap_or_default();
        assert_says(&line, &[&begin, &end]);
    }
    Ok(())
}

/// A program that panics without a fault is run alone by a variable, too.
#[test]
fn a_sweep_names_a_run_without_a_fault() -> Result {
    const NONE: &str = "no fault";
    for fault in [None, Some(NONE)] {
        let printed = run_wrong("planted_without_a_fault", fault)?;
        let line = format!("without a fault: run it alone with {FAULT}=\"{NONE}\"\n");
        assert_says(&printed, &[&line]);
    }
    Ok(())
}

/// An action happens at its step, once, in the same moment of each run; not if it is taken back.
#[test]
fn an_action_happens_at_its_step() -> Result {
    let steps = |at: Option<u64>| -> Result<_> {
        let fabric = Rig::strict().seed(1).fabric();
        let happened = Arc::new(AtomicU64::new(0));
        let action = |step: u64| {
            let (happened, of) = (Arc::clone(&happened), fabric.clone());
            fabric.at_step(step, move || {
                // Calls here are no steps.
                let _ = of.objects();
                happened.store(of.steps(), Ordering::Relaxed);
            })
        };
        drop(action(1));
        let armed = at.map(action);
        append(&fabric, Safe::Flushed)?;
        assert!(!armed.as_ref().is_some_and(|armed| armed.is_pending()));
        let happened = happened.load(Ordering::Relaxed);
        Ok((fabric.steps(), happened, fabric.trace()))
    };
    let (all, none, trace) = steps(None)?;
    assert_eq!(none, 0, "it was taken back");
    for step in [1, all / 2, all] {
        let (again, at, same) = steps(Some(step))?;
        assert_eq!((again, same), (all, trace), "an action is no step");
        // A request may be in the middle of a call.
        assert!((step..step + 4).contains(&at), "{at} and not {step}");
        assert_eq!(steps(Some(step))?.1, at, "the same moment");
    }
    Ok(())
}
