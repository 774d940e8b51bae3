//! What the outbox and its companions have to be like.

use std::sync::Arc;

use crate::checks::{Category, Judged, Remedy, Rule, Skip, error, ok, warning};
use outbox::quote;
use relay::Mode;
use relay::access::columns::Misfit;

use super::facts::{Contents, OutboxTable, Publication, Seen, ShardFacts};
use super::locks::judge_locks;
use super::triggers::judge_before_rows;

/// Retention runs every `retention.interval`; so many may be missed.
const PASSES_MISSED: f64 = 3.0;

/// A pass takes a while.
const PASS_SECONDS: f64 = 600.0;

pub(super) const RULES: &[Rule<Seen>] = &[
    rule("outbox-table", "the outbox exists", table),
    rule("outbox-setup", "`tailpost setup` may create what is missing", may_create).before_setup(),
    rule("outbox-columns", "its columns are of the types that the relay reads", columns)
        .before_setup(),
    rule("outbox-logged", "a crash does not empty it", logged).before_setup(),
    rule("outbox-former", "no table that was the outbox has rows to publish", former),
    rule("outbox-schema", "what its migrations made is there", schema),
    rule("outbox-migrations", "its migrations are those of this version", migrations),
    rule("outbox-privileges", "the role may read and write the tables", privileges),
    rule("outbox-policies", "no policy hides rows from the role", policies).before_setup(),
    rule("outbox-indexes", "rows are found without reading the whole table", indexes),
    rule("outbox-sequence", "rows that come are numbered behind those that wait", sequence),
    rule("outbox-triggers", "marks fire no trigger", triggers).before_setup(),
    rule("outbox-companions", "nothing keeps rows out of its companions", companions),
    rule("outbox-locks", "nobody keeps the relay from its tables", locks),
    rule("outbox-vacuum", "autovacuum looks after it", vacuum).before_setup(),
    rule("outbox-partitions", "there are partitions for the days to come", partitions),
    rule("outbox-shards", "no slot of another number of shards is left", shards),
    Rule::new("retention-upkeep", Category::Retention, "old rows are deleted", upkeep),
];

const fn rule(id: &'static str, title: &'static str, judge: fn(&Seen) -> Judged) -> Rule<Seen> {
    Rule::new(id, Category::Outbox, title, judge)
}

fn setup() -> Vec<Remedy> {
    vec![Remedy::shell("tailpost setup")]
}

fn table(seen: &Seen) -> Judged {
    let table = &seen.config.table;
    let found = seen.any_table()?;
    if found.exists {
        return ok(format!("table {table}"));
    }
    if let Ok(Contents { former: Some((problem, fix)), .. }) = seen.contents() {
        let fix = fix.trim_start_matches("run `");
        let (statement, caution) = fix.split_once('`').unwrap_or((fix, ""));
        let remedy = Remedy::sql(statement);
        let remedy = if caution.is_empty() { remedy } else { remedy.with_caution(caution.trim()) };
        return error(problem.clone(), [remedy]);
    }
    let evidence = format!("there is no table {table}");
    if let Some(problem) = found.migrations.as_ref().and_then(|it| it.problem.as_ref()) {
        let advice = format!("postgres.table may be mistyped: {problem}");
        return error(evidence, [Remedy::advice(advice)]);
    }
    if found.migrations.as_ref().is_none_or(|it| it.applied == 0) {
        return error(evidence, setup());
    }
    // Those that are left would publish nothing.
    let drop = |name: &str| Remedy::sql(format!("DROP PUBLICATION IF EXISTS {name}"));
    let drops = seen.config.each_shard().into_iter().map(|it| drop(&it.publication));
    error(evidence, drops.chain(setup()))
}

/// A warning, since another role may run set-up.
fn may_create(seen: &Seen) -> Judged {
    let (role, found) = (seen.role()?, seen.any_table()?);
    let is_missing = |it: &Arc<ShardFacts>| matches!(it.publication, Ok(Publication::Missing));
    let publishes = seen.config.mode != Mode::Poll && seen.facts.shards.iter().any(is_missing);
    let name = quote(&role.name);
    let (mut lacks, mut remedies) = (Vec::new(), Vec::new());
    let makes_schema = !found.exists && !role.may_create_in_schema;
    if (publishes || makes_schema && !role.has_schema) && !role.may_create_in_database {
        let database = quote(&seen.server()?.database);
        lacks.push(format!("CREATE on database {database}"));
        remedies.push(Remedy::sql(format!("GRANT CREATE ON DATABASE {database} TO {name}")));
    }
    if makes_schema && role.has_schema {
        let schema = seen.config.table.quoted_schema();
        lacks.push(format!("CREATE on schema {schema}"));
        remedies.push(Remedy::sql(format!("GRANT CREATE ON SCHEMA {schema} TO {name}")));
    }
    if found.exists && publishes && !found.is_owner {
        lacks.push(format!("the ownership of {}", seen.config.table));
        remedies.push(Remedy::sql(format!("GRANT {} TO {name}", quote(&found.owner))));
    }
    if remedies.is_empty() {
        return ok("nothing is missing, or the role may");
    }
    warning(
        format!("role {name} lacks {}, unless another role runs set-up", lacks.join(", ")),
        remedies,
    )
}

fn columns(seen: &Seen) -> Judged {
    match &seen.table()?.unfit {
        None => ok("they fit"),
        Some(Misfit { problem, statement: Some(statement) }) => {
            let remedies = [vec![Remedy::sql(statement)], setup()].concat();
            error(problem.clone(), remedies)
        }
        Some(Misfit { problem, statement: None }) => error(
            problem.clone(),
            [Remedy::advice(
                "mend the table as `tailpost setup --print` shows it, or name the column in \
                 [outbox.columns]",
            )],
        ),
    }
}

fn sequence(seen: &Seen) -> Judged {
    let Some(behind) = &seen.contents()?.sequence else {
        return ok("they are, as far as it can be told");
    };
    let evidence = format!(
        "a row that waits has number {}, and the sequence is at {}",
        behind.last, behind.given
    );
    let remedy = Remedy::sql(behind.statement.clone());
    if seen.config.mode != Mode::Poll {
        return warning(evidence, [remedy]);
    }
    let caution = "rows that came since stay before those that waited: a relay that is started anew \
                   numbers these too, if its role may update the sequence";
    error(evidence, [remedy.with_caution(caution)])
}

fn logged(seen: &Seen) -> Judged {
    let unlogged = &seen.table()?.unlogged;
    if unlogged.is_empty() {
        return ok("it is logged");
    }
    let set = |it: &String| {
        Remedy::sql(format!("ALTER TABLE {it} SET LOGGED"))
            .with_caution("it writes the table anew, and everybody waits for that")
    };
    error(
        format!("UNLOGGED: {}: the log does not bring its rows", unlogged.join(", ")),
        unlogged.iter().map(set),
    )
}

fn former(seen: &Seen) -> Judged {
    seen.table()?;
    refusal(seen.contents()?.former.as_ref(), || "there is none".into())
}

fn refusal(found: Option<&(String, String)>, fine: impl FnOnce() -> String) -> Judged {
    match found {
        None => ok(fine()),
        Some((problem, fix)) => error(problem.clone(), [Remedy::advice(fix.clone())]),
    }
}

fn schema(seen: &Seen) -> Judged {
    let lost = &seen.table()?.lost;
    if lost.is_empty() {
        return ok("all of it");
    }
    let names: Vec<_> = lost.iter().map(|it| it.what.as_str()).collect();
    let misfits = lost.iter().filter(|it| it.is_misfit);
    let statements = misfits.filter_map(|it| it.statement.clone()).map(Remedy::sql);
    let remedies = statements.chain(setup());
    error(format!("not there: {}", names.join(", ")), remedies)
}

fn migrations(seen: &Seen) -> Judged {
    let found = seen.table()?.migrations.as_ref();
    let found = found.ok_or_else(|| Skip::because("the role may not read tailpost_migrations"))?;
    if let Some(problem) = &found.problem {
        return error(
            problem.clone(),
            [Remedy::advice("look at tailpost_migrations, beside the outbox")],
        );
    }
    if !found.pending.is_empty() {
        return error(format!("missing: {}", found.pending.join(", ")), setup());
    }
    if !found.newer.is_empty() {
        let newer: Vec<String> = found.newer.iter().map(ToString::to_string).collect();
        return warning(
            format!("a newer tailpost applied {}", newer.join(", ")),
            [Remedy::advice("run the newer tailpost here too")],
        );
    }
    ok(format!("{} are applied", found.applied))
}

fn privileges(seen: &Seen) -> Judged {
    let role = seen.role()?;
    let name = quote(&role.name);
    // Without it nothing of the tables can be asked.
    if !role.may_use_schema {
        let schema = seen.config.table.quoted_schema();
        return error(
            format!("role {name} lacks USAGE on schema {schema}"),
            [Remedy::sql(format!("GRANT USAGE ON SCHEMA {schema} TO {name}"))],
        );
    }
    judge_privileges(&name, &seen.table()?.lacks)
}

/// Whether a role has what it needs: `lacks` is what it does not have of each table.
pub(super) fn judge_privileges(role: &str, lacks: &[(String, Vec<String>)]) -> Judged {
    if lacks.is_empty() {
        return ok(format!("role {role}"));
    }
    let lacks = lacks.iter().map(|(table, privileges)| (privileges.join(", "), table));
    let evidence: Vec<_> = lacks.clone().map(|(it, table)| format!("{it} on {table}")).collect();
    let grant = |(it, table)| Remedy::sql(format!("GRANT {it} ON {table} TO {role}"));
    error(format!("role {role} lacks {}", evidence.join("; ")), lacks.map(grant))
}

fn policies(seen: &Seen) -> Judged {
    judge_policies(&quote(seen.config.postgres.user()), &seen.table()?.policed)
}

pub(super) fn judge_policies(role: &str, policed: &[String]) -> Judged {
    if policed.is_empty() {
        return ok("none applies to the role");
    }
    error(
        format!("row-level security applies to role {role} on {}", policed.join(", ")),
        [Remedy::sql(format!("ALTER ROLE {role} BYPASSRLS"))],
    )
}

fn indexes(seen: &Seen) -> Judged {
    let (table, config) = (seen.table()?, &seen.config);
    let rebuild = |it: &String| {
        Remedy::sql(format!("REINDEX INDEX {it}"))
            .with_caution("inserts wait for it. An index that is being built is not valid either")
    };
    if !table.invalid_indexes.is_empty() {
        return warning(
            format!("not valid, and not used: {}", table.invalid_indexes.join(", ")),
            table.invalid_indexes.iter().map(rebuild),
        );
    }
    let is_sharded = config.each_shard().len() > 1;
    let lacking = match config.mode {
        Mode::Poll if !table.has_poll_index => Some("idx_outbox_unpublished_seq, for claims"),
        Mode::Fenced | Mode::Keyed
            if (config.needs_fence() || is_sharded) && !table.has_transactions_index =>
        {
            Some("idx_outbox_txid, for relay.mark = \"lean\" and shards")
        }
        _ => None,
    };
    if let Some(index) = lacking {
        return error(format!("there is no index {index}"), setup());
    }
    if !config.needs_fence() && !table.has_unmarked_index {
        let looks = match table.has_transactions_index {
            true => "looks for unmarked rows go by transaction, and read the whole table each hour",
            false => "every look for unmarked rows reads the whole table",
        };
        return warning(format!("there is no index idx_outbox_unpublished: {looks}"), setup());
    }
    let needless = &seen.contents()?.needless_indexes;
    if !needless.is_empty() {
        return warning(
            "relay.mark has no use for an index that costs each insert",
            needless.iter().cloned().map(Remedy::sql),
        );
    }
    ok("they are there")
}

fn triggers(seen: &Seen) -> Judged {
    let found = &seen.table()?.triggers;
    if found.is_empty() {
        return ok("none");
    }
    let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
    let evidence = format!(
        "marks or parked events fire {}. If a trigger or a key raises an error, or a trigger returns \
         NULL or puts the columns back, the row gets no mark, or stays",
        names.join(", ")
    );
    warning(evidence, found.iter().map(|(_, statement)| Remedy::sql(statement.clone())))
}

fn companions(seen: &Seen) -> Judged {
    judge_before_rows(&seen.table()?.before_rows)
}

fn locks(seen: &Seen) -> Judged {
    judge_locks(seen.facts.locks.as_ref().map_err(Clone::clone)?)
}

fn vacuum(seen: &Seen) -> Judged {
    let found = &seen.table()?.unvacuumed;
    if found.is_empty() {
        return ok("it is not turned off");
    }
    let reset = |it: &String| Remedy::sql(format!("ALTER TABLE {it} RESET (autovacuum_enabled)"));
    warning(
        format!("autovacuum is off on {}: marks leave dead rows", found.join(", ")),
        found.iter().map(reset),
    )
}

fn partitions(seen: &Seen) -> Judged {
    let table = seen.table()?;
    let Some(found) = &seen.contents()?.partitions else {
        return ok("it has no partitions by day");
    };
    if !found.is_short {
        return ownership(seen, table, &found.until);
    }
    error(
        format!("there are partitions {}, and inserts fail from then on", found.until),
        [Remedy::shell("tailpost maintain")],
    )
}

/// Relays make partitions, and only an owner attaches them.
fn ownership(seen: &Seen, table: &OutboxTable, until: &str) -> Judged {
    let role = quote(seen.config.postgres.user());
    let mut remedies = Vec::new();
    if !table.is_owner {
        remedies.push(Remedy::sql(format!("GRANT {} TO {role}", quote(&table.owner))));
    }
    if !table.may_create {
        let schema = seen.config.table.quoted_schema();
        remedies.push(Remedy::sql(format!("GRANT CREATE ON SCHEMA {schema} TO {role}")));
    }
    if remedies.is_empty() {
        return ok(until.to_owned());
    }
    warning(
        format!("there are partitions {until}, and a relay with role {role} cannot make more"),
        remedies,
    )
}

fn shards(seen: &Seen) -> Judged {
    let count = || format!("relay.shards = {}", seen.config.each_shard().len());
    refusal(seen.contents()?.other_shards.as_ref(), count)
}

fn upkeep(seen: &Seen) -> Judged {
    let Some(found) = &seen.contents()?.retention else {
        return ok("there was no pass yet");
    };
    let again = vec![Remedy::shell("tailpost maintain")];
    if let Some(failure) = &found.failure {
        return error(format!("the last pass failed: {failure}"), again);
    }
    let Some(age) = found.last_success_seconds else {
        return ok("no pass has ended yet");
    };
    let most = PASSES_MISSED * seen.config.retention.interval.as_secs_f64() + PASS_SECONDS;
    let evidence = format!("the last pass ended {age:.0} s ago");
    if age > most {
        return warning(evidence, again);
    }
    ok(evidence)
}
