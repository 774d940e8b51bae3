use super::*;

const LEASE: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

fn former() -> Former {
    Former { token: Uuid::from_u128(1), owner: "other".into(), unended: Vec::new() }
}

fn token(number: u128) -> Option<Uuid> {
    Some(Uuid::from_u128(number))
}

fn term(token: u128, server: i64) -> Term {
    Term { token: Uuid::from_u128(token), server }
}

fn active(now: Instant) -> RoleLease {
    let mut lease = RoleLease::new(LEASE, now);
    lease.prepared();
    lease.connected(now);
    lease.looked(Found::Free(None), now);
    assert_eq!(lease.next(now), Step::Take(None));
    lease.taken(token(2), now);
    assert_eq!(lease.next(now), Step::Renew);
    assert_eq!(lease.role(), Role::Unknown, "not before the first renewal");
    lease.renewed(Some(1), now, now);
    assert_eq!(lease.role(), Role::Active { term: term(2, 1), until: now + LEASE });
    assert_eq!(lease.next(now), Step::RenewClaims);
    lease.claims_renewed(now);
    lease
}

#[test]
fn a_standby_looks_until_the_role_is_free_and_ends_the_former_worker() {
    let mut now = Instant::now();
    let mut lease = RoleLease::new(LEASE, now);
    assert_eq!(lease.next(now), Step::Connect);
    lease.connected(now);
    assert_eq!(lease.next(now), Step::Look);
    lease.looked(Found::Held, now);
    assert_eq!(lease.role(), Role::Standby);
    lease.claims_renewed(now);
    assert_eq!(lease.next(now), Step::Wait { until: now + LOOK });
    now += LOOK;
    lease.looked(Found::Free(Some(former())), now);
    assert_eq!(lease.next(now), Step::Take(Some(former())));
    lease.taken(token(2), now);
    assert_eq!(lease.next(now), Step::Evict("other".into()));
    lease.evicted(now);
    assert_eq!(lease.next(now), Step::Renew);
    lease.renewed(Some(1), now, now);
    assert_eq!(lease.role(), Role::Unknown, "the tables have not been looked at");
    lease.prepared();
    assert_eq!(lease.role(), Role::Active { term: term(2, 1), until: now + LEASE });
}

#[test]
fn who_is_too_slow_stands_by() {
    let now = Instant::now();
    let mut lease = RoleLease::new(LEASE, now);
    lease.connected(now);
    lease.looked(Found::Free(Some(former())), now);
    lease.taken(None, now);
    assert_eq!(lease.role(), Role::Standby);
}

#[test]
fn the_lease_counts_from_before_the_renewal_was_asked_for() {
    let now = Instant::now();
    let mut lease = active(now);
    assert_eq!(lease.next(now), Step::Wait { until: now + SECOND });
    let (since, late) = (now + SECOND, now + 4 * SECOND);
    assert_eq!(lease.next(since), Step::Renew);
    lease.renewed(Some(1), since, late);
    assert_eq!(lease.role(), Role::Active { term: term(2, 1), until: since + LEASE });
    lease.claims_renewed(late);
    assert_eq!(lease.next(late), Step::Wait { until: late + SECOND });
}

#[test]
fn a_role_that_was_not_renewed_is_another_workers() {
    let now = Instant::now();
    let mut lease = active(now);
    lease.renewed(None, now, now);
    assert_eq!((lease.role(), lease.next(now)), (Role::Standby, Step::Look));
}

#[test]
fn a_role_that_is_taken_again_within_a_moment_has_another_term() {
    let now = Instant::now();
    let mut lease = active(now);
    lease.renewed(None, now, now);
    lease.looked(Found::Free(Some(former())), now);
    lease.taken(token(3), now);
    lease.evicted(now);
    lease.renewed(Some(1), now, now);
    assert_eq!(lease.role(), Role::Active { term: term(3, 1), until: now + LEASE });
}

#[test]
fn a_role_that_another_server_renews_has_another_term() {
    let now = Instant::now();
    let mut lease = active(now);
    lease.failed(now);
    lease.connected(now);
    lease.renewed(Some(2), now, now);
    assert_eq!(lease.role(), Role::Active { term: term(2, 2), until: now + LEASE });
}

#[test]
fn whom_the_former_worker_had_not_ended_is_ended() {
    let now = Instant::now();
    let mut lease = RoleLease::new(LEASE, now);
    lease.connected(now);
    let former = Former { unended: vec!["hangs".into()], ..former() };
    lease.looked(Found::Free(Some(former)), now);
    lease.taken(token(2), now);
    assert_eq!(lease.next(now), Step::Evict("hangs".into()));
    lease.evicted(now);
    assert_eq!(lease.next(now), Step::Evict("other".into()));
}

#[test]
fn without_a_connection_nobody_knows_and_the_next_renewal_says() {
    let now = Instant::now();
    let mut lease = active(now);
    lease.failed(now);
    assert_eq!((lease.role(), lease.next(now)), (Role::Unknown, Step::Connect));
    lease.failed(now);
    assert_eq!(lease.next(now), Step::Wait { until: now + LOOK }, "not again at once");
    lease.connected(now + LOOK);
    lease.prepared();
    assert_eq!(lease.role(), Role::Unknown, "the last renewal may be out of date");
    assert_eq!(lease.next(now + LOOK), Step::Renew);
}

#[test]
fn a_former_worker_is_ended_even_if_the_connection_fails_meanwhile() {
    let now = Instant::now();
    let mut lease = RoleLease::new(LEASE, now);
    lease.connected(now);
    lease.looked(Found::Free(Some(former())), now);
    lease.taken(token(2), now);
    lease.failed(now);
    lease.connected(now);
    assert_eq!(lease.next(now), Step::Evict("other".into()));
}

#[test]
fn a_former_worker_is_ended_even_if_nobody_heard_that_the_role_was_taken_from_it() {
    let now = Instant::now();
    let mut lease = RoleLease::new(LEASE, now);
    lease.connected(now);
    lease.looked(Found::Free(Some(former())), now);
    lease.failed(now);
    lease.connected(now);
    assert_eq!(lease.next(now + OTHERS_CONNECT), Step::Look);
    let own = Former { token: Uuid::from_u128(2), owner: "this".into(), unended: Vec::new() };
    lease.looked(Found::Free(Some(own)), now);
    lease.taken(token(2), now);
    assert_eq!(lease.next(now), Step::Evict("other".into()));
    lease.evicted(now);
    assert_eq!(lease.next(now), Step::Evict("this".into()));
    lease.evicted(now);
    assert_eq!(lease.next(now), Step::Renew);
}

#[test]
fn however_often_no_answer_comes_all_former_workers_are_ended() {
    let now = Instant::now();
    let mut lease = RoleLease::new(LEASE, now);
    for (number, owner) in [(1, "other"), (2, "this"), (3, "this")] {
        lease.connected(now);
        let former =
            Former { token: Uuid::from_u128(number), owner: owner.into(), unended: Vec::new() };
        lease.looked(Found::Free(Some(former)), now);
        lease.failed(now);
    }
    lease.connected(now);
    lease.looked(Found::Free(Some(former())), now);
    lease.taken(token(2), now);
    assert_eq!(lease.next(now), Step::Evict("other".into()));
    lease.evicted(now);
    assert_eq!(lease.next(now), Step::Evict("this".into()));
}

#[test]
fn claims_are_renewed_by_a_standby_too() {
    let now = Instant::now();
    let mut lease = RoleLease::new(Duration::from_millis(300), now);
    lease.connected(now);
    lease.looked(Found::Held, now);
    assert_eq!(lease.next(now), Step::RenewClaims, "handlers may still be at work");
    lease.claims_renewed(now);
    let until = now + Duration::from_millis(100);
    assert_eq!(lease.next(now), Step::Wait { until });
}
