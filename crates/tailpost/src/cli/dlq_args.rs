//! Dead letters: the same words for those of the outbox and of the inbox.

use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, Subcommand};
use operate::dead_letters::{Action, Aggregate, Filter, Reason};
use uuid::Uuid;

/// What there is about the outbox.
#[derive(Debug, Subcommand)]
pub(crate) enum OutboxCommand {
    /// Manage events that could not be published
    ///
    /// Asks a running relay at admin.listen, with admin.token, or with --direct the database.
    #[command(subcommand)]
    Dlq(DlqCommand),
}

/// What to do with dead letters of the outbox.
#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// Show how many there are, why, and the newest
    List(OfOutbox<ListArgs>),
    /// Show one dead letter: its reason, the decisions about it, and its present state
    Show(OfOutbox<ShowArgs>),
    /// Publish events under their own ids
    ///
    /// A relay publishes them within its scan_interval, or ten of them while it is catching up.
    /// Name events by id, all of an aggregate (in order), or all that match.
    Requeue(OfOutbox<RequeueArgs>),
    /// Remove events from the list for good: they are never published
    Discard(OfOutbox<WorkArgs>),
}

/// How to reach them.
#[derive(Debug, Args)]
pub(crate) struct OfOutbox<T: Args> {
    #[command(flatten)]
    pub(crate) args: T,
    /// Use the database instead of a relay
    #[arg(long)]
    pub(crate) direct: bool,
}

/// What to do with dead letters of the inbox.
#[derive(Debug, Subcommand)]
pub(crate) enum InboxDlqCommand {
    /// Show how many there are, why, and the newest
    List(OfConsumer<ListArgs>),
    /// Show one dead letter; payload and headers with --payload
    Show(OfConsumer<ShowArgs>),
    /// Give events another set of attempts
    ///
    /// The process that runs the consumer claims and handles them again. Nothing is published:
    /// other consumers do not see them again.
    Requeue(OfConsumer<WorkArgs>),
    /// Reject events for good, with a reason: they are not handled again
    Reject(OfConsumer<WorkArgs>),
    /// Drop dead letters without an answer
    Discard(OfConsumer<WorkArgs>),
    /// Write dead letters with their payloads as JSON, one a line
    Export(OfConsumer<ExportArgs>),
}

/// Whose they are.
#[derive(Debug, Args)]
pub(crate) struct OfConsumer<T: Args> {
    #[command(flatten)]
    pub(crate) args: T,
    /// Only those of this consumer
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
}

/// Which are meant.
#[derive(Debug, Args, Clone)]
pub(crate) struct FilterArgs {
    /// Only those of this aggregate
    #[arg(long, value_name = "TYPE:ID")]
    pub(crate) aggregate: Option<Aggregate>,
    /// Only those of this event type
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) event_type: Option<String>,
    /// Only those whose reason contains this; --why is the reason of your decision
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Only those dead since then: an age such as 2h, or a time such as 2026-11-21T09:00:00Z
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub(crate) since: Option<jiff::Timestamp>,
}

impl FilterArgs {
    pub(crate) fn filter(&self) -> Filter {
        Filter {
            aggregate: self.aggregate.clone(),
            event_type: self.event_type.clone(),
            reason: self.reason.clone(),
            since: self.since,
        }
    }

    pub(crate) fn is_only_an_aggregate(&self) -> bool {
        self.event_type.is_none() && self.reason.is_none() && self.since.is_none()
    }
}

/// An age, or a time.
pub(super) fn since(text: &str) -> Result<jiff::Timestamp, String> {
    if let Ok(age) = crate::config::parse_duration(text) {
        return jiff::Timestamp::now().checked_sub(age).map_err(|error| error.to_string());
    }
    text.parse().map_err(|_| "expected an age such as 2h, or a time with its zone".into())
}

/// Arguments of `list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Show at most this many
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) limit: u32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The event's id
    pub(crate) id: Uuid,
    /// Show payload and headers as well
    #[arg(long)]
    pub(crate) payload: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Who does something, and what for.
#[derive(Debug, Args)]
pub(crate) struct WhoArgs {
    /// Who decides, for the audit [default: the user who runs this]
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// The reason, for the audit; required where it is for good, repeats effects, or publishes again
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: Option<Reason>,
}

/// Arguments of every decision.
#[derive(Debug, Args)]
pub(crate) struct WorkArgs {
    /// The events' ids, or --all-matching
    pub(crate) ids: Vec<Uuid>,
    /// All that match the filters, or all without filters; shows the plan first
    #[arg(long)]
    pub(crate) all_matching: bool,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Only show the plan
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// At most this many events a second
    #[arg(long, value_name = "EVENTS", requires = "all_matching",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rate: Option<u32>,
    /// Do not ask
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) who: WhoArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `outbox dlq requeue`.
#[derive(Debug, Args)]
pub(crate) struct RequeueArgs {
    #[command(flatten)]
    pub(crate) work: WorkArgs,
    /// Publish this JSON instead of the payload; the audit keeps the old one
    #[arg(long, value_name = "FILE", requires = "ids")]
    pub(crate) payload_file: Option<PathBuf>,
    /// Wait until the event is published, and print its sequence
    #[arg(long, value_name = "DURATION", value_parser = super::duration, requires = "ids")]
    pub(crate) wait: Option<Duration>,
}

/// Arguments of `inbox dlq export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Write to this file, which only you may read, instead of standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// A command line that is not meant that way.
pub(crate) type Misuse = (ErrorKind, String);

impl DlqCommand {
    pub(super) fn check(&self) -> Result<(), Misuse> {
        match self {
            Self::List(_) | Self::Show(_) => Ok(()),
            Self::Discard(of) => of.args.check(Action::Discard),
            Self::Requeue(of) => {
                let RequeueArgs { work, payload_file, wait } = &of.args;
                if work.ids.len() > 1 && (payload_file.is_some() || wait.is_some()) {
                    let problem = "--payload-file and --wait are about one event";
                    return Err((ErrorKind::ArgumentConflict, problem.into()));
                }
                let whole = work.filter.aggregate.is_some() && work.filter.is_only_an_aggregate();
                if whole && work.ids.is_empty() { Ok(()) } else { work.check(Action::Requeue) }
            }
        }
    }
}

impl InboxDlqCommand {
    pub(super) fn check(&self) -> Result<(), Misuse> {
        match self {
            Self::List(_) | Self::Show(_) | Self::Export(_) => Ok(()),
            Self::Requeue(of) => of.args.check(Action::Requeue),
            Self::Reject(of) => of.args.check(Action::Reject),
            Self::Discard(of) => of.args.check(Action::Discard),
        }
    }
}

impl WorkArgs {
    /// What clap cannot say as clearly.
    fn check(&self, action: Action) -> Result<(), Misuse> {
        let verb = action.name();
        let Self { ids, all_matching, filter, who, .. } = self;
        let filtered = filter.aggregate.is_some() || !filter.is_only_an_aggregate();
        if action.is_final() && who.why.is_none() {
            let not_that = match filter.reason {
                Some(_) => "; --reason only chooses dead letters by why they are dead",
                None => "",
            };
            let problem = format!("{verb} needs --why TEXT, which is kept{not_that}");
            return Err((ErrorKind::MissingRequiredArgument, problem));
        }
        if !ids.is_empty() && (*all_matching || filtered) {
            let meant = match filter.reason {
                Some(_) => ": --reason chooses dead letters, --why TEXT says why you decide",
                None => "",
            };
            let problem =
                format!("name events, or use --all-matching and filters, not both{meant}");
            return Err((ErrorKind::ArgumentConflict, problem));
        }
        if ids.is_empty() && !all_matching {
            let problem = format!("name the events to {verb}, or add --all-matching");
            return Err((ErrorKind::MissingRequiredArgument, problem));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::Cli;

    /// The error's text, if the command line is refused.
    fn refusal(args: &str) -> Option<String> {
        let args = format!("tailpost {args}");
        let cli = match Cli::try_parse_from(args.split(' ')) {
            Ok(cli) => cli,
            Err(error) => return Some(error.to_string()),
        };
        cli.check().err().map(|(_, problem)| problem)
    }

    #[test]
    fn both_queues_take_the_same_words() {
        for queue in ["outbox", "inbox"] {
            for (args, problem) in [
                ("discard ID --yes", Some("discard needs --why TEXT")),
                ("discard --all-matching --reason size --yes", Some("--reason only chooses")),
                ("discard ID --why", Some("a value is required")),
                ("discard ID --reason ticket --why x", Some("--why TEXT says why you decide")),
                ("requeue ID --all-matching", Some("not both")),
                ("requeue --reason size", Some("add --all-matching")),
                ("requeue", Some("add --all-matching")),
                ("requeue --all --yes", Some("'--all-matching'")),
                ("requeue --all-matching --yes --dry-run", Some("cannot be used with")),
                ("requeue --all-matching --reason size --since 2h --rate 50 --yes --json", None),
                ("requeue ID --by ada --why mended", None),
                ("discard --all-matching --type Placed --aggregate o:1 --why old --yes", None),
                ("list --reason size --type Placed --limit 5 --json", None),
                ("show ID --payload --json", None),
            ] {
                let args = args.replace("ID", "6c0e1d1c-6c9b-4d55-9f9e-2f3f0f3f0f3f");
                let said = refusal(&format!("{queue} dlq {args}"));
                match (problem, &said) {
                    (None, None) => {}
                    (Some(problem), Some(said)) if said.contains(problem) => {}
                    _ => panic!("{queue} {args}: {said:?}, not {problem:?}"),
                }
            }
        }
        let said = refusal("inbox dlq reject 6c0e1d1c-6c9b-4d55-9f9e-2f3f0f3f0f3f --yes");
        assert!(said.is_some_and(|it| it.contains("reject needs --why")));
        assert_eq!(refusal("outbox dlq requeue --aggregate order:o-1"), None);
        let marked = "inbox mark-processed --consumer a \
                      --event-id 6c0e1d1c-6c9b-4d55-9f9e-2f3f0f3f0f3f";
        assert_eq!(refusal(&format!("{marked} --why x")), None);
    }
}
