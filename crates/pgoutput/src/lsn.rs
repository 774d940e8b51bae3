use std::fmt;
use std::str::FromStr;

/// A position in PostgreSQL's write-ahead log, in bytes since its beginning.
///
/// Printed and parsed the way PostgreSQL does it: `16/B374D848`, the upper and the lower 32 bits in
/// hexadecimal. Positions of different timelines must not be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The invalid position `0/0`, before every record.
    pub const ZERO: Self = Self(0);

    /// The distance from `earlier` to `self` in bytes, or `None` if `earlier` lies behind `self`.
    #[must_use]
    pub fn checked_bytes_since(self, earlier: Self) -> Option<u64> {
        self.0.checked_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & u64::from(u32::MAX))
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lsn({self})")
    }
}

impl FromStr for Lsn {
    type Err = ParseLsnError;

    /// Accepts what `pg_lsn` accepts: one to eight hexadecimal digits, a slash, and again.
    fn from_str(text: &str) -> Result<Self, ParseLsnError> {
        let (upper, lower) = text.split_once('/').ok_or(ParseLsnError)?;
        Ok(Self(u64::from(parse_half(upper)?) << 32 | u64::from(parse_half(lower)?)))
    }
}

fn parse_half(digits: &str) -> Result<u32, ParseLsnError> {
    // `from_str_radix` alone would accept a sign.
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) || digits.len() > 8 {
        return Err(ParseLsnError);
    }
    u32::from_str_radix(digits, 16).map_err(|_| ParseLsnError)
}

/// The text is not a log position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a log position; it looks like 16/B374D848")]
pub struct ParseLsnError;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prints_and_parses_as_postgres_does() {
        for (text, value) in [
            ("0/0", 0),
            ("16/B374D848", 0x16_B374_D848),
            ("0/FF", 0xFF),
            ("1/0", 1 << 32),
            ("FFFFFFFF/FFFFFFFF", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Lsn(value)));
            assert_eq!(Lsn(value).to_string(), text);
        }
        assert_eq!("16/b374d848".parse(), Ok(Lsn(0x16_B374_D848)));
        // PostgreSQL 19 pads the lower half.
        assert_eq!("0/0000000A".parse(), Ok(Lsn(10)));
    }

    #[test]
    fn refuses_what_is_not_a_position() {
        for text in
            ["", "/", "0", "0/", "/0", "0/0/0", "G/0", "+1/0", "0/-1", " 0/0", "123456789/0"]
        {
            assert_eq!(text.parse::<Lsn>(), Err(ParseLsnError), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn text_round_trips(value: u64) {
            prop_assert_eq!(Lsn(value).to_string().parse(), Ok(Lsn(value)));
        }

        #[test]
        fn order_and_distance_agree(a: u64, b: u64) {
            prop_assert_eq!(Lsn(a).checked_bytes_since(Lsn(b)).is_some(), Lsn(a) >= Lsn(b));
            if let Some(distance) = Lsn(a).checked_bytes_since(Lsn(b)) {
                prop_assert_eq!(b + distance, a);
            }
        }

        #[test]
        fn any_text_is_safe_to_parse(text: String) {
            let _ = text.parse::<Lsn>();
        }
    }
}
