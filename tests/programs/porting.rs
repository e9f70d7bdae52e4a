//! `docs/porting-from-librpma.md` is complete: a row for each function of the installed
//! `librpma.h`, and for each of the C library's weaknesses, with tests that exist. That the Rust
//! items exist is rustdoc's to check: the page is part of the documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::failed::Result;

const HEADER: &str = "/usr/include/librpma.h";
const WEAKNESSES: usize = 42;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of the table under `heading`, each as its cells.
fn table(heading: &str) -> Vec<Vec<String>> {
    let page = read(&root().join("docs/porting-from-librpma.md"));
    let heading = format!("## {heading}");
    let rows: Vec<_> = page
        .lines()
        .skip_while(|line| *line != heading)
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'))
        .map(|row| row.split('|').map(|cell| cell.trim().to_owned()).collect())
        // The names of the columns, and the line below them.
        .skip(2)
        .collect();
    assert!(!rows.is_empty(), "no table under {heading:?}");
    rows
}

/// The names in backticks in a cell.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The duplicates.
fn duplicates<T: Ord + Copy>(all: &[T]) -> Vec<T> {
    let mut seen = BTreeSet::new();
    let all = all.iter().copied();
    all.filter(|&one| !seen.insert(one)).collect()
}

/// The functions that a header declares: `rpma_` names before a parenthesis, outside of comments.
fn declared(header: &str) -> BTreeSet<&str> {
    let mut code = header;
    let mut functions = BTreeSet::new();
    while !code.is_empty() {
        let (before, rest) = code.split_once("/*").unwrap_or((code, ""));
        for (at, _) in before.match_indices('(') {
            let is_between = |c: char| !c.is_ascii_alphanumeric() && c != '_';
            let word = before[..at].rsplit(is_between).next();
            functions.extend(word.filter(|word| word.starts_with("rpma_")));
        }
        code = rest.split_once("*/").map_or("", |(_comment, after)| after);
    }
    functions
}

#[test]
fn each_function_of_the_installed_header_has_a_row() -> Result {
    let header = read(Path::new(HEADER));
    let mut declared = declared(&header);
    // A typedef of a function looks like one.
    declared.remove("rpma_log_function");
    let rows = table("Functions");
    let name = |row| names(row).next().ok_or("a function in the first cell");
    let listed = rows.iter().map(|row| name(&row[0]));
    let listed = listed.collect::<Result<Vec<_>, _>>()?;
    assert_eq!(duplicates(&listed), [""; 0], "listed twice");
    let listed: BTreeSet<_> = listed.into_iter().collect();
    let missing: Vec<_> = declared.difference(&listed).collect();
    assert!(missing.is_empty(), "without a row: {missing:?}");
    let unknown: Vec<_> = listed.difference(&declared).collect();
    assert!(unknown.is_empty(), "not in {HEADER}: {unknown:?}");
    assert_eq!(declared.len(), 84, "librpma 1.3.0 has 84");
    Ok(())
}

#[test]
fn each_row_names_a_rust_item_as_a_link() {
    for row in table("Functions") {
        assert_eq!(row.len(), 3, "{row:?}");
        let is_link = row[1].starts_with("[`") && row[1].ends_with("`]");
        assert!(is_link, "rustdoc checks links only: {row:?}");
    }
}

/// The library's documentation promises that a search for a C name finds the Rust one.
#[test]
fn each_function_is_found_by_its_c_name() -> Result {
    let all = sources()?.into_values().flatten();
    let library = root().join("rpma/src");
    let text: Vec<_> = all.filter(|path| path.starts_with(&library)).collect();
    let text: String = text.iter().map(|path| read(path)).collect();
    for row in table("Functions") {
        let name = names(&row[0])
            .next()
            .ok_or("a function in the first cell")?;
        let alias = format!("#[doc(alias = \"{name}\")]");
        assert!(text.contains(&alias), "nothing has {alias}");
    }
    Ok(())
}

/// Where the tests named `module::…` may be.
fn sources() -> Result<BTreeMap<String, Vec<PathBuf>>> {
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut dirs = vec![root().join("tests"), root().join("rpma/src")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                // A module is a file or a directory of that name.
                for named in [path.file_stem(), dir.file_name()].into_iter().flatten() {
                    let module = named.to_str().expect("a name").to_owned();
                    found.entry(module).or_default().push(path.clone());
                }
            }
        }
    }
    Ok(found)
}

/// Whether `source` has a test of that name: a function, or a program that must not compile.
fn has_test(source: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    let program = format!("struct {name};");
    let lines: Vec<&str> = source.lines().map(str::trim_start).collect();
    lines.iter().enumerate().any(|(at, line)| {
        let above = || lines[..at].iter().rev().take_while(|line| !line.is_empty());
        if line.starts_with(&function) {
            above().any(|line| *line == "#[test]")
        } else {
            *line == program && above().any(|line| line.starts_with("/// ```compile_fail"))
        }
    })
}

#[test]
fn each_weakness_has_a_row_whose_tests_exist() -> Result {
    let rows = table("Weaknesses");
    let numbers: Vec<String> = rows.iter().map(|row| row[0].clone()).collect();
    let expected = (1..=WEAKNESSES).map(|number| format!("W-{number}"));
    let expected: Vec<String> = expected.collect();
    assert_eq!(numbers, expected, "each once, in their order");

    let sources = sources()?;
    for row in rows {
        assert_eq!(row.len(), 4, "{row:?}");
        assert!(!row[2].is_empty(), "no answer: {row:?}");
        for name in names(&row[3]) {
            let (module, test) = name.split_once("::").ok_or("module::test")?;
            let mut files = sources.get(module).into_iter().flatten();
            let exists = files.any(|path| has_test(&read(path), test));
            assert!(exists, "{}: there is no test {name}", row[0]);
        }
    }
    Ok(())
}
