use std::time::Duration;

use relay::{Role, Status};
use serde::Serialize;

/// A relay that has work and does not get on for this long is not ready.
///
/// Longer than a broker or a database takes to restart: a restart should not raise an alarm.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether the relay does its job.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Readiness {
    pub(super) ready: bool,
    role: Role,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Readiness {
    /// Judges by progress: a connection that is up proves nothing, and one that was just lost
    /// does not matter yet.
    pub(super) fn of(status: &Status) -> Self {
        let reason = match status.role {
            Role::Standby => None,
            Role::Starting => Some(match &status.last_error {
                Some(error) => format!("starting: {error}"),
                None => "starting".into(),
            }),
            Role::Stopped => Some("stopped".into()),
            Role::Active => stalled(status),
        };
        Self { ready: reason.is_none(), role: status.role, reason }
    }
}

fn stalled(status: &Status) -> Option<String> {
    let age = status.last_progress_age();
    if age.is_some_and(|age| age < PROGRESS_TIMEOUT) {
        return None;
    }
    let since = age.map_or_else(|| "yet".into(), |age| format!("for {} s", age.as_secs()));
    let events = status.in_flight_events;
    let cause = status.last_error.as_deref();
    let cause = cause.map(|it| format!(": {it}")).unwrap_or_default();
    let retry = status.breaker_retry_in.map(|it| format!(", trying again in {} s", it.as_secs()));
    let retry = retry.unwrap_or_default();
    Some(format!("no progress {since} with {events} events in flight{cause}{retry}"))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn active(progress: Option<Duration>) -> Status {
        let last_progress = progress.and_then(|age| Instant::now().checked_sub(age));
        Status { role: Role::Active, last_progress, in_flight_events: 7, ..Status::default() }
    }

    #[test]
    fn an_active_relay_is_ready_while_it_gets_on() {
        assert!(Readiness::of(&active(Some(Duration::ZERO))).ready);
        // Whatever the sockets do.
        let status = active(Some(Duration::from_secs(5)));
        assert!(!status.nats_connected && Readiness::of(&status).ready);
    }

    #[test]
    fn a_stalled_relay_is_not_ready_although_it_is_connected() {
        let status = Status {
            postgres_connected: true,
            nats_connected: true,
            last_error: Some("no responders".into()),
            breaker_retry_in: Some(Duration::from_secs(7)),
            ..active(Some(Duration::from_secs(31)))
        };
        let reason = Readiness::of(&status).reason.expect("not ready");
        assert_eq!(
            reason,
            "no progress for 31 s with 7 events in flight: no responders, trying again in 7 s"
        );
        assert!(!Readiness::of(&active(None)).ready);
    }

    #[test]
    fn a_standby_is_ready_and_one_that_starts_or_has_stopped_is_not() {
        let ready = |role| Readiness::of(&Status { role, ..Status::default() }).ready;
        assert!(ready(Role::Standby));
        assert!(!ready(Role::Starting));
        assert!(!ready(Role::Stopped));
    }
}
