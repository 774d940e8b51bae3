//! One line as plugins of Nagios print it, and their exit codes.

use operate::checks::{Check, Severity, summary};

use super::Report;
use super::probe::Probed;
use crate::errors::NagiosState;
use crate::{errors, output};

/// Checks that the line names.
const NAMED_MAX: usize = 5;

pub(super) fn tell(made: anyhow::Result<Report>) -> anyhow::Result<()> {
    let (state, line) = match made {
        Ok(Report { not_probed: None, checks, probe, .. }) => judge(&checks, probe.as_deref()),
        Ok(Report { not_probed: Some(error), .. }) | Err(error) => {
            (NagiosState::Unknown, bare(&errors::chain(&error)))
        }
    };
    output::text(&format!("TAILPOST {state} - {line}"))?;
    match state {
        NagiosState::Ok => Ok(()),
        state => Err(state.into()),
    }
}

fn judge(checks: &[Check], probed: Option<&[Probed]>) -> (NagiosState, String) {
    let counts = summary(checks);
    let count = |name: &str| counts.get(name).copied().unwrap_or_default();
    let lost = probed.into_iter().flatten().find_map(|it| it.failure.as_deref());
    let state = match (count("error"), count("warning"), lost) {
        (1.., _, _) | (_, _, Some(_)) => NagiosState::Critical,
        (_, 1.., _) => NagiosState::Warning,
        _ => NagiosState::Ok,
    };
    let mut found: Vec<_> = checks.iter().filter(|it| it.severity >= Severity::Warning).collect();
    found.sort_by_key(|it| std::cmp::Reverse(it.severity));
    let mut named: Vec<String> = lost.iter().map(|it| format!("probe ({})", bare(it))).collect();
    let told = found.iter().take(NAMED_MAX);
    named.extend(told.map(|it| format!("{} ({})", it.id, bare(&it.evidence))));
    if found.len() > NAMED_MAX {
        named.push(format!("and {} more", found.len() - NAMED_MAX));
    }
    let what = if named.is_empty() { format!("{} checks", checks.len()) } else { named.join(", ") };
    let slowest = probed.into_iter().flatten().filter_map(Probed::total_seconds);
    let slowest =
        slowest.fold(None, |all: Option<f64>, it| Some(all.map_or(it, |all| all.max(it))));
    let time = slowest.map(|it| format!(" probe={it:.3}s;;;0")).unwrap_or_default();
    let line = format!(
        "{what} | errors={};;0;0 warnings={};0;;0 ok={};;;0 skipped={};;;0{time}",
        count("error"),
        count("warning"),
        count("ok"),
        count("skipped"),
    );
    (state, line)
}

/// On one line, without what begins the performance data.
fn bare(text: &str) -> String {
    output::one_line(text).replace('|', "/")
}

#[cfg(test)]
mod tests {
    use operate::checks::Category;

    use super::*;

    fn check(severity: Severity, evidence: &str) -> Check {
        Check {
            id: "stream-room",
            category: Category::Stream,
            subject: None,
            severity,
            title: "it has room",
            evidence: evidence.into(),
            remedies: Vec::new(),
            docs: String::new(),
        }
    }

    #[test]
    fn the_worst_check_decides() {
        let (ok, warning) = (check(Severity::Ok, ""), check(Severity::Warning, "9 | of 10\n"));
        let error = check(Severity::Error, "10 of 10");
        let (state, line) = judge(std::slice::from_ref(&ok), None);
        assert_eq!(state, NagiosState::Ok);
        assert_eq!(line, "1 checks | errors=0;;0;0 warnings=0;0;;0 ok=1;;;0 skipped=0;;;0");
        let (state, line) = judge(&[ok.clone(), warning.clone()], None);
        assert_eq!(state, NagiosState::Warning);
        assert!(
            line.starts_with("stream-room (9 / of 10\\n) | errors=0;;0;0 warnings=1"),
            "{line}"
        );
        let (state, line) = judge(&[warning, ok, error], None);
        assert_eq!(state, NagiosState::Critical);
        assert!(line.starts_with("stream-room (10 of 10), stream-room (9"), "{line}");
    }
}
