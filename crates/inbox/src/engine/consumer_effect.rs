//! What a consumer's engine asks for, and what it has to say.

use async_nats::Subject;

use super::breaker::TroubleKind;
use super::capacity::Full;
use super::lanes::{Item, Load};
use crate::message::MessageId;

/// What is to be done outside. Replies that are lost on their way do no harm: the broker delivers
/// again, and the event is known.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Begins a job: hands events that share a transaction to the handler, or claims them as one
    /// group. Each is reported.
    Start(Vec<Item>),
    /// Hands what is claimed to the handlers.
    Handle(Vec<MessageId>),
    /// Gives claims back: no handler gets these.
    Withdraw(Vec<MessageId>),
    /// Acknowledges an event that is resolved.
    Acknowledge(Subject),
    /// Keeps what is held from being delivered again.
    InProgress(Vec<Subject>),
    /// Lets the broker deliver these again at once.
    GiveBack(Vec<Subject>),
    /// Keeps what is left in the stream from being delivered again soon.
    Leave(Vec<Subject>),
    /// Reads what was left in the stream.
    Load(Load),
    /// Says for how many more deliveries there is room.
    Request(usize),
    /// Nothing more is requested or started: the feed and the reports are to end.
    Close,
    /// Ends the handlers at work.
    AbandonAll,
    /// Says something to operators.
    Tell(Notice),
    /// Nothing more is to be done.
    End,
}

/// What operators are told. It is one of them who holds and releases a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Notice {
    TookOver,
    BreakerOpen { reason: String },
    BreakerClosed,
    BreakerReset,
    Held,
    Released,
    AtFault { stream_seq: u64, reason: String },
    Full { full: Full, left: usize },
    LeftInStream,
    NothingLeft,
    EndingHandlers { busy: usize },
    LeftHandlers { busy: usize },
}

/// Why nothing is started, or only probes are, or nothing is taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause<'a> {
    /// The database is away, and why if that is known.
    Database(Option<&'a str>),
    /// An operator, by name.
    Operator(&'a str),
    Handler(TroubleKind, &'a str),
    Broker(&'a str),
    Full {
        full: Full,
        left: usize,
    },
}
