//! Building the guest. The host gives mmdebstrap and its kernel's namespaces; everything else runs
//! inside the new root.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::chroot;
use super::recipe;
use crate::host::Workspace;
use crate::process::output;
use crate::progress::run_step;

/// The ending of a guest's name while it is built.
pub(super) const PARTIAL: &str = ".partial";

/// Builds the guest as `name` in `cache`; it appears there only when it is complete. The caller
/// holds the exclusive lock.
pub(super) fn build(workspace: &Workspace, cache: &Path, name: &str) -> Result<()> {
    let started = Instant::now();
    let dir = cache.join(name);
    println!(
        "Building the guest, once for this recipe (1 to 5 minutes): {}",
        dir.display()
    );
    check_namespaces()?;

    let partial = cache.join(format!("{name}{PARTIAL}"));
    remove_tree(&partial)?;
    let (root, scripts) = (partial.join("root"), partial.join("recipe"));
    fs::create_dir_all(&scripts).with_context(|| format!("cannot make {}", scripts.display()))?;
    for (name, text) in recipe::FILES {
        fs::write(scripts.join(name), text)?;
    }

    let log = workspace.log_file("guest-build.log")?;
    let mut mmdebstrap = chroot::namespace("mmdebstrap");
    mmdebstrap
        .arg("--mode=root")
        .args(recipe::mmdebstrap_args())
        .arg(&root);
    run_step("Debian packages", &mut mmdebstrap, &log)?;

    // Mount points that every Debian root has and no program uses.
    let mut mounts = vec![(false, scripts, "/media"), (true, partial.clone(), "/srv")];
    let mut image = chroot::enter(&root, "ro", &mounts, "sh");
    mounts.extend(chroot::resolv_conf());
    let mut customize = chroot::enter(&root, "rw", &mounts, "sh");
    customize.arg("/media/customize.sh");
    run_step(
        "kernel, soft-iWARP, old headers, keys",
        &mut customize,
        &log,
    )?;
    run_step("disk image", image.arg("/media/image.sh"), &log)?;

    for file in "vmlinuz initrd root.img ssh_config ssh_key known_hosts".split(' ') {
        ensure!(
            partial.join(file).is_file(),
            "the guest has no {file} although no step failed; see {}",
            log.display()
        );
    }
    fs::rename(&partial, &dir)?;
    let used = output(Command::new("du").arg("-sh").arg(&dir)).unwrap_or_default();
    let used = used.split_whitespace().next().unwrap_or("unknown size");
    let seconds = started.elapsed().as_secs();
    println!("       {used} on disk, built in {seconds} s");
    Ok(())
}

/// A container may lack the rights that the build needs: better said before it starts.
fn check_namespaces() -> Result<()> {
    output(&mut chroot::namespace("true")).map(drop).context(
        "this host does not let us make a mount namespace, in which the guest is built without \
         leaving mounts behind. In a container it takes CAP_SYS_ADMIN; without root it takes \
         unprivileged user namespaces and lines for this user in /etc/subuid and /etc/subgid, or \
         run the command with sudo",
    )
}

/// Deletes a guest, even if its files belong to another user.
pub(super) fn remove_tree(dir: &Path) -> Result<()> {
    let deleted = output(chroot::namespace("rm").arg("-rf").arg(dir)).map(drop);
    deleted.with_context(|| format!("cannot delete {}", dir.display()))
}
