//! The computer that we run on: the clone, the Rust toolchain, a clean environment for commands.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The clone that this program belongs to.
#[derive(Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    pub(crate) fn find() -> Result<Self> {
        // cargo sets the variable for what it runs; a copied binary falls back to where it is from.
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest.parent().unwrap_or(&manifest).canonicalize();
        let root = root.with_context(|| format!("no workspace around {}", manifest.display()))?;
        Ok(Self { root })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A directory for this program's own files, made if it is not there.
    pub(crate) fn state_dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.root.join("target/xtask").join(name);
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(dir)
    }

    /// A directory that this process has for itself as long as the returned file is open.
    pub(crate) fn own_dir(&self, name: &str) -> Result<(PathBuf, File)> {
        let dir = self.state_dir(name)?;
        let path = dir.join("lock");
        let lock =
            File::create(&path).with_context(|| format!("cannot open {}", path.display()))?;
        if lock.try_lock().is_err() {
            bail!("`cargo xtask {name}` is at work in this clone already; wait until it has ended");
        }
        Ok((dir, lock))
    }

    /// An empty log file.
    pub(crate) fn log_file(&self, name: &str) -> Result<PathBuf> {
        let path = self.state_dir("logs")?.join(name);
        std::fs::write(&path, "").with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// The host's `cargo` in the clone.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new("cargo");
        command.current_dir(&self.root);
        clean_env(&mut command);
        command
    }
}

/// The host's Rust, lent to the guest's root.
#[derive(Debug)]
pub(crate) struct Toolchain {
    pub(crate) sysroot: PathBuf,
    pub(crate) cargo_home: PathBuf,
}

impl Toolchain {
    pub(crate) fn find(workspace: &Workspace) -> Result<Self> {
        let mut rustc = Command::new("rustc");
        rustc
            .args(["--print", "sysroot"])
            .current_dir(workspace.root());
        clean_env(&mut rustc);
        let output = rustc.output().context("cannot run rustc")?;
        let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        let usable = sysroot.join("bin/cargo").is_file() && sysroot != Path::new("/usr");
        if !output.status.success() || !usable {
            bail!(
                "the Rust toolchain in \"{}\" cannot be lent to the guest, whose system is not this \
                 one: it takes a toolchain in a directory of its own, as rustup installs it",
                sysroot.display()
            );
        }
        let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
        let cargo_home = std::env::var_os("CARGO_HOME")
            .map(PathBuf::from)
            .or_else(home);
        let cargo_home = cargo_home.context("neither CARGO_HOME nor HOME is set")?;
        Ok(Self {
            sysroot,
            cargo_home,
        })
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Takes from a command what `cargo run` put into our environment, so that a cargo that we start
/// sees what a cargo started by hand sees: otherwise the two would rebuild each other's work.
fn clean_env(command: &mut Command) {
    const OURS: [&str; 6] = [
        "CARGO",
        "CARGO_MAKEFLAGS",
        "MAKEFLAGS",
        "OUT_DIR",
        "RUST_RECURSION_COUNT",
        "TARGET",
    ];
    for (name, _) in std::env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        let of_package = [
            "CARGO_PKG_",
            "CARGO_MANIFEST_",
            "CARGO_BIN_",
            "CARGO_CRATE_",
            "DEP_",
        ];
        let leaked = of_package.iter().any(|prefix| text.starts_with(prefix));
        if leaked || OURS.contains(&text) || text == "CARGO_PRIMARY_PACKAGE" {
            command.env_remove(text);
        }
    }
    // cargo puts its own directories in front of the user's.
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        let inherited = std::env::split_paths(&path).filter(|dir| !is_cargos(dir));
        match std::env::join_paths(inherited) {
            Ok(rest) if rest != OsString::new() => command.env("LD_LIBRARY_PATH", rest),
            _ => command.env_remove("LD_LIBRARY_PATH"),
        };
    }
}

fn is_cargos(dir: &Path) -> bool {
    let has = |file| dir.join(file).exists();
    // A target directory or its deps/, or the lib/ of a toolchain.
    let profile = if dir.ends_with("deps") {
        dir.parent().unwrap_or(dir)
    } else {
        dir
    };
    profile.join(".fingerprint").exists() || has("rustlib") || dir.ends_with("out")
}
