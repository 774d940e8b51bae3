use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::*;
use crate::commands::top::dashboard::{Failure, InboxTold, Input, Key, RelayTold, Told};

fn status(published: u64) -> Value {
    json!({
        "process_id": 7, "role": "active", "postgres_connected": true, "nats_connected": true,
        "received_lsn": "0/2000", "resolved_lsn": "0/1000", "lag_seconds": 0.002,
        "in_flight_events": 512, "in_flight_bytes": 1024, "published_total": published,
        "window": { "events": 1024, "bytes": 67_108_864 }, "breaker": "closed",
        "commit_to_ack": { "buckets": [[-80, published]] },
        "slot": { "wal_status": "reserved", "retained_bytes": 16_777_216,
            "wal_headroom_bytes": 1_073_741_824, "wal_headroom_seconds": 7200 },
    })
}

/// A relay that stores 1,000 events a second, with an inbox.
fn dashboard(start: Instant) -> Dashboard {
    let mut dashboard = Dashboard::new(start, Duration::from_secs(1));
    for second in 0..3_u32 {
        let total = u64::from(second) * 1000;
        let replays = json!({ "replays": [{ "id": "035e45ca-b68b-4d30-a905-9cec6ed75a81",
            "status": "running", "events": 50, "published": 20 }, { "status": "done" }] });
        let relay = RelayTold {
            status: serde_json::from_value(status(total)).expect("a status"),
            dead_letters: serde_json::from_value(json!({ "total": 3, "oldest_seconds": 90.0 }))
                .ok(),
            replays: serde_json::from_value(replays).ok(),
        };
        let consumers = json!({ "consumers": {
            "billing": { "state": "active", "handler": { "breaker": "closed" }, "busy": 4,
                "held": 2, "counts": { "processed": total / 2 }, "pending": 40 },
            "mail": { "state": "paused", "paused": "paused by ada", "handler": { "breaker": "open" } },
        } });
        let recorded = json!({ "consumers": [{ "name": "billing", "failed": 1, "dead": 2 },
            { "name": "audit", "worker": { "owner": "elsewhere-1", "is_valid": true } }] });
        let inbox = InboxTold {
            status: serde_json::from_value(consumers).expect("a status"),
            consumers: serde_json::from_value(recorded).ok(),
        };
        let told = Told { relay: Ok(relay), inbox: Some(Ok(inbox)) };
        dashboard.apply(start + second * Duration::from_secs(1), Input::Told(Box::new(told)));
    }
    dashboard
}

fn draw(dashboard: &Dashboard, now: Instant, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    let screen = Screen { dashboard, now, title: "127.0.0.1:9464", has_colors: false };
    terminal.draw(|frame| frame.render_widget(&screen, frame.area())).expect("drawn");
    let buffer = terminal.backend().buffer();
    assert!(buffer.content().iter().all(|it| it.fg == Color::Reset && it.bg == Color::Reset));
    let lines = buffer.content().chunks(usize::from(width).max(1));
    let line = |cells: &[ratatui::buffer::Cell]| -> String {
        let text: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.trim_end().to_owned()
    };
    lines.map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_whole_screen_shows_everything() {
    let start = Instant::now();
    let expected = "\
tailpost top  127.0.0.1:9464  every 1s  q quit  p pause  +/- interval  ? help
relay     active  PostgreSQL ok  NATS ok  process 7
rate      1000/s  2000 stored  ██
lag       4.0 KiB  2.0 ms
latency   p50 1.0 ms  p99 1.0 ms  max 1.0 ms  from commit to ack
          -  from sending to ack
window    [#####.....]  512 of 1024 events  1.0 KiB of 64.0 MiB
breaker   closed
slot      reserved  keeps 16.0 MiB  room for 1.0 GiB  full in 2h 0m
dead      3  oldest 1m 30s ago  0 written since the start
replays   035e45ca  running  20 of 50 published

consumer                  state          lag      rate      busy   breaker    failed      dead
billing                   active          42     500/s         4    closed         1         2
mail                      paused           -     0.0/s         0      open         -         -
  paused by ada
audit                     on elsewhere-1  failed 0  dead 0
";
    let drawn = draw(&dashboard(start), start, (100, 17));
    assert_eq!(drawn.trim_end(), expected.trim_end(), "\n{drawn}");
}

/// Whatever the size, what matters most is there, and nothing panics.
#[test]
fn a_small_terminal_leaves_out_what_matters_least() {
    let start = Instant::now();
    let dashboard = dashboard(start);
    let drawn = draw(&dashboard, start, (40, 10));
    for shown in
        ["rate      1000/s", "lag       4.0 KiB", "p99 1.0 ms", "breaker   closed", "slot", "dead"]
    {
        assert!(drawn.contains(shown), "{shown}\n{drawn}");
    }
    assert!(!drawn.contains("from sending"), "{drawn}");
    assert!(drawn.lines().all(|it| it.chars().count() <= 40), "{drawn}");
    let tiny = draw(&dashboard, start, (20, 3));
    assert!(tiny.contains("rate") && tiny.contains("lag"), "{tiny}");
    for width in 1..60 {
        for height in 1..25 {
            draw(&dashboard, start, (width, height));
        }
    }
}

#[test]
fn who_is_away_is_told_of_with_the_reason_and_what_to_do() {
    let start = Instant::now();
    let mut dashboard = dashboard(start);
    let error = "could not reach a relay at 127.0.0.1:9464: \u{1b}[2Jconnection refused".to_owned();
    let why = Failure { error, hint: Some("start `tailpost relay`".into()) };
    let told = Told { relay: Err(why), inbox: None };
    dashboard.apply(start, Input::Told(Box::new(told)));
    let drawn = draw(&dashboard, start + Duration::from_secs(65), (80, 24));
    let lines: Vec<_> = drawn.lines().collect();
    assert_eq!(
        lines[1..4],
        [
            "relay unreachable for 1m 5s: could not reach a relay at 127.0.0.1:9464: \\u{1b}[2",
            "Jconnection refused",
            "  start `tailpost relay`",
        ],
        "{drawn}"
    );
    assert!(drawn.contains("rate      -  2000 stored"), "what was known stays\n{drawn}");
    let small = draw(&dashboard, start, (40, 2));
    assert!(small.contains("relay unreachable"), "{small}");
}

#[test]
fn help_and_nothing_known_yet_have_their_screens() {
    let start = Instant::now();
    let mut dashboard = Dashboard::new(start, Duration::from_secs(1));
    assert_eq!(draw(&dashboard, start, (100, 5)).trim_end().lines().count(), 1);
    dashboard.apply(start, Input::Key(Key::Help));
    assert!(draw(&dashboard, start, (60, 20)).contains("p, space        pause"));
}

#[test]
fn a_shard_that_is_not_well_is_told_apart() {
    let start = Instant::now();
    let mut dashboard = Dashboard::new(start, Duration::from_secs(1));
    let (mut one, mut other) = (status(10), status(20));
    (one["shard"], other["shard"]) = (0.into(), 1.into());
    other["breaker"] = "open".into();
    other["breaker_retry_in_seconds"] = 7.0.into();
    other["slot"]["wal_status"] = "lost".into();
    let status = serde_json::from_value(json!({ "shards": [one, other] })).expect("a status");
    let told = Told { relay: Ok(RelayTold { status, ..RelayTold::default() }), inbox: None };
    dashboard.apply(start, Input::Told(Box::new(told)));
    let drawn = draw(&dashboard, start, (100, 24));
    for shown in [
        "breaker   open  tries again in 7.0 s",
        "slot      lost",
        "rate      -  30 stored",
        "window    [#####.....]  1024 of 2048 events",
        "shard 0   active  -  lag 4.0 KiB 2.0 ms  breaker closed",
        "shard 1   active  -  lag 4.0 KiB 2.0 ms  breaker open",
    ] {
        assert!(drawn.contains(shown), "{shown}\n{drawn}");
    }
}
