//! Waits until an event is published or processed, or all of them are.

mod everything;

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use operate::waiting::effects::{self, EffectState};
use outbox::waiting::{Seen, Waiting};
use relay::EventState;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::dlq::client::{Client, escape};
use crate::admin::{Told, WAIT_MAX, Waited};
use crate::cli::WaitArgs;
use crate::config::Settings;
use crate::errors::Refusal;
use crate::output;

/// For an answer to come back before the request's end.
const REQUEST_MIN: Duration = Duration::from_millis(1);

pub(super) async fn run(args: &WaitArgs, settings: &Settings) -> anyhow::Result<()> {
    let Some(id) = args.id else { return everything::run(args, settings).await };
    match &args.processed_by {
        None => {
            let state = if args.direct {
                operate::waiting::for_event(&settings.relay_config()?, id, args.timeout).await?
            } else {
                let client = Client::new(&settings.admin)?;
                ask(&client, &format!("events/{id}/wait"), args.timeout).await?
            };
            tell(args, id, state, describe_event)
        }
        Some(consumer) => {
            let state = if args.direct {
                for_effect(settings, consumer, id, args.timeout).await?
            } else {
                let client = Client::of_inbox(&settings.admin)?;
                let path = format!("events/{id}/wait?processed_by={}", escape(consumer));
                ask(&client, &path, args.timeout).await?
            };
            tell(args, id, state, describe_effect)
        }
    }
}

/// Asks again and again: no request waits for long.
async fn ask<S: Told + DeserializeOwned>(
    client: &Client,
    path: &str,
    patience: Duration,
) -> anyhow::Result<S> {
    let until = Instant::now() + patience;
    let separator = if path.contains('?') { '&' } else { '?' };
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let millis = left.clamp(REQUEST_MIN, WAIT_MAX).as_millis();
        let Waited { state, .. } =
            client.told(&format!("{path}{separator}timeout={millis}ms")).await?;
        let state: S = state;
        if state.is_final() || left <= WAIT_MAX {
            return Ok(state);
        }
    }
}

/// What a consumer has done of an event, as soon as that is final or the time is over.
pub(super) async fn for_effect(
    settings: &Settings,
    consumer: &str,
    id: Uuid,
    patience: Duration,
) -> anyhow::Result<EffectState> {
    let connection = settings.connection("tailpost wait").await?;
    let (table, waiting) = (settings.table()?, Waiting::default());
    let seen = tokio::select! {
        seen = waiting.wait(id, patience) => seen?,
        Err(error) = effects::answer(&connection, &table, consumer, &waiting) => {
            return Err(error.into());
        }
    };
    Ok(seen.map_or(EffectState::Unknown, Seen::into_inner))
}

/// Prints what became of the event; an error unless it is what was waited for.
fn tell<S: Told>(
    args: &WaitArgs,
    id: Uuid,
    state: S,
    describe: fn(&S) -> String,
) -> anyhow::Result<()> {
    let (status, said) = (state.status(), describe(&state));
    if args.json {
        output::json(&Waited { id, state })?;
    } else if status == StatusCode::OK {
        output::text(&said)?;
    }
    let waited = args.timeout;
    Err(match status {
        StatusCode::OK => return Ok(()),
        StatusCode::ACCEPTED => late(format!("event {id} is not there after {waited:?}: {said}")),
        StatusCode::NOT_FOUND => Refusal::not_found(format!(
            "event {id} is unknown after {waited:?}: {said}"
        ))
        .with_hint(format!("`tailpost explain {id}` says how far it came, if it is committed")),
        _ => Refusal::conflict(format!("event {id} will not be there: {said}")).with_hint(format!(
            "`tailpost outbox dlq show {id}` or `tailpost inbox dlq show {id}` says more"
        )),
    }
    .into())
}

/// What was waited for may still happen.
fn late(problem: String) -> Refusal {
    let hint = "`tailpost status` says what holds events up; --timeout waits longer";
    Refusal::timed_out(problem).with_hint(hint)
}

fn describe_event(state: &EventState) -> String {
    match state {
        EventState::Unknown => "neither the outbox nor its dead letters have it".into(),
        EventState::Pending { attempts: 0, .. } => "it is not published yet".into(),
        EventState::Pending { attempts, error } => {
            let error = error.as_deref().unwrap_or("no reason known");
            format!("{attempts} attempts to publish it failed: {error}")
        }
        EventState::Published { stream, seq } => {
            let stream = stream.as_deref().unwrap_or("the stream");
            match seq {
                Some(seq) => format!("published in {stream} as {seq}"),
                None => format!("published in {stream}"),
            }
        }
        EventState::Dropped => "a route drops it".into(),
        EventState::Dead { reason } => format!("it is a dead letter: {reason}"),
        EventState::Discarded { reason } => {
            format!("it was a dead letter and was discarded: {reason}")
        }
    }
}

fn describe_effect(state: &EffectState) -> String {
    match state {
        EffectState::Unknown => "the consumer has not begun it".into(),
        EffectState::Begun { attempts, error } => match error {
            Some(error) => format!("it was begun {attempts} times, and failed: {error}"),
            None => "it was begun".into(),
        },
        EffectState::Processed => "processed".into(),
        EffectState::Dead { reason } => format!("it is a dead letter: {reason}"),
        EffectState::Rejected => "it was rejected".into(),
    }
}
