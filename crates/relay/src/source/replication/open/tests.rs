//! What a session writes down beside a place.

use super::*;
use crate::source::tests::Shell;

/// What a keyed session sent may be stored late, in another order than the log's.
#[tokio::test]
async fn the_mode_is_one_of_the_rules_by_which_a_place_is_counted_from() {
    let shell = Shell::<Replication>::open(|_| {}).await;
    let info = shell.source.tail.info().await.unwrap();
    let (config, noted) = (&shell.source.config, shell.source.slot.rules);
    assert_eq!(rules(config, Mode::Fenced, &info), noted);
    assert_ne!(rules(config, Mode::Keyed, &info), noted);
}
