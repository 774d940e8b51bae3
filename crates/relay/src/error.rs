//! What can go wrong, split by what the supervisor does about it.

use tokio_postgres::error::SqlState;

/// Why a session of the relay, or a set-up step, ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A connection could not be made.
    #[error(transparent)]
    Connect(#[from] servers::Error),
    /// A statement failed.
    #[error("could not {doing}")]
    Sql {
        /// What was being done, in the imperative.
        doing: &'static str,
        /// PostgreSQL's or the client's answer.
        source: tokio_postgres::Error,
    },
    /// The replication connection failed or ended.
    #[error("could not {doing}")]
    Replication {
        /// What was being done, in the imperative.
        doing: &'static str,
        /// The client's error; a server's carries its SQLSTATE in the text.
        source: pgwire_replication::PgWireError,
    },
    /// A connection is alive but useless, or a server says what it should not.
    #[error("ended the session: {0}")]
    Stalled(&'static str),
    /// Two parts of the relay contradict each other. A new session begins from what the servers have.
    #[error("ended the session: a bug: {0}; please report it")]
    Bug(&'static str),
    /// PostgreSQL does not answer.
    #[error("could not {doing}: the server fell silent")]
    Silent {
        /// What was being done, in the imperative.
        doing: &'static str,
    },
    /// Another relay (or another client) reads the slot.
    #[error("replication slot \"{slot}\" is in use")]
    SlotBusy {
        /// The slot's name.
        slot: String,
    },
    /// The server's settings allow no logical replication slot.
    #[error("could not {doing}")]
    NoLogicalDecoding {
        /// What was being done, in the imperative.
        doing: &'static str,
        /// The server's answer, which names the setting.
        source: pgwire_replication::PgWireError,
    },
    /// `tailpost setup` has not been run against these servers.
    #[error("{missing} does not exist")]
    NotSetUp {
        /// What is not there.
        missing: String,
    },
    /// The log holds something that cannot be understood.
    #[error("could not decode the log")]
    Decode(#[from] pgoutput::DecodeError),
    /// The outbox table is not shaped as it must be.
    #[error("the outbox table does not fit: {0}")]
    Table(String),
    /// A request to JetStream failed.
    #[error("could not {doing}")]
    JetStream {
        /// What was being done, in the imperative.
        doing: &'static str,
        /// The client's error.
        source: Box<dyn std::error::Error + std::marker::Send + Sync>,
    },
    /// No answer of the broker arrives, whatever it is asked, before another connection is made.
    #[error("the NATS user may not subscribe to {subject}, where answers come")]
    Unheard {
        /// Where they come.
        subject: String,
    },
    /// Fenced mode cannot go on, keyed mode can.
    #[error("fenced mode is left: {reason}")]
    Unfenced {
        /// Why.
        reason: String,
    },
    /// The publication was changed after the slot was created: the log may lack rows.
    #[error("publication \"{publication}\" was changed after the slot was created")]
    PublicationChanged {
        /// The publication's name.
        publication: String,
    },
    /// Something is not as it has to be, and somebody has to change it.
    #[error("{problem}")]
    Unusable {
        /// What is in the way.
        problem: String,
        /// What to do about it.
        fix: String,
    },
    /// The broker refuses everything until an operator changes something.
    #[error("the broker refuses to store events: {0}")]
    Refused(String),
    /// A trigger or a constraint lets no dead letter be written, so that its row has to stay.
    #[error("could not park an event: {why}")]
    NoLetter {
        /// What refuses it.
        why: String,
        /// What lets it in.
        fix: String,
    },
    /// There is no such dead letter.
    #[error("event {id} is no dead letter")]
    NoDeadLetter {
        /// The event's id.
        id: uuid::Uuid,
    },
    /// There is no such replay.
    #[error("there is no replay {id}")]
    NoReplay {
        /// The replay's id.
        id: uuid::Uuid,
    },
    /// It cannot be done as things are.
    #[error("{0}")]
    Conflict(String),
    /// A temporary file could not be written or read.
    #[error("could not {doing}")]
    Spill {
        /// What was being done, in the imperative.
        doing: &'static str,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The migrations could not be applied.
    #[error(transparent)]
    Migrate(#[from] outbox::Error),
}

impl Error {
    /// For what failed while `doing` something in PostgreSQL, in the imperative.
    pub fn sql(doing: &'static str) -> impl FnOnce(tokio_postgres::Error) -> Self {
        move |source| Self::Sql { doing, source }
    }

    pub(crate) fn replication(
        doing: &'static str,
    ) -> impl FnOnce(pgwire_replication::PgWireError) -> Self {
        move |source| Self::Replication { doing, source }
    }

    /// The same of JetStream.
    pub fn jetstream<E>(doing: &'static str) -> impl FnOnce(E) -> Self
    where
        E: std::error::Error + std::marker::Send + Sync + 'static,
    {
        move |source| Self::JetStream { doing, source: Box::new(source) }
    }

    /// The same of files of our own.
    pub fn spill(doing: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Spill { doing, source }
    }

    /// A stream that would lose or reorder events, why, and the command that mends it.
    pub fn stream(name: &str, reason: &str, fix: String) -> Self {
        Self::Unusable { problem: format!("stream \"{name}\" cannot be used: {reason}"), fix }
    }

    /// What cannot be, in the indicative. Where assertions are checked it ends the process.
    pub(crate) fn bug(what: &'static str) -> Self {
        debug_assert!(false, "{what}");
        Self::Bug(what)
    }

    /// Whether trying again may help without anybody changing anything. Unknown errors of the
    /// servers count as transient: retrying loses nothing, giving up needs an operator.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect(error) => error.is_transient(),
            Self::Sql { .. } | Self::Replication { .. } => {
                self.code().as_ref().is_none_or(sqlstate_is_transient)
            }
            Self::Migrate(error) => {
                postgres_source(error).is_some_and(|it| it.code().is_none_or(sqlstate_is_transient))
            }
            Self::Stalled(_)
            | Self::Bug(_)
            | Self::Silent { .. }
            | Self::SlotBusy { .. }
            | Self::NoLetter { .. }
            | Self::PublicationChanged { .. }
            | Self::Unfenced { .. }
            | Self::Unheard { .. }
            | Self::JetStream { .. } => true,
            Self::NoLogicalDecoding { .. }
            | Self::NotSetUp { .. }
            | Self::Decode(_)
            | Self::Table(_)
            | Self::Unusable { .. }
            | Self::NoDeadLetter { .. }
            | Self::NoReplay { .. }
            | Self::Conflict(_)
            | Self::Spill { .. }
            | Self::Refused(_) => false,
        }
    }

    /// Whether a credential or a certificate that is read anew for each connection is at fault.
    pub fn is_renewable(&self) -> bool {
        matches!(self, Self::Connect(error) if error.is_renewable())
    }

    /// What the operator can do about it, for errors that do not pass by themselves.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Connect(error) => error.hint(),
            Self::NoLogicalDecoding { .. } => Some(
                "set wal_level = logical, and max_replication_slots above 0, and restart \
                 PostgreSQL; or set relay.mode = \"poll\" and run `tailpost setup`"
                    .into(),
            ),
            Self::NotSetUp { .. } => Some(
                "run `tailpost setup` against these servers; where there is to be no outbox, the \
                 commands of `tailpost inbox` need none"
                    .into(),
            ),
            Self::Unusable { fix, .. } | Self::NoLetter { fix, .. } => Some(fix.clone()),
            Self::Table(_) => Some(
                "mend the table, as `tailpost setup --print` shows it, and start again: rows \
                 written meanwhile are taken from the table"
                    .into(),
            ),
            Self::Refused(_) => {
                Some("`tailpost doctor` has the commands that mend the stream".into())
            }
            Self::Sql { source, .. } if hides_rows(source) => Some(
                "the relay has to see every row: `ALTER ROLE ... BYPASSRLS` for its role, or let \
                 it own the table, without FORCE ROW LEVEL SECURITY"
                    .into(),
            ),
            Self::Migrate(_) if self.code() == Some(SqlState::LOCK_NOT_AVAILABLE) => Some(
                "a transaction has the table locked: run `tailpost setup` again when it has ended"
                    .into(),
            ),
            Self::Sql { .. } | Self::Replication { .. } | Self::Migrate(_) => {
                sqlstate_hint(&self.code()?, &servers::describe(self))
            }
            Self::JetStream { source, .. } => jetstream_hint(&**source),
            Self::Unheard { subject } => Some(format!(
                "let it subscribe to {subject}: docs/security.md has the permissions of each user"
            )),
            Self::SlotBusy { .. } => {
                Some("another relay publishes what there is: see `tailpost status`".into())
            }
            Self::NoDeadLetter { .. } => {
                Some("`tailpost outbox dlq list` shows those there are".into())
            }
            Self::NoReplay { .. } => Some("`tailpost replays list` shows those there are".into()),
            Self::Spill { .. } => Some(format!(
                "TMPDIR names another folder, with more room; it is {} now",
                std::env::temp_dir().display()
            )),
            Self::Stalled(_)
            | Self::Bug(_)
            | Self::Unfenced { .. }
            | Self::Silent { .. }
            | Self::PublicationChanged { .. }
            | Self::Conflict(_)
            | Self::Decode(_) => None,
        }
    }

    /// Whether PostgreSQL refused something for lack of rights.
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(SqlState::INSUFFICIENT_PRIVILEGE)
    }

    /// Whether a statement gave up waiting for others, who had locked what it needs: it may be made
    /// again.
    pub fn is_contention(&self) -> bool {
        let code = self.code();
        code.is_some_and(|it| {
            [
                SqlState::LOCK_NOT_AVAILABLE,
                SqlState::QUERY_CANCELED,
                SqlState::T_R_DEADLOCK_DETECTED,
            ]
            .contains(&it)
        })
    }

    /// Whether a statement took too long.
    pub fn is_cancelled(&self) -> bool {
        self.code() == Some(SqlState::QUERY_CANCELED)
    }

    /// Whether PostgreSQL may have refused what was done to a row: a trigger may raise any error.
    pub(crate) fn may_be_about_a_row(&self) -> bool {
        let of_servers = ["08", "40", "53", "57", "58", "XX"];
        let is_of_server = |it: &SqlState| of_servers.iter().any(|of| it.code().starts_with(of));
        !self.is_contention() && self.code().is_some_and(|it| !is_of_server(&it))
    }

    /// Whether PostgreSQL refused the values of a row: they, and not the server, have to change.
    pub fn is_about_a_row(&self) -> bool {
        self.code()
            .is_some_and(|it| ["22", "23", "54", "P0"].iter().any(|of| it.code().starts_with(of)))
    }

    /// Who refused a row. The message and the details may hold the row: a trigger's author writes into
    /// them what they like. The server's log has both.
    pub(crate) fn refusal(&self) -> Option<String> {
        let Self::Sql { source, .. } = self else { return None };
        let refusal = source.as_db_error()?;
        let context = refusal.where_().unwrap_or_default();
        let of_author = self.is_about_a_row() || is_of_function(context);
        let constraint = self.constraint().map(|it| format!("constraint {it}"));
        let by = constraint.or_else(|| function(context));
        let by = by.or_else(|| of_author.then(|| "PostgreSQL".to_owned()))?;
        let code = refusal.code().code();
        Some(format!("{by} refuses a row (SQLSTATE {code}; the server's log says more)"))
    }

    /// The constraint that refused a row.
    pub(crate) fn constraint(&self) -> Option<&str> {
        let Self::Sql { source, .. } = self else { return None };
        source.as_db_error()?.constraint()
    }

    /// The SQLSTATE of the server's answer, if it gave one.
    pub fn code(&self) -> Option<SqlState> {
        match self {
            Self::Sql { source, .. } => source.code().cloned(),
            Self::Replication { source, .. } => sqlstate(source),
            Self::Migrate(error) => postgres_source(error)?.code().cloned(),
            _ => None,
        }
    }
}

fn postgres_source(error: &outbox::Error) -> Option<&tokio_postgres::Error> {
    std::error::Error::source(error)?.downcast_ref()
}

/// Whether a function raised the error, in whatever language the server speaks: names of procedural
/// languages are not translated.
fn is_of_function(context: &str) -> bool {
    context.contains("PL/")
}

/// The innermost function of a context, such as `PL/pgSQL function frozen() line 2 at RAISE`. Around the
/// function's name and its arguments stands what the server's translators wrote.
fn function(context: &str) -> Option<String> {
    let line = context.lines().find(|it| it.contains("PL/pgSQL"))?;
    let (before, after) = line.split_once('(')?;
    let (arguments, _) = after.split_once(')')?;
    let is_other = |it: char| !it.is_ascii_alphanumeric() && !"_$.".contains(it);
    let quoted = before.strip_suffix('"').map(|it| it.rsplit('"').next());
    let name = quoted.unwrap_or_else(|| before.rsplit(is_other).next())?;
    Some(format!("function {name}({arguments})"))
}

/// Whether a policy would have hidden rows from the statement.
fn hides_rows(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|error| {
        *error.code() == SqlState::INSUFFICIENT_PRIVILEGE
            && error.routine() == Some("check_enable_rls")
    })
}

/// The SQLSTATE of a server's error; the replication client gives it only in the text.
pub(crate) fn sqlstate(error: &pgwire_replication::PgWireError) -> Option<SqlState> {
    let text = error.to_string();
    let (_, rest) = text.rsplit_once("(SQLSTATE ")?;
    Some(SqlState::from_code(rest.get(..5)?))
}

/// Classes that stay wrong until somebody changes a grant, a password, a name or a setting. A
/// server that starts, stops, is full or has lost a slot is not among them.
fn sqlstate_is_transient(code: &SqlState) -> bool {
    let permanent_classes = ["0A", "26", "28", "3D", "3F", "42"];
    !permanent_classes.iter().any(|class| code.code().starts_with(class))
        || *code == SqlState::UNDEFINED_OBJECT // a slot or publication dropped: the next session sees
}

/// `said` has settings by their names, in any language of the server.
fn sqlstate_hint(code: &SqlState, said: &str) -> Option<String> {
    let hint = match *code {
        SqlState::INSUFFICIENT_PRIVILEGE => {
            "`tailpost doctor` has the GRANT that is missing: the relay's role needs REPLICATION, \
             and SELECT, INSERT, UPDATE and DELETE on the outbox and its companions; `tailpost \
             setup` needs to own them, and CREATE on the database and the schema"
        }
        SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_COLUMN | SqlState::UNDEFINED_FUNCTION => {
            "run `tailpost setup` against this database"
        }
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION | SqlState::INVALID_PASSWORD => {
            "check user, password and pg_hba.conf"
        }
        SqlState::INVALID_CATALOG_NAME => "check the database's name in postgres.url",
        SqlState::INVALID_SQL_STATEMENT_NAME | SqlState::DUPLICATE_PSTATEMENT => {
            "name the database server itself in postgres.url, or a pooler in session mode: one in \
             transaction mode loses prepared statements"
        }
        SqlState::CONFIGURATION_LIMIT_EXCEEDED if said.contains("temp_file_limit") => {
            "raise temp_file_limit, or work_mem, for the relay's role: `ALTER ROLE ... SET \
             temp_file_limit = ...`"
        }
        SqlState::CONFIGURATION_LIMIT_EXCEEDED => {
            "raise max_replication_slots and max_wal_senders, then restart PostgreSQL"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

/// Where JetStream is off, its requests are refused, or nobody answers: the client words that as
/// something missing.
fn jetstream_hint(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let text = error.to_string();
    let off = ["requested JetStream resource does not exist", "JetStream not enabled"];
    off.iter().any(|it| text.contains(it)).then(|| {
        "turn JetStream on at the NATS server (`nats-server --jetstream`) and for the account"
            .into()
    })
}

#[cfg(test)]
mod tests {
    use pgwire_replication::PgWireError;

    use super::*;

    #[test]
    fn the_sqlstate_is_read_from_the_clients_text() {
        let busy = PgWireError::Server("replication slot is active (SQLSTATE 55006)".into());
        assert_eq!(sqlstate(&busy), Some(SqlState::OBJECT_IN_USE));
        assert_eq!(sqlstate(&PgWireError::Protocol("short read".into())), None);
    }

    #[test]
    fn a_function_is_named_in_any_language_of_the_server() {
        for (context, name) in [
            ("PL/pgSQL function frozen() line 2 at RAISE", "frozen()"),
            ("PL/pgSQL-Funktion app.frozen() Zeile 2 bei RAISE", "app.frozen()"),
            ("fonction PL/pgSQL frozen(text,integer), ligne 2 à RAISE", "frozen(text,integer)"),
            ("PL/pgSQL関数frozen()の2行目 - RAISE", "frozen()"),
            ("PL/pgSQL 함수 \"frozen()\" 의 2번째 RAISE", "frozen()"),
            ("在RAISE的第2行的PL/pgSQL函数frozen()", "frozen()"),
            ("frozen() PL/pgSQL fonksiyonu, 2. satır, RAISE içinde", "frozen()"),
            ("PL/pgSQL-Funktion \"größe\"() Zeile 2 bei RAISE", "größe()"),
            (
                "SQL statement \"SELECT f(1)\"\nPL/pgSQL function frozen() line 2 at PERFORM",
                "frozen()",
            ),
        ] {
            assert_eq!(function(context), Some(format!("function {name}")), "{context}");
        }
        for context in ["", "while updating tuple (0,1) in relation \"outbox_events\""] {
            assert!(function(context).is_none() && !is_of_function(context), "{context}");
        }
        assert!(is_of_function("PL/Python function \"frozen\""));
    }

    #[test]
    fn a_server_without_jetstream_is_told_from_a_missing_stream() {
        let hint = |text: &str| {
            let source = std::io::Error::other(text.to_owned());
            Error::JetStream { doing: "look at the stream", source: Box::new(source) }.hint()
        };
        let unanswered = async_nats::jetstream::context::RequestErrorKind::NoResponders;
        for text in [&*unanswered.to_string(), "JetStream not enabled for account (code 503)"] {
            assert!(hint(text).is_some(), "{text}");
        }
        assert_eq!(hint("stream not found"), None);
    }

    #[test]
    fn each_class_of_sqlstate_has_a_verdict() {
        for (code, transient) in [
            ("08006", true),
            ("25006", true),
            ("42501", false),
            ("42704", true),
            ("42P01", false),
            ("28P01", false),
            ("3D000", false),
            ("0A000", false),
            ("53300", true),
            ("55006", true),
            ("57P01", true),
            ("57P03", true),
            ("58030", true),
            ("XX000", true),
        ] {
            assert_eq!(sqlstate_is_transient(&SqlState::from_code(code)), transient, "{code}");
        }
    }
}
