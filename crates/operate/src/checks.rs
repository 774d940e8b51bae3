//! What `tailpost doctor` says: relay and inbox each have rules, and the answers have one form.
//!
//! A [`Rule`] judges facts that were read before. It does no I/O.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

/// What a check is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// The database server.
    Postgres,
    /// The slot, the publication, and what the server needs for them.
    Replication,
    /// The outbox table and its companions.
    Outbox,
    /// The broker.
    Nats,
    /// The stream.
    Stream,
    /// The relay itself.
    Relay,
    /// The consumers and their tables.
    Inbox,
    /// What is deleted when.
    Retention,
    /// What the provider of the database wants.
    Managed,
}

impl Category {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 9] = [
        Self::Postgres,
        Self::Managed,
        Self::Replication,
        Self::Outbox,
        Self::Nats,
        Self::Stream,
        Self::Relay,
        Self::Inbox,
        Self::Retention,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Replication => "replication",
            Self::Outbox => "outbox",
            Self::Nats => "nats",
            Self::Stream => "stream",
            Self::Relay => "relay",
            Self::Inbox => "inbox",
            Self::Retention => "retention",
            Self::Managed => "managed",
        }
    }
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// It could not be found out.
    Skipped,
    /// It works, and could fail.
    Warning,
    /// It does not work, or loses events.
    Error,
}

impl Severity {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skipped => "skipped",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// How a remedy is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RemedyKind {
    /// A statement for PostgreSQL, run by an owner or administrator.
    Sql,
    /// A command for a shell.
    Shell,
    /// A line of `tailpost.toml`, or its variable.
    Setting,
    /// A server is restarted.
    Restart,
    /// Something that no command does.
    Advice,
}

/// One step of what mends it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Remedy {
    /// How it is applied.
    pub kind: RemedyKind,
    /// The statement, command or line, to be copied as it is.
    pub text: String,
    /// What it costs, where that is more than a moment: read it before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caution: Option<String>,
}

impl Remedy {
    /// A statement for PostgreSQL.
    pub fn sql(text: impl Into<String>) -> Self {
        Self { kind: RemedyKind::Sql, text: text.into(), caution: None }
    }

    /// A command for a shell.
    pub fn shell(text: impl Into<String>) -> Self {
        Self { kind: RemedyKind::Shell, text: text.into(), caution: None }
    }

    /// `section.key = value`, as in `tailpost.toml`.
    pub fn setting(key: &str, value: &str) -> Self {
        Self { kind: RemedyKind::Setting, text: format!("{key} = \"{value}\""), caution: None }
    }

    /// A server that has to be restarted.
    pub fn restart(server: &str) -> Self {
        Self { kind: RemedyKind::Restart, text: format!("restart {server}"), caution: None }
    }

    /// Something that no command does.
    pub fn advice(text: impl Into<String>) -> Self {
        Self { kind: RemedyKind::Advice, text: text.into(), caution: None }
    }

    /// With what it costs.
    pub fn with_caution(self, caution: impl Into<String>) -> Self {
        Self { caution: Some(caution.into()), ..self }
    }
}

/// A name as one word of a shell's command: others may have chosen it.
pub fn shell_word(name: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "_-.".contains(it);
    match !name.is_empty() && name.chars().all(is_plain) {
        true => name.to_owned(),
        false => format!("'{}'", name.replace('\'', r"'\''")),
    }
}

/// What was checked, and how it came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Check {
    /// What scripts know it by.
    pub id: &'static str,
    /// What it is about.
    pub category: Category,
    /// Which one of several: a slot, a stream, a consumer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// How it came out.
    pub severity: Severity,
    /// What should be the case.
    pub title: &'static str,
    /// What was read.
    pub evidence: String,
    /// What mends it, in order; nothing if it is well.
    pub remedies: Vec<Remedy>,
    /// Where more is said.
    pub docs: String,
}

/// A rule's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub(crate) severity: Severity,
    /// What was read.
    pub(crate) evidence: String,
    /// What mends it.
    remedies: Vec<Remedy>,
}

/// Why something could not be found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip(pub String);

impl Skip {
    /// With its reason.
    pub fn because(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// A verdict, unless facts are missing.
pub type Judged = Result<Verdict, Skip>;

/// It is as it should be, with what was read.
pub(crate) fn ok(evidence: impl Into<String>) -> Judged {
    Ok(Verdict { severity: Severity::Ok, evidence: evidence.into(), remedies: Vec::new() })
}

/// It works, and could fail.
pub(crate) fn warning(
    evidence: impl Into<String>,
    remedies: impl IntoIterator<Item = Remedy>,
) -> Judged {
    let remedies = remedies.into_iter().collect();
    Ok(Verdict { severity: Severity::Warning, evidence: evidence.into(), remedies })
}

/// It does not work, or loses events.
pub(crate) fn error(
    evidence: impl Into<String>,
    remedies: impl IntoIterator<Item = Remedy>,
) -> Judged {
    let remedies = remedies.into_iter().collect();
    Ok(Verdict { severity: Severity::Error, evidence: evidence.into(), remedies })
}

/// What is checked, and how facts of the kind `F` are judged.
pub struct Rule<F: ?Sized> {
    /// What scripts know it by.
    pub id: &'static str,
    /// What it is about.
    pub category: Category,
    /// What should be the case.
    pub title: &'static str,
    /// Whether it has to hold before `tailpost setup`.
    pub before_setup: bool,
    /// The decision.
    pub judge: fn(&F) -> Judged,
}

impl<F: ?Sized> Rule<F> {
    /// A rule about what `tailpost setup` makes.
    pub const fn new(
        id: &'static str,
        category: Category,
        title: &'static str,
        judge: fn(&F) -> Judged,
    ) -> Self {
        Self { id, category, title, before_setup: false, judge }
    }

    /// The same, to hold before set-up too.
    pub const fn before_setup(mut self) -> Self {
        self.before_setup = true;
        self
    }

    /// Judges the facts about `subject`.
    pub fn check(&self, facts: &F, subject: Option<String>) -> Check {
        let skipped = |Skip(evidence)| {
            let (severity, remedies) = (Severity::Skipped, Vec::new());
            Verdict { severity, evidence, remedies }
        };
        let Verdict { severity, evidence, remedies } = (self.judge)(facts).unwrap_or_else(skipped);
        let &Self { id, category, title, .. } = self;
        let docs = format!("docs/doctor.md#{}", category.name());
        Check { id, category, subject, severity, title, evidence, remedies, docs }
    }
}

/// How many checks came out how, by what the severities are called.
pub fn summary<'a>(checks: impl IntoIterator<Item = &'a Check>) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::from(["error", "ok", "skipped", "warning"].map(|it| (it, 0)));
    for check in checks {
        *counts.entry(check.severity.name()).or_default() += 1;
    }
    counts
}

/// Which checks are made.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// Only what has to hold before `tailpost setup`.
    pub before_setup: bool,
    /// Ids or categories; all if there are none.
    pub only: Vec<String>,
    /// Ids or categories that are left out.
    pub skip: Vec<String>,
}

impl Scope {
    /// Whether the rule is applied.
    pub fn has<F: ?Sized>(&self, rule: &Rule<F>) -> bool {
        (rule.before_setup || !self.before_setup) && self.wants(rule.id, rule.category)
    }

    /// Whether a check of this name is wanted.
    pub fn wants(&self, id: &str, category: Category) -> bool {
        let named = |names: &[String]| names.iter().any(|it| it == id || it == category.name());
        (self.only.is_empty() || named(&self.only)) && !named(&self.skip)
    }

    /// Judges by those rules that are wanted.
    pub fn checks<F: ?Sized>(
        &self,
        rules: &[Rule<F>],
        facts: &F,
        subject: Option<&str>,
    ) -> Vec<Check> {
        let wanted = rules.iter().filter(|it| self.has(it));
        wanted.map(|rule| rule.check(facts, subject.map(str::to_owned))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule<bool> =
        Rule::new("stream-exists", Category::Stream, "the stream exists", |it| match it {
            true => ok("it does"),
            false => Err(Skip::because("nobody knows")),
        });

    #[test]
    fn a_missing_fact_is_neither_well_nor_wrong() {
        assert_eq!(RULE.check(&true, None).severity, Severity::Ok);
        let skipped = RULE.check(&false, Some("OUTBOX".into()));
        assert_eq!((skipped.severity, &*skipped.evidence), (Severity::Skipped, "nobody knows"));
        assert_eq!(skipped.docs, "docs/doctor.md#stream");
    }

    #[test]
    fn checks_are_chosen_by_id_and_by_category() {
        let named = |name: &str| vec![name.to_owned()];
        assert!(Scope::default().has(&RULE));
        assert!(!Scope { before_setup: true, ..Scope::default() }.has(&RULE));
        assert!(Scope { before_setup: true, ..Scope::default() }.has(&RULE.before_setup()));
        for name in ["stream", "stream-exists"] {
            assert!(Scope { only: named(name), ..Scope::default() }.has(&RULE));
            assert!(!Scope { skip: named(name), ..Scope::default() }.has(&RULE));
        }
        assert!(!Scope { only: named("nats"), ..Scope::default() }.has(&RULE));
    }

    #[test]
    fn a_name_is_one_word_of_a_command() {
        assert_eq!(shell_word("orders_7.v-1"), "orders_7.v-1");
        assert_eq!(shell_word("two words"), "'two words'");
        assert_eq!(shell_word("a';reboot"), r"'a'\'';reboot'");
        assert_eq!(shell_word(""), "''");
    }

    #[test]
    fn every_category_is_shown() {
        let mut all = Category::ALL.map(Category::name);
        all.sort_unstable();
        assert_eq!(all.len(), 9);
        assert!(all.windows(2).all(|two| two[0] != two[1]));
    }
}
