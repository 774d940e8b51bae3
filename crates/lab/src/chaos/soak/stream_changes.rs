//! Somebody changes the stream while relays and inboxes work, and changes it back.

use std::time::Duration;

use anyhow::{Context, Result};
use async_nats::jetstream::stream::{
    Compression, Config, DiscardPolicy, Republish, SubjectTransform,
};
use rand::seq::IndexedRandom;

use super::Soak;
use crate::chaos::lab::STREAM;

type Change = (&'static str, fn(&mut Config));

const CHANGES: &[Change] = &[
    ("takes no batches", |it| it.allow_batch_publish = false),
    ("has no room", |it| (it.max_messages, it.discard) = (1, DiscardPolicy::New)),
    ("takes only small messages", |it| it.max_message_size = 100_000),
    ("is compressed", |it| it.compression = Some(Compression::S2)),
    ("forgets ids at once", |it| it.duplicate_window = Duration::from_millis(100)),
    // Longer than any soak: what it removes was stored.
    ("forgets after a week", |it| it.max_age = Duration::from_hours(7 * 24)),
    ("answers no direct reads", |it| it.allow_direct = false),
    ("publishes again", |it| {
        let (source, destination) = ("outbox.>".into(), "heard.>".into());
        it.republish = Some(Republish { source, destination, headers_only: false });
    }),
    ("stores other subjects", |it| {
        let (source, destination) = ("outbox.>".into(), "kept.>".into());
        it.subject_transform = Some(SubjectTransform { source, destination });
    }),
];

impl Soak {
    pub(super) async fn change_stream(&mut self) -> Result<()> {
        let (what, change) = *CHANGES.choose(&mut self.random).context("a change")?;
        let pause = self.up_to(6_000);
        let jetstream = self.lab.nats.jetstream().await?;
        let stream = jetstream.get_stream(STREAM).await?;
        let before = stream.cached_info().config.clone();
        let mut changed = before.clone();
        change(&mut changed);
        self.tell(&format!("the stream {what} for {pause:?}"));
        jetstream.update_stream(changed).await?;
        tokio::time::sleep(pause).await;
        jetstream.update_stream(before).await?;
        Ok(())
    }
}
