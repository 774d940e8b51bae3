//! Commands that are about outbox and inbox. A service that only consumes has no outbox, and a role
//! may have rights on one of the two only: then a command does what it can.

use crate::errors::{self, Kind, Refusal};

/// The side that was left out: `outbox` or `inbox`, and why.
pub(super) type LeftOut = (&'static str, Refusal);

/// What was found on each side. `rights` are those that a role needs.
pub(super) fn both<O, I: Default>(
    outbox: Result<O, relay::Error>,
    inbox: anyhow::Result<I>,
    is_there: impl Fn(&I) -> bool,
    rights: &str,
) -> anyhow::Result<(Option<O>, I, Option<LeftOut>)> {
    let lacks = |of, error| Some((of, Refusal::lacks_rights(of, rights, error)));
    match (outbox, inbox) {
        (Ok(outbox), Ok(inbox)) => Ok((Some(outbox), inbox, None)),
        (Ok(outbox), Err(error)) if errors::is_forbidden(&error) => {
            Ok((Some(outbox), I::default(), lacks("inbox", error)))
        }
        (Err(relay::Error::NotSetUp { .. }), Ok(inbox)) if is_there(&inbox) => {
            Ok((None, inbox, None))
        }
        (Err(error), Ok(inbox)) if error.is_forbidden() && is_there(&inbox) => {
            Ok((None, inbox, lacks("outbox", error.into())))
        }
        (Err(relay::Error::NotSetUp { .. }) | Ok(_), Err(error))
            if errors::kind(&error) != Kind::NotFound =>
        {
            Err(error)
        }
        (Err(error), _) => Err(error.into()),
        (Ok(_), Err(error)) => Err(error),
    }
}
