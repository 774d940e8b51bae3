use inbox::http::Accept;

use super::*;
use crate::config::tests::{loaded, refusal};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn consumers(toml: &str, environment: &[(&str, &str)]) -> Vec<Consumer> {
    loaded(toml, environment).consumers().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn what_is_said_of_one_consumer_wins_over_what_is_said_of_all() {
    let toml = format!(
        "[stream]\nname = 'EVENTS'\n[inbox]\nlease = '1m'\nsecrets = ['{SECRET}']\n\
         [inbox.billing]\nhandler = 'http://a'\naccept = '2xx'\nlease = '2m'\nsubjects = ['outbox.order.>']\n\
         [inbox.mail-out]\nsecrets = []\nstream = 'OTHER'\n"
    );
    let all = consumers(&toml, &[("TAILPOST_INBOX__TIMEOUT", "50s")]);
    let [billing, mail] = all.as_slice() else { panic!("two consumers") };
    assert_eq!((billing.name.as_str(), mail.name.as_str()), ("billing", "mail-out"));
    assert_eq!((billing.settings.lease.0.as_secs(), mail.settings.lease.0.as_secs()), (120, 60));
    let secrets = |it: &Consumer| it.settings.secrets.as_ref().map_or(0, Vec::len);
    assert_eq!((billing.stream.as_str(), mail.stream.as_str()), ("EVENTS", "OTHER"));
    assert_eq!((secrets(billing), secrets(mail)), (1, 0));
    let accept = (billing.settings.accept.0, mail.settings.accept.0);
    assert_eq!(accept, (Accept::AnySuccess, Accept::Strict));
    assert_eq!((billing.settings.timeout.0.as_secs(), mail.settings.timeout.0.as_secs()), (50, 50));
    assert_eq!(billing.settings.subjects.as_deref(), Some(&["outbox.order.>".to_owned()][..]));
    assert_eq!(
        (billing.settings.handler.as_deref(), mail.settings.handler.as_deref()),
        (Some("http://a"), None)
    );

    let own = ("TAILPOST_INBOX__MAIL_OUT__HANDLER", "http://b");
    assert_eq!(consumers(&toml, &[own])[1].settings.handler.as_deref(), Some("http://b"));
}

#[test]
fn the_flags_name_one_consumer() {
    let toml = "[inbox.a]\nhandler = 'http://a'\n[inbox.b]\nhandler = 'http://b'\nlease = '1m'\n";
    let mut file = tempfile::NamedTempFile::new().expect("temporary file");
    std::io::Write::write_all(&mut file, toml.as_bytes()).expect("temporary file");
    let sources = |consumer: &str, handler: Option<&str>| crate::config::Sources {
        file: Some(file.path().to_owned()),
        consumer: Some(consumer.into()),
        handler: handler.map(str::to_owned),
        ..crate::config::Sources::default()
    };
    let load = |consumer: &str, handler| {
        let settings = Settings::load(&sources(consumer, handler));
        let settings = settings.unwrap_or_else(|error| panic!("{error}"));
        let all = settings.consumers().unwrap_or_else(|error| panic!("{error}"));
        let all = all.into_iter();
        all.map(|it| (it.name, it.settings.handler, it.settings.lease.0.as_secs()))
            .collect::<Vec<_>>()
    };
    assert_eq!(load("b", None), [("b".into(), Some("http://b".into()), 60)]);
    assert_eq!(load("b", Some("http://x")), [("b".into(), Some("http://x".into()), 60)]);
    assert_eq!(load("new", Some("http://x")), [("new".into(), Some("http://x".into()), 30)]);
}

#[test]
fn mistakes_are_refused_with_their_place() {
    for (toml, error, hint) in [
        ("[inbox]\nleese = '1s'\n", ":2: unknown key `inbox.leese`", "did you mean `inbox.lease`?"),
        (
            "[inbox.a]\nhandlers = 'x'\n",
            ":2: unknown key `inbox.a.handlers`",
            "did you mean `inbox.a.handler`?",
        ),
        ("[inbox.a]\nretention = '7d'\n", ":2: `inbox.a.retention`: consumers share", "[inbox]"),
        ("[inbox.'a.b']\n", ":1: `a.b` cannot be a consumer's name", "letters, digits"),
        ("[inbox]\nconcurrency = 0\n", ":2: `inbox.concurrency` must be a whole number from 1", ""),
        ("[inbox.a]\nsecrets = ['hunter2']\n", ":2: `inbox.a.secrets` must be a list of", ""),
        ("[inbox]\nbackoff = []\n", ":2: `inbox.backoff` must be pauses such as [\"5s\",", ""),
        ("[inbox]\nbackoff = ['1s', 'x']\n", ":2: `inbox.backoff` must be pauses such as", ""),
        ("[inbox]\ngive_up_after = '1ms'\n", ":2: `inbox.give_up_after` must be a duration", ""),
    ] {
        let (told, hinted) = refusal(toml, &[]);
        assert!(told.starts_with(error) && hinted.contains(hint), "{toml}: {told} {hinted}");
        assert!(!told.contains("hunter2"), "{told}");
    }
    let (told, hint) = refusal("[inbox.a]\n", &[("TAILPOST_INBOX__A__HANDLR", "x")]);
    assert!(told.contains("no setting has this variable"), "{told}");
    assert!(hint.contains("TAILPOST_INBOX__A__HANDLER"), "{hint}");
}

#[test]
fn pauses_are_a_list_in_a_file_and_in_a_variable() {
    let toml = "[inbox]\nbackoff = ['1s', '2h']\n[inbox.a]\n[inbox.b]\nbackoff = ['7s']\n";
    let of =
        |secs: &[u64]| inbox::Pauses::new(secs.iter().map(|it| Duration::from_secs(*it)).collect());
    let pauses = |environment| {
        consumers(toml, environment).into_iter().map(|it| Some(it.settings.backoff.0))
    };
    assert!(pauses(&[]).eq([of(&[1, 7_200]), of(&[7])]));
    let variable = [("TAILPOST_INBOX__A__BACKOFF", "3s, 1m")];
    assert!(pauses(&variable).eq([of(&[3, 60]), of(&[7])]));
}

#[test]
fn a_handler_that_may_outlast_its_lease_is_refused() {
    for (toml, line) in
        [("[inbox.a]\ntimeout = '30s'\n", 2), ("[inbox]\nlease = '20s'\n[inbox.a]\n", 2)]
    {
        let Err(error) = loaded(toml, &[]).consumers() else { panic!("{toml}") };
        let place = format!(".toml:{line}: consumer a: ");
        assert!(error.to_string().contains(&place), "{error}");
    }
    let Err(error) = loaded("[inbox.a]\ncert = 'x.pem'\n", &[]).consumers() else {
        panic!("a certificate without its key");
    };
    assert!(error.to_string().contains("go together"), "{error}");
}

#[test]
fn headers_of_a_handler_are_secret_and_its_own_are_refused() {
    let toml = "[inbox.headers]\nX-Api-Key = 's3cret'\n[inbox.a]\n[inbox.b]\nheaders = {}\n";
    let all = consumers(toml, &[]);
    let headers = |it: &Consumer| format!("{:?}", it.settings.headers.as_ref().map(|it| &it.0));
    let shown: Vec<_> = all.iter().map(headers).collect();
    assert!(shown[0].contains("x-api-key") && !shown[0].contains("s3cret"), "{shown:?}");
    assert!(!shown[1].contains("x-api-key"), "{shown:?}");
    let settings = serde_json::to_string(&loaded(toml, &[]).shown()).expect("JSON");
    assert!(!settings.contains("s3cret"), "{settings}");
    let variable = [("TAILPOST_INBOX__A__HEADERS", r#"{"X-Team":"ada"}"#)];
    assert!(headers(&consumers(toml, &variable)[0]).contains("x-team"));

    for headers in ["{ Host = 's3cret' }", "{ webhook-id = 's3cret' }", "{ X = '' }", "{ X = 1 }"] {
        let (told, _) = refusal(&format!("[inbox.a]\nheaders = {headers}\n"), &[]);
        let told_where =
            told.starts_with(":2: `inbox.a.headers` must be a secret: headers such as");
        assert!(told_where && !told.contains("s3cret"), "{told}");
    }
}

#[test]
fn partitions_are_the_relays_and_in_every_subject() {
    let relay = "[relay]\npartitions = 4\nsubject = '{partition}.x.{event_type}'\n";
    let all = consumers(&format!("{relay}[inbox.a]\npartitions = 4\n"), &[]);
    assert_eq!(all[0].settings.subjects.as_deref(), Some(&["{partition}.x.*".to_owned()][..]));
    for (toml, told, hint) in [
        (
            format!("{relay}[inbox.a]\npartitions = 8\n"),
            ":5: inbox.a.partitions = 8, and relay.partitions = 4",
            "set inbox.a.partitions = 4",
        ),
        (
            format!("{relay}[inbox.a]\npartitions = 4\nsubjects = ['*.x.y']\n"),
            ":5: inbox.a.partitions needs {partition} in \"*.x.y\"",
            "or into inbox.a.subjects",
        ),
        (
            "[inbox.a]\npartitions = 4\n".into(),
            ":2: inbox.a.partitions needs {partition} in \"outbox.*.*\"",
            "put it into relay.subject",
        ),
    ] {
        let Err(error) = loaded(&toml, &[]).consumers() else { panic!("{toml}") };
        assert!(error.to_string().contains(told), "{error}");
        assert!(error.hint().is_some_and(|it| it.contains(hint)), "{toml}");
    }
}

#[test]
fn the_relays_partitions_are_those_of_its_own_stream() {
    let relay = "[relay]\npartitions = 4\nsubject = '{partition}.x.{event_type}'\n";
    let all = consumers(&format!("{relay}[inbox.a]\npartitions = 8\nstream = 'OTHER'\n"), &[]);
    assert_eq!(all[0].settings.partitions.map(|it| it.0), Some(8));
}

#[test]
fn consumers_that_would_share_a_durable_consumer_are_refused() {
    let divided = "[inbox]\nsubjects = ['{partition}.x']\n[inbox.a]\npartitions = 4\n";
    let Err(error) = loaded(&format!("{divided}[inbox.a-3]\n"), &[]).consumers() else {
        panic!("two consumers have one durable consumer");
    };
    let told = "consumers a and a-3 would share the durable consumer a-3 of stream OUTBOX";
    assert!(error.to_string().contains(told), "{error}");
    for fits in ["[inbox.a-4]\n", "[inbox.a-3]\nstream = 'OTHER'\n", "[inbox.a-03]\n"] {
        assert_eq!(consumers(&format!("{divided}{fits}"), &[]).len(), 2, "{fits}");
    }
}
