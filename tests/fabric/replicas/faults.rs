//! A log on two of three replicas under faults that a seed draws: a replica is frozen, killed or
//! cut from the power, requests and acknowledgements are lost, or a call fails. At most one replica
//! is faulty at a time, until all lose their power.
//!
//! `RPMA_SIM_RUNS` sets the number of seeds, and `RPMA_SIM_SEED` the only one.

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use rpma::sim::{AtStep, Failing};

use crate::replicas::cluster;
use crate::replicas::cluster::Cluster;
use crate::replicas::prelude::*;

/// Seeds of each profile and way, of which a run has a share.
const RUNS: u64 = 50;
const RECORDS: u64 = 16;
/// The latest step, after the set-up, at which something happens.
const STEPS: u64 = 500;
/// A wait is over so long after its limit at the latest: the calls of its last look take a
/// microsecond each, those of the other programs in between as well.
const SLACK: Duration = Duration::from_millis(2);

/// Faults that wait for their moment.
#[derive(Default)]
struct Armed {
    steps: Vec<AtStep>,
    calls: Vec<Failing>,
}

impl Armed {
    fn at(&mut self, fabric: &Fabric, step: u64, happens: impl FnOnce() + Send + 'static) {
        self.steps.push(fabric.at_step(step, happens));
    }
}

/// Loses something of one request on this way.
fn lose(link: &Link, draw: &mut Draw) {
    let nth = 1 + draw.below(60) as u32;
    match draw.below(6) {
        0 => link.lose_request(nth),
        1 => link.lose_acknowledgement(nth),
        2 => link.lose_acknowledgements(nth),
        3 => link.lose_packet(nth),
        4 => link.lose_answer(nth),
        _ => link.lose_packets(1 + nth),
    }
}

/// Draws the faults of a replica.
fn arm(fabric: &Fabric, of: &Cluster, faulty: usize, draw: &mut Draw) -> Armed {
    let mut armed = Armed::default();
    let host = of.hosts[faulty].clone();
    let link = fabric.between(&of.client, &host);
    let back = fabric.between(&host, &of.client);
    let step = fabric.steps() + draw.below(STEPS);
    let kind = draw.below(9);
    match kind {
        0 | 1 => {
            let frozen = host.clone();
            armed.at(fabric, step, move || frozen.freeze());
            if kind == 1 {
                armed.at(fabric, step + draw.below(STEPS), move || host.thaw());
            }
            if draw.one_in(2) {
                let destroy = fabric.fail("ibv_destroy_qp").on(&of.client);
                armed.calls.push(destroy.next(Errno::IO));
            }
        }
        2 => armed.at(fabric, step, move || {
            if host.has_power() {
                host.kill();
            }
        }),
        3 => armed.at(fabric, step, move || cluster::cut(&[host])),
        4 => armed.at(fabric, step, move || link.partition()),
        5 => armed.at(fabric, step, move || back.block()),
        6 => lose(&link, draw),
        7 => lose(&back, draw),
        // A post to any replica.
        _ => {
            let call = match of.way.method {
                Method::Native => "ibv_wr_complete",
                _ => "ibv_post_send",
            };
            let how = [How::Refused, How::Done][draw.below(2) as usize];
            let nth = 1 + draw.below(3 * RECORDS) as u32;
            let post = fabric.fail(call).on(&of.client).how(how);
            armed.calls.push(post.nth(nth, Errno::IO));
        }
    }
    armed
}

/// The time of a wait stays within its limit.
fn in_time<T>(what: &str, limit: Duration, wait: impl FnOnce() -> T) -> T {
    let began = now();
    let result = wait();
    let took = now() - began;
    assert!(took <= limit + SLACK, "{what}: {took:?} of {limit:?}");
    result
}

/// The result of a run.
#[derive(Debug, Default)]
struct Ran {
    /// How many records are on two replicas.
    acknowledged: u64,
    set_aside: u64,
    dark: bool,
}

struct Program<'run> {
    of: Cluster,
    draw: Draw,
    /// How many records are in flight.
    pipelined: u64,
    /// All lose their power at this step.
    dark: Option<AtStep>,
    /// How many records are durable on each replica, as far as the client can see.
    told: &'run [AtomicU64; 3],
    ran: Ran,
}

impl Program<'_> {
    /// Whether all replicas have lost their power.
    fn is_dark(&mut self) -> bool {
        self.ran.dark |= self.dark.as_ref().is_some_and(|dark| !dark.is_pending());
        self.ran.dark
    }

    /// Takes the replica that holds the ring out of the set.
    fn set_aside(&mut self) -> Result {
        let held: Vec<_> = self.of.log.holders().collect();
        assert!(self.is_dark() || held.len() == 1, "held by {held:?}");
        for id in held {
            let log = &mut self.of.log;
            in_time("set_aside", LIMIT, || log.set_aside(id, LIMIT))?;
            self.ran.set_aside |= mask([id]);
        }
        Ok(())
    }

    /// Keeps which replicas have acknowledged which records.
    fn tell(&self, ids: &[CommitId]) {
        for (record, id) in (1..).zip(ids) {
            let outcome = self.of.log.outcome(*id);
            let durable = mask(self.of.log.durable(outcome));
            for (replica, told) in self.told.iter().enumerate() {
                if durable & 1 << replica != 0 {
                    told.store(record, Ordering::Relaxed);
                }
            }
        }
    }

    fn settle(&mut self, id: CommitId, k: usize, limit: Duration) -> Outcome {
        let (log, what) = (&mut self.of.log, format!("settle for {k}"));
        in_time(&what, limit, || log.settle(id, k, limit))
    }

    /// Appends all records; `None`: too few replicas are left.
    fn append_all(&mut self) -> Result<Option<()>> {
        let mut ids = Vec::new();
        while self.ran.acknowledged < RECORDS {
            let (number, told) = (ids.len() as u64, self.ran.acknowledged);
            if number < RECORDS && number < told + self.pipelined {
                let limit = Duration::from_millis([0, 1, 30, 300][self.draw.below(4) as usize]);
                let log = &mut self.of.log;
                match in_time("wait_room", limit, || log.wait_room(LEN, limit)) {
                    Ok(()) => {}
                    // A replica that is only slow has time before it is set aside.
                    Err(Error::RingFull) if limit < Duration::from_millis(300) => continue,
                    Err(Error::RingFull) => {
                        self.set_aside()?;
                        continue;
                    }
                    Err(error) => panic!("record {number}: {error}"),
                }
                match self.of.append(number, 2) {
                    Ok(id) => ids.push(id),
                    Err(Error::TooFewReplicas { .. }) if self.is_dark() => return Ok(None),
                    Err(error) => panic!("record {number}: {error}"),
                }
                continue;
            }
            // The first answer counts as soon as it is here.
            let id = ids[told as usize];
            self.settle(id, 1, LIMIT);
            self.tell(&ids);
            let outcome = self.settle(id, 2, LIMIT);
            if outcome.copies() < 2 {
                assert!(self.is_dark(), "record {told}: {outcome:?}");
                return Ok(None);
            }
            self.ran.acknowledged += 1;
            self.tell(&ids);
            // More copies than asked for, with a limit that mostly passes.
            if self.draw.one_in(4) {
                let limit = Duration::from_millis(self.draw.below(120));
                self.settle(id, 3, limit);
            }
        }
        Ok(Some(()))
    }
}

/// One run. At each of its events the power may fail for all replicas together.
fn run(profile: &Profile, way: Way, seed: u64) -> Result<Ran> {
    let fabric = Rig::of(profile).seed(seed).fabric();
    let mut draw = Draw(seed);
    let pipelined = 1 + draw.below(3);
    let retries = 2 + draw.below(6) as u8;
    let way = Way { retries, ..way };
    let of = Cluster::new(&fabric, way, pipelined as usize + 1)?;
    let faulty = draw.below(3) as usize;
    if draw.one_in(2) {
        for host in &of.hosts {
            let link = fabric.between(&of.client, host);
            link.delay_up_to(Duration::from_micros(draw.below(3_000)));
        }
    }
    let armed = arm(&fabric, &of, faulty, &mut draw);
    let dark = draw.one_in(4).then(|| {
        let hosts = of.hosts.clone();
        let step = fabric.steps() + draw.below(2 * STEPS);
        fabric.at_step(step, move || cluster::cut(&hosts))
    });
    let told = [const { AtomicU64::new(0) }; 3];
    let pmems = of.pmems.clone();
    let mut program = Program {
        of,
        draw,
        pipelined,
        dark,
        told: &told,
        ran: Ran::default(),
    };
    let check = |cut: &Cut<'_>| {
        for images in cut.joint_images_up_to(&Vec::from_iter(&pmems), 3) {
            for (replica, image) in images.iter().enumerate() {
                keeps(replica, image.bytes(), &told[replica]);
            }
        }
    };
    let ended = match way.flush_type {
        FlushType::Persistent => fabric.on_every_event(check, || program.append_all())?,
        FlushType::Visibility => program.append_all()?,
    };
    assert!(ended.is_some() || program.ran.dark);
    // A replica that goes on now reads the bytes of its requests at last.
    program.of.hosts.iter().for_each(|host| host.thaw());
    sleep(LIMIT);
    program.dark = None;
    drop(armed);
    fabric.settle();
    Ok(judge(program))
}

/// The memory of a replica shows the records that were acknowledged.
fn keeps(replica: usize, bytes: &[u8], told: &AtomicU64) {
    let (shown, told) = (whole(bytes), told.load(Ordering::Relaxed));
    assert!(shown >= told, "replica {replica}: {shown} of {told}");
}

/// Each acknowledged record is on the replicas that had it, and no replica shows another record.
fn judge(mut program: Program<'_>) -> Ran {
    let has_power: Vec<_> = program.of.hosts.iter().map(|of| of.has_power()).collect();
    if program.of.is_durable() {
        program.of.cut_all();
    }
    for (replica, has_power) in has_power.into_iter().enumerate() {
        // A loss of power may leave any part of bytes that are only visible.
        if !program.of.is_durable() && !has_power {
            continue;
        }
        let bytes = program.of.pmems[replica].bytes();
        keeps(replica, &bytes, &program.told[replica]);
    }
    program.ran
}

/// Runs each seed on these profiles.
fn runs(way: Way, profiles: impl Fn(u64) -> Vec<Profile>) {
    let (ended, aside) = (AtomicU64::new(0), AtomicU64::new(0));
    with_seeds(RUNS, |seed| {
        for profile in profiles(seed) {
            let run = || run(&profile, way, seed).expect("added");
            let ran = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
                eprintln!("{}, {way:?}, seed {seed}:", profile.name());
                resume_unwind(panic);
            });
            ended.fetch_add(u64::from(!ran.dark), Ordering::Relaxed);
            aside.fetch_add(u64::from(ran.set_aside != 0), Ordering::Relaxed);
        }
    });
    let is_set = |variable: &&str| env::var_os(variable).is_some();
    if !["RPMA_SIM_SEED", "RPMA_SIM_RUNS"].iter().any(is_set) {
        let (ended, aside) = (ended.into_inner(), aside.into_inner());
        assert!(ended >= RUNS / 8, "{ended} runs came to their end");
        assert!(aside >= RUNS / 32, "{aside} runs went on without a replica");
    }
}

fn all(allows: impl Fn(&Profile) -> bool) -> Vec<Profile> {
    Profile::EVERY.into_iter().filter(allows).collect()
}

/// An acknowledged record is on two replicas, under each fault of one of them.
#[test]
fn native_commits_survive_drawn_faults() {
    let way = Way::durable(Method::Native, Platform::AdrDdioOn);
    runs(way, |_| all(Profile::flushes_natively));
}

/// As the native ones.
#[test]
fn commits_by_reading_survive_drawn_faults() {
    let way = Way::durable(Method::Reading, Platform::AdrDdioOff);
    runs(way, |_| all(|profile| way.may_be_durable(profile)));
}

/// As the native ones. Each seed runs on one profile: threads of the replicas take their time.
#[test]
fn commits_of_the_server_survive_drawn_faults() {
    let way = Way::durable(Method::Server, Platform::AdrDdioOn);
    runs(way, |seed| {
        let nth = seed as usize % Profile::EVERY.len();
        vec![Profile::EVERY[nth].clone()]
    });
}

/// A record that is only visible is on each replica that has not lost its power.
#[test]
fn visible_commits_survive_drawn_faults() {
    for method in [Method::Native, Method::Reading] {
        let way = Way {
            method,
            ..Way::visible().sending(2, 2)
        };
        runs(way, |_| all(|profile| methods(profile).contains(&method)));
    }
}
