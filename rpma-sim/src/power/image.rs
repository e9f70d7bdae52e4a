//! Images of a memory: what a power cut may leave of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::lines::{LINE, Line, Lines};
use super::memory::{Memory, Owner, ROOT, publish, withdraw};
use super::platform::Platform;
use super::pmem::Tracked;
use super::random::Random;

/// The bytes of images, by the numbers of their memories.
pub(crate) type Bytes = BTreeMap<usize, Arc<[u8]>>;

/// What images need of a cut.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'c> {
    pub(crate) pmems: &'c [Tracked],
    pub(crate) only: Option<&'c Bytes>,
    pub(crate) shown: &'c RefCell<Bytes>,
    pub(crate) images: &'c Cell<u64>,
}

/// What may be left of a memory, one after the other: see [`Cut::images`](crate::Cut::images).
pub struct Images<'c> {
    cut: Shown<'c>,
    index: usize,
    plan: Plan,
    next: usize,
}

impl<'c> Images<'c> {
    pub(crate) fn new(cut: Shown<'c>, index: usize, plan: Plan) -> Self {
        Self {
            cut,
            index,
            plan,
            next: 0,
        }
    }
}

impl fmt::Debug for Images<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Images")
            .field("next", &self.next)
            .field("count", &self.plan.count)
            .finish_non_exhaustive()
    }
}

impl Iterator for Images<'_> {
    type Item = Image;

    fn next(&mut self) -> Option<Image> {
        let lines = &self.cut.pmems[self.index].lines;
        let bytes: Arc<[u8]> = match self.cut.only {
            Some(_) if self.next > 0 => return None,
            Some(only) => match only.get(&self.index) {
                Some(bytes) => Arc::clone(bytes),
                // It was not looked at when the check failed.
                None => lines.newest().into(),
            },
            None => self.plan.image(lines, self.next)?.into(),
        };
        self.next += 1;
        self.cut.images.set(self.cut.images.get() + 1);
        let mut shown = self.cut.shown.borrow_mut();
        shown.insert(self.index, Arc::clone(&bytes));
        Some(Image {
            bytes,
            path: OnceLock::new(),
        })
    }
}

/// Which images there are of a memory.
#[derive(Default)]
pub(crate) struct Plan {
    lines: Vec<usize>,
    outcomes: Vec<Vec<Line>>,
    /// What is looked at first, if there are too many combinations.
    chosen: Vec<Chosen>,
    /// How many are combinations of the lines' outcomes, all of them.
    combined: usize,
    count: usize,
    random: Option<Random>,
}

/// An image that is likely to matter. Lines are numbers in [`Plan::lines`].
enum Chosen {
    /// Of these lines everything, and nothing of the others; or the other way.
    Whole { lines: Vec<usize>, are_there: bool },
    /// An outcome of one line, with nothing or everything of the others.
    Torn {
        line: usize,
        outcome: usize,
        others: bool,
    },
}

/// The images that are likely to matter, of so many lines: each kind in turn, as there may be more than the limit.
fn likely(
    outcomes: &[Vec<Line>],
    newest: &[&[u8]],
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
        let is_torn =
            |(number, outcome): &(usize, &Line)| *number > 0 && outcome[..] != *newest[*line];
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
    pub(crate) fn new(lines: &Lines, limit: usize, mut random: Random) -> Self {
        if lines.platform == Platform::Volatile {
            return Self {
                count: limit.min(2),
                random: Some(random),
                ..Self::default()
            };
        }
        let numbers: Vec<usize> = lines.pending().map(|(line, _)| line).collect();
        let mut is_all = true;
        let outcome = |line: &usize| {
            let (outcomes, is_complete) = lines.outcomes(*line, &mut random);
            is_all &= is_complete;
            outcomes
        };
        let outcomes: Vec<_> = numbers.iter().map(outcome).collect();
        let counts = outcomes.iter().map(|of_line| of_line.len());
        let total = counts.fold(1_usize, usize::saturating_mul);
        let mut chosen = Vec::new();
        if total > limit && !numbers.is_empty() {
            let newest: Vec<&[u8]> = numbers
                .iter()
                .map(|line| &lines.newest()[line * LINE..(line + 1) * LINE])
                .collect();
            chosen = likely(&outcomes, &newest, limit, &mut random);
        }
        Self {
            lines: numbers,
            outcomes,
            chosen,
            combined: if total <= limit { total } else { 0 },
            count: if is_all { total.min(limit) } else { limit },
            random: Some(random),
        }
    }

    /// One of all images of a memory.
    pub(crate) fn any(lines: &Lines, mut random: Random) -> Vec<u8> {
        let number = 2 + random.below(usize::MAX - 2);
        let mut plan = Self::new(lines, usize::MAX, random);
        // Not those that are first in a list, but by chance each line for itself.
        plan.chosen.clear();
        plan.combined = 0;
        plan.count = usize::MAX;
        plan.image(lines, number).expect("it is below the limit")
    }

    /// Number `number` of them.
    fn image(&mut self, lines: &Lines, number: usize) -> Option<Vec<u8>> {
        if number >= self.count {
            return None;
        }
        let random = self.random.as_mut()?;
        if lines.platform == Platform::Volatile {
            let len = lines.durable().len();
            return Some(match number {
                0 => vec![0; len],
                _ => (0..len).map(|_| random.next() as u8).collect(),
            });
        }
        let mut image = lines.durable().to_vec();
        let mut put = |line: usize, bytes: &[u8]| {
            image[line * LINE..(line + 1) * LINE].copy_from_slice(bytes);
        };
        let newest = |line: usize| &lines.newest()[line * LINE..(line + 1) * LINE];
        if number < self.combined {
            let mut rest = number;
            for (line, outcomes) in self.lines.iter().zip(&self.outcomes) {
                put(*line, &outcomes[rest % outcomes.len()]);
                rest /= outcomes.len();
            }
            return Some(image);
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
                for line in &self.lines {
                    put(*line, &lines.outcome(*line, random));
                }
            }
        }
        Some(image)
    }
}

/// What a power cut may leave of a memory.
#[derive(Debug)]
pub struct Image {
    bytes: Arc<[u8]>,
    path: OnceLock<PathBuf>,
}

impl Image {
    /// What is left.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A path by which `PmemMap::open` maps a copy of it, for the program's own recovery, until this is dropped.
    #[must_use]
    pub fn path(&self) -> &Path {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        self.path.get_or_init(|| {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = PathBuf::from(format!("{ROOT}/image/{number}"));
            let memory = Memory::new(&self.bytes, Owner::Image);
            publish(&path, Some(Arc::new(memory)), None);
            path
        })
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Some(path) = self.path.get() {
            withdraw(path);
        }
    }
}
