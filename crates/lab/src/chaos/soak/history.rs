//! The stream goes back: its server ends as by a power cut, and starts from an earlier copy of its store.

use anyhow::Result;

use super::Soak;

impl Soak {
    /// The relays publish what it has lost once more, and the inboxes handle none of it again.
    pub(super) async fn put_stream_back(&mut self) -> Result<()> {
        let pause = self.up_to(3_000);
        self.tell(&format!("the stream goes back by {pause:?}"));
        self.lab.nats.stop().await?;
        let copied = self.lab.nats.copy_store()?;
        self.lab.nats.start_again().await?;
        tokio::time::sleep(pause).await;
        self.lab.nats.kill().await?;
        self.lab.nats.put_store_back(&copied)?;
        self.lab.nats.start_again().await
    }
}
