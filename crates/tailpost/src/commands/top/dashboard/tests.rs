use serde_json::json;

use super::*;

fn told(status: serde_json::Value) -> Input {
    let status = serde_json::from_value(status).expect("a status");
    let relay = RelayTold { status, ..RelayTold::default() };
    Input::Told(Box::new(Told { relay: Ok(relay), inbox: None }))
}

fn published(process: u32, total: u64) -> Input {
    told(json!({ "process_id": process, "role": "active", "published_total": total,
        "commit_to_ack": { "buckets": [[-80, total]] } }))
}

fn away() -> Input {
    let why = Failure { error: "refused".into(), hint: None };
    Input::Told(Box::new(Told { relay: Err(why), inbox: None }))
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_rate_is_what_was_stored_between_two_answers() {
    let start = Instant::now();
    let mut dashboard = Dashboard::new(start, SECOND);
    assert_eq!(dashboard.apply(start, Input::Due), Some(Output::Ask));
    dashboard.apply(start, published(1, 100));
    assert_eq!((dashboard.relay.rate, dashboard.relay.commit_to_ack), (None, None));
    dashboard.apply(start + 2 * SECOND, published(1, 150));
    assert_eq!(dashboard.relay.rate, Some(25.0));
    let latency = dashboard.relay.commit_to_ack.expect("50 durations");
    // Bucket -80 ends at 2 to the power of -10 seconds.
    assert!((latency.p99 - 1.0 / 1024.0).abs() < 1e-12, "{latency:?}");
}

// A process that starts anew counts from zero, and may have passed the old total before it is seen.
#[test]
fn a_restart_makes_no_rate_that_is_wrong() {
    let start = Instant::now();
    for after in [3, 1_000] {
        let mut dashboard = Dashboard::new(start, SECOND);
        dashboard.apply(start, published(1, 100));
        dashboard.apply(start + SECOND, published(1, 110));
        dashboard.apply(start + 2 * SECOND, published(2, after));
        assert_eq!(dashboard.relay.rate, None);
        dashboard.apply(start + 3 * SECOND, published(2, after + 5));
        assert_eq!(dashboard.relay.rate, Some(5.0));
        assert!(dashboard.relay.rates.iter().all(|it| *it >= 0.0));
    }
}

#[test]
fn who_does_not_answer_is_away_since_the_first_time_and_what_was_known_stays() {
    let start = Instant::now();
    let mut dashboard = Dashboard::new(start, SECOND);
    dashboard.apply(start, published(1, 100));
    dashboard.apply(start + SECOND, away());
    dashboard.apply(start + 5 * SECOND, away());
    let Link::Down { since, .. } = dashboard.relay.link else { panic!("it is away") };
    assert_eq!(since, start + SECOND);
    assert_eq!(dashboard.relay.status.shards()[0].published_total, 100);
    assert_eq!(dashboard.next_at, Some(start + 6 * SECOND), "it is asked again");
    dashboard.apply(start + 6 * SECOND, published(1, 160));
    assert!(matches!(dashboard.relay.link, Link::Up));
    assert_eq!(dashboard.relay.rate, Some(10.0), "since it was last counted");
}

#[test]
fn nobody_is_asked_twice_at_once_nor_while_it_is_paused() {
    let start = Instant::now();
    let mut dashboard = Dashboard::new(start, SECOND);
    assert_eq!(dashboard.apply(start, Input::Due), Some(Output::Ask));
    assert_eq!(dashboard.apply(start, Input::Due), None);
    dashboard.apply(start, Input::Key(Key::Pause));
    dashboard.apply(start, published(1, 1));
    assert_eq!(dashboard.next_at, None, "it is paused");
    dashboard.apply(start + SECOND, Input::Key(Key::Pause));
    assert_eq!(dashboard.next_at, Some(start + SECOND));
}

#[test]
fn the_interval_has_steps_and_ends() {
    let start = Instant::now();
    let mut dashboard = Dashboard::new(start, Duration::from_secs(3));
    let mut press = |key| {
        assert_eq!(dashboard.apply(start, Input::Key(key)), None);
        dashboard.interval
    };
    assert_eq!(press(Key::Slower), 5 * SECOND);
    assert_eq!(press(Key::Faster), 2 * SECOND);
    for _ in 0..9 {
        press(Key::Faster);
    }
    assert_eq!(press(Key::Faster), Duration::from_millis(200));
    for _ in 0..9 {
        press(Key::Slower);
    }
    assert_eq!(press(Key::Slower), 60 * SECOND);
    assert_eq!(dashboard.apply(start, Input::Key(Key::Quit)), Some(Output::Quit));
}

#[test]
fn percentiles_forget_what_is_long_ago() {
    let start = Instant::now();
    let mut durations = Durations::default();
    let counts = |fast, slow| BTreeMap::from([(-80, fast), (0, slow)]);
    durations.see(start, counts(0, 0));
    durations.see(start + SECOND, counts(0, 100));
    assert_eq!(durations.percentiles().map(|it| it.p50), Some(1.0));
    for second in 2..20 {
        durations.see(start + second * SECOND, counts(u64::from(second), 100));
    }
    let now = durations.percentiles().expect("durations");
    assert!(now.max < 0.01, "{now:?}");
    durations.see(start + 20 * SECOND, counts(1, 0));
    assert_eq!(durations.percentiles(), None, "it was started anew");
}
