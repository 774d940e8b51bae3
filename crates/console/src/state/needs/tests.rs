//! What needs a person is told, the worst first.

use super::super::picture::tests::{at, failure, picture, round, with_relay};
use super::super::picture::{InboxBooks, RelayBooks, Round};
use super::*;

fn of(round: Round) -> Vec<Need> {
    needs(&picture([round]), at(100))
}

fn group(count: u64, fingerprint: &str) -> Group {
    Group { fingerprint: fingerprint.into(), count, aggregates: count, ..Group::default() }
}

#[test]
fn nothing_needs_anybody_while_all_is_well() {
    assert_eq!(of(round()), []);
}

#[test]
fn a_broker_that_is_away_is_why_nothing_is_published() {
    let away = with_relay(|it, ready| {
        (it.nats_connected, it.last_error) = (false, Some("connection refused".into()));
        (it.nats, it.nats_lost_at) = (Some("nats://10.0.0.9:4222".into()), Some(at(60)));
        *ready = super::super::answers::Readiness {
            reason: Some("9 rows are not published".into()),
            ..Default::default()
        };
    });
    let found = of(away);
    assert_eq!(found.len(), 1, "one cause is told once: {found:#?}");
    assert_eq!(found[0].what, "NATS is away: nothing is published");
    assert_eq!(found[0].facts, ["nats://10.0.0.9:4222", "connection refused"]);
    assert_eq!(found[0].since, Some(at(60)));
}

/// A frozen broker keeps its connections open.
#[test]
fn a_relay_without_an_answer_for_long_is_told_before_it_is_cut_off() {
    let with = |in_flight, age| {
        of(with_relay(|it, _| {
            (it.in_flight_events, it.last_progress_age_seconds) = (in_flight, Some(age));
        }))
    };
    assert!(with(0, 42.0).is_empty() && with(3, 4.0).is_empty());
    let found = &with(3, 7.0)[0];
    assert_eq!(found.what, "NATS acknowledged no event for 7 s");
    assert_eq!(found.facts, ["3 events are in flight"]);
}

#[test]
fn what_stops_comes_before_what_waits() {
    let mut trouble = with_relay(|it, _| {
        let slot = r#"{"wal_status": "reserved", "retained_bytes": 12025908429,
            "wal_headroom_bytes": 9449000000, "wal_headroom_seconds": 20400}"#;
        it.slot = serde_json::from_str(slot).expect("readable");
    });
    let groups =
        vec![group(2, "payload exceeds <n> bytes"), group(4, "waits for <id>, an earlier")];
    let mut books = RelayBooks::default();
    (books.letters.total, books.letters.groups) = (6, groups);
    trouble.relays[0].books = Some(Ok(books));
    let found = of(trouble);
    let subjects: Vec<_> = found.iter().map(|it| &*it.subject).collect();
    assert_eq!(subjects, ["relay", "2 dead letters"]);
    assert_eq!(found[0].what, "the slot keeps 11 GiB of 20 GiB of log");
    assert_eq!(found[0].facts, ["full in 5 h 40 min at this rate"]);
    assert_eq!(found[1].facts, ["2 aggregates", "4 events wait behind them"]);
    let act = found[1].act.as_ref().expect("it can be requeued");
    assert!(act.path.ends_with("source=relay&reason=payload%20exceeds%20"), "{}", act.path);
}

#[test]
fn an_open_breaker_says_why_and_until_when() {
    let mut open = round();
    if let Ok((status, _)) = &mut open.inboxes[0].processes[0].1 {
        let it = status.consumers.get_mut("mailer").expect("it is there");
        it.handler.breaker = "open".into();
        it.handler.next_probe_at = Some(at(160));
        it.paused = Some("the handler is away: 503".into());
    }
    let found = of(open);
    assert_eq!(found[0].what, "breaker open: the handler is away: 503");
    assert_eq!(found[0].facts, ["42 wait", "oldest 2 s"]);
    assert_eq!(found[0].next, Some(at(160)));
    let act = found[0].act.as_ref().expect("it can be closed");
    assert_eq!((&*act.path, act.is_change), ("/consumers/inbox/mailer/close-breaker", true));
}

#[test]
fn a_consumer_that_works_and_has_much_before_it_is_behind() {
    let mut behind = round();
    if let Ok((status, _)) = &mut behind.inboxes[0].processes[0].1 {
        status.consumers.get_mut("mailer").expect("it is there").pending = Some(12_245);
    }
    assert_eq!(of(behind.clone())[0].what, "behind");
    let mut later = behind.clone();
    if let Ok((status, _)) = &mut later.inboxes[0].processes[0].1 {
        let mailer = status.consumers.get_mut("mailer").expect("it is there");
        mailer.counts.processed = 950;
        mailer.attempt_duration.buckets = vec![(-48, 98), (8, 2)];
    }
    let why = "behind: handles 50 a second, an attempt takes 16 ms (p99 2.0 s)";
    assert_eq!(needs(&picture([behind, later]), at(100))[0].what, why);
}

/// They are no ten thousand, and the oldest waits for twelve minutes.
#[test]
fn a_consumer_with_an_old_backlog_is_behind_and_says_until_when() {
    let waits = |pending| {
        let mut round = round();
        if let Ok((status, _)) = &mut round.inboxes[0].processes[0].1 {
            status.consumers.get_mut("mailer").expect("it is there").pending = Some(pending);
        }
        if let Some(Ok(books)) = &mut round.inboxes[0].books {
            books.consumers[0].oldest_seconds = Some(720.0);
        }
        round
    };
    let falling = picture((0..20).map(|second| waits(6_000 - 100 * second)));
    let found = needs(&falling, at(19));
    assert!(found[0].what.starts_with("behind: handles "), "{found:?}");
    assert!(found[0].what.contains(", catches up in about "), "{found:?}");
    let growing = picture((0..20).map(|second| waits(5_000 + 100 * second)));
    assert!(!needs(&growing, at(19))[0].what.contains("catches up"));
    assert_eq!(needs(&picture([waits(20)]), at(1)), []);
}

/// One that is tried again in a moment needs nobody.
#[test]
fn an_event_that_keeps_failing_is_named_with_what_waits_for_it() {
    let failing = |attempts: u64, next: i64| {
        let mut round = round();
        if let Some(Ok(books)) = &mut round.inboxes[0].books {
            let it = |id: &str| Failing {
                event_id: id.into(),
                attempts,
                last_error: "\n500: no stock\n  at Shop".into(),
                next_attempt_at: Some(at(next)),
            };
            books.consumers[0].failing = vec![it("e1"), it("e2")];
        }
        if let Ok((status, _)) = &mut round.inboxes[0].processes[0].1 {
            let held_up = r#"[{"event_id": "e1", "aggregate": "order:o-1", "waiting": 3}]"#;
            let it = status.consumers.get_mut("mailer").expect("it is there");
            it.held_up = serde_json::from_str(held_up).expect("readable");
        }
        of(round)
    };
    assert_eq!(failing(1, 110), []);
    for found in [failing(1, 8_000), failing(2, 142)] {
        assert_eq!(found[0].what, "order:o-1 waits for an event that fails: 500: no stock");
    }
    let found = failing(2, 142);
    assert_eq!((found[0].weight, &*found[0].path), (Weight::Waits, "/consumers/inbox/mailer"));
    let facts = ["3 events wait behind", "attempt 2", "next in 42 s", "1 event more"];
    assert_eq!(found[0].facts, facts);
    let act = found[0].act.as_ref().expect("it can be tried");
    assert_eq!(act.path, "/consumers/inbox/mailer/try-now?event=e1");
}

#[test]
fn who_paused_a_consumer_is_named() {
    let mut paused = round();
    let mut books = InboxBooks::default();
    let consumer = r#"{"name": "mailer", "pause": {"by": "ada", "why": "repair"}}"#;
    books.consumers = vec![serde_json::from_str(consumer).expect("readable")];
    paused.inboxes[0].books = Some(Ok(books));
    assert_eq!(of(paused)[0].what, "paused by ada: repair");
}

#[test]
fn one_process_of_several_may_be_away() {
    let mut away = round();
    let second = ("10.0.0.3:9464".to_owned(), Err(failure("connection refused")));
    away.relays[0].processes.push(second);
    let found = of(away.clone());
    assert_eq!((found[0].weight, &*found[0].what), (Weight::Look, "connection refused"));
    away.relays[0].processes.drain(..1);
    assert_eq!(of(away)[0].weight, Weight::Stops);
}
