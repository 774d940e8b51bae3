//! The checks for people, by category.

use std::fmt::Write;
use std::io::IsTerminal;

use operate::checks::{Category, Check, RemedyKind, Severity, summary};

use crate::output::one_line;

/// What stands before a check: a sign on a terminal, a word anywhere else.
fn mark(severity: Severity, is_sign: bool) -> &'static str {
    let (sign, word) = match severity {
        Severity::Ok => ("√", "ok     "),
        Severity::Skipped => ("-", "skipped"),
        Severity::Warning => ("‼", "WARNING"),
        Severity::Error => ("×", "ERROR  "),
    };
    if is_sign { sign } else { word }
}

/// Whether standard output shows signs.
pub(super) fn has_signs() -> bool {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
    std::io::stdout().is_terminal() && !is_plain
}

pub(super) fn text(checks: &[Check], has_signs: bool) -> String {
    let mut text = String::new();
    for category in Category::ALL {
        let mut of_it = checks.iter().filter(|it| it.category == category).peekable();
        if of_it.peek().is_some() {
            let name = category.name();
            writeln!(text, "{name}\n{}", "-".repeat(name.len())).expect("writing to a string");
            of_it.for_each(|check| line(&mut text, check, has_signs));
            text.push('\n');
        }
    }
    let counts = summary(checks);
    let count = |name: &str| counts.get(name).copied().unwrap_or_default();
    let s = |count: usize| if count == 1 { "" } else { "s" };
    let (errors, warnings) = (count("error"), count("warning"));
    let (ok, skipped) = (count("ok"), count("skipped"));
    writeln!(
        text,
        "{errors} error{}, {warnings} warning{}, {ok} ok, {skipped} skipped",
        s(errors),
        s(warnings)
    )
    .expect("writing to a string");
    text
}

fn line(text: &mut String, check: &Check, has_signs: bool) {
    let Check { id, subject, severity, title, evidence, remedies, docs, .. } = check;
    let subject = subject.as_ref().map(|it| format!(" [{it}]")).unwrap_or_default();
    let (mark, evidence) = (mark(*severity, has_signs), one_line(evidence));
    writeln!(text, "{mark} {id}{subject}: {title}").expect("writing to a string");
    if *severity == Severity::Ok {
        return;
    }
    writeln!(text, "    {evidence}").expect("writing to a string");
    for remedy in remedies {
        let told = one_line(&remedy.text);
        let told = match remedy.kind {
            RemedyKind::Sql => format!("psql> {told};"),
            RemedyKind::Shell => format!("$ {told}"),
            RemedyKind::Setting => format!("tailpost.toml: {told}"),
            RemedyKind::Restart | RemedyKind::Advice => told.into_owned(),
        };
        if let Some(caution) = &remedy.caution {
            writeln!(text, "    !  {}", one_line(caution)).expect("writing to a string");
        }
        writeln!(text, "    -> {told}").expect("writing to a string");
    }
    if !remedies.is_empty() {
        writeln!(text, "    see {docs}").expect("writing to a string");
    }
}

#[cfg(test)]
mod tests {
    use operate::checks::Remedy;

    use super::*;

    fn check(severity: Severity, remedies: Vec<Remedy>) -> Check {
        Check {
            id: "replication-wal-level",
            category: Category::Replication,
            subject: None,
            severity,
            title: "the log can be decoded",
            evidence: "wal_level = replica\u{1b}[2J".into(),
            remedies,
            docs: "docs/doctor.md#replication".into(),
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_what_mends_it() {
        let remedies = vec![
            Remedy::sql("ALTER SYSTEM SET wal_level = 'logical'"),
            Remedy::restart("PostgreSQL"),
        ];
        let checks = [check(Severity::Ok, Vec::new()), check(Severity::Error, remedies)];
        let expected = "\
replication
-----------
√ replication-wal-level: the log can be decoded
× replication-wal-level: the log can be decoded
    wal_level = replica\\u{1b}[2J
    -> psql> ALTER SYSTEM SET wal_level = 'logical';
    -> restart PostgreSQL
    see docs/doctor.md#replication

1 error, 0 warnings, 1 ok, 0 skipped
";
        assert_eq!(text(&checks, true), expected);
        assert!(text(&checks, false).is_ascii());
    }

    #[test]
    fn what_a_remedy_costs_is_told_below_it() {
        let remedy = Remedy::sql("DROP TABLE x").with_caution("its rows are gone");
        let told = text(&[check(Severity::Error, vec![remedy])], false);
        assert!(told.contains("    !  its rows are gone\n    -> psql> DROP TABLE x;\n"), "{told}");
    }
}
