//! No file leads a reader to an address that the project does not have: a stranger could create it,
//! and would own the code of every visitor. The crates are in no registry yet, and have no site.

use std::fs;
use std::path::{Path, PathBuf};

/// The possible beginnings of an address: others' projects and references.
const KNOWN: [&str; 9] = [
    "http://www.apache.org/licenses/",
    "https://doc.rust-lang.org/",
    "https://docs.kernel.org/",
    "https://github.com/pmem/rpma",
    "https://man7.org/",
    "https://www.kernel.org/",
    // A name in each SVG, which is not visited.
    "http://www.w3.org/2000/svg",
    // Of this file.
    "https://docs.example",
    "http://a.example",
];

/// Cargo writes this one, with a name of the registry of the dependencies in it.
const LOCK: &str = "Cargo.lock";

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let entry = entry.expect("an entry");
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let kind = entry.file_type().expect("a kind");
        if kind.is_dir() && !["target", ".git"].contains(&&*name) {
            files(&entry.path(), found);
        } else if kind.is_file() && name != LOCK {
            found.push(entry.path());
        }
    }
}

/// The addresses in a text.
fn addresses(text: &str) -> impl Iterator<Item = &str> {
    ["http", "https"].into_iter().flat_map(move |scheme| {
        let begins = move |at: &usize| text[*at + scheme.len()..].starts_with("://");
        let found = text.match_indices(scheme).map(|(at, _)| at);
        found.filter(begins).map(|at| {
            let end = text[at..].find([' ', '\n', '"', ')', '>', '`']);
            &text[at..end.map_or(text.len(), |end| at + end)]
        })
    })
}

/// Whether a line asks cargo to take a crate of the project from a registry or a repository.
fn is_fetched(line: &str) -> bool {
    let line = line.trim_start_matches(['/', '!', ' ']);
    [
        "rpma",
        "rpma-async",
        "rpma-log",
        "rpma-scenes",
        "rpma-sim",
        "rpma-sys",
    ]
    .iter()
    .any(|name| {
        let rest = line.strip_prefix(name).map(str::trim_start);
        let value = rest.and_then(|rest| rest.strip_prefix('=')).map(str::trim);
        value.is_some_and(|value| {
            let is_version = value.starts_with('"') && value[1..].starts_with(char::is_numeric);
            let is_table = value.starts_with('{')
                && !["path =", "workspace =", "…"]
                    .iter()
                    .any(|own| value.contains(own));
            is_version || is_table
        })
    })
}

#[test]
fn every_address_is_anothers_or_known() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace");
    let mut found = Vec::new();
    files(root, &mut found);
    assert!(found.len() > 100, "{} files", found.len());
    let mut wrong = Vec::new();
    for file in found {
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        let name = file.strip_prefix(root).expect("inside").display();
        for address in addresses(&text) {
            if !KNOWN.iter().any(|known| address.starts_with(known)) {
                wrong.push(format!("{name}: {address}"));
            }
        }
        for line in text.lines().filter(|line| is_fetched(line)) {
            wrong.push(format!("{name}: {line}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_would_lead_to_a_stranger_is_seen() {
    for text in ["see https://docs.example/rpma", "[x](http://a.example)"] {
        assert_eq!(addresses(text).count(), 1, "{text}");
    }
    for line in [
        "rpma = \"0.1\"",
        "rpma-async = \"0.1\"",
        "rpma-sim = { version = \"0.1\" }",
        "//! rpma = { git = \"x\" }",
    ] {
        assert!(is_fetched(line), "{line}");
    }
    for line in [
        "rpma = { path = \"../rpma/rpma\" }",
        "rpma.workspace = true",
        "rpma = 1",
    ] {
        assert!(!is_fetched(line), "{line}");
    }
}
