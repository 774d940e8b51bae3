//! The one word of the first screen. Readiness and progress decide it, never an open connection.

use jiff::Timestamp;

use super::figures::{counted, short};
use super::needs::{Weight, has_lost_database, needs};
use super::picture::{ConsumerView, Inbox, Link, Picture, Relay};

/// How a word is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    /// It works, and something needs a person.
    Look,
    Trouble,
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

impl Word {
    fn new(text: &str, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }

    fn trouble(text: &str) -> Self {
        Self::new(text, Tone::Trouble)
    }

    /// As the page's styles call it.
    pub(crate) fn class(&self) -> &'static str {
        match self.tone {
            Tone::Good => "good",
            Tone::Look => "look",
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
    if word.tone != Tone::Good {
        return word;
    }
    let is_unknown = |it: &ConsumerView| it.status.as_ref().is_some_and(|it| it.pending.is_none());
    let letters = picture.dead_letters();
    let remark = match needs(picture, now).first().map(|it| (it.weight, short(&it.subject, 24))) {
        None if !picture.consumers().iter().any(is_unknown) => return word,
        None => return Word::new("Working, backlogs are not known yet", Tone::Unknown),
        Some((Weight::Stops | Weight::Waits, _)) => return Word::trouble("Held up"),
        Some((Weight::Late, whose)) => format!("{whose} is behind"),
        Some(_) if letters > 0 => counted(letters, "dead letter", "dead letters"),
        Some((_, whose)) => format!("{whose} needs a look"),
    };
    Word::new(&format!("Working, {remark}"), Tone::Look)
}

fn of_processes(picture: &Picture) -> Word {
    let relays: Vec<_> = picture.relays.iter().map(of_relay).collect();
    let trouble = relays.iter().find(|it| it.tone == Tone::Trouble);
    let unknown = relays.iter().find(|it| it.tone == Tone::Unknown);
    trouble.or(unknown).or(relays.first()).cloned().unwrap_or_else(|| of_inboxes(picture))
}

fn of_relay(relay: &Relay) -> Word {
    let links = || relay.processes.iter().map(|it| &it.link);
    if links().all(|it| *it == Link::NotAsked) && relay.unread.is_none() {
        return Word::new("Asking", Tone::Unknown);
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
        return match starts {
            true => Word::new("Starting", Tone::Unknown),
            false => Word::trouble("No active relay"),
        };
    };
    if !shard.postgres_connected {
        return Word::trouble("Database away");
    }
    if active.iter().any(|it| it.is_broker_away()) {
        return Word::trouble("Broker away");
    }
    let is_active =
        |status: &super::answers::RelayStatus| status.shards().iter().any(|it| it.role == "active");
    let up = relay.processes.iter().filter(|it| it.is_up() && is_active(&it.status));
    if up.clone().any(|it| !it.ready.ready) {
        return Word::trouble("Held up");
    }
    Word::new("Working", Tone::Good)
}

fn of_inboxes(picture: &Picture) -> Word {
    let processes = picture.inboxes.iter().flat_map(|it| &it.processes);
    let (up, away): (Vec<_>, Vec<_>) = processes.partition(|it| it.is_up());
    match (up.is_empty(), up.iter().any(|it| !it.ready.ready)) {
        (true, _) if away.iter().all(|it| it.link == Link::NotAsked) => {
            Word::new("Asking", Tone::Unknown)
        }
        (true, _) => Word::trouble("Not answering"),
        (false, true) => Word::trouble("Held up"),
        (false, false) => Word::new("Working", Tone::Good),
    }
}

#[cfg(test)]
mod tests {
    use super::super::answers::{Group, Readiness, ShardStatus};
    use super::super::picture::Round;
    use super::super::picture::tests::{at, failure, picture, round, with_relay};
    use super::*;

    fn of(round: Round) -> String {
        word(&picture([round]), at(100)).text
    }

    fn with(change: impl FnOnce(&mut ShardStatus, &mut Readiness)) -> String {
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

    fn told(rounds: impl IntoIterator<Item = Round>) -> (String, &'static str) {
        let word = word(&picture(rounds), at(100));
        let class = word.class();
        (word.text, class)
    }

    #[test]
    fn only_a_screen_on_which_nothing_needs_a_person_is_green() {
        assert_eq!(told([round()]), ("Working".into(), "good"));
        let mut letters = round();
        if let Some(Ok(books)) = &mut letters.inboxes[0].books {
            let group = Group { fingerprint: "503".into(), count: 1_335, ..Group::default() };
            (books.letters.total, books.letters.groups) = (1_335, vec![group]);
        }
        assert_eq!(told([letters.clone()]), ("Working, 1,335 dead letters".into(), "look"));
        let with_pending = |mut round: Round, pending| {
            if let Ok((status, _)) = &mut round.inboxes[0].processes[0].1 {
                status.consumers.get_mut("mailer").expect("it is there").pending = pending;
            }
            round
        };
        let behind = with_pending(letters.clone(), Some(12_245));
        assert_eq!(told([behind]), ("Working, mailer is behind".into(), "look"));
        let unknown = || with_pending(round(), None);
        let words = "Working, backlogs are not known yet";
        assert_eq!(told([unknown()]), (words.into(), "unknown"));
        assert_eq!(told([unknown(), round()]), ("Working".into(), "good"));
        let mut second = round();
        second.relays[0].processes.push(("10.0.0.3:9464".into(), Err(failure("refused"))));
        assert_eq!(told([second]), ("Working, relay needs a look".into(), "look"));
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
