//! Processor time of processes, as `/proc` has it.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The processor time that a process has used, all threads, in user and kernel mode.
///
/// # Errors
///
/// When there is no such process, or it has ended and waits to be reaped.
pub(crate) fn of_process(pid: u32) -> Result<Duration> {
    let stat = read(pid)?;
    if stat.state == 'Z' {
        bail!("process {pid} has ended");
    }
    Ok(ticks(stat.own))
}

/// The processor time of a process, its children, and all children it ever waited for: a PostgreSQL
/// server's backends come and go.
///
/// # Errors
///
/// When there is no such process.
pub(crate) fn of_family(pid: u32) -> Result<Duration> {
    loop {
        let before = read(pid)?;
        let children = of_children(pid)?;
        // A child reaped meanwhile may be missing, or count twice: look again.
        if read(pid)?.reaped == before.reaped {
            return Ok(ticks(before.own + before.reaped + children));
        }
    }
}

/// The processor time of this process's children that have ended and were waited for.
///
/// # Errors
///
/// When `/proc` cannot be read.
pub(crate) fn of_reaped() -> Result<Duration> {
    Ok(ticks(read(std::process::id())?.reaped))
}

fn of_children(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir("/proc").context("list processes")? {
        let name = entry?.file_name();
        let Some(child) = name.to_str().and_then(|it| it.parse().ok()) else { continue };
        // Gone since the folder was listed: its parent has its time now.
        let Ok(stat) = read(child) else { continue };
        if stat.parent == pid {
            sum += stat.own + stat.reaped;
        }
    }
    Ok(sum)
}

/// The most memory that a process ever had resident, in bytes.
///
/// # Errors
///
/// When there is no such process.
pub(crate) fn peak_resident_bytes(pid: u32) -> Result<u64> {
    lab::peak_memory_bytes(pid).with_context(|| format!("process {pid} has ended"))
}

struct Stat {
    state: char,
    parent: u32,
    /// Clock ticks.
    own: u64,
    reaped: u64,
}

fn read(pid: u32) -> Result<Stat> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    parse(&stat).with_context(|| format!("{path} is not understood"))
}

/// Reads `pid (name) state parent …`; the name may hold spaces and parentheses. Fields 14 to 17 of
/// proc(5) are utime, stime, cutime and cstime.
fn parse(stat: &str) -> Option<Stat> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        own: number(14)? + number(15)?,
        reaped: number(16)? + number(17)?,
    })
}

fn ticks(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_process_are_found_behind_its_name() {
        let stat = parse("7 (a) b) c) S 42 7 7 0 -1 64 1 2 3 4 100 20 3 1 20 0").unwrap();
        assert_eq!((stat.state, stat.parent, stat.own, stat.reaped), ('S', 42, 120, 4));
        assert!(parse("7 (x) Z 1").is_none());
    }

    #[test]
    fn work_takes_processor_time() {
        let me = std::process::id();
        let before = of_process(me).unwrap();
        let family = of_family(me).unwrap();
        while of_process(me).unwrap() < before + Duration::from_millis(50) {}
        assert!(of_family(me).unwrap() >= family + Duration::from_millis(40));
        assert!(peak_resident_bytes(me).unwrap() > 100_000);
    }
}
