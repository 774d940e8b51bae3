//! Whether a finding is still one when the event is looked at again.
//!
//! Rows go on being marked, parked, requeued and deleted while streams are read.

use super::finding::Kind;
use super::judge::Candidate;
use super::spilled::Named;

/// What PostgreSQL says of an event now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// The row's mark, if there is a row.
    pub(crate) row: Option<RowNow>,
    pub(crate) is_dead: bool,
    /// The row is owed its mark.
    pub(crate) is_owed: bool,
    /// Poll mode: a relay has a claim of the event's aggregate.
    pub(crate) is_claimed: bool,
}

/// A row's mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowNow {
    Unmarked {
        /// It is the scanner's by now, which will publish it.
        came_back: bool,
    },
    Marked(Named),
    Dropped,
}

/// The finding, if it still is one.
pub(crate) fn again(candidate: Candidate, now: Now) -> Option<Candidate> {
    let stands = match candidate.kind {
        // What the stream has does not change.
        Kind::Duplicate | Kind::Disorder | Kind::Payload | Kind::Headers | Kind::Subject => true,
        Kind::Phantom => return phantom(candidate, now),
        Kind::Parked => now.is_dead,
        Kind::Gap | Kind::Removed if candidate.named.is_none() => {
            let is_waiting = matches!(now.row, Some(RowNow::Unmarked { came_back: false }));
            is_waiting && !now.is_dead && !now.is_owed
        }
        Kind::Unmarked => {
            let is_unmarked = matches!(now.row, Some(RowNow::Unmarked { .. }));
            is_unmarked && !now.is_dead && !now.is_owed && !now.is_claimed
        }
        Kind::Gap | Kind::Removed | Kind::Mark => is_named_as_before(&candidate, now),
        Kind::Dropped => now.row == Some(RowNow::Dropped),
        // The row itself may be gone; the message is where it is.
        Kind::Misplaced => now.row.is_some(),
    };
    stands.then_some(candidate)
}

fn is_named_as_before(candidate: &Candidate, now: Now) -> bool {
    let named = match now.row {
        Some(RowNow::Marked(named)) => Some(named),
        // Its debt is its mark.
        Some(RowNow::Unmarked { .. }) if now.is_owed => candidate.named,
        _ => None,
    };
    named.is_some() && named == candidate.named && !now.is_dead
}

/// A row that was not read may have been left out, because it names a place before what is read.
fn phantom(candidate: Candidate, now: Now) -> Option<Candidate> {
    if now.is_dead || now.is_owed {
        return None;
    }
    match now.row {
        None => Some(candidate),
        Some(RowNow::Marked(Named::Here { stream, sequence: Some(sequence) }))
            if candidate.at.is_some_and(|at| (at.stream, at.sequence) != (stream, sequence)) =>
        {
            let other = Some(super::spilled::Place { stream, sequence });
            let why = "the row names a sequence before what was read";
            Some(Candidate { kind: Kind::Mark, other, why, ..candidate })
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify_rules::spilled::Place;

    const AT: Place = Place { stream: 0, sequence: 7 };
    const HERE: Named = Named::Here { stream: 0, sequence: Some(7) };

    fn candidate(kind: Kind, named: Option<Named>) -> Candidate {
        Candidate { kind, id: None, at: Some(AT), other: None, named, why: "" }
    }

    fn now(row: Option<RowNow>) -> Now {
        Now { row, ..Now::default() }
    }

    const UNMARKED: Option<RowNow> = Some(RowNow::Unmarked { came_back: false });
    const CAME_BACK: Option<RowNow> = Some(RowNow::Unmarked { came_back: true });
    const MARKED: Option<RowNow> = Some(RowNow::Marked(HERE));

    #[test]
    fn what_was_seen_to_meanwhile_is_no_finding() {
        for (kind, named, row, stands) in [
            (Kind::Gap, None, UNMARKED, true),
            (Kind::Gap, None, CAME_BACK, false),
            (Kind::Gap, None, MARKED, false),
            (Kind::Gap, None, None, false),
            (Kind::Gap, Some(HERE), MARKED, true),
            (Kind::Gap, Some(HERE), UNMARKED, false),
            (Kind::Gap, Some(HERE), None, false),
            (Kind::Unmarked, None, UNMARKED, true),
            (Kind::Unmarked, None, CAME_BACK, true),
            (Kind::Unmarked, None, MARKED, false),
            (Kind::Phantom, None, None, true),
            (Kind::Phantom, None, UNMARKED, false),
            (Kind::Phantom, None, MARKED, false),
            (Kind::Mark, Some(HERE), MARKED, true),
            (Kind::Mark, Some(Named::Here { stream: 0, sequence: Some(8) }), MARKED, false),
            (Kind::Dropped, Some(Named::Nowhere), Some(RowNow::Dropped), true),
            (Kind::Dropped, Some(Named::Nowhere), UNMARKED, false),
            (Kind::Parked, None, None, false),
            (Kind::Payload, None, None, true),
        ] {
            let found = again(candidate(kind, named), now(row));
            assert_eq!(found.is_some(), stands, "{kind:?} {row:?}");
        }
    }

    #[test]
    fn a_dead_letter_a_debt_and_a_claim_explain_what_is_missing() {
        let dead = |row| Now { is_dead: true, ..now(row) };
        let owed = |row| Now { is_owed: true, ..now(row) };
        let gap = candidate(Kind::Gap, None);
        assert_eq!(again(gap, dead(UNMARKED)), None);
        assert_eq!(again(gap, owed(UNMARKED)), None);
        let unmarked = candidate(Kind::Unmarked, None);
        assert_eq!(again(unmarked, dead(UNMARKED)), None);
        assert_eq!(again(unmarked, owed(UNMARKED)), None);
        assert_eq!(again(unmarked, Now { is_claimed: true, ..now(UNMARKED) }), None);
        assert_eq!(again(candidate(Kind::Phantom, None), dead(None)), None);
        assert!(again(candidate(Kind::Parked, None), dead(None)).is_some());
        let gap_of_owed = candidate(Kind::Gap, Some(HERE));
        assert!(again(gap_of_owed, owed(UNMARKED)).is_some());
    }

    #[test]
    fn a_row_that_names_an_earlier_place_was_left_out() {
        let row = Some(RowNow::Marked(Named::Here { stream: 0, sequence: Some(3) }));
        let found = again(candidate(Kind::Phantom, None), now(row)).expect("a finding");
        assert_eq!((found.kind, found.other), (Kind::Mark, Some(Place { sequence: 3, ..AT })));
    }
}
