//! What is known of the inbox when the rules judge.

use async_nats::jetstream::consumer;
use inbox::access::Config;

use super::facts::{Known, Permissions, StreamFacts};
use super::locks::Lock;
use super::triggers::BeforeRows;
use crate::checks::Skip;
use crate::consumers::{HeldPart, StreamLook};

/// The tables.
#[derive(Debug, Clone)]
pub(super) struct TableFacts {
    pub(super) missing: Vec<String>,
    /// What the role lacks: table, and the privileges.
    pub(super) lacks: Vec<(String, Vec<String>)>,
    pub(super) role: String,
    /// Tables whose rows policies hide from it.
    pub(super) policed: Vec<String>,
    /// What runs before their rows are written.
    pub(super) before_rows: Vec<BeforeRows>,
    /// Who has which role.
    pub(super) roles: Known<Vec<HeldPart>>,
}

/// One consumer, and what it shares with the others.
pub(super) struct ConsumerSeen {
    pub(super) config: Config,
    pub(super) tables: Known<TableFacts>,
    /// On them.
    pub(super) locks: Known<Vec<Lock>>,
    pub(super) stream: Known<Option<StreamFacts>>,
    pub(super) look: Known<StreamLook>,
    pub(super) consumer: Known<Option<consumer::Info>>,
    /// Durable consumers of before it was divided otherwise.
    pub(super) left_over: Known<Vec<String>>,
    /// What the user may do, if the server tells.
    pub(super) permissions: Known<Option<Permissions>>,
}

impl ConsumerSeen {
    pub(super) fn tables(&self) -> Known<&TableFacts> {
        self.tables.as_ref().map_err(Clone::clone)
    }

    pub(super) fn stream(&self) -> Known<&StreamFacts> {
        let stream = self.stream.as_ref().map_err(Clone::clone)?;
        let missing = || Skip::because(format!("there is no stream {}", self.config.stream));
        stream.as_ref().ok_or_else(missing)
    }

    pub(super) fn consumer(&self) -> Known<&consumer::Info> {
        self.stream()?;
        let consumer = self.consumer.as_ref().map_err(Clone::clone)?;
        let missing = || Skip::because(format!("there is no consumer {}", self.config.durable()));
        consumer.as_ref().ok_or_else(missing)
    }
}
