//! A guarantee of docs/architecture.md: the modules of a library stand on floors, and a module uses
//! those of its floor and below. A use of a module above is an *arrow up*. Modules that use each other
//! are a *circle*.
//!
//! Counted are the paths in code that begin with `crate` or `super`, without tests and documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::failed::Result;
use crate::places::{ROOMS_OF_RPMA, listed};

/// The modules that a module uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// A path, and the modules of its file: `[]` is the crate's root.
#[derive(Debug, PartialEq)]
struct Found(Vec<String>);

/// Whether an item with this attribute is code of tests or documentation.
fn is_apart(attribute: &str) -> bool {
    let plain: String = attribute.split_whitespace().collect();
    let kinds = ["cfg(test", "cfg(doc", "cfg(all(test", "cfg(any(doc"];
    kinds.iter().any(|kind| plain.starts_with(kind))
}

/// The number of tokens of the item, or the field, at the beginning.
fn item(tokens: &[TokenTree]) -> usize {
    let is_end = |token: &TokenTree| match token {
        TokenTree::Punct(punct) => punct.as_char() == ';',
        _ => false,
    };
    let is_body = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        _ => false,
    };
    let words = tokens.iter().map(ToString::to_string);
    let is_use = words.take(6).any(|word| word == "use");
    let ends = |token: &TokenTree| is_end(token) || (!is_use && is_body(token));
    tokens
        .iter()
        .position(ends)
        .map_or(tokens.len(), |at| at + 1)
}

/// Whether `::` is here.
fn is_colons(tokens: &[TokenTree]) -> bool {
    let is_colon = |token: &TokenTree| token.to_string() == ":";
    tokens.len() >= 2 && tokens[..2].iter().all(is_colon)
}

/// Adds the paths that begin with `begin` and go on here, which `use` may have in braces.
fn paths(tokens: &[TokenTree], begin: &[String], found: &mut Vec<Found>) {
    let with = |name: String| [begin, &[name]].concat();
    match tokens.first() {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            let inside: Vec<_> = group.stream().into_iter().collect();
            let is_comma = |token: &TokenTree| token.to_string() == ",";
            for one in inside.split(is_comma) {
                paths(one, begin, found);
            }
        }
        Some(TokenTree::Ident(name)) if is_colons(&tokens[1..]) => {
            paths(&tokens[3..], &with(name.to_string()), found);
        }
        Some(TokenTree::Ident(name)) => found.push(Found(with(name.to_string()))),
        _ => found.push(Found(begin.to_vec())),
    }
}

/// Adds all paths in code.
fn walk(stream: TokenStream, found: &mut Vec<Found>) {
    let tokens: Vec<_> = stream.into_iter().collect();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let follows = &tokens[at + 1..];
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                let attribute = follows.first().map(ToString::to_string);
                if attribute.is_some_and(|text| is_apart(text.trim_start_matches('['))) {
                    at += item(&follows[1..]);
                }
                at += 1;
            }
            TokenTree::Group(group) => walk(group.stream(), found),
            TokenTree::Ident(name) if name == "crate" || name == "super" => {
                // `super::super::` is one path.
                let before = at.checked_sub(1).map(|at| tokens[at].to_string());
                if is_colons(follows) && before.as_deref() != Some(":") {
                    paths(&follows[2..], &[name.to_string()], found);
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// The module of the crate's root to which a path leads from a file with these modules.
fn target(
    file: &[String],
    path: &[String],
    roots: &Uses,
    exports: &BTreeMap<String, String>,
) -> Option<String> {
    let ups = path.iter().take_while(|word| *word == "super").count();
    let mut whole = match ups {
        0 => Vec::new(),
        _ => file[..file.len().checked_sub(ups)?].to_vec(),
    };
    let begin = ups.max(1);
    whole.extend_from_slice(path.get(begin..)?);
    let first = whole.into_iter().next()?;
    if roots.contains_key(&first) {
        Some(first)
    } else {
        exports.get(&first).cloned()
    }
}

/// The files of a library, each with its modules and its paths.
fn files(folder: &Path, modules: &[String], found: &mut Vec<(Vec<String>, Vec<Found>)>) -> Result {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str());
        let name = name.ok_or("a name")?.to_owned();
        let own = match &*name {
            "lib" | "main" | "mod" => modules.to_vec(),
            "tests" => continue,
            _ => [modules, &[name]].concat(),
        };
        if path.is_dir() {
            files(&path, &own, found)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            let mut paths = Vec::new();
            let stream = TokenStream::from_str(&fs::read_to_string(&path)?);
            walk(stream.map_err(|error| error.to_string())?, &mut paths);
            found.push((own, paths));
        }
    }
    Ok(())
}

/// The modules of a library's root, and the others that each of them uses.
fn uses(src: &Path) -> Result<Uses> {
    let mut all = Vec::new();
    files(src, &[], &mut all)?;
    let mut uses = Uses::new();
    for (modules, _) in &all {
        uses.extend(modules.first().map(|root| (root.clone(), BTreeSet::new())));
    }
    // `pub use crate::a::B` in the root: `crate::B` is of the module a.
    let mut exports = BTreeMap::new();
    for (_, paths) in all.iter().filter(|(modules, _)| modules.is_empty()) {
        for Found(path) in paths {
            if let [_, module, .., name] = &path[..] {
                exports.insert(name.clone(), module.clone());
            }
        }
    }
    for (modules, paths) in &all {
        let Some(root) = modules.first() else {
            continue;
        };
        let targets = paths
            .iter()
            .filter_map(|Found(path)| target(modules, path, &uses, &exports));
        let targets: Vec<_> = targets.filter(|target| target != root).collect();
        uses.get_mut(root).ok_or("a module")?.extend(targets);
    }
    Ok(uses)
}

/// The modules to which a module leads, over any number of others.
fn reached<'a>(uses: &'a Uses, from: &str) -> BTreeSet<&'a str> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(module) = left.pop() {
        for next in uses.get(module).into_iter().flatten() {
            if reached.insert(&**next) {
                left.push(next);
            }
        }
    }
    reached
}

/// The modules that use each other, in groups.
fn circles(uses: &Uses) -> BTreeSet<BTreeSet<&str>> {
    let of = |module: &String| {
        let is_back = |other: &&str| reached(uses, other).contains(&**module);
        reached(uses, module).into_iter().filter(is_back).collect()
    };
    let all = uses.keys().map(of);
    all.filter(|circle: &BTreeSet<&str>| !circle.is_empty())
        .collect()
}

/// Promise: a reader of a module of `rpma` needs those below it alone. What an error contains is
/// beside the error.
#[test]
fn modules_use_those_below() -> Result {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/architecture.md"))?;
    let uses = uses(&root.join("rpma/src"))?;
    let listed = listed(&page, ROOMS_OF_RPMA).into_iter();
    let names = listed.filter_map(|file| file.split(['/', '.']).next());
    let floors: Vec<_> = names.filter(|name| uses.contains_key(*name)).collect();
    let floor = |module: &str| floors.iter().position(|listed| *listed == module);
    let without: Vec<_> = uses
        .keys()
        .filter(|module| floor(module).is_none())
        .collect();
    assert!(without.is_empty(), "on no floor: {without:?}");
    let arrows = uses
        .iter()
        .flat_map(|(from, all)| all.iter().map(move |to| (from, to)));
    let up: Vec<_> = arrows
        .filter(|(from, to)| floor(from) < floor(to))
        .collect();
    let allowed = ["failure", "refusal"].map(|from| (from.to_owned(), "error".to_owned()));
    assert_eq!(
        up,
        allowed.each_ref().map(|(from, to)| (from, to)),
        "arrows up"
    );
    let around_error = BTreeSet::from(["error", "event", "failure", "refusal"]);
    assert_eq!(circles(&uses), BTreeSet::from([around_error]), "circles");
    Ok(())
}

/// Promise: a reader of the other crates meets no circle but that of a connection with its inbox.
#[test]
fn modules_of_other_crates_have_one_circle() -> Result {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let inbox = BTreeSet::from([BTreeSet::from(["conn", "inbox"])]);
    for (src, expected) in [("rpma-async/src", inbox), ("rpma-cli/src", BTreeSet::new())] {
        assert_eq!(circles(&uses(&root.join(src))?), expected, "{src}");
    }
    Ok(())
}

/// The paths of a file are found as they are written.
#[test]
fn paths_are_found_in_code_alone() -> Result {
    let code = "
        use crate::{a::{b, c as d}, e};
        use super::super::f;
        #[cfg(test)]
        use crate::tests::{g, h};
        #[cfg(test)]
        mod tests { use crate::i; }
        /// [`crate::j`]
        fn k() -> crate::l::M { println!(\"crate::n\", super::o()); self::p() }
        #[cfg(all(test, unix))]
        fn q() { crate::r() }
        const S: u8 = crate::t;
    ";
    let mut found = Vec::new();
    walk(
        TokenStream::from_str(code).map_err(|error| error.to_string())?,
        &mut found,
    );
    let found: Vec<_> = found.iter().map(|Found(path)| path.join("::")).collect();
    let expected = [
        "crate::a::b",
        "crate::a::c",
        "crate::e",
        "super::super::f",
        "crate::l::M",
        "super::o",
        "crate::t",
    ];
    assert_eq!(found, expected);
    Ok(())
}

#[test]
fn circles_are_groups() {
    let uses = [
        ("a", &["b"][..]),
        ("b", &["c"]),
        ("c", &["b", "d"]),
        ("d", &[]),
    ];
    let uses = uses.map(|(from, to)| {
        (
            from.to_owned(),
            to.iter().map(ToString::to_string).collect(),
        )
    });
    assert_eq!(
        circles(&Uses::from(uses)),
        BTreeSet::from([BTreeSet::from(["b", "c"])])
    );
}
