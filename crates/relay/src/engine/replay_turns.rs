//! When copies of a replay go, and what is noted of them.

use std::time::Duration;

use super::core::Core;
use super::input::ReplayInput;
use super::log_parts::LogParts;
use super::notice::Notice;

impl LogParts {
    pub(super) fn look_for_replay(&mut self, core: &mut Core, now: Duration) {
        if !core.is_draining() {
            self.replaying.look_if_due(now, &mut core.effects);
        }
    }

    /// Takes in what came of an effect of this part.
    pub(super) fn replayed(&mut self, core: &mut Core, now: Duration, input: ReplayInput) {
        match input {
            ReplayInput::Found(replay) => self.replaying.found(now, replay),
            ReplayInput::Begun(start) => self.replaying.begun(now, start),
            ReplayInput::Read { of: (id, after), page } => {
                self.replaying.read(now, id, after, page);
            }
            ReplayInput::Noted { problems, wish } => {
                self.replaying.noted(now, problems, wish, &mut core.effects);
            }
        }
    }

    /// Hands over what may go, and notes how far it is.
    pub(super) fn replay(&mut self, core: &mut Core, now: Duration) {
        // Rows that the log does not bring go first. What is written down of the stream's sequence
        // must not be needed any more, nor written again: copies come in between.
        let scans = self.backfill.holds_the_log_back() || !self.backfill.is_clear();
        let is_told = core.publishing.may_scan(self.checkpoint.confirmed());
        let may = !core.is_draining() && !scans;
        if may && is_told && !self.checkpoint.is_writing() {
            self.replaying.begin(&mut core.effects);
        }
        if self.replaying.is_clear() {
            return;
        }
        for (copy, reason) in core.publishing.take_unreplayed() {
            core.tell(Notice::NotReplayed { copy });
            if let Some(run) = self.replaying.run() {
                run.done(copy, Err(reason));
            }
        }
        let last_seq = core.publishing.last_seq();
        while may && core.publishing.has_room_to_replay(now) {
            let next = self.replaying.run().and_then(|it| it.next(now, last_seq));
            let Some(outgoing) = next else { break };
            core.publishing.replayed(now, outgoing);
        }
        let hurry = core.is_draining();
        self.replaying.advance(now, last_seq, hurry, &mut core.effects);
    }
}
