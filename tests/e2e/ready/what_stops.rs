//! What stops events, and what is told of it.

use std::time::{Duration, SystemTime};

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use futures_util::FutureExt;
use lab::Process;
use support::DEADLINE;

use super::{Fault, Phase, Scene, Side, Told};

pub(super) const fn relay(
    readyz: &'static str,
    status: &'static str,
    doctor: Option<(&'static str, &'static str)>,
    alert: &'static str,
) -> Told {
    Told { by: Side::Relay, code: "503", readyz, status, doctor, alert: Some(alert) }
}

pub(super) const fn inbox(
    readyz: &'static str,
    status: &'static str,
    doctor: Option<(&'static str, &'static str)>,
    alert: &'static str,
) -> Told {
    Told { by: Side::Inbox, code: "503", readyz, status, doctor, alert: Some(alert) }
}

macro_rules! fault {
    ($plays:ident, $told:expr) => {
        Fault {
            name: stringify!($plays),
            plays: |scene, phase| $plays(scene, phase).boxed_local(),
            told: $told,
            postgres: None,
            nats: None,
            is_mapped: false,
        }
    };
}
pub(super) use fault;

pub(super) const FAULTS: &[Fault] = &[
    fault!(
        broker_away,
        relay(
            "no progress",
            "the broker",
            Some(("nats-reachable", "Connection refused")),
            "TailpostBreakerOpen"
        )
    ),
    fault!(
        postgresql_away,
        relay(
            "starting: ",
            "could not connect",
            Some(("postgres-reachable", "Connection refused")),
            "TailpostNoActiveRelay"
        )
    ),
    fault!(
        slot_held_by_another,
        relay(
            "pg_recvlogical",
            "pg_recvlogical",
            Some(("slot-reader", "pg_recvlogical")),
            "TailpostNoActiveRelay"
        )
    ),
    fault!(
        stream_full,
        relay(
            "maximum messages",
            "maximum messages",
            Some(("stream-room", "max_msgs")),
            "TailpostBreakerOpen"
        )
    ),
    fault!(
        stream_deleted,
        relay(
            "stream not found",
            "does not exist",
            Some(("stream-exists", "there is no stream OUTBOX")),
            "TailpostOutboxOld"
        )
    ),
    fault!(
        handler_away,
        inbox("the handler is away", "the handler is away", None, "TailpostConsumerInactive")
    ),
    fault!(
        consumer_paused,
        inbox(
            "the broker delivers nothing",
            "the consumer is paused",
            Some(("inbox-delivery", "the consumer is paused")),
            "TailpostConsumerStalled"
        )
    ),
    fault!(
        outbox_locked,
        relay(
            "has locked",
            "has locked",
            Some(("outbox-locks", "has locked public.outbox_events")),
            "TailpostFiguresOld"
        )
    ),
    fault!(
        inbox_tables_locked,
        inbox(
            "the database is away",
            "has locked public.inbox_messages",
            Some(("inbox-locks", "has locked public.inbox_messages")),
            "TailpostFiguresOld"
        )
    ),
    fault!(
        claims_in_vain,
        inbox(
            "no record",
            "none is recorded",
            Some(("inbox-triggers", "trigger no of public.inbox_messages")),
            "TailpostConsumerStalled"
        )
    ),
    fault!(claims_refused, inbox("no record", "none is recorded", None, "TailpostConsumerStalled")),
];

async fn broker_away(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            scene.env.nats.stop().await.expect("stop NATS");
            scene.env.insert(5).await;
        }
        Phase::Mend => scene.env.nats.start_again().await.expect("start NATS"),
    }
}

async fn postgresql_away(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => _ = scene.env.postgres.stop_fast().await.expect("stop PostgreSQL"),
        Phase::Mend => scene.env.postgres.start_again().await.expect("start PostgreSQL"),
    }
}

async fn slot_held_by_another(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            scene.stop().await;
            let url = scene.env.postgres.url("postgres");
            let program = scene.env.postgres.bin_dir().join("pg_recvlogical");
            let options = ["-o", "proto_version=1", "-o", "publication_names=tailpost"];
            // What it gets it does not confirm.
            let own = ["-d", &url, "--slot", "tailpost", "--start", "-f", "-", "-s", "600"];
            let args = [&own[..], &options[..]].concat();
            scene.beside = Some(Process::start(&program, &args, &[]).expect("start it"));
            let reads = "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE active)";
            support::until(DEADLINE, "it reads the slot", async || scene.env.query(reads).await)
                .await;
            scene.start();
            scene.env.insert(5).await;
        }
        Phase::Mend => scene.beside.take().expect("a program").kill().await.expect("end it"),
    }
}

pub(super) async fn edit(scene: &Scene, change: impl FnOnce(&mut Config, u64)) {
    let jetstream = scene.env.nats.jetstream().await.expect("connect to NATS");
    let stream = jetstream.get_stream("OUTBOX").await.expect("the stream");
    let info = stream.cached_info();
    let mut config = info.config.clone();
    change(&mut config, info.state.messages);
    jetstream.update_stream(config).await.expect("change the stream");
}

async fn stream_full(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            edit(scene, |config, messages| {
                config.max_messages = messages.cast_signed();
                config.discard = DiscardPolicy::New;
            })
            .await;
            scene.env.insert(5).await;
        }
        Phase::Mend => {
            edit(scene, |config, _| config.max_messages = -1).await;
            scene.restart().await;
        }
    }
}

async fn stream_deleted(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            let jetstream = scene.env.nats.jetstream().await.expect("connect to NATS");
            jetstream.delete_stream("OUTBOX").await.expect("delete the stream");
            scene.env.insert(5).await;
        }
        Phase::Mend => {
            scene.env.setup().await;
            scene.env.ends_with(0, &["inbox", "setup"]).await;
            scene.restart().await;
        }
    }
}

async fn handler_away(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            scene.handler.cut().await;
            scene.env.insert(5).await;
        }
        Phase::Mend => scene.handler.restore().await.expect("the handler is back"),
    }
}

async fn consumer_paused(scene: &mut Scene, phase: Phase) {
    let jetstream = scene.env.nats.jetstream().await.expect("connect to NATS");
    match phase {
        Phase::Break => {
            let until = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
            let stream = jetstream.get_stream("OUTBOX").await.expect("the stream");
            stream.pause_consumer("billing", until.into()).await.expect("pause it");
            scene.env.insert(5).await;
        }
        Phase::Mend => {
            let stream = jetstream.get_stream("OUTBOX").await.expect("the stream");
            stream.resume_consumer("billing").await.expect("resume it");
        }
    }
}

async fn outbox_locked(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            scene.hold("BEGIN; LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE").await;
        }
        Phase::Mend => scene.holder = None,
    }
}

async fn inbox_tables_locked(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            scene.hold("BEGIN; LOCK TABLE inbox_messages IN ACCESS EXCLUSIVE MODE").await;
            scene.env.insert(5).await;
        }
        Phase::Mend => scene.holder = None,
    }
}

/// By a trigger that answers neither with a row nor with an error.
async fn claims_in_vain(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            let statements = "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql
                    AS 'BEGIN RETURN NULL; END';
                CREATE TRIGGER no BEFORE INSERT ON inbox_messages
                    FOR EACH ROW EXECUTE FUNCTION no()";
            scene.env.execute(statements).await;
            scene.env.insert(5).await;
        }
        Phase::Mend => scene.env.execute("DROP FUNCTION no CASCADE").await,
    }
}

async fn claims_refused(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            let statement = "ALTER TABLE inbox_messages ADD ours text,
                ADD CONSTRAINT is_ours CHECK (ours IS NOT NULL) NOT VALID";
            scene.env.execute(statement).await;
            scene.env.insert(5).await;
        }
        Phase::Mend => scene.env.execute("ALTER TABLE inbox_messages DROP ours").await,
    }
}
