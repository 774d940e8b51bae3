//! What replication needs, and the publication and the slot.

use crate::checks::{Category, Judged, Remedy, Rule, Skip, error, ok, warning};
use outbox::quote;
use relay::RewindConfig;
use relay::access::standby_slots::SETTING;
use tokio_postgres::error::SqlState;

use super::facts::{AnySlot, Blocker, Failure, Publication, Seen, Server, SlotFacts};
use super::managed_rules::Service;
use super::read_server::SYNCHRONOUS;

/// What a relay that is away for a while makes the server keep.
const KEPT_MIB_MIN: i64 = 1024;

/// Log that a slot without a reader keeps without a warning.
const IDLE_BYTES_MAX: i64 = 1 << 30;

pub(super) const RULES: &[Rule<Seen>] = &[
    rule("replication-wal-level", "the log can be decoded", wal_level).before_setup(),
    rule("replication-slots", "there is room for a slot", slots).before_setup(),
    rule("replication-senders", "there is room for a walsender", senders).before_setup(),
    rule("replication-role", "the role may replicate", role).before_setup(),
    rule("replication-connection", "PostgreSQL takes a replication connection", connection)
        .before_setup(),
    rule("replication-keep-size", "what a slot keeps is limited, and not too little", keep_size)
        .before_setup(),
    rule("replication-idle-timeout", "the server drops no slot that is idle", idle_timeout)
        .before_setup(),
    rule("replication-standby-slots", "no standby that is away holds events back", standby_slots)
        .before_setup(),
    rule("replication-commits", "no standby that is away keeps commits from their end", commits)
        .before_setup(),
    rule(
        "replication-other-slots",
        "no other slot keeps the log or brings the same rows",
        other_slots,
    )
    .before_setup(),
];

/// Those about each shard.
pub(super) const EACH_SHARD: &[Rule<Seen>] = &[
    rule("publication", "the publication brings all inserts and nothing else", publication),
    rule("publication-age", "the publication is older than the slot", publication_age),
    rule("slot-exists", "the slot exists", slot_exists),
    rule("slot-fits", "the slot is the relay's own", slot_fits),
    rule("slot-log", "PostgreSQL has the log that the slot needs", slot_log),
    rule("slot-reader", "nobody else reads the slot", slot_reader),
    rule("slot-idle", "the slot keeps little log", slot_idle),
];

const fn rule(id: &'static str, title: &'static str, judge: fn(&Seen) -> Judged) -> Rule<Seen> {
    Rule::new(id, Category::Replication, title, judge)
}

fn slot(seen: &Seen) -> Result<&SlotFacts, Skip> {
    let slot = seen.shard.slot.as_ref().map_err(Clone::clone)?;
    let missing = || Skip::because(format!("there is no slot {}", seen.config.slot));
    slot.as_ref().ok_or_else(missing)
}

fn reload() -> Remedy {
    Remedy::sql("SELECT pg_reload_conf()")
}

fn wal_level(seen: &Seen) -> Judged {
    let server = seen.server()?;
    let value = server.setting("wal_level")?;
    if value == "logical" {
        return ok("wal_level = logical");
    }
    let remedies = Service::of(server).map_or_else(
        || {
            let sql = Remedy::sql("ALTER SYSTEM SET wal_level = 'logical'");
            vec![sql, Remedy::restart("PostgreSQL")]
        },
        Service::enable_decoding,
    );
    error(format!("wal_level = {value}"), remedies)
}

/// Slots that a relay of this configuration makes, and that are not there.
fn missing_slots(seen: &Seen, server: &Server) -> i64 {
    let has = |name: &str| server.slots.iter().any(|it| it.name == name);
    let shards = seen.config.each_shard();
    let rewinds = seen.config.rewind.retain.is_some();
    let wanted = shards.iter().flat_map(|it| {
        let rewind = rewinds.then(|| RewindConfig::slot(&it.slot));
        std::iter::once(it.slot.clone()).chain(rewind)
    });
    wanted.filter(|it| !has(it)).count().try_into().unwrap_or(0)
}

fn slots(seen: &Seen) -> Judged {
    let server = seen.server()?;
    let max = server.number("max_replication_slots")?;
    let used = i64::try_from(server.slots.len()).unwrap_or(0);
    let missing = missing_slots(seen, server);
    let evidence = format!("{used} of max_replication_slots = {max} are taken");
    if max - used >= missing {
        return ok(evidence);
    }
    let evidence = format!("{evidence}, and {missing} more are needed");
    let sql = format!("ALTER SYSTEM SET max_replication_slots = {}", used + missing + 4);
    error(evidence, [Remedy::sql(sql), Remedy::restart("PostgreSQL")])
}

fn standby_slots(seen: &Seen) -> Judged {
    let server = seen.server()?;
    let Some(listed) = server.settings.get(SETTING).filter(|it| !it.is_empty()) else {
        return ok("events wait for no standby");
    };
    let names = listed.split(',').map(|it| it.trim_matches([' ', '"']));
    let is_read = |name: &&str| server.slots.iter().any(|it| it.name == *name && it.active);
    let (present, away): (Vec<_>, Vec<_>) = names.partition(is_read);
    if away.is_empty() {
        return ok(format!("{SETTING} = {listed}"));
    }
    let present = present.join(", ");
    let set = Remedy::sql(format!("ALTER SYSTEM SET {SETTING} = '{present}'"));
    let caution = "or have the standby follow: a failover to one that lacks commits loses them";
    error(
        format!("{SETTING} names {}, and no standby reads that", away.join(", ")),
        [set.with_caution(caution), reload()],
    )
}

fn commits(seen: &Seen) -> Judged {
    let server = seen.server()?;
    let (held, names) = (server.held_commits, server.setting(SYNCHRONOUS)?);
    if held == 0 {
        return ok("none waits for long");
    }
    let set = Remedy::sql(format!("ALTER SYSTEM SET {SYNCHRONOUS} = ''"));
    let caution = "or have the standby follow: a failover to one that lacks commits loses them";
    error(
        format!("{held} commits wait for a synchronous standby: {SYNCHRONOUS} = {names}"),
        [set.with_caution(caution), reload()],
    )
}

fn is_full(failure: &Failure) -> bool {
    failure.said.contains("max_wal_senders")
}

fn senders(seen: &Seen) -> Judged {
    let server = seen.server()?;
    let max = server.number("max_wal_senders")?;
    let evidence = format!("{} of max_wal_senders = {max} are taken", server.walsenders);
    let needed = i64::try_from(seen.config.each_shard().len()).unwrap_or(1);
    let running =
        i64::try_from(seen.facts.shards.iter().filter(|it| it.is_read()).count()).unwrap_or(0);
    let refused = matches!(&seen.facts.replication, Ok(Err(failure)) if is_full(failure));
    // A connection of ours was among those that are counted, or was refused.
    if max - server.walsenders >= needed - running && !refused {
        return ok(evidence);
    }
    let sql = format!("ALTER SYSTEM SET max_wal_senders = {}", max + needed + 4);
    error(evidence, [Remedy::sql(sql), Remedy::restart("PostgreSQL")])
}

fn role(seen: &Seen) -> Judged {
    let (server, role) = (seen.server()?, seen.role()?);
    let name = quote(&role.name);
    if role.is_superuser || role.may_replicate {
        return ok(format!("role {name}"));
    }
    if Service::of(server) == Some(Service::Rds) {
        return Err(Skip::because("see managed-replication-role"));
    }
    let sql = format!("ALTER ROLE {name} REPLICATION");
    error(format!("role {name} has no REPLICATION"), [Remedy::sql(sql)])
}

fn connection(seen: &Seen) -> Judged {
    seen.server()?;
    let Err(failure) = seen.facts.replication.as_ref().map_err(Clone::clone)? else {
        return ok("IDENTIFY_SYSTEM is answered");
    };
    let said = &failure.said;
    if is_full(failure) {
        return Err(Skip::because("see replication-senders"));
    }
    if seen.role().is_ok_and(|it| !it.is_superuser && !it.may_replicate)
        && failure.sqlstate != Some(SqlState::SYNTAX_ERROR)
    {
        return Err(Skip::because("see replication-role"));
    }
    // A pooler hands the command on as SQL, or does not know the parameter at all.
    let is_pooler = failure.sqlstate == Some(SqlState::SYNTAX_ERROR)
        || said.contains("unsupported startup parameter")
        || said.contains("syntax error");
    if is_pooler {
        return error(
            format!("{} is a pooler, which carries no replication: {said}", seen.host),
            [Remedy::advice(
                "name the database server itself in postgres.url (Supabase: db.PROJECT.supabase.co; \
                 Neon: the host without -pooler; PgBouncer: from 1.23 on, or the server behind it)",
            )],
        );
    }
    let hint = failure.hint.clone();
    let hint = hint.unwrap_or_else(|| {
        "see the server's log, and pg_hba.conf: replication of a database needs the same lines as \
         a connection to it"
            .into()
    });
    error(said.clone(), [Remedy::advice(hint)])
}

fn keep_size(seen: &Seen) -> Judged {
    let server = seen.server()?;
    let mib = server.number("max_slot_wal_keep_size")?;
    let set = |size: &str| {
        let most = server.slots.iter().map(|it| it.retained_bytes).max().unwrap_or(0);
        let caution = format!(
            "every slot that keeps more than that is lost at the next checkpoint; at present one \
             keeps {} MiB",
            most >> 20
        );
        let set = format!("ALTER SYSTEM SET max_slot_wal_keep_size = '{size}'");
        vec![Remedy::sql(set).with_caution(caution), reload()]
    };
    if mib < 0 {
        return warning(
            "max_slot_wal_keep_size = -1: a slot that nobody reads fills the disk",
            set("20GB"),
        );
    }
    let evidence = format!("max_slot_wal_keep_size = {mib}MB");
    let retain = seen.config.rewind.retain.map_or(0, |it| i64::try_from(it >> 20).unwrap_or(0));
    if mib < KEPT_MIB_MIN || mib <= retain {
        let size = (2 * retain).max(20 * 1024);
        return warning(
            format!("{evidence}: the slot is soon lost while a relay is away"),
            set(&format!("{size}MB")),
        );
    }
    ok(evidence)
}

fn idle_timeout(seen: &Seen) -> Judged {
    let name = "idle_replication_slot_timeout";
    let Ok(seconds) = seen.server()?.number(name) else {
        return ok(format!("this version has no {name}"));
    };
    if seconds == 0 {
        return ok(format!("{name} = 0"));
    }
    let remedies = vec![Remedy::sql(format!("ALTER SYSTEM SET {name} = 0")), reload()];
    let evidence = format!("{name} = {seconds}s: the slot of a relay that is away is lost");
    match seen.config.wal.messages {
        true => error(evidence, remedies),
        false => warning(evidence, remedies),
    }
}

fn other_slots(seen: &Seen) -> Judged {
    let server = seen.server()?;
    let ours: Vec<String> = seen
        .config
        .each_shard()
        .into_iter()
        .flat_map(|it| [RewindConfig::slot(&it.slot), it.slot])
        .collect();
    let is_left = |it: &&AnySlot| {
        !it.active && it.retained_bytes >= IDLE_BYTES_MAX && !ours.contains(&it.name)
    };
    let publications: Vec<String> =
        seen.config.each_shard().into_iter().map(|it| it.publication).collect();
    let reads_ours = |it: &&AnySlot| {
        let read = it.publications.as_deref().unwrap_or_default().split(',');
        let mut read = read.map(|it| it.trim_matches([' ', '"']));
        !ours.contains(&it.name) && read.any(|it| publications.iter().any(|own| own == it))
    };
    let left = server.slots.iter().filter(is_left);
    let mut evidence: Vec<String> = left
        .clone()
        .map(|it| format!("{} is not read and keeps {} MiB", it.name, it.retained_bytes >> 20))
        .collect();
    let drop = |it: &AnySlot| {
        Remedy::sql(format!("SELECT pg_drop_replication_slot('{}')", it.name))
            .with_caution("if nobody needs it: its reader loses everything that it has not read")
    };
    let mut remedies: Vec<_> = left.map(drop).collect();
    for it in server.slots.iter().filter(reads_ours) {
        let pid = it.pid.unwrap_or(0);
        evidence.push(format!("process {pid} reads the publication too, from {}", it.name));
        let end = Remedy::sql(format!("SELECT pg_terminate_backend({pid})"));
        remedies.push(end.with_caution("a relay with another postgres.slot: stop it first"));
        remedies.push(drop(it));
    }
    if evidence.is_empty() {
        return ok(format!("{} slots in all", server.slots.len()));
    }
    warning(evidence.join(", "), remedies)
}

fn publication(seen: &Seen) -> Judged {
    seen.server()?;
    let name = &seen.config.publication;
    match seen.shard.publication.as_ref().map_err(Clone::clone)? {
        Publication::Fit | Publication::Changed => ok(format!("publication {name}")),
        Publication::Missing => {
            error(format!("there is no publication {name}"), [Remedy::shell("tailpost setup")])
        }
        // No statement about a table that is not there works.
        Publication::Unfit(..) if seen.any_table().is_ok_and(|it| !it.exists) => {
            Err(Skip::because(format!("there is no table {}", seen.config.table)))
        }
        Publication::Unfit(reason, statement) => {
            let evidence = format!("publication {name}: {reason}");
            error(evidence, [Remedy::sql(statement)])
        }
    }
}

fn publication_age(seen: &Seen) -> Judged {
    slot(seen)?;
    if *seen.shard.publication.as_ref().map_err(Clone::clone)? != Publication::Changed {
        return ok("it was not changed since");
    }
    warning(
        "the publication was changed after the slot was created, and the log may lack rows: a relay \
         makes the slot anew and scans the table",
        [Remedy::shell("tailpost relay --once")],
    )
}

fn slot_exists(seen: &Seen) -> Judged {
    seen.server()?;
    let name = &seen.config.slot;
    match seen.shard.slot.as_ref().map_err(Clone::clone)? {
        Some(SlotFacts { waits_for: Some(Blocker { pid, who }), .. }) => warning(
            format!(
                "PostgreSQL makes slot {name} wait for {who}; a relay publishes from the table \
                 meanwhile"
            ),
            [Remedy::sql(match pid {
                0 => "SELECT gid, prepared FROM pg_prepared_xacts ORDER BY prepared".into(),
                pid => format!("SELECT pg_terminate_backend({pid})"),
            })],
        ),
        Some(_) => ok(format!("slot {name}")),
        None => error(
            format!("there is no slot {name}: nothing holds the log for a relay"),
            [Remedy::shell("tailpost setup")],
        ),
    }
}

fn slot_fits(seen: &Seen) -> Judged {
    let (slot, server, name) = (slot(seen)?, seen.server()?, &seen.config.slot);
    let renamed = |evidence: String| {
        let other = format!("{name}_{}", server.database.to_lowercase());
        let fit = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_';
        let other: String = other.chars().filter(|it| fit(*it)).take(60).collect();
        let rename = Remedy::setting("postgres.slot", &other);
        error(evidence, [rename, Remedy::shell("tailpost setup")])
    };
    if slot.database.as_deref() != Some(&server.database) {
        let whose = slot.database.as_deref().unwrap_or("no database: it is physical");
        return renamed(format!("slot {name} belongs to {whose}"));
    }
    if slot.plugin.as_deref() == Some("pgoutput") && slot.is_known && !slot.is_temporary {
        return ok("pgoutput, and its start is on record");
    }
    let plugin = slot.plugin.as_deref().unwrap_or("no plugin");
    let evidence = match plugin {
        "pgoutput" => format!("tailpost_state has no row of slot {name}"),
        _ => format!("slot {name} has the output plugin {plugin}"),
    };
    if slot.reader.is_some() {
        return renamed(format!("{evidence}, and somebody reads it"));
    }
    let drop = format!("SELECT pg_drop_replication_slot('{name}')");
    let drop = Remedy::sql(drop).with_caution(
        "only if it is nobody else's: its reader loses what it has not read. Else give \
         postgres.slot another name",
    );
    error(evidence, [drop, Remedy::shell("tailpost setup")])
}

fn slot_log(seen: &Seen) -> Judged {
    let slot = slot(seen)?;
    let status = slot.wal_status.as_deref().unwrap_or("unknown");
    let why = slot.invalidation.as_deref().map(|it| format!(" ({it})")).unwrap_or_default();
    match status {
        "lost" => error(
            format!("wal_status = lost{why}: the log is gone"),
            [Remedy::shell("tailpost slot create")],
        ),
        "unreserved" => warning(
            "wal_status = unreserved: the slot is lost at the next checkpoint",
            [Remedy::shell("tailpost relay")],
        ),
        _ => ok(format!("wal_status = {status}")),
    }
}

fn slot_reader(seen: &Seen) -> Judged {
    let slot = slot(seen)?;
    let Some(reader) = &slot.reader else {
        return ok("nobody reads it");
    };
    let pid = reader.pid;
    let application = reader.application.as_deref().unwrap_or_default();
    if application == seen.config.postgres.replication_name() {
        return ok(format!("process {pid} ({application}) reads it"));
    }
    error(
        format!("process {pid} ({application}) reads it, which is no relay"),
        [Remedy::sql(format!("SELECT pg_terminate_backend({pid})"))],
    )
}

fn slot_idle(seen: &Seen) -> Judged {
    let slot = slot(seen)?;
    let kept = format!("it keeps {} MiB", slot.retained_bytes >> 20);
    let limit = seen.config.wal.limit.map(|it| i64::try_from(it).unwrap_or(i64::MAX));
    let most = limit.unwrap_or(IDLE_BYTES_MAX).min(IDLE_BYTES_MAX);
    if slot.retained_bytes < most {
        return ok(kept);
    }
    match slot.reader {
        Some(_) => warning(
            format!("{kept}, and a relay reads it: it lags, or the broker is away"),
            [Remedy::shell("tailpost status")],
        ),
        None => warning(format!("{kept}, and nobody reads it"), [Remedy::shell("tailpost relay")]),
    }
}
