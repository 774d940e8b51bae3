//! What the slots keep of PostgreSQL's log, until when, and what for.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use jiff::Timestamp;

use crate::app::App;
use crate::frame::{Frame, Place, page};
use crate::problem::Problem;
use crate::settings::Kind;
use crate::state::answers::ShardStatus;
use crate::state::figures::{bytes, count, rounded, short, span};
use crate::state::needs::{headroom, of_servers};
use crate::state::operator_answers::{SlotEntry, Slots};
use crate::state::picture::{Picture, Relay};
use crate::visitor::Visitor;

/// What is open for so long keeps log that matters.
const OLD_SECONDS: f64 = 5.0;

/// A relay that reads a slot, or stands by.
struct Reader {
    address: String,
    role: String,
    facts: Vec<(&'static str, String)>,
    waits: Option<String>,
}

#[derive(Template)]
#[template(path = "log.html")]
struct LogPage {
    frame: Frame,
    has_many: bool,
    readers: Vec<Reader>,
    slots: Vec<SlotEntry>,
    /// Transactions that keep the log from where they began.
    old: Vec<String>,
    problems: Vec<(String, Problem)>,
}

pub(crate) async fn log(
    State(app): State<Arc<App>>,
    visitor: Visitor,
) -> Result<Response, Problem> {
    let of_relays: Vec<_> = app.sources(Kind::Relay).map(|it| it.key().to_owned()).collect();
    let of = |key: &str| of_relays.iter().any(|it| it == key);
    let (told, problems) = app.ask_each::<Slots>(&visitor, of, |_| "slots".into()).await;
    app.watch.freshen().await;
    let frame = Frame::new(&app, &visitor, Place::Log, "Log and slot");
    let readers = app.watch.see(|it| readers(it, frame.now));
    let old = told.iter().filter_map(|(_, it)| old_transaction(it)).collect();
    let mut slots: Vec<Vec<SlotEntry>> = Vec::new();
    for (_, it) in told {
        match slots.iter_mut().find(|known| is_same_server(known, &it.slots)) {
            Some(known) => known.iter_mut().zip(it.slots).for_each(|(known, it)| {
                known.is_configured |= it.is_configured;
            }),
            None => slots.push(it.slots),
        }
    }
    let (slots, has_many) = (slots.concat(), of_relays.len() > 1);
    page(&LogPage { frame, has_many, readers, slots, old, problems })
}

/// Two relays beside one server list the same slots.
fn is_same_server(one: &[SlotEntry], other: &[SlotEntry]) -> bool {
    let names = |slots: &[SlotEntry]| -> Vec<_> {
        slots.iter().map(|it| (it.name.clone(), it.database.clone(), it.active)).collect()
    };
    names(one) == names(other)
}

fn old_transaction(slots: &Slots) -> Option<String> {
    let it = slots.oldest_transaction.as_ref().filter(|it| it.seconds >= OLD_SECONDS)?;
    let (open, name) = (span(rounded(it.seconds)), short(&it.name, 80));
    Some(match it.pid {
        Some(pid) if name.is_empty() => format!("process {pid}, open for {open}"),
        Some(pid) => format!("{name}, process {pid}, open for {open}"),
        None => format!("{name}, prepared {open} ago"),
    })
}

fn readers(picture: &Picture, now: Timestamp) -> Vec<Reader> {
    let shards = picture.relays.iter().flat_map(|relay| {
        relay.shards().into_iter().map(move |(address, it)| (relay, address, it))
    });
    let reader = |(relay, address, it): (&Relay, &str, &ShardStatus)| Reader {
        address: picture.called(relay, address),
        role: it.role.clone(),
        facts: facts(it, headroom(picture, it, now)),
        waits: of_servers("", it, now).filter(|_| it.role == "active").map(|it| it.what),
    };
    shards.map(reader).collect()
}

fn facts(it: &ShardStatus, headroom: Option<String>) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if let Some(slot) = &it.slot {
        facts.push(("The slot keeps", bytes(slot.retained_bytes)));
        facts.extend(headroom.map(|it| ("Until the limit", it)));
        facts.extend(slot.wal_status.clone().map(|it| ("wal_status", it)));
    }
    if let Some(rows) = it.unpublished {
        facts.push(("Rows that are not published", count(rows)));
    }
    let lsns = [
        ("Received up to", &it.received_lsn),
        ("Published up to", &it.resolved_lsn),
        ("Confirmed up to", &it.confirmed_flush_lsn),
    ];
    facts.extend(lsns.into_iter().filter_map(|(name, it)| Some((name, it.clone()?))));
    facts
}
