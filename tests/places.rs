//! The table of docs/architecture.md names each place with `unsafe`, and only places that have it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const HEADING: &str = "## Where is `unsafe`?";

/// The places in the table, each a file or a folder with a slash at its end.
fn listed(page: &str) -> Vec<&str> {
    let section = page.split_once(HEADING).expect("the heading").1;
    let rows = section.lines().skip_while(|line| !line.starts_with('|'));
    rows.take_while(|line| line.starts_with('|'))
        .filter_map(|row| row.split('|').nth(1))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect()
}

/// Whether a file has the keyword: in code, or in code of its documentation.
fn has_unsafe(text: &str) -> bool {
    let code = text
        .lines()
        .map(|line| line.trim_start().trim_start_matches("/// "));
    code.filter(|line| !line.starts_with("//")).any(|line| {
        [
            "unsafe {",
            "unsafe fn",
            "unsafe impl",
            "unsafe trait",
            "unsafe extern",
        ]
        .iter()
        .any(|form| line.contains(form) && !line.contains(&format!("`{form}")))
    })
}

fn sources(root: &Path, folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                sources(root, &path, found);
            }
        } else if name.ends_with(".rs") && has_unsafe(&fs::read_to_string(&path).expect("text")) {
            let path = path.strip_prefix(root).expect("inside");
            found.insert(path.to_string_lossy().into_owned());
        }
    }
}

/// Promise: a reader of the page finds each place with soundness that the compiler does not check.
#[test]
fn each_place_is_on_the_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/architecture.md")).expect("the page");
    let listed = listed(&page);
    let mut found = BTreeSet::new();
    sources(root, root, &mut found);
    // This file names the forms.
    found.remove("tests/places.rs");
    let is_in = |file: &str, place: &str| match place.ends_with('/') {
        true => file.starts_with(place),
        false => file == place,
    };
    let missing: Vec<_> = found
        .iter()
        .filter(|file| !listed.iter().any(|place| is_in(file, place)))
        .collect();
    assert!(missing.is_empty(), "not on the page: {missing:?}");
    let empty: Vec<_> = listed
        .iter()
        .filter(|place| !found.iter().any(|file| is_in(file, place)))
        .collect();
    assert!(empty.is_empty(), "on the page, and without it: {empty:?}");
}
