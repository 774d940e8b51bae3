//! Brings the layers together in order of precedence.

use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Error, Origin, closest};
use super::keys::{KEYS, Key};
use super::routes;
use super::value::Value;
use super::{LogFormat, Settings, environment, inbox_settings};

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

pub(super) fn apply(settings: &mut Settings, sources: &Sources) -> Result<(), Error> {
    let default = Path::new(DEFAULT_FILE);
    match &sources.file {
        Some(path) => apply_file(settings, path)?,
        None if default.exists() => apply_file(settings, default)?,
        None => (),
    }
    // Before the environment: only what is known has variables.
    if let Some(consumer) = &sources.consumer {
        settings.add_consumer(consumer, &Origin::Flag("--consumer"))?;
    }
    environment::apply(settings, &sources.environment)?;
    apply_flags(settings, sources)
}

fn apply_file(settings: &mut Settings, path: &Path) -> Result<(), Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::unreadable(path, source))?;
    let at = |offset: usize| {
        let before = text.get(..offset).unwrap_or_default();
        Origin::File(path.to_owned(), before.matches('\n').count() + 1)
    };
    let document = DeTable::parse(&text).map_err(|error| {
        Error::new(at(error.span().map_or(0, |span| span.start)), error.message())
    })?;
    for (section, value) in document.get_ref() {
        let name = section.get_ref();
        if name == routes::SECTION {
            settings.routes = routes::parse(value, &at)?;
            settings.given.note_routes(value.get_ref());
            continue;
        }
        if name == inbox_settings::SECTION
            && let Some(table) = value.get_ref().as_table()
        {
            settings.apply_inbox(table, &at)?;
            continue;
        }
        if !sections().any(|it| it == name) {
            return Err(unknown_section(at(section.span().start), name));
        }
        let Some(table) = value.get_ref().as_table() else {
            return Err(not_a_section(at(section.span().start), name));
        };
        apply_section(settings, name, table, &at)?;
    }
    Ok(())
}

fn apply_section(
    settings: &mut Settings,
    section: &str,
    table: &DeTable<'_>,
    at: &dyn Fn(usize) -> Origin,
) -> Result<(), Error> {
    for (name, value) in table {
        let path = format!("{section}.{}", name.get_ref());
        let origin = at(name.span().start);
        let is_section = || KEYS.iter().any(|it| it.path.starts_with(&format!("{path}.")));
        if is_section() {
            let table = value.get_ref().as_table().ok_or_else(|| not_a_section(origin, &path))?;
            apply_section(settings, &path, table, at)?;
            continue;
        }
        if let Some(gone) = Error::removed(origin.clone(), &path, &Value::Toml(value.get_ref())) {
            return Err(gone);
        }
        let key = Key::find(&path).ok_or_else(|| {
            let hint = closest(&path, KEYS.iter().map(|it| it.path));
            Error::new(origin.clone(), format!("unknown key `{path}`"))
                .with_hint(hint.map(|it| format!("did you mean `{it}`?")))
        })?;
        let value: &Spanned<DeValue<'_>> = value;
        key.apply(settings, Value::Toml(value.get_ref()), origin)?;
    }
    Ok(())
}

fn not_a_section(origin: Origin, name: &str) -> Error {
    Error::new(origin, format!("`{name}` is a section: write [{name}]"))
}

fn sections() -> impl Iterator<Item = &'static str> {
    let of_keys = KEYS.iter().filter_map(|it| it.path.split_once('.')).map(|(it, _)| it);
    of_keys.chain([inbox_settings::SECTION])
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

fn apply_flags(settings: &mut Settings, sources: &Sources) -> Result<(), Error> {
    let format = sources.log_format.map(|it| match it {
        LogFormat::Text => "text",
        LogFormat::Json => "json",
    });
    for (flag, path, value) in [
        ("--database-url", "postgres.url", sources.database_url.as_deref()),
        ("--nats-url", "nats.url", sources.nats_url.as_deref()),
        ("--log-format", "log.format", format),
    ] {
        if let Some(value) = value {
            let key = Key::find(path).expect("flags name settings");
            key.apply(settings, Value::Text(value), Origin::Flag(flag))?;
        }
    }
    match &sources.consumer {
        Some(consumer) => settings.apply_inbox_flags(consumer, sources.handler.as_deref()),
        None => Ok(()),
    }
}
