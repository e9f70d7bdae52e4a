//! Reports name the program's operations by their lines, the last events and the faults, and the
//! share of the images that the check was shown. A report's event can be run alone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs};

use rpma::sim::Errno;

use crate::common::prelude::*;
use crate::common::program::command_alone;
use crate::power::world::{ALWAYS, Hosts, ON_ERROR, Own, SIZE, Way, World, fabric};

/// A world of the server that promises direct writes, also where it may not.
fn world(profile: &Profile, by_reading: bool) -> Result<World> {
    let way = Way::on(Platform::AdrDdioOn).by_reading(by_reading);
    Ok(World::of(profile, way.promising())?)
}

/// The report of a program that promises its first byte when `run` has called it.
fn report(world: &World, run: impl FnOnce(&dyn Fn()) -> anyhow::Result<()>) -> String {
    let check = |image: &[u8], told| assert!(image[0] == 1 || told == 0, "lost");
    let found = world.under_every_cut(check, |tell| run(&|| tell(1)));
    let found = found.map(|ran| ran.expect("it runs"));
    found.expect_err("a loss").to_string()
}

/// A line of this file, as a report has it.
fn here(op_context: u64, line: u32) -> String {
    format!("(op_context {op_context}, {}:{line})", file!())
}

/// The bytes that are lost are those of the operation with this name.
fn assert_lost(report: &str, name: &str) {
    let lost = report.lines().find(|line| line.starts_with("Lost: "));
    assert!(
        lost.is_some_and(|lost| lost.contains(name)),
        "{name}: {report}"
    );
}

/// An operation is named by the program's line that posts it, and by the program's number: on each
/// device, with each method that writes.
#[test]
fn an_operation_has_its_line() -> Result {
    for profile in Profile::ALL {
        for method in 0..4 {
            let world = world(&profile, false)?;
            world.source.write_at(0, &[1; 8])?;
            let (to, from) = world.places(0, 8)?;
            let (conn, mut line) = (&world.conn, 0);
            let report = report(&world, |tell| {
                let posted = match method {
                    0 => {
                        line = line!() + 1;
                        conn.write(to, from, ALWAYS, 70)
                    }
                    1 => {
                        line = line!() + 1;
                        conn.write_gather(to, &[from], ALWAYS, 70)
                    }
                    2 => {
                        line = line!() + 1;
                        conn.atomic_write(to, &[1; 8], ALWAYS, 70)
                    }
                    _ => {
                        world.far.recv(world.messages.slice(8..)?, 5)?;
                        line = line!() + 1;
                        conn.write_with_imm(to, from, ALWAYS, 7, 70)
                    }
                }?;
                tell();
                world.wait(posted)
            });
            assert_lost(&report, &format!("{} on connection", here(70, line)));
        }
    }
    Ok(())
}

/// Each operation of a batch has the line that added it, also where the batch is posted in several
/// parts.
#[test]
fn an_operation_of_a_batch_has_its_line() -> Result {
    for profile in [Profile::STRICT, Profile::ADAPTER] {
        let world = world(&profile, false)?;
        world.source.write_at(0, &[1; 64])?;
        let (to, from) = world.places(0, 8)?;
        let (other, _) = world.places(64, 16)?;
        let parts = [world.source.slice(64..72)?, world.source.slice(72..80)?];
        let first = line!() + 4;
        let report = report(&world, |tell| {
            let kind = FlushType::Persistent;
            let mut batch = world.conn.batch::<8>();
            batch.flush(other, kind, ON_ERROR, 70)?;
            batch.write(to, from, ON_ERROR, 71)?;
            batch.write_gather(other, &parts, ON_ERROR, 72)?;
            batch.flush(other, kind, ALWAYS, 73)?;
            world.wait(batch.post()?)?;
            tell();
            world.wait_for_write()
        });
        for number in 0..4 {
            assert_says(&report, &[&here(70 + u64::from(number), first + number)]);
        }
        assert_lost(&report, &here(71, first + 1));
    }
    Ok(())
}

/// The event of a flush names the flush, native or by reading.
#[test]
fn a_flush_has_its_line() -> Result {
    for (by_reading, what) in [
        (true, "after a read of 8 bytes"),
        (false, "before a native flush for persistence of 8 bytes"),
    ] {
        let world = world(&Profile::STRICT, by_reading)?;
        let mut line = 0;
        let report = report(&world, |tell| {
            let (to, from) = world.places(64, 8)?;
            world.conn.write(to, from, ON_ERROR, 70)?;
            line = line!() + 1;
            let flushed = world.conn.flush(to, FlushType::Persistent, ALWAYS, 71)?;
            world.wait(flushed)?;
            tell();
            world.wait_for_write()
        });
        let event = format!("{what} {} on connection", here(71, line));
        assert_says(&report, &[&event]);
    }
    Ok(())
}

/// The last events come with their numbers and their times, and after them the faults: those that
/// have happened, those that are armed, and those that last.
#[test]
fn a_report_has_the_last_events_and_the_faults() -> Result {
    let world = world(&Profile::STRICT, false)?;
    let (fabric, link) = (&world.fabric, world.link());
    let idle = fabric.host("idle");
    idle.freeze();
    fabric.between(&world.client, &idle).block();
    let failing = |host: &Host| fabric.fail("ibv_reg_mr").on(host);
    drop(failing(&world.client).next(Errno::NOMEM));
    drop(failing(&world.server).nth(3, Errno::IO));
    link.lose_packet(1);
    link.place_only(9, 40);
    let report = report(&world, |tell| {
        world.write(0, &[1])?;
        world.wait_for_write()?;
        Mr::reg(&world.peers.0, vec![0; 8], MrUsage::WRITE_SRC).expect_err("it fails");
        tell();
        world.wait_for_write()
    });
    let (_, end) = report.split_once("The last events:\n").ok_or("a list")?;
    let (events, faults) = end.split_once("Faults:\n").ok_or("a list")?;
    let events: Vec<&str> = events.lines().collect();
    assert!((2..=8).contains(&events.len()), "{report}");
    let last = events.last().ok_or("one")?;
    let (number, what) = last.trim().split_once(", after ").ok_or("a number")?;
    let (time, what) = what.split_once("s: ").ok_or("a time")?;
    assert!(time.ends_with(['µ', 'm']), "{last}");
    let now = format!("The power fails at event {number}, {what}. Seed ");
    assert_says(&report, &[&now]);
    assert_says(
        &faults,
        &[
            "    before event 2: a write of 1 byte (op_context 0, tests/fabric/power/world.rs:",
            " on connection 17 of client to server: a packet of it is lost, and it is sent again",
            ": on client, ibv_reg_mr failed: ",
            "    armed: on server, call 3 of ibv_reg_mr from now fails: ",
            "    armed: write 6 from now, from client to server: only its first 40 bytes are placed",
            "    idle is frozen",
            "    nothing arrives from client to idle",
        ],
    );
    Ok(())
}

/// The connections of one client to two hosts.
fn one_and_other(fabric: &Fabric) -> Result<[World; 2]> {
    let client = fabric.host("client");
    let connect = |name: &str| {
        let way = Way::on(Platform::Eadr).by_reading(true);
        let hosts = [client.clone(), fabric.host(name)];
        Hosts::new(fabric, hosts, way, SIZE).connect()
    };
    Ok([connect("one")?, connect("other")?])
}

/// A promise of a record that was posted to one host of two: the report has the other host, with
/// zeros.
#[test]
fn a_promise_after_one_post_names_the_other_host() -> Result {
    let fabric = fabric(&Profile::STRICT);
    let all = one_and_other(&fabric)?;
    let told = AtomicU64::new(0);
    let check = |cut: &Cut<'_>| {
        for images in cut.joint_images(&[&all[0].pmem, &all[1].pmem]) {
            let both = images.iter().all(|image| image.bytes()[0] == 1);
            assert!(both || told.load(Ordering::Relaxed) == 0, "lost");
        }
    };
    let mut line = 0;
    let found = fabric.find_loss(check, || -> anyhow::Result<()> {
        all[0].source.write_at(0, &[1; 8])?;
        let (to, from) = all[0].places(0, 8)?;
        line = line!() + 1;
        all[0].conn.write(to, from, ON_ERROR, 70)?;
        all.iter().try_for_each(|world| world.flush(0, 8))?;
        told.store(1, Ordering::Relaxed);
        all[1].flush(0, 8)
    });
    let report = found.expect_err("a loss").to_string();
    let counts = format!("    {}:{line}: one 1 of 1, other 0 of 0\n", file!());
    assert_says(&report, &["nothing of it is lost. ", &counts]);
    Ok(())
}

/// A promise after one copy of two: the report names both connections by their hosts, and the host
/// that has not executed the operation.
#[test]
fn a_promise_after_one_copy_names_the_other_host() -> Result {
    for profile in Profile::EVERY {
        let fabric = fabric(&profile);
        let all = one_and_other(&fabric)?;
        let told = AtomicU64::new(0);
        let check = |cut: &Cut<'_>| {
            let [one, other] = [0, 1].map(|number: usize| &all[number].pmem);
            for images in cut.joint_images(&[one, other]) {
                let all = images.iter().all(|image| image.bytes()[0] == 1);
                assert!(all || told.load(Ordering::Relaxed) == 0, "lost");
            }
        };
        let mut line = 0;
        let found = fabric.find_loss(check, || -> anyhow::Result<()> {
            let held = all[1].link();
            held.hold();
            for replica in &all {
                replica.source.write_at(0, &[1; 8])?;
                let (to, from) = replica.places(0, 8)?;
                line = line!() + 1;
                replica.conn.write(to, from, ON_ERROR, 70)?;
            }
            all[0].flush(0, 8)?;
            told.store(1, Ordering::Relaxed);
            all[0].wait_for_write()?;
            held.release();
            Ok(())
        });
        let report = found.expect_err("a loss").to_string();
        assert_says(
            &report,
            &[
                "nothing of it is lost. ",
                "an operation that not all devices have executed yet",
                &format!("    {}:{line}: one 1 of 1, other 0 of 1\n", file!()),
                &format!("{} on connection ", here(70, line)),
                " of client to one\n",
            ],
        );
    }
    Ok(())
}

/// A report and the counts of a run have whether all images were looked at, or some of many.
#[test]
fn some_images_are_not_taken_for_all() {
    let find = |bytes: usize, limit: usize, taken: usize, lost: u8| {
        let Own {
            fabric, pmem, map, ..
        } = &Own::page(Platform::AdrDdioOn);
        let check = |cut: &Cut<'_>| {
            for image in cut.images_up_to(pmem, limit).take(taken) {
                let is_new = cut.what() == "at the end";
                assert!(!is_new || image.bytes()[0] != lost, "lost");
            }
        };
        let found = fabric.find_loss(check, || map.write_at(0, &vec![1; bytes]).expect("inside"));
        found.map(|()| fabric.visited().sampled)
    };
    let sampled = |bytes, limit, taken| find(bytes, limit, taken, 9).expect("no loss");
    assert_eq!(sampled(24, 100, 100), 0, "8 images");
    assert_eq!(sampled(24, 7, 100), 1, "7 of 8");
    assert_eq!(sampled(24, 100, 7), 1, "7 of 8");
    // Of five words of a line not all images are listed.
    assert_eq!(sampled(40, 2000, 2000), 1, "by chance");
    for (bytes, limit, part) in [
        (24, 100, "all 8 that may be left of log of host."),
        (24, 7, "a sample of 7, of 8 that may be left"),
        (
            40,
            100,
            "a sample of 100, the 3 likely ones and others by chance, of log",
        ),
        (40, 2, "a sample of 2, of at least 3 that may be left"),
        (64 * 20, 100, "a sample of 100, of more than a million that"),
    ] {
        let loss = find(bytes, limit, limit, 0).expect_err("a loss");
        let part = format!("The check has failed with image 1 of {part}");
        assert_says(&loss, &[&part]);
    }
}

/// The debug text of an image is short, of a large memory as well.
#[test]
fn an_image_is_printed_in_short() {
    let own = Own::new(Rig::strict().fabric(), Platform::Eadr, 1 << 20);
    let print = || {
        let mut text = String::new();
        let check = |cut: &Cut<'_>| {
            let image = cut.images(&own.pmem).next().expect("one");
            text = format!("{image:?}");
        };
        own.fabric
            .on_every_event(check, || own.map.persist(..8).expect("inside"));
        text
    };
    let len = own.pmem.len();
    assert_eq!(print(), format!("Image {{ len: {len}, not_zero: [] }}"));
    own.map.write_at(8, &[1; 16]).expect("inside");
    own.map.write_at(5000, &[2]).expect("inside");
    let places = "8..24: 01 01 01 01 01 01 01 01 …, 5000..5008: 02 00 00 00 00 00 00 00";
    assert_eq!(
        print(),
        format!("Image {{ len: {len}, not_zero: [{places}] }}")
    );
    (0..len)
        .step_by(64)
        .for_each(|at| own.map.write_at(at, &[1]).expect("inside"));
    let text = print();
    assert!(text.len() < 300 && text.ends_with("], .. }"), "{text}");
}

/// Set in a process that runs one of the wrong programs below.
const PLANTED: &str = "RPMA_TEST_PLANTED";
const EVENT: &str = "RPMA_SIM_EVENT";
const IMAGES: &str = "RPMA_SIM_IMAGES";

/// Runs a wrong program in a process of its own: whether it succeeds, and the report that it prints.
fn run_planted(name: &str, variables: &[(&str, &str)]) -> Result<(bool, String)> {
    let output = command_alone(module_path!(), name)
        .env(PLANTED, "")
        .env_remove(EVENT)
        .envs(variables.iter().copied())
        .output()?;
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output.status.success(), printed))
}

/// The report of a wrong program, and the event that it names.
fn event_of(name: &str) -> Result<(String, String)> {
    let (_, text) = run_planted(name, &[])?;
    let (_, rest) = text.split_once("RPMA_SIM_EVENT=").ok_or("a variable")?;
    let (event, _) = rest.split_once(": ").ok_or("its end")?;
    Ok((event.to_owned(), text))
}

#[test]
fn planted() -> Result {
    if env::var_os(PLANTED).is_some() {
        let world = world(&Profile::STRICT, false)?;
        let report = report(&world, |tell| {
            world.write(0, &[1; 8])?;
            world.flush(64, 8)?;
            tell();
            world.wait_for_write()
        });
        eprintln!("{report}");
    }
    Ok(())
}

/// The variable of a report runs its event again, alone, and writes the image to a file.
#[test]
fn an_event_is_run_alone() -> Result {
    let (event, first) = event_of("planted")?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().to_str().expect("a path");
    let (_, again) = run_planted("planted", &[(EVENT, &event), (IMAGES, path)])?;
    // The same report, which ends otherwise.
    let (report, _) = first.split_once("Run it again with").ok_or("a variable")?;
    let image = "The image of log of server is in ";
    let (same, end) = again.split_once(image).ok_or("a file")?;
    assert_eq!(report, same);
    let (file, _) = end.split_once(".\n").ok_or("its end")?;
    assert!(file.starts_with(path), "{file}");
    let image = fs::read(file)?;
    assert_eq!(image.len(), 4096);
    assert_eq!(image[0], 0, "what was lost is not there");
    assert_eq!(fs::read_dir(path)?.count(), 1);

    let missing = directory.path().join("none");
    let missing = missing.to_str().expect("a path");
    let (_, nowhere) = run_planted("planted", &[(EVENT, &event), (IMAGES, missing)])?;
    assert_says(&nowhere, &["cannot be written to"]);

    let (succeeds, late) = run_planted("planted", &[(EVENT, "1000")])?;
    assert_says(&late, &["the check was never called, as the run had "]);
    assert!(!succeeds, "the test expects a loss");
    Ok(())
}

fn load(map: &PmemMap) -> u64 {
    let mut word = [0; 8];
    map.read_at(0, &mut word).expect("inside");
    u64::from_le_bytes(word)
}

fn store(map: &PmemMap, value: u64) {
    map.write_at(0, &value.to_le_bytes()).expect("inside");
    map.persist(..8).expect("inside");
}

#[test]
fn planted_in_recovery() {
    if env::var_os(PLANTED).is_some() {
        let Own {
            fabric, pmem, map, ..
        } = &Own::page(Platform::AdrDdioOn);
        let counted = AtomicU64::new(0);
        // It counts down before it stores the word again. The promise of 1 holds, which the first
        // image of 2 has.
        let recover = |path: &std::path::Path| {
            let map = PmemMap::open(path, 4096).expect("the memory");
            let value = load(&map);
            if value == 2 {
                store(&map, value - 1);
                store(&map, value);
            }
            value
        };
        let found = fabric.find_loss_in_recovery(
            pmem,
            || counted.load(Ordering::Relaxed),
            recover,
            |promise, found| assert!(found >= promise, "{promise} counted, {found} found"),
            || {
                for number in 1..4 {
                    store(map, number);
                    counted.store(number, Ordering::Relaxed);
                }
            },
        );
        eprintln!("{}", found.expect_err("a loss"));
    }
}

/// A loss of a recovery is found again by the event at which the program made the promise and left
/// the image.
#[test]
fn a_recovery_is_run_again_from_its_event() -> Result {
    let (event, first) = event_of("planted_in_recovery")?;
    let origin = format!("It began with an image that the program may leave at event {event}, ");
    assert_says(&first, &[&origin]);
    let directory = tempfile::tempdir()?;
    let path = directory.path().to_str().expect("a path");
    let (_, again) = run_planted("planted_in_recovery", &[(EVENT, &event), (IMAGES, path)])?;
    assert_says(&again, &[&origin, "The image of memory of host is in "]);
    assert_eq!(fs::read_dir(path)?.count(), 1);
    Ok(())
}

/// The times of the last events are in order, also if one of them has taken long to look at: many
/// stores were there.
#[test]
fn the_times_of_events_are_in_order() -> Result {
    const LEN: usize = 1 << 18;
    // In real time.
    let own = Own::new(Rig::strict().fabric(), Platform::AdrDdioOn, LEN);
    let device = Device::from_addr(&own.host.addr().to_string(), Side::Local)?;
    let check = |cut: &Cut<'_>| assert_ne!(cut.what(), "at the end");
    let found = own.fabric.find_loss(check, || {
        own.map.write_at(0, &vec![1; LEN]).expect("inside");
        // The first event is the first call, which sees the stores.
        let _peer = Peer::new(&device).expect("a peer");
        own.map.persist(..8).expect("inside");
    });
    let report = found.expect_err("a failed check").to_string();
    let times = report.lines().filter_map(|line| {
        let (_, rest) = line.split_once(", after ")?;
        let (time, _) = rest.split_once(": ")?;
        let number: f64 = time.trim_end_matches(char::is_alphabetic).parse().ok()?;
        let unit = match time.trim_start_matches(|it: char| it.is_ascii_digit() || it == '.') {
            "s" => 1e6,
            "ms" => 1e3,
            _ => 1.0,
        };
        Some(number * unit)
    });
    let times: Vec<f64> = times.collect();
    assert!(times.len() > 3, "{report}");
    assert!(times.is_sorted(), "{report}");
    Ok(())
}
