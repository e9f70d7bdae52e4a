//! Images of a memory: the contents that a power cut may leave.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::base::Base;
use super::lines::{LINE, Line, Lines};
use super::memory::{Memory, ROOT, publish, withdraw};
use super::platform::Platform;
use super::pmem::Tracked;
use super::random::Random;
use super::store::{PAGE, Store};
use crate::order::mix;

/// The bytes of images, by the numbers of their memories.
pub(crate) type Bytes = BTreeMap<usize, Store>;

/// The state of a cut that images need.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'c> {
    pub(crate) pmems: &'c [Tracked],
    pub(crate) only: Option<&'c Bytes>,
    pub(crate) shown: &'c RefCell<Bytes>,
    pub(crate) images: &'c Cell<u64>,
    pub(crate) shares: &'c RefCell<Shares>,
    pub(crate) digests: Option<&'c RefCell<Vec<u64>>>,
}

/// The shares of memories, by their numbers: a check was shown images of these together.
pub(crate) type Shares = BTreeMap<Vec<usize>, Share>;

/// How many of a memory's images a check was shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) shown: usize,
    /// How many it would have been shown.
    pub(crate) offered: usize,
    /// How many there are, or more if not all of them are known.
    pub(crate) possible: usize,
    pub(crate) all_are_known: bool,
}

/// The contents that a memory may have after a power cut, one after the other: see
/// [`Cut::images`](crate::Cut::images).
pub struct Images<'c>(JointImages<'c>);

/// The contents that several memories may have after a power cut, one after the other: see
/// [`Cut::joint_images`](crate::Cut::joint_images).
pub struct JointImages<'c> {
    cut: Shown<'c>,
    indices: Vec<usize>,
    plan: Plan,
    next: usize,
}

impl<'c> Images<'c> {
    pub(crate) fn new(cut: Shown<'c>, index: usize, plan: Plan) -> Self {
        Self(JointImages::new(cut, vec![index], plan))
    }
}

impl<'c> JointImages<'c> {
    pub(crate) fn new(cut: Shown<'c>, indices: Vec<usize>, plan: Plan) -> Self {
        Self {
            cut,
            indices,
            plan,
            next: 0,
        }
    }

    fn lines(&self) -> Vec<&'c Lines> {
        lines_of(self.cut.pmems, &self.indices)
    }
}

pub(crate) fn lines_of<'c>(pmems: &'c [Tracked], indices: &[usize]) -> Vec<&'c Lines> {
    indices.iter().map(|index| &pmems[*index].lines).collect()
}

impl Drop for JointImages<'_> {
    fn drop(&mut self) {
        let share = Share {
            shown: self.next,
            offered: self.plan.count,
            possible: self.plan.total,
            all_are_known: self.plan.is_all,
        };
        let mut shares = self.cut.shares.borrow_mut();
        let before = shares.entry(self.indices.clone()).or_insert(share);
        if before.shown < share.shown {
            *before = share;
        }
    }
}

impl fmt::Debug for Images<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Images").field(&self.0).finish()
    }
}

impl fmt::Debug for JointImages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JointImages")
            .field("next", &self.next)
            .field("count", &self.plan.count)
            .finish_non_exhaustive()
    }
}

impl Iterator for Images<'_> {
    type Item = Image;

    fn next(&mut self) -> Option<Image> {
        self.0.next()?.pop()
    }
}

impl Iterator for JointImages<'_> {
    /// An image of each memory, in the order in which they were named.
    type Item = Vec<Image>;

    fn next(&mut self) -> Option<Vec<Image>> {
        let memories = self.lines();
        let left: Vec<Store> = match self.cut.only {
            Some(_) if self.next > 0 => return None,
            Some(only) => {
                let known = self.indices.iter().zip(memories);
                let image = |(index, lines): (&usize, &Lines)| match only.get(index) {
                    Some(store) => store.clone(),
                    // It was not looked at when the check failed.
                    None => lines.newest().clone(),
                };
                known.map(image).collect()
            }
            None => self.plan.image(&memories, self.next)?,
        };
        self.next += 1;
        self.cut.images.set(self.cut.images.get() + 1);
        if let Some(digests) = self.cut.digests {
            let all = self.indices.iter().zip(&left);
            let digest = all.fold(0, |hash, (index, store)| {
                mix(hash ^ *index as u64 ^ store.digest())
            });
            digests.borrow_mut().push(digest);
        }
        let mut shown = self.cut.shown.borrow_mut();
        let images = self.indices.iter().zip(left).map(|(index, store)| {
            shown.insert(*index, store.clone());
            Image {
                base: self.cut.pmems[*index].base.clone(),
                store,
                memory: OnceLock::new(),
                path: OnceLock::new(),
            }
        });
        Some(images.collect())
    }
}

/// Which images there are of some memories together.
#[derive(Default)]
pub(crate) struct Plan {
    /// Each undecided line, after the number of its memory.
    lines: Vec<(usize, usize)>,
    outcomes: Vec<Vec<Line>>,
    /// The first choices, if there are too many combinations.
    chosen: Vec<Chosen>,
    /// How many are combinations of the lines' outcomes, all of them.
    combined: usize,
    count: usize,
    /// How many combinations there are; more images if these are not all.
    total: usize,
    is_all: bool,
    random: Option<Random>,
}

/// An image that is likely to matter. Lines are numbers in [`Plan::lines`].
enum Chosen {
    /// All writes to these lines, and no write to the others; or the other way.
    Whole { lines: Vec<usize>, are_there: bool },
    /// An outcome of one line, with no write or all writes of the others.
    Torn {
        line: usize,
        outcome: usize,
        others: bool,
    },
}

/// The bits of a subset of the memories: the memory `n` has the bit `n % SUBSETS`.
const SUBSETS: usize = 16;

/// All writes to some memories, and no write to the others: all such images, or some.
fn of_memories(lines: &[(usize, usize)], count: usize) -> impl Iterator<Item = Chosen> + use<'_> {
    let subsets = 1..(1_usize << count.min(SUBSETS)) - 1;
    // One memory has no part.
    subsets.filter(move |_| count > 1).map(move |subset| {
        let is_in = |memory: usize| subset >> (memory % SUBSETS) & 1 == 1;
        let those = (0..lines.len()).filter(|line| is_in(lines[*line].0));
        Chosen::Whole {
            lines: those.collect(),
            are_there: true,
        }
    })
}

/// The images that are likely to matter, of so many lines: each kind in turn, as there may be more
/// than the limit.
fn likely(
    outcomes: &[Vec<Line>],
    newest: &[&Line],
    limit: usize,
    random: &mut Random,
) -> Vec<Chosen> {
    let count = outcomes.len();
    let whole = |lines: Vec<usize>, are_there| Chosen::Whole { lines, are_there };
    // From any line on.
    let first = random.below(count);
    let order: Vec<usize> = (first..count).chain(0..first).collect();
    let singles = order
        .iter()
        .flat_map(|line| [false, true].map(|there| whole(vec![*line], there)));
    let parts = (2..count.saturating_sub(1))
        .flat_map(|end| [true, false].map(|there| whole((0..end).collect(), there)));
    let mut pairs = Vec::new();
    while count > 2 && pairs.len() < limit {
        let one = random.below(count);
        let other = (one + 1 + random.below(count - 1)) % count;
        pairs.extend([false, true].map(|there| whole(vec![one, other], there)));
    }
    let torn = order.iter().flat_map(|line| {
        let is_torn = |(number, outcome): &(usize, &Line)| *number > 0 && *outcome != newest[*line];
        let torn = outcomes[*line].iter().enumerate().filter(is_torn);
        torn.flat_map(|(outcome, _)| {
            [false, true].map(|others| Chosen::Torn {
                line: *line,
                outcome,
                others,
            })
        })
    });
    let mut kinds: [Box<dyn Iterator<Item = Chosen> + '_>; 4] = [
        Box::new(singles),
        Box::new(parts),
        Box::new(pairs.into_iter()),
        Box::new(torn),
    ];
    let mut chosen = Vec::new();
    while chosen.len() < limit {
        let before = chosen.len();
        chosen.extend(kinds.iter_mut().filter_map(Iterator::next));
        if chosen.len() == before {
            break;
        }
    }
    chosen
}

impl Plan {
    pub(crate) fn new(memories: &[&Lines], limit: usize, mut random: Random) -> Self {
        let mut is_all = true;
        let (mut lines, mut outcomes) = (Vec::new(), Vec::new());
        for (memory, known) in memories.iter().enumerate() {
            // Its remaining contents are not made of lines.
            if known.platform == Platform::Volatile {
                is_all = false;
                continue;
            }
            for (line, _) in known.pending() {
                let (of_line, is_complete) = known.outcomes(line, &mut random);
                is_all &= is_complete;
                lines.push((memory, line));
                outcomes.push(of_line);
            }
        }
        let counts = outcomes.iter().map(|of_line| of_line.len());
        let total = counts.fold(1_usize, usize::saturating_mul);
        let mut chosen = Vec::new();
        if total > limit && !lines.is_empty() {
            let newest = |(memory, line): &(usize, usize)| newest_of(memories[*memory], *line);
            let newest: Vec<&Line> = lines.iter().map(newest).collect();
            chosen = of_memories(&lines, memories.len()).take(limit).collect();
            chosen.extend(likely(&outcomes, &newest, limit, &mut random));
        }
        let is_one = memories.len() == 1 && memories[0].platform == Platform::Volatile;
        Self {
            lines,
            outcomes,
            chosen,
            combined: if total <= limit && !is_one { total } else { 0 },
            count: match is_one {
                true => limit.min(2),
                false if is_all => total.min(limit),
                false => limit,
            },
            total,
            is_all,
            random: Some(random),
        }
    }

    /// One of all images of a memory.
    pub(crate) fn any(lines: &Lines, mut random: Random) -> Store {
        let number = 2 + random.below(usize::MAX - 2);
        let mut plan = Self::new(&[lines], usize::MAX, random);
        // Not those that are first in a list, but by chance each line for itself.
        plan.chosen.clear();
        plan.combined = 0;
        plan.count = usize::MAX;
        let left = plan.image(&[lines], number).and_then(|mut all| all.pop());
        left.expect("it is below the limit")
    }

    fn image(&mut self, memories: &[&Lines], number: usize) -> Option<Vec<Store>> {
        if number >= self.count {
            return None;
        }
        let random = self.random.as_mut()?;
        let start = |lines: &&Lines| match lines.platform {
            Platform::Volatile => volatile(lines.newest(), number, random),
            _ => lines.durable().clone(),
        };
        let mut images: Vec<Store> = memories.iter().map(start).collect();
        let mut put = |(memory, line): (usize, usize), bytes: &Line| {
            images[memory].put(line, u64::MAX, bytes);
        };
        let newest = |(memory, line): (usize, usize)| newest_of(memories[memory], line);
        if number < self.combined {
            let mut rest = number;
            for (line, outcomes) in self.lines.iter().zip(&self.outcomes) {
                put(*line, &outcomes[rest % outcomes.len()]);
                rest /= outcomes.len();
            }
            return Some(images);
        }
        let chosen = number.checked_sub(2).and_then(|at| self.chosen.get(at));
        match (number, chosen) {
            (0, _) if self.combined == 0 => {}
            (1, _) if self.combined == 0 => {
                self.lines.iter().for_each(|line| put(*line, newest(*line)))
            }
            (_, Some(Chosen::Whole { lines, are_there })) => {
                for (at, line) in self.lines.iter().enumerate() {
                    if lines.contains(&at) == *are_there {
                        put(*line, newest(*line));
                    }
                }
            }
            (
                _,
                Some(Chosen::Torn {
                    line,
                    outcome,
                    others,
                }),
            ) => {
                if *others {
                    self.lines.iter().for_each(|line| put(*line, newest(*line)));
                }
                put(self.lines[*line], &self.outcomes[*line][*outcome]);
            }
            (_, None) => {
                // Some of several memories are likely to have all or no writes.
                let kinds: Vec<usize> = memories.iter().map(|_| random.below(4)).collect();
                for (memory, line) in &self.lines {
                    match kinds[*memory] {
                        0 if memories.len() > 1 => {}
                        1 if memories.len() > 1 => {
                            put((*memory, *line), newest((*memory, *line)));
                        }
                        _ => put((*memory, *line), &memories[*memory].outcome(*line, random)),
                    }
                }
            }
        }
        Some(images)
    }
}

fn newest_of(lines: &Lines, line: usize) -> &Line {
    lines.newest().line(line)
}

/// The contents of volatile memory after a power cut: zeros, or random bytes. In a large memory,
/// only the pages that were written have random bytes.
fn volatile(newest: &Store, number: usize, random: &mut Random) -> Store {
    const LARGE: usize = 16 * PAGE;
    let len = newest.len();
    let mut store = Store::zeros(len);
    if number == 0 {
        return store;
    }
    let mut fill = |page: usize| {
        for line in page * PAGE / LINE..(page + 1) * PAGE / LINE {
            store.put(line, u64::MAX, &[(); LINE].map(|()| random.next() as u8));
        }
    };
    if len > LARGE {
        newest.pages().for_each(|(page, _)| fill(page))
    } else {
        (0..len / PAGE).for_each(fill)
    }
    store
}

/// The contents that a power cut may leave of a memory. Its `Debug` has the number of bytes, and
/// the first places that are not zero.
pub struct Image {
    store: Store,
    base: Base,
    /// The bytes, mapped for [`bytes`](Self::bytes).
    memory: OnceLock<Memory>,
    path: OnceLock<PathBuf>,
}

impl Image {
    /// The bytes that are left.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.memory
            .get_or_init(|| self.base.map(&self.store))
            .bytes()
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Returns a path for the program's own recovery. `PmemMap::open` maps a copy of the image
    /// there, until the image is dropped.
    #[must_use]
    pub fn path(&self) -> &Path {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        self.path.get_or_init(|| {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = PathBuf::from(format!("{ROOT}/image/{number}"));
            publish(&path, Some(Arc::new(self.base.map(&self.store))), None);
            path
        })
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// How many places are shown. An image may have gigabytes.
        const SHOWN: usize = 4;
        let places = self.store.places(SHOWN + 1);
        let shown = &places[..places.len().min(SHOWN)];
        let mut text = f.debug_struct("Image");
        text.field("len", &self.store.len());
        text.field("not_zero", &shown);
        match places.len() > SHOWN {
            true => text.finish_non_exhaustive(),
            false => text.finish(),
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Some(path) = self.path.get() {
            withdraw(path);
        }
    }
}
