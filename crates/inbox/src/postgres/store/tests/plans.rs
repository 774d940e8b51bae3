//! How the server runs the statements.

use super::{Store, server, worker};
use crate::postgres::sql::{UNRESOLVED, claim, complete, park, renew};

/// A plan is kept while there are a thousand times as many records as there were when it was made.
#[tokio::test]
async fn records_are_looked_up_by_their_keys_whatever_the_statistics() {
    let postgres = server(true).await;
    let store = worker(&postgres, false).await;
    const ANALYZE: &str = "ANALYZE inbox_messages";
    let statements = [
        claim::claim_events("public", UNRESOLVED),
        complete::end_claims("public"),
        complete::end_failed_claims("public"),
        complete::note_outcomes("public"),
        renew::extend_leases("public"),
        park::park_failed("public"),
    ];
    for (records, look) in [(0, ""), (0, ANALYZE), (1, ANALYZE), (50, ANALYZE), (2_000, ANALYZE)] {
        let fill = format!(
            "INSERT INTO inbox_messages (consumer, message_id, event_time, subject, status, attempts)
             SELECT 'c', gen_random_uuid(), now(), 's', 'REJECTED', 1
             FROM generate_series(1, {records}); {look}"
        );
        store.client().batch_execute(&fill).await.expect("write records");
        for sql in &statements {
            let plan = plan(&store, sql).await;
            let reads_records = |it: &&[String]| {
                it[0].contains("Scan")
                    && (it[0].contains("inbox_messages") || it[0].contains("old"))
            };
            let reads: Vec<&[String]> = plan.windows(2).filter(reads_records).collect();
            let is_by_key =
                |it: &&&[String]| it[1].contains("Cond") && it[1].contains("message_id =");
            let by_key = reads.iter().filter(is_by_key).count();
            let found = (by_key, reads.is_empty());
            assert_eq!(found, (reads.len(), false), "{records} records: {plan:#?}");
        }
    }
}

/// How the server runs a statement that it knows no values for.
async fn plan(store: &Store, sql: &str) -> Vec<String> {
    let prepare = format!("PREPARE it (text, uuid[], timestamptz[]) AS {sql}");
    store.client().batch_execute(&prepare).await.expect("prepare");
    let about = "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'it'";
    let parameters = store.client().query_one(about, &[]).await.expect("find the statement");
    let nulls = vec!["NULL"; usize::try_from(parameters.get::<_, i32>(0)).expect("some")];
    let explain = format!("EXPLAIN (COSTS OFF) EXECUTE it ({})", nulls.join(", "));
    let plan = store.client().query(&explain, &[]).await.expect("explain");
    store.client().batch_execute("DEALLOCATE it").await.expect("forget the statement");
    plan.iter().map(|row| row.get(0)).collect()
}
