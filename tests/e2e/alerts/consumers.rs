//! A consumer whose handler is away, hangs, or refuses.

use lab::{Direction, Proxy};
use support::{DEADLINE, TestEnv, until};

use super::{Watch, watch};
use crate::doctor::nats_commands::pause;
use crate::inbox::http::{processed, wait_processed};
use crate::inbox::service::{Service, emit};

pub(super) const FIRES: &[&str] = &[
    "TailpostConsumerInactive",
    "TailpostHandlerBreakerOpen",
    "TailpostConsumerStalled",
    "TailpostConsumerLagging",
    "TailpostFailedAttempts",
    "TailpostLeasesLost",
    "TailpostPoisonBurst",
];

pub(super) const WRITES: &[&str] = &[
    "tailpost_inbox_active",
    "tailpost_inbox_standby",
    "tailpost_inbox_outcomes_total",
    "tailpost_inbox_attempt_duration_seconds",
    "tailpost_inbox_claims_total",
    "tailpost_inbox_lease_renewals_total",
    "tailpost_inbox_lease_lost_total",
    "tailpost_inbox_breaker_state",
    "tailpost_inbox_breaker_opened_total",
    "tailpost_inbox_inflight",
    "tailpost_inbox_held",
    "tailpost_inbox_left",
    "tailpost_inbox_lanes",
    "tailpost_inbox_stalled_seconds",
    "tailpost_inbox_backlog",
    "tailpost_inbox_oldest_backlog_age_seconds",
    "tailpost_inbox_failed_attempts",
    "tailpost_jetstream_consumer_pending",
    "tailpost_jetstream_consumer_ack_pending",
    "tailpost_jetstream_consumer_redelivered",
    "tailpost_jetstream_consumer_idle_seconds",
    "tailpost_dead_letters_total",
    "tailpost_dead_letter_count",
    "tailpost_dead_letter_oldest_age_seconds",
];

/// Servers for a consumer that tries again soon, and for ever.
async fn hasty() -> TestEnv {
    let mut env = TestEnv::new().await;
    env.set("TAILPOST_INBOX__BACKOFF", "50ms,100ms,200ms");
    env.set("TAILPOST_INBOX__MAX_ATTEMPTS", "1000000");
    env.set("TAILPOST_INBOX__LEASE", "3s");
    env.set("TAILPOST_INBOX__TIMEOUT", "2s");
    env.set("TAILPOST_INBOX__ACK_WAIT", "3s");
    env.setup().await;
    env.ends_with(0, &["inbox", "setup"]).await;
    env
}

/// Another worker takes over, and the one that is watched stands by. Then the first falls silent
/// with events that it has, while the handler is away.
async fn take_over(env: &mut TestEnv, watch: &Watch, args: &[&str], network: &mut Proxy) {
    let listen = watch.inbox.as_ref().expect("a port").addr().to_string();
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", "off");
    let hidden = env.spawn(args);
    hidden.announce("");
    let before = processed(env).await;
    emit(env, "order", "{}").await;
    wait_processed(env, before + 1).await;
    env.set("TAILPOST_ADMIN__INBOX_LISTEN", &listen);
    let standby = env.spawn(args);
    standby.announce("");
    watch.wait_written(&["tailpost_inbox_standby"]).await;
    network.cut().await;
    emit(env, "order", "{}").await;
    hidden.pause();
    env.insert(2_000).await;
    watch.wait_written(WRITES).await;
}

mod long {
    use super::*;

    // proves: G-ALERT-1, G-MET-2
    #[tokio::test(flavor = "multi_thread")]
    async fn alerts_about_consumers_fire_and_end() {
        let mut env = hasty().await;
        let watch = watch(&mut env, true, &[]).await;
        let relay = env.relay();
        relay.announce("");
        let service = Service::start().await;
        let mut network = Proxy::start(service.address()).await.expect("start a proxy");
        let url = format!("http://{}/events", network.addr());
        let args = ["inbox", "run", "--consumer", "billing", "--handler", &url];
        let inbox = env.spawn(&args);
        inbox.announce("");
        env.insert(10).await;
        wait_processed(&env, 10).await;
        watch.wait_quiet().await;

        // The handler is away, and more comes than is held.
        network.cut().await;
        env.insert(1_500).await;
        let away = [
            "TailpostConsumerInactive",
            "TailpostHandlerBreakerOpen",
            "TailpostConsumerStalled",
            "TailpostConsumerLagging",
        ];
        watch.prometheus.wait_firing(&away).await;
        network.restore().await.expect("the handler is back");
        wait_processed(&env, 1_510).await;
        watch.prometheus.wait_ended(&away).await;

        // One event fails again and again, and the others of its aggregate wait in the stream.
        service.answer_to("sick", 500);
        for _ in 0..40 {
            emit(&env, "sick", "{}").await;
        }
        watch.prometheus.wait_firing(&["TailpostFailedAttempts"]).await;
        service.answer_to("sick", 204);
        wait_processed(&env, 1_550).await;

        service.answer_to("poison", 422);
        until(DEADLINE, "most become dead letters", async || {
            emit(&env, "poison", "{}").await;
            watch.prometheus.names_firing().await.contains("TailpostPoisonBurst")
        })
        .await;

        // The handler hangs, and somebody takes its lease.
        network.blackhole(Direction::ToClient);
        let before = processed(&env).await;
        emit(&env, "slow", "{}").await;
        until(DEADLINE, "the lease is lost", async || {
            env.execute(
                "UPDATE inbox_messages SET lease_token = gen_random_uuid() WHERE status = 'PROCESSING'",
            )
            .await;
            watch.prometheus.names_firing().await.contains("TailpostLeasesLost")
        })
        .await;
        network.cut().await;
        network.restore().await.expect("the handler is back");
        wait_processed(&env, before + 1).await;
        watch.prometheus.wait_ended(FIRES).await;

        // The broker keeps what it has.
        pause(&env, "billing", Some("2100-01-01T00:00:00Z")).await;
        emit(&env, "order", "{}").await;
        watch
            .prometheus
            .wait_firing(&["TailpostConsumerInactive", "TailpostConsumerStalled"])
            .await;
        pause(&env, "billing", None).await;
        wait_processed(&env, before + 2).await;
        watch.prometheus.wait_ended(FIRES).await;

        inbox.sigterm();
        assert!(inbox.wait_exit(DEADLINE).await.success(), "{}", inbox.log());
        take_over(&mut env, &watch, &args, &mut network).await;
    }
}
