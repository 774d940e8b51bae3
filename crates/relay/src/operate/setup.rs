//! Everything that must exist before a relay runs, made if it is missing.

use async_nats::Client;
use async_nats::jetstream::context::{Context, CreateStreamError, CreateStreamErrorKind};
use async_nats::jetstream::stream::{Config as Stream, DiscardPolicy, StorageType};
use async_nats::jetstream::{self, ErrorCode};
use outbox::migrations::{self, Layout};
use outbox::wire::subject_matches;
use serde::Serialize;
use tokio_postgres::error::SqlState;

use super::partitioning::{ahead, begin, convert};
use crate::config::{Config, MarkBy, Mode};
use crate::error::Error;
use crate::nats::TailReader;
use crate::nats::stream_check::{self, is_not_found};
use crate::postgres::publication::filter;
use crate::postgres::retire::retire;
use crate::postgres::sql::create_index_of_transactions;
use crate::postgres::{Opening, Slot, Store, answered, columns};

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
    /// The stream, as `nats stream add --config` takes it; with several shards there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<serde_json::Value>,
    /// Instead the stream of each shard, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<serde_json::Value>,
}

/// How the outbox is to be stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Storage {
    /// A table that there is keeps its layout; with one given it has to have that one.
    pub layout: Option<Layout>,
    /// With partitions by day; a table that there is gets them. Without this it stays as it is.
    pub partitioned: bool,
}

/// What [`setup`] would do on servers that have nothing yet.
#[must_use]
pub fn plan(config: &Config, storage: Storage) -> SetupPlan {
    let shards = config.each_shard();
    let publications: String = shards.iter().map(|it| create_publication(it) + ";\n").collect();
    let slots: String = shards
        .iter()
        .map(|it| {
            let slot = &it.slot;
            format!("--   CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput (SNAPSHOT 'use')\n")
        })
        .collect();
    let (what, it, is) = match shards.len() {
        1 => ("The slot is", "it brings. A slot", "snapshot that says"),
        _ => ("The slots are", "each brings. A slot", "snapshots that say"),
    };
    let partitioned = match storage.partitioned {
        true => format!(
            "CREATE SCHEMA IF NOT EXISTS {};\n{}\n-- Its partitions are made by `tailpost setup` or `tailpost maintain`.\n",
            config.table.quoted_schema(),
            migrations::render_partitioned(&config.table)
        ),
        false => String::new(),
    };
    let sql = format!(
        "{partitioned}{migrations}\n{index}{publications}\n\
         -- {what} created by `tailpost setup` on a replication connection, together with the\n\
         -- {is} which rows {it} made by hand cannot be used:\n{slots}",
        migrations = migrations::render(&config.table, storage.layout.unwrap_or_default()),
        index = match needs_index_of_transactions(config) {
            true => create_index_of_transactions(&config.table) + ";\n\n",
            false => String::new(),
        },
    );
    let stream = |it: &Config| serde_json::to_value(stream(it, true)).unwrap_or_default();
    let mut streams: Vec<_> = shards.iter().map(stream).collect();
    let stream = if streams.len() == 1 { streams.pop() } else { None };
    SetupPlan { sql, stream, streams }
}

/// Makes what is missing: tables, publication, stream, slot, in this order (a slot that is older
/// than its publication cannot be read), and the latter three for each shard. Safe to run again,
/// while relays run, and several times at once: one waits for the other, a minute at most.
///
/// # Errors
///
/// If a server cannot be reached or refuses; if something exists and does not fit: it is never
/// changed silently.
pub async fn setup(config: &Config, storage: Storage) -> Result<SetupReport, Error> {
    let opening = Opening::unobserved(config);
    let store = Store::connect(config, "tailpost setup").await?;
    store.lock_setup().await?;
    let mut steps = Box::pin(tables(config, &opening, &store, storage)).await?;
    opening.on(&store, "look for policies", check_policies(config, &store)).await?;
    if opening.on(&store, "fit the dead letters", store.fit_dead_letters()).await? {
        let what = "column payload in outbox_dead_letter, of the outbox's type".into();
        steps.push(SetupStep { what, created: true });
    }
    let mut shards = Vec::new();
    for shard in config.each_shard() {
        let store = Store::connect(&shard, "tailpost setup").await?;
        opening.on(&store, "look at the row filters", store.check_row_filters()).await?;
        shards.push((shard, store));
    }
    if shards.len() > 1 {
        let table = config.table.quoted();
        let types = columns::types(store.client(), &table);
        let types = opening.on(&store, "look at the outbox", types).await?;
        columns::check_divisible(&config.table, &types)?;
    }
    let others = store.dropped_slots_of_other_shards(config);
    let others = opening.on(&store, "look for other slots", others).await?;
    let polls = config.mode == Mode::Poll;
    if polls {
        let ensured = store.ensure_poll_index();
        let created = opening.on(&store, "create the index of unpublished rows", ensured).await?;
        steps.push(SetupStep { what: "index of unpublished rows".into(), created });
    } else {
        for (config, store) in &shards {
            let ensured = ensure_publication(config, store);
            let created = opening.on(store, "create the publication", ensured).await?;
            steps.push(SetupStep { what: format!("publication {}", config.publication), created });
        }
    }
    let client = config.nats.connect("tailpost setup").await?;
    // Before there are other slots, what these published is marked.
    for slot in others {
        Box::pin(retire(config, &slot.name, &client)).await?;
        let what = format!("marks of what slot {} published, which is gone", slot.name);
        steps.push(SetupStep { what, created: true });
    }
    let context = jetstream::new(client.clone());
    let left = store.publications_of_other_shards(config);
    let left = opening.on(&store, "look for other publications", left).await?;
    let left = left.iter().map(|it| {
        format!("publication {it} is of another number of shards: run `DROP PUBLICATION {it}`")
    });
    let mut warnings: Vec<_> = left.collect();
    warnings.extend(written_by_subscriptions(&opening, &store).await?);
    for (config, _) in &shards {
        let (created, weaknesses) = ensure_stream(config, &client, &context).await?;
        steps.push(SetupStep { what: format!("stream {}", config.stream.name), created });
        warnings.extend(weaknesses);
    }
    if !polls {
        for (config, store) in &shards {
            let created = Box::pin(ensure_slot(config, store, &client)).await?;
            steps.push(SetupStep { what: format!("slot {}", config.slot), created });
        }
    }
    Ok(SetupReport { steps, warnings })
}

async fn written_by_subscriptions(
    opening: &Opening,
    store: &Store,
) -> Result<impl Iterator<Item = String>, Error> {
    let subscriptions = opening.on(store, "look for subscriptions", store.subscriptions()).await?;
    Ok(subscriptions.into_iter().map(|name| {
        format!(
            "subscription {name} writes to the outbox, and transactions of another cluster with it \
             if it copies the column txid: such rows may be published twice or not at all. Drop it, \
             then run `tailpost slot drop` and `tailpost setup` (docs/upgrading.md)"
        )
    }))
}

/// Rows that a policy hides from the role would be neither published nor marked.
///
/// # Errors
///
/// What PostgreSQL answers then, because the session has `row_security = off`.
async fn check_policies(config: &Config, store: &Store) -> Result<(), Error> {
    let (table, dead) = (config.table.quoted(), config.table.companion("outbox_dead_letter"));
    let sql = format!("SELECT FROM {table} LIMIT 0; SELECT FROM {dead} LIMIT 0");
    store.client().batch_execute(&sql).await.map_err(Error::sql("look for policies"))
}

async fn tables(
    config: &Config,
    opening: &Opening,
    store: &Store,
    Storage { layout, partitioned }: Storage,
) -> Result<Vec<SetupStep>, Error> {
    let mut steps = Vec::new();
    if partitioned {
        let created = opening.on(store, "make the outbox", begin(config, store)).await?;
        steps.push(SetupStep { what: format!("partitioned table {}", config.table), created });
    }
    let (mut postgres, _connection) = config.postgres.connect("tailpost setup").await?;
    let asked = async {
        let asked = postgres.query_one("SELECT pg_backend_pid()", &[]).await;
        Ok(asked.map_err(Error::sql("ask the server"))?.get::<_, i32>(0))
    };
    let pid = answered("ask the server", asked).await?;
    let looking = "look at the outbox";
    let types =
        opening.step(pid, looking, columns::types(&postgres, &config.table.quoted())).await?;
    columns::check(&config.table, &types)?;
    let has_layout = opening.on(store, looking, check_layout(config, store, layout)).await?;
    let migrating = async {
        let layout = layout.unwrap_or_default();
        Ok(migrations::migrate(&mut postgres, &config.table, layout).await?)
    };
    let applied = opening.step(pid, "migrate the tables", migrating).await?;
    let step = |migration: &migrations::Migration| {
        let created = applied.iter().any(|it| it.version == migration.version);
        let what = format!("migration {:04}_{}", migration.version, migration.name);
        SetupStep { what, created }
    };
    steps.extend(migrations::MIGRATIONS.iter().map(step));
    if partitioned && Box::pin(convert(config, opening, store)).await? {
        steps[0].created = true;
    }
    if let Some((created, until)) =
        opening.on(store, "make partitions", ahead(config, store)).await?
    {
        let until = until.map_or_else(|| "for ever".into(), |it| format!("until {it}"));
        steps.push(SetupStep { what: format!("partitions {until}"), created: created > 0 });
    }
    if let Some(layout) = layout {
        if !has_layout && !applied.iter().any(|it| it.version == 1) {
            return Err(other_layout(config, "none that is known", layout));
        }
        let what = format!("layout {}", name(layout));
        steps.push(SetupStep { what, created: !has_layout });
    }
    if needs_index_of_transactions(config) {
        let ensured = store.ensure_index_of_transactions();
        let created = opening.on(store, "create the index of transactions", ensured).await?;
        steps.push(SetupStep { what: "index of transactions".into(), created });
    }
    Ok(steps)
}

/// Without marks nothing else leads to the rows that are not published. And of several shards one may
/// lag: the others must not look at its rows again and again.
fn needs_index_of_transactions(config: &Config) -> bool {
    config.mark.by == MarkBy::Watermark || config.each_shard().len() > 1
}

fn name(layout: Layout) -> &'static str {
    match layout {
        Layout::Marked => "standard",
        Layout::Lean => "fast",
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
    if wanted == Some(Layout::Lean) && config.mode == Mode::Poll {
        return Err(Error::Conflict(
            "the layout \"fast\" does not go with relay.mode = \"poll\": claims need an index \
             that every mark touches; leave out --layout"
                .into(),
        ));
    }
    let found = if store.has_index_of_unmarked().await? {
        Layout::Marked
    } else if store.has_index_of_transactions().await? {
        Layout::Lean
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
    let opening = Opening::unobserved(config);
    match Box::pin(Slot::prepare(config, &opening, store, Some(&tail))).await {
        Ok(slot) => {
            if config.wal.messages {
                let noted = store.accept_wal_messages(&config.slot);
                opening.on(store, "say that messages are taken", noted).await?;
            }
            Ok(slot.created)
        }
        Err(Error::SlotBusy { .. }) => Ok(false), // a relay is running
        Err(error) => Err(error),
    }
}

fn create_publication(config: &Config) -> String {
    let (publication, table) = (&config.publication, &config.table);
    let filter = config.shard().map(|shard| format!("\n    WHERE {}", filter(table, shard)));
    format!(
        "CREATE PUBLICATION {publication} FOR TABLE {}{}\n    \
         WITH (publish = 'insert', publish_via_partition_root = true)",
        table.quoted(),
        filter.unwrap_or_default()
    )
}

async fn ensure_publication(config: &Config, store: &Store) -> Result<bool, Error> {
    match store.check_publication(&config.publication, &config.slot).await {
        Ok(()) => Ok(false),
        Err(Error::NotSetUp { .. }) => {
            let sql = create_publication(config);
            match store.client().batch_execute(&sql).await {
                Ok(()) => Ok(true),
                // Somebody else made it: not under our lock, so it may be another one.
                Err(error) if is_there_already(&error) => {
                    store.check_publication(&config.publication, &config.slot).await.map(|()| false)
                }
                Err(error) => Err(Error::sql("create the publication")(error)),
            }
        }
        Err(unfit) => Err(unfit),
    }
}

/// Whether something was not created because it exists. Who comes at the same moment meets the
/// catalogue's index instead of the check.
fn is_there_already(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::DUPLICATE_OBJECT | &SqlState::UNIQUE_VIOLATION))
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
    let batches = stream_check::batches(client);
    let found = context.get_stream(name).await;
    let (created, stream) = match found {
        Ok(stream) => (false, stream.cached_info().config.clone()),
        Err(error) if is_not_found(&error) => {
            let wanted = stream(config, batches);
            match context.create_stream(wanted.clone()).await {
                Ok(created) => (true, created.cached_info().config.clone()),
                // From another database, or by hand, at the same moment.
                Err(error) if code(&error) == Some(ErrorCode::STREAM_NAME_EXIST) => {
                    let found = context.get_stream(name).await;
                    let found = found.map_err(Error::jetstream("look at the stream"))?;
                    (false, found.cached_info().config.clone())
                }
                Err(error) => return Err(refused(context, wanted, error).await),
            }
        }
        Err(error) => return Err(Error::jetstream("look at the stream")(error)),
    };
    let mut warnings = Vec::new();
    for finding in stream_check::findings(config, &stream, batches) {
        if finding.fatal {
            let stream_check::Finding { reason, fix, .. } = finding;
            return Err(Error::Stream { stream: name.clone(), reason, fix });
        }
        warnings.push(format!("{}: {}", finding.reason, finding.fix));
    }
    Ok((created, warnings))
}

fn code(error: &CreateStreamError) -> Option<ErrorCode> {
    match error.kind() {
        CreateStreamErrorKind::JetStream(error) => Some(error.error_code()),
        _ => None,
    }
}

/// Says so if another stream takes some of the subjects, as one does that was made for another number
/// of shards.
async fn refused(context: &Context, wanted: Stream, error: CreateStreamError) -> Error {
    if code(&error) != Some(ErrorCode::STREAM_SUBJECT_OVERLAP) {
        return Error::jetstream("create the stream")(error);
    }
    let mut other = None;
    for subject in &wanted.subjects {
        other = other.or(context.stream_by_subject(subject.as_str()).await.ok());
    }
    let other = other.unwrap_or_else(|| "NAME".into());
    Error::Stream {
        stream: wanted.name,
        reason: format!(
            "stream \"{other}\" takes subjects that this one is to take: {}",
            wanted.subjects.join(", ")
        ),
        fix: format!(
            "let {other} take less: `nats stream edit {other} --subjects 'outbox.*.*'` in place of \
             'outbox.>', for instance"
        ),
    }
}
