use std::fmt;
use std::str::FromStr;

use crate::Malformed;

/// Where an event stands in the database's history. Printed as
/// `{system id}/{timeline}/{lsn}/{ordinal}`, such as `7312345678901234567/1/16-B374D848/0`.
///
/// There is no order on this type on purpose: positions compare only within one history, that is
/// the same system identifier and a timeline that has not branched off before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Position {
    /// The database cluster's system identifier.
    pub system_id: u64,
    /// The timeline the transaction was read from.
    pub timeline: u32,
    /// Where the transaction's commit record begins.
    pub lsn: u64,
    /// Which of the transaction's events it is, from 0.
    pub ordinal: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { system_id, timeline, lsn, ordinal } = self;
        let (upper, lower) = (lsn >> 32, lsn & u64::from(u32::MAX));
        write!(f, "{system_id}/{timeline}/{upper:X}-{lower:X}/{ordinal}")
    }
}

impl FromStr for Position {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let position = parse(text).ok_or(NO_POSITION)?;
        // One text per position: what another writer pads or signs is not ours.
        if position.to_string() == text { Ok(position) } else { Err(NO_POSITION) }
    }
}

fn parse(text: &str) -> Option<Position> {
    let mut parts = text.split('/');
    let system_id = parts.next()?.parse().ok()?;
    let timeline = parts.next()?.parse().ok()?;
    let (upper, lower) = parts.next()?.split_once('-')?;
    let ordinal = parts.next()?.parse().ok()?;
    let half = |digits| u32::from_str_radix(digits, 16).ok().map(u64::from);
    let lsn = half(upper)? << 32 | half(lower)?;
    parts.next().is_none().then_some(Position { system_id, timeline, lsn, ordinal })
}

const NO_POSITION: Malformed =
    Malformed::because("not a position; it looks like 7312345678901234567/1/16-B374D848/0");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prints_the_log_position_readably() {
        let position = Position {
            system_id: 7_312_345_678_901_234_567,
            timeline: 1,
            lsn: 0x16_B374_D848,
            ordinal: 3,
        };
        assert_eq!(position.to_string(), "7312345678901234567/1/16-B374D848/3");
    }

    #[test]
    fn refuses_what_it_would_not_print() {
        for text in
            ["", "1/1/0-0", "1/1/0-0/0/0", "1/1/0/0", "+1/1/0-0/0", "1/1/0-0a/0", "1/1/00-0/0"]
        {
            assert_eq!(text.parse::<Position>(), Err(NO_POSITION), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn text_round_trips(system_id: u64, timeline: u32, lsn: u64, ordinal: u32) {
            let position = Position { system_id, timeline, lsn, ordinal };
            prop_assert_eq!(position.to_string().parse(), Ok(position));
        }
    }
}
