//! Subjects that the durable consumer is not for any more.
//!
//! Workers of two configurations may take turns. Each passes over what only the other one is for. The
//! consumer's metadata has from where on each subject was left out, for the worker that adds it again.

use std::collections::{BTreeMap, HashMap};

use async_nats::jetstream::consumer::{self, Info};
use outbox::wire::{subject_matches, subjects_overlap};

use super::filters_of;
use crate::config::Config;

const LEFT_OUT: &str = "tailpost.left_out";

/// The sequence from which on each subject was left out.
type LeftOut = BTreeMap<String, u64>;

/// Where the first of the subjects was left out that the configuration adds again.
pub(crate) fn left_out(found: &consumer::Config, config: &Config) -> Option<u64> {
    let (now, mut wanted) = (or_all(filters_of(found)), or_all(config.filter_subjects.clone()));
    wanted.retain(|it| !now.iter().any(|now| covers(now, it)));
    let is_added = |left: &String| wanted.iter().any(|it| subjects_overlap(it, left));
    noted(&found.metadata).into_iter().filter(|(it, _)| is_added(it)).map(|it| it.1).min()
}

/// Notes where the subjects are left out that the configuration does not have.
pub(super) fn note(metadata: &mut HashMap<String, String>, found: &Info, config: &Config) {
    let (mut left, wanted) = (noted(metadata), or_all(config.filter_subjects.clone()));
    for subject in or_all(filters_of(&found.config)) {
        left.entry(subject).or_insert(found.ack_floor.stream_sequence + 1);
    }
    left.retain(|it, _| !wanted.iter().any(|wanted| covers(wanted, it)));
    match serde_json::to_string(&left) {
        Ok(text) if !left.is_empty() => _ = metadata.insert(LEFT_OUT.into(), text),
        _ => _ = metadata.remove(LEFT_OUT),
    }
}

fn noted(metadata: &HashMap<String, String>) -> LeftOut {
    metadata.get(LEFT_OUT).and_then(|it| serde_json::from_str(it).ok()).unwrap_or_default()
}

/// No filter is all.
fn or_all(filters: Vec<String>) -> Vec<String> {
    if filters.is_empty() { vec![">".into()] } else { filters }
}

/// Whether all subjects of the one are subjects of `wide`.
fn covers(wide: &str, one: &str) -> bool {
    subject_matches(wide, one) && (wide.ends_with('>') || !one.ends_with('>'))
}
