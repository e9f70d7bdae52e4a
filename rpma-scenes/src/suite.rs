//! [`Suite`]: the scenes of a log, and their [`Report`].

#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rpma::sim::{Fabric, Platform, Profile};

use crate::exec::Executor;
use crate::scenes::{Scene, scenes};
use crate::stage::{Setting, Stage, Tally};
use crate::subject::Subject;
use crate::world::{World, locked, text_of};

/// The variable that names one scene.
const SCENE: &str = "RPMA_SCENE";
/// The variable for the longer setting.
const LONG: &str = "RPMA_SCENES";

/// The promise before those of the scenes.
const OPENS: &str = "A log opens where nothing disturbs it.";

/// The kinds of hosts of a short run: a strict adapter without durable writes, and soft-RoCE.
const SHORT: [(Profile, Platform); 2] = [
    (Profile::STRICT, Platform::AdrDdioOn),
    (Profile::RXE_6_12, Platform::Eadr),
];

/// The scenes, for one log.
///
/// The environment variable `RPMA_SCENE` names one scene. `RPMA_SCENES=long` chooses the longer
/// setting, and `RPMA_SCENES=all` has all single faults and orders.
#[derive(Debug)]
#[must_use = "`run` plays the scenes"]
pub struct Suite<S> {
    subject: Arc<S>,
    kinds: Vec<(Profile, Platform)>,
    scene: Option<String>,
    setting: Setting,
}

impl<S: Subject> Suite<S> {
    /// The scenes on hosts of two kinds: strict adapters with [`Platform::AdrDdioOn`], and soft-RoCE
    /// with [`Platform::Eadr`].
    pub fn new(subject: S) -> Self {
        Self {
            subject: Arc::new(subject),
            kinds: SHORT.to_vec(),
            scene: std::env::var(SCENE).ok().filter(|name| !name.is_empty()),
            setting: match std::env::var(LONG).as_deref() {
                Ok("long") => Setting::Long,
                Ok("all") => Setting::All,
                _ => Setting::Short,
            },
        }
    }

    /// The scenes only on hosts of this kind, in the place of those before.
    pub fn on(mut self, profile: &Profile, platform: Platform) -> Self {
        self.kinds = vec![(profile.clone(), platform)];
        self
    }

    /// The scenes on each of [`Profile::ALL`] with each of [`Platform::ALL`].
    pub fn everywhere(mut self) -> Self {
        let of = |profile: Profile| Platform::ALL.map(|platform| (profile.clone(), platform));
        self.kinds = Profile::ALL.into_iter().flat_map(of).collect();
        self
    }

    /// Only the scene of this name.
    pub fn scene(mut self, name: &str) -> Self {
        self.scene = Some(name.to_owned());
        self
    }

    /// The longer setting: more seeds and images, 500 single faults, and 200 orders.
    pub fn long(mut self) -> Self {
        self.setting = Setting::Long;
        self
    }

    /// The names of all scenes, in their order, each with its promise.
    #[must_use]
    pub fn names() -> Vec<(&'static str, &'static str)> {
        let scenes = scenes::<S>().into_iter();
        scenes.map(|scene| (scene.name, scene.promise)).collect()
    }

    /// Plays the scenes, two at a time.
    ///
    /// # Panics
    ///
    /// If no scene has the name.
    pub fn run(&self) -> Report {
        self.run_until(2, |_| false)
    }

    /// Plays the scenes one after the other, until one fails.
    ///
    /// # Panics
    ///
    /// As [`run`](Self::run).
    pub fn find(&self) -> Report {
        self.run_until(1, |outcome| matches!(outcome, Outcome::Failed(_)))
    }

    fn run_until(&self, threads: usize, is_last: impl Fn(&Outcome) -> bool + Sync) -> Report {
        let is_chosen = |scene: &Scene<S>| {
            let name = self.scene.as_deref();
            name.is_none_or(|name| name == scene.name)
        };
        let mut chosen = scenes::<S>();
        chosen.retain(is_chosen);
        let all: Vec<_> = Self::names().into_iter().map(|(name, _)| name).collect();
        assert!(
            !chosen.is_empty(),
            "no scene has the name {:?}: {}",
            self.scene,
            all.join(", ")
        );
        let opens: Vec<_> = self.kinds.iter().map(|kind| self.opens(kind)).collect();
        let shape = self.subject.shape();
        let is_able = |scene: &&Scene<S>| !scene.needs.iter().any(|needed| shape.lacks(*needed));
        let first = chosen.iter().find(is_able).map_or("", |scene| scene.name);
        let jobs: Vec<_> = chosen
            .iter()
            .flat_map(|scene| self.kinds.iter().zip(&opens).map(move |kind| (scene, kind)))
            .collect();
        let (next, told) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
        let is_over =
            |told: &BTreeMap<usize, Played>| told.values().any(|told| is_last(&told.outcome));
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some((scene, (kind, opens))) = jobs.get(number) else {
                    return;
                };
                if is_over(&locked(&told)) {
                    return;
                }
                // A panic in a task of the log prints the name.
                let name = format!("{} on {}, {}", scene.name, kind.0.name(), kind.1);
                let one = thread::scope(|scope| {
                    let play = || self.play(scene, kind, opens, first);
                    let thread = thread::Builder::new().name(name).spawn_scoped(scope, play);
                    let thread = thread.expect("the system has a thread");
                    thread.join().expect("a scene's panic is caught")
                });
                locked(&told).insert(number, one);
            }
        };
        let begun = Instant::now();
        thread::scope(|scope| {
            let threads = Vec::from_iter((0..threads).map(|_| scope.spawn(work)));
            for thread in threads {
                thread.join().expect("a scene's panic is caught");
            }
        });
        let told = told.into_inner().expect("no thread has panicked");
        Report {
            played: told.into_values().collect(),
            time: begun.elapsed(),
        }
    }

    /// Opens the log on undisturbed hosts of this kind.
    fn opens(&self, (profile, platform): &(Profile, Platform)) -> Opens {
        let fabric = Fabric::seeded(profile.clone(), 1);
        let executor = Executor::new(S::BLOCKS, &fabric);
        let world = World::new(&self.subject, &fabric, *platform, None);
        let open = async {
            world.only(&world.all()).await;
            let opened = world.try_open(&world.client().clone()).await;
            opened.err().map(|error| error + &world.returned())
        };
        let opened = catch_unwind(AssertUnwindSafe(|| executor.run(open)));
        let opens = match world.judged(opened) {
            Ok(None) => Opens::Yes,
            Ok(Some(why)) => Opens::No(why),
            Err(panic) => Opens::Fails([text_of(&*panic), world.course()].join("\n")),
        };
        // A panic of a server comes up here again.
        let _ended = catch_unwind(AssertUnwindSafe(|| executor.run(world.stop())));
        opens
    }

    fn play(
        &self,
        scene: &Scene<S>,
        (profile, platform): &(Profile, Platform),
        opens: &Opens,
        first: &str,
    ) -> Played {
        let (begun, shape) = (Instant::now(), self.subject.shape());
        let stage = Stage {
            subject: Arc::clone(&self.subject),
            profile: profile.clone(),
            platform: *platform,
            setting: self.setting,
            part: RefCell::default(),
            tally: Cell::default(),
            acts: RefCell::default(),
        };
        let lacks = scene.needs.iter().find(|needed| shape.lacks(**needed));
        let mut promise = scene.promise;
        let outcome = match (lacks, opens) {
            (Some(lacks), _) => Outcome::NotTried(format!("the log is not able {lacks}")),
            (None, Opens::No(why)) => Outcome::NotTried(format!("the log does not open: {why}")),
            // It would fail so in each scene.
            (None, Opens::Fails(why)) if scene.name == first => {
                promise = OPENS;
                stage.part.replace("before any disturbance".to_owned());
                Outcome::Failed(why.clone())
            }
            (None, Opens::Fails(_)) => {
                Outcome::NotTried(format!("its opening fails: see the scene {first}"))
            }
            (None, Opens::Yes) => {
                let played = catch_unwind(AssertUnwindSafe(|| (scene.play)(&stage)));
                match played {
                    Ok(()) if stage.tally.get().durable == 0 => Outcome::NothingDurable,
                    Ok(()) => Outcome::Passed,
                    Err(panic) => {
                        let (why, acts) = (text_of(&*panic), stage.acts.take());
                        Outcome::Failed([why, acts].join("\n").trim_end().to_owned())
                    }
                }
            }
        };
        Played {
            scene: scene.name,
            promise,
            profile: profile.name(),
            platform: *platform,
            part: stage.part.into_inner(),
            outcome,
            tally: stage.tally.get(),
            time: begun.elapsed(),
        }
    }
}

/// Whether a log opens where nothing disturbs it.
enum Opens {
    Yes,
    /// It returns this error.
    No(String),
    /// It panics, or breaks a promise already.
    Fails(String),
}

/// The outcome of a scene.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The log has kept the promise.
    Passed,
    /// The scene has no meaning for this log, for this reason.
    NotTried(String),
    /// No record was durable, so there was nothing to lose.
    NothingDurable,
    /// The log has broken the promise: the simulator's report.
    Failed(String),
}

/// A scene on hosts of one kind, and its outcome.
#[derive(Clone, Debug)]
pub struct Played {
    scene: &'static str,
    promise: &'static str,
    profile: &'static str,
    platform: Platform,
    part: String,
    outcome: Outcome,
    tally: Tally,
    time: Duration,
}

impl Played {
    /// The name of the scene.
    #[must_use]
    pub fn scene(&self) -> &'static str {
        self.scene
    }

    /// The platform of the servers.
    #[must_use]
    pub fn platform(&self) -> Platform {
        self.platform
    }

    /// Its outcome.
    #[must_use]
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The real time that it took.
    #[must_use]
    pub fn time(&self) -> Duration {
        self.time
    }
}

impl Played {
    /// The outcome in a line.
    fn line(&self) -> String {
        let Tally {
            runs,
            appended,
            durable,
            images,
            recoveries,
        } = self.tally;
        let outcome = match &self.outcome {
            Outcome::Passed => format!(
                "passed, in {:.1?}. {runs} runs, {durable} of {appended} records durable, {images} images, \
                 {recoveries} recoveries",
                self.time
            ),
            Outcome::NotTried(why) => format!("not tried, as {why}"),
            Outcome::NothingDurable => {
                format!("no record of {appended} was durable in {runs} runs")
            }
            Outcome::Failed(_) => format!("failed. Run it alone with {SCENE}={}", self.scene),
        };
        format!(
            "{} on {}, {}: {outcome}",
            self.scene, self.profile, self.platform
        )
    }
}

impl fmt::Display for Played {
    /// The report of a failure, or a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            scene,
            promise,
            profile,
            platform,
            part,
            ..
        } = self;
        match &self.outcome {
            Outcome::Failed(why) => write!(
                f,
                "{promise}\nThis was broken in the scene {scene} on {profile}, {platform}, {part}. Run it alone with \
                 {SCENE}={scene}\n{why}"
            ),
            _ => f.write_str(&self.line()),
        }
    }
}

/// The outcomes of the scenes.
#[derive(Clone, Debug)]
pub struct Report {
    played: Vec<Played>,
    time: Duration,
}

impl Report {
    /// Each scene on each kind of hosts.
    #[must_use]
    pub fn scenes(&self) -> &[Played] {
        &self.played
    }

    /// The first scene that has failed.
    #[must_use]
    pub fn failure(&self) -> Option<&Played> {
        let has_failed = |told: &&Played| matches!(told.outcome, Outcome::Failed(_));
        self.played.iter().find(has_failed)
    }

    /// A line for each scene that was tried, one for those that were not for the same reason, and one
    /// for all.
    fn summary(&self) -> String {
        let count =
            |is: fn(&Outcome) -> bool| self.played.iter().filter(|told| is(&told.outcome)).count();
        let all = format!(
            "{} passed, {} failed, {} without a durable record, {} not tried, in {:.1?}",
            count(|of| matches!(of, Outcome::Passed)),
            count(|of| matches!(of, Outcome::Failed(_))),
            count(|of| matches!(of, Outcome::NothingDurable)),
            count(|of| matches!(of, Outcome::NotTried(_))),
            self.time
        );
        let is_tried = |told: &&Played| !matches!(told.outcome, Outcome::NotTried(_));
        let lines = self.played.iter().filter(is_tried).map(Played::line);
        let lines = lines.chain(self.not_tried()).chain([all]);
        Vec::from_iter(lines).join("\n")
    }

    /// A line for the scenes that are not tried for the same reason on hosts of the same kind.
    fn not_tried(&self) -> Vec<String> {
        let mut scenes: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for told in &self.played {
            if let Outcome::NotTried(why) = &told.outcome {
                let (profile, platform) = (told.profile, told.platform);
                let reason = format!("on {profile}, {platform}, as {why}");
                scenes.entry(reason).or_default().push(told.scene);
            }
        }
        let line = |(reason, scenes): (String, Vec<&str>)| {
            format!("not tried {reason}: {}", scenes.join(", "))
        };
        scenes.into_iter().map(line).collect()
    }

    /// Prints a line for each scene. Panics with the first failure if the log has broken a promise, or
    /// if no record was durable in a scene, or if no scene was tried.
    ///
    /// # Panics
    ///
    /// As above.
    #[track_caller]
    pub fn check(&self) {
        println!("{}", self.summary());
        if let Some(told) = self.failure() {
            panic!("{told}");
        }
        let is_empty = |told: &&Played| told.outcome == Outcome::NothingDurable;
        if let Some(told) = self.played.iter().find(is_empty) {
            panic!("{told}");
        }
        let has_passed = |told: &Played| told.outcome == Outcome::Passed;
        let is_tried = self.played.iter().any(has_passed);
        assert!(is_tried, "no scene was tried. {}", self.played[0]);
    }
}

impl fmt::Display for Report {
    /// A line for each scene, and then each failure.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.summary())?;
        let has_failed = |told: &&Played| matches!(told.outcome, Outcome::Failed(_));
        let mut failures = self.played.iter().filter(has_failed);
        failures.try_for_each(|told| write!(f, "\n\n{told}"))
    }
}
