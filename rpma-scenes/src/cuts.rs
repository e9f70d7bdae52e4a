//! Losses of power: a program runs, the power of all servers fails at each event, and the next
//! writers recover from the images that may be left.
//!
//! A recovery runs in the middle of the check of an event. The check may not use its fabric, so each
//! recovery has a fabric and a thread of its own. Only so the simulator's report shows the lost bytes:
//! it finds them by calling the check again.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use rpma::sim::{Cut, Fabric, Image, Loss, Pmem, Profile};

use crate::exec::Executor;
use crate::model::Model;
use crate::subject::Subject;
use crate::world::{World, fail, name, names, text_of};

/// The images of an event that are looked at.
const IMAGES: usize = 12;

/// Checks the images of a run.
pub(crate) struct Cuts<S: Subject> {
    subject: Arc<S>,
    profile: Profile,
    world: World<S>,
    pmems: Vec<Pmem>,
    epoch: u64,
    /// Of the servers with which the next writers begin.
    shift: usize,
    /// One of so many images is recovered from.
    nth: u64,
    /// All images, and those from which the next writers have recovered.
    seen: HashSet<u64>,
    passed: HashSet<u64>,
    /// The acts until a failure. After it, parts of its image are tried.
    failed_after: Option<String>,
    recoveries: usize,
}

impl<S: Subject> Cuts<S> {
    pub(crate) fn new(world: &World<S>, subject: &Arc<S>, profile: &Profile, nth: u64) -> Self {
        Self {
            subject: Arc::clone(subject),
            profile: profile.clone(),
            world: world.clone(),
            pmems: world.pmems(),
            epoch: world.last_epoch() + 10,
            shift: world.fabric().seed().unwrap_or(0) as usize / world.shape().servers,
            nth,
            seen: HashSet::new(),
            passed: HashSet::new(),
            failed_after: None,
            recoveries: 0,
        }
    }

    /// The acts until the failure.
    pub(crate) fn failed_after(&self) -> Option<&str> {
        self.failed_after.as_deref()
    }

    pub(crate) fn recoveries(&self) -> usize {
        self.recoveries
    }

    /// Runs a program, and looks at each event. Returns the loss that is found.
    pub(crate) fn find<T>(&mut self, fabric: &Fabric, run: impl FnOnce() -> T) -> Result<T, Loss> {
        fabric.find_loss(|cut| self.look(cut), run)
    }

    fn look(&mut self, cut: &Cut<'_>) {
        let model = self.world.model().clone();
        let pmems = Vec::from_iter(&self.pmems);
        for images in cut.joint_images_up_to(&pmems, IMAGES) {
            let memories: Vec<&[u8]> = images.iter().map(Image::bytes).collect();
            let mut hash = DefaultHasher::new();
            (model.version(), &memories).hash(&mut hash);
            let hash = hash.finish();
            let has_failed = self.failed_after.is_some();
            if self.passed.contains(&hash) || !has_failed && !self.is_chosen(hash) {
                continue;
            }
            self.recoveries += 1;
            if let Err(why) = self.recover(&memories, model.clone(), hash) {
                let acts = || self.world.course();
                self.failed_after.get_or_insert_with(acts);
                fail(why);
            }
            self.passed.insert(hash);
        }
    }

    /// Whether a new image is one of `nth`. The first one is.
    fn is_chosen(&mut self, hash: u64) -> bool {
        self.seen.insert(hash) && (self.seen.len() as u64 - 1) % self.nth == 0
    }

    /// The next writers recover, on a fabric of their own.
    fn recover(&self, memories: &[&[u8]], model: Model, draw: u64) -> Result<(), String> {
        let memories: Vec<Vec<u8>> = memories.iter().map(|memory| memory.to_vec()).collect();
        thread::scope(|scope| {
            let run = || recover(self, &memories, model, draw);
            let thread = thread::Builder::new().name("recovery".to_owned());
            let thread = thread
                .spawn_scoped(scope, run)
                .expect("the system has a thread");
            thread.join().unwrap_or_else(|panic| Err(text_of(&*panic)))
        })
    }
}

/// Any servers that are enough for a writer have the records, and so have others after them.
fn recover<S: Subject>(
    cuts: &Cuts<S>,
    memories: &[Vec<u8>],
    model: Model,
    draw: u64,
) -> Result<(), String> {
    // No scene has this seed. So the hosts of the image have another boot, and draw other numbers.
    let fabric = Fabric::seeded(cuts.profile.clone(), u64::MAX);
    let executor = Executor::new(S::BLOCKS, &fabric);
    let world = World::new(
        &cuts.subject,
        &fabric,
        cuts.world.platform(),
        Some(memories),
    );
    let world = world.with_model(model, cuts.epoch);
    let recovery = async {
        // A log without a durable record may be on too few servers yet.
        let has_log = world.model().durable() > 0;
        let first = (draw as usize).wrapping_add(cuts.shift);
        opens_before(&world, first).await;
        let lacks = opens_lacking(&world).await;
        for round in 0..2 {
            let up = match lacks {
                // One of them counts as one that has lost its memory.
                true => world.list(),
                false => world.enough(first.wrapping_add(round)),
            };
            world.only(&up).await;
            match world.try_open(&world.client().clone()).await {
                Ok(writer) => drop(writer),
                Err(_) if !has_log => break,
                Err(error) => fail(format!(
                    "the next writer cannot open the log, and {} run: {error}",
                    names(&up)
                )),
            }
            world.cut_all().await;
        }
    };
    let recovered = catch_unwind(AssertUnwindSafe(|| executor.run(recovery)));
    world.judged(recovered).map_err(|panic| {
        let why = text_of(&*panic);
        format!(
            "{why}\n{}\n{}",
            left(&world, memories),
            world.course_of_recovery()
        )
    })
}

/// The records of each server in an image, and whether the recovery had all of them.
fn left<S: Subject>(world: &World<S>, memories: &[Vec<u8>]) -> String {
    let model = world.model();
    let mut text = "The records whose bytes are in the image:".to_owned();
    let mut whole = Vec::new();
    for (n, memory) in memories.iter().enumerate() {
        text += &format!("\n    {}: {}", name(n), model.records_in(memory));
        if model.is_whole_in(memory) && world.is_serving(n) {
            whole.push(n);
        }
    }
    if !whole.is_empty() {
        text += &format!(
            "\n    {} ran at the last opening, and had all that has to be read: look at the recovery, and not only at \
             flushes.",
            names(&whole)
        );
    }
    text
}

/// Some servers of the list before the last change: with them alone the log opens with all records,
/// or does not open.
async fn opens_before<S: Subject>(world: &World<S>, first: usize) {
    let Some(before) = world.model().before().map(<[_]>::to_vec) else {
        return;
    };
    let up = before.iter().cycle().skip(first % before.len());
    let up: Vec<_> = up.take(world.shape().quorum()).copied().collect();
    world.only(&up).await;
    let host = world.client().clone();
    drop(world.try_open_with(&host, &before).await);
    world.cut_all().await;
}

/// Servers that lack records, if there are some: with them alone the log opens with all records, or
/// does not open.
async fn opens_lacking<S: Subject>(world: &World<S>) -> bool {
    let up = world.model().lacking().to_vec();
    if !up.is_empty() {
        world.only(&up).await;
        drop(world.try_open(&world.client().clone()).await);
        world.cut_all().await;
    }
    !up.is_empty()
}
