//! The screen of a [`Dashboard`]: what does not fit is left out, the least important first.

use std::time::{Duration, Instant};

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use super::dashboard::{Dashboard, Link, Percentiles};
use super::figures::{bar, latency, rate, spark};
use super::readings::{ConsumerStatus, Replay, ShardStatus, Slot};
use crate::commands::status::bytes;
use crate::output::{duration, one_line};

/// The width of what a line is about.
const LABEL: usize = 10;
/// Replays that are listed.
const REPLAYS_MAX: usize = 3;
const KEYS: &str = "q quit  p pause  +/- interval  ? help";

/// What to draw, and when it is.
pub(super) struct Screen<'a> {
    pub(super) dashboard: &'a Dashboard,
    pub(super) now: Instant,
    /// What is watched, as the first line says it.
    pub(super) title: &'a str,
    /// Whether there may be colours.
    pub(super) has_colors: bool,
}

/// A line, and how much it matters: 0 stays longest.
struct Row {
    rank: u8,
    line: Line<'static>,
}

/// How a figure looks.
#[derive(Clone, Copy)]
enum Tone {
    Plain,
    Dim,
    Good,
    Warning,
    Bad,
}

impl Widget for &Screen<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let area = area.intersection(buffer.area);
        let rows = self.rows(usize::from(area.width));
        let mut dropped: Vec<_> = rows.iter().map(|it| it.rank).collect();
        dropped.sort_unstable();
        // The rank of the last row that fits.
        let height = usize::from(area.height);
        let worst = dropped.get(height.saturating_sub(1)).or(dropped.last()).copied();
        let mut left = height;
        let mut of_worst =
            height.saturating_sub(rows.iter().filter(|it| Some(it.rank) < worst).count());
        let mut y = area.y;
        for Row { rank, line } in rows {
            let is_last = Some(rank) == worst;
            if left == 0 || Some(rank) > worst || is_last && of_worst == 0 {
                continue;
            }
            of_worst -= usize::from(is_last);
            left -= 1;
            buffer.set_line(area.x, y, &line, area.width);
            y += 1;
        }
    }
}

impl Screen<'_> {
    fn rows(&self, width: usize) -> Vec<Row> {
        let mut rows = vec![Row { rank: 0, line: self.head(width) }];
        if self.dashboard.shows_help {
            rows.extend(self.help());
            return rows;
        }
        rows.extend(self.trouble(&self.dashboard.relay.link, "relay", width));
        let shards = self.dashboard.relay.status.shards();
        if !shards.is_empty() {
            rows.extend(self.relay(shards, width));
        }
        rows.extend(self.consumers(width));
        rows
    }

    fn style(&self, tone: Tone) -> Style {
        let color = |color, style: Style| if self.has_colors { style.fg(color) } else { style };
        let bold = Style::new().add_modifier(Modifier::BOLD);
        match tone {
            Tone::Plain => Style::new(),
            Tone::Dim => Style::new().add_modifier(Modifier::DIM),
            Tone::Good => color(Color::Green, Style::new()),
            Tone::Warning => color(Color::Yellow, bold),
            Tone::Bad => color(Color::Red, bold),
        }
    }

    fn head(&self, width: usize) -> Line<'static> {
        let Dashboard { interval, is_paused, .. } = self.dashboard;
        let pace = if *is_paused { "PAUSED".into() } else { format!("every {interval:?}") };
        let text = fit(&["tailpost top".into(), self.title.to_owned(), pace, KEYS.into()], width);
        let style = Style::new().add_modifier(Modifier::REVERSED);
        Line::styled(format!("{text:width$}"), style)
    }

    fn help(&self) -> Vec<Row> {
        let lines = [
            "q, Esc, Ctrl-C  quit",
            "p, space        pause, and go on",
            "+ and -         ask less often, and more often",
            "?, h            this",
            "",
            "rate     events stored by the broker, each second",
            "lag      what is read from the log and not stored yet",
            "latency  of the last 10 s, at most 9 % too high",
            "window   events sent, or about to be, without an answer",
            "slot     what it makes PostgreSQL keep, and until what limit",
        ];
        let line = |(rank, text): (u8, &str)| Row { rank, line: Line::raw(text.to_owned()) };
        (1..).zip(lines).map(line).collect()
    }

    /// That somebody does not answer, since when, why, and what to do.
    fn trouble(&self, link: &Link, whom: &str, width: usize) -> Vec<Row> {
        let Link::Down { since, why } = link else { return Vec::new() };
        let ago = duration(self.now.saturating_duration_since(*since).as_secs_f64());
        let style = self.style(Tone::Bad);
        let said = format!("{whom} unreachable for {ago}: {}", one_line(&why.error));
        let mut rows = vec![Row { rank: 0, line: Line::styled(cut(&said, width), style) }];
        // What did not fit, for its end is the cause.
        let rest: String = said.chars().skip(width).take(2 * width).collect();
        let mut rest = &*rest;
        while !rest.is_empty() && width > 0 {
            let end = rest.char_indices().nth(width).map_or(rest.len(), |(at, _)| at);
            rows.push(Row { rank: 1, line: Line::styled(rest[..end].to_owned(), style) });
            rest = &rest[end..];
        }
        if let Some(hint) = &why.hint {
            let hint = format!("  {}", one_line(hint));
            rows.push(Row { rank: 1, line: Line::raw(cut(&hint, width)) });
        }
        rows
    }

    fn relay(&self, shards: &[ShardStatus], width: usize) -> Vec<Row> {
        let relay = &self.dashboard.relay;
        let is_down = matches!(relay.link, Link::Down { .. });
        let mut rows = Vec::new();
        let mut row = |rank: u8, label: &str, tone: Tone, parts: &[String]| {
            let tone = if is_down { Tone::Dim } else { tone };
            rows.push(Row { rank, line: self.line(label, tone, parts, width) });
        };
        let of_all = OfAll::of(shards);
        let (tone, role) = of_all.role(shards);
        row(1, "relay", tone, &role);
        let now = relay.rate.map_or_else(|| "-".into(), rate);
        let room = width.saturating_sub(LABEL + 40);
        let total = format!("{} stored", of_all.published);
        row(0, "rate", Tone::Plain, &[now, total, spark(&relay.rates, room)]);
        let lag = [bytes(of_all.lag_bytes), latency(of_all.lag_seconds)];
        let tone = if of_all.lag_seconds > 10.0 { Tone::Warning } else { Tone::Plain };
        row(0, "lag", tone, &lag);
        row(1, "latency", Tone::Plain, &percentiles("from commit to ack", relay.commit_to_ack));
        row(4, "", Tone::Plain, &percentiles("from sending to ack", relay.publish_to_ack));
        row(2, "window", of_all.window_tone(), &of_all.window());
        let (tone, breaker) = breaker(shards);
        row(1, "breaker", tone, &breaker);
        let slot = shards.iter().filter_map(|it| it.slot.as_ref());
        let worst =
            slot.max_by_key(|it| (it.wal_status.as_deref() == Some("lost"), it.retained_bytes));
        let (tone, slot) = worst.map_or((Tone::Dim, vec!["not looked at yet".into()]), slot_parts);
        row(1, "slot", tone, &slot);
        let (tone, dead) = self.dead(of_all.dead_letters);
        row(1, "dead", tone, &dead);
        rows.extend(self.replays(width));
        if let Some(error) = shards.iter().find_map(|it| it.last_error.as_ref()) {
            let parts = [cut(&one_line(error), width.saturating_sub(LABEL))];
            rows.push(Row { rank: 2, line: self.line("last error", Tone::Dim, &parts, width) });
        }
        if shards.len() > 1 {
            rows.extend(self.shards(shards, width));
        }
        rows
    }

    fn dead(&self, written: u64) -> (Tone, Vec<String>) {
        let since = format!("{written} written since the start");
        match &self.dashboard.relay.dead_letters {
            None => (Tone::Dim, vec!["not counted yet".into(), since]),
            Some(it) if it.total == 0 => (Tone::Plain, vec!["0".into(), since]),
            Some(it) => {
                let oldest = it.oldest_seconds.map(|it| format!("oldest {} ago", duration(it)));
                let parts = [Some(it.total.to_string()), oldest, Some(since)];
                (Tone::Warning, parts.into_iter().flatten().collect())
            }
        }
    }

    fn replays(&self, width: usize) -> Vec<Row> {
        let all = &self.dashboard.relay.replays.replays;
        let under_way: Vec<&Replay> = all.iter().filter(|it| it.is_under_way()).collect();
        let row = |rank, label: &str, parts: &[String]| Row {
            rank,
            line: self.line(label, Tone::Plain, parts, width),
        };
        if under_way.is_empty() {
            return vec![row(3, "replays", &["none under way".into()])];
        }
        let mut rows = Vec::new();
        for (place, replay) in under_way.iter().take(REPLAYS_MAX).enumerate() {
            let label = if place == 0 { "replays" } else { "" };
            let of = replay.events.map(|it| format!(" of {it}")).unwrap_or_default();
            let id: String = replay.id.chars().take(8).collect();
            let mut parts = vec![id, one_line(&replay.status).into_owned()];
            parts.push(format!("{}{of} published", replay.published));
            if replay.failed > 0 {
                parts.push(format!("{} failed", replay.failed));
            }
            parts.extend(replay.waits_for.as_ref().map(|it| one_line(it).into_owned()));
            rows.push(row(2, label, &parts));
        }
        if under_way.len() > REPLAYS_MAX {
            let more = format!("{} more", under_way.len() - REPLAYS_MAX);
            rows.push(row(4, "", &[more]));
        }
        rows
    }

    fn shards(&self, shards: &[ShardStatus], width: usize) -> Vec<Row> {
        let rates = &self.dashboard.relay.shard_rates;
        let line = |(at, shard): (usize, &ShardStatus)| {
            let number = shard.shard.unwrap_or(0);
            let now = rates.get(at).copied().flatten().map_or_else(|| "-".into(), rate);
            let slot = shard.slot.as_ref().map(|it| format!("keeps {}", bytes(it.retained_bytes)));
            let lag = format!("lag {} {}", bytes(shard.lag_bytes()), latency(shard.lag_seconds));
            let mut parts = vec![shard.role.clone(), now, lag];
            parts.push(format!("breaker {}", shard.breaker));
            parts.extend(slot);
            let tone = if is_well(shard) { Tone::Plain } else { Tone::Warning };
            Row { rank: 3, line: self.line(&format!("shard {number}"), tone, &parts, width) }
        };
        shards.iter().enumerate().map(line).collect()
    }

    fn consumers(&self, width: usize) -> Vec<Row> {
        let inbox = &self.dashboard.inbox;
        let mut rows = self.trouble(&inbox.link, "inbox", width);
        let is_down = matches!(inbox.link, Link::Down { .. });
        let elsewhere = inbox.consumers.consumers.iter();
        let elsewhere = elsewhere.filter(|it| !inbox.status.consumers.contains_key(&it.name));
        let heading =
            ["lag", "rate", "busy", "breaker", "failed", "dead"].map(|it| format!("{it:>8}"));
        let mut parts = vec![format!("{:8}", "state")];
        parts.extend(heading);
        let name_width = (width / 4).clamp(8, 24);
        let columns = |name: &str, parts: &[String]| {
            let name = cut(&one_line(name), name_width);
            fit(&[vec![format!("{name:name_width$}")], parts.to_vec()].concat(), width)
        };
        let mut of_each = Vec::new();
        for (name, status) in &inbox.status.consumers {
            let (tone, parts) = self.consumer(name, status);
            let tone = if is_down { Tone::Dim } else { tone };
            of_each.push((2, Line::styled(columns(name, &parts), self.style(tone))));
            if let Some(why) = &status.paused {
                let why = cut(&format!("  {}", one_line(why)), width);
                of_each.push((3, Line::styled(why, self.style(Tone::Warning))));
            }
        }
        for consumer in elsewhere {
            let worker = consumer.worker.as_ref();
            let state = match worker {
                Some(it) if it.is_valid => format!("on {}", one_line(&it.owner)),
                _ => "no worker".into(),
            };
            let parts = [
                cut(&state, 24),
                format!("failed {}", consumer.failed),
                format!("dead {}", consumer.dead),
            ];
            of_each.push((3, Line::styled(columns(&consumer.name, &parts), self.style(Tone::Dim))));
        }
        if !of_each.is_empty() {
            let line = Line::styled(columns("consumer", &parts), self.style(Tone::Dim));
            rows.push(Row { rank: 5, line: Line::raw("") });
            rows.push(Row { rank: 3, line });
        }
        rows.extend(of_each.into_iter().map(|(rank, line)| Row { rank, line }));
        rows
    }

    fn consumer(&self, name: &str, status: &ConsumerStatus) -> (Tone, Vec<String>) {
        let inbox = &self.dashboard.inbox;
        let recorded = inbox.consumers.consumers.iter().find(|it| it.name == name);
        let number = |it: Option<u64>| it.map_or_else(|| "-".into(), |it| it.to_string());
        // What the broker has, and what is here and not handled.
        let lag = status.pending.map(|it| it + status.held + status.left);
        let now = inbox.rates.get(name).map_or_else(|| "-".into(), |it| rate(*it));
        let breaker = status.handler.breaker.clone();
        let mut parts = vec![format!("{:8}", one_line(&status.state))];
        let figures = [
            number(lag),
            now,
            status.busy.to_string(),
            breaker,
            number(recorded.map(|it| it.failed)),
            number(recorded.map(|it| it.dead)),
        ];
        parts.extend(figures.map(|it| format!("{it:>8}")));
        let is_well =
            matches!(&*status.state, "active" | "standby") && status.handler.breaker != "open";
        (if is_well { Tone::Plain } else { Tone::Warning }, parts)
    }

    fn line(&self, label: &str, tone: Tone, parts: &[String], width: usize) -> Line<'static> {
        let label = format!("{:LABEL$}", cut(label, width.min(LABEL)));
        let text = fit(parts, width.saturating_sub(LABEL));
        Line::from(vec![
            Span::styled(label, self.style(Tone::Dim)),
            Span::styled(text, self.style(tone)),
        ])
    }
}

/// The figures of all shards together.
#[derive(Default)]
struct OfAll {
    published: u64,
    dead_letters: u64,
    lag_bytes: u64,
    lag_seconds: f64,
    in_flight: (u64, u64),
    window: (u64, u64),
}

impl OfAll {
    fn of(shards: &[ShardStatus]) -> Self {
        shards.iter().fold(Self::default(), |all, it| Self {
            published: all.published + it.published_total,
            dead_letters: all.dead_letters + it.dead_letters_total,
            lag_bytes: all.lag_bytes + it.lag_bytes(),
            lag_seconds: all.lag_seconds.max(it.lag_seconds),
            in_flight: (
                all.in_flight.0 + it.in_flight_events,
                all.in_flight.1 + it.in_flight_bytes,
            ),
            window: (all.window.0 + it.window.events, all.window.1 + it.window.bytes),
        })
    }

    fn role(&self, shards: &[ShardStatus]) -> (Tone, Vec<String>) {
        let [first, rest @ ..] = shards else { return (Tone::Dim, Vec::new()) };
        let is_same = rest.iter().all(|it| it.role == first.role);
        let role = if is_same { first.role.clone() } else { "several roles".into() };
        let lost =
            |is_up: bool, of: &str| if is_up { format!("{of} ok") } else { format!("{of} LOST") };
        let postgres = shards.iter().all(|it| it.postgres_connected);
        let nats = shards.iter().all(|it| it.nats_connected);
        let mut parts = vec![one_line(&role).into_owned()];
        if first.role == "active" || !is_same {
            parts.extend([lost(postgres, "PostgreSQL"), lost(nats, "NATS")]);
        }
        parts.push(format!("process {}", first.process_id));
        parts.extend(first.waiting_for.as_ref().map(|it| format!("waiting {}", one_line(it))));
        let tone = match &*first.role {
            "active" if postgres && nats && is_same => Tone::Good,
            "standby" if is_same => Tone::Plain,
            _ => Tone::Warning,
        };
        (tone, parts)
    }

    fn share(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "a bar has ten steps")]
        let share =
            |(used, limit): (u64, u64)| if limit == 0 { 0.0 } else { used as f64 / limit as f64 };
        share((self.in_flight.0, self.window.0)).max(share((self.in_flight.1, self.window.1)))
    }

    fn window(&self) -> Vec<String> {
        let ((events, size), (events_max, size_max)) = (self.in_flight, self.window);
        let of = |limit: String, known: u64| {
            if known == 0 { String::new() } else { format!(" of {limit}") }
        };
        vec![
            bar(self.share()),
            format!("{events}{} events", of(events_max.to_string(), events_max)),
            format!("{}{}", bytes(size), of(bytes(size_max), size_max)),
        ]
    }

    fn window_tone(&self) -> Tone {
        if self.share() >= 1.0 { Tone::Warning } else { Tone::Plain }
    }
}

fn is_well(shard: &ShardStatus) -> bool {
    let is_kept = |it: &Slot| it.wal_status.as_deref() != Some("lost");
    matches!(&*shard.role, "active" | "standby")
        && shard.breaker == "closed"
        && shard.slot.as_ref().is_none_or(is_kept)
}

fn breaker(shards: &[ShardStatus]) -> (Tone, Vec<String>) {
    let broken = shards.iter().find(|it| it.breaker != "closed");
    let Some(shard) = broken else { return (Tone::Good, vec!["closed".into()]) };
    let retry = shard.breaker_retry_in_seconds.map(|it| format!("tries again in {}", latency(it)));
    let parts = [Some(one_line(&shard.breaker).into_owned()), retry];
    (Tone::Bad, parts.into_iter().flatten().collect())
}

fn slot_parts(slot: &Slot) -> (Tone, Vec<String>) {
    let status = slot.wal_status.as_deref().unwrap_or("none");
    let headroom = slot.wal_headroom_bytes.map(|it| format!("room for {}", bytes(it)));
    let left = slot.wal_headroom_seconds.map(Duration::from_secs);
    let full = left.map(|it| format!("full in {}", duration(it.as_secs_f64())));
    let unlimited = headroom.is_none().then(|| "without limit".to_owned());
    let keeps = format!("keeps {}", bytes(slot.retained_bytes));
    let parts = [Some(one_line(status).into_owned()), Some(keeps), headroom, unlimited, full];
    let tone = match status {
        "lost" | "none" => Tone::Bad,
        "unreserved" => Tone::Warning,
        _ if left.is_some_and(|it| it < Duration::from_hours(1)) => Tone::Warning,
        _ => Tone::Plain,
    };
    (tone, parts.into_iter().flatten().collect())
}

fn percentiles(what: &str, found: Option<Percentiles>) -> Vec<String> {
    let Some(Percentiles { p50, p99, max }) = found else {
        return vec!["-".into(), what.into()];
    };
    let named = [("p50", p50), ("p99", p99), ("max", max)];
    let named = named.map(|(name, seconds)| format!("{name} {}", latency(seconds)));
    [named.to_vec(), vec![what.to_owned()]].concat()
}

/// As many of the parts as there is room for; of the first at least its beginning.
fn fit(parts: &[String], width: usize) -> String {
    let mut text = String::new();
    let mut parts = parts.iter().filter(|it| !it.is_empty());
    if let Some(first) = parts.next() {
        text = cut(first, width);
    }
    for part in parts {
        if text.chars().count() + 2 + part.chars().count() <= width {
            text += &format!("  {part}");
        }
    }
    text
}

fn cut(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

#[cfg(test)]
mod tests;
