//! Everything that must exist before a relay runs, made if it is missing.

use async_nats::Client;
use async_nats::jetstream::context::Context;
use async_nats::jetstream::stream::{Config as Stream, DiscardPolicy, StorageType};
use async_nats::jetstream::{self, ErrorCode};
use outbox::migrations::{self, Layout};
use outbox::wire::subject_matches;
use serde::Serialize;

use crate::broker::TailReader;
use crate::broker::fitness;
use crate::config::{Config, MarkBy, Mode};
use crate::database::{Slot, Store, shape};
use crate::error::Error;

/// What set-up found and did.
#[derive(Debug, Clone, Serialize)]
pub struct SetupReport {
    /// In the order in which it was done.
    pub steps: Vec<SetupStep>,
    /// What works but could be better, each with what mends it.
    pub warnings: Vec<String>,
}

/// One thing that must exist.
#[derive(Debug, Clone, Serialize)]
pub struct SetupStep {
    /// What: `migration 0001_outbox`, `publication tailpost`, …
    pub what: String,
    /// Whether it was made now; otherwise it was there.
    pub created: bool,
}

/// What set-up would make, without connecting to anything.
#[derive(Debug, Clone, Serialize)]
pub struct SetupPlan {
    /// The statements for PostgreSQL, ready for `psql`.
    pub sql: String,
    /// The stream, as `nats stream add --config` takes it.
    pub stream: serde_json::Value,
}

/// What [`setup`] would do on servers that have nothing yet.
#[must_use]
pub fn plan(config: &Config, layout: Option<Layout>) -> SetupPlan {
    let Config { table, publication, slot, .. } = config;
    let sql = format!(
        "{migrations}\n{publication};\n\n\
         -- The slot is created by `tailpost setup` on a replication connection, together with the\n\
         -- snapshot that says which rows it brings. A slot made by hand cannot be used:\n\
         --   CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput (SNAPSHOT 'use')\n",
        migrations = migrations::render(table, layout.unwrap_or_default()),
        publication = create_publication(config, publication),
    );
    let stream = serde_json::to_value(stream(config, true)).unwrap_or_default();
    SetupPlan { sql, stream }
}

/// Makes what is missing: tables, publication, stream, slot, in this order (a slot that is older
/// than its publication cannot be read). Safe to run again, and while relays run.
///
/// A table that there is keeps its layout; with `layout` it has to have that one.
///
/// # Errors
///
/// If a server cannot be reached or refuses; if something exists and does not fit: it is never
/// changed silently.
pub async fn setup(config: &Config, layout: Option<Layout>) -> Result<SetupReport, Error> {
    let mut steps = Vec::new();
    let (mut postgres, _connection) = config.postgres.connect("tailpost setup").await?;
    let types = shape::types(&postgres, &config.table.quoted()).await?;
    shape::check(&config.table, &types)?;
    let store = Store::connect(config, "tailpost setup").await?;
    let has_layout = check_layout(config, &store, layout).await?;
    let applied =
        migrations::migrate(&mut postgres, &config.table, layout.unwrap_or_default()).await?;
    for migration in migrations::MIGRATIONS {
        let created = applied.iter().any(|it| it.version == migration.version);
        let what = format!("migration {:04}_{}", migration.version, migration.name);
        steps.push(SetupStep { what, created });
    }
    if let Some(layout) = layout {
        if !has_layout && !applied.iter().any(|it| it.version == 1) {
            return Err(other_layout(config, "none that is known", layout));
        }
        let what = format!("layout {}", name(layout));
        steps.push(SetupStep { what, created: !has_layout });
    }
    if config.mark.by == MarkBy::Watermark {
        let created = store.ensure_index_of_transactions().await?;
        steps.push(SetupStep { what: "index of transactions".into(), created });
    }
    if store.fit_dead_letters().await? {
        let what = "column payload in outbox_dead_letter, of the outbox's type".into();
        steps.push(SetupStep { what, created: true });
    }
    let polls = config.mode == Mode::Poll;
    if polls {
        let created = store.ensure_poll_index().await?;
        steps.push(SetupStep { what: "index of unpublished rows".into(), created });
    } else {
        let created = ensure_publication(config, &store).await?;
        steps.push(SetupStep { what: format!("publication {}", config.publication), created });
    }
    let client = config.nats.connect("tailpost setup").await?;
    let context = jetstream::new(client.clone());
    let (created, warnings) = ensure_stream(config, &client, &context).await?;
    steps.push(SetupStep { what: format!("stream {}", config.stream.name), created });
    if !polls {
        let created = ensure_slot(config, &store, &client).await?;
        steps.push(SetupStep { what: format!("slot {}", config.slot), created });
    }
    Ok(SetupReport { steps, warnings })
}

fn name(layout: Layout) -> &'static str {
    match layout {
        Layout::Documented => "documented",
        Layout::Fast => "fast",
    }
}

/// Whether there is a table already that has the layout.
///
/// # Errors
///
/// [`Error::Conflict`] if there is one that has another.
async fn check_layout(
    config: &Config,
    store: &Store,
    wanted: Option<Layout>,
) -> Result<bool, Error> {
    if wanted == Some(Layout::Fast) && config.mode == Mode::Poll {
        return Err(Error::Conflict(
            "the layout \"fast\" does not go with relay.mode = \"poll\": claims need an index \
             that every mark touches; leave out --layout"
                .into(),
        ));
    }
    let found = if store.has_index_of_unmarked().await? {
        Layout::Documented
    } else if store.has_index_of_transactions().await? {
        Layout::Fast
    } else {
        return Ok(false);
    };
    match wanted {
        Some(wanted) if wanted != found => Err(other_layout(config, name(found), wanted)),
        _ => Ok(true),
    }
}

fn other_layout(config: &Config, found: &str, wanted: Layout) -> Error {
    Error::Conflict(format!(
        "the layout of {} is {found}, and a table that exists is not changed: leave out --layout, \
         or give it the layout {} by hand, as docs/marking.md says",
        config.table,
        name(wanted)
    ))
}

pub(crate) async fn ensure_slot(
    config: &Config,
    store: &Store,
    client: &Client,
) -> Result<bool, Error> {
    let tail = TailReader::new(client, &config.stream.name).await?;
    match Slot::prepare(config, store, Some(&tail)).await {
        Ok(slot) => Ok(slot.created),
        Err(Error::SlotBusy { .. }) => Ok(false), // a relay is running
        Err(error) => Err(error),
    }
}

fn create_publication(config: &Config, publication: &str) -> String {
    format!(
        "CREATE PUBLICATION {publication} FOR TABLE {}\n    \
         WITH (publish = 'insert', publish_via_partition_root = true)",
        config.table.quoted()
    )
}

async fn ensure_publication(config: &Config, store: &Store) -> Result<bool, Error> {
    let Config { publication, slot, .. } = config;
    match store.check_publication(publication, slot).await {
        Ok(()) => Ok(false),
        Err(Error::NotSetUp { .. }) => {
            let sql = create_publication(config, publication);
            let created = store.client().batch_execute(&sql).await;
            created.map_err(Error::sql("create the publication")).map(|()| true)
        }
        Err(unfit) => Err(unfit),
    }
}

/// The stream to create: kept on disk, refusing what it has no room for.
fn stream(config: &Config, batches: bool) -> Stream {
    let wanted = &config.stream;
    Stream {
        name: wanted.name.clone(),
        subjects: subjects(config),
        storage: StorageType::File,
        discard: DiscardPolicy::New,
        num_replicas: wanted.replicas,
        duplicate_window: wanted.duplicate_window,
        max_age: wanted.max_age.unwrap_or_default(),
        max_bytes: wanted.max_bytes.map_or(-1, u64::cast_signed),
        allow_direct: true,
        allow_batch_publish: batches,
        ..Stream::default()
    }
}

/// What is configured, and what subjects the relay makes besides.
fn subjects(config: &Config) -> Vec<String> {
    let (mut missing, mut subjects) = (config.routing().patterns(), config.stream.subjects.clone());
    missing.retain(|it| !subjects.iter().any(|taken| subject_matches(taken, it)));
    // A stream's subjects must not overlap.
    subjects.retain(|it| !missing.iter().any(|pattern| subject_matches(pattern, it)));
    [subjects, missing].concat()
}

async fn ensure_stream(
    config: &Config,
    client: &Client,
    context: &Context,
) -> Result<(bool, Vec<String>), Error> {
    let name = &config.stream.name;
    let batches = fitness::batches(client);
    let found = context.get_stream(name).await;
    let (created, stream) = match found {
        Ok(stream) => (false, stream.cached_info().config.clone()),
        Err(error) if is_not_found(&error) => {
            let created = context.create_stream(stream(config, batches)).await;
            let created = created.map_err(Error::jetstream("create the stream"))?;
            (true, created.cached_info().config.clone())
        }
        Err(error) => return Err(Error::jetstream("look at the stream")(error)),
    };
    let mut warnings = Vec::new();
    for finding in fitness::findings(config, &stream, batches) {
        if finding.fatal {
            let fitness::Finding { reason, fix, .. } = finding;
            return Err(Error::Stream { stream: name.clone(), reason, fix });
        }
        warnings.push(format!("{}: {}", finding.reason, finding.fix));
    }
    Ok((created, warnings))
}

pub(crate) fn is_not_found(error: &jetstream::context::GetStreamError) -> bool {
    match error.kind() {
        jetstream::context::GetStreamErrorKind::JetStream(error) => {
            error.error_code() == ErrorCode::STREAM_NOT_FOUND
        }
        _ => false,
    }
}
