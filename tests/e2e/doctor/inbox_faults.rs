//! What is wrong with consumers and their tables.

use async_nats::jetstream::consumer::{AckPolicy, pull};
use support::{TestEnv, TestEnvOptions};

use super::clinic::Step::{Do, Edit, Set, Sql, Tailpost};
use super::clinic::{Clinic, Fault};
use super::nats_commands::pause;
use crate::inbox::http::configure;

const FAULTS: &[Fault] = &[
    Fault::new(
        "inbox-tables",
        "error",
        &[Sql(&["DROP TABLE inbox_rewinds"])],
        &["tailpost inbox setup"],
    ),
    Fault::new(
        "inbox-tables",
        "error",
        &[Sql(&["ALTER TABLE inbox_messages DROP COLUMN tried_since"])],
        &["tailpost inbox setup"],
    ),
    Fault::new(
        "inbox-tables",
        "error",
        &[Sql(&["ALTER TABLE inbox_attempts DROP COLUMN took_ms, DROP COLUMN worker"])],
        &["tailpost inbox setup"],
    ),
    Fault::new(
        "inbox-privileges",
        "error",
        &[Sql(&["REVOKE INSERT ON inbox_messages FROM courier"])],
        &["GRANT INSERT ON public.inbox_messages TO \"courier\""],
    ),
    Fault::new(
        "inbox-privileges",
        "error",
        &[Sql(&["ALTER TABLE inbox_roles ENABLE ROW LEVEL SECURITY"])],
        &["ALTER ROLE \"courier\" BYPASSRLS"],
    ),
    Fault::new(
        "inbox-triggers",
        "error",
        &[Sql(&["CREATE RULE no AS ON INSERT TO inbox_attempts DO INSTEAD NOTHING"])],
        &["DROP RULE no ON public.inbox_attempts"],
    ),
    Fault::new(
        "inbox-triggers",
        "warning",
        &[Sql(&[
            "CREATE TABLE inbox_messages_old PARTITION OF inbox_messages
                 FOR VALUES FROM ('2001-01-01') TO ('2001-01-02')",
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
            "CREATE TRIGGER no BEFORE INSERT ON inbox_messages_old
                 FOR EACH ROW EXECUTE FUNCTION no()",
        ])],
        &["ALTER TABLE public.inbox_messages_old DISABLE TRIGGER no"],
    ),
    Fault::new(
        "inbox-consumer",
        "error",
        &[Do(|clinic| Box::pin(delete(clinic)))],
        &["tailpost inbox setup"],
    ),
    Fault::new(
        "inbox-consumer",
        "warning",
        &[Do(|clinic| Box::pin(leave_over(clinic)))],
        &["nats consumer rm OUTBOX billing-0 --force", "nats consumer rm OUTBOX billing-1 --force"],
    ),
    Fault::new(
        "inbox-consumer-fits",
        "error",
        &[Do(|clinic| {
            Box::pin(replace(
                clinic,
                pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() },
            ))
        })],
        &["nats consumer rm OUTBOX billing --force", "tailpost inbox setup"],
    ),
    Fault::new(
        "inbox-consumer-settings",
        "warning",
        &[Do(|clinic| {
            Box::pin(replace(clinic, pull::Config { max_deliver: 3, ..pull::Config::default() }))
        })],
        &["tailpost inbox setup"],
    ),
    Fault::new(
        "inbox-consumer-settings",
        "warning",
        &[Do(|clinic| {
            let filter_subject = "outbox.order.*".into();
            Box::pin(replace(clinic, pull::Config { filter_subject, ..pull::Config::default() }))
        })],
        &["tailpost inbox setup"],
    ),
    Fault::new(
        "inbox-delivery",
        "warning",
        &[Do(|clinic| Box::pin(pause(&clinic.env, "billing", Some("2100-01-01T00:00:00Z"))))],
        &["nats consumer resume OUTBOX billing"],
    ),
    Fault::new(
        "inbox-subjects",
        "error",
        &[Set("TAILPOST_INBOX__BILLING__SUBJECTS", "sales.>")],
        &["name subjects of outbox.> in inbox.billing.subjects"],
    )
    .by_hand(&[Set("TAILPOST_INBOX__BILLING__SUBJECTS", "")]),
    Fault::new(
        "inbox-stream",
        "error",
        &[Set("TAILPOST_INBOX__BILLING__STREAM", "SALES")],
        &["create the stream*"],
    )
    .by_hand(&[Set("TAILPOST_INBOX__BILLING__STREAM", "")]),
    Fault::new(
        "retention-inbox",
        "error",
        &[Set("TAILPOST_INBOX__RETENTION", "1d")],
        &["nats stream edit OUTBOX --max-age=43185s"],
    )
    .after(&[
        Set("TAILPOST_INBOX__RETENTION", ""),
        Edit(|it| it.max_age = std::time::Duration::ZERO),
        Tailpost(&["inbox", "setup"]),
    ]),
];

async fn delete(clinic: &mut Clinic) {
    let stream = clinic.env.stream().await;
    stream.delete_consumer("billing").await.expect("delete the consumer");
}

/// As if it had been divided.
async fn leave_over(clinic: &mut Clinic) {
    let stream = clinic.env.stream().await;
    for name in ["billing-0", "billing-1"] {
        let config = pull::Config { durable_name: Some(name.into()), ..pull::Config::default() };
        stream.create_consumer(config).await.expect("create a consumer");
    }
    let role = "INSERT INTO inbox_roles (consumer, partition, token, owner, expires_at)
        VALUES ('billing', 1, gen_random_uuid(), '', '-infinity')";
    clinic.env.execute(role).await;
}

async fn replace(clinic: &mut Clinic, config: pull::Config) {
    delete(clinic).await;
    let stream = clinic.env.stream().await;
    let config = pull::Config { durable_name: Some("billing".into()), ..config };
    stream.create_consumer(config).await.expect("create a consumer");
}

// proves: G-DOCTOR-1
#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_consumers_is_found_and_mended() {
    let mut env = TestEnv::with(TestEnvOptions::default()).await;
    let _folder = configure(&mut env);
    Clinic::open(env).await.treat(FAULTS).await;
}
