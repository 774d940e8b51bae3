//! Brings the layers together in order of precedence.

use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::error::{Error, Origin, closest};
use super::given::Given;
use super::reference::{KEYS, Key, json, path_of};
use super::{LogFormat, environment, routes};

/// The file that is read if it is there and no other is named.
const DEFAULT_FILE: &str = "tailpost.toml";

/// What settings are read from, besides the defaults.
#[derive(Clone, Default)]
pub(crate) struct Sources {
    /// The file to read instead of [`DEFAULT_FILE`].
    pub(crate) file: Option<PathBuf>,
    /// The environment. Empty values count as not given, but those of secrets, which are refused.
    pub(crate) environment: Vec<(String, String)>,
    /// `--database-url`.
    pub(crate) database_url: Option<String>,
    /// `--nats-url`.
    pub(crate) nats_url: Option<String>,
    /// `--log-format`.
    pub(crate) log_format: Option<LogFormat>,
    /// `--consumer`: the only one to look at.
    pub(crate) consumer: Option<String>,
    /// `--handler` of that consumer.
    pub(crate) handler: Option<String>,
}

/// Takes the file and the environment into account, and of the flags only which consumer is meant.
pub(super) fn read(sources: &Sources) -> Result<Given, Error> {
    let mut given = Given::new();
    let default = Path::new(DEFAULT_FILE);
    match &sources.file {
        Some(path) => apply_file(&mut given, path)?,
        None if default.exists() => apply_file(&mut given, default)?,
        None => (),
    }
    // Before the environment: only what is known has variables.
    if let Some(consumer) = &sources.consumer {
        given.add_consumer(consumer, &Origin::Flag("--consumer"))?;
    }
    environment::apply(&mut given, &sources.environment)?;
    apply_flags(&mut given, sources);
    Ok(given)
}

fn apply_file(given: &mut Given, path: &Path) -> Result<(), Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::unreadable(path, source))?;
    let at = |offset: usize| {
        let before = text.get(..offset).unwrap_or_default();
        Origin::File(path.to_owned(), before.matches('\n').count() + 1)
    };
    let document = DeTable::parse(&text).map_err(|error| {
        Error::new(at(error.span().map_or(0, |span| span.start)), error.message())
    })?;
    apply_table(given, "", document.get_ref(), &at)
}

/// Takes what a table has. `within` is the table's path, which ends in a dot unless it is the whole file.
fn apply_table(
    given: &mut Given,
    within: &str,
    table: &DeTable<'_>,
    at: &dyn Fn(usize) -> Origin,
) -> Result<(), Error> {
    for (name, value) in table {
        let (path, origin) = (format!("{within}{}", name.get_ref()), at(name.span().start));
        let below = format!("{path}.");
        let is_section = KEYS.iter().any(|it| it.path.starts_with(&below));
        let is_table = Key::find(&path).is_some_and(|it| it.value.is_object());
        match value.get_ref() {
            _ if path == routes::SECTION => apply_routes(given, value, at)?,
            DeValue::Table(consumer) if within == "inbox." && !is_table => {
                given.add_consumer(name.get_ref(), &origin)?;
                apply_table(given, &below, consumer, at)?;
            }
            DeValue::Table(table) if is_section => apply_table(given, &below, table, at)?,
            _ if is_section => {
                let problem = format!("`{path}` is a section: write [{path}]");
                return Err(Error::new(origin, problem));
            }
            _ if within.is_empty() => return Err(unknown_section(origin, &path)),
            value => given.give(&path, json(value), origin)?,
        }
    }
    Ok(())
}

fn apply_routes(
    given: &mut Given,
    list: &toml::Spanned<DeValue<'_>>,
    at: &dyn Fn(usize) -> Origin,
) -> Result<(), Error> {
    let value = json(list.get_ref());
    if let Some(problem) = routes::misplaced(&value) {
        return Err(Error::new(at(list.span().start), problem));
    }
    given.set(routes::SECTION, value, at(list.span().start));
    for (index, item) in list.get_ref().as_array().into_iter().flatten().enumerate() {
        let path = format!("{}[{index}]", routes::SECTION);
        for (name, _) in item.get_ref().as_table().into_iter().flatten() {
            given.note(&format!("{path}.{}", name.get_ref()), at(name.span().start));
        }
        given.note(&path, at(item.span().start));
    }
    Ok(())
}

fn unknown_section(origin: Origin, name: &str) -> Error {
    let sections = KEYS.iter().filter_map(|it| it.path.split_once('.')).map(|(it, _)| it);
    let hint = closest(name, sections.chain([routes::SECTION])).map(|it| match it {
        routes::SECTION => format!("did you mean [[{it}]]?"),
        _ => format!("did you mean [{it}]?"),
    });
    // A key above the first section header belongs to none.
    let stray = KEYS.iter().find(|it| it.path.ends_with(&format!(".{name}")));
    let hint = stray
        .and_then(|it| it.path.rsplit_once('.'))
        .map(|(section, _)| format!("did you mean `{name}` below [{section}]?"))
        .or(hint);
    Error::new(origin, format!("unknown section `{name}`")).with_hint(hint)
}

fn apply_flags(given: &mut Given, sources: &Sources) {
    let format = sources.log_format.map(|it| match it {
        LogFormat::Text => "text",
        LogFormat::Json => "json",
    });
    let consumer = sources.consumer.as_deref().unwrap_or_default();
    let handler = path_of(Some(consumer), "handler");
    for (flag, path, value) in [
        ("--database-url", "postgres.url", sources.database_url.as_deref()),
        ("--nats-url", "nats.url", sources.nats_url.as_deref()),
        ("--log-format", "log.format", format),
        ("--handler", &handler, sources.handler.as_deref().filter(|_| !consumer.is_empty())),
    ] {
        if let Some(value) = value {
            given.set(path, value.into(), Origin::Flag(flag));
        }
    }
}
