//! The states of a scan.

use super::*;
use crate::engine::effect::ScanRange;

/// What the slot does not bring, once all of it is visible.
const VISIBLE: Sees = Sees::BeforeSlot { awaits_visibility: true };
const INTERVAL: Duration = Duration::from_mins(1);
const QUIET: Scene = Scene {
    is_behind: false,
    is_draining: false,
    is_blocking: false,
    is_idle: true,
    may_scan: true,
};

fn backfill(first: bool, is_gap_open: bool) -> Backfill {
    Backfill::new(first, ScanRanges::new(true, is_gap_open, None), is_gap_open, INTERVAL)
}

fn begins(backfill: &mut Backfill, now: Duration, scene: Scene) -> Option<OpenScan> {
    let mut effects = Effects::new();
    backfill.begin_if_due(now, scene, &mut effects);
    opened(&effects)
}

fn opened(effects: &Effects) -> Option<OpenScan> {
    let open = |it: &Effect| {
        let Effect::Scan(ScanEffect::Open(open)) = it else { return None };
        Some(*open)
    };
    effects.iter().find_map(open)
}

/// One scan that finds nothing.
fn scan_nothing(backfill: &mut Backfill, now: Duration) {
    let mut effects = Effects::new();
    backfill.read_to_end(false, &mut effects);
    backfill.closed(now, &mut effects);
}

#[test]
fn scans_are_seldom_until_the_session_has_not_been_behind_for_a_while() {
    let mut seldom = backfill(false, false);
    assert!(begins(&mut seldom, INTERVAL / 2, QUIET).is_none(), "not due");
    let behind = Scene { is_behind: true, ..QUIET };
    assert!(begins(&mut seldom, INTERVAL, behind).is_none());
    assert!(begins(&mut seldom, INTERVAL * 2 - Duration::from_secs(1), QUIET).is_none());
    assert!(begins(&mut seldom, INTERVAL * 2, QUIET).is_some());
    let mut first = backfill(true, true);
    assert!(begins(&mut first, INTERVAL, behind).is_some(), "the log waits for it");
    let mut seldom = backfill(false, false);
    for second in 60..660 {
        let opened = begins(&mut seldom, Duration::from_secs(second), behind);
        assert!(opened.is_none(), "{second}");
    }
    assert!(begins(&mut seldom, Duration::from_secs(660), behind).is_some());
}

#[test]
fn the_log_waits_for_the_first_scan_until_that_is_closed_and_not_while_it_is_locked_out() {
    let (mut first, mut effects) = (backfill(true, true), Effects::new());
    first.begin_first(Duration::ZERO, &mut effects);
    let open = opened(&effects).expect("a scan");
    assert!(open.sees == VISIBLE && !open.log_waits && !open.read.opens_gap);
    first.postponed(Duration::ZERO);
    assert!(first.holds_the_log_back(), "the first scan was not finished");
    assert!(begins(&mut first, Duration::ZERO, QUIET).is_none());
    assert!(begins(&mut first, AGAIN_AFTER, QUIET).is_some());
    scan_nothing(&mut first, AGAIN_AFTER);
    assert!(!first.holds_the_log_back());
}

#[test]
fn a_gap_is_not_filled_while_a_row_is_published_and_not_marked() {
    let (mut backfill, mut effects) = (backfill(true, true), Effects::new());
    backfill.begin_first(Duration::ZERO, &mut effects);
    assert_eq!(backfill.read_batch(Duration::ZERO, 7, true, &mut effects), 1);
    assert!(matches!(effects.back(), Some(Effect::Tell(Notice::ScanFound))), "{effects:?}");
    backfill.advance(Duration::ZERO, 0, true, false, &mut effects);
    scan_nothing(&mut backfill, Duration::ZERO);
    effects.clear();
    backfill.advance(Duration::ZERO, 0, true, false, &mut effects);
    assert!(effects.is_empty() && !backfill.is_clear(), "one is on its way: {effects:?}");
    backfill.advance(Duration::ZERO, 1, true, false, &mut effects);
    assert!(
        matches!(*effects.make_contiguous(), [Effect::Scan(ScanEffect::Mark { batches: 1, .. })]),
        "{effects:?}"
    );
    backfill.not_marked(Duration::ZERO, 1, Vec::new());
    effects.clear();
    backfill.advance(AGAIN_AFTER / 2, 1, true, false, &mut effects);
    assert!(effects.is_empty(), "it is locked: {effects:?}");
    backfill.advance(AGAIN_AFTER, 1, true, false, &mut effects);
    assert!(
        matches!(*effects.make_contiguous(), [Effect::Scan(ScanEffect::Mark { batches: 1, .. })]),
        "{effects:?}"
    );
    backfill.marked(1);
    effects.clear();
    backfill.advance(AGAIN_AFTER, 0, true, true, &mut effects);
    assert!(effects.is_empty(), "the checkpoint is being written: {effects:?}");
    backfill.advance(AGAIN_AFTER, 0, true, false, &mut effects);
    assert!(
        matches!(*effects.make_contiguous(), [Effect::Scan(ScanEffect::NoteGapFilled { rows: 1 })]),
        "{effects:?}"
    );
    assert!(!backfill.is_clear(), "not yet");
    backfill.gap_noted(true);
    assert!(backfill.is_clear() && backfill.is_resting());
}

/// What it brought would be published while it is written down that nothing is.
#[test]
fn no_scan_begins_while_the_gap_is_noted_as_filled() {
    let (mut backfill, mut effects) = (backfill(true, true), Effects::new());
    backfill.begin_first(Duration::ZERO, &mut effects);
    scan_nothing(&mut backfill, Duration::ZERO);
    backfill.advance(Duration::ZERO, 0, true, false, &mut effects);
    assert!(begins(&mut backfill, INTERVAL, QUIET).is_none(), "it is being written down");
    backfill.gap_noted(false);
    let open = begins(&mut backfill, INTERVAL, QUIET).expect("a scan");
    assert!(open.sees == VISIBLE && !open.read.opens_gap, "the gap is as open as it was");
    scan_nothing(&mut backfill, INTERVAL);
    effects.clear();
    backfill.advance(INTERVAL, 0, true, false, &mut effects);
    backfill.gap_noted(true);
    let open = begins(&mut backfill, INTERVAL * 2, QUIET).expect("a scan");
    assert!(open.read.opens_gap && open.sees != VISIBLE);
}

#[test]
fn nothing_is_held_open_for_a_broker_that_makes_no_room_or_for_others_who_wait() {
    for in_the_way in [false, true] {
        let (mut backfill, mut effects) = (backfill(true, true), Effects::new());
        backfill.begin_first(Duration::ZERO, &mut effects);
        backfill.read_batch(Duration::ZERO, 7, true, &mut effects);
        effects.clear();
        backfill.watch(WATCHED_EVERY, &mut effects);
        assert!(
            matches!(*effects.make_contiguous(), [Effect::Scan(ScanEffect::Watch { process: 7 })]),
            "{effects:?}"
        );
        backfill.watched(in_the_way);
        backfill.advance(WATCHED_EVERY, 0, in_the_way, false, &mut effects);
        let now = if in_the_way { WATCHED_EVERY } else { OPEN_WITHOUT_ROOM_MAX * 2 };
        effects.clear();
        backfill.watch(now, &mut effects);
        assert!(
            matches!(*effects.make_contiguous(), [Effect::Scan(ScanEffect::Abandon { gives_way })] if gives_way == in_the_way),
            "{effects:?}"
        );
        assert!(begins(&mut backfill, now, QUIET).is_none(), "a row is not marked");
        backfill.advance(now, 1, true, false, &mut effects);
        backfill.marked(1);
        assert!(begins(&mut backfill, now, QUIET).is_some(), "the rest");
    }
}

#[test]
fn the_log_waits_for_blocked_aggregates_only_while_a_scan_releases_them() {
    let mut backfill = backfill(false, false);
    let blocked = Scene { is_blocking: true, is_idle: false, ..QUIET };
    assert!(begins(&mut backfill, INTERVAL, blocked).is_none(), "events are on their way");
    assert!(backfill.holds_the_log_back());
    let open = begins(&mut backfill, INTERVAL, Scene { is_idle: true, ..blocked });
    assert!(open.is_some_and(|it| it.log_waits));
    backfill.postponed(INTERVAL);
    assert!(!backfill.holds_the_log_back(), "somebody has it locked: events go on");
}

/// What becomes visible later is looked for as well, and nothing of it is written down.
#[test]
fn while_a_slot_is_awaited_scans_follow_each_other_and_the_gap_stays_open() {
    let (mut backfill, mut effects) = (Backfill::without_slot(), Effects::new());
    backfill.begin_first(Duration::ZERO, &mut effects);
    let open = opened(&effects).expect("a scan");
    assert!(open.sees == Sees::BeforeAwaitedSlot && open.range == ScanRange::Whole);
    for pass in 1..4 {
        scan_nothing(&mut backfill, Duration::ZERO);
        effects.clear();
        let now = WITHOUT_SLOT_EVERY * pass;
        backfill.advance(now, 0, true, false, &mut effects);
        assert!(effects.is_empty() && !backfill.is_clear(), "it is not to be noted: {effects:?}");
        let open = begins(&mut backfill, now, QUIET).expect("another scan");
        assert!(open.sees == Sees::BeforeAwaitedSlot && open.range == ScanRange::Whole);
        assert!(open.read.flushes_log && !open.read.opens_gap);
    }
}
