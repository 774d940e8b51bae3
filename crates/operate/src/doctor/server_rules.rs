//! What the database server has to be like.

use crate::checks::{Category, Judged, Remedy, Rule, Skip, error, ok, warning};
use crate::horizon::Holder;
use outbox::quote;
use relay::Mode;
use relay::access::encoding;
use tokio_postgres::error::SqlState;

use super::facts::{Failure, Seen};

/// Connections of a relay: the replication connection and those for statements, at their peak.
const CONNECTIONS: i64 = 10;

/// Clocks may differ by so much.
const CLOCK_SECONDS: f64 = 5.0;

pub(super) const RULES: &[Rule<Seen>] = &[
    rule("postgres-reachable", "the role can log in", reachable),
    rule("postgres-version", "PostgreSQL is 14 or later", version),
    rule("postgres-primary", "the server is a primary", primary),
    rule("postgres-encoding", "a relay reads the database's texts", database_encoding),
    rule("postgres-encryption", "the connection is encrypted", encryption),
    rule("postgres-connections", "there are connections for a relay", connections),
    rule("postgres-old-transactions", "nothing keeps old rows for long", old_transactions),
    rule("postgres-clock", "the server's clock agrees with this machine's", clock),
];

const fn rule(id: &'static str, title: &'static str, judge: fn(&Seen) -> Judged) -> Rule<Seen> {
    Rule::new(id, Category::Postgres, title, judge).before_setup()
}

fn reachable(seen: &Seen) -> Judged {
    match &seen.facts.server {
        Ok(_) => ok(seen.config.postgres.to_string()),
        Err(failure) => error(failure.said.clone(), login_remedies(seen, failure)),
    }
}

fn login_remedies(seen: &Seen, failure: &Failure) -> Vec<Remedy> {
    let role = quote(seen.config.postgres.user());
    let said = &failure.said;
    if said.contains("is not permitted to log in") {
        return vec![Remedy::sql(format!("ALTER ROLE {role} LOGIN"))];
    }
    if said.contains("too many connections for role") {
        return vec![Remedy::sql(format!("ALTER ROLE {role} CONNECTION LIMIT -1"))];
    }
    if failure.sqlstate == Some(SqlState::INSUFFICIENT_PRIVILEGE) && said.contains("database") {
        let database = "the database";
        return vec![Remedy::advice(format!("GRANT CONNECT ON {database} TO {role}"))];
    }
    let hint = failure.hint.clone();
    let hint = hint.unwrap_or_else(|| "see the server's log for why it refuses".into());
    vec![Remedy::advice(hint)]
}

fn version(seen: &Seen) -> Judged {
    let server = seen.server()?;
    let is_sharded = seen.config.each_shard().len() > 1;
    let (version, text) = (server.version, format!("PostgreSQL {}", server.version_text));
    match version {
        ..140_000 => error(text, [Remedy::advice("upgrade PostgreSQL to 14 or later")]),
        ..150_000 if is_sharded => error(
            format!("{text}, and row filters came with 15"),
            [Remedy::setting("relay.shards", "1")],
        ),
        _ => ok(text),
    }
}

fn primary(seen: &Seen) -> Judged {
    let server = seen.server()?;
    if !server.in_recovery {
        return ok("pg_is_in_recovery() is false");
    }
    let which = server.primary.as_deref();
    let which = which.map(|it| format!(", which follows {it}")).unwrap_or_default();
    let advice = match &server.primary {
        Some(primary) => format!("name the primary, {primary}, in postgres.url"),
        None => "name the primary in postgres.url".into(),
    };
    error(format!("a standby{which}"), [Remedy::advice(advice)])
}

fn encryption(seen: &Seen) -> Judged {
    let server = seen.server()?;
    if server.is_encrypted {
        return ok("TLS");
    }
    if server.is_local {
        return ok("not encrypted, and within one machine");
    }
    warning(
        format!("not encrypted, to {}", seen.host),
        [Remedy::setting("postgres.sslmode", "verify-full")],
    )
}

fn connections(seen: &Seen) -> Judged {
    let (server, role) = (seen.server()?, seen.role()?);
    let config = &seen.config;
    let workers = if config.mode == Mode::Poll { config.poll.workers } else { 0 };
    let shards = i64::try_from(config.each_shard().len()).unwrap_or(1);
    let needed = CONNECTIONS * shards + i64::try_from(workers).unwrap_or(0);
    let limit = i64::from(role.connection_limit);
    if (0..needed).contains(&limit) && !role.is_superuser {
        let name = quote(&role.name);
        return error(
            format!("role {name} may have {limit} connections, and a relay takes up to {needed}"),
            [Remedy::sql(format!("ALTER ROLE {name} CONNECTION LIMIT -1"))],
        );
    }
    let reserved = server.number("superuser_reserved_connections").unwrap_or(0);
    let max = server.number("max_connections")?;
    let free = max - reserved - server.connections;
    let evidence = format!("{} of {max} taken, {reserved} reserved", server.connections);
    // Those of a relay that runs are among them.
    let is_read = seen.facts.shards.iter().any(|it| it.is_read());
    if free >= needed || is_read && free > 0 {
        return ok(evidence);
    }
    let sql = format!("ALTER SYSTEM SET max_connections = {}", max + 2 * needed);
    warning(evidence, [Remedy::sql(sql), Remedy::restart("PostgreSQL")])
}

fn old_transactions(seen: &Seen) -> Judged {
    let holders = &seen.server()?.holders;
    if holders.is_empty() {
        return ok("nothing that this role may see keeps old rows for long");
    }
    let said: Vec<_> = holders.iter().map(Holder::said).collect();
    warning(said.join("; "), holders.iter().map(Holder::remedy))
}

fn database_encoding(seen: &Seen) -> Judged {
    let name = seen.server()?.setting("server_encoding")?;
    match encoding::refusal(name) {
        None => ok(name.to_owned()),
        Some((problem, fix)) => error(problem, [Remedy::advice(fix)]),
    }
}

fn clock(seen: &Seen) -> Judged {
    let server = seen.server()?;
    judge_clock("PostgreSQL", server.clock_ahead, server.clock_error)
}

/// Whether a server's clock is near enough to ours.
pub(super) fn judge_clock(whose: &str, ahead: f64, error: f64) -> Judged {
    if error > CLOCK_SECONDS {
        return Err(Skip::because(format!("{whose} answers too slowly to compare clocks")));
    }
    let evidence = format!("{whose} is {ahead:+.1} s from this machine");
    if ahead.abs() - error <= CLOCK_SECONDS {
        return ok(evidence);
    }
    let advice = "synchronise the clocks of both machines (`timedatectl set-ntp true`)";
    warning(evidence, [Remedy::advice(advice)])
}
