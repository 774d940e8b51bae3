use proptest::prelude::*;

use super::*;

fn glob(text: &str) -> Glob {
    text.parse().expect("every text is a glob")
}

fn route(aggregate_type: &str, event_type: &str, subject: Option<&str>) -> Route {
    Route {
        aggregate_type: glob(aggregate_type),
        event_type: glob(event_type),
        destination: subject
            .map_or(Destination::Drop, |it| Destination::Subject(it.parse().expect("a template"))),
    }
}

fn routing(routes: Vec<Route>) -> Routing {
    Routing::new(routes, SubjectTemplate::default())
}

fn event(aggregate_type: &str, event_type: &str) -> Event {
    Event::new(aggregate_type.to_owned(), "a-1", event_type.to_owned(), &0).expect("valid")
}

#[test]
fn an_asterisk_stands_for_anything_and_the_rest_for_itself() {
    for (pattern, taken, refused) in [
        ("Order*", &["Order", "OrderPlaced"][..], &["order", "AnOrder", ""][..]),
        ("*Placed", &["Placed", "OrderPlaced", "PlacedPlaced"], &["Placed2", ""]),
        ("O*r*d", &["Ord", "Oxrxd", "Orrd", "Ordrd"], &["Od", "Ordx", "xOrd"]),
        ("ab*ba", &["abba", "ab-ba"], &["aba", "abb"]),
        ("*", &["", "anything", "ü.*%_?"], &[]),
        ("a**b", &["ab", "a-b"], &["a", "b"]),
        ("", &[""], &["x"]),
        ("a.b?[c]", &["a.b?[c]"], &["axb?c"]),
    ] {
        let glob = glob(pattern);
        assert_eq!(glob.to_string(), pattern);
        for text in taken {
            assert!(glob.matches(text), "{pattern} takes {text}");
        }
        for text in refused {
            assert!(!glob.matches(text), "{pattern} does not take {text}");
        }
    }
}

#[test]
fn the_first_route_that_takes_an_event_decides() {
    let routing = routing(vec![
        route("order", "OrderPlaced", Some("sales.{aggregate_id}")),
        route("order", "Order*", None),
        route("*", "*Audited", Some("audit.{aggregate_type}")),
        route("internal", "*", None),
    ]);
    let subject = |aggregate_type, event_type| routing.subject(&event(aggregate_type, event_type));
    assert_eq!(subject("order", "OrderPlaced").as_deref(), Ok("sales.a-1"));
    assert_eq!(subject("order", "OrderPaid"), Err(Unpublished::Dropped));
    assert_eq!(subject("order", "Audited").as_deref(), Ok("audit.order"));
    assert_eq!(subject("internal", "Audited").as_deref(), Ok("audit.internal"));
    assert_eq!(subject("internal", "Ping"), Err(Unpublished::Dropped));
    assert_eq!(subject("user", "Created").as_deref(), Ok("outbox.user.Created"));
    let long = "x".repeat(300);
    assert!(matches!(subject("user", &long), Err(Unpublished::Unfit(_))));
}

#[test]
fn a_route_behind_a_wider_one_is_hidden() {
    let hides = |wide: (&str, &str), narrow: (&str, &str)| {
        route(wide.0, wide.1, None).hides(&route(narrow.0, narrow.1, Some("a")))
    };
    assert!(hides(("order", "*"), ("order", "Placed")));
    assert!(hides(("*", "Order*"), ("order", "OrderP*")));
    assert!(hides(("order", "Placed"), ("order", "Placed")));
    assert!(!hides(("order", "Placed"), ("order", "*")));
    assert!(!hides(("order", "*"), ("*", "Placed")));
    assert!(!hides(("*", "*a*"), ("*", "*b*")));
}

#[test]
fn the_stream_has_to_take_what_can_be_published_and_no_more() {
    let patterns = |routes| routing(routes).patterns();
    assert_eq!(patterns(vec![]), ["outbox.*.*"]);
    assert_eq!(patterns(vec![route("a", "b", None)]), ["outbox.*.*"]);
    let audit = || route("audit", "*", Some("audit.{event_type}"));
    assert_eq!(patterns(vec![audit()]), ["outbox.*.*", "audit.*"]);
    let narrower = route("a", "b", Some("outbox.a.b"));
    assert_eq!(patterns(vec![narrower]), ["outbox.*.*"]);
    // Nothing is left for the template.
    assert_eq!(patterns(vec![audit(), route("*", "*", None)]), ["audit.*"]);
}

/// Tries every way to divide the text: slow, and plainly right.
fn naive(pattern: &str, text: &str) -> bool {
    let mut ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    match pattern.chars().next() {
        None => text.is_empty(),
        Some('*') => ends.any(|at| naive(&pattern[1..], &text[at..])),
        Some(wanted) => {
            let rest = &pattern[wanted.len_utf8()..];
            text.strip_prefix(wanted).is_some_and(|text| naive(rest, text))
        }
    }
}

proptest! {
    #[test]
    fn globs_match_as_a_naive_matcher_does(pattern in "[abü*]{0,8}", text in "[abü]{0,8}") {
        prop_assert_eq!(glob(&pattern).matches(&text), naive(&pattern, &text));
    }

    #[test]
    fn what_a_covered_glob_takes_the_wider_one_takes(
        (wide, narrow, text) in ("[ab*]{0,4}", "[ab*]{0,4}", "[ab]{0,5}")
    ) {
        let (wide, narrow) = (glob(&wide), glob(&narrow));
        if wide.covers(&narrow) && narrow.matches(&text) {
            prop_assert!(wide.matches(&text));
        }
        // And if it is not covered, some text shows it: the asterisks' places filled with a letter.
        if !wide.covers(&narrow) {
            prop_assert!(!wide.matches(&narrow.to_string().replace('*', "c")));
        }
    }

    #[test]
    fn the_first_match_decides_whatever_comes_later(
        rules in prop::collection::vec(("[ab*]{0,3}", "[ab*]{0,3}", any::<bool>()), 0..6),
        (aggregate_type, event_type) in ("[ab]{0,3}", "[ab]{0,3}"),
    ) {
        let routes = rules.iter().enumerate().map(|(n, (aggregate, event, drop))| {
            route(aggregate, event, (!drop).then(|| format!("n{n}")).as_deref())
        });
        let first = rules.iter().position(|(aggregate, event, _)| {
            naive(aggregate, &aggregate_type) && naive(event, &event_type)
        });
        let expected = match first {
            Some(n) if rules[n].2 => Err(Unpublished::Dropped),
            Some(n) => Ok(format!("n{n}")),
            None => Ok("default".to_owned()),
        };
        let routing = Routing::new(routes.collect(), "default".parse().expect("a template"));
        prop_assert_eq!(routing.subject(&event(&aggregate_type, &event_type)), expected);
    }
}
