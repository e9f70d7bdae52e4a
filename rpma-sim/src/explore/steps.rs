//! The steps of threads in a run, and which of them exchange without a difference.

/// All that a thread has used between two turns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Uses {
    /// A bit for each host: its objects, as they are made, connected and ended.
    pub(crate) hosts: u64,
    /// The same for the queues of its devices.
    pub(crate) devices: u64,
    /// The locks and channels of the program.
    pub(crate) shared: bool,
    /// An event: a check may look.
    pub(crate) event: bool,
    /// The thread may promise more after it.
    pub(crate) promises: bool,
    /// Memory to which devices write.
    pub(crate) looks: bool,
}

impl Uses {
    pub(crate) fn add(&mut self, more: Self) {
        self.hosts |= more.hosts;
        self.devices |= more.devices;
        self.shared |= more.shared;
        self.event |= more.event;
        self.promises |= more.promises;
        self.looks |= more.looks;
    }

    /// Whether the order of two steps makes a difference.
    pub(crate) fn conflicts(self, other: Self) -> bool {
        let sees =
            |one: Self, other: Self| one.event && (other.event || other.promises || other.looks);
        self.hosts & other.hosts != 0
            || self.devices & other.devices != 0
            || self.shared && other.shared
            || sees(self, other)
            || sees(other, self)
    }
}

pub(crate) fn bit(host: usize) -> u64 {
    1 << (host % 64)
}

/// A turn of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) thread: u64,
    /// The number of choices before it.
    pub(crate) choices: usize,
    /// It has let others go on, for instance because it waits for a lock of the library.
    pub(crate) waits: bool,
    pub(crate) uses: Uses,
}

/// The turns of one thread, one after the other.
pub(crate) struct Block {
    pub(crate) thread: u64,
    /// The first one.
    pub(crate) first: usize,
    pub(crate) uses: Uses,
}

pub(crate) fn blocks(steps: &[Step], from: usize) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for (at, step) in steps.iter().enumerate().skip(from) {
        match blocks.last_mut() {
            Some(block) if block.thread == step.thread => block.uses.add(step.uses),
            _ => blocks.push(Block {
                thread: step.thread,
                first: at,
                uses: step.uses,
            }),
        }
    }
    blocks
}
