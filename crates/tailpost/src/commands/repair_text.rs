//! What `verify --repair` says.

use indicatif::ProgressBar;
use operate::Repair;

use super::progress;
use crate::output;
use crate::output::Lines;

/// Says what is waited for, and how far it is.
pub(super) fn draw(bar: &ProgressBar, repair: Repair) {
    if let Some(waits) = repair.waits {
        let (waits, young) = (output::duration(waits.as_secs_f64().ceil()), repair.young);
        bar.suspend(|| {
            output::note(&format!(
                "waiting {waits} until the broker has forgotten the ids of {young} events"
            ));
        });
    }
    progress::set(bar, repair.given + repair.marked, repair.gaps + repair.unmarked);
}

/// A plan, or what was done.
pub(super) fn text(repair: &Repair) -> String {
    let mut lines = Lines::default();
    let mut line = |label: &str, value: &str| lines.add(label, value);
    line("repair", if repair.executed { "done" } else { "nothing was done: --execute does it" });
    if repair.executed {
        line("  published", &format!("{} gaps are the relay's to publish", repair.given));
        line("  marked", &format!("{} rows", repair.marked));
    } else {
        line("  publish", &format!("{} gaps", repair.gaps));
        line("  mark", &format!("{} rows", repair.unmarked));
    }
    if repair.gaps > 0 {
        line("  order", "their messages come behind later events of their aggregates");
    }
    if repair.young > 0 {
        let wait = output::duration(repair.young_for_seconds.ceil());
        let what = "the broker may know their ids, and would store nothing";
        line("  too young", &format!("{}: {what}; in {wait} it does not", repair.young));
    }
    if repair.changed > 0 {
        line(
            "  left alone",
            &format!("{}: their rows have changed, or are locked", repair.changed),
        );
    }
    for count in &repair.unrepaired {
        line("  not repaired", &format!("{}: {}", count.count, count.kind.title()));
    }
    lines.text
}
