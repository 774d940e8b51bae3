//! Fresh PostgreSQL data folders, quickly: `initdb` runs once, later ones are copies.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::binaries::{PostgresBinaries, servers_dirs};
use crate::user::User;

/// Makes `data` the data folder of a new cluster.
///
/// Copies share the system identifier of the kept cluster; with `own_identity` the cluster gets one of its own, which takes a second.
pub(crate) fn create(
    binaries: &PostgresBinaries,
    user: &User,
    data: &Path,
    own_identity: bool,
) -> Result<()> {
    // Only cargo's target folder may keep things; where there is none, nothing is kept.
    let keep = servers_dirs().into_iter().find(|it| it.parent().is_some_and(Path::is_dir));
    match keep {
        Some(keep) if !own_identity => copy(&kept(binaries, user, &keep)?, data, user),
        _ => initdb(binaries, user, data),
    }
}

fn kept(binaries: &PostgresBinaries, user: &User, keep: &Path) -> Result<PathBuf> {
    let key: String = binaries
        .banner
        .chars()
        .map(|it| if it.is_ascii_alphanumeric() || it == '.' { it } else { '-' })
        .collect();
    let cluster = keep.join(format!("cluster-{key}"));
    if cluster.exists() {
        return Ok(cluster);
    }
    fs::create_dir_all(keep).with_context(|| format!("create {}", keep.display()))?;
    // Tests start in many processes at once: one prepares, the others wait.
    let lock = File::create(keep.join("cluster.lock")).context("create the cluster lock")?;
    lock.lock().context("take the cluster lock")?;
    if cluster.exists() {
        return Ok(cluster);
    }
    let fresh = tempfile::Builder::new().prefix("tailpost-initdb-").tempdir_in(user.temp_dir())?;
    user.own(fresh.path())?;
    initdb(binaries, user, &fresh.path().join("data"))?;
    let incoming = keep.join("cluster.incoming");
    if incoming.exists() {
        fs::remove_dir_all(&incoming).context("remove a half-made cluster")?;
    }
    copy(&fresh.path().join("data"), &incoming, &User::current())?;
    fs::rename(&incoming, &cluster).context("keep the new cluster")?;
    Ok(cluster)
}

fn initdb(binaries: &PostgresBinaries, user: &User, data: &Path) -> Result<()> {
    let program = binaries.program("initdb")?;
    if !user.reaches(&program) {
        bail!(
            "{} is in a folder that only root may enter, and PostgreSQL will not run as root: move it, or work as another user",
            program.display()
        );
    }
    let mut command = Command::new(program);
    command
        .args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale"])
        .args(["--no-sync", "--no-instructions", "--pgdata"])
        .arg(data)
        .env("TZ", "UTC")
        .current_dir("/");
    user.apply(&mut command);
    let output = command.output().context("run initdb")?;
    if !output.status.success() {
        bail!("initdb failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Copies a folder; the copy belongs to `user`.
fn copy(from: &Path, to: &Path, user: &User) -> Result<()> {
    fs::create_dir(to).with_context(|| format!("create {}", to.display()))?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    user.own(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target, user)?;
            continue;
        }
        fs::copy(entry.path(), &target).with_context(|| format!("copy {}", target.display()))?;
        user.own(&target)?;
    }
    Ok(())
}
