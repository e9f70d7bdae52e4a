//! [`Places`]: the parts of the server's memory that operations use, in turn.

use std::sync::Arc;

use rpma::{MrRemote, RemoteSlice};

use crate::wire::FIRST;

/// The most groups of a connection. They take turns.
const MOST: u64 = 1024;
/// Operations begin at cache lines.
const LINE: u64 = 64;

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
    /// Divides the memory after `reserved` bytes among `lanes` connections, if each has room for a
    /// group. Otherwise returns the bytes that are needed.
    pub(super) fn new(
        memory: &MrRemote,
        reserved: u64,
        (lane, lanes): (u32, u32),
        (len, batch): (u64, u32),
    ) -> Result<rpma::Result<Self>, u64> {
        let size = stride(len) * u64::from(batch);
        let first = FIRST + reserved;
        let needed = first + size * u64::from(lanes);
        let count = memory.get_size().saturating_sub(first) / size / u64::from(lanes);
        if count == 0 {
            return Err(needed);
        }
        let count = count.min(MOST);
        let from = first + u64::from(lane) * count * size;
        let groups =
            (0..count).map(|number| group(memory, number, from + number * size, (len, batch)));
        Ok(groups.collect::<rpma::Result<_>>().map(|groups| Self {
            groups,
            next: 0,
            len: len as usize,
        }))
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

/// Neighbours share no cache line.
pub(super) fn stride(len: u64) -> u64 {
    len.next_multiple_of(LINE)
}

fn group(
    memory: &MrRemote,
    number: u64,
    at: u64,
    (len, batch): (u64, u32),
) -> rpma::Result<Arc<Group>> {
    let operations = (0..u64::from(batch)).map(|number| {
        let at = at + number * stride(len);
        memory.slice(at..at + len)
    });
    Ok(Arc::new(Group {
        operations: operations.collect::<rpma::Result<_>>()?,
        all: memory.slice(at..at + stride(len) * u64::from(batch - 1) + len)?,
        at,
        number: number as usize,
    }))
}
