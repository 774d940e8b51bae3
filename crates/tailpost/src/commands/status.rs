mod inbox_status;
mod status_text;

use std::time::Duration;

use inbox_status::{ConsumerReport, Inspected};
use operate::StatusReport;
use serde::Serialize;
use serde_json::Value;
use status_text::all_text;

use super::dlq::client::{Client, is_away};
use super::sides::both;
use crate::cli::JsonArgs;
use crate::config::Settings;
use crate::{errors, output};

/// How long a relay may take to tell how it does.
const RELAY_TIMEOUT: Duration = Duration::from_millis(500);

/// What both servers keep of the relay, if there is one, and of the consumers; and what the relay
/// at `admin.listen` says of itself, if one answers.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    outbox: Option<StatusReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    relay: Option<Value>,
    /// Why no relay told anything, unless `admin.listen` is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    relay_unknown: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    consumers: Vec<ConsumerReport>,
    /// Why nothing is told of the outbox, or of the inbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    outbox_unknown: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inbox_unknown: Option<String>,
    /// What the inbox deleted, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    inbox_retention: Option<inbox::Upkept>,
}

pub(super) async fn run(args: &JsonArgs, settings: &Settings) -> anyhow::Result<()> {
    let outbox = match Box::pin(operate::inspect(&settings.relay_config()?)).await {
        Err(error) if !matches!(error, relay::Error::NotSetUp { .. }) && !error.is_forbidden() => {
            return Err(error.into());
        }
        other => other,
    };
    let inspected = inbox_status::inspect(settings).await;
    let has_consumers = |it: &Inspected| !it.consumers.is_empty();
    let (mut outbox, inspected, left_out) = both(outbox, inspected, has_consumers, "SELECT")?;
    let (relay, relay_unknown) = match ask(settings).await {
        Ok(told) => (told, None),
        Err(why) => (None, outbox.as_ref().map(|_| why)),
    };
    if let Some(outbox) = &mut outbox {
        let unread = std::mem::take(&mut outbox.unread);
        let role = relay.as_ref().and_then(idle_role);
        outbox.warnings.extend(unread.iter().map(|slot| unread_text(slot, role)));
        let of = relay.iter().flat_map(shards);
        let went_back = of.filter_map(|it| it["database_went_back"].as_str());
        outbox.warnings.extend(went_back.map(str::to_owned));
    }
    let unknown = |of| {
        let (_, why) = left_out.as_ref().filter(|it| it.0 == of)?;
        why.source.as_ref().map(errors::chain)
    };
    let mut report = Report {
        relay,
        relay_unknown,
        consumers: inspected.consumers,
        outbox_unknown: unknown("outbox"),
        inbox_unknown: inspected.unknown.or_else(|| unknown("inbox")),
        inbox_retention: inspected.retention,
        outbox,
    };
    output::show(args.json, &report, || all_text(&report))?;
    // What is known was told; the exit code says that it is not all.
    if let Some(error) = report.outbox.as_mut().and_then(|it| it.incomplete.take()) {
        return Err(error.into());
    }
    left_out.map_or(Ok(()), |(_, why)| Err(why.into()))
}

/// The shards of a relay, or the only one.
pub(super) fn shards(relay: &Value) -> &[Value] {
    relay["shards"].as_array().map_or(std::slice::from_ref(relay), Vec::as_slice)
}

/// What a relay does that does not read its slot.
fn idle_role(relay: &Value) -> Option<&str> {
    shards(relay).iter().filter_map(|it| it["role"].as_str()).find(|it| *it != "active")
}

fn unread_text(slot: &str, role: Option<&str>) -> String {
    match role {
        Some(role) => format!("the relay is {role}, and does not read {slot} yet"),
        None => format!(
            "no relay reads {slot}: run `tailpost relay`; if it ends, `tailpost doctor` says why"
        ),
    }
}

/// What the relay says of itself; nothing if it is not to be asked.
async fn ask(settings: &Settings) -> Result<Option<Value>, String> {
    let Some(address) = *settings.admin.listen else { return Ok(None) };
    let Ok(client) = Client::new(&settings.admin) else { return Ok(None) };
    let told = tokio::time::timeout(RELAY_TIMEOUT, client.get::<Value>("status")).await;
    match told {
        Ok(Ok(told)) => Ok(Some(told)),
        Ok(Err(error)) if is_away(&error) => {
            Err(format!("none answers at {address} (admin.listen)"))
        }
        Ok(Err(error)) => {
            Err(format!("unknown, {address} (admin.listen) answers: {}", errors::chain(&error)))
        }
        Err(_) => Err(format!("unknown, {address} (admin.listen) does not answer")),
    }
}

pub(super) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    // Tenths, so that no precision is lost to floating point.
    let mut tenths = u128::from(count) * 10 / 1024;
    let mut unit = 0;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_that_starts_anew_is_not_missing() {
        let text = |relay: &str| {
            let relay: Value = serde_json::from_str(relay).expect("JSON");
            unread_text("the slot", idle_role(&relay))
        };
        let told = "the relay is starting, and does not read the slot yet";
        assert_eq!(text(r#"{"role": "starting"}"#), told);
        assert_eq!(text(r#"{"shards": [{"role": "active"}, {"role": "starting"}]}"#), told);
        let told =
            "no relay reads the slot: run `tailpost relay`; if it ends, `tailpost doctor` says why";
        assert_eq!(text(r#"{"role": "active"}"#), told);
    }

    #[test]
    fn sizes_are_short() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1023.9 KiB"),
            (1_048_576, "1.0 MiB"),
            (u64::MAX, "16383.9 PiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }
}
