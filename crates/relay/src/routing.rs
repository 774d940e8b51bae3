//! Which events are published, and under which subject.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use outbox::Event;
use outbox::wire::{SubjectTemplate, subject_matches};

use crate::engine::Unpublished;

/// A rule about events. Of several rules, the first that takes an event decides about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The aggregate types that it takes.
    pub aggregate_type: Glob,
    /// The event types that it takes.
    pub event_type: Glob,
    /// What becomes of those events.
    pub destination: Destination,
}

/// What a [`Route`] does with an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Publishes it under this subject.
    Subject(SubjectTemplate),
    /// Never publishes it: its row is marked as done, without a stream.
    Drop,
}

impl Route {
    /// Whether every event that `later` takes is taken by this rule, so that `later`, behind it,
    /// would never decide about any.
    pub fn hides(&self, later: &Self) -> bool {
        self.aggregate_type.covers(&later.aggregate_type)
            && self.event_type.covers(&later.event_type)
    }

    fn takes(&self, event: &Event) -> bool {
        self.aggregate_type.matches(&event.aggregate_type)
            && self.event_type.matches(&event.event_type)
    }
}

/// A text in which each `*` stands for any characters, also for none. There is nothing else to it:
/// case matters, and every other character means itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    /// What stands between the asterisks: one piece more than there are asterisks.
    pieces: Vec<String>,
}

impl Glob {
    /// Takes every text: `*`.
    pub fn any() -> Self {
        Self { pieces: vec![String::new(), String::new()] }
    }

    /// Whether it takes `text`.
    pub fn matches(&self, text: &str) -> bool {
        let Some((first, rest)) = self.pieces.split_first() else { return false };
        let Some((last, middle)) = rest.split_last() else { return text == first };
        let Some(mut text) = text.strip_prefix(first.as_str()) else { return false };
        for piece in middle {
            // The leftmost place leaves the most for what follows.
            let Some(at) = text.find(piece.as_str()) else { return false };
            text = &text[at + piece.len()..];
        }
        text.ends_with(last.as_str())
    }

    /// Whether it takes everything that `other` takes.
    fn covers(&self, other: &Self) -> bool {
        // In place of the other's asterisks stands what no text in PostgreSQL contains, so that only
        // an asterisk of this one can take it, and with it anything else in its place.
        self.matches(&other.pieces.join("\0"))
    }

    /// The same as a pattern of SQL's `LIKE`, with the backslash as its escape.
    pub fn like(&self) -> String {
        let escaped =
            |piece: &String| piece.replace('\\', r"\\").replace('%', r"\%").replace('_', r"\_");
        self.pieces.iter().map(escaped).collect::<Vec<_>>().join("%")
    }
}

impl FromStr for Glob {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self { pieces: text.split('*').map(str::to_owned).collect() })
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.pieces.join("*"))
    }
}

/// All rules, and the template for what none of them takes.
#[derive(Debug, Clone)]
pub struct Routing {
    routes: Vec<Route>,
    otherwise: SubjectTemplate,
}

impl Routing {
    pub(crate) fn new(routes: Vec<Route>, otherwise: SubjectTemplate) -> Self {
        Self { routes, otherwise }
    }

    /// The subject of an event, or why it has none.
    pub fn subject(&self, event: &Event) -> Result<String, Unpublished> {
        let template = match self.routes.iter().find(|it| it.takes(event)) {
            None => &self.otherwise,
            Some(Route { destination: Destination::Subject(template), .. }) => template,
            Some(Route { destination: Destination::Drop, .. }) => {
                return Err(Unpublished::Dropped);
            }
        };
        template.render(event).map_err(|error| Unpublished::Unfit(error.to_string()))
    }

    /// Patterns that together take every subject that there can be, none of them superfluous.
    pub fn patterns(&self) -> Vec<String> {
        let templates = self.routes.iter().filter_map(|it| match &it.destination {
            Destination::Subject(template) => Some(template),
            Destination::Drop => None,
        });
        let any = Glob::any();
        let takes_all = |it: &Route| it.aggregate_type.covers(&any) && it.event_type.covers(&any);
        let otherwise = (!self.routes.iter().any(takes_all)).then_some(&self.otherwise);
        let all = otherwise.into_iter().chain(templates).flat_map(SubjectTemplate::patterns);
        all.fold(Vec::new(), |mut needed: Vec<String>, pattern| {
            if !needed.iter().any(|it| subject_matches(it, &pattern)) {
                needed.retain(|it| !subject_matches(&pattern, it));
                needed.push(pattern);
            }
            needed
        })
    }
}

#[cfg(test)]
mod tests;
