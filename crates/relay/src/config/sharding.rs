//! The configurations of shards: from one for all, one for each.

use std::num::NonZeroU32;

use outbox::wire::{SubjectTemplate, subjects_overlap};
use servers::{Error, check_name};

use super::{Config, DEFAULT_SUBJECTS, MarkBy, Mode, StreamConfig};
use crate::routing::{Destination, Route};
use crate::shards::{Shard, Shards};

/// What the number stands in place of in `stream.subjects`.
const PLACEHOLDER: &str = "{shard}";

/// The default template where there are several shards.
const SHARDED_SUBJECT: &str = "outbox.{shard}.{aggregate_type}.{event_type}";

impl Config {
    /// The shard that this is the configuration of; `None` if it is that of all, or of the only one.
    pub fn shard(&self) -> Option<Shard> {
        self.shards.one.map(|number| Shard { number, of: self.shards.count })
    }

    /// The configurations of the relays that share the work, each with slot, publication, stream and
    /// subjects of its own. Where there is but one shard, that is this configuration.
    pub fn each_shard(&self) -> Vec<Self> {
        if self.shards.count == 1 || self.shards.one.is_some() {
            return vec![self.clone()];
        }
        (0..self.shards.count).map(|number| self.of_shard(number)).collect()
    }

    fn of_shard(&self, number: u32) -> Self {
        let shard = Shard { number, of: self.shards.count };
        let is_default = self.subject == SubjectTemplate::default();
        let sharded = || SHARDED_SUBJECT.parse().expect("a valid template");
        let subject = if is_default { sharded() } else { self.subject.clone() };
        let in_shard = |route: &Route| match &route.destination {
            Destination::Subject(template) => Route {
                destination: Destination::Subject(template.in_shard(number)),
                ..route.clone()
            },
            Destination::Drop => route.clone(),
        };
        let subjects = self.stream.subjects.iter().filter(|it| it.contains(PLACEHOLDER));
        let subjects = subjects.map(|it| it.replace(PLACEHOLDER, &number.to_string())).collect();
        let name = format!("{}_{number}", self.stream.name);
        Self {
            slot: shard.name(&self.slot),
            publication: shard.name(&self.publication),
            stream: StreamConfig { name, subjects, ..self.stream.clone() },
            subject: subject.in_shard(number),
            routes: self.routes.iter().map(in_shard).collect(),
            shards: Shards { one: Some(number), ..self.shards },
            ..self.clone()
        }
    }

    /// The slot's name without what tells shards apart.
    fn base_slot(&self) -> &str {
        match self.shard() {
            Some(_) => Shard::parse(&self.slot).map_or(&self.slot, |(base, _)| base),
            None => &self.slot,
        }
    }

    /// Whether a slot with this name, of which there is a record beside the outbox, belongs to another
    /// number of shards: it may have published what is not marked.
    pub(crate) fn is_of_other_shards(&self, slot: &str) -> bool {
        match Shard::parse(slot) {
            _ if slot == self.slot => self.shards.count > 1 && self.shards.one.is_none(),
            Some((base, shard)) => base != self.base_slot() || shard.of != self.shards.count,
            // Where there is but one shard, its slot may be renamed at will.
            None => self.shards.count > 1,
        }
    }

    /// Whether a slot's name differs from the configured one in nothing but the shard.
    pub(crate) fn has_base_of(&self, slot: &str) -> bool {
        Shard::parse(slot).map_or(slot, |(base, _)| base) == self.base_slot()
    }

    /// Whether a publication with this name was made for another number of shards.
    pub(crate) fn is_publication_of_other_shards(&self, publication: &str) -> bool {
        match Shard::parse(publication) {
            Some((base, shard)) => base == self.publication && shard.of != self.shards.count,
            None => publication == self.publication && self.shards.count > 1,
        }
    }

    /// What was configured for a slot of another number of shards, this being the configuration of all;
    /// `None` if it had another name.
    pub fn before(&self, slot: &str) -> Option<Self> {
        match Shard::parse(slot) {
            Some((base, shard)) if base == self.slot => {
                let all = Self { shards: Shards::new(shard.of), ..self.clone() };
                Some(all.of_shard(shard.number))
            }
            _ if slot == self.slot => Some(Self { shards: Shards::default(), ..self.clone() }),
            _ => None,
        }
    }

    /// How many shards a slot was one of.
    pub fn shards_of_slot(slot: &str) -> u32 {
        Shard::parse(slot).map_or(1, |(_, shard)| shard.of)
    }

    /// Checks what belongs to shards.
    pub(crate) fn check_shards(&self) -> Result<(), Error> {
        let Shards { count, .. } = self.shards;
        let named = self.stream.subjects.iter().filter(|it| it.contains(PLACEHOLDER)).count();
        if count == 1 {
            let text = "{shard} needs relay.shards above 1";
            return if named == 0 { Ok(()) } else { Err(Error::invalid("stream.subjects", text)) };
        }
        if self.mode == Mode::Poll {
            let text = "must be 1 with relay.mode = \"poll\": any number of relays that poll work \
                        side by side";
            return Err(Error::invalid("relay.shards", text));
        }
        if self.mark.by == MarkBy::Lean {
            let text = "must be 1 with relay.mark = \"lean\": a watermark says up to where all rows \
                        are published, and each shard would know that of its own only";
            return Err(Error::invalid("relay.shards", text));
        }
        let is_default = self.stream.subjects == DEFAULT_SUBJECTS;
        if named < self.stream.subjects.len() && !is_default {
            let text = "each must contain {shard} with relay.shards above 1: every shard has a \
                        stream of its own";
            return Err(Error::invalid("stream.subjects", text));
        }
        self.check_templates()?;
        let shards = self.each_shard();
        for shard in &shards {
            check_name("postgres.slot", &shard.slot)?;
            check_name("postgres.publication", &shard.publication)?;
        }
        check_overlaps(&shards)
    }

    fn check_templates(&self) -> Result<(), Error> {
        let must = |what: &str| {
            format!(
                "{what} must contain {{shard}} with relay.shards above 1, as in {SHARDED_SUBJECT}"
            )
        };
        if self.subject != SubjectTemplate::default() && !self.subject.names_shard() {
            return Err(Error::invalid("relay.subject", must(&format!("\"{}\"", self.subject))));
        }
        for route in &self.routes {
            if let Destination::Subject(template) = &route.destination
                && !template.names_shard()
            {
                return Err(Error::invalid(
                    "relay.shards",
                    must(&format!("the route's \"{template}\"")),
                ));
            }
        }
        Ok(())
    }
}

/// The broker would refuse the second of two streams that take the same subject.
fn check_overlaps(shards: &[Config]) -> Result<(), Error> {
    // Each number of a partition stands for all.
    let routing = |it: &Config| Config { partitions: NonZeroU32::MIN, ..it.clone() }.routing();
    let subjects = |it: &Config| [it.stream.subjects.clone(), routing(it).patterns()].concat();
    let subjects: Vec<_> = shards.iter().map(subjects).collect();
    for (number, one) in subjects.iter().enumerate() {
        for other in subjects.iter().skip(number + 1) {
            for (a, b) in one.iter().flat_map(|a| other.iter().map(move |b| (a, b))) {
                if subjects_overlap(a, b) {
                    let text = format!(
                        "two shards' streams would both take subjects of {a} and {b}: put {{shard}} \
                         into the same place of relay.subject, the routes and stream.subjects, in \
                         a token of its own"
                    );
                    return Err(Error::invalid("relay.shards", text));
                }
            }
        }
    }
    Ok(())
}
