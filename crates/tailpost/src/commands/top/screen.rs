//! The lines of the screen, those that matter most first.

use std::time::Instant;

use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use relay::Lsn;
use serde_json::Value;

use super::seen::{Seen, Side};
use crate::commands::status::{bytes, shards};
use crate::output::{Lines, duration, if_any, one_line};

/// The width of what a line is about.
const LABEL: usize = 9;

/// What is out of order is red, unless there are to be no colours.
fn style(is_wrong: bool) -> Style {
    let has_colors = std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty());
    match is_wrong {
        true if has_colors => Style::new().bold().red(),
        true => Style::new().bold(),
        false => Style::new(),
    }
}

pub(super) fn lines(seen: &Seen, now: Instant) -> Vec<Line<'static>> {
    let mut lines = vec![Line::styled(seen.head.clone(), Modifier::REVERSED)];
    lines.extend(trouble(&seen.relay, "relay", now));
    if seen.relay.has_answered() {
        lines.extend(relay(seen));
    }
    if seen.inbox.has_answered() || seen.is_inbox_expected {
        lines.extend(trouble(&seen.inbox, "inbox", now));
        lines.extend(consumers(&seen.inbox));
    }
    lines
}

/// That a process does not answer, since when, why, and what helps.
fn trouble(side: &Side, whom: &str, now: Instant) -> Vec<Line<'static>> {
    let Some(failed) = &side.failed else { return Vec::new() };
    let ago = duration(now.saturating_duration_since(failed.since).as_secs_f64());
    let said = format!("{whom} unreachable for {ago}: {}", one_line(&failed.error));
    let hint = format!("  {}", one_line(&failed.hint));
    vec![Line::styled(said, style(true)), Line::raw(hint)]
}

fn relay(seen: &Seen) -> Vec<Line<'static>> {
    let (side, status) = (&seen.relay, &seen.relay.status);
    let mut lines = Vec::new();
    let mut add = |is_wrong: bool, text: &str| {
        let style = if side.failed.is_some() { Modifier::DIM.into() } else { style(is_wrong) };
        lines.extend(text.lines().map(|it| Line::styled(it.to_owned(), style)));
    };
    let now = side.rate(published).map_or_else(|| "-".into(), |it| format!("{it:.1}/s"));
    add(false, &line("rate", &format!("{now}  {} stored", published(status).unwrap_or(0))));
    let behind: u64 = shards(status).iter().map(lag_bytes).sum();
    let lags = shards(status).iter().filter_map(|it| it["lag_seconds"].as_f64());
    let lag = lags.fold(0.0, f64::max);
    add(lag > 10.0, &line("lag", &format!("{}  {lag:.3} s", bytes(behind))));
    if let Some(letters) = &seen.letters {
        let count = letters["total"].as_u64().unwrap_or(0);
        let oldest = letters["oldest_seconds"].as_f64().filter(|_| count > 0).map(duration);
        add(count > 0, &line("dead", &format!("{count}{}", if_any("  oldest ", oldest))));
    }
    for shard in shards(status) {
        let label = |name: &str| format!("{name}{}", if_any(" ", shard["shard"].as_u64()));
        let is_up = shard["role"] == "active" || shard["role"] == "standby";
        let mut said = Lines::with_labels(LABEL);
        said.relay(&label("relay"), shard);
        add(!is_up || shard["breaker"] != "closed", &said.text);
        let slot = &shard["slot"];
        if !slot.is_null() {
            add(slot["wal_status"] == "lost", &line(&label("slot"), &slot_said(slot)));
        }
    }
    lines
}

fn published(status: &Value) -> Option<u64> {
    shards(status).iter().map(|it| it["published_total"].as_u64()).sum()
}

/// What is read of the log and not resolved.
fn lag_bytes(shard: &Value) -> u64 {
    let lsn = |name: &str| shard[name].as_str()?.parse().ok().map(|Lsn(it)| it);
    let (received, resolved) = (lsn("received_lsn"), lsn("resolved_lsn"));
    received.unwrap_or(0).saturating_sub(resolved.unwrap_or(0))
}

fn slot_said(slot: &Value) -> String {
    let status = slot["wal_status"].as_str().unwrap_or("none");
    let keeps = bytes(slot["retained_bytes"].as_u64().unwrap_or(0));
    let room = slot["wal_headroom_bytes"].as_u64().map(bytes);
    let room = room.map_or_else(|| "without limit".into(), |it| format!("room for {it}"));
    let full = slot["wal_headroom_seconds"].as_f64().map(duration);
    format!("{status}  keeps {keeps}  {room}{}", if_any("  full in ", full))
}

fn consumers(side: &Side) -> Vec<Line<'static>> {
    let consumers = side.status["consumers"].as_object();
    let Some(consumers) = consumers.filter(|it| !it.is_empty()) else { return Vec::new() };
    let row = |name: &str, [state, figures @ ..]: [String; 7]| {
        let figures: String = figures.iter().map(|it| format!("{it:>10}")).collect();
        format!("{:<24} {state:<9}{figures}", one_line(name))
    };
    let head = ["state", "lag", "rate", "busy", "breaker", "failed", "dead"].map(str::to_owned);
    let mut lines = vec![Line::raw(""), Line::styled(row("consumer", head), Modifier::DIM)];
    for (name, it) in consumers {
        let text = |it: &Value| it.as_str().unwrap_or("-").to_owned();
        let number = |it: &Value| it.as_u64().map_or_else(|| "-".into(), |it| it.to_string());
        // What the broker has, and what is here and not handled.
        let here = it["held"].as_u64().unwrap_or(0) + it["left"].as_u64().unwrap_or(0);
        let lag = it["pending"].as_u64().map_or_else(|| "-".into(), |it| (it + here).to_string());
        let rate = side.rate(|of| of["consumers"][name]["counts"]["processed"].as_u64());
        let (state, breaker) = (text(&it["state"]), text(&it["handler"]["breaker"]));
        let is_up = (state == "active" || state == "standby") && breaker != "open";
        let style = if side.failed.is_some() { Modifier::DIM.into() } else { style(!is_up) };
        let (busy, backlog) = (number(&it["busy"]), &it["backlog"]);
        let (failed, dead) = (number(&backlog["failed"]), number(&backlog["dead"]));
        let rate = rate.map_or_else(|| "-".into(), |it| format!("{it:.1}/s"));
        let figures = [state, lag, rate, busy, breaker, failed, dead];
        lines.push(Line::styled(row(name, figures), style));
        let why = it["paused"].as_str().map(|it| format!("  {}", one_line(it)));
        lines.extend(why.map(|it| Line::styled(it, style)));
    }
    lines
}

fn line(label: &str, said: &str) -> String {
    let mut lines = Lines::with_labels(LABEL);
    lines.add(label, said);
    lines.text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn status(published: u64) -> Value {
        json!({
            "process_id": 7, "role": "active", "postgres_connected": true, "nats_connected": true,
            "received_lsn": "0/2000", "resolved_lsn": "0/1000", "lag_seconds": 0.002,
            "in_flight_events": 512, "published_total": published, "breaker": "closed",
            "slot": { "wal_status": "reserved", "retained_bytes": 16_777_216,
                "wal_headroom_bytes": 1_073_741_824, "wal_headroom_seconds": 7200 },
        })
    }

    /// A relay that stores 1,000 events a second, and an inbox.
    fn seen(start: Instant) -> Seen {
        let mut seen = Seen::new("tailpost top  127.0.0.1:9464".into(), false);
        for second in 0..3_u32 {
            let (at, total) = (start + second * Duration::from_secs(1), u64::from(second) * 1000);
            let inbox = json!({ "consumers": {
                "billing": { "state": "active", "handler": { "breaker": "closed" }, "busy": 4,
                    "held": 2, "counts": { "processed": total / 2 }, "pending": 40,
                    "backlog": { "failed": 1, "dead": 2 } },
                "mail": { "state": "paused", "paused": "paused by ada",
                    "handler": { "breaker": "open" } },
            } });
            seen.relay.see(at, Ok(status(total)), "");
            seen.inbox.see(at, Ok(inbox), "");
        }
        seen.letters = Some(json!({ "total": 3, "oldest_seconds": 90.0 }));
        seen
    }

    fn text(seen: &Seen, now: Instant) -> String {
        lines(seen, now).iter().map(|it| format!("{}\n", it.to_string().trim_end())).collect()
    }

    #[test]
    fn the_screen_says_whether_events_move_and_what_is_stuck() {
        let start = Instant::now();
        let expected = "\
tailpost top  127.0.0.1:9464
rate      1000.0/s  2000 stored
lag       4.0 KiB  0.002 s
dead      3  oldest 1m 30s
relay     active, 512 in flight, process 7
slot      reserved  keeps 16.0 MiB  room for 1.0 GiB  full in 2h 0m

consumer                 state           lag      rate      busy   breaker    failed      dead
billing                  active           42   500.0/s         4    closed         1         2
mail                     paused            -         -         -      open         -         -
  paused by ada
";
        assert_eq!(text(&seen(start), start), expected);
    }

    #[test]
    fn a_process_that_is_away_is_told_of_with_the_reason_and_what_to_do() {
        let start = Instant::now();
        let mut seen = seen(start);
        let refused = anyhow::anyhow!("could not reach a relay: \u{1b}[2Jrefused");
        seen.relay.see(start, Err(refused), "start `tailpost relay`");
        let text = text(&seen, start + Duration::from_secs(65));
        let expected = "relay unreachable for 1m 5s: could not reach a relay: \\u{1b}[2Jrefused\n  \
                        start `tailpost relay`\nrate      -  2000 stored\n";
        assert!(text.contains(expected), "what was known stays\n{text}");
        let nothing = Seen::new("top".into(), false);
        assert_eq!(lines(&nothing, start).len(), 1);
    }

    #[test]
    fn a_shard_that_is_not_well_is_told_apart() {
        let (start, mut seen) = (Instant::now(), Seen::new("top".into(), false));
        let (mut one, mut other) = (status(10), status(20));
        (one["shard"], other["shard"]) = (0.into(), 1.into());
        other["breaker"] = "open".into();
        other["breaker_retry_in_seconds"] = 7.0.into();
        other["nats_connected"] = false.into();
        other["slot"]["wal_status"] = "lost".into();
        seen.relay.see(start, Ok(json!({ "shards": [one, other] })), "");
        let text = text(&seen, start);
        for shown in [
            "rate      -  30 stored",
            "relay 0   active, 512 in flight",
            "relay 1   active, NATS lost, breaker open, next try in 7 s",
            "slot 1    lost",
        ] {
            assert!(text.contains(shown), "{shown}\n{text}");
        }
        let bold = lines(&seen, start)
            .iter()
            .filter(|it| it.style.add_modifier.contains(Modifier::BOLD))
            .count();
        assert_eq!(bold, 2, "{text}");
    }
}
