mod reference_page;

use std::time::Duration;

use outbox::Column;
use relay::{Destination, Mode};

use super::reference::{KEYS, REFERENCE, is_secret, setting};
use super::*;

fn load(toml: &str, environment: &[(&str, &str)]) -> Result<Settings, Error> {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().expect("temporary file");
    std::io::Write::write_all(&mut file, toml.as_bytes()).expect("temporary file");
    Settings::load(&Sources {
        file: Some(file.path().to_owned()),
        environment: owned(environment),
        ..Sources::default()
    })
}

fn owned(environment: &[(&str, &str)]) -> Vec<(String, String)> {
    environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

pub(super) fn loaded(toml: &str, environment: &[(&str, &str)]) -> Settings {
    match load(toml, environment) {
        Ok(settings) => settings,
        Err(error) => panic!("{toml} {environment:?}: {error}"),
    }
}

pub(crate) fn of_environment(variables: &[(&str, &str)]) -> Settings {
    let environment = variables.iter().map(|(name, it)| (format!("TAILPOST_{name}"), (*it).into()));
    let sources = Sources { environment: environment.collect(), ..Sources::default() };
    Settings::load(&sources).unwrap_or_else(|error| panic!("{error}"))
}

/// The error's text without the name of the temporary file, and the hint.
pub(crate) fn refusal(toml: &str, environment: &[(&str, &str)]) -> (String, String) {
    let Err(error) = load(toml, environment) else {
        panic!("accepted: {toml} {environment:?}");
    };
    let text = error.to_string();
    let text = text.split_once(".toml").map_or(text.as_str(), |(_, rest)| rest);
    (text.to_owned(), error.hint().unwrap_or_default())
}

#[test]
fn each_layer_overrides_the_one_below() {
    let toml = "[postgres]\nurl = 'postgres://file/db'\n[relay]\nscan_batch = 7\n";
    assert_eq!(loaded("", &[]).postgres.url, None);
    let url = |settings: Settings| settings.postgres.url.expect("a URL");
    assert_eq!(url(loaded(toml, &[])), "postgres://file/db");
    let alias = ("DATABASE_URL", "postgres://alias/db");
    assert_eq!(url(loaded(toml, &[alias])), "postgres://alias/db");
    let own = ("TAILPOST_POSTGRES__URL", "postgres://own/db");
    assert_eq!(url(loaded(toml, &[own, alias])), "postgres://own/db");
    assert_eq!(url(loaded(toml, &[("DATABASE_URL", "")])), "postgres://file/db");

    let flags = Sources {
        environment: owned(&[own, alias]),
        database_url: Some("postgres://flag/db".into()),
        log_format: Some(LogFormat::Json),
        ..Sources::default()
    };
    let settings = Settings::load(&flags).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(settings.log.format.0, LogFormat::Json);
    assert_eq!(url(settings), "postgres://flag/db");
    assert_eq!(loaded(toml, &[]).relay.scan_batch.0, 7);
    assert_eq!(loaded(toml, &[("TAILPOST_RELAY__SCAN_BATCH", "8")]).relay.scan_batch.0, 8);
}

#[test]
fn values_mean_the_same_in_a_file_and_in_the_environment() {
    let toml = "[stream]\nsubjects = ['a.>', 'b.>']\nmax_age = '7d'\nmax_bytes = 'off'\n\
                [relay]\nmode = 'keyed'\nwindow_bytes = '64MiB'\nscan_interval = '30s'\n\
                [nats]\ntls_first = true\n[admin]\nlisten = 'off'\n";
    let environment = [
        ("TAILPOST_STREAM__SUBJECTS", "a.>, b.>"),
        ("TAILPOST_STREAM__MAX_AGE", "7d"),
        ("TAILPOST_STREAM__MAX_BYTES", "off"),
        ("TAILPOST_RELAY__MODE", "keyed"),
        ("TAILPOST_RELAY__WINDOW_BYTES", "64MiB"),
        ("TAILPOST_RELAY__SCAN_INTERVAL", "30s"),
        ("TAILPOST_NATS__TLS_FIRST", "true"),
        ("TAILPOST_ADMIN__LISTEN", "off"),
    ];
    for settings in [loaded(toml, &[]), loaded("", &environment)] {
        assert_eq!(settings.stream.subjects, ["a.>", "b.>"]);
        assert_eq!(settings.stream.max_age.map(|it| it.0), Some(Duration::from_hours(7 * 24)));
        assert!(settings.stream.max_bytes.is_none());
        assert_eq!(settings.relay.mode.0, Mode::Keyed);
        assert_eq!(settings.relay.window_bytes.0, 64 << 20);
        assert_eq!(settings.relay.scan_interval.0, Duration::from_secs(30));
        assert!(settings.nats.tls_first);
        assert_eq!(*settings.admin.listen, None);
    }
}

#[test]
fn unknown_names_are_refused_with_place_and_suggestion() {
    let check = |toml: &str, environment: &[(&str, &str)], error: &str, hint: &str| {
        assert_eq!(refusal(toml, environment), (error.to_owned(), hint.to_owned()), "{toml}");
    };
    check(
        "[postgres]\nslot = 'a'\ntabel = 'x'\n",
        &[],
        ":3: unknown key `postgres.tabel`",
        "did you mean `postgres.table`?",
    );
    check("[postgre]\n", &[], ":1: unknown section `postgre`", "did you mean [postgres]?");
    check("url = 'x'\n", &[], ":1: unknown section `url`", "did you mean `url` below [postgres]?");
    check("nats = 1\n", &[], ":1: `nats` is a section: write [nats]", "");
    check(
        "",
        &[("TAILPOST_RELAY__SCAN_BACH", "1")],
        "TAILPOST_RELAY__SCAN_BACH: no setting has this variable",
        "did you mean TAILPOST_RELAY__SCAN_BATCH?",
    );
    // A wild guess would be worse than none.
    check("[postgres]\nmystery = 'x'\n", &[], ":2: unknown key `postgres.mystery`", "");
    check(
        "",
        &[("TAILPOST_POSTGRES_URL", "x")],
        "TAILPOST_POSTGRES_URL: no setting has this variable",
        "did you mean TAILPOST_POSTGRES__URL?",
    );
}

#[test]
fn polling_has_its_documented_variables() {
    let settings = loaded(
        "[relay]\nmode = 'poll'\npoll_batch = 7\n",
        &[
            ("TAILPOST_OUTBOX_WORKERS", "3"),
            ("TAILPOST_OUTBOX_BATCH_SIZE", "9"),
            ("TAILPOST_OUTBOX_POLL_MS", "20"),
            ("TAILPOST_RELAY__POLL_WORKERS", "4"),
        ],
    );
    let it = settings.relay;
    assert_eq!((it.poll_workers.0, it.poll_batch.0), (4, 9));
    assert_eq!(it.poll_interval.0, Duration::from_millis(20));
}

#[test]
fn columns_have_a_section_within_a_section() {
    let toml = "[outbox.columns]\nevent_type = 'type'\naggregate_id = 'Aggregate Id'\n";
    let database = ("DATABASE_URL", "postgres://a/b");
    let variable = ("TAILPOST_OUTBOX__COLUMNS__EVENT_TYPE", "kind");
    for (environment, name) in [(&[database][..], "type"), (&[database, variable], "kind")] {
        let Ok(config) = loaded(toml, environment).relay_config() else { panic!("valid") };
        assert_eq!(config.table.columns().name(Column::EventType), name);
        assert_eq!(config.table.column(Column::AggregateId), "\"Aggregate Id\"");
        assert_eq!(config.table.columns().name(Column::Id), "id");
    }
    let (error, hint) = refusal("[outbox.columns]\npayloat = 'x'\n", &[]);
    assert_eq!(error, ":2: unknown key `outbox.columns.payloat`");
    assert_eq!(hint, "did you mean `outbox.columns.payload`?");
    let (error, _) = refusal("[outbox]\ncolumns = 'x'\n", &[]);
    assert_eq!(error, ":2: `outbox.columns` is a section: write [outbox.columns]");
    let (error, _) = refusal("[outbox.columns]\nid = ''\n", &[]);
    assert!(error.contains("`outbox.columns.id` must be the name of a column"), "{error}");
    let twice = loaded("[outbox.columns]\nheaders = 'payload'\n", &[database]);
    let Err(error) = twice.relay_config() else { panic!("one column for two things") };
    assert!(error.to_string().contains(".toml:2: the column payload is named twice"), "{error}");
}

#[test]
fn routes_are_read_in_their_order() {
    let toml = "[[route]]\nevent_type = 'Order*'\nsubject = 'a.{aggregate_id}'\n\
                [[route]]\naggregate_type = 'internal'\nevent_type = '*'\ndrop = true\n";
    let settings = loaded(toml, &[("DATABASE_URL", "postgres://a/b")]);
    let Ok(config) = settings.relay_config() else { panic!("valid") };
    let [first, second] = &config.routes[..] else { panic!("{:?}", config.routes) };
    assert_eq!(
        (&*first.aggregate_type.to_string(), &*first.event_type.to_string()),
        ("*", "Order*")
    );
    assert!(
        matches!(&first.destination, Destination::Subject(it) if it.to_string() == "a.{aggregate_id}")
    );
    assert_eq!(second.aggregate_type.to_string(), "internal");
    assert_eq!(second.destination, Destination::Drop);
}

#[test]
fn routes_that_cannot_work_are_refused_with_place_and_reason() {
    let check = |toml: &str, error: &str, hint: &str| {
        let (text, told) = refusal(toml, &[]);
        assert!(text.contains(error), "{toml}: {text}");
        assert!(told.contains(hint), "{toml}: {told}");
    };
    check("[route]\ndrop = true", ":1: `route` is a list", "");
    check("[[routes]]\ndrop = true", ":1: unknown section `routes`", "did you mean [[route]]?");
    check(
        "[[route]]\nevent_typ = 'x'\ndrop = true",
        ":2: unknown key `event_typ` in a route",
        "did you mean `event_type`?",
    );
    check("[[route]]\ndrop = true", ":1: a route needs `aggregate_type`", "");
    check("[[route]]\nevent_type = 'x'", "either `subject` or `drop = true`", "");
    check("[[route]]\nevent_type = 'x'\ndrop = false", "either `subject` or `drop = true`", "");
    check("[[route]]\nevent_type = 'x'\nsubject = 'a'\ndrop = true", "either `subject` or", "");
    check(
        "[[route]]\nevent_type = 7\ndrop = true",
        ":2: `event_type` of a route must be a str",
        "",
    );
    check("[[route]]\nevent_type = 'x'\ndrop = 'yes'", ":3: `drop` of a route must be true or", "");
    check("[[route]]\nevent_type = 'x'\nsubject = 'a.{typ}'", ":3: `subject` of a route must", "");
    check(
        "[[route]]\nevent_type = 'Order*'\nsubject = 'a'\n\
         [[route]]\naggregate_type = 'x'\nevent_type = 'OrderPaid'\nsubject = 'b'",
        ":4: this route never decides",
        ".toml:1",
    );
    check("route = 1", ":1: `route` is a list", "");
    check("route = [1]", ":1: a route is a table", "");
}

#[test]
fn variables_of_the_harness_are_left_alone() {
    for name in ["TAILPOST_BIN", "TAILPOST_PG_BIN", "TAILPOST_NATS_SERVER", "TAILPOST_LOG", "HOME"]
    {
        loaded("", &[(name, "/somewhere")]);
    }
}

#[test]
fn wrong_values_are_refused_with_what_is_allowed() {
    for (toml, part) in [
        ("[relay]\nmode = 'loose'", "`relay.mode` must be one of `fenced`, `keyed`, `poll`"),
        ("[relay]\nscan_interval = 5", "`relay.scan_interval` must be a duration such as"),
        ("[relay]\nwindow_bytes = '64MB'", "`relay.window_bytes` must be a size such as"),
        ("[relay]\nscan_batch = '7'", "`relay.scan_batch` must be a whole number"),
        ("[relay]\nscan_batch = -7", "`relay.scan_batch` must be a whole number"),
        ("[nats]\ntls_first = 'yes'", "`nats.tls_first` must be true or false"),
        ("[stream]\nsubjects = 'a.>'", "`stream.subjects` must be a list of strings"),
        ("[stream]\nmax_age = 'never'", "or \"off\""),
        ("[admin]\nlisten = 'here'", "`admin.listen` must be an address with a port"),
        ("[log]\nformat = 'xml'", "`log.format` must be `text` or `json`"),
        ("[postgres]\nsslmode = 'maybe'", "`postgres.sslmode` must be disable, prefer"),
        ("[postgres\n", ":1: "),
    ] {
        let (error, _) = refusal(toml, &[]);
        assert!(error.contains(part), "{toml}: {error}");
    }
    let (error, _) = refusal("", &[("TAILPOST_RELAY__SCAN_BATCH", "many")]);
    assert_eq!(
        error,
        "TAILPOST_RELAY__SCAN_BATCH: `relay.scan_batch` must be a whole number from 1 to 100000"
    );
}

#[test]
fn values_beyond_their_bounds_are_refused_by_name() {
    for (section, key, value) in [
        ("stream", "replicas", "0"),
        ("stream", "duplicate_window", "'99ms'"),
        ("relay", "window_events", "65537"),
        ("relay", "window_bytes", "'1KiB'"),
        ("relay", "scan_batch", "0"),
        ("relay", "scan_interval", "'99ms'"),
        ("relay", "mark_batch", "0"),
        ("relay", "mark_interval", "'0s'"),
        ("relay", "poll_batch", "1001"),
        ("relay", "poll_workers", "65"),
        ("relay", "poll_interval", "'0s'"),
        ("relay", "max_attempts", "0"),
        ("relay", "ack_timeout", "'99ms'"),
        ("relay", "wal_limit", "'1KiB'"),
        ("relay", "shards", "65"),
        ("retention", "dead_letters", "'23h'"),
        ("retention", "audit", "'23h'"),
        ("retention", "interval", "'99ms'"),
        ("rewind", "retain", "'15MiB'"),
        ("rewind", "max_age", "'59s'"),
    ] {
        let (text, _) = refusal(&format!("[{section}]\n{key} = {value}\n"), &[]);
        assert!(text.contains(&format!("{section}.{key}")), "{key} = {value}: {text}");
    }
}

#[test]
fn a_named_file_must_exist() {
    let sources = Sources { file: Some("/no/tailpost.toml".into()), ..Sources::default() };
    let Err(error) = Settings::load(&sources) else { panic!("the file does not exist") };
    assert_eq!(error.to_string(), "could not read /no/tailpost.toml");
}

#[test]
fn what_the_relay_refuses_is_traced_to_its_place() {
    let settings = loaded("", &[("DATABASE_URL", "postgres://ada:s3cret@a,b/shop")]);
    let Err(error) = settings.relay_config() else { panic!("two hosts") };
    let text = error.to_string();
    assert!(text.starts_with("DATABASE_URL: invalid postgres.url: name one host"), "{text}");

    let settings = loaded("[postgres]\nurl = 'postgres://a/b'\nslot = 'My-Slot'\n", &[]);
    let Err(error) = settings.relay_config() else { panic!("not a slot") };
    assert!(error.to_string().contains(".toml:3: invalid postgres.slot"), "{error}");
}

#[test]
fn secrets_stay_out_of_errors() {
    for (toml, environment) in [
        ("[postgres]\nurl = ['postgres://ada:s3cret@a/b']", ("X", "x")),
        ("[nats]\ntoken = ['s3cret']", ("X", "x")),
        ("[nats]\npassword = 's3cret", ("X", "x")),
        ("[admin]\nlisten = '0.0.0.0:1'\ntokn = 's3cret'", ("X", "x")),
        ("", ("TAILPOST_NATS__PASSWRD", "s3cret")),
    ] {
        let (error, hint) = refusal(toml, &[environment]);
        assert!(!error.contains("s3cret") && !hint.contains("s3cret"), "{error} {hint}");
    }
    for url in ["mysql://ada:s3cret@a", "postgres://ada:s3cret@b@c/d", "ada:s3cret@a/b"] {
        let Err(error) = loaded("", &[("DATABASE_URL", url)]).relay_config() else {
            panic!("accepted {url}");
        };
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }
}

#[test]
fn without_a_database_the_error_says_how_to_name_one() {
    let Err(error) = loaded("", &[]).relay_config() else { panic!("no database") };
    assert_eq!(error.to_string(), "no database is configured");
    assert!(error.hint().expect("a hint").contains("DATABASE_URL"));
}

#[test]
fn the_admin_server_is_not_opened_to_the_world_without_a_token() {
    let (error, hint) = refusal("[admin]\nlisten = '0.0.0.0:9464'\n", &[]);
    assert!(error.contains("0.0.0.0:9464 is reachable from other machines"), "{error}");
    assert!(hint.contains("admin.token"), "{hint}");
    loaded("[admin]\nlisten = '0.0.0.0:9464'\ntoken = 't0ken'\n", &[]);
    loaded("[admin]\nlisten = '[::1]:9464'\n", &[]);
}

/// The reference shows every setting: the active ones with their defaults, the others, which have
/// no default, as comments.
#[test]
fn the_annotated_reference_is_complete_and_shows_the_defaults() {
    let database = ("POSTGRES__URL", "postgres://ada@localhost/shop");
    let Ok(found) = of_environment(&[database]).relay_config() else { panic!("valid") };
    let expected = Config::new(found.postgres.clone(), found.nats.clone());
    assert_eq!(format!("{found:?}"), format!("{expected:?}"), "the relay's own defaults");

    // What serde knows of each section, it lists in the refusal of another key.
    let mut known: Vec<String> = Vec::new();
    let sections: std::collections::BTreeSet<_> =
        KEYS.iter().filter_map(|it| it.path.rsplit_once('.')).map(|(section, _)| section).collect();
    for section in sections.into_iter().filter(|it| *it != "outbox.columns") {
        let mut given = given::Given::new().tree();
        given[section]["?"] = true.into();
        let error = serde_json::from_value::<Settings>(given).err().expect("unknown").to_string();
        let (_, fields) = error.split_once("expected ").expect("a list");
        known.extend(fields.split('`').skip(1).step_by(2).map(|it| format!("{section}.{it}")));
    }
    let columns = outbox::Column::ALL.iter();
    known.extend(columns.map(|it| format!("outbox.columns.{}", it.documented_name())));
    known.sort();
    let mut shown: Vec<_> = KEYS.iter().map(|it| it.path.clone()).collect();
    shown.sort();
    assert_eq!(shown, known, "something is not shown, is shown twice, or does not exist");
    let lines = REFERENCE.lines().filter(|it| setting(it).is_some()).count();
    assert_eq!(lines, shown.len(), "a line that is no setting");
}

#[test]
fn what_is_a_secret_is_known_as_one() {
    for key in KEYS.iter() {
        let given =
            if key.value.is_array() { r#"["#.to_owned() + r#"""]"# } else { r#""""#.into() };
        let (section, name) = key.path.rsplit_once('.').expect("section.key");
        let loaded = load(&format!("[{section}]\n{name} = {given}\n"), &[]);
        let told = loaded.err().map(|it| it.to_string()).unwrap_or_default();
        let wants = told.contains("must be a secret") || told.contains("must be a list of secrets");
        assert_eq!(wants, is_secret(&key.path), "{}: {told}", key.path);
    }
}

/// An empty token would let everybody in, and an empty signing secret signs what anybody could.
#[test]
fn empty_secrets_are_refused_wherever_they_come_from() {
    for path in ["admin.token", "nats.token", "nats.password", "nats.nkey", "inbox.secrets"] {
        let (section, key) = path.split_once('.').expect("section.key");
        let variable = format!("TAILPOST_{}", path.replace('.', "__").to_uppercase());
        for value in ["", " ", "\t \n"] {
            let wrap = |it: &str| if key == "secrets" { format!("[{it}]") } else { it.to_owned() };
            let toml = format!("[{section}]\n{key} = {}\n", wrap(&format!("{value:?}")));
            for (told, _) in [refusal(&toml, &[]), refusal("", &[(&variable, value)])] {
                assert!(told.contains(&format!("`{path}` must be ")), "{value:?}: {told}");
            }
        }
    }
    // Not a header's value.
    for token in ["a b", "grüße", "a\n", " a"] {
        let (told, _) = refusal("", &[("TAILPOST_ADMIN__TOKEN", token)]);
        assert!(told.contains("visible ASCII"), "{token:?}: {told}");
    }
    assert_eq!(loaded("", &[("TAILPOST_ADMIN__LISTEN", "")]).admin.token.map(|it| it.0), None);
}

#[test]
fn the_effective_settings_are_shown_with_their_origin_and_without_secrets() {
    let toml = "[nats]\nurl = 'nats://ada:s3cret@a:4222'\npassword = 's3cret'\n\
                [inbox.billing]\nhandler = 'https://ada:s3cret@b/c?key=s3cret'\n\
                [admin]\ntoken = 's3cret'\n[relay]\nwindow_events = 16\n";
    let environment = [
        ("DATABASE_URL", "postgres://ada:s3cret@c/shop?sslmode=disable"),
        ("TAILPOST_INBOX__SECRETS", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="),
    ];
    let shown = loaded(toml, &environment).shown();
    let of = |key: &str| shown.iter().find(|it| it.key == key).expect(key);
    let text = serde_json::to_string(&shown).expect("JSON");
    assert!(!text.contains("s3cret") && !text.contains("whsec_"), "{text}");
    assert_eq!(of("nats.password").value, Some("***".into()));
    assert_eq!(of("postgres.url").value, Some("postgres://ada@c:5432/shop".into()));
    assert_eq!(of("postgres.url").origin, "DATABASE_URL");
    assert_eq!(of("relay.window_events").value, Some(16.into()));
    assert!(of("relay.window_events").origin.ends_with(".toml:9"), "{text}");
    assert_eq!(
        (of("relay.scan_batch").value.clone(), &*of("relay.scan_batch").origin),
        (Some(1000.into()), "default")
    );
    assert_eq!(of("nats.creds").value, None);
    assert_eq!(of("inbox.billing.handler").value, Some("https://***@b/c?***".into()));
}

#[test]
fn a_program_that_gives_a_password_is_shown_without_its_arguments() {
    let of = |settings: Settings| {
        let shown = settings.shown();
        let found = shown.into_iter().find(|it| it.key == "postgres.password_command");
        found.expect("a setting").value.map(|it| it.to_string())
    };
    let toml = "[postgres]\npassword_command = ['/bin/token', 's3cret', 'x']\n";
    let variable = ("TAILPOST_POSTGRES__PASSWORD_COMMAND", r#"["/bin/token", "s3cret, x"]"#);
    for settings in [loaded(toml, &[]), loaded("", &[variable])] {
        assert_eq!(of(settings).as_deref(), Some(r#"["/bin/token","***"]"#));
    }
    assert_eq!(
        of(loaded("", &[("TAILPOST_POSTGRES__PASSWORD_COMMAND", r#"["a"]"#)])).as_deref(),
        Some(r#"["a"]"#)
    );
    assert_eq!(of(loaded("", &[])), None);
    for wrong in ["[]", "[\"\"]", "cat /s3cret", "[1]"] {
        let (text, _) = refusal("", &[("TAILPOST_POSTGRES__PASSWORD_COMMAND", wrong)]);
        assert!(text.contains("a program and its arguments") && !text.contains("s3cret"), "{text}");
    }
    let (text, _) = refusal("[postgres]\npassword_command = 'cat x'\n", &[]);
    assert!(text.contains("a program and its arguments"), "{text}");
}

#[test]
fn a_password_is_in_one_place() {
    let url = ("DATABASE_URL", "postgres://ada:s3cret@db/shop");
    let file = ("TAILPOST_POSTGRES__PASSWORD_FILE", "/run/secrets/postgres");
    let command = ("TAILPOST_POSTGRES__PASSWORD_COMMAND", r#"["token"]"#);
    let error = |environment: &[(&str, &str)]| {
        let error = loaded("", environment).postgres_target().expect_err("two passwords");
        assert!(!error.to_string().contains("s3cret"), "{error}");
        error.to_string()
    };
    let told = error(&[url, file]);
    assert!(told.contains("TAILPOST_POSTGRES__PASSWORD_FILE") && told.contains("a password too"));
    assert!(error(&[url, command]).contains("TAILPOST_POSTGRES__PASSWORD_COMMAND"));
    let plain = ("DATABASE_URL", "postgres://ada@db/shop");
    assert!(error(&[plain, file, command]).contains("postgres.password_file is set too"));
    loaded("", &[plain, file]).postgres_target().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn variables_of_opentelemetry_keep_nothing_from_starting() {
    let endpoint = |environment: &[(&str, &str)]| {
        let telemetry = loaded("", environment).telemetry;
        (telemetry.otlp_endpoint.map(|it| it.0), telemetry.unusable)
    };
    let name = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let usable = (name, "http://collector:4318");
    assert_eq!(endpoint(&[usable]), (Some(usable.1.to_owned()), None));
    assert_eq!(endpoint(&[(name, "collector:4317")]), (None, Some(name)));
    assert_eq!(endpoint(&[usable, ("OTEL_TRACES_EXPORTER", "none")]), (None, None));
    assert_eq!(endpoint(&[usable, ("OTEL_SDK_DISABLED", "TRUE")]), (None, None));
    let exact = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector/spans");
    assert_eq!(endpoint(&[usable, exact]), (Some(exact.1.to_owned()), None));
    let ours = "TAILPOST_TELEMETRY__OTLP_ENDPOINT";
    let is_exact = |environment: &[_]| loaded("", environment).telemetry.is_exact;
    assert!(is_exact(&[usable, exact]) && !is_exact(&[usable]));
    assert!(!is_exact(&[exact, (ours, usable.1)]), "our own wins");
    assert!(load("", &[(ours, "collector:4317")]).is_err());
}
