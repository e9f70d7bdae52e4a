//! The links of the pages lead somewhere: in a clone, where they are paths, and on docs.rs, which has
//! a crate without the files around it. rustdoc itself checks the links to items, but no anchor.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::failed::Result;

/// The crates that are published.
const CRATES: [&str; 7] = [
    "rpma",
    "rpma-async",
    "rpma-cli",
    "rpma-log",
    "rpma-scenes",
    "rpma-sim",
    "rpma-sys",
];

/// They are read in a clone, or beside a repository, against which registries resolve their links.
const OF_THE_CLONE: [&str; 2] = ["README.md", "rpma-cli/README.md"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, ext: &str, found: &mut Vec<PathBuf>) -> Result {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().ok_or("a name")?.to_string_lossy();
        // The documentation of `rpma` is a symbolic link to `docs`.
        if path.is_dir() && !path.is_symlink() {
            if name != "target" && !name.starts_with('.') {
                files(&path, ext, found)?;
            }
        } else if path.extension().is_some_and(|of| of == ext) {
            found.push(path);
        }
    }
    Ok(())
}

/// The text without blocks of code, and the headings of it.
fn prose(text: &str) -> (String, BTreeSet<String>) {
    let (mut kept, mut headings, mut in_code) = (String::new(), BTreeSet::new(), false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            if let Some(heading) = line.strip_prefix('#') {
                headings.insert(anchor(heading.trim_start_matches('#').trim()));
            }
            kept += line;
            kept.push('\n');
        }
    }
    (kept, headings)
}

/// The anchor of a heading, by the rule of GitHub and of rustdoc.
fn anchor(heading: &str) -> String {
    let part = |char: char| match char {
        ' ' => Some('-'),
        '-' | '_' => Some(char),
        _ => char.is_alphanumeric().then(|| char.to_ascii_lowercase()),
    };
    heading.chars().filter_map(part).collect()
}

/// The text without inline code, which begins and ends with as many backquotes.
fn without_code(text: &str) -> String {
    let (mut kept, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('`') {
        let (before, code) = rest.split_at(at);
        kept += before;
        let inside = code.trim_start_matches('`');
        let quotes = &code[..code.len() - inside.len()];
        let ends = inside.match_indices(quotes).map(|(at, _)| at);
        let longer = |at: &usize| {
            let after = &inside[at + quotes.len()..];
            !after.starts_with('`') && !inside[..*at].ends_with('`')
        };
        rest = ends
            .into_iter()
            .find(longer)
            .map_or(inside, |at| &inside[at + quotes.len()..]);
    }
    kept + rest
}

/// The targets of the links.
fn targets(text: &str) -> Vec<String> {
    let text = without_code(text);
    let inline = text.split("](").skip(1);
    let inline = inline.filter_map(|after| Some(after.split_once(')')?.0));
    let named = text.lines().filter(|line| line.starts_with('['));
    let named = named.filter_map(|line| Some(line.split_once("]: ")?.1));
    inline.chain(named).map(str::to_owned).collect()
}

fn is_absolute(target: &str) -> bool {
    matches!(target.split_once("://"), Some(("http" | "https", _)))
}

/// The documentation in a file of code.
fn documentation(code: &str) -> String {
    let lines = code.lines().map(str::trim_start);
    let lines = lines.filter_map(|line| line.strip_prefix("///").or(line.strip_prefix("//!")));
    lines.fold(String::new(), |text, line| {
        text + line.strip_prefix(' ').unwrap_or(line) + "\n"
    })
}

/// The reason for which a link of a page fails in a clone.
fn broken(page: &Path, target: &str) -> Result<Option<String>> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = match path {
        "" => page.to_owned(),
        _ => page.parent().ok_or("a folder")?.join(path),
    };
    if !file.exists() {
        return Ok(Some("there is no such file".into()));
    }
    if anchor.is_empty() || file.extension().is_none_or(|of| of != "md") {
        return Ok(None);
    }
    let (_, headings) = prose(&fs::read_to_string(&file)?);
    let is_missing = !headings.contains(anchor);
    Ok(is_missing.then(|| "there is no such heading".into()))
}

/// Promise: in a clone, each relative link of a page leads to a file, and to a heading of it.
#[test]
fn the_links_of_each_page_lead_to_files_and_headings() -> Result {
    let (mut pages, mut wrong, mut count) = (Vec::new(), Vec::new(), 0);
    files(root(), "md", &mut pages)?;
    // A file beside code is a part of its documentation.
    let is_beside = |page: &PathBuf| page.iter().any(|part| part == "src");
    for page in pages.into_iter().filter(|page| !is_beside(page)) {
        let (text, _) = prose(&fs::read_to_string(&page)?);
        for target in targets(&text).iter().filter(|target| !is_absolute(target)) {
            count += 1;
            if let Some(reason) = broken(&page, target)? {
                wrong.push(format!("{}: {target}: {reason}", page.display()));
            }
        }
    }
    assert!(count > 100, "{count} links");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Promise: on docs.rs, no link of a crate's documentation or front page leads out of the crate,
/// unless it is absolute or an item. rpma/build.rs makes items of links between the pages.
#[test]
fn no_link_leads_out_of_a_published_crate() -> Result {
    let mut wrong = Vec::new();
    for name in CRATES {
        let mut sources = Vec::new();
        files(&root().join(name).join("src"), "rs", &mut sources)?;
        for source in sources {
            let (text, _) = prose(&documentation(&fs::read_to_string(&source)?));
            let is_path = |target: &String| target.contains('/') || target.contains(".md");
            let paths = targets(&text).into_iter().filter(|of| !is_absolute(of));
            let paths = paths.filter(is_path);
            wrong.extend(paths.map(|target| format!("{}: {target}", source.display())));
        }
        let front = format!("{name}/README.md");
        let page = root().join(&front);
        if page.exists() && !OF_THE_CLONE.contains(&&*front) {
            let (text, _) = prose(&fs::read_to_string(&page)?);
            let out = targets(&text).into_iter().filter(|of| of.starts_with(".."));
            wrong.extend(out.map(|target| format!("{front}: {target}")));
        }
    }
    let mut pages = Vec::new();
    files(&root().join("docs"), "md", &mut pages)?;
    for page in pages {
        let (text, _) = prose(&fs::read_to_string(&page)?);
        // The last are only their text there.
        let is_shown = |target: &String| {
            let path = target.split('#').next().unwrap_or_default();
            is_absolute(target)
                || target.starts_with('#')
                || (path.ends_with(".md") && !path.contains('/'))
                || target.starts_with("../")
        };
        let others = targets(&text).into_iter().filter(|of| !is_shown(of));
        wrong.extend(others.map(|target| format!("{}: {target}", page.display())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Promise: each anchor in the documentation of the crates is a heading: of the page, or of an item.
#[test]
fn the_anchors_of_the_documentation_are_headings() -> Result {
    let (mut sources, mut of_items) = (Vec::new(), BTreeSet::new());
    for name in CRATES {
        files(&root().join(name).join("src"), "rs", &mut sources)?;
    }
    let mut links = Vec::new();
    for source in sources {
        let (text, headings) = prose(&documentation(&fs::read_to_string(&source)?));
        of_items.extend(headings);
        let with_anchor = |target: String| {
            let (item, anchor) = target.split_once('#')?;
            let is_own = !is_absolute(&target) && !anchor.contains('.');
            is_own.then(|| (source.clone(), item.to_owned(), anchor.to_owned()))
        };
        links.extend(targets(&text).into_iter().filter_map(with_anchor));
    }
    let mut wrong = Vec::new();
    for (source, item, anchor) in links {
        let headings = match item.split_once("guide::") {
            // `async` is a keyword.
            Some((_, "rpma_async")) => prose(&fs::read_to_string(root().join("docs/async.md"))?).1,
            Some((_, module)) => {
                let page = format!("docs/{}.md", module.replace('_', "-"));
                prose(&fs::read_to_string(root().join(page))?).1
            }
            None => of_items.clone(),
        };
        if !headings.contains(&anchor) {
            wrong.push(format!("{}: {item}#{anchor}", source.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// The rules above find the links of a text, and no code.
#[test]
fn links_are_found_outside_of_code() {
    let text =
        "A [`b`](c.md#d-1) and `[e](f.md)`, ``g` [h](i)``.\n```\n[j](k)\n# l\n```\n## M `n`, o";
    let (kept, headings) = prose(text);
    assert_eq!(targets(&kept), ["c.md#d-1"]);
    assert_eq!(headings, BTreeSet::from(["m-n-o".to_owned()]));
}
