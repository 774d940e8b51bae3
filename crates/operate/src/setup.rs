//! Everything that must exist before a relay runs, made if it is missing.

use std::num::NonZeroU32;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{Context, CreateStreamError, CreateStreamErrorKind};
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{Config as Stream, DiscardPolicy, StorageType};
use outbox::migrations;
use outbox::migrations::Layout;
use outbox::wire::subject_matches;
use relay::access::publication::filter;
use relay::access::stream_check::{MADE_BY, PARTITIONS, is_made_by_setup, recorded_partitions};
use relay::access::{OutboxIndex, Slot, TailReader, columns, not_logged, stream_check};
use relay::{Config, Error, MarkBy, Mode};
use serde::Serialize;
use serde_json::Value;
use servers::nats_version::takes_batches;
use tokio_postgres::error::SqlState;

use super::doctor::{overlaps, taken};
use super::maintain::make_ahead;
use super::partitioning::{begin, convert};
use crate::checks::RemedyKind;
use crate::retire::retire;
use crate::sql::{Store, create_index, stay};

/// How long a slot may wait for older transactions. A relay does not have to wait for it.
const SLOT_WAITS_MAX: Duration = Duration::from_secs(10);

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
    /// With partitions by day; a table that there is gets them. Without this it stays as it is.
    pub partitioned: bool,
}

/// What [`setup`] would do on servers that have nothing yet.
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
    let stay = match config.mark.by {
        MarkBy::Lean => stay::stay(&config.table) + ";\n\n",
        MarkBy::Row | MarkBy::Delete => String::new(),
    };
    let sql = format!(
        "{partitioned}{migrations}\n{index}{stay}{publications}\n\
         -- {what} created by `tailpost setup` on a replication connection, together with the\n\
         -- {is} which rows {it} made by hand cannot be used:\n{slots}",
        migrations = migrations::render(&config.table, layout(config)),
        index = match shards.len() {
            1 => String::new(),
            _ => create_index::create(OutboxIndex::Transactions, &config.table) + ";\n\n",
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
    let store = Store::patient(config, "tailpost setup").await?;
    store.lock_setup().await?;
    store.check_encoding().await?;
    store.check_former().await?;
    let mut steps = Box::pin(tables(config, &store, storage)).await?;
    check_policies(config, &store).await?;
    steps.extend(fit_types(config, &store).await?);
    let mut shards = Vec::new();
    for shard in config.each_shard() {
        let store = Store::patient(&shard, "tailpost setup").await?;
        store.check_row_filters().await?;
        shards.push((shard, store));
    }
    if shards.len() > 1 {
        let types = store.types(&config.table.quoted()).await?;
        columns::check_divisible(&config.table, &types)?;
    }
    let others = store.dropped_slots_of_other_shards(config).await?;
    let polls = config.mode == Mode::Poll;
    if polls {
        let created = store.ensure_poll_index().await?;
        steps.push(SetupStep { what: "index of unpublished rows".into(), created });
    } else {
        for (config, store) in &shards {
            let created = ensure_publication(config, store).await?;
            steps.push(SetupStep { what: format!("publication {}", config.publication), created });
        }
    }
    let client = config.nats.connect("tailpost setup").await?;
    stream_check::check_server(&client)?;
    // Before there are other slots, what these published is marked.
    for slot in others {
        Box::pin(retire(config, &slot.name, &client)).await?;
        let what = format!("marks of what slot {} published, which is gone", slot.name);
        steps.push(SetupStep { what, created: true });
    }
    let context = servers::jetstream_of(&client);
    let left = store.publications_of_other_shards(config).await?;
    let left = left.iter().map(|it| {
        format!("publication {it} is of another number of shards: run `DROP PUBLICATION {it}`")
    });
    let mut warnings: Vec<_> = left.collect();
    warnings.extend(written_by_subscriptions(&store).await?);
    let needless = store.needless_indexes(config).await?;
    warnings.extend(needless.into_iter().map(|drop| {
        format!("relay.mark has no use for an index that costs each insert: run `{drop}`")
    }));
    for (config, _) in &shards {
        let (made, weaknesses) = ensure_stream(config, &client, &context).await?;
        steps.extend(made);
        warnings.extend(weaknesses);
    }
    if !polls {
        for (config, store) in &shards {
            let what = format!("slot {}", config.slot);
            match Box::pin(ensure_slot(config, store, &client, SLOT_WAITS_MAX)).await? {
                Some(created) => steps.push(SetupStep { what, created }),
                None => warnings.push(format!(
                    "{what} is not there: PostgreSQL makes it wait for older transactions. `tailpost \
                     relay` has it made, and publishes from the table until then"
                )),
            }
        }
    }
    Ok(SetupReport { steps, warnings })
}

async fn written_by_subscriptions(store: &Store) -> Result<impl Iterator<Item = String>, Error> {
    let subscriptions = store.subscriptions().await?;
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
    store.batch_execute("look for policies", &sql).await
}

async fn tables(
    config: &Config,
    store: &Store,
    Storage { partitioned }: Storage,
) -> Result<Vec<SetupStep>, Error> {
    let mut steps = Vec::new();
    if partitioned {
        let created = begin(config, store).await?;
        steps.push(SetupStep { what: format!("partitioned table {}", config.table), created });
    }
    let mut migrating = Store::patient(config, "tailpost setup").await?;
    columns::check(&config.table, &migrating.types(&config.table.quoted()).await?)?;
    if config.mode != Mode::Poll
        && let Some(found) =
            not_logged::find(&migrating, &config.table, &config.publication).await?
    {
        return Err(found.refusal(&config.publication));
    }
    let applied = migrating.migrate(layout(config)).await?;
    let step = |migration: &migrations::Migration| {
        let created = applied.iter().any(|it| it.version == migration.version);
        let what = format!("migration {:04}_{}", migration.version, migration.name);
        SetupStep { what, created }
    };
    steps.extend(migrations::MIGRATIONS.iter().map(step));
    if partitioned && Box::pin(convert(config, store)).await? {
        steps[0].created = true;
    }
    if let Some((created, until)) = make_ahead(store, &config.retention).await? {
        let until = until.map_or_else(|| "for ever".into(), |it| format!("until {it}"));
        steps.push(SetupStep { what: format!("partitions {until}"), created: created > 0 });
    }
    steps.extend(Box::pin(indexes(config, store)).await?);
    Ok(steps)
}

/// What depends on the types of the outbox's columns, where they were changed.
async fn fit_types(config: &Config, store: &Store) -> Result<Vec<SetupStep>, Error> {
    let mut steps = Vec::new();
    if store.fit_dead_letters().await? {
        let what = "column payload in outbox_dead_letter, of the outbox's type".into();
        steps.push(SetupStep { what, created: true });
    }
    if ensure_emit(config, store).await? {
        steps.push(SetupStep { what: "function outbox_emit".into(), created: true });
    }
    Ok(steps)
}

/// Makes `outbox_emit` again, which has to be dropped before the type of a column changes.
async fn ensure_emit(config: &Config, store: &Store) -> Result<bool, Error> {
    let sql = "SELECT EXISTS (SELECT FROM pg_proc
        WHERE proname = 'outbox_emit' AND pronamespace = to_regnamespace($1))";
    let schema = config.table.quoted_schema();
    let is_there = async || -> Result<bool, Error> {
        Ok(store.query_one("look for outbox_emit", sql, &[&schema]).await?.get(0))
    };
    if is_there().await? {
        return Ok(false);
    }
    store.batch_execute("make outbox_emit", &migrations::render_emit(&config.table)).await?;
    is_there().await
}

/// The indexes that `relay.mark` needs, where the table was made for another word.
async fn indexes(config: &Config, store: &Store) -> Result<Vec<SetupStep>, Error> {
    let mut steps = Vec::new();
    for index in create_index::wanted(config) {
        let created = store.ensure_index(index).await?;
        if created && index == OutboxIndex::Unmarked {
            store.make_room_for_marks().await?;
        }
        // The migrations make it with the table.
        steps.extend(
            created.then(|| SetupStep { what: format!("index {}", index.name()), created }),
        );
    }
    if config.mark.by == MarkBy::Lean && store.ensure_rows_stay().await? {
        let what = "trigger tailpost_stay: rows stay in their partitions".into();
        steps.push(SetupStep { what, created: true });
    }
    Ok(steps)
}

/// How a table is made that does not exist yet.
fn layout(config: &Config) -> Layout {
    match config.mark.by {
        MarkBy::Lean => Layout::Lean,
        MarkBy::Row | MarkBy::Delete => Layout::Marked,
    }
}

/// Says whether the slot was created now; `None` if PostgreSQL takes longer than `patience`.
pub(crate) async fn ensure_slot(
    config: &Config,
    store: &Store,
    client: &Client,
    patience: Duration,
) -> Result<Option<bool>, Error> {
    let tail = TailReader::new(client, &config.stream.name).await?;
    match Box::pin(Slot::prepare(config, store, &tail, patience)).await {
        Ok(None) => Ok(None),
        Ok(Some(slot)) => {
            if config.wal.messages {
                store.accept_wal_messages(&config.slot).await?;
            }
            Ok(Some(slot.created))
        }
        Err(Error::SlotBusy { .. }) => Ok(Some(false)), // a relay is running
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
    let (publication, slot) = (&config.publication, &config.slot);
    match store.check_publication(publication, slot).await {
        // A slot that is older than the publication is made anew below.
        Ok(()) | Err(Error::PublicationChanged { .. }) => return Ok(false),
        Err(Error::NotSetUp { .. }) => {}
        Err(unfit) => return Err(unfit),
    }
    let made = store.batch_execute("create the publication", &create_publication(config)).await;
    let checked = store.check_publication(publication, slot).await;
    match (made, checked) {
        (Ok(()), Ok(()) | Err(Error::PublicationChanged { .. })) => Ok(true),
        (Ok(()), Err(unfit)) => Err(unfit),
        // Another program made it: not under our lock, so it may be another one.
        (Err(error), checked) if is_there_already(&error) => checked.map(|()| false),
        (Err(error), _) => Err(error),
    }
}

/// Whether something was not created because it exists. Who comes at the same moment meets the
/// catalogue's index instead of the check.
fn is_there_already(error: &Error) -> bool {
    matches!(error.code(), Some(SqlState::DUPLICATE_OBJECT | SqlState::UNIQUE_VIOLATION))
}

/// The stream to create: kept on disk, refusing what it has no room for.
fn stream(config: &Config, batches: bool) -> Stream {
    let wanted = &config.stream;
    let (name, value) = MADE_BY;
    let made_by = [(name.to_owned(), value.to_owned())].into_iter();
    let of_several = (config.partitions > NonZeroU32::MIN)
        .then(|| (PARTITIONS.to_owned(), config.partitions.to_string()));
    Stream {
        metadata: made_by.chain(of_several).collect(),
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
) -> Result<(Vec<SetupStep>, Vec<String>), Error> {
    Box::pin(check_takers(config, client)).await?;
    let name = &config.stream.name;
    let version = client.server_info().version;
    let batches = takes_batches(&version);
    let (created, mut info) = match stream_check::find(client, name).await? {
        Some(found) => (false, found.cached_info().clone()),
        None => {
            let wanted = stream(config, batches);
            match context.create_stream(wanted.clone()).await {
                Ok(created) => (true, created.cached_info().clone()),
                // From another database, or by hand, at the same moment.
                Err(error) if code(&error) == Some(ErrorCode::STREAM_NAME_EXIST) => {
                    let found = stream_check::look(client, name).await?;
                    (false, found.cached_info().clone())
                }
                Err(error) => return Err(refused(&wanted, error)),
            }
        }
    };
    let mut steps = vec![SetupStep { what: format!("stream {name}"), created }];
    if batches && !info.config.allow_batch_publish && is_made_by_setup(&info.config) {
        change(context, name, |config| config["allow_batched"] = true.into()).await?;
        info.config.allow_batch_publish = true;
        steps.push(SetupStep { what: format!("batches on stream {name}"), created: true });
    }
    let partitions = config.partitions.to_string();
    let is_changed = recorded_partitions(&info.config) != partitions;
    if is_changed && info.state.messages == 0 && is_made_by_setup(&info.config) {
        let record = |it: &mut Value| it["metadata"][PARTITIONS] = partitions.clone().into();
        change(context, name, record).await?;
        info.config.metadata.insert(PARTITIONS.into(), partitions.clone());
        let what = format!("partitions = {partitions} of stream {name}");
        steps.push(SetupStep { what, created: true });
    }
    let mut warnings = Vec::new();
    let mut findings = stream_check::findings(config, &info.config, &version);
    findings.extend(stream_check::mapped(config, client, &info).await?);
    for finding in findings {
        if finding.fatal {
            let stream_check::Finding { reason, fix, .. } = finding;
            return Err(Error::stream(name, &reason, fix));
        }
        warnings.push(format!("{}: {}", finding.reason, finding.fix));
    }
    Ok((steps, warnings))
}

/// Changes that one setting. Others may be of a newer server, and unknown here.
async fn change(
    context: &Context,
    name: &str,
    setting: impl FnOnce(&mut Value),
) -> Result<(), Error> {
    let doing = "change the stream";
    let ask = async |what, request: &Value| {
        let answer = context.request(format!("STREAM.{what}.{name}"), request).await;
        match answer.map_err(Error::jetstream(doing))? {
            Response::Ok::<Value>(answer) => Ok(answer),
            Response::Err { error } => Err(Error::jetstream(doing)(error)),
        }
    };
    let mut config = ask("INFO", &Value::Null).await?["config"].take();
    setting(&mut config);
    ask("UPDATE", &config).await.map(|_| ())
}

fn code(error: &CreateStreamError) -> Option<ErrorCode> {
    match error.kind() {
        CreateStreamErrorKind::JetStream(error) => Some(error.error_code()),
        _ => None,
    }
}

/// Another stream must not take subjects, as one does that was made for another number of shards.
/// Where this user may not ask, the broker refuses them.
async fn check_takers(config: &Config, client: &Client) -> Result<(), Error> {
    let found = overlaps(client, config).await.unwrap_or_default();
    let Some((who, remedies)) = taken(config, &found) else { return Ok(()) };
    let fix: Vec<_> = remedies
        .into_iter()
        .map(|it| match it.kind {
            RemedyKind::Advice => it.text,
            _ => format!("`{}`", it.text),
        })
        .collect();
    let reason = format!("{who}, which this one is to take");
    Err(Error::stream(&config.stream.name, &reason, fix.join(", and ")))
}

fn refused(wanted: &Stream, error: CreateStreamError) -> Error {
    let fix = match code(&error) {
        Some(
            ErrorCode::STREAM_MAX_BYTES_REQUIRED
            | ErrorCode::STREAM_MAX_STREAM_BYTES_EXCEEDED
            | ErrorCode::STORAGE_RESOURCES_EXCEEDED,
        ) => "set stream.max_bytes to what the account has room for (`nats account info`)",
        Some(ErrorCode::MAXIMUM_STREAMS_LIMIT) => {
            "delete a stream of the account, or raise its limit of streams"
        }
        _ => return Error::jetstream("create the stream")(error),
    };
    Error::stream(&wanted.name, &error.to_string(), fix.into())
}
