//! Two guarantees of docs/architecture.md: its table names each place with `unsafe`, and only
//! places that have it. Its rooms, and those of the other crates, name each module of the
//! libraries, and only modules that exist. And one of docs/testing.md: its index names each test
//! program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::failed::Result;

const HEADING: &str = "## Where is `unsafe`?";

/// The files and folders in the first table after a line. A folder has a slash at its end.
pub(crate) fn listed<'page>(page: &'page str, line: &str) -> Vec<&'page str> {
    let section = page
        .split_once(line)
        .unwrap_or_else(|| panic!("no line {line}"));
    let section = section.1.trim_start_matches('\n');
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

fn sources(root: &Path, folder: &Path, found: &mut BTreeSet<String>) -> Result {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().ok_or("a name")?.to_string_lossy();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                sources(root, &path, found)?;
            }
        } else if name.ends_with(".rs") && has_unsafe(&fs::read_to_string(&path)?) {
            let path = path.strip_prefix(root)?;
            found.insert(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// Promise: a reader of the page finds each place with soundness that the compiler does not check.
#[test]
fn each_place_is_on_the_page() -> Result {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/architecture.md"))?;
    let listed = listed(&page, HEADING);
    let mut found = BTreeSet::new();
    sources(root, root, &mut found)?;
    // This file names the forms.
    found.remove("tests/host/places.rs");
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
    Ok(())
}

/// The line before the table of `rpma/src/`.
pub(crate) const ROOMS_OF_RPMA: &str = "The rooms of `rpma/src/`, from the ground up.";

/// A folder, the page with its modules, and the line before each table of them.
const ROOMS: [(&str, &str, &[&str]); 5] = [
    (
        "rpma-sim/src",
        "rpma-sim/src/lib.rs",
        &["Its files, in groups by subject (*rooms*), in `rpma-sim/src/`:"],
    ),
    (
        "rpma/src/verbs",
        "docs/architecture.md",
        &["The lower floor, `rpma/src/verbs/`:"],
    ),
    ("rpma/src/conn", "docs/architecture.md", &[ROOMS_OF_RPMA]),
    ("rpma/src", "docs/architecture.md", &[ROOMS_OF_RPMA]),
    ("rpma-async/src", "docs/async.md", &["| file | holds |"]),
];

/// The modules of a folder that need no room: its head, and unit tests.
const WITHOUT: [&str; 3] = ["lib.rs", "mod.rs", "tests.rs"];

fn modules(folder: &Path) -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(folder)?;
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string());
    let names = names.map(|name| name.expect("a name in UTF-8"));
    Ok(names.filter(|name| !WITHOUT.contains(&&**name)).collect())
}

/// Whether a listed file or folder exists. A file of the folder before it in its row is named
/// without that folder.
fn exists(src: &Path, listed: &str) -> bool {
    src.join(listed).exists() || src.join("conn").join(listed).exists()
}

/// Promise: a reader of the pages finds each module of the libraries in a room.
#[test]
fn each_module_is_in_a_room() -> Result {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (folder, page, lines) in ROOMS {
        // The head of a crate is a page as well.
        let text = fs::read_to_string(root.join(page))?.replace("\n//! ", "\n");
        let rooms: Vec<&str> = lines.iter().flat_map(|line| listed(&text, line)).collect();
        let is_named = |module: &String| {
            let mut parts = rooms.iter().flat_map(|room| room.split('/'));
            parts.any(|part| part == module)
        };
        let modules = modules(&root.join(folder))?;
        let missing: Vec<_> = modules.iter().filter(|module| !is_named(module)).collect();
        assert!(missing.is_empty(), "{folder}, not in {page}: {missing:?}");
        let src = root.join(folder.trim_end_matches("/conn"));
        let gone: Vec<_> = rooms.iter().filter(|room| !exists(&src, room)).collect();
        assert!(gone.is_empty(), "in {page}, and not in {folder}: {gone:?}");
    }
    Ok(())
}

/// Promise: a reader of the page finds the file with the reason of each decision.
#[test]
fn each_decision_has_its_file() -> Result {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/architecture.md"))?;
    let files = listed(&page, "## Decisions");
    assert!(!files.is_empty(), "the table of decisions");
    let exists = |file: &str| ["rpma/src", ""].map(|of| root.join(of).join(file).exists());
    let gone: Vec<_> = files
        .iter()
        .filter(|file| exists(file) == [false; 2])
        .collect();
    assert!(gone.is_empty(), "on the page, and not there: {gone:?}");
    Ok(())
}

/// Promise: the index in docs/testing.md has each test program, and each subject of one.
#[test]
fn each_subject_is_in_the_index() -> Result {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/testing.md"))?;
    let (_, section) = page.split_once("## The test programs").ok_or("the index")?;
    let (section, _) = section.split_once("\n## ").ok_or("its end")?;
    let listed: BTreeSet<_> = section.split('`').skip(1).step_by(2).collect();
    let mut names = BTreeSet::new();
    for folder in ["", "device", "fabric", "programs", "host"] {
        for entry in fs::read_dir(root.join("tests").join(folder))? {
            let path = entry?.path();
            let is_named = ["main.rs", "mod.rs"]
                .iter()
                .any(|head| path.join(head).exists());
            let name = path.file_stem().and_then(|name| name.to_str());
            let name = name.filter(|_| is_named || path.extension().is_some());
            names.extend(name.map(str::to_owned));
        }
    }
    for head in ["main", "common"] {
        names.remove(head);
    }
    let is_missing = |name: &&String| !listed.contains(name.as_str());
    let missing: Vec<_> = names.iter().filter(is_missing).collect();
    assert!(
        missing.is_empty(),
        "docs/testing.md does not name {missing:?}"
    );
    Ok(())
}

/// Promise: each test begins with its scenario, because one place makes the fabrics of all.
#[test]
fn the_rig_makes_all_fabrics() -> Result {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    // This file; programs that users copy or build; and those of fuzz targets, which have no `common`.
    let without = [
        "host/places.rs",
        "hello.rs",
        "linking/src/main.rs",
        "fabric/hostile/log.rs",
        "fabric/hostile/replica.rs",
        "fabric/hostile/server.rs",
    ];
    let makes = [
        "Fabric::new(",
        "Fabric::seeded(",
        ".follow(||",
        "start_paused(",
    ];
    let mut folders = vec![root.clone()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path)?;
                let name = path.strip_prefix(&root)?.to_string_lossy().into_owned();
                if !name.starts_with("common/")
                    && !without.contains(&&*name)
                    && makes.iter().any(|call| text.contains(call))
                {
                    found.push(name);
                }
            }
        }
    }
    assert!(
        found.is_empty(),
        "use `Rig` of tests/common/rig.rs in {found:?}"
    );
    Ok(())
}
