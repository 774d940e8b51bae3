//! The statements behind the decisions. Each does all of what it does, or nothing, and writes down
//! who wanted it.

use outbox::dead_letters::Action;
use outbox::{Column, Table};

use crate::postgres::sql::{decide, list};

/// The statements for one schema.
pub(super) struct Texts {
    messages: String,
    letters: String,
    /// Asks an outbox for the time of the event `$2`.
    outbox: String,
    requeue: String,
    reject: String,
    discard: String,
    pub(super) list: String,
    pub(super) originals: String,
    pub(super) history: String,
    pub(super) count: String,
    pub(super) groups: String,
    /// Those that are dead since `$8` at most, behind the place `$9`, `$10`, `$11`.
    pub(super) page: String,
    pub(super) backlogs: String,
    pub(super) holders: String,
    pub(super) has_outbox: String,
    pub(super) mark_processed: String,
}

impl Texts {
    pub(super) fn new(outbox: &Table) -> Self {
        let [messages, letters, decisions, roles] =
            ["inbox_messages", "inbox_dead_letter", "inbox_decisions", "inbox_roles"]
                .map(|it| outbox.companion(it));
        let literal = outbox.quoted().replace('\'', "''");
        let outbox = format!(
            "SELECT {} FROM {} WHERE {} = $2",
            outbox.column(Column::OccurredAt),
            outbox.quoted(),
            outbox.column(Column::Id)
        );
        Self {
            list: list::list_letters(&messages, &letters),
            originals: list::list_originals(&messages, &letters),
            history: list::list_decisions(&decisions),
            count: list::count_letters(&messages, &letters),
            groups: list::group_letters(&messages, &letters),
            page: list::page_letters(&messages, &letters),
            requeue: decide::requeue_letters(&messages, &letters, &decisions),
            reject: decide::close_letters(&messages, &letters, &decisions, ["reject", "REJECTED"]),
            discard: decide::close_letters(&messages, &letters, &decisions, ["discard", "DEAD"]),
            backlogs: list::list_backlogs(&messages, &letters),
            holders: super::holders::text(&roles),
            has_outbox: format!("SELECT to_regclass('{literal}') IS NOT NULL"),
            mark_processed: decide::mark_processed(&messages, &letters, &decisions),
            messages,
            letters,
            outbox,
        }
    }

    pub(super) fn decide(&self, action: Action) -> &str {
        match action {
            Action::Requeue => &self.requeue,
            Action::Reject => &self.reject,
            Action::Discard => &self.discard,
        }
    }

    /// When an event happened, by whoever knows it. `outbox` says whether there is one to ask.
    pub(super) fn time_of(&self, outbox: bool) -> String {
        let Self { messages, letters, .. } = self;
        let outbox = if outbox { format!("({}),", self.outbox) } else { String::new() };
        format!(
            "SELECT coalesce(
                 (SELECT event_time FROM {messages} WHERE consumer = $1 AND message_id = $2
                  ORDER BY event_time LIMIT 1),
                 (SELECT event_time FROM {letters} WHERE consumer = $1 AND message_id = $2),
                 {outbox} $3::timestamptz)"
        )
    }
}
