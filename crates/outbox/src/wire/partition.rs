//! In which partition of a stream the events of an aggregate are.

use std::num::NonZeroU32;

/// In the metadata of a stream: how many partitions its subjects name. One, if it is not there.
pub const PARTITIONS: &str = "partitions";

/// The number of an aggregate's partition, from 0 to below `of`: FNV-1a of 32 bits over the bytes of
/// the type, a zero byte and the bytes of the id, modulo `of`. It is the same in every version.
///
/// ```
/// use outbox::wire::partition;
///
/// let of = 16.try_into().unwrap();
/// assert_eq!(partition("order", "o-1", of), 8);
/// assert_eq!(partition("order", "o-2", of), 1);
/// assert_eq!(partition("user", "Zoë", of), 7);
/// ```
#[must_use]
pub fn partition(aggregate_type: &str, aggregate_id: &str, of: NonZeroU32) -> u32 {
    let bytes = aggregate_type.bytes().chain([0]).chain(aggregate_id.bytes());
    let hash = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    bytes.fold(0x811C_9DC5, hash) % of
}
