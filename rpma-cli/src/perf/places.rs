//! [`Places`]: the parts of the server's memory that operations use, in turn.

use std::sync::Arc;

use rpma::{MrRemote, RemoteSlice};

use crate::settings::{Op, Setting};
use crate::wire::FIRST;

/// The most groups of a connection. They take turns.
const MOST: u64 = 1024;
/// Operations begin at cache lines.
const LINE: u64 = 64;
/// The pointer of a commit, on a cache line of its own.
const POINTER: u64 = 64;

/// The remote parts of operations that are posted together. They are neighbours.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) operations: Vec<RemoteSlice>,
    /// All of them.
    pub(super) all: RemoteSlice,
    /// The offset of the first one in the memory.
    pub(super) at: u64,
    /// Their number among the groups of the connection.
    pub(super) number: usize,
}

/// The groups of a connection.
#[derive(Clone, Debug)]
pub(super) struct Places {
    groups: Vec<Arc<Group>>,
    next: usize,
    len: usize,
}

impl Places {
    /// The part of a connection's groups, of a memory that is large enough for [`needed`] bytes.
    pub(super) fn new(memory: &MrRemote, setting: &Setting, lane: u32) -> rpma::Result<Self> {
        let (size, lanes) = (group_size(setting), u64::from(setting.connections));
        let room = memory.get_size().saturating_sub(first(setting));
        let count = (room / size / lanes).clamp(1, MOST);
        let from = first(setting) + u64::from(lane) * count * size;
        let groups = (0..count).map(|number| group(memory, setting, number, from + number * size));
        Ok(Self {
            groups: groups.collect::<rpma::Result<_>>()?,
            next: 0,
            len: setting.size as usize,
        })
    }

    /// The next group. There is one at least.
    pub(super) fn take(&mut self) -> Arc<Group> {
        let now = self.next;
        self.next = (now + 1) % self.groups.len();
        Arc::clone(&self.groups[now])
    }

    /// The bytes of an operation.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The bytes from the begin of an operation to that of the next one.
    pub(super) fn stride(&self) -> usize {
        stride(self.len as u64) as usize
    }
}

/// The offset of a connection's pointer in the server's memory.
pub(super) fn pointer_at(lane: u32) -> u64 {
    FIRST + POINTER * u64::from(lane)
}

/// The bytes of the server's memory that the operations of a setting need.
pub(super) fn needed(setting: &Setting) -> u64 {
    first(setting) + group_size(setting) * u64::from(setting.connections)
}

/// The place of the first group, after the pointers of commits.
fn first(setting: &Setting) -> u64 {
    match setting.op {
        Op::Commit => pointer_at(setting.connections),
        _ => FIRST,
    }
}

fn group_size(setting: &Setting) -> u64 {
    stride(setting.size) * u64::from(setting.batch)
}

/// Neighbours share no cache line.
pub(super) fn stride(len: u64) -> u64 {
    len.next_multiple_of(LINE)
}

fn group(memory: &MrRemote, setting: &Setting, number: u64, at: u64) -> rpma::Result<Arc<Group>> {
    let (len, stride) = (setting.size, stride(setting.size));
    let places = (0..u64::from(setting.batch)).map(|number| at + number * stride);
    let operations = places.map(|at| memory.slice(at..at + len));
    Ok(Arc::new(Group {
        operations: operations.collect::<rpma::Result<_>>()?,
        all: memory.slice(at..at + group_size(setting) - stride + len)?,
        at,
        number: number as usize,
    }))
}
