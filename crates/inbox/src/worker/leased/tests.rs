//! Groups on a real server: what is wrong with one record keeps no other event.

use std::time::Instant;

use jiff::Timestamp;
use lab::{Postgres, PostgresOptions};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_postgres::Client;
use uuid::Uuid;

use super::*;
use crate::config::Config;
use crate::connection::{Connect, Connection};
use crate::engine::report::Outcome;
use crate::engine::{Delivered, Lanes, Path, Term, Trouble, TroubleKind};
use crate::message::MessageId;
use crate::postgres::pool::Pool;
use crate::postgres::scope::Scope;
use crate::postgres::tables;
use crate::record::Cause;
use crate::tally::Tally;
use crate::worker::lease::Leases;

const EVENTS: u64 = 5;

const ROLE: Uuid = Uuid::from_u128(99);

/// More than a statement waits for a lock.
const SOON: Duration = Duration::from_secs(5);

struct Server {
    postgres: Postgres,
    client: Client,
    context: Arc<Context>,
}

async fn server() -> Server {
    let postgres = Postgres::start(PostgresOptions::default()).await.expect("start PostgreSQL");
    let mut client = postgres.client("postgres").await.expect("connect");
    crate::create_tables(&mut client, "public").await.expect("make the tables");
    let sql = "INSERT INTO inbox_roles (consumer, token, owner, expires_at)
               VALUES ('c', $1, 'w', 'infinity')";
    client.execute(sql, &[&ROLE]).await.expect("take the role");
    let partitions = tables::prepare(&client, "public", None).await.expect("make partitions");
    let url = postgres.url("postgres");
    let connect: Connect = Arc::new(move || {
        let url = url.clone();
        Box::pin(async move {
            let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            Ok(Connection::new(client))
        })
    });
    let config = Config { stream: "S".into(), ..Config::new("c".into()) };
    let scope = Scope {
        schema: "public".into(),
        consumer: "c".into(),
        stream: "S".into(),
        owner: "w".into(),
        lease: config.lease,
        transactional: false,
    };
    let tally = Arc::new(Tally::default());
    let context = Context {
        pool: Arc::new(Pool::new(connect, scope)),
        leases: Arc::new(Leases::new(config.lease, Arc::clone(&tally))),
        config: Arc::new(config),
        tally,
        partitions: watch::Sender::new(Some(partitions)),
        term: Term { token: ROLE, ..Term::default() },
        handled: watch::Sender::default(),
        may_forget: watch::Sender::new(false),
        at_work: watch::Sender::default(),
        left_behind: Arc::default(),
        hindered: watch::Sender::default(),
        unanswered: Arc::default(),
        mended: watch::channel(0).1,
        alone: Arc::default(),
        places: None,
    };
    Server { postgres, client, context: Arc::new(context) }
}

/// Events of as many aggregates, as they are started.
fn items() -> Vec<Item> {
    let (mut lanes, now) = (Lanes::default(), Instant::now());
    for seq in 1..=EVENTS {
        let message = crate::engine::simulation::message(seq, EVENTS);
        lanes.offer(Delivered { message, reply: None, path: Path::Careful }, now);
    }
    lanes.take(usize::MAX, |_| true)
}

fn event(seq: u128) -> Uuid {
    Uuid::from_u128(seq)
}

fn processed(context: &Context, (item, claimed): (Item, Claimed), reports: &Reports) -> Ended {
    Ended {
        item,
        decision: Some(Decision::Complete { outcome: None }),
        took: None,
        _lease: context.leases.keep(claimed.claim, 0, claimed.since),
        claimed,
        reports: reports.clone(),
    }
}

/// Reports as they come, until there are so many.
async fn reported(said: &mut mpsc::Receiver<Said>, count: usize) -> Vec<(u64, Report)> {
    let mut reports = Vec::new();
    while reports.len() < count {
        match timeout(SOON, said.recv()).await.expect("somebody waits for a lock").expect("a word")
        {
            Said::Reported(many) => reports.extend(many.into_iter().map(|it| (it.id.seq, it))),
            Said::Claimed(_) | Said::Left(MessageId { .. }) => {}
        }
    }
    reports.sort_by_key(|(seq, _)| *seq);
    reports
}

/// One is locked, one is gone, and one has been claimed by another worker.
// proves: G-EFFECT-2
#[tokio::test]
async fn of_a_group_of_verdicts_each_has_its_own_end() {
    let Server { postgres, client, context } = server().await;
    let (reports, mut said) = mpsc::channel(64);
    let claimed = claim_all(&context, items(), &reports).await;
    assert_eq!(claimed.len() as u64, EVENTS);
    assert!(reported(&mut said, 0).await.is_empty());
    let mut other = postgres.client("postgres").await.expect("connect");
    let locking = other.transaction().await.expect("begin");
    let lock = "SELECT FROM inbox_messages WHERE message_id = $1 FOR UPDATE";
    locking.execute(lock, &[&event(2)]).await.expect("lock a record");
    let delete = "DELETE FROM inbox_messages WHERE message_id = $1";
    client.execute(delete, &[&event(3)]).await.expect("delete a record");
    let steal = "UPDATE inbox_messages SET lease_token = gen_random_uuid() WHERE message_id = $1";
    client.execute(steal, &[&event(4)]).await.expect("claim a record");

    let (recorder, ended) = mpsc::channel(GROUP_MAX);
    let recording = tokio::spawn(record(Arc::clone(&context), ended));
    for (item, claimed) in claimed {
        let (lease, reports) =
            (context.leases.keep(claimed.claim, 0, claimed.since), reports.clone());
        let decision = Some(Decision::Complete { outcome: None });
        let took = Some(Duration::from_millis(1));
        let ended = Ended { item, claimed, decision, took, _lease: lease, reports };
        assert!(recorder.send(ended).await.is_ok());
    }
    let done = reported(&mut said, 4).await;
    let outcomes: Vec<_> = done.iter().map(|(seq, it)| (*seq, &it.outcome)).collect();
    let undone = &Outcome::Undone;
    let expected = [(1, &Outcome::Processed), (3, undone), (4, undone), (5, &Outcome::Processed)];
    assert_eq!(outcomes, expected, "each by its own row");
    locking.rollback().await.expect("give the lock back");
    let done = reported(&mut said, 1).await;
    assert_eq!((done[0].0, &done[0].1.outcome), (2, &Outcome::Processed), "nobody locks it now");
    drop(recorder);
    recording.await.expect("it ends with its senders");
    let took = context.tally.status().attempts.durations();
    assert_eq!(took.count(), EVENTS, "each once, however often its end is written");
}

/// The role may not, the identity is behind its rows, or somebody has the table locked.
// proves: G-EFFECT-2
#[tokio::test]
async fn a_failed_attempt_that_cannot_be_noted_keeps_no_event_from_its_end() {
    let role = "CREATE ROLE worker; GRANT ALL ON ALL TABLES IN SCHEMA public TO worker;
        GRANT CREATE ON SCHEMA public TO worker; ALTER TABLE inbox_messages OWNER TO worker;
        ALTER DATABASE postgres SET role = worker";
    let forbid = "REVOKE INSERT ON inbox_attempts FROM worker";
    let behind = "INSERT INTO inbox_attempts OVERRIDING SYSTEM VALUE
        SELECT id, 'other', gen_random_uuid(), now(), now(), 1, 500, 1, 'no', 'w'
        FROM generate_series(1, 20) AS id";
    for refused_by in [forbid, behind, "BEGIN; LOCK TABLE inbox_attempts"] {
        let Server { postgres: _server, client, context } = server().await;
        client.batch_execute(role).await.expect("make a role");
        let (reports, mut said) = mpsc::channel(64);
        let claimed = claim_all(&context, items(), &reports).await;
        client.batch_execute(refused_by).await.expect(refused_by);

        let (recorder, ended) = mpsc::channel(GROUP_MAX);
        let recording = tokio::spawn(record(Arc::clone(&context), ended));
        let away = || Trouble { kind: TroubleKind::Away, reason: "503".into(), after: Some(SOON) };
        for (item, claimed) in claimed {
            let lease = context.leases.keep(claimed.claim, 0, claimed.since);
            let decision = match item.id().seq {
                2 => Decision::Fail { reason: "500".into(), delay: SOON },
                3 => Decision::Park { cause: Cause::Dead, reason: "422".into() },
                4 => Decision::GiveBack(away()),
                _ => Decision::Complete { outcome: None },
            };
            let (decision, took, reports) = (Some(decision), Some(SOON), reports.clone());
            let ended = Ended { item, claimed, decision, took, _lease: lease, reports };
            assert!(recorder.send(ended).await.is_ok());
        }
        let done = reported(&mut said, 5).await;
        let outcomes: Vec<_> = done.into_iter().map(|(_, it)| it.outcome).collect();
        let (processed, trouble) = (Outcome::Processed, Outcome::Trouble(away()));
        let expected = [&processed, &Outcome::Retried, &Outcome::Dead, &trouble, &processed];
        assert_eq!(outcomes.iter().collect::<Vec<_>>(), expected, "{refused_by}");
        let written = "SELECT string_agg(status || coalesce(' ' || cause, ''), ', '
                ORDER BY m.message_id)
            FROM inbox_messages m LEFT JOIN inbox_dead_letter d USING (message_id)";
        let written: String = client.query_one(written, &[]).await.expect("look").get(0);
        assert_eq!(written, "PROCESSED, FAILED, DEAD dead, PROCESSING, PROCESSED");
        drop(recorder);
        recording.await.expect("it ends with its senders");
    }
}

/// Many records are locked: each is waited for, and all of them for less than two would be otherwise.
#[tokio::test]
async fn of_a_group_whose_records_are_locked_each_is_waited_for_briefly() {
    let Server { postgres, client: _client, context } = server().await;
    let (reports, mut said) = mpsc::channel(64);
    let claimed = claim_all(&context, items(), &reports).await;
    let mut other = postgres.client("postgres").await.expect("connect");
    let locking = other.transaction().await.expect("begin");
    locking.execute("SELECT FROM inbox_messages FOR UPDATE", &[]).await.expect("lock them");
    let mut batch: Vec<Ended> =
        claimed.into_iter().map(|it| processed(&context, it, &reports)).collect();
    let began = Instant::now();
    write_all(&context, &mut batch).await;
    let (took, usual) = (began.elapsed(), Duration::from_secs(1));
    assert_eq!(batch.len() as u64, EVENTS, "nothing is written");
    assert_eq!(*context.pool.trouble().borrow(), None, "the tables are free");
    assert!(took < 3 * usual, "{EVENTS} and the group took {took:?}");
    locking.rollback().await.expect("give the locks back");
    write_all(&context, &mut batch).await;
    assert_eq!(reported(&mut said, 5).await.len(), 5);
    let store = context.pool.get().await;
    let waits = store.client().query_one("SHOW lock_timeout", &[]).await.expect("ask");
    assert_eq!(waits.get::<_, &str>(0), "1s", "as usual");
}

// proves: G-EFFECT-2
#[tokio::test]
async fn of_a_group_of_claims_one_that_is_locked_keeps_no_other() {
    let Server { postgres, client, context } = server().await;
    let (reports, mut said) = mpsc::channel(64);
    let mut items = items();
    let second = claim_all(&context, items.drain(1..2).collect(), &reports).await;
    assert_eq!(second.len(), 1);
    let fail = "UPDATE inbox_messages SET status = 'FAILED', lease_token = NULL, expires_at = NULL,
                    finished_attempts = 1, next_attempt_at = $1";
    client.execute(fail, &[&Timestamp::UNIX_EPOCH]).await.expect("make it due");
    let mut other = postgres.client("postgres").await.expect("connect");
    let locking = other.transaction().await.expect("begin");
    locking.execute("SELECT FROM inbox_messages FOR UPDATE", &[]).await.expect("lock it");

    items.extend(second.into_iter().map(|(item, _)| item));
    let claimed = timeout(SOON, claim_all(&context, items.clone(), &reports)).await;
    assert_eq!(claimed.expect("it waits for the lock").len() as u64, EVENTS - 1);
    let done = reported(&mut said, 1).await;
    assert_eq!((done[0].0, &done[0].1.outcome), (2, &Outcome::Undone));
    locking.rollback().await.expect("give the lock back");
    let claimed = claim_all(&context, items.split_off(4), &reports).await;
    assert_eq!(claimed.len(), 1, "nobody locks it now");
}

/// Somebody makes an index, for an hour: it is not the events that are to blame, and `/readyz` says so,
/// although connections enough are there already.
#[tokio::test]
async fn a_table_that_is_locked_is_no_record_that_is() {
    let Server { postgres, client: _client, context } = server().await;
    let (reports, mut said) = mpsc::channel(64);
    let mut items = items();
    let claimed = claim_all(&context, items.drain(..2).collect(), &reports).await;
    let stores = (context.pool.get().await, context.pool.get().await, context.pool.get().await);
    for store in [stores.0, stores.1, stores.2] {
        context.pool.put(store);
    }
    let mut trouble = context.pool.trouble();
    let mut other = postgres.client("postgres").await.expect("connect");

    let verdicts: Vec<Ended> =
        claimed.into_iter().map(|it| processed(&context, it, &reports)).collect();
    for mut verdicts in [Vec::new(), verdicts] {
        let reports_due = if verdicts.is_empty() { items.len() } else { verdicts.len() };
        let locking = other.transaction().await.expect("begin");
        locking.batch_execute("LOCK TABLE inbox_messages IN SHARE MODE").await.expect("lock it");
        let working = async {
            if verdicts.is_empty() {
                assert!(claim_all(&context, items.clone(), &reports).await.is_empty());
            } else {
                write_all(&context, &mut verdicts).await;
            }
        };
        let seeing = async {
            let seen = trouble.wait_for(Option::is_some).await.expect("there is a pool").clone();
            assert!(seen.is_some_and(|it| it.contains("lock timeout")));
            let waiting = timeout(SOON, context.pool.get()).await;
            assert!(waiting.is_err(), "another connection meets the lock too");
            locking.rollback().await.expect("give it back");
            context.pool.put(context.pool.get().await);
        };
        let both = Box::pin(async { tokio::join!(working, seeing) });
        timeout(4 * SOON, both).await.expect("all is told");
        assert_eq!(*context.pool.trouble().borrow(), None, "it is over");
        assert_eq!(reported(&mut said, reports_due).await.len(), reports_due);
    }
}
