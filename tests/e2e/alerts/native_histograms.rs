//! A Prometheus that keeps native histograms gets them.

use support::{DEADLINE, TestEnv, until};

use super::watch;

/// The native buckets have the same events as the classic ones, and a finer quantile.
// proves: G-MET-3
#[tokio::test(flavor = "multi_thread")]
async fn a_prometheus_that_keeps_native_histograms_gets_them() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let watch = watch(&mut env, false, &["--enable-feature=native-histograms"]).await;
    let _relay = env.relay();
    watch.wait_quiet().await;
    env.insert(500).await;
    env.wait_marked().await;
    for name in ["outbox_commit_to_ack_seconds", "outbox_publish_duration_seconds"] {
        let count = format!("histogram_count(tailpost_{name})");
        until(DEADLINE, &format!("{count} is 500"), async || {
            watch.prometheus.query(&count).await.first().is_some_and(|(_, it)| *it == 500.0)
        })
        .await;
        let ask = async |query: String| {
            let found = watch.prometheus.query(&query).await;
            let [(_, value)] = &found[..] else { panic!("{query} gives {found:?}") };
            *value
        };
        let mean =
            ask(format!("histogram_sum(tailpost_{name}) / histogram_count(tailpost_{name})"));
        let (mean, max) =
            (mean.await, ask(format!("histogram_quantile(1, tailpost_{name})")).await);
        assert!(mean > 0.0 && mean <= max && max < 60.0, "{name}: mean {mean}, maximum {max}");
    }
}
