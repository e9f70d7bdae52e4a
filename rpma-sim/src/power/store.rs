//! [`Store`]: the bytes of a memory, of which few are ever written.
//!
//! Its size is that of the pages that were written. A clone shares all pages with its original, and
//! a write to either copies one page. So an image of a memory costs the pages that differ.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::lines::{LINE, Line, WORD, put};
use crate::order::mix;

/// The bytes that are copied by the first write after a clone.
pub(crate) const PAGE: usize = 4096;
/// How many pages a chunk has. The first write after a clone copies the list of one chunk.
const CHUNK: usize = 256;

type Page = [u8; PAGE];
/// Pages by their numbers.
type Chunk = BTreeMap<usize, Arc<Page>>;

static ZEROS: Page = [0; PAGE];

/// The bytes of a memory. Pages that are in no chunk are zeros.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    len: usize,
    chunks: Arc<BTreeMap<usize, Arc<Chunk>>>,
}

/// Words that are not zero, and the first of them.
#[derive(PartialEq, Eq)]
pub(crate) struct Place {
    bytes: Range<usize>,
    first: [u8; WORD],
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.bytes.len() > WORD { " …" } else { "" };
        let Range { start, end } = self.bytes;
        let first = self.first.map(|byte| format!("{byte:02x}")).join(" ");
        write!(f, "{start}..{end}: {first}{more}")
    }
}

impl Store {
    /// Makes a store of `len` zeros, a multiple of the page's size.
    pub(crate) fn zeros(len: usize) -> Self {
        assert!(len > 0 && len % PAGE == 0, "whole pages");
        Self {
            len,
            chunks: Arc::default(),
        }
    }

    /// These bytes, a whole number of pages.
    #[cfg(test)]
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut store = Self::zeros(bytes.len());
        store.fill(bytes);
        store
    }

    /// Replaces the first bytes. The other bytes of their last page become zeros.
    pub(crate) fn fill(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len, "inside");
        for (number, part) in bytes.chunks(PAGE).enumerate() {
            let mut page = ZEROS;
            page[..part.len()].copy_from_slice(part);
            if page != *self.page(number) {
                *self.page_mut(number) = page;
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// A hash of the bytes. Pages of zeros do not count.
    pub(crate) fn digest(&self) -> u64 {
        let of_page = |(number, page): (usize, &Page)| {
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            // Whole lines of zeros are left out at once: a comparison of 64 bytes is one call.
            let lines = page.chunks_exact(LINE).enumerate();
            let lines = lines.filter(|(_, line)| **line != ZEROS[..LINE]);
            let words = lines.flat_map(|(n, line)| {
                let words = line.chunks_exact(WORD).map(word).enumerate();
                words.map(move |(at, word)| (n * (LINE / WORD) + at, word))
            });
            let set = words.filter(|(_, word)| *word != 0);
            set.fold(0, |hash, (at, word)| {
                hash ^ mix(mix((number * PAGE + at) as u64) ^ word)
            })
        };
        self.pages().fold(0, |hash, page| hash ^ of_page(page))
    }

    pub(crate) fn page(&self, number: usize) -> &Page {
        let chunk = self.chunks.get(&(number / CHUNK));
        let page = chunk.and_then(|chunk| chunk.get(&number));
        page.map_or(&ZEROS, |page| &**page)
    }

    fn page_mut(&mut self, number: usize) -> &mut Page {
        let chunk = Arc::make_mut(&mut self.chunks).entry(number / CHUNK);
        let chunk = Arc::make_mut(chunk.or_default());
        Arc::make_mut(chunk.entry(number).or_insert_with(|| Arc::new(ZEROS)))
    }

    pub(crate) fn line(&self, line: usize) -> &Line {
        let start = line * LINE % PAGE;
        let bytes = &self.page(line * LINE / PAGE)[start..start + LINE];
        bytes.try_into().unwrap_or_else(|_| unreachable!())
    }

    /// Replaces the bytes of a line that have a bit in `mask`.
    pub(crate) fn put(&mut self, line: usize, mask: u64, from: &Line) {
        let mut now = *self.line(line);
        put(&mut now, mask, from);
        if now != *self.line(line) {
            let start = line * LINE % PAGE;
            self.page_mut(line * LINE / PAGE)[start..start + LINE].copy_from_slice(&now);
        }
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        for (number, page) in self.pages() {
            bytes[number * PAGE..][..PAGE].copy_from_slice(page);
        }
        bytes
    }

    pub(crate) fn pages(&self) -> impl Iterator<Item = (usize, &Page)> {
        let all = self.chunks.values().flat_map(|chunk| chunk.iter());
        all.map(|(number, page)| (*number, &**page))
    }

    /// The first places with bytes that are not zero, at most `most`.
    pub(crate) fn places(&self, most: usize) -> Vec<Place> {
        let mut places: Vec<Place> = Vec::new();
        for (number, page) in self.pages() {
            let words = page.chunks(WORD).enumerate();
            for (at, word) in words.filter(|(_, word)| word.iter().any(|byte| *byte != 0)) {
                let start = number * PAGE + at * WORD;
                let is_full = places.len() == most;
                match places.last_mut() {
                    Some(last) if last.bytes.end == start => last.bytes.end += WORD,
                    _ if is_full => return places,
                    _ => places.push(Place {
                        bytes: start..start + WORD,
                        first: word.try_into().unwrap_or_else(|_| unreachable!()),
                    }),
                }
            }
        }
        places
    }

    #[cfg(any(test, not(miri)))]
    pub(crate) fn count(&self) -> usize {
        self.chunks.values().map(|chunk| chunk.len()).sum()
    }

    /// The pages that may differ from those of another store of the same memory: all but those that
    /// both share.
    pub(crate) fn differing(&self, other: &Self) -> Vec<usize> {
        let mut numbers = Vec::new();
        let (own, others) = (&self.chunks, &other.chunks);
        let mut chunks: Vec<usize> = own.keys().chain(others.keys()).copied().collect();
        chunks.sort_unstable();
        chunks.dedup();
        for chunk in chunks {
            match (own.get(&chunk), others.get(&chunk)) {
                (Some(own), Some(other)) if Arc::ptr_eq(own, other) => {}
                (own, other) => differing(own, other, &mut numbers),
            }
        }
        numbers
    }
}

fn differing(own: Option<&Arc<Chunk>>, other: Option<&Arc<Chunk>>, numbers: &mut Vec<usize>) {
    let pages = |chunk: Option<&Arc<Chunk>>| chunk.map(|chunk| chunk.keys().copied().collect());
    let mut all: Vec<usize> = pages(own).unwrap_or_default();
    all.extend(pages(other).unwrap_or_default());
    all.sort_unstable();
    all.dedup();
    all.retain(|number| {
        let page = |chunk: Option<&Arc<Chunk>>| chunk.and_then(|chunk| chunk.get(number)).cloned();
        match (page(own), page(other)) {
            (Some(own), Some(other)) => !Arc::ptr_eq(&own, &other),
            _ => true,
        }
    });
    numbers.extend(all);
}

impl Ord for Store {
    /// By the bytes, whether a page of zeros was written or not.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_page = |number: &usize| self.page(*number).cmp(other.page(*number));
        let mut numbers = self.differing(other).into_iter();
        let differs = numbers.find(|number| by_page(number).is_ne());
        let bytes = differs.map_or(Ordering::Equal, |number| by_page(&number));
        bytes.then(self.len.cmp(&other.len))
    }
}

impl PartialOrd for Store {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Store {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Store {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A few pages in two chunks.
    const LEN: usize = (CHUNK + 4) * PAGE;

    fn lines() -> [usize; 4] {
        let last = LEN / LINE - 1;
        [0, PAGE / LINE - 1, CHUNK * PAGE / LINE, last]
    }

    #[test]
    fn the_bytes_are_those_that_were_put() {
        let mut store = Store::zeros(LEN);
        let mut bytes = vec![0; LEN];
        for (number, line) in (1..).zip(lines()) {
            store.put(line, 0xF0, &[number; LINE]);
            bytes[line * LINE + 4..line * LINE + 8].fill(number);
        }
        assert_eq!(store.to_vec(), bytes);
        assert_eq!(store.count(), 3);
        let filled = Store::new(&bytes);
        assert_eq!(filled, store);
        assert_eq!(filled.count(), 3, "pages of zeros take no memory");
    }

    /// Promise: an image costs the pages that differ.
    #[test]
    fn a_clone_shares_all_pages_but_those_that_are_written() {
        let mut store = Store::zeros(LEN);
        for line in lines() {
            store.put(line, u64::MAX, &[7; LINE]);
        }
        let mut clone = store.clone();
        assert!(clone.differing(&store).is_empty());
        clone.put(1, 1, &[9; LINE]);
        assert_eq!(clone.differing(&store), [0]);
        assert_eq!(store.line(1), &[0; LINE], "the original stays");
        assert_eq!(clone.line(0), &[7; LINE], "the other lines of the page too");
        clone.put(2, 1, &[0; LINE]);
        assert_eq!(clone.differing(&store), [0], "zeros on zeros write nothing");
    }

    /// Promise: equal images count once, however they were made.
    #[test]
    fn stores_are_equal_if_their_bytes_are() {
        let mut written = Store::zeros(LEN);
        written.put(3, u64::MAX, &[1; LINE]);
        written.put(3, u64::MAX, &[0; LINE]);
        let mut zeros = Store::zeros(LEN);
        assert_eq!(written, zeros);
        zeros.put(CHUNK * PAGE / LINE, 1, &[1; LINE]);
        assert!(written < zeros);
        written.put(0, 1, &[1; LINE]);
        assert!(written > zeros, "the first byte that differs decides");
    }
}
