//! The kernel's modules: whether they are loaded, and whether this kernel has them.

use serde::Serialize;

use super::{Files, drivers};

/// The modules that every program on librdmacm needs, in the order of their dependences; and a file
/// that each of them makes, also if it is built in.
const MODULES: [(&str, &str); 4] = [
    ("ib_core", "sys/class/infiniband"),
    ("ib_uverbs", "sys/class/infiniband_verbs"),
    // It makes no file of its own.
    ("rdma_cm", "sys/class/misc/rdma_cm"),
    ("rdma_ucm", "sys/class/misc/rdma_cm"),
];

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Module {
    pub(crate) name: &'static str,
    pub(crate) state: ModuleState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ModuleState {
    /// Or built in.
    Loaded,
    /// It can be loaded, as far as this process sees.
    Missing,
    /// It cannot be loaded: this kernel was built without it.
    Absent,
}

/// The modules that a kernel was built with.
pub(super) struct Kernel {
    /// `None` if they cannot be seen, as in a container.
    loadable: Option<Vec<String>>,
    built_in: Vec<String>,
}

impl Kernel {
    pub(super) fn read(files: &Files) -> Self {
        Self {
            loadable: listed(files, "modules.dep"),
            built_in: listed(files, "modules.builtin").unwrap_or_default(),
        }
    }

    pub(super) fn state(&self, files: &Files, module: &str) -> ModuleState {
        let is_listed = |list: &Vec<String>| list.iter().any(|name| name == module);
        if is_listed(&self.built_in) || files.exists(format!("sys/module/{module}")) {
            ModuleState::Loaded
        } else if self.loadable.as_ref().is_none_or(is_listed) {
            ModuleState::Missing
        } else {
            ModuleState::Absent
        }
    }

    /// The modules of remedies that it does not have.
    pub(super) fn absent(&self, files: &Files) -> Vec<&'static str> {
        let is_absent = |module: &&str| self.state(files, module) == ModuleState::Absent;
        of_remedies().filter(is_absent).collect()
    }

    /// The state of each module that RDMA needs.
    pub(super) fn modules(&self, files: &Files) -> Vec<Module> {
        let module = |(name, made)| Module {
            name,
            state: match files.exists(made) {
                true => ModuleState::Loaded,
                false => self.state(files, name),
            },
        };
        MODULES.map(module).into()
    }
}

pub(super) fn is_replaced(files: &Files) -> bool {
    let release = files.word("proc/sys/kernel/osrelease");
    let others = files.names("lib/modules");
    release.is_some_and(|release| !others.is_empty() && !others.contains(&release))
}

/// A line `install MODULE COMMAND` runs the command in the place of loading (modprobe.d(5)).
pub(super) fn forbidden(files: &Files) -> Vec<(&'static str, String)> {
    let dirs = ["etc/modprobe.d", "run/modprobe.d", "usr/lib/modprobe.d"];
    let paths = dirs.into_iter().flat_map(|dir| {
        let names = files.names(dir).into_iter();
        names.map(move |name| format!("{dir}/{name}"))
    });
    let module = |line: String| {
        let mut words = line.split_whitespace();
        let module = words
            .next()
            .filter(|word| *word == "install")
            .and(words.next())?;
        let module = module.replace('-', "_");
        MODULES
            .into_iter()
            .map(|(name, _)| name)
            .find(|name| module == *name)
    };
    let of_file = |path: String| {
        let found = files.lines(&path).into_iter().flatten().find_map(module)?;
        Some((found, path))
    };
    paths.filter_map(of_file).collect()
}

/// The modules that a remedy can load.
fn of_remedies() -> impl Iterator<Item = &'static str> {
    drivers::modules().chain(["rdma_rxe", "ib_ipoib", "device_dax"])
}

/// The modules in a list of the kernel's build. A line begins with a path:
/// `kernel/drivers/infiniband/core/ib_core.ko.xz: ...`.
fn listed(files: &Files, list: &str) -> Option<Vec<String>> {
    let release = files.word("proc/sys/kernel/osrelease")?;
    let lines = files.lines(format!("lib/modules/{release}/{list}")).ok()?;
    let name = |line: String| {
        let path = line.split(':').next()?;
        let file = path.rsplit('/').next()?;
        Some(file.split('.').next()?.replace('-', "_"))
    };
    Some(lines.filter_map(name).collect())
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::files::tests::tree;
    use super::*;

    fn states(paths: &[(&str, &str)]) -> io::Result<Vec<ModuleState>> {
        let tree = tree(paths)?;
        let files = Files::new(tree.path());
        let modules = Kernel::read(&files).modules(&files);
        Ok(modules.iter().map(|module| module.state).collect())
    }

    #[test]
    fn modules_are_loaded_built_in_or_missing() -> io::Result<()> {
        use ModuleState::{Absent, Loaded, Missing};
        assert_eq!(states(&[])?, [Missing; 4]);
        let loaded = [
            ("sys/module/ib_core/", ""),
            ("sys/module/ib_uverbs/", ""),
            ("sys/module/rdma_cm/", ""),
        ];
        assert_eq!(states(&loaded)?, [Loaded, Loaded, Loaded, Missing]);
        let built_in = [
            ("proc/sys/kernel/osrelease", "6.12.1\n"),
            (
                "lib/modules/6.12.1/modules.builtin",
                "kernel/drivers/infiniband/core/ib_core.ko\nkernel/drivers/infiniband/core/rdma_cm.ko\nspoilt\n",
            ),
            ("sys/class/infiniband_verbs/", ""),
        ];
        assert_eq!(states(&built_in)?, [Loaded, Loaded, Loaded, Missing]);
        let cut_down = [
            ("proc/sys/kernel/osrelease", "6.12.1\n"),
            (
                "lib/modules/6.12.1/modules.dep",
                "kernel/drivers/infiniband/core/ib_core.ko.xz: kernel/drivers/dax/rdma_cm.ko.xz\n",
            ),
        ];
        assert_eq!(states(&cut_down)?, [Missing, Absent, Absent, Absent]);
        // In a container without /lib/modules, the files show it.
        assert_eq!(
            states(&[("sys/class/misc/rdma_cm/", "")])?[2..],
            [Loaded; 2]
        );
        Ok(())
    }
}
