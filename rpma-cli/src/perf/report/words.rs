//! Settings and numbers in words: the names of lines, and the texts of cells.

use super::runs::Item;
use crate::problem::one_line;
use crate::settings::USUAL;

/// Texts of files can be long, and can have characters that a page must not have.
pub(super) fn text(text: &str) -> String {
    const LONGEST: usize = 200;
    let line = one_line(text);
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{} …", &line[..end]),
        None => line,
    }
}

/// The places of words that [`of_item`] returns.
pub(super) const SIZE: usize = 2;
pub(super) const DEPTH: usize = 3;
pub(super) const RATE: usize = 8;

/// The words of an item, with its run and its number among equal settings.
pub(super) fn of_item(item: &Item<'_>) -> Vec<String> {
    let mut words = item.entry.point.setting.words();
    words.insert(0, format!("run {}", item.run));
    words.push(format!("repeat {}", item.repeat));
    words
}

/// The words that all have, and the words of each that differ.
pub(super) fn divide(lines: &[Vec<String>]) -> (String, Vec<String>) {
    let Some(first) = lines.first() else {
        return (String::new(), Vec::new());
    };
    let is_common = |place: usize| lines.iter().all(|words| words[place] == first[place]);
    let (common, own): (Vec<usize>, Vec<usize>) = (0..first.len()).partition(|i| is_common(*i));
    let is_plain = |word: &&str| {
        let one_of_one = word.starts_with("run ") || word.starts_with("repeat ");
        // A chart leaves the word of its axis empty.
        !word.is_empty() && !USUAL.contains(word) && !one_of_one
    };
    let common: Vec<&str> = common.iter().map(|place| first[*place].as_str()).collect();
    let common: Vec<&str> = common.into_iter().filter(is_plain).collect();
    let join = |words: &Vec<String>| {
        let own: Vec<&str> = own.iter().map(|place| words[*place].as_str()).collect();
        own.join(", ")
    };
    (common.join(", "), lines.iter().map(join).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::samples::setting;
    use crate::settings::Setting;

    #[test]
    fn common_words_are_named_once() {
        let deep = Setting {
            depth: 16,
            rate: Some(2e5),
            ..setting()
        };
        let (common, own) = divide(&[setting().words(), deep.words()]);
        assert_eq!(common, "write, 64 B, poll");
        assert_eq!(
            own,
            ["depth 1, closed loop", "depth 16, open loop, 200 k/s"]
        );
        assert_eq!(divide(&[]), (String::new(), Vec::new()));
        let mut without_size = setting().words();
        without_size[1].clear();
        assert_eq!(
            divide(&[without_size]).0,
            "write, depth 1, poll, closed loop"
        );
    }

    #[test]
    fn texts_of_files_are_one_short_line() {
        assert_eq!(text(" a\nb\u{1b}[2J "), "a b [2J");
        let long = "ä".repeat(300);
        assert_eq!(text(&long).chars().count(), 202);
    }
}
