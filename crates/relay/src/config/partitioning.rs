//! The number of partitions, and the templates that name them.

use std::num::NonZeroU32;

use outbox::wire::SubjectTemplate;
use servers::Error;

use super::Config;
use crate::routing::{Destination, Route, Routing};

impl Config {
    /// What decides about an event's subject.
    pub fn routing(&self) -> Routing {
        let partitioned = |route: &Route| match &route.destination {
            Destination::Subject(template) => Route {
                destination: Destination::Subject(template.clone().of_partitions(self.partitions)),
                ..route.clone()
            },
            Destination::Drop => route.clone(),
        };
        let routes = self.routes.iter().map(partitioned).collect();
        Routing::new(routes, self.subject.clone().of_partitions(self.partitions))
    }

    /// Every template names the partition if there are several, and none if there are not.
    pub(super) fn check_partitions(&self) -> Result<(), Error> {
        let is_partitioned = self.partitions > NonZeroU32::MIN;
        let is_wrong = |it: &SubjectTemplate| it.names_partition() != is_partitioned;
        let text = |what: &str| match is_partitioned {
            true => format!("{what} must contain {{partition}} with relay.partitions above 1"),
            false => format!("{{partition}} in {what} needs relay.partitions above 1"),
        };
        if is_wrong(&self.subject) {
            let key = if is_partitioned { "relay.subject" } else { "relay.partitions" };
            return Err(Error::invalid(key, text(&format!("\"{}\"", self.subject))));
        }
        for route in &self.routes {
            if let Destination::Subject(template) = &route.destination
                && is_wrong(template)
            {
                let text = text(&format!("the route's \"{template}\""));
                return Err(Error::invalid("relay.partitions", text));
            }
        }
        Ok(())
    }
}
