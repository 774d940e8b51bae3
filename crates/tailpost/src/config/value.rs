//! Values as they come from a file (typed) or from elsewhere (text), and the forms they take.

use std::borrow::Cow;
use std::time::Duration;

use toml::de::DeValue;

/// A value before it has found its setting.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    /// From a variable or a flag.
    Text(&'a str),
    /// From a file.
    Toml(&'a DeValue<'a>),
}

/// What a setting wants instead of what it was given.
pub(super) type Wanted = Cow<'static, str>;

impl<'a> Value<'a> {
    pub(super) fn text(self) -> Result<&'a str, Wanted> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Toml(DeValue::String(text)) => Ok(text),
            Self::Toml(_) => Err("a string".into()),
        }
    }

    /// A password, or the like. An empty one is a mistake: it would let everybody in, or nobody.
    pub(super) fn secret(self) -> Result<&'a str, Wanted> {
        let text = self.text()?;
        if text.trim().is_empty() { Err("a secret, not an empty one".into()) } else { Ok(text) }
    }

    /// A secret that can be given as `Authorization: Bearer SECRET` (RFC 6750).
    pub(super) fn bearer_token(self) -> Result<&'a str, Wanted> {
        let token = self.secret()?;
        if !token.bytes().all(|it| it.is_ascii_graphic()) {
            return Err("made of visible ASCII characters, without spaces".into());
        }
        Ok(token)
    }

    pub(super) fn bool(self) -> Result<bool, Wanted> {
        match self {
            Self::Toml(DeValue::Boolean(value)) => Ok(*value),
            Self::Text("true") => Ok(true),
            Self::Text("false") => Ok(false),
            _ => Err("true or false".into()),
        }
    }

    pub(super) fn integer(self) -> Result<usize, Wanted> {
        let parsed = match self {
            Self::Text(text) => text.parse().ok(),
            Self::Toml(DeValue::Integer(value)) => {
                usize::from_str_radix(value.as_str(), value.radix()).ok()
            }
            Self::Toml(_) => None,
        };
        parsed.ok_or_else(|| "a whole number".into())
    }

    /// A list of strings; as text, separated by commas.
    pub(super) fn list(self) -> Result<Vec<String>, Wanted> {
        let wanted = || Wanted::from("a list of strings");
        match self {
            Self::Text(text) => Ok(text.split(',').map(|it| it.trim().to_owned()).collect()),
            Self::Toml(DeValue::Array(values)) => values
                .iter()
                .map(|it| it.get_ref().as_str().map(str::to_owned).ok_or_else(wanted))
                .collect(),
            Self::Toml(_) => Err(wanted()),
        }
    }

    /// A program and its arguments, which may have anything in them: as text, a list in JSON.
    pub(super) fn argv(self) -> Result<Vec<String>, Wanted> {
        match self {
            Self::Text(text) => serde_json::from_str(text).map_err(|_| "a list in JSON".into()),
            Self::Toml(_) => self.list(),
        }
    }

    pub(super) fn duration(self) -> Result<Duration, Wanted> {
        const UNITS: [(&str, u64); 5] =
            [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
        self.text()
            .ok()
            .and_then(|text| scaled(text, &UNITS))
            .map(Duration::from_millis)
            .ok_or_else(|| {
                "a duration such as \"500ms\", \"30s\", \"2m\", \"12h\" or \"7d\"".into()
            })
    }

    /// A number of bytes.
    pub(super) fn size(self) -> Result<u64, Wanted> {
        const UNITS: [(&str, u64); 5] =
            [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
        self.text()
            .ok()
            .and_then(|text| scaled(text, &UNITS))
            .ok_or_else(|| "a size such as \"512KiB\", \"64MiB\" or \"10GiB\"".into())
    }

    /// `None` if the value is the word "off", else what `parse` makes of it.
    pub(super) fn unless_off<T>(
        self,
        parse: impl FnOnce(Self) -> Result<T, Wanted>,
    ) -> Result<Option<T>, Wanted> {
        match self.text() {
            Ok("off") => Ok(None),
            _ => parse(self).map(Some).map_err(|wanted| format!("{wanted}, or \"off\"").into()),
        }
    }
}

/// Parses a whole number followed by one of the units.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|it: char| !it.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        for (text, millis) in
            [("0s", 0), ("250ms", 250), ("30s", 30_000), ("2 m", 120_000), ("7d", 604_800_000)]
        {
            let duration = Value::Text(text).duration();
            assert_eq!(duration, Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "30", "s", "-1s", "1.5s", "30 sec", "99999999999999999999d"] {
            assert!(Value::Text(text).duration().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_a_unit() {
        for (text, bytes) in [("1B", 1), ("512KiB", 524_288), ("64MiB", 67_108_864)] {
            assert_eq!(Value::Text(text).size(), Ok(bytes), "{text}");
        }
        for text in ["", "64", "64MB", "16777216TiB"] {
            assert!(Value::Text(text).size().is_err(), "{text}");
        }
    }

    #[test]
    fn off_is_said_to_be_possible() {
        assert_eq!(Value::Text("off").unless_off(Value::size), Ok(None));
        assert_eq!(Value::Text("1B").unless_off(Value::size), Ok(Some(1)));
        let wanted = Value::Text("never").unless_off(Value::size).expect_err("no size");
        assert!(wanted.ends_with("or \"off\""), "{wanted}");
    }
}
