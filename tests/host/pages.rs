//! The pages of docs/ agree with the code that they show.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::failed::Result;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The reader of the page saves three files. They are the example `hello` and its test, except that
/// their code finds the library as a crate.
#[test]
fn getting_started_has_the_files_of_the_example() -> Result {
    let page = read("docs/getting-started.md");
    for file in [
        "examples/hello/hello.rs",
        "examples/hello/main.rs",
        "tests/hello.rs",
    ] {
        let (_, block) = page.split_once(&format!("<!-- {file} -->\n")).expect(file);
        let block = block.split("```").nth(1).ok_or("a block of code")?;
        let code: Vec<_> = block
            .lines()
            .skip(1)
            .filter(|line| !line.is_empty())
            .collect();
        let text = read(file);
        let with_module = |line: &&str| {
            let of_page = line.starts_with("//! ") && line.contains("getting-started");
            let of_module = ["mod hello;", "#[path", "#[allow(unreachable_pub"];
            line.is_empty() || of_page || of_module.iter().any(|start| line.starts_with(start))
        };
        let expected: Vec<_> = text.lines().filter(|line| !with_module(line)).collect();
        assert_eq!(code, expected, "{file}");
    }
    Ok(())
}

/// A page without a module of `rpma::guide` cannot be reached from the crate's documentation.
#[test]
fn each_page_is_in_the_guide() -> Result {
    let guide = read("rpma/src/guide.rs");
    let pages = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs"))?;
    for page in pages {
        let page = page?;
        // There are pictures, too.
        if page.path().extension().is_none_or(|of| of != "md") {
            continue;
        }
        let name = format!("{:?}", page.file_name());
        assert!(
            guide.contains(&name),
            "{name} has no module in rpma/src/guide.rs"
        );
    }
    Ok(())
}

/// Promise: docs/examples.md names each example, and no other. Each of librpma's has its differences
/// from C at its head.
#[test]
fn each_example_is_on_the_page() -> Result {
    // The others are rpma's own.
    let own = [
        "06tokio-multiple-connections",
        "14-metrics",
        "15-append-to-replicas",
        "hello",
        "replicated-log",
        "sim-log",
        "sim-replicas",
    ];
    let page = read("docs/examples.md");
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let names = rows.filter_map(|row| row.split('`').nth(1));
    let listed: BTreeSet<String> = names.map(str::to_owned).collect();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples"))? {
        let name = entry?.file_name().into_string().expect("a name in UTF-8");
        if name == "common" {
            continue;
        }
        let main = read(&format!("examples/{name}/main.rs"));
        let head = main.lines().take_while(|line| line.starts_with("//!"));
        let headings = head.filter(|line| *line == "//! # Differences from librpma's");
        let expected = usize::from(!own.contains(&&*name));
        assert_eq!(headings.count(), expected, "{name}");
        found.insert(name);
    }
    assert_eq!(listed, found);
    Ok(())
}
