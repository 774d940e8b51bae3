//! What the processes said, kept for the case that something went wrong.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};

/// Ended processes whose logs are remembered; a soak ends hundreds.
const ENDED_MAX: usize = 20;

/// Of a log its end is kept.
const BYTES_MAX: usize = 512 * 1024;

/// Whether one of our tasks panicked. The NATS client's own ends at a message whose header has a
/// carriage return (<https://github.com/nats-io/nats.rs/pull/1612>); relay and inbox open another
/// client then.
fn is_panic(line: &str) -> bool {
    let is_clients = line.contains("/async-nats-") && line.contains("/src/header.rs:");
    line.contains("panicked at") && !is_clients
}

/// The logs of relays and inboxes that have ended, the last ones.
#[derive(Clone, Default)]
pub(super) struct Logs(Arc<Mutex<Ended>>);

#[derive(Default)]
struct Ended {
    logs: VecDeque<(String, String)>,
    panicked: Option<String>,
}

impl Logs {
    pub(super) fn add(&self, name: &str, log: &str) {
        let Ok(mut ended) = self.0.lock() else { return };
        if let Some(line) = log.lines().find(|line| is_panic(line)) {
            ended.panicked.get_or_insert_with(|| format!("{name}: {line}"));
        }
        ended.logs.push_back((name.to_owned(), end_of(log).to_owned()));
        if ended.logs.len() > ENDED_MAX {
            ended.logs.pop_front();
        }
    }

    /// Fails if one of them panicked, even if the next one mended everything.
    pub(super) fn check(&self) -> Result<()> {
        match self.0.lock().ok().and_then(|it| it.panicked.clone()) {
            Some(line) => bail!("a process panicked: {line}"),
            None => Ok(()),
        }
    }

    /// Writes these logs, and those of the servers, into a folder that stays.
    pub(super) fn keep(&self, title: &str, servers: &[(&str, String)]) -> Result<PathBuf> {
        let folder = tempfile::Builder::new().prefix(&format!("tailpost-chaos-{title}-")).tempdir();
        let folder = folder.context("create a folder for the logs")?.keep();
        let write = |name: &str, log: &str| {
            let path = folder.join(format!("{name}.log"));
            fs::write(&path, log).with_context(|| format!("write {}", path.display()))
        };
        for (name, log) in servers {
            write(name, log)?;
        }
        if let Ok(ended) = self.0.lock() {
            for (name, log) in &ended.logs {
                write(name, log)?;
            }
        }
        Ok(folder)
    }
}

fn end_of(log: &str) -> &str {
    let from = log.len().saturating_sub(BYTES_MAX);
    log.get(log.ceil_char_boundary(from)..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_clients_panic_over_a_header_is_none_of_ours() {
        let line = |path| format!("thread 'tokio-rt-worker' (7) panicked at {path}:409:9:");
        assert!(is_panic(&line("crates/inbox/src/worker.rs")));
        assert!(is_panic(&line("/registry/async-nats-0.51.0/src/connection.rs")));
        assert!(!is_panic(&line("/registry/async-nats-0.51.0/src/header.rs")));
    }
}
