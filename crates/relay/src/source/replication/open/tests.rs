//! What a session writes down beside a place.

use super::*;
use crate::source::tests::Shell;

/// What a keyed session sent may be stored late, in another order than the log's.
#[tokio::test]
async fn the_mode_is_one_of_the_rules_by_which_a_place_is_counted_from() {
    let mut shell = Shell::open(|_| {}).await;
    let source = shell.source.replication().unwrap();
    let info = source.tail.info().await.unwrap();
    let (config, noted) = (&source.config, source.rules);
    assert_eq!(rules(config, Mode::Fenced, &info), noted);
    assert_ne!(rules(config, Mode::Keyed, &info), noted);
}
