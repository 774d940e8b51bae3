//! The one word of the first screen. Readiness and progress decide it, never an open connection.

use jiff::Timestamp;

use super::needs::{Weight, has_lost_database, needs};
use super::picture::{Inbox, Link, Picture, Relay};

/// How a word is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Trouble,
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: &'static str,
    pub(crate) tone: Tone,
}

impl Word {
    fn trouble(text: &'static str) -> Self {
        Self { text, tone: Tone::Trouble }
    }

    /// As the page's styles call it.
    pub(crate) fn class(&self) -> &'static str {
        match self.tone {
            Tone::Good => "good",
            Tone::Trouble => "trouble",
            Tone::Unknown => "unknown",
        }
    }
}

/// The worst of the relays; without a relay that of the inboxes. If that is well, the worst of what
/// needs a person.
pub(crate) fn word(picture: &Picture, now: Timestamp) -> Word {
    let word = of_processes(picture);
    let is_away = |it: &Inbox| {
        let is_asked = it.unread.is_some() || !it.processes.is_empty();
        is_asked && it.processes.iter().all(|it| matches!(it.link, Link::Down { .. }))
    };
    if word.tone == Tone::Good && picture.databases().any(is_away) {
        return Word::trouble("Inbox away");
    }
    let has_trouble = || needs(picture, now).iter().any(|it| it.weight < Weight::Look);
    if word.tone == Tone::Good && has_trouble() { Word::trouble("Held up") } else { word }
}

fn of_processes(picture: &Picture) -> Word {
    let relays: Vec<_> = picture.relays.iter().map(of_relay).collect();
    if relays.is_empty() {
        return of_inboxes(picture);
    }
    let trouble = relays.iter().find(|it| it.tone == Tone::Trouble);
    let unknown = relays.iter().find(|it| it.tone == Tone::Unknown);
    trouble.or(unknown).or(relays.first()).cloned().unwrap_or(Word::trouble("Unknown"))
}

fn of_relay(relay: &Relay) -> Word {
    let links = || relay.processes.iter().map(|it| &it.link);
    if links().all(|it| *it == Link::NotAsked) && relay.unread.is_none() {
        return Word { text: "Asking", tone: Tone::Unknown };
    }
    if links().all(|it| matches!(it, Link::Down { .. })) {
        return Word::trouble("Not answering");
    }
    let active: Vec<_> = relay.active().collect();
    let Some(shard) = active.first() else {
        if has_lost_database(relay) {
            return Word::trouble("Database away");
        }
        let starts = relay.shards().iter().any(|(_, it)| it.role == "starting");
        return if starts {
            Word { text: "Starting", tone: Tone::Unknown }
        } else {
            Word::trouble("No active relay")
        };
    };
    if !shard.postgres_connected {
        return Word::trouble("Database away");
    }
    if active.iter().any(|it| !it.nats_connected || it.breaker == "open") {
        return Word::trouble("Broker away");
    }
    let is_active =
        |status: &super::answers::RelayStatus| status.shards().iter().any(|it| it.role == "active");
    let up = relay.processes.iter().filter(|it| it.is_up() && is_active(&it.status));
    if up.clone().any(|it| !it.ready.ready) {
        return Word::trouble("Held up");
    }
    Word { text: "Working", tone: Tone::Good }
}

fn of_inboxes(picture: &Picture) -> Word {
    let mut processes = picture.inboxes.iter().flat_map(|it| &it.processes).peekable();
    if processes.peek().is_none() {
        return Word { text: "Asking", tone: Tone::Unknown };
    }
    let (up, away): (Vec<_>, Vec<_>) = processes.partition(|it| it.is_up());
    match (up.is_empty(), up.iter().any(|it| !it.ready.ready)) {
        (true, _) if away.iter().all(|it| it.link == Link::NotAsked) => {
            Word { text: "Asking", tone: Tone::Unknown }
        }
        (true, _) => Word::trouble("Not answering"),
        (false, true) => Word::trouble("Held up"),
        (false, false) => Word { text: "Working", tone: Tone::Good },
    }
}

#[cfg(test)]
mod tests {
    use super::super::answers::{Readiness, ShardStatus};
    use super::super::picture::Round;
    use super::super::picture::tests::{at, failure, picture, round, with_relay};
    use super::*;

    fn of(round: Round) -> &'static str {
        word(&picture([round]), at(100)).text
    }

    fn with(change: impl FnOnce(&mut ShardStatus, &mut Readiness)) -> &'static str {
        of(with_relay(change))
    }

    #[test]
    fn a_relay_works_if_it_is_ready_and_connected() {
        assert_eq!(word(&Picture::new(vec!["relay".into()], vec![]), at(100)).text, "Asking");
        assert_eq!(of(round()), "Working");
        assert_eq!(with(|it, _| it.nats_connected = false), "Broker away");
        assert_eq!(with(|it, _| it.breaker = "open".into()), "Broker away");
        assert_eq!(with(|it, _| it.postgres_connected = false), "Database away");
        let lost = |it: &mut ShardStatus, _: &mut Readiness| {
            (it.role, it.postgres_connected) = ("starting".into(), false);
            it.last_error = Some("connection refused".into());
        };
        assert_eq!(with(lost), "Database away");
        assert_eq!(with(|it, _| it.role = "standby".into()), "No active relay");
        assert_eq!(with(|it, _| it.role = "starting".into()), "Starting");
    }

    /// A socket that is open says nothing.
    #[test]
    fn a_relay_that_is_connected_and_does_not_get_on_is_held_up() {
        assert_eq!(with(|_, ready| ready.ready = false), "Held up");
    }

    #[test]
    fn a_relay_beside_a_consumer_that_is_held_up_is_not_all_that_counts() {
        let mut open = round();
        if let Ok((status, _)) = &mut open.inboxes[0].processes[0].1 {
            status.consumers.get_mut("mailer").expect("it is there").handler.breaker =
                "open".into();
        }
        assert_eq!(of(open), "Held up");
        let mut away = round();
        away.inboxes[0].processes[0].1 = Err(failure("refused"));
        assert_eq!(of(away), "Inbox away");
    }

    #[test]
    fn a_relay_that_does_not_answer_is_not_said_to_work() {
        let mut away = round();
        away.relays[0].processes[0].1 = Err(failure("refused"));
        assert_eq!(word(&picture([round(), away.clone()]), at(100)).text, "Not answering");
        // No name leads anywhere.
        away.relays[0].processes.clear();
        away.relays[0].books = Some(Err(failure("no address")));
        assert_eq!(of(away), "Not answering");
    }
}
