//! Finds server binaries, in the places where `scripts/servers` finds or puts them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The oldest versions the relay's default mode works with; older ones are used only when asked
/// for, or when there is nothing else.
const POSTGRES_MIN: Version = Version(14, 0, 0);
const NATS_MIN: Version = Version(2, 11, 11);

/// Places of PostgreSQL's binaries besides `PATH`; `*` stands for a version, of which the newest is
/// tried first.
const POSTGRES_PLACES: [&str; 5] = [
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
];
const NATS_PLACES: [&str; 4] =
    ["/usr/sbin", "/usr/local/bin", "/opt/homebrew/bin", "/usr/local/opt/nats-server/bin"];

const PROMETHEUS_MIN: Version = Version(2, 42, 0);
const PROMETHEUS_PLACES: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"];

/// A server's version; missing parts are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32, pub(crate) u32);

impl Version {
    /// The first word of `text` that begins like a version, such as `15.18`, `18beta1`, `v2.15.1`.
    fn find(text: &str) -> Option<Self> {
        text.split_ascii_whitespace().find_map(|word| {
            let mut parts = word.trim_start_matches('v').split('.').map(|part| {
                let digits = part.find(|it: char| !it.is_ascii_digit()).unwrap_or(part.len());
                part[..digits].parse().ok()
            });
            let major = parts.next()??;
            let mut next = || parts.next().flatten().unwrap_or(0);
            Some(Self(major, next(), next()))
        })
    }
}

/// The folder of a PostgreSQL installation's binaries.
#[derive(Debug, Clone)]
pub(crate) struct PostgresBinaries {
    pub(crate) dir: PathBuf,
    pub(crate) version: Version,
    /// What `pg_ctl --version` says, builder and all.
    pub(crate) banner: String,
}

impl PostgresBinaries {
    /// Finds PostgreSQL, of the major version `wanted` if given.
    pub(crate) fn find(wanted: Option<u32>) -> Result<Self> {
        if let Some(dir) = env::var_os("TAILPOST_PG_BIN").map(PathBuf::from)
            && wanted.is_none()
        {
            return Self::look(&dir)
                .with_context(|| format!("no PostgreSQL in TAILPOST_PG_BIN={}", dir.display()));
        }
        let on_path = on_path("postgres").filter_map(|it| Some(it.parent()?.to_path_buf()));
        let usual = POSTGRES_PLACES.iter().flat_map(|it| expand(Path::new(it)));
        let fetched =
            servers_dirs().into_iter().flat_map(|it| expand(&it.join("postgresql-*/bin")));
        let found =
            on_path.chain(usual).chain(fetched).filter_map(|it| Self::look(&it)).find(|it| {
                wanted.map_or(it.version >= POSTGRES_MIN, |major| it.version.0 == major)
            });
        match (found, wanted) {
            (Some(found), _) => Ok(found),
            (None, Some(major)) => {
                bail!("found no PostgreSQL {major}: run `scripts/servers --all`")
            }
            (None, None) => bail!("found no PostgreSQL (14 or later): run `scripts/servers`"),
        }
    }

    /// Finds PostgreSQL of a major version with all its programs, `pg_upgrade` and `pg_dump` among
    /// them, which [`find`](Self::find) does not look for.
    pub(crate) fn find_complete(major: u32) -> Result<Self> {
        let usual = POSTGRES_PLACES.iter().flat_map(|it| expand(Path::new(it)));
        let fetched = servers_dirs().into_iter().flat_map(|it| expand(&it.join("complete-*/bin")));
        let is_complete =
            |it: &Self| ["pg_upgrade", "pg_dump"].map(|name| it.dir.join(name).is_file());
        usual
            .chain(fetched)
            .filter_map(|dir| Self::look(&dir))
            .find(|it| it.version.0 == major && is_complete(it) == [true, true])
            .with_context(|| {
                format!("found no PostgreSQL {major} with pg_upgrade: run `scripts/servers --all`")
            })
    }

    fn look(dir: &Path) -> Option<Self> {
        if !dir.join("initdb").is_file() {
            return None;
        }
        // It says what the server says, and links a tenth of its libraries. Not everybody has it.
        let banner = banner(&dir.join("pg_ctl")).or_else(|| banner(&dir.join("postgres")))?;
        Some(Self { dir: dir.to_path_buf(), version: Version::find(&banner)?, banner })
    }

    /// The path of one program, which not every installation has.
    pub(crate) fn program(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        if !path.is_file() {
            bail!("this PostgreSQL has no `{name}` in {}", self.dir.display());
        }
        Ok(path)
    }
}

/// Finds `nats-server`, of a version that begins with `wanted` (such as `2.9`) if given.
pub(crate) fn find_nats(wanted: Option<&str>) -> Result<PathBuf> {
    if let Some(path) = env::var_os("TAILPOST_NATS_SERVER").map(PathBuf::from)
        && wanted.is_none()
    {
        if nats_version(&path).is_none() {
            bail!("no nats-server at TAILPOST_NATS_SERVER={}", path.display());
        }
        return Ok(path);
    }
    let usual = NATS_PLACES.iter().map(|it| Path::new(it).join("nats-server"));
    let fetched = servers_dirs().into_iter().flat_map(|it| expand(&it.join("nats-*/nats-server")));
    let candidates = on_path("nats-server").chain(usual).chain(fetched);
    let found: Vec<(PathBuf, Version, String)> = candidates
        .filter_map(|path| {
            let (version, text) = nats_version(&path)?;
            Some((path, version, text))
        })
        .collect();
    let best = match wanted {
        Some(wanted) => found.iter().find(|it| is_version(&it.2, wanted)),
        None => found.iter().find(|it| it.1 >= NATS_MIN).or(found.first()),
    };
    match (best, wanted) {
        (Some((path, ..)), _) => Ok(path.clone()),
        (None, Some(wanted)) => bail!("found no nats-server {wanted}: run `scripts/servers --all`"),
        (None, None) => bail!("found no nats-server: run `scripts/servers`"),
    }
}

/// Finds the folder of a Prometheus with its promtool.
///
/// # Errors
///
/// When there is none; the message says how to get one.
pub fn prometheus_binaries() -> Result<PathBuf> {
    let is_there = |dir: &PathBuf| {
        let version = banner(&dir.join("prometheus")).and_then(|it| Version::find(&it));
        dir.join("promtool").is_file() && version.is_some_and(|it| it >= PROMETHEUS_MIN)
    };
    if let Some(dir) = env::var_os("TAILPOST_PROMETHEUS_BIN").map(PathBuf::from) {
        if !is_there(&dir) {
            bail!("no Prometheus with promtool in TAILPOST_PROMETHEUS_BIN={}", dir.display());
        }
        return Ok(dir);
    }
    let on_path = on_path("prometheus").filter_map(|it| Some(it.parent()?.to_path_buf()));
    let usual = PROMETHEUS_PLACES.iter().map(PathBuf::from);
    let fetched = servers_dirs().into_iter().flat_map(|it| expand(&it.join("prometheus-*")));
    let found = on_path.chain(usual).chain(fetched).find(is_there);
    found.context("found no Prometheus with promtool: run `scripts/servers --prometheus`")
}

fn nats_version(path: &Path) -> Option<(Version, String)> {
    let banner = banner(path)?;
    let text = banner.strip_prefix("nats-server:")?.trim().trim_start_matches('v').to_owned();
    Some((Version::find(&text)?, text))
}

/// Whether `version` is `wanted` or a release of it: `2.9` takes 2.9.10 but not 2.90.
fn is_version(version: &str, wanted: &str) -> bool {
    version.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn banner(program: &Path) -> Option<String> {
    if !program.is_file() {
        return None;
    }
    let output = Command::new(program).arg("--version").output().ok()?;
    let banner = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| banner.trim().to_owned())
}

/// Every `name` on `PATH`, links resolved: a link in `/usr/local/bin` does not have its neighbours.
fn on_path(name: &str) -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found: Vec<PathBuf> = env::split_paths(&path)
        .filter_map(|dir| fs::canonicalize(dir.join(name)).ok())
        .filter(|it| it.is_file())
        .collect();
    found.into_iter()
}

/// Where `scripts/servers` puts what it fetches, and where prepared clusters are kept: `servers` in
/// cargo's target folder.
pub(crate) fn servers_dirs() -> Vec<PathBuf> {
    let path = |name| env::var_os(name).map(PathBuf::from);
    Places {
        executable: env::current_exe().ok(),
        target: path("CARGO_TARGET_DIR"),
        package: path("CARGO_MANIFEST_DIR"),
        here: env::current_dir().ok(),
    }
    .servers_dirs()
}

/// What tells where cargo's target folder may be.
#[derive(Debug, Default)]
struct Places {
    /// This program, which cargo puts below the target folder.
    executable: Option<PathBuf>,
    /// `CARGO_TARGET_DIR`, which may be relative.
    target: Option<PathBuf>,
    /// `CARGO_MANIFEST_DIR`, which cargo sets for what it runs: a folder of the workspace.
    package: Option<PathBuf>,
    here: Option<PathBuf>,
}

impl Places {
    fn servers_dirs(&self) -> Vec<PathBuf> {
        let target = self.target.as_deref().unwrap_or(Path::new("target"));
        let built_in = self.executable.iter().flat_map(|it| it.ancestors().skip(1));
        let built_in = built_in.filter(|it| is_target(it)).map(|it| it.join("servers")).take(1);
        // Cargo may build elsewhere than `scripts/servers` fetches to (`build.target-dir`).
        let workspace = self.package.iter().flat_map(|it| it.ancestors());
        let workspace = workspace.map(|it| it.join(target).join("servers"));
        let workspace = workspace.filter(|it| it.is_dir()).take(1);
        let here = self.here.iter().map(|it| it.join(target).join("servers"));
        let mut dirs: Vec<PathBuf> = Vec::new();
        for dir in built_in.chain(workspace).chain(here) {
            if !dirs.contains(&dir) {
                dirs.push(dir);
            }
        }
        dirs
    }
}

/// Whether cargo builds in this folder. It writes the tag only if it makes the folder itself, the
/// other file always.
fn is_target(folder: &Path) -> bool {
    ["CACHEDIR.TAG", ".rustc_info.json"].iter().any(|it| folder.join(it).is_file())
}

/// The existing paths that `pattern` stands for, in which one component may hold one `*`; newest
/// version first.
fn expand(pattern: &Path) -> Vec<PathBuf> {
    let components: Vec<_> = pattern.components().collect();
    let star = components.iter().position(|it| it.as_os_str().to_string_lossy().contains('*'));
    let Some(star) = star else {
        return Vec::from_iter(pattern.exists().then(|| pattern.to_path_buf()));
    };
    let parent: PathBuf = components[..star].iter().collect();
    let rest: PathBuf = components[star + 1..].iter().collect();
    let component = components[star].as_os_str().to_string_lossy();
    let Some((prefix, suffix)) = component.split_once('*') else { return Vec::new() };

    let mut found: Vec<(Version, PathBuf)> = Vec::new();
    for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let version = name.strip_prefix(prefix).and_then(|it| it.strip_suffix(suffix));
        let path = entry.path().join(&rest);
        if let Some(version) = version.and_then(Version::find)
            && path.exists()
        {
            found.push((version, path));
        }
    }
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_banners() {
        let check = |text, expect| assert_eq!(Version::find(text), expect, "{text}");
        check("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", Some(Version(15, 18, 0)));
        check("postgres (PostgreSQL) 18beta1", Some(Version(18, 0, 0)));
        check("v2.15.1", Some(Version(2, 15, 1)));
        check("2.9.10", Some(Version(2, 9, 10)));
        check("nonsense", None);
    }

    #[test]
    fn a_wanted_version_is_matched_part_by_part() {
        assert!(is_version("2.9.10", "2.9"));
        assert!(is_version("2.9.10", "2.9.10"));
        assert!(!is_version("2.90.1", "2.9"));
    }

    #[test]
    fn patterns_give_the_newest_version_first() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["server-9", "server-10", "server-10.2", "server-x", "other-11"] {
            fs::create_dir_all(dir.path().join(name).join("bin")).unwrap();
        }
        fs::create_dir(dir.path().join("server-12")).unwrap();
        let found = expand(&dir.path().join("server-*/bin"));
        let names = ["server-10.2", "server-10", "server-9"];
        let expect: Vec<_> = names.iter().map(|it| dir.path().join(it).join("bin")).collect();
        assert_eq!(found, expect);
    }

    /// A workspace with a program in its target folder, and where its servers would be.
    fn workspace(marker: &str) -> (tempfile::TempDir, Places, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        let (deps, servers) = (target.join("debug/deps"), target.join("servers"));
        fs::create_dir_all(&deps).unwrap();
        fs::create_dir_all(&servers).unwrap();
        if !marker.is_empty() {
            fs::write(target.join(marker), "").unwrap();
        }
        let places = Places { executable: Some(deps.join("tests")), ..Places::default() };
        (dir, places, servers)
    }

    #[test]
    fn servers_are_found_beside_what_cargo_built() {
        // The tag is missing where something else than cargo made the folder.
        for marker in ["CACHEDIR.TAG", ".rustc_info.json"] {
            let (_dir, places, servers) = workspace(marker);
            assert_eq!(places.servers_dirs(), [servers], "{marker}");
        }
        let (_dir, places, _) = workspace("");
        assert!(places.servers_dirs().is_empty(), "any other program's folder is not searched");
    }

    #[test]
    fn servers_are_found_in_the_workspace_when_cargo_builds_elsewhere() {
        let (dir, _, servers) = workspace("");
        let package = Some(dir.path().join("crates/one"));
        let places = Places { package: package.clone(), ..Places::default() };
        assert_eq!(places.servers_dirs(), [servers]);

        let configured = dir.path().join("built/servers");
        fs::create_dir_all(&configured).unwrap();
        let places = Places { package, target: Some("built".into()), ..Places::default() };
        assert_eq!(places.servers_dirs(), [configured]);
    }
}
