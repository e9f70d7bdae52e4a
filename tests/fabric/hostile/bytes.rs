//! The bytes that choose the steps of a run.

/// The bytes that are left. After their end come zeros.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    /// The next step, unless they have ended.
    pub(crate) fn step(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn next(&mut self) -> u8 {
        self.step().unwrap_or(0)
    }

    /// So many bytes as the next one has, and at most `most`.
    pub(crate) fn take(&mut self, most: usize) -> &'a [u8] {
        let len = usize::from(self.next()) % (most + 1);
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
