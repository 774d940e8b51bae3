//! What providers of PostgreSQL want, each in its own way.
//!
//! A provider is known by roles and settings that only it has. The facts are from their manuals.

use crate::checks::{Category, Judged, Remedy, Rule, Skip, error, ok, warning};
use outbox::quote;
use relay::Mode;

use super::facts::{Seen, Server};

pub(super) const RULES: &[Rule<Seen>] = &[
    rule("managed-service", "the provider is known", service),
    rule("managed-replication-role", "the role may replicate as RDS has it", replication_role),
    rule("managed-iam", "the role can log in for replication", iam),
    rule("managed-direct-host", "postgres.url names the server and not a pooler", direct_host),
    rule("managed-failover", "a failover keeps the slot", failover),
    rule("managed-slot-removal", "the provider removes no slot", slot_removal),
];

const fn rule(id: &'static str, title: &'static str, judge: fn(&Seen) -> Judged) -> Rule<Seen> {
    Rule::new(id, Category::Managed, title, judge).before_setup()
}

/// Who runs the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    Rds,
    CloudSql,
    Azure,
    Neon,
    Supabase,
    CloudNativePg,
}

impl Service {
    pub(super) fn of(server: &Server) -> Option<Self> {
        let has = |name: &str| server.traits.iter().any(|it| it == name);
        [
            ("rds_superuser", Self::Rds),
            ("rds.logical_replication", Self::Rds),
            ("cloudsqlsuperuser", Self::CloudSql),
            ("azure_pg_admin", Self::Azure),
            ("neon_superuser", Self::Neon),
            ("supabase_admin", Self::Supabase),
            ("cnpg.config_sha256", Self::CloudNativePg),
        ]
        .into_iter()
        .find_map(|(name, service)| has(name).then_some(service))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Rds => "Amazon RDS or Aurora",
            Self::CloudSql => "Google Cloud SQL",
            Self::Azure => "Azure Database for PostgreSQL",
            Self::Neon => "Neon",
            Self::Supabase => "Supabase",
            Self::CloudNativePg => "CloudNativePG",
        }
    }

    /// What turns logical decoding on.
    pub(super) fn enable_decoding(self) -> Vec<Remedy> {
        let parameter = |text: &str| Remedy::advice(text.to_owned());
        match self {
            Self::Rds => vec![
                parameter(
                    "set rds.logical_replication = 1 in the parameter group of the instance or \
                     cluster",
                ),
                Remedy::restart("the instance"),
            ],
            Self::CloudSql => vec![
                Remedy::shell(
                    "gcloud sql instances patch INSTANCE \
                     --database-flags=cloudsql.logical_decoding=on",
                ),
                Remedy::restart("the instance"),
            ],
            Self::Azure => vec![
                Remedy::shell(
                    "az postgres flexible-server parameter set --resource-group GROUP \
                     --server-name SERVER --name wal_level --value logical",
                ),
                Remedy::restart("the server"),
            ],
            Self::Neon => vec![parameter(
                "enable logical replication in the settings of the project; it cannot be undone",
            )],
            Self::Supabase => vec![parameter("ask Supabase's support: wal_level is logical there")],
            Self::CloudNativePg => vec![parameter(
                "set wal_level: logical below spec.postgresql.parameters of the Cluster",
            )],
        }
    }
}

fn known(seen: &Seen) -> Result<Option<Service>, Skip> {
    seen.server().map(Service::of)
}

fn service(seen: &Seen) -> Judged {
    let evidence = match known(seen)? {
        Some(service) => service.name().to_owned(),
        None => "none that Tailpost knows: a server of your own".to_owned(),
    };
    ok(evidence)
}

fn replication_role(seen: &Seen) -> Judged {
    if seen.config.mode == Mode::Poll {
        return ok("relay.mode = \"poll\" reads no log");
    }
    if known(seen)? != Some(Service::Rds) {
        return ok("see replication-role");
    }
    let role = seen.role()?;
    if role.member_of.iter().any(|it| it == "rds_replication" || it == "rds_superuser") {
        return ok("a member of rds_replication");
    }
    let name = quote(&role.name);
    error(
        format!("role {name} is no member of rds_replication"),
        [Remedy::sql(format!("GRANT rds_replication TO {name}"))],
    )
}

fn iam(seen: &Seen) -> Judged {
    let (server, role) = (seen.server()?, seen.role()?);
    if !role.member_of.iter().any(|it| it == "rds_iam") {
        return ok("no member of rds_iam");
    }
    let setting = "rds.iam_auth_for_replication";
    let is_on = matches!(server.setting(setting).unwrap_or("0"), "1" | "on");
    if is_on && let Some(renewed) = seen.config.postgres.renewed().login {
        return ok(format!("a member of rds_iam, with {renewed}"));
    }
    if is_on {
        return warning(
            format!(
                "a member of rds_iam, and {setting} is on: tokens last 15 minutes, and a relay \
                 reconnects later than that"
            ),
            [
                Remedy::advice("set postgres.password_command: docs/security.md#credentials"),
                Remedy::sql(format!("REVOKE rds_iam FROM {}", quote(&role.name))),
            ],
        );
    }
    error(
        format!("a member of rds_iam cannot use a password, and {setting} is off"),
        [
            Remedy::sql(format!("REVOKE rds_iam FROM {}", quote(&role.name))),
            Remedy::advice(format!("or set {setting} = 1 in the parameter group")),
        ],
    )
}

fn direct_host(seen: &Seen) -> Judged {
    let host = &*seen.host;
    let first = host.split('.').next().unwrap_or_default();
    let direct = match host {
        _ if host.ends_with(".neon.tech") && first.ends_with("-pooler") => {
            let name = first.trim_end_matches("-pooler");
            host.replacen(first, name, 1)
        }
        _ if host.ends_with(".pooler.supabase.com") => {
            "db.PROJECT.supabase.co, which is IPv6 unless IPv4 is paid for".to_owned()
        }
        _ if host.contains(".proxy-") && host.ends_with(".rds.amazonaws.com") => {
            "the instance or cluster behind RDS Proxy".to_owned()
        }
        _ => return ok(host.to_owned()),
    };
    error(
        format!("{host} is a pooler, which carries no replication"),
        [Remedy::advice(format!("name the direct host in postgres.url: {direct}"))],
    )
}

/// Tailpost makes its slots so that they are synchronised, from PostgreSQL 17 on. Without one a relay
/// makes it anew after a failover, and scans the table.
fn failover(seen: &Seen) -> Judged {
    let server = seen.server()?;
    let Some(service @ (Service::Azure | Service::CloudNativePg)) = known(seen)? else {
        return ok("nothing is known to be missing");
    };
    if server.version < 170_000 {
        let libraries = server.setting("shared_preload_libraries")?;
        if libraries.contains("pg_failover_slots") {
            return ok("pg_failover_slots is loaded");
        }
        let advice = "load pg_failover_slots (shared_preload_libraries), and restart";
        return warning(
            format!("shared_preload_libraries = {libraries}: a failover loses the slot"),
            [Remedy::advice(advice)],
        );
    }
    let off: Vec<&str> = ["sync_replication_slots", "hot_standby_feedback"]
        .into_iter()
        .filter(|it| server.setting(it).is_ok_and(|value| value == "off"))
        .collect();
    if off.is_empty() {
        return ok("standbys synchronise slots");
    }
    let remedies = match service {
        Service::CloudNativePg => vec![Remedy::advice(
            "set spec.replicationSlots.highAvailability.synchronizeLogicalDecoding: true in the \
             Cluster (1.27 and later)",
        )],
        _ => off
            .iter()
            .map(|it| {
                Remedy::shell(format!(
                    "az postgres flexible-server parameter set --resource-group GROUP \
                     --server-name SERVER --name {it} --value on"
                ))
            })
            .collect(),
    };
    warning(format!("off: {}: a failover loses the slot", off.join(", ")), remedies)
}

fn slot_removal(seen: &Seen) -> Judged {
    if known(seen)? != Some(Service::Neon) {
        return ok("no provider is known to");
    }
    if seen.config.rewind.retain.is_some() {
        return warning(
            "Neon removes slots that nobody reads for some 40 hours, and nobody reads a rewind \
             slot",
            [Remedy::setting("rewind.retain", "off")],
        );
    }
    match &seen.shard.slot {
        Ok(Some(slot)) if slot.reader.is_none() => warning(
            "Neon removes slots that nobody reads for some 40 hours: the relay then makes the slot \
             anew and scans the table",
            [Remedy::shell("tailpost relay")],
        ),
        _ => ok("a relay reads the slot"),
    }
}
