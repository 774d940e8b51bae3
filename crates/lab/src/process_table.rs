//! What the operating system knows about processes.

use std::fs;

use anyhow::{Context, Result};

struct Entry {
    pid: u32,
    parent: u32,
    stopped: bool,
    zombie: bool,
}

/// The process ids of the direct children of `parent`.
pub(crate) fn children_of(parent: u32) -> Result<Vec<u32>> {
    Ok(list()?.into_iter().filter(|it| it.parent == parent).map(|it| it.pid).collect())
}

/// Whether any of these processes still runs. A process that only waits to be reaped does not.
pub(crate) fn any_alive(pids: &[u32]) -> Result<bool> {
    if pids.is_empty() {
        return Ok(false);
    }
    Ok(list()?.iter().any(|it| !it.zombie && pids.contains(&it.pid)))
}

/// Whether every thread of these processes has stopped, or they are gone: a stop signal takes a
/// moment to reach each thread.
pub(crate) fn all_stopped(pids: &[u32]) -> bool {
    let threads = pids.iter().flat_map(|pid| fs::read_dir(format!("/proc/{pid}/task"))).flatten();
    let stats = threads.flatten().filter_map(|it| fs::read_to_string(it.path().join("stat")).ok());
    stats.filter_map(|it| parse_stat(0, &it)).all(|it| it.stopped || it.zombie)
}

fn list() -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir("/proc").context("list processes")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|it| it.parse().ok()) else { continue };
        // Gone since the folder was listed: nothing to report.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        entries.extend(parse_stat(pid, &stat));
    }
    Ok(entries)
}

/// Reads `pid (name) state parent …`; the name may hold spaces and parentheses.
fn parse_stat(pid: u32, stat: &str) -> Option<Entry> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let (stopped, zombie) = (state.starts_with(['T', 't']), state.starts_with(['Z', 'X']));
    Some(Entry { pid, parent, stopped, zombie })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_spaces_and_parentheses_do_not_confuse() {
        let entry = parse_stat(7, "7 (a) b) c) S 42 7 7 0 -1").unwrap();
        assert_eq!((entry.pid, entry.parent, entry.zombie), (7, 42, false));
        assert!(parse_stat(7, "7 (x) Z 1 7").unwrap().zombie);
        assert!(parse_stat(7, "garbage").is_none());
    }

    #[test]
    fn this_process_is_alive_and_a_child_of_its_parent() {
        let me = std::process::id();
        assert!(any_alive(&[me]).unwrap());
        assert!(children_of(std::os::unix::process::parent_id()).unwrap().contains(&me));
    }
}
