//! Each effect that the engine may ask for is given to the shell, and something happens.

use std::time::Duration;

use pgoutput::Lsn;
use uuid::Uuid;

use super::*;
use crate::config::{Config, Mode, PollConfig, ScanConfig};
use crate::engine::{
    BooksEffect, BooksInput, BrokerInput, ClaimsEffect, ClaimsInput, Found, Input, MarkingEffect,
    MarkingInput, NotedPlace, Notice, OpenScan, Pass, Place, ReadScan, ReplayEffect, ReplayInput,
    ReplayNote, RowsEffect, ScanEffect, ScanInput, ScanRange, Sees, Statement, SweepRange, Verdict,
    Watermark,
};
use crate::source::Done;
use crate::source::tests::Sign::{
    Brings, Changes, Ends, EndsSpan, IsBug, Logged, Reconnects, Reported,
};
use crate::source::tests::{
    ATTEMPTS, MARKED, OWED, PARKED, Shell, Sign, dead, notice_after, row, stored,
};

const SECOND_WRITERS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailpost marks 2'";
const SCANNERS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailpost scanner'";
const SAID: &str =
    "SELECT max(query_start) FROM pg_stat_activity WHERE application_name = 'tailpost poll'";
const READERS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailpost replay'";

const REPLAY: Uuid = Uuid::from_u128(77);
const ASK_REPLAY: &str = "
    INSERT INTO tailpost_replays (id, slot, source, stream, asked_by, reason, last_place, events)
    VALUES (lpad(to_hex(77), 32, '0')::uuid, 'tailpost', 'table', 'OUTBOX', 'ada', 'a test', 1, 1);
    INSERT INTO tailpost_replay_events (replay, place, event)
    SELECT r.id, 1, o.id FROM tailpost_replays r, outbox_events o WHERE o.aggregate_id = '1'";

const READ: ReadScan = ReadScan { with_tail: true, opens_gap: true, flushes_log: true };
const BEFORE_SLOT: Sees = Sees::BeforeSlot { awaits_visibility: true };
const OPEN: OpenScan =
    OpenScan { range: ScanRange::Whole, log_waits: false, sees: BEFORE_SLOT, read: READ };

/// An effect, and what shows that it was carried out.
type Step<E> = Option<(E, Sign)>;

fn pass(at: &Watermark) -> Pass {
    let (watermark, range) = (at.clone(), SweepRange::Whole);
    Pass { watermark, swept: None, range, sweeps_dead: true, takes_long: false, stream_end: 0 }
}

fn nothing_found() -> Found {
    Found { rows: Vec::new(), transaction: 1, oldest_running: 1 }
}

fn published(n: u128) -> Verdict {
    Verdict { resolved: vec![stored(n)], ..Verdict::default() }
}

/// The first effect of a part, or the one behind this. Each of these names all effects: one that is
/// added has to get its place.
fn books_after(last: Option<&BooksEffect>) -> Step<BooksEffect> {
    Some(match last {
        None => {
            let place = NotedPlace::Unchanged;
            let checkpoint = "SELECT checkpoint_lsn FROM tailpost_state";
            (BooksEffect::Checkpoint { at: Lsn(1), place, stream_end: 0 }, Changes(checkpoint))
        }
        Some(BooksEffect::Checkpoint { .. }) => {
            (BooksEffect::Heartbeat, Changes("SELECT pg_current_wal_insert_lsn()"))
        }
        Some(BooksEffect::Heartbeat) => (
            BooksEffect::LookAtSlot,
            Brings(|it| matches!(it, Done::Input(Input::Books(BooksInput::Slot(_))))),
        ),
        // This one is there.
        Some(BooksEffect::LookAtSlot) => (BooksEffect::AwaitSlot, IsBug),
        Some(BooksEffect::AwaitSlot) => return None,
    })
}

/// Over the table a row is written to over the connection of its claim.
fn rows_after(last: Option<&RowsEffect>, claim: Option<u32>) -> Step<RowsEffect> {
    Some(match last {
        None => (RowsEffect::Park { claim, batch: vec![(1, dead(2))] }, Changes(PARKED)),
        Some(RowsEffect::Park { .. }) => {
            let (reason, pause) = ("refused".into(), Duration::ZERO);
            (RowsEffect::NoteFailure { claim, id: row(3), reason, pause }, Changes(ATTEMPTS))
        }
        Some(RowsEffect::NoteFailure { .. }) => (RowsEffect::MakeUpForMarks, Changes(OWED)),
        Some(RowsEffect::MakeUpForMarks) => return None,
    })
}

fn marking_after(last: Option<&MarkingEffect>, at: &Watermark) -> Step<MarkingEffect> {
    let (pass, found) = (pass(at), nothing_found());
    Some(match last {
        None => {
            let (statement, marks) = (Statement::of_first(1), vec![stored(1)]);
            (MarkingEffect::Mark { statement, marks }, Changes(MARKED))
        }
        Some(MarkingEffect::Mark { .. }) => {
            (MarkingEffect::OpenSecondWriter, Changes(SECOND_WRITERS))
        }
        Some(MarkingEffect::OpenSecondWriter) => {
            (MarkingEffect::CloseSecondWriter, Changes(SECOND_WRITERS))
        }
        Some(MarkingEffect::CloseSecondWriter) => {
            let is_taken = |it: &_| {
                matches!(it, Done::Input(Input::Marking(MarkingInput::Watermark(Some(_)))))
            };
            (MarkingEffect::TakeWatermark, Brings(is_taken))
        }
        Some(MarkingEffect::TakeWatermark) => {
            let watermark = "SELECT watermark_lsn FROM tailpost_state";
            (MarkingEffect::StoreWatermark(pass), Changes(watermark))
        }
        Some(MarkingEffect::StoreWatermark(_)) => {
            let has_rows =
                |it: &_| matches!(it, Done::Unmarked(Some((it, Some(_)))) if !it.rows.is_empty());
            (MarkingEffect::SweepOn { pass, found }, Brings(has_rows))
        }
        Some(MarkingEffect::SweepOn { .. }) => {
            let is_read =
                |it: &_| matches!(it, Done::Input(Input::Marking(MarkingInput::StreamBack { .. })));
            (MarkingEffect::ReadStreamBack { found, resolved_before: None }, Brings(is_read))
        }
        Some(MarkingEffect::ReadStreamBack { .. }) => {
            (MarkingEffect::Seek { pass, found, verdict: published(4) }, Changes(MARKED))
        }
        Some(MarkingEffect::Seek { .. }) => {
            (MarkingEffect::MarkSwept { found, verdict: published(5) }, Changes(MARKED))
        }
        Some(MarkingEffect::MarkSwept { .. }) => {
            (MarkingEffect::NoteSweep, Changes("SELECT whole_swept_at FROM tailpost_state"))
        }
        Some(MarkingEffect::NoteSweep) => return None,
    })
}

fn scan_after(last: Option<&ScanEffect>) -> Step<ScanEffect> {
    let has_rows = |it: &_| matches!(it, Done::Scanned(it) if !it.rows.is_empty());
    Some(match last {
        None => (ScanEffect::Open(OPEN), Brings(has_rows)),
        Some(ScanEffect::Open(_)) => (ScanEffect::Read(READ), Brings(has_rows)),
        Some(ScanEffect::Read(_)) => {
            let is_looked =
                |it: &_| matches!(it, Done::Input(Input::Scan(ScanInput::Watched(false))));
            (ScanEffect::Watch { process: 1 }, Brings(is_looked))
        }
        Some(ScanEffect::Watch { .. }) => (ScanEffect::Close, Changes(SCANNERS)),
        // A scan is open again by then.
        Some(ScanEffect::Close) => (ScanEffect::Abandon { gives_way: true }, Changes(SCANNERS)),
        Some(ScanEffect::Abandon { .. }) => {
            let published = vec![stored(7)];
            (ScanEffect::Mark { batches: 1, published }, Changes(MARKED))
        }
        Some(ScanEffect::Mark { .. }) => {
            let filled = "SELECT gap_filled_at FROM tailpost_state";
            (ScanEffect::NoteGapFilled { rows: 1 }, Changes(filled))
        }
        Some(ScanEffect::NoteGapFilled { .. }) => {
            (ScanEffect::Note, Changes("SELECT scanned_at FROM tailpost_state"))
        }
        Some(ScanEffect::Note) => return None,
    })
}

fn replay_after(last: Option<&ReplayEffect>) -> Step<ReplayEffect> {
    Some(match last {
        None => {
            let is_found =
                |it: &_| matches!(it, Done::Input(Input::Replay(ReplayInput::Found(Some(REPLAY)))));
            (ReplayEffect::LookFor, Brings(is_found))
        }
        Some(ReplayEffect::LookFor) => {
            (ReplayEffect::Begin(REPLAY), Brings(|it| matches!(it, Done::Replaying(_))))
        }
        Some(ReplayEffect::Begin(_)) => {
            let is_read = |it: &_| matches!(it, Done::ReplayRead((REPLAY, 0), Ok(_)));
            (ReplayEffect::Read { id: REPLAY, after: 0 }, Brings(is_read))
        }
        Some(ReplayEffect::Read { .. }) => {
            let note = ReplayNote {
                id: REPLAY,
                place: 1,
                published: 1,
                seq: 1,
                problems: Vec::new(),
                is_done: true,
                waits_for: None,
                gives_up: None,
            };
            (ReplayEffect::Note(note), Changes("SELECT place FROM tailpost_replays"))
        }
        Some(ReplayEffect::Note(_)) => (ReplayEffect::End, Changes(READERS)),
        Some(ReplayEffect::End) => return None,
    })
}

/// Claim 1 is held.
fn claims_after(last: Option<&ClaimsEffect>) -> Step<ClaimsEffect> {
    let claim = 1;
    Some(match last {
        None => {
            let has_rows = |it: &_| matches!(it, Done::Claimed { rows, .. } if !rows.is_empty());
            (ClaimsEffect::Claim { claim: 3 }, Brings(has_rows))
        }
        Some(ClaimsEffect::Claim { .. }) => (ClaimsEffect::Renew { claim }, Changes(SAID)),
        Some(ClaimsEffect::Renew { .. }) => {
            (ClaimsEffect::Mark { claim, published: vec![stored(1)] }, Changes(MARKED))
        }
        Some(ClaimsEffect::Mark { .. }) => {
            (ClaimsEffect::GiveBack { claim, published: vec![stored(4)] }, Changes(MARKED))
        }
        Some(ClaimsEffect::GiveBack { .. }) => {
            let is_looked =
                |it: &_| matches!(it, Done::Input(Input::Claims(ClaimsInput::Looked(_))));
            (ClaimsEffect::LookAtTail { from: 1 }, Brings(is_looked))
        }
        Some(ClaimsEffect::LookAtTail { .. }) => return None,
    })
}

fn broker_after(last: Option<&BrokerEffect>) -> Step<BrokerEffect> {
    Some(match last {
        None => {
            let is_read = |it: &_| matches!(it, Done::Input(Input::Broker(BrokerInput::Tail(_))));
            (BrokerEffect::ReadTail { from: 1, delay: Duration::ZERO }, Brings(is_read))
        }
        Some(BrokerEffect::ReadTail { .. }) => {
            let is_lacking = |it: &_| {
                matches!(
                    it,
                    Done::Input(Input::Broker(BrokerInput::LookedUp { is_there: false, .. }))
                )
            };
            let look = BrokerEffect::LookUp { epoch: 0, index: 0, seq: 1, id: Uuid::max() };
            (look, Brings(is_lacking))
        }
        Some(BrokerEffect::LookUp { .. }) => (BrokerEffect::LeaveServer, Reconnects),
        Some(BrokerEffect::LeaveServer) => return None,
    })
}

fn notice(last: Option<&Notice>) -> Step<Notice> {
    let notice = notice_after(last)?;
    let is_copy = matches!(notice, Notice::NotReplayed { .. });
    let is_slot = matches!(notice, Notice::Slot { notice: None, .. });
    let elsewhere = if is_slot { Reported } else { Logged };
    Some((notice, if is_copy { EndsSpan } else { elsewhere }))
}

fn end_after(last: Option<&End>) -> Step<End> {
    let reason = || String::from("no batches");
    Some(match last {
        None => (End::Refused(reason()), Ends(|it| matches!(it, Error::Refused(_)))),
        Some(End::Refused(_)) => (End::Silence, Ends(|it| matches!(it, Error::Stalled(_)))),
        Some(End::Silence) => {
            (End::LeaveFence(reason()), Ends(|it| matches!(it, Error::Unfenced { .. })))
        }
        Some(End::LeaveFence(_)) => (End::ClaimLost, Ends(|it| matches!(it, Error::Stalled(_)))),
        Some(End::ClaimLost) => (End::Bug("a test"), IsBug),
        Some(End::Bug(_)) => (End::StreamIsShorter, Ends(|it| matches!(it, Error::Stalled(_)))),
        Some(End::StreamIsShorter) => return None,
    })
}

fn of<E>(part: fn(E) -> Effect, step: Step<E>) -> Step<Effect> {
    step.map(|(effect, sign)| (part(effect), sign))
}

/// What a session has no part for.
fn never<E>(part: fn(E) -> Effect, step: Step<E>) -> Step<Effect> {
    step.map(|(effect, _)| (part(effect), IsBug))
}

fn effect_after(last: Option<&Effect>, at: &Watermark, claim: Option<u32>) -> Step<Effect> {
    let is_log = claim.is_none();
    let rows = |last| of(Effect::Rows, rows_after(last, claim));
    let broker = |last| of(Effect::Broker, broker_after(last));
    let tell = |last| of(Effect::Tell, notice(last));
    let end = |last| of(Effect::End, end_after(last));
    let books = |last| if is_log { of } else { never }(Effect::Books, books_after(last));
    let marking = |last| if is_log { of } else { never }(Effect::Marking, marking_after(last, at));
    let scan = |last| if is_log { of } else { never }(Effect::Scan, scan_after(last));
    let replay = |last| if is_log { of } else { never }(Effect::Replay, replay_after(last));
    let claims = |last| if is_log { never } else { of }(Effect::Claims, claims_after(last));
    let sign = || if is_log { Changes(CONFIRMED) } else { IsBug };
    let confirm = || Some((Effect::Confirm(at.lsn), sign()));
    match last {
        None => books(None),
        Some(Effect::Books(it)) => books(Some(it)).or_else(|| rows(None)),
        Some(Effect::Rows(it)) => rows(Some(it)).or_else(|| marking(None)),
        Some(Effect::Marking(it)) => marking(Some(it)).or_else(|| scan(None)),
        Some(Effect::Scan(it)) => scan(Some(it)).or_else(|| replay(None)),
        Some(Effect::Replay(it)) => replay(Some(it)).or_else(|| claims(None)),
        Some(Effect::Claims(it)) => claims(Some(it)).or_else(|| broker(None)),
        Some(Effect::Broker(it)) => broker(Some(it)).or_else(confirm),
        Some(Effect::Confirm(_)) => Some((Effect::Measure(vec![stored(1)]), Reported)),
        Some(Effect::Measure(_)) => tell(None),
        Some(Effect::Tell(it)) => tell(Some(it)).or_else(|| end(None)),
        Some(Effect::End(it)) => end(Some(it)),
    }
}

/// All of them.
const EFFECTS: usize = 66;

const CONFIRMED: &str = "SELECT confirmed_flush_lsn FROM pg_replication_slots";

/// What the session does with what a job brought.
fn keep(source: &mut Source, done: Done) {
    match done {
        Done::SecondWriter(store) => {
            drop(source.replication().unwrap().second_opened(store, 0));
        }
        Done::Scanned(scanned) => drop(source.replication().unwrap().scanned(scanned).unwrap()),
        Done::Replaying(begun) => drop(source.replication().unwrap().replaying(*begun)),
        Done::Claimed { claim, store, rows } => {
            drop(source.polling().unwrap().claimed(claim, store, &rows).unwrap());
        }
        Done::Freed(store, done) => {
            source.polling().unwrap().free(store);
            keep(source, *done);
        }
        Done::Input(_)
        | Done::HeldUp(..)
        | Done::Taken(..)
        | Done::Marked(..)
        | Done::Nothing
        | Done::Compared(_)
        | Done::Asked(_)
        | Done::Stuck(_)
        | Done::SlotMade(_)
        | Done::Unmarked(_)
        | Done::ReplayRead(..) => {}
    }
}

async fn carry_out_all(shell: &mut Shell, claim: Option<u32>) {
    let lsn: Lsn = shell.ask("SELECT pg_current_wal_lsn()").await.parse().unwrap();
    let at = Watermark { snapshot: shell.ask("SELECT pg_current_snapshot()").await, lsn };
    let mut next = effect_after(None, &at, claim);
    let mut carried_out = 0;
    while let Some((effect, sign)) = next {
        if let (Effect::Scan(ScanEffect::Abandon { .. }), None) = (&effect, claim) {
            let open = Effect::Scan(ScanEffect::Open(OPEN));
            let done = shell.carry_out(open, Changes(SCANNERS)).await;
            keep(&mut shell.source, done);
        }
        next = effect_after(Some(&effect), &at, claim);
        let done = shell.carry_out(effect, sign).await;
        keep(&mut shell.source, done);
        carried_out += 1;
    }
    assert_eq!(carried_out, EFFECTS, "the way from the first effect to the last misses some");
}

#[tokio::test]
async fn each_effect_is_carried_out() {
    let one_row = |it: &mut Config| it.scan = ScanConfig { batch: 1, ..it.scan };
    let mut shell = Shell::open(one_row).await;
    shell.sql.batch_execute(ASK_REPLAY).await.unwrap();
    shell.sql.batch_execute("UPDATE tailpost_state SET gap_filled_at = NULL").await.unwrap();
    carry_out_all(&mut shell, None).await;
}

fn poll(config: &mut Config) {
    config.mode = Mode::Poll;
    config.poll = PollConfig { batch: 1, ..config.poll };
}

#[tokio::test]
async fn each_effect_of_poll_mode_is_carried_out() {
    let mut shell = Shell::open(poll).await;
    let has_rows = || Brings(|it| matches!(it, Done::Claimed { rows, .. } if !rows.is_empty()));
    for claim in [1, 2] {
        let done = shell.carry_out(Effect::Claims(ClaimsEffect::Claim { claim }), has_rows()).await;
        keep(&mut shell.source, done);
    }
    let give_back = ClaimsEffect::GiveBack { claim: 2, published: Vec::new() };
    let is_free = Brings(|it| matches!(it, Done::Freed(..)));
    let done = shell.carry_out(Effect::Claims(give_back), is_free).await;
    keep(&mut shell.source, done);
    carry_out_all(&mut shell, Some(1)).await;
    // What is asked for a claim that nobody holds is an error, and not left undone.
    let (claim, id, reason, pause) = (2, row(5), String::new, Duration::ZERO);
    let park = |claim| RowsEffect::Park { claim, batch: vec![(1, dead(5))] };
    let note = |claim| RowsEffect::NoteFailure { claim, id, reason: reason(), pause };
    for effect in [
        Effect::Claims(ClaimsEffect::Renew { claim }),
        Effect::Claims(ClaimsEffect::Mark { claim, published: Vec::new() }),
        Effect::Claims(ClaimsEffect::GiveBack { claim, published: Vec::new() }),
        Effect::Rows(park(Some(claim))),
        Effect::Rows(note(Some(claim))),
        Effect::Rows(park(None)),
        Effect::Rows(note(None)),
    ] {
        shell.carry_out(effect, IsBug).await;
    }
}

/// A session that cannot tell more leaves what an earlier one wrote down, with the time of it.
#[tokio::test]
async fn a_place_that_is_kept_keeps_its_time() {
    const NOTED: &str = "SELECT concat(resolved_lsn, ' ', resolved_stream_seq, ' ', resolved_at) FROM tailpost_state";
    const WRITTEN: &str = "SELECT updated_at FROM tailpost_state";
    let mut shell = Shell::open(|_| {}).await;
    let write = |place| Effect::Books(BooksEffect::Checkpoint { at: Lsn(1), place, stream_end: 0 });
    let place = Place { commit_lsn: Lsn(1), ordinal: 0, seq: Some(5) };
    shell.carry_out(write(NotedPlace::At(place)), Changes(NOTED)).await;
    let noted = shell.ask(NOTED).await;
    shell.carry_out(write(NotedPlace::Kept), Changes(WRITTEN)).await;
    assert_eq!(shell.ask(NOTED).await, noted);
    shell.carry_out(write(NotedPlace::Unchanged), Changes(NOTED)).await;
}

/// The slot is there, so its log may bring what is visible now.
#[tokio::test]
async fn without_a_slot_that_waits_for_a_running_transaction_no_scan_begins() {
    let mut shell = Shell::open(|_| {}).await;
    shell.sql.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.expect("a transaction");
    let open = ScanEffect::Open(OpenScan { sees: Sees::BeforeAwaitedSlot, ..OPEN });
    let postponed = Brings(|it| matches!(it, Done::Input(Input::Scan(ScanInput::Postponed))));
    shell.carry_out(Effect::Scan(open), postponed).await;
}
