//! Refusals, which anybody who hears of a message can forge: one counts when the stream lacks the
//! message.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Publishing;
use crate::engine::effect::End;
use crate::engine::input::Refusal;
use crate::engine::messages::Mode;
use crate::engine::notice::Notice;
use crate::engine::request::Request;
use crate::engine::window::Stage;
use crate::status::DeadLetterReason;

/// How long the stream has to answer the same message otherwise.
const OTHER_ANSWER_MAX: Duration = Duration::from_millis(100);

/// How often a message is refused, and not in the stream afterwards, before it is given up, or the
/// session ends for it.
const TIMES: u32 = 2;

/// How often, at most, the stream is read because answers contradict each other. If an
/// acknowledgement was forged, it ends before that.
const CONTRADICTED_EVERY: Duration = Duration::from_secs(1);

/// What somebody says of a message.
#[derive(Debug, Clone)]
struct Refused {
    refusal: Refusal,
    /// When it was said; `None` once the stream was read. Then the message is sent again.
    said_at: Option<Duration>,
    /// How often the stream lacked it.
    lacked: u32,
}

/// Refusals that the stream has not confirmed, and answers that were not its own.
#[derive(Debug, Clone, Default)]
pub(super) struct Refusals {
    /// By the index of the message.
    said: BTreeMap<u64, Refused>,
    /// Messages that were said to be there already since the stream was read, and are looked for: in
    /// keyed mode one that came late may be before what is read of it next.
    sought: BTreeSet<u64>,
    /// How often a message of a batch was lacking since a batch was stored whole.
    without_batches: u32,
    strangers: u64,
    /// Some message was refused, and the stream had it.
    is_misled: bool,
    /// Some message was refused that was said to be stored: one of the answers is forged.
    is_contradicted: bool,
    contradicted_at: Option<Duration>,
}

impl Refusals {
    /// Answers that were not the stream's.
    pub(super) fn strangers(&self) -> u64 {
        self.strangers
    }

    pub(super) fn seeks(&mut self, index: u64) {
        self.sought.insert(index);
    }

    pub(super) fn sought(&mut self, index: u64) {
        self.sought.remove(&index);
    }

    pub(super) fn batch_stored(&mut self) {
        self.without_batches = 0;
    }
}

impl Publishing {
    /// An answer came that is not the stream's.
    pub(super) fn stranger(&mut self, why: String) {
        self.refusals.strangers += 1;
        if self.refusals.strangers == 1 {
            self.output.requests.push_back(Request::Tell(Notice::Stranger { why }));
        }
    }

    /// Somebody says that the stream refuses a message. What is behind it may wait meanwhile, or is
    /// refused as well.
    pub(super) fn refused(&mut self, index: u64, refusal: Refusal) {
        if self.window.get(index).is_none_or(|it| it.stage != Stage::Sent) {
            self.refusals.is_contradicted = true;
            let why = why(&refusal);
            return self.stranger(format!("a message is stored, and it is refused: {why}"));
        }
        // To read the tail costs little, unless somebody has it read again and again.
        let is_misled = self.refusals.is_misled || self.refusals.strangers > 0;
        if refusal == Refusal::ExpectedLastSequence && !is_misled {
            return self.resync(self.pause(Duration::from_millis(2)), why(&refusal).into());
        }
        self.doubt(index);
        let said = self.refusals.said.entry(index);
        let said = said.or_insert(Refused { refusal: refusal.clone(), said_at: None, lacked: 0 });
        if std::mem::discriminant(&said.refusal) != std::mem::discriminant(&refusal) {
            // Of two the one is believed that does less harm.
            if said.said_at.is_some() && harm(&refusal) >= harm(&said.refusal) {
                return;
            }
            said.lacked = 0;
        }
        said.refusal = refusal;
        said.said_at.get_or_insert(self.now);
        // What is behind it waits anyway, and nobody has lied so far.
        let holds_up = self.mode == Mode::Fenced && said.lacked == 0;
        if !is_misled && (holds_up || matches!(said.refusal, Refusal::Outage(_))) {
            let why = why(&said.refusal).to_owned();
            self.resync(Duration::ZERO, why);
        }
    }

    /// In keyed mode others are answered meanwhile: the message is read from where it may have been
    /// stored first.
    fn doubt(&mut self, index: u64) {
        let is_keyed = self.mode == Mode::Keyed;
        if let Some(entry) = self.window.get_mut(index) {
            entry.sent.is_doubted |= is_keyed;
        }
    }

    /// Reads the stream if it has not answered otherwise by now.
    pub(super) fn look_at_refusals(&mut self) {
        let is_late = |it: Duration| self.now.saturating_sub(it) >= CONTRADICTED_EVERY;
        if self.refusals.is_contradicted && self.refusals.contradicted_at.is_none_or(is_late) {
            self.refusals.is_contradicted = false;
            self.refusals.contradicted_at = Some(self.now);
            return self
                .resync(Duration::ZERO, "a message is said to be stored and refused".into());
        }
        let is_over = |it: Duration| self.now.saturating_sub(it) >= OTHER_ANSWER_MAX;
        let late = self.refusals.said.values().find(|it| it.said_at.is_some_and(is_over));
        if let Some(why) = late.map(|it| why(&it.refusal).to_owned()) {
            self.resync(Duration::ZERO, why);
        }
    }

    /// The stream has the message: `found` there, or it says so itself.
    pub(super) fn not_refused(&mut self, index: u64, found: bool) {
        if self.refusals.said.is_empty() {
            return;
        }
        let said = self.refusals.said.remove(&index);
        if let Some(Refused { refusal, said_at: Some(_), .. }) = said {
            self.refusals.is_misled = true;
            if !found {
                self.refusals.is_contradicted = true;
                let why = why(&refusal);
                self.stranger(format!("a message is stored, and it was refused: {why}"));
            }
        }
    }

    /// Why the broker refused a message that the client will not send again.
    pub(super) fn said_of(&mut self, index: u64) -> Option<String> {
        let it = self.refusals.said.remove(&index)?.refusal;
        let is_of_message = matches!(it, Refusal::Message(_) | Refusal::OverLimit(_));
        is_of_message.then(|| why(&it).to_owned())
    }

    /// The stream was read: what is refused, and was not found there, is refused.
    pub(super) fn judge_refusals(&mut self, refuses_batches: bool) {
        let (mut outage, mut is_batch) = (None, false);
        let sought = std::mem::take(&mut self.refusals.sought);
        let mut unresolved = self.window.iter_unresolved();
        let first = unresolved.find(|(_, it)| it.stage == Stage::Waiting).map(|(index, _)| index);
        drop(unresolved);
        for (index, mut it) in std::mem::take(&mut self.refusals.said) {
            if self.window.get(index).is_none_or(|it| it.stage != Stage::Waiting) {
                continue; // it was given up, or put off, for another reason
            }
            // Behind a message that the fence refuses all are lacking.
            let is_its_own = self.mode == Mode::Keyed || first == Some(index);
            let had_time = |at| it.lacked == 0 || self.now.saturating_sub(at) >= OTHER_ANSWER_MAX;
            let is_read = is_its_own && !sought.contains(&index);
            if it.said_at.take().is_some_and(had_time) && is_read {
                it.lacked += 1;
            }
            let why = why(&it.refusal).to_owned();
            match (&it.refusal, it.lacked) {
                (_, 0) => {} // it was sent again and not answered, or is looked for
                (Refusal::ExpectedLastSequence, _) => continue,
                (Refusal::Outage(_), _) => {
                    outage = Some(why);
                    continue;
                }
                (Refusal::NoBatches(_), _) => {
                    self.refusals.without_batches += u32::from(!is_batch);
                    is_batch = true;
                    if refuses_batches || self.refusals.without_batches >= TIMES {
                        self.output.requests.push_back(Request::End(End::LeaveFence(why)));
                    }
                    continue;
                }
                (_, ..TIMES) => {}
                (Refusal::Configuration(_), _) => {
                    self.output.requests.push_back(Request::End(End::Refused(why)));
                }
                (Refusal::Message(_) | Refusal::OverLimit(_) | Refusal::Unwelcome(_), _) => {
                    self.park(index, why, DeadLetterReason::Refused);
                    continue;
                }
            }
            self.refusals.said.insert(index, it);
        }
        if let Some(why) = outage {
            self.outage(why);
        }
    }
}

fn why(refusal: &Refusal) -> &str {
    match refusal {
        Refusal::ExpectedLastSequence => "the stream moved",
        Refusal::Outage(why)
        | Refusal::Message(why)
        | Refusal::OverLimit(why)
        | Refusal::Unwelcome(why)
        | Refusal::Configuration(why)
        | Refusal::NoBatches(why) => why,
    }
}

/// How much harm it does to believe a refusal that is none.
fn harm(refusal: &Refusal) -> u8 {
    match refusal {
        Refusal::ExpectedLastSequence => 0,
        Refusal::Outage(_) => 1,
        Refusal::Message(_) | Refusal::OverLimit(_) | Refusal::Unwelcome(_) => 2,
        Refusal::NoBatches(_) => 3,
        Refusal::Configuration(_) => 4,
    }
}
