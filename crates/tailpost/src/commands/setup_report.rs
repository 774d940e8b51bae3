//! What a set-up made and what was there, told.

use operate::SetupReport;

use crate::output;

/// Says what was made and what was there.
pub(super) fn print(report: &SetupReport, json: bool) -> anyhow::Result<()> {
    output::show(json, report, || report_text(report))
}

fn report_text(report: &SetupReport) -> String {
    let steps = report.steps.iter().map(|step| {
        let state = if step.created { "created" } else { "exists" };
        format!("{state:<8} {}\n", step.what)
    });
    let warnings = report.warnings.iter().map(|it| format!("warning: {it}\n"));
    steps.chain(warnings).collect()
}

#[cfg(test)]
mod tests {
    use operate::SetupStep;

    use super::*;

    #[test]
    fn what_was_made_is_told_from_what_was_there() {
        let report = SetupReport {
            steps: vec![
                SetupStep { what: "publication tailpost".into(), created: true },
                SetupStep { what: "slot tailpost".into(), created: false },
            ],
            warnings: vec!["one replica".into()],
        };
        assert_eq!(
            report_text(&report),
            "created  publication tailpost\nexists   slot tailpost\nwarning: one replica\n"
        );
    }
}
