//! Building the guest. The host gives mmdebstrap and its kernel's namespaces; everything else runs
//! inside the new root.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::chroot::{self, Access};
use super::recipe;
use crate::host::Workspace;
use crate::progress::run_step;

/// The ending of a guest's name while it is built.
pub(super) const PARTIAL: &str = ".partial";

/// Builds the guest as `dir` in `cache`; it appears there only when it is complete. The caller
/// holds the exclusive lock.
pub(super) fn build(workspace: &Workspace, cache: &Path, dir: &Path) -> Result<()> {
    let started = Instant::now();
    println!(
        "Building the guest, once for this recipe (1 to 5 minutes): {}",
        dir.display()
    );
    check_namespaces()?;

    let name = dir
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("guest");
    let partial = cache.join(format!("{name}{PARTIAL}"));
    remove_tree(&partial)?;
    let (root, out, recipe_dir) = (
        partial.join("root"),
        partial.join("out"),
        partial.join("recipe"),
    );
    for dir in [&partial, &out, &recipe_dir] {
        fs::create_dir(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    for (name, text) in recipe::FILES {
        fs::write(recipe_dir.join(name), text)?;
    }

    let log = workspace.log_file("guest-build.log")?;
    let mut mmdebstrap = chroot::namespace("mmdebstrap");
    mmdebstrap
        .arg("--mode=root")
        .args(recipe::mmdebstrap_args())
        .arg(&root);
    run_step("Debian packages", &mut mmdebstrap, &log)?;

    // Mount points that every Debian root has and nothing uses.
    let mut mounts = vec![(false, recipe_dir, "/media"), (true, out.clone(), "/srv")];
    let mut image = chroot::enter(&root, Access::ReadOnly, &mounts, "sh");
    mounts.extend(chroot::resolv_conf());
    let mut customize = chroot::enter(&root, Access::Writable, &mounts, "sh");
    customize.arg("/media/customize.sh");
    run_step("kernel, old headers, keys", &mut customize, &log)?;
    run_step("disk image", image.arg("/media/image.sh"), &log)?;

    for entry in fs::read_dir(&out)? {
        let entry = entry?;
        fs::rename(entry.path(), partial.join(entry.file_name()))?;
    }
    fs::remove_dir(&out)?;
    for file in [
        "vmlinuz",
        "initrd",
        "root.img",
        "ssh_config",
        "ssh_key",
        "known_hosts",
    ] {
        if !partial.join(file).is_file() {
            bail!(
                "the guest has no {file} although no step failed; see {}",
                log.display()
            );
        }
    }
    fs::rename(&partial, dir)?;
    println!(
        "       {} on disk, built in {} s",
        disk_use(dir),
        started.elapsed().as_secs()
    );
    Ok(())
}

/// A container may lack the rights that the build needs: better said before it starts.
fn check_namespaces() -> Result<()> {
    let output = chroot::namespace("true")
        .output()
        .context("cannot run unshare")?;
    if !output.status.success() {
        bail!(
            "this host does not let us make a mount namespace, in which the guest is built \
             without leaving mounts behind ({}). In a container it takes CAP_SYS_ADMIN; without \
             root it takes unprivileged user namespaces and lines for this user in /etc/subuid \
             and /etc/subgid, or run the command with sudo",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// Deletes a guest, whoever its files belong to.
pub(super) fn remove_tree(dir: &Path) -> Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    let output = chroot::namespace("rm").arg("-rf").arg(dir).output()?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("cannot delete {}: {}", dir.display(), why.trim());
    }
    Ok(())
}

fn disk_use(dir: &Path) -> String {
    let output = Command::new("du").arg("-sh").arg(dir).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let size = text
        .ok()
        .and_then(|text| text.split_whitespace().next().map(str::to_owned));
    size.unwrap_or_else(|| "unknown size".to_owned())
}
