//! What holds at the end of each turn is checked in debug builds and in every simulation, also where
//! that is built for release.

/// Whether statements are checked at all.
pub(super) const ARE_CHECKED: bool = cfg!(any(debug_assertions, test));

/// Whether each of `entries` is looked at. A debug build that is under load would stand still.
pub(super) const fn is_checked_whole(entries: usize) -> bool {
    cfg!(test) || entries <= 64
}
