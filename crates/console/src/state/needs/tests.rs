//! What needs a person is told, the worst first.

use super::super::answers::{Letter, Slot};
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

/// What is in flight changes at once, and rows are counted now and then.
#[test]
fn an_outage_has_one_count_and_one_card() {
    let waits = "the broker is away: could not look up the stream: timed out";
    let mut cut_off = with_relay(|it, _| {
        (it.nats_connected, it.breaker) = (false, "open".into());
        (it.unpublished, it.in_flight_events) = (Some(50), 250);
        it.breaker_retry_in_seconds = Some(86.0);
    });
    if let Ok((_, ready)) = &mut cut_off.inboxes[0].processes[0].1 {
        let it = ready.consumers.get_mut("mailer").expect("it is there");
        (it.ready, it.reason) = (false, Some(waits.into()));
    }
    let found = of(cut_off.clone());
    assert_eq!(found.len(), 1, "one cause is told once: {found:#?}");
    let facts = ["250 events wait", "tries again in 86 s at the latest", "mailer waits, too"];
    assert_eq!(found[0].facts, facts);
    let act = found[0].act.as_ref().expect("it can be looked at");
    assert_eq!((act.label, &*act.path, act.kind), ("Show the checks", "/checks", ActKind::Show));
    cut_off.relays = round().relays;
    let found = of(cut_off);
    assert_eq!((&*found[0].subject, &*found[0].what), ("mailer", "no answer from NATS"));
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
fn a_letter_that_blocks_is_named_by_its_aggregate() {
    let with = |letters: &[(&str, &str)]| {
        let letter = |(id, reason): &(&str, &str)| Letter {
            aggregate_type: Some("order".into()),
            aggregate_id: Some((*id).into()),
            reason: (*reason).into(),
            ..Letter::default()
        };
        let mut books = RelayBooks::default();
        (books.letters.total, books.letters.dead_letters) =
            (6, letters.iter().map(letter).collect());
        books.letters.groups =
            vec![group(1, "payload exceeds <n> bytes"), group(5, "waits for <id>, an earlier")];
        let mut round = round();
        round.relays[0].books = Some(Ok(books));
        round
    };
    let behind = [("o-88", "waits for e1, an earlier"); 5];
    let all = [&[("o-88", "payload exceeds 9 bytes")], &behind[..]].concat();
    let found = of(with(&all));
    assert_eq!(found[0].subject, "1 dead letter");
    assert_eq!(found[0].facts, ["order:o-88", "5 events wait behind it"]);
    assert_eq!(of(with(&behind))[0].facts, ["5 events wait behind it"], "not all are known");
    let mut several = Picture::new(vec!["relay".into(), "relay-2".into()], vec![]);
    let relays = vec![round().relays.remove(0), with(&all).relays.remove(0)];
    several.apply(at(0), Round { relays, inboxes: Vec::new() });
    let facts = ["order:o-88", "5 events wait behind it", "relay-2"];
    assert_eq!(needs(&several, at(1))[0].facts, facts);
}

fn with_slot(kept: u64, seconds: Option<u64>, nats_connected: bool) -> Round {
    with_relay(|it, _| {
        it.slot = Some(Slot {
            retained_bytes: kept << 20,
            wal_headroom_bytes: Some((2048 - kept) << 20),
            wal_headroom_seconds: seconds,
            ..Slot::default()
        });
        it.nats_connected = nats_connected;
    })
}

/// A relay that has much at once, after an outage, keeps more log for a moment.
#[test]
fn a_slot_that_is_nearly_empty_needs_nobody_unless_it_fills_within_an_hour() {
    assert_eq!(of(with_slot(5, Some(33_900), true)), []);
    let what = "the slot keeps 5.0 MiB of 2.0 GiB of log";
    assert_eq!(of(with_slot(5, Some(1_200), true))[0].what, what);
    assert_eq!(of(with_slot(500, Some(33_900), true)).len(), 1);
}

#[test]
fn a_slot_is_said_not_to_grow_only_if_it_did_not_for_a_minute() {
    let told = |rounds: Vec<Round>| {
        let last = i64::try_from(rounds.len()).expect("few") - 1;
        let picture = picture(rounds);
        let (_, shard) = picture.relays[0].shards()[0];
        headroom(&picture, shard, at(last)).expect("it has a slot")
    };
    let still = || (0..70).map(|_| with_slot(8, None, true)).collect::<Vec<_>>();
    assert_eq!(told(still()), "2.0 GiB more; it does not grow");
    assert_eq!(told(vec![with_slot(8, None, false)]), "2.0 GiB more");
    let rises = (0..70).map(|second| with_slot(8 + second / 9, None, true)).collect();
    assert_eq!(told(rises), "2.0 GiB more");
    let seconds = vec![with_slot(500, Some(33_900), true)];
    assert_eq!(told(seconds), "1.5 GiB more, in 9 h 25 min at this rate");
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
    assert_eq!((&*act.path, act.kind), ("/consumers/inbox/mailer/close-breaker", ActKind::Change));
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

/// Long before the oldest is a minute old, and not once more for each event beside the limit.
#[test]
fn a_consumer_for_which_more_comes_than_it_handles_is_behind_until_it_has_caught_up() {
    let with = |second: u64, pending| {
        let mut round = round();
        if let Ok((status, _)) = &mut round.inboxes[0].processes[0].1 {
            let it = status.consumers.get_mut("mailer").expect("it is there");
            (it.pending, it.counts.processed) = (Some(pending), 900 + 10 * second);
        }
        round
    };
    let is_behind = |waiting: &dyn Fn(u64) -> u64, seconds: u64| {
        let rounds = (0..=seconds).map(|second| with(second, waiting(second)));
        let found = needs(&picture(rounds), at(i64::try_from(seconds).expect("few")));
        found.first().is_some_and(|it| it.what.starts_with("behind: handles 10 a second"))
    };
    let grows = |second: u64| 50 * second;
    assert!(is_behind(&grows, 20) && !is_behind(&grows, 5), "300 are half a minute of work");
    assert!(!is_behind(&|second| 4 * second, 30), "they are few");
    assert!(!is_behind(&|_| 2_000, 30), "it keeps up");
    assert!(!is_behind(&|second| 9_000 - 10 * second, 30), "it catches up");
    assert!((10..40).all(|seconds| !is_behind(&|second| 290 + 20 * (second % 2), seconds)));
    // Past the limit, and then down to half of it.
    let falls = |second: u64| if second < 20 { grows(second) } else { 1_000 - 30 * (second - 20) };
    assert!((20..=46).all(|seconds| is_behind(&falls, seconds)));
    assert!(!is_behind(&falls, 52));
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
