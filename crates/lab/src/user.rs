//! Who a server runs as.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Where Linux has a file system in memory that everybody may write to.
const MEMORY: &str = "/dev/shm";

/// Each server takes 40 MB, and more for what a test writes. Containers often have 64 MB.
const ROOM: u64 = 4 << 30;

/// The user a server runs as: the current one, or another to drop root's rights to.
#[derive(Debug, Clone, Default)]
pub(crate) struct User {
    other: Option<Ids>,
}

#[derive(Debug, Clone, Copy)]
struct Ids {
    uid: u32,
    gid: u32,
}

impl User {
    /// The user this process runs as.
    pub(crate) fn current() -> Self {
        Self { other: None }
    }

    /// The user this process runs as, unless that is root: PostgreSQL refuses to run as root.
    pub(crate) fn unprivileged() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self::current());
        }
        match ["postgres", "nobody"].into_iter().find_map(lookup) {
            Some(ids) => Ok(Self { other: Some(ids) }),
            None => bail!(
                "PostgreSQL will not run as root, and there is no user `postgres` to run it as"
            ),
        }
    }

    /// Makes `command` run as this user.
    pub(crate) fn apply(&self, command: &mut Command) {
        if let Some(Ids { uid, gid }) = self.other {
            command.uid(uid).gid(gid);
        }
    }

    /// Makes this user the owner of `path`.
    pub(crate) fn own(&self, path: &Path) -> Result<()> {
        match self.other {
            Some(Ids { uid, gid }) => chown(path, Some(uid), Some(gid))
                .with_context(|| format!("change owner of {}", path.display())),
            None => Ok(()),
        }
    }

    /// A folder for temporary files that this user can reach.
    pub(crate) fn temp_dir(&self) -> PathBuf {
        let usual = std::env::temp_dir();
        if self.reaches(&usual) { usual } else { PathBuf::from("/tmp") }
    }

    /// A folder for files that need not outlive the machine: in memory if there is room and `TMPDIR`
    /// does not say otherwise. A file system on a disk takes much longer to make and remove a
    /// thousand files again and again.
    pub(crate) fn volatile_dir(&self) -> PathBuf {
        let memory = Path::new(MEMORY);
        match std::env::var_os("TMPDIR").is_none() && self.reaches(memory) && has_room(memory) {
            true => memory.to_path_buf(),
            false => self.temp_dir(),
        }
    }

    /// Whether this user may pass through every folder on the way to `path`.
    pub(crate) fn reaches(&self, path: &Path) -> bool {
        let Some(Ids { uid, .. }) = self.other else { return true };
        let passable = |dir: &Path| {
            fs::metadata(dir).is_ok_and(|it| it.mode() & 0o001 != 0 || it.uid() == uid)
        };
        fs::canonicalize(path).is_ok_and(|it| it.ancestors().all(passable))
    }
}

/// Whether a file system in memory, and the memory itself, have room for several servers.
fn has_room(folder: &Path) -> bool {
    let free = rustix::fs::statvfs(folder).map_or(0, |it| it.f_bavail * it.f_frsize);
    let told = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = available.and_then(|it| it.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    free.min(kilobytes.unwrap_or(0) * 1024) >= ROOM
}

fn lookup(name: &str) -> Option<Ids> {
    let id = |flag| {
        let output = Command::new("id").args([flag, name]).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    };
    Some(Ids { uid: id("-u")?, gid: id("-g")? })
}
