//! What was seen in the field to lose, to hold back or to mislead while everything was green.
//!
//! What ends the relay is in `what_ends`. What is refused by set-up or at the start, and what cannot
//! happen any more, has nothing to tell here.

use async_nats::jetstream::stream::{DiscardPolicy, SubjectTransform};
use futures_util::FutureExt;
use lab::{Forged, Stranger};

use super::what_stops::{edit, fault, inbox, relay};
use super::{Fault, Phase, SUBJECTS, Scene};
use crate::doctor::nats_commands::pause;
use crate::gone_back::StoreCopy;
use crate::horizon::pass_transactions;
use crate::inbox::http::{processed, wait_processed};

pub(super) const FAULTS: &[Fault] = &[
    fault!(
        stream_without_its_end,
        relay(
            "the rows that name them are being published again",
            "came back at",
            Some(("stream-end", "5 rows are published again, which is not done")),
            "TailpostStreamLostMessages"
        )
    ),
    // The consumer goes back by itself, and the rows are published again.
    fault!(
        consumer_ahead,
        inbox("", "came back without its last messages", None, "TailpostConsumerWentBack")
            .stays_ready()
    )
    .on_nats("2.11"),
    // No row waits, and none is lost: a row says of a message what is no more so.
    fault!(
        message_removed,
        relay("", "which has no message there", None, "TailpostStreamLacksMessages").stays_ready()
    ),
    // No other process would bring them.
    fault!(
        left_unread,
        inbox("\"unread\":5", "left the stream unread", None, "TailpostConsumerMissedMessages")
            .stays_ready()
    ),
    // Whether it was handled elsewhere nobody can tell.
    fault!(
        never_recorded,
        inbox(
            "\"unread\":5",
            "are acknowledged and have no record here",
            None,
            "TailpostConsumerMissedMessages"
        )
        .stays_ready()
    ),
    // It goes back by itself as well.
    fault!(
        inbox_put_back,
        inbox("", "the inbox's database lacks what was ack", None, "TailpostConsumerWentBack")
            .stays_ready()
    ),
    // Nothing is removed yet that was not handled.
    fault!(
        limit_per_subject,
        inbox(
            LIMIT_PER_SUBJECT,
            LIMIT_PER_SUBJECT,
            Some(("stream-per-subject", "max_msgs_per_subject = 3")),
            ""
        )
        .stays_ready()
        .without_alert()
    ),
    // The broker has nothing pending for the consumer.
    fault!(
        mapped_by_the_account,
        inbox(
            "events pass it by",
            "events pass it by",
            Some(("inbox-subjects", "outbox.other.")),
            "TailpostConsumerMissedMessages"
        )
        .stays_ready()
    )
    .with_mapping(),
    // The same by the stream itself, under an inbox that is for some subjects.
    fault!(
        transformed_by_the_stream,
        inbox(
            "events pass it by",
            "events pass it by",
            Some(("inbox-subjects", "name subjects of kept.>")),
            "TailpostConsumerMissedMessages"
        )
        .stays_ready()
    )
    .with_mapping(),
    // They change nothing, and are counted.
    fault!(
        stranger_answers,
        relay("", "answers that are not the stream's", None, "").stays_ready().without_alert()
    ),
    fault!(
        dead_letters_locked,
        relay(
            "cannot park an event",
            "has locked",
            Some(("outbox-locks", "has locked public.outbox_dead_letter")),
            "TailpostOutboxOld"
        )
    ),
    // Events are published; only their marks are refused.
    fault!(
        marks_refused,
        relay(
            "",
            "cannot be marked or removed: function refuse() refuses a row",
            Some(("outbox-triggers", "refuse")),
            "TailpostRowsLocked"
        )
        .stays_ready()
    ),
    // As a migration tool does with what it does not know.
    fault!(
        column_dropped,
        relay(
            "rows are not marked as published",
            "could not mark published rows",
            Some(("outbox-schema", "column stream_seq of ")),
            "TailpostOutboxOld"
        )
    ),
    // Events come from the table meanwhile: nothing that an operator would be woken for.
    fault!(
        slot_waits,
        relay("the slot waits", "makes the slot wait for", Some(("slot-exists", "month end")), "")
            .stays_ready()
            .without_alert()
    ),
    // Nothing waits for it: PostgreSQL keeps what it would remove.
    fault!(
        old_rows_kept,
        relay(
            "",
            "(report) has a transaction open",
            Some(("postgres-old-transactions", "(report) has a transaction open")),
            ""
        )
        .stays_ready()
        .without_alert()
    ),
    fault!(
        standby_away,
        relay(
            "synchronized_standby_slots",
            "holds events back",
            Some(("replication-standby-slots", "replica_2")),
            "TailpostOutboxOld"
        )
    )
    .on_postgres(18),
];

const LIMIT_PER_SUBJECT: &str = "of each subject it removes older ones";

async fn publish_more(scene: &Scene) {
    let before = processed(&scene.env).await;
    scene.env.insert(5).await;
    wait_processed(&scene.env, before + 5).await;
    scene.env.wait_marked().await;
}

/// The stream that comes back has no room for what it has lost.
async fn stream_without_its_end(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            edit(scene, |config, messages| {
                config.max_messages = messages.cast_signed();
                config.discard = DiscardPolicy::New;
            })
            .await;
            let copy = StoreCopy::take(&mut scene.env).await;
            edit(scene, |config, _| config.max_messages = -1).await;
            publish_more(scene).await;
            copy.put_back(&mut scene.env).await;
        }
        Phase::Mend => {
            edit(scene, |config, _| config.max_messages = -1).await;
            scene.restart().await;
        }
    }
}

async fn consumer_ahead(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            let copy = StoreCopy::take(&mut scene.env).await;
            publish_more(scene).await;
            copy.put_stream_back(&mut scene.env).await;
        }
        Phase::Mend => {}
    }
}

/// By hand. Rows that were marked well after the stream was made are compared.
async fn message_removed(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            scene.stop().await;
            let old = "UPDATE outbox_events SET published_at = published_at + interval '1 minute'";
            scene.env.execute(old).await;
            scene.env.delete_message(3).await;
            scene.start();
        }
        Phase::Mend => {
            let (repaired, _) = scene.env.ends_with(0, &["verify", "--repair", "--execute"]).await;
            assert!(repaired.contains("1 "), "{repaired}");
            // What was found is told for as long as the relay runs.
            scene.restart().await;
        }
    }
}

/// Runs what status prints and settles it.
async fn settles(scene: &Scene, before: &str) {
    let told = scene.says(&["status"]).await;
    let (_, told) = told.split_once(before).expect("a command");
    let (command, told) = told.split_once('`').expect("its end");
    let why = ["--execute", "--why", "a test"];
    let args: Vec<&str> = command.split(' ').chain(why).collect();
    scene.env.ends_with(0, &args).await;
    let (_, statement) = told.split_once("Once that is done: ").expect("a statement");
    scene.env.execute(statement.lines().next().expect("a line")).await;
}

/// The inbox's database is from before the consumer's first session.
async fn never_recorded(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            scene.stop_inbox().await;
            scene.env.execute("TRUNCATE inbox_messages, inbox_roles").await;
            scene.start_inbox();
        }
        Phase::Mend => settles(scene, "`tailpost ").await,
    }
}

/// The inbox's tables are as they were before the last events.
async fn inbox_put_back(scene: &mut Scene, phase: Phase) {
    if let Phase::Break = phase {
        let tables = ["inbox_messages", "inbox_roles"];
        let each = |sql: &str| tables.map(|it| sql.replace("{}", it)).join(";");
        scene.stop_inbox().await;
        scene.env.execute(&each("CREATE TABLE kept_{} AS TABLE {}")).await;
        scene.start_inbox();
        publish_more(scene).await;
        scene.stop_inbox().await;
        scene.env.execute(&each("TRUNCATE {}; INSERT INTO {} SELECT * FROM kept_{}")).await;
        scene.start_inbox();
    }
}

async fn limit_per_subject(scene: &mut Scene, phase: Phase) {
    let limit = match phase {
        Phase::Break => 3,
        Phase::Mend => -1,
    };
    edit(scene, |config, _| config.max_messages_per_subject = limit).await;
}

async fn mapped_by_the_account(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            scene.env.execute("SELECT outbox_emit('bill', 'b-1', 'Paid', '{}')").await;
            scene.env.wait_marked().await;
        }
        Phase::Mend => {
            scene.env.set(SUBJECTS, "outbox.order.>,outbox.other.>");
            scene.stop_inbox().await;
            scene.start_inbox();
        }
    }
}

async fn transformed_by_the_stream(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            edit(scene, |config, _| {
                let (source, destination) = ("outbox.>".into(), "kept.>".into());
                config.subject_transform = Some(SubjectTransform { source, destination });
            })
            .await;
            scene.env.execute("SELECT outbox_emit('bill', 'b-1', 'Paid', '{}')").await;
            scene.env.wait_marked().await;
        }
        Phase::Mend => {
            scene.env.set(SUBJECTS, "kept.order.>,kept.bill.>");
            scene.stop_inbox().await;
            scene.start_inbox();
        }
    }
}

/// By a purge while the broker delivers nothing.
async fn left_unread(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            pause(&scene.env, "billing", Some("2100-01-01T00:00:00Z")).await;
            scene.env.insert(5).await;
            scene.env.wait_marked().await;
            scene.env.purge().await;
            pause(&scene.env, "billing", None).await;
            scene.env.insert(1).await;
        }
        Phase::Mend => settles(scene, "No rewind brings them: `tailpost ").await,
    }
}

async fn stranger_answers(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            let client = scene.env.nats.client().await.expect("connect to NATS");
            let forge = |reply: &str| vec![Forged::new(reply, "{}")];
            let stranger = Stranger::start(client, "outbox.>", forge).await.expect("subscribe");
            scene.stranger = Some(stranger);
            publish_more(scene).await;
        }
        Phase::Mend => {
            scene.stranger = None;
            scene.restart().await;
        }
    }
}

async fn dead_letters_locked(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            scene.hold("BEGIN; LOCK TABLE outbox_dead_letter IN ACCESS EXCLUSIVE MODE").await;
            let poison = "SELECT outbox_emit('order', 'o-1', 'Placed', '{}', headers => '[]')";
            scene.env.execute(poison).await;
        }
        Phase::Mend => scene.holder = None,
    }
}

async fn marks_refused(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            let statements = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
                    AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
                CREATE TRIGGER refuse BEFORE UPDATE ON outbox_events
                    FOR EACH ROW EXECUTE FUNCTION refuse()";
            scene.env.execute(statements).await;
            scene.env.insert(5).await;
        }
        Phase::Mend => scene.env.execute("DROP FUNCTION refuse CASCADE").await,
    }
}

async fn column_dropped(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            scene.env.execute("ALTER TABLE outbox_events DROP COLUMN stream_seq CASCADE").await;
            scene.env.insert(5).await;
        }
        Phase::Mend => scene.env.setup().await,
    }
}

/// For a transaction of another database.
async fn slot_waits(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            scene.stop().await;
            scene.env.drop_slot("tailpost").await;
            scene.env.postgres.create_database("elsewhere").await.expect("create a database");
            let old = scene.env.postgres.client("elsewhere").await.expect("connect");
            let begin = "SET application_name = 'month end'; BEGIN; SELECT pg_current_xact_id()";
            old.batch_execute(begin).await.expect("begin");
            scene.holder = Some(old);
            scene.start();
            publish_more(scene).await;
        }
        Phase::Mend => scene.holder = None,
    }
}

/// By a transaction that only reads.
async fn old_rows_kept(scene: &mut Scene, phase: Phase) {
    match phase {
        Phase::Break => {
            let begin = "SET application_name = 'report';
                BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox_events";
            scene.hold(begin).await;
            pass_transactions(&scene.env).await;
            publish_more(scene).await;
        }
        Phase::Mend => scene.holder = None,
    }
}

async fn standby_away(scene: &mut Scene, phase: Phase) {
    let statement = match phase {
        Phase::Break => "ALTER SYSTEM SET synchronized_standby_slots = 'replica_2'",
        Phase::Mend => "ALTER SYSTEM RESET synchronized_standby_slots",
    };
    scene.env.execute(statement).await;
    scene.env.postgres.reload().await.expect("reload");
    if let Phase::Break = phase {
        scene.env.insert(5).await;
    }
}
