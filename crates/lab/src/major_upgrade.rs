//! `pg_upgrade`, as an operator runs it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::binaries::PostgresBinaries;
use crate::postgres::{Postgres, defaults};
use crate::template_cluster;

impl Postgres {
    /// Upgrades the stopped server to a major version with `pg_upgrade`: the next start runs that one,
    /// on the same port. It has to have been started as [complete](crate::PostgresOptions::complete).
    /// Returns what `pg_upgrade` printed.
    ///
    /// # Errors
    ///
    /// When the binaries are not there, or `pg_upgrade` refuses: then the server stays as it was, and
    /// the message has what `pg_upgrade` printed.
    pub async fn upgrade_to(&mut self, major: u32) -> Result<String> {
        let new = PostgresBinaries::find_complete(major)?;
        let (old, user) = (self.binaries.clone(), self.server.user().clone());
        let folder = self.server.folder().to_path_buf();
        let work = {
            let new = new.clone();
            move || {
                let data = folder.join("upgraded");
                if data.exists() {
                    fs::remove_dir_all(&data)
                        .context("remove the cluster of an earlier attempt")?;
                }
                template_cluster::initdb(&new, &user, &data)?;
                let mut command = Command::new(new.program("pg_upgrade")?);
                user.apply(&mut command);
                run(command
                    .arg("--old-bindir")
                    .arg(&old.dir)
                    .arg("--new-bindir")
                    .arg(&new.dir)
                    .arg("--old-datadir")
                    .arg(folder.join("data"))
                    .arg("--new-datadir")
                    .arg(&data)
                    .args(["--username=postgres", "--socketdir"])
                    .arg(&folder)
                    // What a new cluster needs to take logical slots along.
                    .args(["--new-options", "-c wal_level=logical -c max_replication_slots=20"])
                    .args(["--old-options", "-c fsync=off", "--copy"])
                    .current_dir(&folder))
            }
        };
        let printed = tokio::task::spawn_blocking(work).await??;
        let folder = self.server.folder();
        fs::rename(folder.join("data"), folder.join("before"))
            .context("set the old cluster aside")?;
        fs::rename(folder.join("upgraded"), folder.join("data")).context("take the new cluster")?;
        self.binaries = new;
        self.append_settings(&defaults(false))?;
        Ok(printed)
    }

    /// Runs one of this version's programs, such as `pg_dump`, and returns what it printed.
    ///
    /// # Errors
    ///
    /// When it is not there or fails.
    pub async fn run_program(&self, name: &str, args: &[&str]) -> Result<String> {
        let program = self.binaries.program(name)?;
        let args: Vec<String> = args.iter().map(|it| (*it).to_owned()).collect();
        let work = move || run(Command::new(program).args(args).current_dir(Path::new("/")));
        tokio::task::spawn_blocking(work).await?
    }
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} ended with {}:\n{printed}{said}", output.status);
    }
    Ok(printed)
}
