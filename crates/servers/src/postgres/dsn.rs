//! Takes a connection string apart far enough to find the options that tokio-postgres lacks.

use percent_encoding::percent_decode_str;

use crate::error::Error;

/// A connection string without the TLS options, and those options.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dsn {
    /// What tokio-postgres may parse.
    pub(super) plain: String,
    /// The `ssl*` options in order of appearance, decoded.
    pub(super) tls: Vec<(String, String)>,
}

const TLS_OPTIONS: [&str; 4] = ["sslmode", "sslrootcert", "sslcert", "sslkey"];

impl Dsn {
    /// Splits a `postgres://` URL or a `key=value` string.
    pub(super) fn split(dsn: &str) -> Result<Self, Error> {
        if dsn.starts_with("postgres://") || dsn.starts_with("postgresql://") {
            split_url(dsn)
        } else if dsn.contains("://") {
            Err(invalid("the scheme must be postgres:// or postgresql://"))
        } else if dsn.contains('=') {
            split_pairs(dsn)
        } else {
            Err(invalid("expected postgres://user@host/dbname or host=... dbname=..."))
        }
    }
}

fn invalid(reason: impl Into<String>) -> Error {
    Error::invalid("postgres.url", reason)
}

fn split_url(url: &str) -> Result<Dsn, Error> {
    // The same loose rule as libpq: credentials reach to the first `@`, so a `?` in them is theirs.
    let authority = url.find('@').map_or(0, |at| at + 1);
    let Some(mark) = url[authority..].find('?').map(|at| authority + at) else {
        return Ok(Dsn { plain: url.to_owned(), tls: Vec::new() });
    };
    let mut tls = Vec::new();
    let mut kept = Vec::new();
    for pair in url[mark + 1..].split('&').filter(|it| !it.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if TLS_OPTIONS.contains(&key) {
            let value = percent_decode_str(value)
                .decode_utf8()
                .map_err(|_| invalid(format!("{key} is not UTF-8")))?;
            tls.push((key.to_owned(), value.into_owned()));
        } else {
            kept.push(pair);
        }
    }
    let mut plain = url[..mark].to_owned();
    if !kept.is_empty() {
        plain = format!("{plain}?{}", kept.join("&"));
    }
    Ok(Dsn { plain, tls })
}

fn split_pairs(dsn: &str) -> Result<Dsn, Error> {
    let mut tls = Vec::new();
    let mut kept = Vec::new();
    let mut rest = dsn.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest
            .split_once('=')
            .ok_or_else(|| invalid("expected key=value pairs separated by spaces"))?;
        let key = key.trim_end();
        let (value, after) = take_value(after.trim_start())?;
        if TLS_OPTIONS.contains(&key) {
            tls.push((key.to_owned(), value));
        } else {
            kept.push(format!("{key}='{}'", value.replace('\\', "\\\\").replace('\'', "\\'")));
        }
        rest = after.trim_start();
    }
    Ok(Dsn { plain: kept.join(" "), tls })
}

/// Reads one value: quoted by `'`, or up to the next space; `\` escapes in both.
fn take_value(text: &str) -> Result<(String, &str), Error> {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut chars = text.char_indices().skip(usize::from(quoted));
    while let Some((at, char)) = chars.next() {
        match char {
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            '\'' if quoted => return Ok((value, &text[at + 1..])),
            space if !quoted && space.is_whitespace() => return Ok((value, &text[at..])),
            other => value.push(other),
        }
    }
    if quoted { Err(invalid("a quoted value does not end")) } else { Ok((value, "")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(dsn: &str, plain: &str, tls: &[(&str, &str)]) {
        let tls = tls.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let split = Dsn::split(dsn).unwrap_or_else(|error| panic!("{dsn}: {error}"));
        assert_eq!(split, Dsn { plain: plain.to_owned(), tls }, "{dsn}");
    }

    #[test]
    fn tls_options_are_taken_out_of_urls() {
        check("postgres://h/db", "postgres://h/db", &[]);
        check("postgres://h/db?sslmode=require", "postgres://h/db", &[("sslmode", "require")]);
        check(
            "postgres://u:p?w@h/db?connect_timeout=3&sslrootcert=%2Fetc%2Fca%20x.pem&options=-c%20a%3Db",
            "postgres://u:p?w@h/db?connect_timeout=3&options=-c%20a%3Db",
            &[("sslrootcert", "/etc/ca x.pem")],
        );
    }

    #[test]
    fn tls_options_are_taken_out_of_pairs() {
        check("host=h sslmode = verify-full", "host='h'", &[("sslmode", "verify-full")]);
        check(
            r"password='it\'s a \\' sslkey='/a b/k.pem' dbname=d",
            r"password='it\'s a \\' dbname='d'",
            &[("sslkey", "/a b/k.pem")],
        );
        check("password='' host=h", "password='' host='h'", &[]);
    }

    #[test]
    fn other_strings_are_refused() {
        for dsn in ["", "localhost", "mysql://h/db", "host='h", "host"] {
            assert!(Dsn::split(dsn).is_err(), "{dsn}");
        }
    }
}
