//! Whether a relay is at work.

use crate::checks::{Category, Judged, Remedy, Rule, ok, warning};
use relay::Mode;

use super::facts::Seen;

pub(super) const RULES: &[Rule<Seen>] =
    &[Rule::new("relay-running", Category::Relay, "a relay is at work", running)];

fn running(seen: &Seen) -> Judged {
    let start = || vec![Remedy::shell("tailpost relay")];
    if seen.config.mode == Mode::Poll {
        let pollers = seen.server()?.pollers;
        return match pollers {
            0 => warning("no relay polls the table", start()),
            count => ok(format!("{count} connections of relays that poll")),
        };
    }
    let names = seen.config.each_shard().into_iter().map(|it| it.slot);
    let mut idle = Vec::new();
    for (name, shard) in names.zip(&seen.facts.shards) {
        let slot = shard.slot.as_ref().map_err(Clone::clone)?;
        if slot.as_ref().is_none_or(|it| it.reader.is_none()) {
            idle.push(name);
        }
    }
    if idle.is_empty() {
        return ok("each slot is read");
    }
    warning(format!("nobody reads slot {}", idle.join(", ")), start())
}
