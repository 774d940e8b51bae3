use super::*;

const LEASE: Duration = Duration::from_secs(30);

fn seen(others: usize, before: usize, free: &[usize]) -> Seen {
    Seen { others, able: others, before, free: free.to_vec() }
}

/// Does what comes next until nothing is due but a look, as a database would where nobody has a
/// role.
fn settle(share: &mut Share, now: Instant) {
    let mut before = None;
    loop {
        let next = share.next(now);
        if before.replace(next.clone()) == Some(next.clone()) {
            return;
        }
        match next {
            Move::Role(_, Step::Connect) => share.connected(now),
            Move::Role(of, Step::Look) => share.looked_for(of, Found::Free(None), now),
            Move::Role(of, Step::Take(_)) => share.taken(of, Some(Uuid::from_u128(1)), now),
            Move::Renew(these) => {
                these.into_iter().for_each(|of| share.renewed(of, Renewed::By(1), (now, now)));
            }
            Move::Role(_, Step::RenewClaims) => share.claims_renewed(now),
            Move::Look { .. } | Move::GiveBack(..) => {}
            Move::Wait { .. } => return,
            other @ Move::Role(..) => panic!("{other:?}"),
        }
    }
}

fn kept(share: &Share) -> Vec<usize> {
    (0..share.roles.len()).filter(|it| share.roles[*it].is_kept()).collect()
}

fn alone_with_four(now: Instant) -> Share {
    let mut share = Share::new(Some(4), LEASE, now);
    share.prepared();
    settle(&mut share, now);
    assert_eq!(share.next(now), Move::Look { joins: true });
    share.looked(&seen(0, 0, &[0, 1, 2, 3]), now);
    settle(&mut share, now);
    assert_eq!(kept(&share).len(), 4, "all at once");
    share
}

#[test]
fn who_is_alone_takes_all_and_gives_the_second_worker_half_of_them() {
    let now = Instant::now();
    let mut share = alone_with_four(now);
    for left in [3, 2] {
        share.looked(&seen(1, 0, &[]), now);
        assert_eq!(share.role(left), Role::Leaving, "its session ends");
        assert!(matches!(share.next(now), Move::Wait { .. }), "it is not drained");
        share.drained(left, false);
        assert_eq!(share.next(now), Move::GiveBack(left, false));
        share.given_back(left, now);
        assert_eq!(share.next(now), Move::Look { joins: true });
    }
    share.looked(&seen(1, 0, &[]), now);
    assert_eq!((kept(&share), share.leaving()), (vec![0, 1], vec![]));
}

#[test]
fn what_is_left_over_is_of_those_who_came_first() {
    let share = Share::new(Some(7), LEASE, Instant::now());
    let of = |before| share.share(&seen(2, before, &[]));
    assert_eq!([of(0), of(1), of(2)], [3, 2, 2]);
    assert_eq!(share.share(&seen(9, 8, &[])), 0, "more workers than partitions");
}

#[test]
fn who_has_no_broker_leaves_all_to_others_if_there_are_any() {
    let now = Instant::now();
    let mut share = alone_with_four(now);
    share.attend(false, now);
    assert_eq!(share.next(now), Move::Look { joins: true }, "nobody else is there");
    share.looked(&seen(0, 0, &[]), now);
    assert_eq!((kept(&share).len(), share.leaving()), (4, vec![]));
    share.looked(&seen(1, 0, &[]), now);
    assert_eq!(share.leaving(), [3], "it may have been about to stop");
    share.drained(3, false);
    share.given_back(3, now);
    assert_eq!(share.next(now), Move::Look { joins: false });
    share.looked(&seen(1, 0, &[]), now);
    assert_eq!(share.leaving(), [0, 1, 2]);
}

#[test]
fn who_cannot_handle_events_leaves_them_for_a_while_to_others_that_can() {
    let now = Instant::now();
    let mut share = alone_with_four(now);
    assert!(!share.rest(now), "nobody else is there");
    share.looked(&Seen { able: 0, ..seen(1, 0, &[]) }, now);
    assert!(!share.rest(now), "the other one cannot either");
    share.looked(&seen(1, 0, &[]), now);
    assert!(share.rest(now) && !share.rest(now), "once");
    share.attend(true, now);
    share.drained(3, false);
    share.given_back(3, now);
    assert_eq!(share.next(now), Move::Look { joins: false });
    share.looked(&seen(1, 0, &[]), now);
    assert_eq!(share.leaving(), [0, 1, 2]);
    let later = now + 5 * LEASE;
    share.attend(true, later);
    assert!(share.joins(), "it may be mended");
    assert!(share.rest(later), "it is not");
    share.attend(true, later);
    assert!(!share.joins());
    share.looked(&seen(0, 0, &[]), later);
    share.attend(true, later);
    assert!(share.attends, "nobody else is there any more");
}

#[test]
fn a_partition_that_somebody_else_was_faster_with_is_not_waited_for() {
    let now = Instant::now();
    let mut share = Share::new(Some(2), LEASE, now);
    settle(&mut share, now);
    share.looked(&seen(0, 0, &[0, 1]), now);
    assert_eq!(share.next(now), Move::Role(0, Step::Look));
    share.looked_for(0, Found::Held, now);
    settle(&mut share, now);
    assert!(kept(&share) == [1] && !share.roles[0].is_wanted());
}

/// With another worker there, each takes one at a time.
#[test]
fn one_whose_row_is_locked_keeps_nobody_from_another_one() {
    let now = Instant::now();
    let mut share = Share::new(Some(4), LEASE, now);
    settle(&mut share, now);
    for tried in [0, 1] {
        share.looked(&seen(1, 0, &[0, 1]), now);
        assert_eq!(share.next(now), Move::Role(tried, Step::Look));
        share.looked_for(tried, Found::Free(None), now);
        assert_eq!(share.next(now), Move::Role(tried, Step::Take(None)));
        share.taken(tried, None, now);
    }
}

/// It goes on until the end of its lease, by its own clock.
#[test]
fn one_whose_row_is_locked_is_renewed_when_it_is_not() {
    let now = Instant::now();
    let mut share = alone_with_four(now);
    let until = now + LEASE;
    let is_active =
        |share: &Share| matches!(share.role(2), Role::Active { until: it, .. } if it == until);
    let later = now + LOOK_MAX;
    for of in 0..4 {
        let renewed = if of == 2 { Renewed::Locked } else { Renewed::By(1) };
        share.renewed(of, renewed, (later, later));
    }
    settle(&mut share, later);
    assert!(is_active(&share) && share.roles[2].is_kept());
    settle(&mut share, later + LOOK);
    assert!(!is_active(&share) && share.roles[2].is_kept());
}

/// Who takes it has to end what is left.
#[test]
fn what_is_left_behind_in_a_partition_is_said_until_it_is_heard() {
    let now = Instant::now();
    let mut share = alone_with_four(now);
    share.looked(&seen(1, 0, &[]), now);
    share.drained(3, true);
    assert_eq!(share.next(now), Move::GiveBack(3, true));
    share.failed(now);
    settle(&mut share, now);
    assert_eq!(share.next(now), Move::GiveBack(3, true), "nobody may have heard it");
}

/// Its handlers do not end.
#[test]
fn a_partition_that_is_not_drained_holds_up_no_other() {
    let now = Instant::now();
    let mut share = alone_with_four(now);
    share.looked(&seen(1, 0, &[]), now);
    share.looked(&seen(3, 0, &[]), now);
    assert_eq!(share.leaving(), [3], "one at a time");
    let later = now + LEASE;
    share.looked(&seen(3, 0, &[]), later);
    assert_eq!(share.leaving(), [2, 3]);
    settle(&mut share, later);
    share.drained(2, false);
    assert_eq!(share.next(later), Move::GiveBack(2, false));
    share.given_back(2, later);
    share.looked(&seen(0, 0, &[2]), later);
    settle(&mut share, later);
    assert_eq!((kept(&share).len(), share.leaving()), (4, vec![3]), "all others are gone");
}

/// It has lost its connections, as all have, and is the first one that is back.
#[test]
fn who_is_back_after_an_outage_waits_for_the_others() {
    let now = Instant::now();
    let mut share = alone_with_four(now);
    share.failed(now);
    share.connected(now);
    settle(&mut share, now);
    let back = now + Duration::from_secs(2);
    let renewal = Move::Renew(vec![0, 1, 2, 3]);
    assert_eq!(share.next(back - Duration::from_millis(1)), renewal);
    settle(&mut share, back - Duration::from_millis(1));
    assert_eq!(share.next(back - Duration::from_millis(1)), Move::Wait { until: back });
    assert_eq!(share.next(back), Move::Look { joins: true });
}

#[test]
fn one_that_was_lost_while_it_was_to_be_given_back_is_no_longer() {
    let now = Instant::now();
    let mut share = alone_with_four(now);
    share.looked(&seen(1, 0, &[]), now);
    share.renewed(3, Renewed::Lost, (now, now));
    settle(&mut share, now);
    assert_eq!((kept(&share), share.leaving()), (vec![0, 1, 2], vec![]));
}

/// Each statement takes so long that the renewals alone fill the time.
#[test]
fn who_has_many_partitions_and_a_slow_database_says_all_the_same_that_it_is_there() {
    const STATEMENT: Duration = Duration::from_millis(20);
    let (began, lease) = (Instant::now(), Duration::from_secs(30));
    let mut now = began;
    let mut share = Share::new(Some(64), lease, now);
    share.prepared();
    let (mut looked, mut renewals) = (Vec::new(), 0);
    while kept(&share).len() < 64 || looked.len() < 200 {
        let last = looked.last().copied().unwrap_or(began);
        assert!(now - last < lease / 2, "it looks no more: {} are kept", kept(&share).len());
        let next = share.next(now);
        now += STATEMENT;
        match next {
            Move::Role(_, Step::Connect) => share.connected(now),
            Move::Role(of, Step::Look) => share.looked_for(of, Found::Free(None), now),
            Move::Role(of, Step::Take(_)) => share.taken(of, Some(Uuid::new_v4()), now),
            Move::Renew(these) => {
                let asked = (now - STATEMENT, now);
                these.into_iter().for_each(|of| share.renewed(of, Renewed::By(1), asked));
            }
            Move::Role(_, Step::RenewClaims) => {
                share.claims_renewed(now);
                renewals += 1;
            }
            Move::Look { .. } => {
                looked.push(now);
                let free: Vec<usize> = (0..64).filter(|it| !share.roles[*it].is_wanted()).collect();
                share.looked(&seen(0, 0, &free), now);
            }
            Move::Wait { until } => now = until,
            other @ (Move::Role(..) | Move::GiveBack(..)) => panic!("{other:?}"),
        }
    }
    // Once for all of them, and after each that was taken.
    let seconds = (now - began).as_secs();
    assert!(renewals <= seconds + 2 * 64, "claims were renewed {renewals} times in {seconds} s");
}
