//! `[[route]]`: the one setting that is a list, and so stands in the file only.

use outbox::wire::SubjectTemplate;
use relay::{Destination, Glob, Route};
use serde::Deserialize;
use serde_json::Value as Json;

use super::error::{Error, Origin, closest};
use super::forms::{Parsed, wanted};
use super::given::Given;

/// The name of the list.
pub(super) const SECTION: &str = "route";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    aggregate_type: Option<Parsed<Glob>>,
    event_type: Option<Parsed<Glob>>,
    subject: Option<Parsed<SubjectTemplate>>,
    drop: Option<bool>,
}

/// Reads all routes, in their order.
pub(super) fn read(given: &Given) -> Result<Vec<Route>, Error> {
    let Some(list) = given.value(SECTION) else { return Ok(Vec::new()) };
    let entries: Vec<Entry> =
        serde_path_to_error::deserialize(list).map_err(|error| refused(given, &error))?;
    let mut routes: Vec<(Route, Option<Origin>)> = Vec::new();
    for (index, entry) in entries.into_iter().enumerate() {
        let origin = given.origin(&format!("{SECTION}[{index}]"));
        let route = entry.route().map_err(|wrong| Error::about(origin.clone(), wrong))?;
        if let Some((_, earlier)) = routes.iter().find(|(it, _)| it.hides(&route)) {
            let problem = "this route never decides: an earlier one takes all of its events";
            let earlier = earlier.as_ref().map(ToString::to_string).unwrap_or_default();
            let hint = format!("the first route that takes an event decides; see {earlier}");
            return Err(Error::about(origin, problem).with_hint(Some(hint)));
        }
        routes.push((route, origin));
    }
    Ok(routes.into_iter().map(|(route, _)| route).collect())
}

impl Entry {
    fn route(self) -> Result<Route, &'static str> {
        if self.aggregate_type.is_none() && self.event_type.is_none() {
            return Err("a route needs `aggregate_type`, `event_type` or both; \"*\" takes all");
        }
        let destination = match (self.subject, self.drop) {
            (Some(subject), None) => Destination::Subject(subject.0),
            (None, Some(true)) => Destination::Drop,
            _ => return Err("a route needs either `subject` or `drop = true`"),
        };
        let glob = |it: Option<Parsed<Glob>>| it.map_or_else(Glob::any, |it| it.0);
        let (aggregate_type, event_type) = (glob(self.aggregate_type), glob(self.event_type));
        Ok(Route { aggregate_type, event_type, destination })
    }
}

fn refused(given: &Given, error: &serde_path_to_error::Error<serde_json::Error>) -> Error {
    let (path, message) = (format!("{SECTION}{}", error.path()), error.inner().to_string());
    // serde lists what it knows: unknown field `a`, expected one of `b`, `c`.
    if let Some(rest) = message.strip_prefix("unknown field `") {
        let (name, known) = rest.split_once('`').unwrap_or_default();
        let route = path.split('.').next().unwrap_or_default();
        let hint = closest(name, known.split('`').skip(1).step_by(2));
        let problem = format!("unknown key `{name}` in a route");
        return Error::about(given.origin(&format!("{route}.{name}")), problem)
            .with_hint(hint.map(|it| format!("did you mean `{it}`?")));
    }
    let name = path.rsplit('.').next().unwrap_or_default();
    let problem = format!("`{name}` of a route must be {}", wanted(&message));
    Error::about(given.origin(&path), problem)
}

/// What is in the place of a list of tables.
pub(super) fn misplaced(list: &Json) -> Option<String> {
    let Some(items) = list.as_array() else {
        return Some(format!("`{SECTION}` is a list: write [[{SECTION}]] above each"));
    };
    let is_wrong = !items.iter().all(Json::is_object);
    is_wrong.then(|| format!("a route is a table: write [[{SECTION}]]"))
}
