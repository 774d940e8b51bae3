//! Fresh PostgreSQL data folders, quickly: `initdb` runs once, later ones are copies.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::binaries::{PostgresBinaries, servers_dirs};
use crate::user::User;

/// Makes `data` the data folder of a new cluster.
///
/// Copies share the system identifier of the kept cluster; with `own_identity` the cluster gets one
/// of its own, which takes a second.
pub(crate) fn create(
    binaries: &PostgresBinaries,
    user: &User,
    data: &Path,
    own_identity: bool,
) -> Result<()> {
    // Only cargo's target folder may keep things; where there is none, nothing is kept.
    let keep = servers_dirs().into_iter().find(|it| it.parent().is_some_and(Path::is_dir));
    // A target folder that another user built in cannot keep ours.
    let kept = keep.filter(|_| !own_identity).and_then(|it| kept(binaries, user, &it).ok());
    match kept {
        Some(kept) => copy(&kept, data, user),
        None => initdb(binaries, user, data),
    }
}

fn kept(binaries: &PostgresBinaries, user: &User, keep: &Path) -> Result<PathBuf> {
    let key: String = binaries
        .banner
        .chars()
        .map(|it| if it.is_ascii_alphanumeric() || it == '.' { it } else { '-' })
        .collect();
    let uid = rustix::process::geteuid().as_raw();
    let cluster = keep.join(format!("cluster2-{key}-{uid}"));
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
    drop_template0(binaries, user, &fresh.path().join("data"))?;
    let incoming = keep.join("cluster.incoming");
    if incoming.exists() {
        fs::remove_dir_all(&incoming).context("remove a half-made cluster")?;
    }
    copy(&fresh.path().join("data"), &incoming, &User::current())?;
    fs::rename(&incoming, &cluster).context("keep the new cluster")?;
    Ok(cluster)
}

/// Makes a cluster that nothing was copied from.
pub(crate) fn initdb(binaries: &PostgresBinaries, user: &User, data: &Path) -> Result<()> {
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
    if binaries.version.0 >= 18 {
        // As before 18: `pg_upgrade` wants both clusters alike.
        command.arg("--no-data-checksums");
    }
    user.apply(&mut command);
    let output = command.output().context("run initdb")?;
    if !output.status.success() {
        bail!("initdb failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Nothing here is created from `template0`, and it is a third of the files to copy.
fn drop_template0(binaries: &PostgresBinaries, user: &User, data: &Path) -> Result<()> {
    let mut command = Command::new(binaries.program("postgres")?);
    command.args(["--single", "-F", "-D"]).arg(data).arg("template1").current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    user.apply(&mut command);
    let mut server = command.spawn().context("run PostgreSQL by itself")?;
    let mut statements = server.stdin.take().context("its input")?;
    statements
        .write_all(
            b"UPDATE pg_database SET datistemplate = false WHERE datname = 'template0'\n\
              DROP DATABASE template0\n",
        )
        .context("drop template0")?;
    drop(statements);
    let output = server.wait_with_output().context("wait for PostgreSQL")?;
    if !output.status.success() {
        bail!("cannot drop template0: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Copies the data folder of a running server, less what belongs to that server only. The copy is
/// what a base backup is: of use only together with the log from the backup's start on.
pub(crate) fn copy_running(from: &Path, to: &Path, user: &User) -> Result<()> {
    let own = |path: &Path| {
        let parent = path.parent().and_then(Path::file_name).unwrap_or_default();
        let name = path.file_name().unwrap_or_default();
        let emptied = ["pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_stat_tmp"];
        name.as_encoded_bytes().starts_with(b"postmaster.")
            || emptied.iter().any(|it| parent == *it)
    };
    copy_where(from, to, user, &|path| !own(path))
}

/// Copies a folder; the copy belongs to `user`.
pub(crate) fn copy(from: &Path, to: &Path, user: &User) -> Result<()> {
    copy_where(from, to, user, &|_| true)
}

fn copy_where(from: &Path, to: &Path, user: &User, wanted: &dyn Fn(&Path) -> bool) -> Result<()> {
    fs::create_dir(to).with_context(|| format!("create {}", to.display()))?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    user.own(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if !wanted(&path) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            copy_where(&path, &target, user, wanted)?;
            continue;
        }
        match fs::copy(&path, &target) {
            Ok(_) => user.own(&target)?,
            // A running server removes files at any time; the log tells the copy about them.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("copy {}", path.display())),
        }
    }
    Ok(())
}
