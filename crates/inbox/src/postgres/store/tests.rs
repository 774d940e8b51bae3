//! The state machine of a record, played at random on a real server and compared with a model of it.
//!
//! `REPLAY_SEED=n` repeats one run.

mod plans;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use bytes::Bytes;
use jiff::Timestamp;
use lab::{Postgres, PostgresOptions, seeds};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use super::{NOTE_AGAIN, Store};
use crate::connection::Connection;
use crate::message::{Message, Origin};
use crate::postgres::scope::Scope;
use crate::record::{Cause, Claim, ClaimReply, End, Failed, UNFINISHED_MAX};

const RUNS: u64 = 10;
const STEPS: usize = 60;
const EVENTS: u64 = 4;

/// Longer than the test takes: leases and pauses end when the test says so.
const LONG: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    None,
    Processing { token: Uuid, expired: bool },
    Released,
    Failed { due: bool },
    Processed,
    Dead,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    state: State,
    attempts: i32,
    finished: i32,
    has_failed: bool,
}

/// What should be in the table.
struct Model {
    records: HashMap<Uuid, Record>,
    takes_over: bool,
}

impl Model {
    fn of(&mut self, id: Uuid) -> &mut Record {
        let none = Record { state: State::None, attempts: 0, finished: 0, has_failed: false };
        self.records.entry(id).or_insert(none)
    }

    fn claim(&mut self, id: Uuid, (role, token): (Uuid, Uuid)) -> &'static str {
        let takes_over = self.takes_over;
        let record = self.of(id);
        let crashed = record.attempts - record.finished >= UNFINISHED_MAX;
        match record.state {
            State::Processed | State::Dead => return "resolved",
            State::Processing { expired: false, .. } if !takes_over => return "leased",
            _ if role != Uuid::nil() => return "contended",
            _ if crashed => return "crashed",
            State::Failed { due: false } => return "early",
            _ => {}
        }
        record.state = State::Processing { token, expired: false };
        record.attempts += 1;
        "claimed"
    }

    /// Whether the token still holds; then the record's state is `next`.
    fn end(&mut self, claim: Claim, next: State, finished: i32, attempts: i32) -> bool {
        let record = self.of(claim.key.id);
        let State::Processing { token, .. } = record.state else { return false };
        if token != claim.token {
            return false;
        }
        record.state = next;
        record.finished += finished;
        record.attempts += attempts;
        true
    }
}

struct Play {
    random: StdRng,
    workers: Vec<Store>,
    messages: Vec<Message>,
    model: Model,
    /// Every claim that was ever made: a worker that lost one may still use it.
    claims: Vec<Claim>,
}

impl Play {
    async fn begin(&mut self, seed: u64) {
        self.random = StdRng::seed_from_u64(seed);
        self.model.records.clear();
        self.claims.clear();
        let clear = "DELETE FROM inbox_messages; DELETE FROM inbox_dead_letter";
        self.workers[0].client().batch_execute(clear).await.unwrap();
    }

    async fn step(&mut self) -> String {
        let worker = self.random.random_range(0..self.workers.len());
        let index = self.random.random_range(0..self.messages.len());
        let claim = self.claims.choose(&mut self.random).copied();
        match (self.random.random_range(0..12), claim) {
            (0..=2, _) => self.claim(worker).await,
            (3, _) => self.record(worker, index).await,
            (4, _) => self.time_passes(worker, index).await,
            (5, _) => self.park_unclaimed(worker, index).await,
            (6, Some(claim)) => self.renew(worker, claim).await,
            (7, Some(claim)) => self.complete(worker, claim).await,
            (8, Some(claim)) => self.fail(worker, claim).await,
            (9, Some(claim)) => self.release(worker, claim).await,
            (10, Some(claim)) => self.park_claimed(worker, claim).await,
            // A crash: the worker forgets what it holds.
            _ => {
                self.claims.retain(|_| self.random.random_bool(0.7));
                format!("worker {worker} crashes")
            }
        }
    }

    async fn claim(&mut self, worker: usize) -> String {
        let count = self.random.random_range(1..=self.messages.len());
        let messages: Vec<&Message> = self.messages.sample(&mut self.random, count).collect();
        let tokens = (role(&mut self.random), Uuid::new_v4());
        let store = &self.workers[worker];
        let claims = store.sql().claim(store.client(), tokens, &messages).await.unwrap();
        assert_eq!(claims.len(), messages.len());
        let mut said = Vec::new();
        for (message, claim) in messages.iter().zip(claims) {
            let expected = self.model.claim(message.key.id, tokens);
            let record = *self.model.of(message.key.id);
            let unfinished = (record.attempts - record.finished).unsigned_abs();
            let attempts = record.attempts.unsigned_abs();
            let answer = match claim {
                ClaimReply::Claimed { age, .. } => {
                    assert_eq!(claim, ClaimReply::Claimed { attempts, unfinished, age });
                    assert_eq!(age.is_some(), record.has_failed, "nothing is old before it failed");
                    self.claims.push(Claim { key: message.key, token: tokens.1 });
                    "claimed"
                }
                ClaimReply::Resolved => "resolved",
                ClaimReply::Leased { remaining } => {
                    assert!(remaining > LONG / 2);
                    "leased"
                }
                ClaimReply::Early { remaining } => {
                    assert!(remaining > LONG / 2);
                    "early"
                }
                ClaimReply::Crashed { attempts: counted } => {
                    assert_eq!(counted, attempts);
                    "crashed"
                }
                ClaimReply::Contended => "contended",
                ClaimReply::Forgotten => "forgotten",
            };
            assert_eq!(answer, expected, "{:?}", message.key.id);
            said.push(answer);
        }
        format!("worker {worker} claims: {said:?}")
    }

    /// The fast path: in a transaction that is committed, or, as when a handler fails, is not.
    async fn record(&mut self, worker: usize, index: usize) -> String {
        let commit = self.random.random_bool(0.3);
        let (sql, tx) = self.workers[worker].begin().await.unwrap();
        let message = &self.messages[index];
        let new = sql.record(&tx, Uuid::nil(), &[message]).await.unwrap().len() == 1;
        if commit {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        let record = self.model.of(message.key.id);
        assert_eq!(new, record.state == State::None);
        if commit && new {
            *record =
                Record { state: State::Processed, attempts: 1, finished: 1, has_failed: false };
        }
        format!("worker {worker} records {index}: new {new}, commits {commit}")
    }

    async fn time_passes(&mut self, worker: usize, index: usize) -> String {
        let id = self.messages[index].key.id;
        let client = self.workers[worker].client();
        let sql = "UPDATE inbox_messages SET expires_at = expires_at - interval '2 h',
            next_attempt_at = next_attempt_at - interval '2 h' WHERE message_id = $1";
        client.execute(sql, &[&id]).await.unwrap();
        let record = self.model.of(id);
        match &mut record.state {
            State::Processing { expired, .. } => *expired = true,
            State::Failed { due } => *due = true,
            _ => {}
        }
        format!("time passes for {index}")
    }

    async fn renew(&mut self, worker: usize, claim: Claim) -> String {
        let store = &self.workers[worker];
        let ours = store.sql().renew(store.client(), &[claim]).await.unwrap().len() == 1;
        let next = State::Processing { token: claim.token, expired: false };
        assert_eq!(ours, self.model.end(claim, next, 0, 0));
        format!("worker {worker} renews: {ours}")
    }

    async fn complete(&mut self, worker: usize, claim: Claim) -> String {
        let (store, end) = (&self.workers[worker], End::Processed { outcome: Some("x") });
        let ours = store.sql().end(store.client(), &[(claim, end)]).await.unwrap();
        assert_eq!(ours.len() == 1, self.model.end(claim, State::Processed, 1, 0));
        format!("worker {worker} completes: {ours:?}")
    }

    async fn fail(&mut self, worker: usize, claim: Claim) -> String {
        let due = self.random.random_bool(0.5);
        let delay = if due { Duration::ZERO } else { LONG };
        let took = self.random.random_bool(0.7).then_some(LONG);
        let (store, end) = (&self.workers[worker], End::Failed { reason: "no", delay, took });
        let ours = store.sql().end(store.client(), &[(claim, end)]).await.unwrap();
        let is_ours = self.model.end(claim, State::Failed { due }, 1, 0);
        assert_eq!(ours.len() == 1, is_ours);
        self.model.of(claim.key.id).has_failed |= is_ours;
        format!("worker {worker} fails: {ours:?}")
    }

    async fn release(&mut self, worker: usize, claim: Claim) -> String {
        let store = &self.workers[worker];
        let failed = self.random.random_bool(0.5);
        let failed = failed.then_some(Failed { reason: "503 away", took: LONG });
        let ended = store.sql().end(store.client(), &[(claim, End::GivenBack { failed })]).await;
        let ours = ended.unwrap().len() == 1;
        assert_eq!(ours, self.model.end(claim, State::Released, 0, -1));
        self.model.of(claim.key.id).has_failed |= ours && failed.is_some();
        format!("worker {worker} releases: {ours}")
    }

    async fn park_claimed(&mut self, worker: usize, claim: Claim) -> String {
        let store = &self.workers[worker];
        let message = self.messages.iter().find(|it| it.key == claim.key).unwrap();
        let cause = Cause::MaxAttempts;
        let claimed = (role(&mut self.random), Some((claim, Some(LONG))));
        let park = store.sql().park(store.client(), message, claimed, cause, "no");
        let ours = park.await.unwrap();
        assert_eq!(ours, self.model.end(claim, State::Dead, 1, 0));
        format!("worker {worker} parks: {ours}")
    }

    async fn park_unclaimed(&mut self, worker: usize, index: usize) -> String {
        let role = role(&mut self.random);
        let cause = *[Cause::Crashes, Cause::Gone].choose(&mut self.random).unwrap();
        let store = &self.workers[worker];
        let message = &self.messages[index];
        let park = store.sql().park(store.client(), message, (role, None), cause, "no");
        let parked = park.await.unwrap();
        let takes_over = self.model.takes_over;
        let record = self.model.of(message.key.id);
        let free = match record.state {
            State::Processing { expired, .. } => expired || takes_over,
            State::Released | State::Failed { .. } => true,
            State::None => cause == Cause::Gone,
            State::Processed | State::Dead => false,
        };
        let crashed = record.attempts - record.finished >= UNFINISHED_MAX;
        let expected = free && role.is_nil() && (cause == Cause::Gone || crashed);
        assert_eq!(parked, expected);
        if parked {
            record.state = State::Dead;
        }
        format!("worker {worker} parks {index} for {cause:?}: {parked}")
    }

    /// The table says what the model says; dead letters are exactly the dead.
    async fn check(&mut self) {
        let sql = "SELECT m.message_id, m.status, m.attempts, m.finished_attempts, m.lease_token,
                letter.message_id IS NOT NULL
            FROM inbox_messages AS m LEFT JOIN inbox_dead_letter AS letter USING (message_id)";
        let rows = self.workers[0].client().query(sql, &[]).await.unwrap();
        let written = self.model.records.values().filter(|it| it.state != State::None).count();
        assert_eq!(rows.len(), written);
        for row in rows {
            let record = *self.model.of(row.get(0));
            let (status, token) = match record.state {
                State::None => unreachable!("it has a row"),
                State::Processing { token, .. } => ("PROCESSING", Some(token)),
                State::Released => ("PROCESSING", None),
                State::Failed { .. } => ("FAILED", None),
                State::Processed => ("PROCESSED", None),
                State::Dead => ("DEAD", None),
            };
            assert_eq!(row.get::<_, &str>(1), status);
            assert_eq!((row.get(2), row.get(3)), (record.attempts, record.finished));
            assert_eq!(row.get::<_, Option<Uuid>>(4), token);
            assert_eq!(row.get::<_, bool>(5), record.state == State::Dead);
        }
    }
}

/// The role's token, or that of a role that was lost.
fn role(random: &mut StdRng) -> Uuid {
    if random.random_bool(0.8) { Uuid::nil() } else { Uuid::max() }
}

async fn worker(postgres: &Postgres, takes_over: bool) -> Store {
    let client = postgres.client("postgres").await.unwrap();
    let scope = Scope {
        schema: "public".into(),
        consumer: "c".into(),
        stream: "S".into(),
        owner: "w".into(),
        lease: LONG,
        transactional: takes_over,
    };
    let store = Store::new(Connection::new(client), scope).await.unwrap();
    // It is not about the disk.
    store.client().batch_execute("SET synchronous_commit = off").await.unwrap();
    store
}

fn message(seq: u64) -> Message {
    let headers = HeaderMap::new();
    let origin = Origin { stream: "S".into(), created: None };
    let payload = Bytes::from_static(b"\0");
    Message::new("x".into(), headers, payload, &origin, seq, Timestamp::UNIX_EPOCH)
}

async fn server(is_partitioned: bool) -> Postgres {
    let postgres = Postgres::start(PostgresOptions::default()).await.unwrap();
    let mut client = postgres.client("postgres").await.unwrap();
    if !is_partitioned {
        // An application's own.
        let tables = crate::render_tables("public").replace("PARTITION BY RANGE (event_time)", "");
        client.batch_execute(&tables).await.unwrap();
    }
    crate::create_tables(&mut client, "public").await.unwrap();
    let role = "INSERT INTO inbox_roles (consumer, token, owner, expires_at)
        VALUES ('c', '00000000-0000-0000-0000-000000000000', 'w', 'infinity')
        ON CONFLICT DO NOTHING";
    client.batch_execute(role).await.unwrap();
    let epoch = "CREATE TABLE IF NOT EXISTS old PARTITION OF inbox_messages
        FOR VALUES FROM ('1969-01-01') TO ('1971-01-01')";
    if is_partitioned {
        client.batch_execute(epoch).await.unwrap();
    }
    postgres
}

#[tokio::test]
async fn records_change_as_the_model_says() {
    let postgres = server(true).await;
    for takes_over in [false, true] {
        let mut workers = vec![worker(&postgres, takes_over).await];
        workers.push(worker(&postgres, takes_over).await);
        let model = Model { records: HashMap::new(), takes_over };
        let messages = (1..=EVENTS).map(message).collect();
        let random = StdRng::seed_from_u64(0);
        let mut play = Play { random, workers, messages, model, claims: Vec::new() };
        for seed in seeds(RUNS) {
            eprintln!("seed {seed}, takes over: {takes_over}");
            play.begin(seed).await;
            for step in 0..STEPS {
                eprintln!("  {step}: {}", play.step().await);
                play.check().await;
            }
        }
    }
}

/// Of two who claim at the same time one gets it, and the other is told.
#[tokio::test]
async fn of_simultaneous_claims_one_wins() {
    for is_partitioned in [false, true] {
        let postgres = server(is_partitioned).await;
        let (first, second) = (worker(&postgres, false).await, worker(&postgres, false).await);
        for round in 0..50 {
            let messages: Vec<Message> = (1..=20).map(|n| message(round * 100 + n)).collect();
            let forth: Vec<&Message> = messages.iter().collect();
            let back: Vec<&Message> = messages.iter().rev().collect();
            let (a, b) = tokio::join!(
                first.sql().claim(first.client(), (Uuid::nil(), Uuid::new_v4()), &forth),
                second.sql().claim(second.client(), (Uuid::nil(), Uuid::new_v4()), &back),
            );
            let (a, mut b) = (a.unwrap(), b.unwrap());
            b.reverse();
            for pair in a.iter().zip(&b) {
                let won = |claim: &ClaimReply| matches!(claim, ClaimReply::Claimed { .. });
                let told = |claim: &ClaimReply| {
                    matches!(claim, ClaimReply::Leased { .. } | ClaimReply::Contended)
                };
                let (a, b) = pair;
                assert!(won(a) && told(b) || won(b) && told(a), "{pair:?}");
            }
        }
    }
}

/// By the statement that ends the claim, and by nobody who lost it. What has its effect leaves none.
#[tokio::test]
async fn the_newest_failed_attempts_of_an_event_are_kept() {
    let postgres = server(true).await;
    let worker = worker(&postgres, false).await;
    let (on, sql) = (worker.client(), worker.sql());
    let [fails, is_away, has_effect] = [1, 2, 3].map(message);
    let claim = async |message: &Message| {
        let token = Uuid::new_v4();
        sql.claim(on, (Uuid::nil(), token), &[message]).await.unwrap();
        Claim { key: message.key, token }
    };
    let kept = async |message: &Message| {
        let sql = "SELECT concat_ws(' ', attempt, coalesce(code, 0), took_ms, reason, worker)
            FROM inbox_attempts WHERE message_id = $1 ORDER BY id";
        let rows = on.query(sql, &[&message.key.id]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect::<Vec<String>>()
    };
    for n in 1..=25 {
        let (reason, took) = (format!("500 no\n{n}"), Some(Duration::from_millis(n)));
        let failed = End::Failed { reason: &reason, delay: Duration::ZERO, took };
        let away = Some(Failed { reason: "away", took: Duration::from_secs(2) });
        let ends = [
            (claim(&fails).await, failed),
            (claim(&is_away).await, End::GivenBack { failed: away }),
            (claim(&has_effect).await, End::GivenBack { failed: None }),
        ];
        assert_eq!(sql.end(on, &ends).await.unwrap().len(), 3);
    }
    let newest: Vec<_> = (6..=25).map(|n| format!("{n} 500 {n} 500 no {n} w")).collect();
    assert_eq!(kept(&fails).await, newest);
    assert_eq!(kept(&is_away).await, ["1 0 2000 away w"; 20]);
    let ends = [(claim(&has_effect).await, End::Processed { outcome: Some("x") })];
    assert_eq!(sql.end(on, &ends).await.unwrap().len(), 1);
    assert!(kept(&has_effect).await.is_empty());

    let failed = End::Failed { reason: "500", delay: Duration::ZERO, took: Some(LONG) };
    let lost = Claim { token: Uuid::new_v4(), ..claim(&fails).await };
    assert!(sql.end(on, &[(lost, failed)]).await.unwrap().is_empty());
    assert_eq!(kept(&fails).await, newest, "whoever lost the lease writes nothing");
    let last = (Uuid::nil(), Some((claim(&is_away).await, Some(LONG))));
    assert!(sql.park(on, &is_away, last, Cause::Expired, "503 gone").await.unwrap());
    let kept = kept(&is_away).await;
    assert_eq!((kept.len(), kept[19].as_str()), (20, "1 503 3600000 503 gone w"));
}

/// For a while the statement that would be refused is not even sent; then notes are written again.
#[tokio::test]
async fn a_note_that_was_refused_is_tried_again_later() {
    let postgres = server(true).await;
    let worker = worker(&postgres, false).await;
    let (on, sql) = (worker.client(), worker.sql());
    let fails = message(1);
    let fail = async || {
        let token = Uuid::new_v4();
        sql.claim(on, (Uuid::nil(), token), &[&fails]).await.unwrap();
        let end = End::Failed { reason: "500", delay: Duration::ZERO, took: Some(LONG) };
        let claim = Claim { key: fails.key, token };
        assert_eq!(sql.end(on, &[(claim, end)]).await.unwrap(), [fails.key.id]);
        let noted = on.query_one("SELECT count(*) FROM inbox_attempts", &[]).await.unwrap();
        noted.get::<_, i64>(0)
    };
    // As where `statement_timeout` is over.
    let refuse = "CREATE FUNCTION refuse() RETURNS TRIGGER LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'too long' USING ERRCODE = 'query_canceled'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON inbox_attempts EXECUTE FUNCTION refuse()";
    on.batch_execute(refuse).await.unwrap();
    assert_eq!(fail().await, 0);
    on.batch_execute("DROP TRIGGER refuse ON inbox_attempts").await.unwrap();
    *sql.note_refused.lock().unwrap() = Some(Instant::now() + LONG);
    assert_eq!(fail().await, 0, "it is not tried");
    *sql.note_refused.lock().unwrap() = Instant::now().checked_sub(NOTE_AGAIN);
    assert_eq!(fail().await, 1);
    assert!(sql.note_refused.lock().unwrap().is_none());
}

#[tokio::test]
async fn of_a_group_of_leases_one_that_is_locked_keeps_no_other() {
    let postgres = server(true).await;
    let worker = worker(&postgres, false).await;
    let (on, sql) = (worker.client(), worker.sql());
    let (messages, token) = ([1, 2, 3].map(message), Uuid::new_v4());
    let [first, second, third] = messages.each_ref().map(|it| Claim { key: it.key, token });
    sql.claim(on, (Uuid::nil(), token), &messages.each_ref()).await.unwrap();
    sql.end(on, &[(third, End::Processed { outcome: None })]).await.unwrap();
    let mut other = postgres.client("postgres").await.unwrap();
    let locking = other.transaction().await.unwrap();
    let lock = "SELECT FROM inbox_messages WHERE message_id = $1 FOR UPDATE";
    locking.execute(lock, &[&first.key.id]).await.unwrap();
    let extended = sql.renew(on, &[first, second, third]).await.unwrap();
    let extended: HashMap<Uuid, bool> = extended.into_iter().collect();
    assert_eq!(extended, HashMap::from([(first.key.id, false), (second.key.id, true)]));
}
