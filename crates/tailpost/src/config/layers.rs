//! Brings the layers together in order of precedence.

use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::error::{Error, Origin, closest};
use super::given::Given;
use super::reference::{INBOX, KEYS, Key, json, path_of};
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
    for (section, value) in document.get_ref() {
        let (name, origin) = (section.get_ref(), at(section.span().start));
        if name == routes::SECTION {
            apply_routes(given, value, &at)?;
            continue;
        }
        if !sections().any(|it| it == name) {
            return Err(unknown_section(origin, name));
        }
        let table = value.get_ref().as_table().ok_or_else(|| not_a_section(origin, name))?;
        apply_section(given, name, table, &at)?;
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

fn apply_section(
    given: &mut Given,
    section: &str,
    table: &DeTable<'_>,
    at: &dyn Fn(usize) -> Origin,
) -> Result<(), Error> {
    for (name, value) in table {
        let (path, origin) = (format!("{section}.{}", name.get_ref()), at(name.span().start));
        let is_section = KEYS.iter().any(|it| it.path.starts_with(&format!("{path}.")));
        match value.get_ref() {
            DeValue::Table(consumer) if section == INBOX => {
                given.add_consumer(name.get_ref(), &origin)?;
                for (key, value) in consumer {
                    let (key, origin) = (key.get_ref(), at(key.span().start));
                    given.set_of_consumer(name.get_ref(), key, json(value.get_ref()), origin)?;
                }
            }
            DeValue::Table(table) if is_section => apply_section(given, &path, table, at)?,
            _ if is_section => return Err(not_a_section(origin, &path)),
            value => {
                let value = json(value);
                if let Some(gone) = Error::removed(&origin, &path, value.as_str()) {
                    return Err(gone);
                }
                Key::find(&path).ok_or_else(|| unknown_key(origin.clone(), &path))?;
                given.set(&path, value, origin);
            }
        }
    }
    Ok(())
}

fn unknown_key(origin: Origin, path: &str) -> Error {
    let hint = closest(path, KEYS.iter().map(|it| it.path.as_str()));
    Error::new(origin, format!("unknown key `{path}`"))
        .with_hint(hint.map(|it| format!("did you mean `{it}`?")))
}

fn not_a_section(origin: Origin, name: &str) -> Error {
    Error::new(origin, format!("`{name}` is a section: write [{name}]"))
}

fn sections() -> impl Iterator<Item = &'static str> {
    KEYS.iter().filter_map(|it| it.path.split_once('.')).map(|(it, _)| it)
}

fn unknown_section(origin: Origin, name: &str) -> Error {
    let hint = closest(name, sections().chain([routes::SECTION])).map(|it| match it {
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
