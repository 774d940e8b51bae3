//! Where the stream ends, as far as that is known, and how many messages are on their way to it.

#[derive(Debug, Clone)]
pub(super) struct StreamEnd {
    /// The sequence that the stream will have given out last when the next message arrives.
    expected: u64,
    /// The highest sequence known to be in the stream.
    known_seq: u64,
    in_flight: usize,
}

impl StreamEnd {
    pub(super) fn new(last_seq: u64) -> Self {
        Self { expected: last_seq, known_seq: last_seq, in_flight: 0 }
    }

    pub(super) fn expected(&self) -> u64 {
        self.expected
    }

    pub(super) fn known_seq(&self) -> u64 {
        self.known_seq
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// A message is sent. Says which sequence it is to follow.
    pub(super) fn sent(&mut self) -> u64 {
        self.in_flight += 1;
        self.expected += 1;
        self.expected - 1
    }

    /// The message that was sent last did not leave.
    pub(super) fn unsent(&mut self) {
        self.in_flight -= 1;
        self.expected -= 1;
    }

    /// A message is refused for good, or will have no answer.
    pub(super) fn given_up(&mut self) {
        self.in_flight -= 1;
    }

    /// A message is stored with this sequence.
    pub(super) fn stored(&mut self, seq: u64) {
        self.in_flight -= 1;
        self.reached(seq);
    }

    pub(super) fn reached(&mut self, seq: u64) {
        self.known_seq = self.known_seq.max(seq);
    }

    /// Every message that was sent by itself is answered. The stream ends before what was expected if
    /// the broker had one of them already.
    pub(super) fn settle(&mut self) {
        if self.in_flight == 0 {
            self.expected = self.known_seq;
        }
    }

    /// An expected sequence that is too low would let a later message in after an earlier one was
    /// refused.
    pub(super) fn raise_expected(&mut self, last_seq: u64) {
        self.expected = self.expected.max(last_seq);
    }
}
