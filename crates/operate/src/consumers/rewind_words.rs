//! What a rewind would do, in words.

use inbox::RewindMethod;

use super::rewinder::RewindPlan;

impl RewindPlan {
    /// Labels, some with a blank before those that belong to the one above, and what they say.
    pub fn in_words(&self) -> Vec<(&'static str, String)> {
        let counts = &self.counts;
        let mut lines = Vec::new();
        let mut line = |label, value: &str| lines.push((label, value.to_owned()));
        let (delivered, acknowledged) = (self.delivered_sequence, self.acknowledged_sequence);
        line("consumer", &format!("{}, delivered up to sequence {delivered}", self.consumer));
        line("  acknowledged", &format!("up to sequence {acknowledged}"));
        let (first, last) = (self.stream_first_sequence, self.stream_last_sequence);
        let since = self.stream_first_at;
        line("stream", &format!("{} holds {first} to {last}, since {since}", self.stream));
        let how = match self.method {
            RewindMethod::Reset => "the broker resets the consumer",
            RewindMethod::MadeAnew => "the consumer is deleted and made again",
        };
        line("rewind", &format!("to sequence {}, stored at {}", self.from_sequence, self.from_at));
        line("  how", how);
        if self.begins_sequence < self.from_sequence {
            let begins = self.begins_sequence;
            line(
                "  before",
                &format!("what is not acknowledged from sequence {begins} on comes too"),
            );
        }
        if !self.only.is_all() {
            line("  only", &format!("{}, handled again", self.only));
        }
        if self.reaches_beyond_stream {
            line("  missing", "what was asked for before that is no longer in the stream");
        }
        line("comes again", &format!("{} messages", counts.messages));
        let mut some = |label, count: u64, what: &str| {
            if count > 0 {
                line(label, &format!("{count} {what}"));
            }
        };
        let processed = if self.again {
            "were processed: THEIR EFFECTS REPEAT"
        } else {
            "were processed: skipped"
        };
        some("  processed", counts.processed, processed);
        some("  others", counts.others, "were processed and are not meant: skipped");
        some("  too old", counts.kept, "were processed and are older than the records: skipped");
        some("  dead", counts.dead, "are dead letters or were discarded: skipped");
        some("  rejected", counts.rejected, "were rejected: skipped");
        some("  unfinished", counts.unfinished, "were begun and not processed: handled");
        some("  unrecorded", counts.unrecorded, "have no record: handled");
        some("  forgotten", counts.forgotten, "are older than the records: become dead letters");
        if self.counted_to_sequence < self.delivered_sequence {
            let counted = self.counted_to_sequence;
            line("  counted", &format!("up to sequence {counted}: there is more"));
        }
        line("handled", &format!("{} of {}", counts.handled, counts.messages));
        if !self.worker_active {
            line("worker", "none is active: the next one carries it out");
        }
        lines
    }
}
