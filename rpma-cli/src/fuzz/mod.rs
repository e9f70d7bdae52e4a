//! Promises about bytes that come from elsewhere: the messages of a session, hostile clients of a
//! server, and files of results. The targets in `fuzz/` give them bytes that a fuzzer makes, and a test those of the corpus in the
//! repository.

#[cfg(feature = "sim")]
mod hostile;

use std::fmt::Debug;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::perf::read::{self, DEFLATED, Entry};
use crate::perf::report;
use crate::perf::samples::{commit, lines, point, setting};
use crate::wire::{self, Answer, MAX, MOST_RECEIVES, RECEIVED, Request, Tag};

#[cfg(feature = "sim")]
pub use hostile::serve;

/// A message of a session, to the server or from it, or the tag of a connection.
pub fn session(bytes: &[u8]) {
    if let Ok(tag) = Tag::decode(bytes) {
        assert_eq!(tag.encode(), bytes);
    }
    if let Some(Request::Expect(expect)) = message::<Request>(bytes) {
        let (count, each) = expect.receives;
        let len = u64::from(count) * u64::from(each);
        let is_much = count > MOST_RECEIVES || len > RECEIVED;
        assert!(!is_much || expect.check().is_err(), "{expect:?}");
    }
    if let Some(Answer::Server(server)) = message(bytes) {
        let published = server.host.published();
        assert_eq!(published.clone().published(), published);
    }
}

/// The message in these bytes, if they are one. It is the same after it was sent again.
fn message<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let message: T = wire::decode(bytes).ok()?;
    // Fields that are left out can make it longer.
    if let Ok(again) = wire::encode(&message) {
        assert!(again.len() <= MAX);
        assert_eq!(wire::decode::<T>(&again).as_ref(), Ok(&message));
    }
    Some(message)
}

/// The file of results for a report. Results are the same when they are written and read again, and
/// their page has no markup but its own. A problem is one line with a remedy.
///
/// The first byte chooses the file: its text, changes to a whole one, or the bytes of a histogram in a
/// whole one, because no fuzzer finds base64 or DEFLATE.
pub fn results(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    let entries = match kind % 3 {
        0 => read(bytes),
        1 => read(&changed(bytes)),
        _ => read(&with_histogram(bytes)),
    };
    let Some(entries) = entries else {
        return;
    };
    let points: Vec<_> = entries.iter().map(|entry| entry.point.clone()).collect();
    let again = read(lines(&points).as_bytes()).expect("they were read before");
    assert!(again.iter().map(|entry| &entry.point).eq(&points));
    for (entry, again) in entries.iter().zip(&again) {
        assert_eq!(entry.curve, again.curve);
        let grows = |pair: &[(f64, f64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
        assert!(entry.curve.windows(2).all(grows), "{:?}", entry.curve);
    }
    let (page, _) = report::page(&entries).expect("a page");
    for tag in page.split('<').skip(1) {
        let end = tag.find([' ', '>', '\n']).expect("the end of a tag");
        let name = tag[..end].trim_matches('/');
        assert!(TAGS.contains(&name), "the page has the tag {name:?}");
    }
}

/// The tags of the page and of its charts.
const TAGS: [&str; 39] = [
    "!DOCTYPE",
    "body",
    "circle",
    "dd",
    "desc",
    "div",
    "dl",
    "dt",
    "figcaption",
    "figure",
    "footer",
    "h1",
    "h2",
    "h3",
    "head",
    "header",
    "html",
    "li",
    "line",
    "main",
    "meta",
    "p",
    "polygon",
    "polyline",
    "rect",
    "section",
    "span",
    "strong",
    "style",
    "svg",
    "table",
    "tbody",
    "td",
    "text",
    "th",
    "thead",
    "title",
    "tr",
    "ul",
];

/// The results of a file. A problem is one line with a remedy.
fn read(bytes: &[u8]) -> Option<Vec<Entry>> {
    let file = memfd_create("results", MemfdFlags::CLOEXEC).expect("a file in RAM");
    let mut file = File::from(file);
    file.write_all(bytes).expect("written");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    match read::read(&[PathBuf::from(path)]) {
        Ok(entries) => Some(entries),
        Err(problem) => {
            let line = problem.to_string();
            assert!(line.contains(". "), "{line}");
            assert!(!line.chars().any(char::is_control), "{line:?}");
            None
        }
    }
}

/// A whole file.
fn whole() -> &'static str {
    static WHOLE: OnceLock<String> = OnceLock::new();
    WHOLE.get_or_init(|| lines(&[point(setting()), point(commit())]))
}

/// A whole file with changes: two bytes of a place, and one to write there.
fn changed(changes: &[u8]) -> Vec<u8> {
    let mut text = whole().as_bytes().to_vec();
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        let at = at % text.len();
        text[at] = change[2];
    }
    text
}

/// A whole file with a histogram of these bytes, deflated.
fn with_histogram(bytes: &[u8]) -> Vec<u8> {
    let mut point = point(setting());
    let mut deflated = ZlibEncoder::new(Vec::new(), Compression::fast());
    deflated.write_all(bytes).expect("memory is enough");
    let deflated = deflated.finish().expect("memory is enough");
    let len = (deflated.len() as u32).to_be_bytes();
    point.result.histogram = STANDARD.encode([&DEFLATED, &len[..], &deflated].concat());
    lines(&[point]).into_bytes()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Promise: each file of the corpus holds the property of its target. Each fault that a fuzzer
    /// has found is one of them.
    #[test]
    fn the_corpus() {
        type Property = fn(&[u8]);
        let targets: &[(&str, Property)] = &[
            ("session", session),
            ("results", results),
            #[cfg(feature = "sim")]
            ("serve", serve),
        ];
        for (name, check) in targets {
            let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/");
            let files: Vec<_> = fs::read_dir(format!("{corpus}{name}"))
                .expect("a corpus")
                .collect();
            assert!(!files.is_empty(), "the corpus of {name} is empty");
            for file in files {
                let path = file.expect("a file").path();
                println!("{}", path.display());
                check(&fs::read(path).expect("read"));
            }
        }
    }
}
