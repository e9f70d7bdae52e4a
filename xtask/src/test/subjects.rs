//! The subjects of the device tests. A test program has one module for each subject, so that few
//! programs are linked; a command, a step and a report name the subject.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use cargo_metadata::{MetadataCommand, Target, TargetKind};

use crate::guest::chroot::Headers;
use crate::host::Workspace;
use crate::lab::{FEATURE, Lab, ONE_PROCESS, PACKAGE};
use crate::process::output;

/// A module of a test program.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) program: String,
    pub(super) name: String,
}

impl Subject {
    /// Those of its program's tests that are its own and have one of `words` in their names; all of
    /// its own without words.
    pub(super) fn of(&self, tests: &[String], words: &[String]) -> Vec<String> {
        let is_asked = |test: &&String| {
            let own = self.without_program(test);
            let has_word = |own: &str| words.iter().any(|word| own.contains(&**word));
            own.is_some_and(|own| words.is_empty() || has_word(own))
        };
        tests.iter().filter(is_asked).cloned().collect()
    }

    /// A test's name without that of the subject; `None` for a test of another subject.
    pub(super) fn without_program<'test>(&self, test: &'test str) -> Option<&'test str> {
        test.strip_prefix(&*self.name)?.strip_prefix("::")
    }

    /// The arguments of cargo that run these tests, and no others whose names contain theirs.
    pub(super) fn args(&self, tests: &[String]) -> Vec<String> {
        let words = ["--test", &self.program, "--", "--exact"];
        let words = words.into_iter().map(str::to_owned);
        words.chain(tests.iter().cloned()).collect()
    }
}

/// The names of all tests of a program; only those for `--long` with `--ignored` as an option.
pub(super) fn tests_of(
    lab: &Lab<'_>,
    headers: Headers,
    program: &str,
    options: &[&str],
) -> Result<Vec<String>> {
    let mut cargo = lab.cargo(headers, &format!("test --test {program}"))?;
    cargo.args(["--", "--list", "--format=terse"]).args(options);
    Ok(listed(&output(&mut cargo)?))
}

/// The names in a list of `--list --format=terse`.
pub(super) fn listed(list: &str) -> Vec<String> {
    let tests = list.lines().filter_map(|line| line.strip_suffix(": test"));
    tests.map(str::to_owned).collect()
}

/// The subjects of the device tests, by name.
pub(super) fn subjects(workspace: &Workspace) -> Result<Vec<Subject>> {
    let mut all = Vec::new();
    for program in programs_with(workspace, &[FEATURE, ONE_PROCESS])? {
        for name in modules(&workspace.root().join("tests").join(&program))? {
            let program = program.clone();
            all.push(Subject { program, name });
        }
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(all)
}

/// The subject of a name.
pub(super) fn subject(workspace: &Workspace, name: &str) -> Result<Subject> {
    let all = subjects(workspace)?;
    let names: Vec<_> = all.iter().map(|subject| subject.name.clone()).collect();
    let Some(found) = all.into_iter().find(|subject| subject.name == name) else {
        bail!(
            "there are no device tests about \"{name}\". Their subjects are: {}. (`cargo xtask test \
             --list` shows the tests; those without a device run with `cargo test`.)",
            names.join(", ")
        );
    };
    Ok(found)
}

/// The modules in a program's folder.
fn modules(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let is_module =
            path.extension().is_some_and(|end| end == "rs") || path.join("mod.rs").is_file();
        let name = path.file_stem().and_then(|name| name.to_str());
        let name = name.filter(|name| is_module && *name != "main");
        names.extend(name.map(str::to_owned));
    }
    Ok(names)
}

/// The names of the test programs that need one of these features.
pub(super) fn programs_with(workspace: &Workspace, features: &[&str]) -> Result<Vec<String>> {
    let mut metadata = MetadataCommand::new();
    metadata.no_deps().current_dir(workspace.root());
    let metadata = metadata.exec().context("cargo metadata")?;
    let package = metadata.packages.iter().find(|one| one.name == PACKAGE);
    let targets = package.map_or(&[][..], |package| &package.targets);
    let is_one = |target: &&Target| {
        let needs = |feature: &&str| target.required_features.iter().any(|one| one == feature);
        target.is_kind(TargetKind::Test) && features.iter().any(needs)
    };
    let tests = targets.iter().filter(is_one);
    let mut names: Vec<_> = tests.map(|test| test.name.clone()).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: each module of the programs with device tests can be named, and only these.
    #[test]
    fn subjects_are_modules_of_test_programs() {
        let workspace = Workspace::find().unwrap();
        let subject = |name| subject(&workspace, name).map(|subject| subject.program);
        assert_eq!(subject("connect").unwrap(), "device");
        assert_eq!(subject("cli").unwrap(), "programs");
        let error = subject("main").unwrap_err().to_string();
        assert!(
            error.contains("about \"main\". Their subjects are: atomic, "),
            "{error}"
        );
        assert!(subject("order").is_err(), "it needs no device");
    }

    #[test]
    fn a_subject_has_only_its_own_tests() {
        let subject = Subject {
            program: "device".to_owned(),
            name: "commit".to_owned(),
        };
        assert_eq!(
            subject.without_program("commit::parts::one"),
            Some("parts::one")
        );
        let tests = [
            "commit::one",
            "commit::two",
            "commits::one",
            "awaited::commit::one",
        ];
        let tests = tests.map(str::to_owned);
        assert_eq!(subject.of(&tests, &[]), tests[..2]);
        assert_eq!(
            subject.of(&tests, &["two".to_owned(), "commit".to_owned()]),
            tests[1..2]
        );
    }
}
