use outbox::Event;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

/// A replay that has begun, of which nothing is noted.
fn begun(stored: &[Uuid]) -> Replaying {
    let mut replaying = Replaying::new(true);
    let stored = stored.iter().copied().collect();
    let (place, published, seq) = (0, 0, 10);
    let start = ReplayStart { id: id(1), place, published, seq, stored, per_second: None };
    replaying.begun(Duration::ZERO, Some(start));
    replaying
}

fn row(place: i64) -> ReplayRow {
    let event = Event::new("t", "a", "e", &0).expect("valid");
    let subject = Ok("s".into());
    let tried = crate::engine::Tried::default();
    let outgoing = Outgoing { event, subject, seq: None, requeued: false, tried, replayed: None };
    ReplayRow { place, event: id(7), outgoing: Ok(outgoing.replayed(id(1), None)) }
}

fn page(from: i64, rows: i64) -> ReplayPage {
    let read_to = from + rows - 1;
    ReplayPage { rows: (from..=read_to).map(row).collect(), read_to, is_end: false, is_gone: None }
}

/// Hands over the next copy, and says what became of it.
fn hand_over(replaying: &mut Replaying, now: Duration, how: Result<(), String>) {
    let run = replaying.run().expect("it runs");
    let copy = run.next(now, 20).expect("a copy").event.id;
    run.done(copy, how);
}

fn notes(replaying: &mut Replaying, now: Duration) -> Vec<ReplayNote> {
    let mut effects = Effects::new();
    replaying.advance(now, 20, false, &mut effects);
    let note = |effect| {
        let Effect::Replay(ReplayEffect::Note(note)) = effect else { return None };
        Some(note)
    };
    effects.into_iter().filter_map(note).collect()
}

fn failed() -> ReplayUnread {
    ReplayUnread::Failed("no free slot".into())
}

#[test]
fn a_page_of_another_replay_or_place_is_not_taken() {
    let mut replaying = begun(&[]);
    replaying.read(SECOND, id(2), 0, Ok(page(1, 3)));
    replaying.read(SECOND, id(1), 3, Ok(page(4, 3)));
    assert!(replaying.run().expect("it runs").reading.rows.is_empty());
    replaying.read(SECOND, id(1), 0, Ok(page(1, 3)));
    assert_eq!(replaying.run().expect("it runs").reading.rows.len(), 3);
}

#[test]
fn what_could_not_be_read_is_not_asked_for_at_once() {
    let mut replaying = begun(&[]);
    let reads = |replaying: &mut Replaying, now| {
        let mut effects = Effects::new();
        replaying.advance(now, 20, false, &mut effects);
        effects.iter().filter(|it| matches!(it, Effect::Replay(ReplayEffect::Read { .. }))).count()
    };
    assert_eq!(reads(&mut replaying, Duration::ZERO), 1);
    replaying.read(SECOND, id(1), 0, Err(failed()));
    assert_eq!(reads(&mut replaying, SECOND), 0);
    assert_eq!(reads(&mut replaying, 2 * SECOND), 1);
}

#[test]
fn what_cannot_be_read_pauses_a_replay_with_the_reason() {
    let mut replaying = begun(&[]);
    let run = |replaying: &mut Replaying| replaying.run().expect("it runs").note.clone();
    // Others wait for that too.
    for _ in 0..100 {
        let away = ReplayUnread::Waits("locked".into());
        replaying.read(SECOND, id(1), 0, Err(away));
    }
    let note = run(&mut replaying);
    assert_eq!((note.waits_for.as_deref(), note.gives_up), (Some("locked"), None));
    for _ in 1..TRIES_MAX {
        replaying.read(SECOND, id(1), 0, Err(failed()));
    }
    replaying.read(SECOND, id(1), 0, Ok(page(1, 3)));
    assert_eq!(run(&mut replaying).waits_for, None, "it goes on");
    // The log is read from its beginning after each failure.
    let nothing_new = || ReplayPage { read_to: 3, ..page(1, 0) };
    for _ in 0..TRIES_MAX {
        assert_eq!(run(&mut replaying).gives_up, None);
        replaying.read(SECOND, id(1), 3, Ok(nothing_new()));
        replaying.read(SECOND, id(1), 3, Err(failed()));
    }
    assert_eq!(run(&mut replaying).gives_up.as_deref(), Some("no free slot"));
}

#[test]
fn what_stays_as_it_is_pauses_a_replay_at_once() {
    let mut replaying = begun(&[]);
    replaying.read(SECOND, id(1), 0, Err(ReplayUnread::Lasting("no such column".into())));
    let note = notes(&mut replaying, SECOND).remove(0);
    assert_eq!(note.gives_up.as_deref(), Some("no such column"));
    replaying.noted(SECOND, 0, Some(ReplayWish::Rest), &mut VecDeque::new());
    assert!(replaying.is_clear(), "it rests");
}

#[test]
fn a_replay_that_is_still_searching_ends_when_it_is_cancelled() {
    let mut replaying = begun(&[]);
    let mut effects = Effects::new();
    replaying.advance(SECOND, 20, false, &mut effects);
    assert!(effects.iter().any(|it| matches!(it, Effect::Replay(ReplayEffect::Read { .. }))));
    assert!(effects.iter().any(|it| matches!(it, Effect::Replay(ReplayEffect::Note(_)))));
    effects.clear();
    replaying.noted(SECOND, 0, Some(ReplayWish::Rest), &mut effects);
    assert_eq!(
        effects.pop_front().map(|it| matches!(it, Effect::Replay(ReplayEffect::End))),
        Some(true)
    );
    assert!(replaying.is_clear(), "others may begin");
    replaying.read(SECOND, id(1), 0, Ok(page(1, 3)));
    assert!(replaying.is_clear(), "what it read comes too late");
}

#[test]
fn what_a_failed_note_said_is_said_again() {
    let mut replaying = begun(&[]);
    replaying.read(Duration::ZERO, id(1), 0, Ok(page(1, 3)));
    hand_over(&mut replaying, SECOND, Ok(()));
    hand_over(&mut replaying, SECOND, Err("too large".into()));
    let first = notes(&mut replaying, SECOND);
    assert_eq!((first[0].place, first[0].published, first[0].problems.len()), (2, 1, 1));
    assert!(notes(&mut replaying, 3 * SECOND).is_empty(), "one at a time");
    replaying.noted(4 * SECOND, 1, None, &mut VecDeque::new());
    assert!(!replaying.is_noted());
    assert_eq!(notes(&mut replaying, 6 * SECOND), first);
    replaying.noted(6 * SECOND, 1, Some(ReplayWish::GoOn), &mut VecDeque::new());
    assert!(replaying.is_noted());
    assert!(notes(&mut replaying, 8 * SECOND)[0].problems.is_empty());
}

#[test]
fn refusals_in_a_row_pause_a_replay_and_rows_that_are_gone_do_not() {
    let mut replaying = begun(&[]);
    let mut rows = page(1, 500);
    for row in rows.rows.iter_mut().skip(1).take(200) {
        row.outgoing = Err("its row is gone".into());
    }
    replaying.read(Duration::ZERO, id(1), 0, Ok(rows));
    hand_over(&mut replaying, SECOND, Ok(()));
    for _ in 0..REFUSED_MAX {
        hand_over(&mut replaying, SECOND, Err("not permitted".into()));
    }
    assert!(replaying.run().expect("it runs").next(SECOND, 20).is_none());
    let note = notes(&mut replaying, SECOND).remove(0);
    assert!(note.gives_up.is_some() && !note.is_done);
    replaying.noted(SECOND, note.problems.len(), Some(ReplayWish::GoOn), &mut VecDeque::new());
    assert!(replaying.is_clear(), "it rests");
}

#[test]
fn copies_that_were_noted_are_not_looked_for_for_ever() {
    let mut replaying = begun(&[id(99)]);
    let rows = i64::try_from(UNNOTED_MAX + READ_AHEAD).expect("small");
    replaying.read(Duration::ZERO, id(1), 0, Ok(page(1, rows)));
    for place in 1..=rows {
        hand_over(&mut replaying, SECOND, Ok(()));
        if place % 1_000 == 0 {
            let note = notes(&mut replaying, SECOND * u32::try_from(place).expect("small"));
            assert_eq!(note[0].seq, 10, "one may be beyond");
            replaying.noted(SECOND, 0, Some(ReplayWish::GoOn), &mut VecDeque::new());
        }
    }
    let last = notes(&mut replaying, SECOND * 100_000);
    assert_eq!(last[0].seq, 20);
}

/// Seed 40004120: what is before it waited, the session ended, and it was published once more.
#[test]
fn a_copy_of_an_earlier_session_is_looked_for_until_its_place_is_noted() {
    let page = page(1, 2);
    let second = page.rows[1].outgoing.as_ref().expect("a row").event.id;
    let mut replaying = begun(&[second]);
    replaying.read(Duration::ZERO, id(1), 0, Ok(page));
    let run = replaying.run().expect("it runs");
    let first = run.next(Duration::ZERO, 20).expect("a copy").event.id;
    assert!(run.next(Duration::ZERO, 20).is_none(), "the second is there");
    let note = notes(&mut replaying, SECOND).remove(0);
    assert_eq!((note.place, note.seq), (0, 10), "the second is behind this");
    replaying.noted(SECOND, 0, Some(ReplayWish::GoOn), &mut Effects::new());
    replaying.run().expect("it runs").done(first, Ok(()));
    let note = notes(&mut replaying, 2 * SECOND).remove(0);
    assert_eq!((note.place, note.published, note.seq), (2, 2, 20));
}
