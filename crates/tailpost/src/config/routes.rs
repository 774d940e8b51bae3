//! `[[route]]`: the one setting that is a list, and so stands in the file only.

use std::fmt::Display;
use std::str::FromStr;

use relay::{Destination, Glob, Route};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Error, Origin, closest};
use super::value::Value;

/// The name of the list.
pub(super) const SECTION: &str = "route";
const KEYS: [&str; 4] = ["aggregate_type", "event_type", "subject", "drop"];

/// Reads all routes, in their order.
pub(super) fn parse(
    list: &Spanned<DeValue<'_>>,
    at: &impl Fn(usize) -> Origin,
) -> Result<Vec<Route>, Error> {
    let start = at(list.span().start);
    let tables = list.get_ref().as_array();
    let tables = tables.ok_or_else(|| {
        Error::new(start, format!("`{SECTION}` is a list: write [[{SECTION}]] above each"))
    })?;
    let mut routes: Vec<(Route, Origin)> = Vec::new();
    for item in tables {
        let origin = at(item.span().start);
        let wrong = |problem: &str| Error::new(origin.clone(), problem);
        let table = item.get_ref().as_table();
        let table = table.ok_or_else(|| wrong("a route is a table: write [[route]]"))?;
        let route = route(table, &origin, at)?;
        if let Some((_, earlier)) = routes.iter().find(|(it, _)| it.hides(&route)) {
            let problem = "this route never decides: an earlier one takes all of its events";
            let hint = format!("the first route that takes an event decides; see {earlier}");
            return Err(wrong(problem).with_hint(Some(hint)));
        }
        routes.push((route, origin));
    }
    Ok(routes.into_iter().map(|(route, _)| route).collect())
}

fn route(
    table: &DeTable<'_>,
    origin: &Origin,
    at: &impl Fn(usize) -> Origin,
) -> Result<Route, Error> {
    let (mut aggregate_type, mut event_type) = (None, None);
    let (mut subject, mut drop) = (None, None);
    for (name, value) in table {
        let (name, origin) = (name.get_ref(), at(name.span().start));
        let value = Value::Toml(value.get_ref());
        match name.as_ref() {
            "aggregate_type" => aggregate_type = Some(parsed::<Glob>(name, value, origin)?),
            "event_type" => event_type = Some(parsed::<Glob>(name, value, origin)?),
            "subject" => subject = Some(parsed(name, value, origin)?),
            "drop" => {
                drop = Some(value.bool().map_err(|wanted| must_be(name, &wanted, origin))?);
            }
            _ => {
                let hint = closest(name, KEYS).map(|it| format!("did you mean `{it}`?"));
                let problem = format!("unknown key `{name}` in a route");
                return Err(Error::new(origin, problem).with_hint(hint));
            }
        }
    }
    let wrong = |problem: &str| Err(Error::new(origin.clone(), problem));
    if aggregate_type.is_none() && event_type.is_none() {
        return wrong("a route needs `aggregate_type`, `event_type` or both; \"*\" takes all");
    }
    let destination = match (subject, drop) {
        (Some(subject), None) => Destination::Subject(subject),
        (None, Some(true)) => Destination::Drop,
        _ => return wrong("a route needs either `subject` or `drop = true`"),
    };
    let glob = |it: Option<Glob>| it.unwrap_or_else(Glob::any);
    Ok(Route { aggregate_type: glob(aggregate_type), event_type: glob(event_type), destination })
}

fn parsed<T>(name: &str, value: Value<'_>, origin: Origin) -> Result<T, Error>
where
    T: FromStr,
    T::Err: Display,
{
    let text = value.text().map_err(|wanted| must_be(name, &wanted, origin.clone()))?;
    text.parse().map_err(|error| must_be(name, &format!("valid: {error}"), origin))
}

fn must_be(name: &str, wanted: &str, origin: Origin) -> Error {
    Error::new(origin, format!("`{name}` of a route must be {wanted}"))
}
