//! Several workers share the partitions of a consumer.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use lab::{Direction, Proxy};
use outbox::wire;
use serde_json::{Value, json};
use support::{DEADLINE, assert_promise, until};

use super::http::{divide, processed, wait_processed};
use super::service::{Service, emit};
use super::{Inbox, Worker};

const LEASE: Duration = Duration::from_secs(3);
const PARTITIONS: u32 = 8;
const AGGREGATES: i64 = 40;

async fn divided(mode: &str) -> Inbox {
    let mut inbox = Inbox::new().await;
    inbox.divide(PARTITIONS).await;
    inbox.set("WORKER_MODE", mode);
    inbox.set("WORKER_LANES", "16");
    inbox.set("WORKER_BATCH", "8");
    inbox.set("WORKER_LEASE_MS", "3000");
    inbox.set("WORKER_ACK_WAIT_MS", "2000");
    inbox.set("WORKER_MAX_ATTEMPTS", "1000");
    inbox
}

/// Waits until each of so many workers has its share.
async fn wait_shared(inbox: &Inbox, workers: u32) {
    let each = PARTITIONS / workers;
    let shares = format!(
        "(SELECT FROM inbox_roles WHERE expires_at > now() AND state = 'active'
          GROUP BY owner HAVING count(*) = {each}) AS t"
    );
    let what = format!("each of {workers} workers has {each} partitions");
    until(DEADLINE, &what, async || inbox.count(&shares).await == i64::from(workers)).await;
}

/// Waits until others than this worker have all partitions; returns how long that took.
async fn wait_without(inbox: &Inbox, worker: &Worker) -> Duration {
    let (began, pid) = (Instant::now(), worker.pid());
    let others = format!(
        "inbox_roles WHERE expires_at > now() AND owner NOT LIKE '{pid}:%' AND owner <> ''"
    );
    until(DEADLINE, "others have all", async || {
        inbox.count(&others).await == i64::from(PARTITIONS)
    })
    .await;
    began.elapsed()
}

/// Publishes for as long as `work` takes, so that there is always something to do, and waits until
/// all of it has had its effect. Returns how much that was.
async fn under_load(inbox: &Inbox, work: impl Future<Output = ()>) -> i64 {
    let (ends, published) = (Cell::new(false), Cell::new(0));
    let load = async {
        while !ends.get() {
            let first = published.get();
            let aggregate = |n: i64| format!("o-{}", n % AGGREGATES);
            inbox.publish_as(aggregate, first..first + 200, &json!({ "sleep_ms": 20 })).await;
            published.set(first + 200);
            until(DEADLINE, "there is little left to do", async || {
                ends.get() || inbox.count("effects").await > published.get() - 600
            })
            .await;
        }
    };
    let work = async {
        work.await;
        ends.set(true);
    };
    tokio::join!(load, work);
    let all = published.get();
    until(DEADLINE, "all have had their effect", async || {
        inbox.count("(SELECT DISTINCT event_id FROM effects) AS t").await == all
    })
    .await;
    all
}

/// Who joins gets its share, and who leaves gives its own to the others, without waiting for leases.
// proves: G-EFFECT-3
#[tokio::test(flavor = "multi_thread")]
async fn workers_that_join_and_leave_move_partitions_and_no_event_is_lost_or_out_of_order() {
    let mut inbox = divided("transactional").await;
    // Longer than anything is waited for.
    inbox.set("WORKER_LEASE_MS", "300000");
    let first = inbox.worker();
    wait_shared(&inbox, 1).await;
    let second = Cell::new(None);
    let all = under_load(&inbox, async {
        second.set(Some(inbox.worker()));
        wait_shared(&inbox, 2).await;
        let (third, fourth) = (inbox.worker(), inbox.worker());
        wait_shared(&inbox, 4).await;
        first.sigterm();
        wait_without(&inbox, &first).await;
        third.stop().await;
        wait_shared(&inbox, 2).await;
        fourth.stop().await;
        wait_shared(&inbox, 1).await;
    })
    .await;
    inbox.wait_acked().await;
    inbox.assert_exact(all).await;
    second.take().expect("it runs").stop().await;
    assert_eq!(inbox.count("inbox_workers").await, 0, "all have left");
}

/// However many it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_looks_once_a_second_what_is_wanted_of_all_its_partitions() {
    const LOOKS: i64 = 15;
    let inbox = divided("leased").await;
    let _worker = inbox.worker();
    wait_shared(&inbox, 1).await;
    // Each look reads both.
    let reads = "SELECT sum(seq_scan + idx_scan)::bigint FROM pg_stat_user_tables
        WHERE relname IN ('inbox_controls', 'inbox_decisions')";
    let seen = async |least: i64| {
        let what = format!("{least} reads are counted");
        until(DEADLINE, &what, async || inbox.env.query::<i64>(reads).await >= least).await;
        (inbox.env.query::<i64>(reads).await, Instant::now())
    };
    // What a look has read is counted up to some seconds later: those with which sessions begin, too.
    let (before, began) = seen(2 * i64::from(PARTITIONS + 4)).await;
    let (_, ended) = seen(before + 2 * LOOKS).await;
    let took = ended.duration_since(began);
    assert!(took >= Duration::from_secs(7), "{LOOKS} looks were counted within {took:?}");
}

mod long {
    use super::*;

    /// Under load, one after the other: killed, stopped for two leases, cut off from one server or
    /// the other, with new ones for those that are gone.
    // proves: G-EFFECT-3, G-EFFECT-6
    #[tokio::test(flavor = "multi_thread")]
    async fn whatever_becomes_of_workers_each_aggregate_stays_in_order_and_others_take_over() {
        for mode in ["transactional", "leased"] {
            let mut inbox = divided(mode).await;
            let direct = inbox.env.postgres.url("postgres");
            let postgres = ([127, 0, 0, 1], inbox.env.postgres.port()).into();
            let mut postgres = Proxy::start(postgres).await.expect("start a proxy");
            let nats = ([127, 0, 0, 1], inbox.env.nats.port()).into();
            let mut nats = Proxy::start(nats).await.expect("start a proxy");
            let two = [inbox.worker(), inbox.worker()];
            inbox.set("NATS_URL", &format!("nats://{}", nats.addr()));
            let without_broker = inbox.worker();
            inbox.set("NATS_URL", &inbox.env.nats.url());
            inbox.set("DATABASE_URL", &format!("postgres://postgres@{}/postgres", postgres.addr()));
            let without_database = inbox.worker();
            inbox.set("DATABASE_URL", &direct);
            wait_shared(&inbox, 4).await;
            let [killed, stopped] = two;
            let inbox = &inbox;
            let all = under_load(inbox, async {
                let taken = async |from: &Worker, what: &str| {
                    eprintln!("{mode}, {what}");
                    assert_promise(2 * LEASE, wait_without(inbox, from).await);
                    let before = inbox.count("effects").await;
                    inbox.wait_count("effects", before + 100).await;
                };
                for _ in 0..2 {
                    nats.cut().await;
                    taken(&without_broker, "without the broker").await;
                    nats.restore().await.expect("mend the network");
                    wait_shared(inbox, 4).await;
                    postgres.blackhole(Direction::Both);
                    taken(&without_database, "without the database").await;
                    postgres.restore().await.expect("mend the network");
                    wait_shared(inbox, 4).await;
                    stopped.pause();
                    taken(&stopped, "stopped").await;
                    stopped.resume();
                    wait_shared(inbox, 4).await;
                }
                killed.kill9().await;
                taken(&killed, "killed").await;
            })
            .await;
            inbox.wait_acked().await;
            if mode == "transactional" {
                inbox.assert_exact(all).await;
            }
            // Nobody is idle at the end.
            let _fourth = inbox.worker();
            wait_shared(inbox, 4).await;
        }
    }

    /// The first worker's transactions are its own in the partitions that it keeps.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_partition_whose_handler_takes_long_is_given_back_without_ending_its_worker() {
        let mut inbox = divided("transactional").await;
        inbox.set("WORKER_RUNS", "1");
        let first = inbox.worker();
        wait_shared(&inbox, 1).await;
        // Of the first partition and of the last one, and longer than a stop waits.
        let of = NonZeroU32::new(PARTITIONS).expect("several");
        for partition in [0, PARTITIONS - 1] {
            let is_of_it = |it: &String| wire::partition("order", it, of) == partition;
            let aggregate = (0..).map(|it| format!("o-{it}")).find(is_of_it).expect("one of it");
            let aggregate = |_| aggregate.clone();
            inbox.publish_as(aggregate, 0..1, &json!({ "sleep_ms": 40_000 })).await;
        }
        inbox.wait_count("runs", 2).await;
        let second = inbox.worker();
        wait_shared(&inbox, 2).await;
        inbox.wait_count("effects", 2).await;
        inbox.assert_exact(2).await;
        assert_eq!(inbox.count("runs").await, 2, "each was begun once");
        for worker in [first, second] {
            worker.stop().await;
        }
    }
}

/// Of two workers one cannot reach its service.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_handler_is_away_for_it_alone_leaves_its_partitions_to_another_one() {
    let settings = [("INBOX__LEASE", "3s"), ("INBOX__TIMEOUT", "1s")];
    let (env, _file) = divide("4", &settings).await;
    let _relay = env.relay();
    let service = Service::start().await;
    let run = |args: [String; 6]| env.spawn(&args.each_ref().map(String::as_str));
    let mut cut_off = service.args();
    cut_off[5] = "http://127.0.0.1:1/".into();
    let _cut_off = run(cut_off);
    let all = "SELECT count(*) FROM inbox_roles WHERE state IN ('active', 'paused')";
    until(DEADLINE, "it has all", async || env.query::<i64>(all).await == 4).await;
    let _worker = run(service.args());
    env.insert(40).await;
    wait_processed(&env, 40).await;
}

/// What operators see and do is about the consumer.
#[tokio::test(flavor = "multi_thread")]
async fn operators_have_one_consumer_whoever_handles_it() {
    let (mut env, _file) = divide("4", &[("INBOX__BACKOFF", "200ms")]).await;
    let _relay = env.relay();
    let service = Service::start().await;
    let args = service.args();
    let run = || env.spawn(&args.each_ref().map(String::as_str));
    let (one, two) = (run(), run());
    let shared = "SELECT count(DISTINCT owner) FROM inbox_roles WHERE state = 'active'";
    until(DEADLINE, "both have some", async || env.query::<i64>(shared).await == 2).await;

    service.answer_to("sick", 422);
    let sick = emit(&env, "sick", "{}").await;
    env.insert(40).await;
    wait_processed(&env, 40).await;
    let wait = ["wait", "--all", "--processed-by", "billing", "--timeout", "1m"];
    let letters = "SELECT count(*) FROM inbox_dead_letter WHERE consumer = 'billing'";
    until(DEADLINE, "the sick one is a letter", async || env.query::<i64>(letters).await == 1)
        .await;
    env.ends_with(0, &wait).await;
    let (told, _) = env.ends_with(0, &["status", "--json"]).await;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let consumers = told["consumers"].as_array().expect("a list");
    assert_eq!(consumers.len(), 1, "{told}");
    assert_eq!((&consumers[0]["name"], &consumers[0]["pending"]), (&json!("billing"), &json!(0)));
    let owner = consumers[0]["worker"]["owner"].as_str().expect("workers");
    assert!(owner.contains(", "), "both workers: {owner}");
    let (checks, _) = env.ends_with(0, &["doctor", "--only", "inbox"]).await;
    assert_eq!(checks.matches("a worker is at work").count(), 1, "{checks}");
    let sick = sick.to_string();
    let (story, _) = env.ends_with(0, &["explain", &sick]).await;
    assert!(story.contains("billing") && !story.contains("billing-"), "{story}");

    service.answer_to("sick", 200);
    // Of more partitions, once.
    env.execute("UPDATE inbox_dead_letter SET subject = '7' || substr(subject, 2)").await;
    let requeue = ["inbox", "dlq", "requeue", "--consumer", "billing", &sick, "--why", "a test"];
    env.ends_with(0, &requeue).await;
    wait_processed(&env, 41).await;
    env.execute(
        "INSERT INTO inbox_roles (consumer, token, owner, expires_at, partition)
         VALUES ('billing', gen_random_uuid(), 'of a fifth partition, once', '-infinity', 4);
         INSERT INTO inbox_rewinds (consumer, stream, from_seq, until_seq, again, requested_by,
             begun_at, reset_seq, removed_to, partition)
         VALUES ('billing', 'OUTBOX', 1, 2, false, 'ada', now(), 1, 0, 4)",
    )
    .await;
    let rewind = ["inbox", "rewind", "--consumer", "billing", "--to-sequence", "1", "--again"];
    let who = ["--execute", "--by", "ada", "--why", "a test", "--json"];
    let (told, _) = env.ends_with(0, &[&rewind[..], &who].concat()).await;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((&told["state"], &told["rewind"]["removed"]), (&json!("rewound"), &json!(41)));
    until(DEADLINE, "all are handled again", async || service.calls().len() >= 83).await;
    env.ends_with(0, &wait).await;
    assert_eq!(processed(&env).await, 41);

    env.set("TAILPOST_INBOX__PARTITIONS", "8");
    for command in [&["inbox", "setup"][..], &["inbox", "run"]] {
        let (_, log) = env.ends_with(78, command).await;
        assert!(log.contains("inbox.billing.partitions = 8, and relay.partitions = 4"), "{log}");
        assert!(log.contains("set inbox.billing.partitions = 4"), "{log}");
    }
    // Beside workers that would leave one of its partitions to it.
    for of in ["INBOX", "RELAY"] {
        env.set(&format!("TAILPOST_{of}__PARTITIONS"), "2");
    }
    for command in ["setup", "run"] {
        let (_, log) = env.ends_with(4, &["inbox", command]).await;
        assert!(log.contains("has 4: set inbox.billing.partitions = 4"), "{log}");
    }
    drop((one, two));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_is_withdrawn_in_all_partitions_or_in_none() {
    let (env, _file) = divide("4", &[]).await;
    env.execute(
        "INSERT INTO inbox_rewinds (consumer, stream, from_seq, until_seq, again, requested_by,
             requested_at, removed_to, partition)
         SELECT 'billing', 'OUTBOX', 1, 2, false, 'ada', now(), 0, generate_series(0, 3)",
    )
    .await;
    let set = |what: &str| format!("UPDATE inbox_rewinds SET {what} WHERE partition = 2");
    let who = ["--consumer", "billing", "--by", "ada", "--why", "a test"];
    let cancel = [&["inbox", "rewind", "--cancel"], &who[..]].concat();
    for begun in ["begun_at = now(), reset_seq = 1", "ended_at = now(), outcome = 'rewound'"] {
        env.execute(&set(begun)).await;
        env.ends_with(3, &cancel).await;
    }
    let undo = "ended_at = NULL, outcome = NULL, begun_at = NULL, reset_seq = NULL";
    env.execute(&set(undo)).await;
    env.ends_with(0, &cancel).await;
    for (count, of) in [
        (4, "inbox_rewinds WHERE outcome = 'cancelled'"),
        (1, "inbox_control_audit WHERE action = 'cancel_rewind'"),
    ] {
        assert_eq!(env.query::<i64>(&format!("SELECT count(*) FROM {of}")).await, count, "{of}");
    }
}
