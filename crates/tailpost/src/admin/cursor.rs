//! Where a page of a list ends. Clients hand it back as it is.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::problem::ApiError;

/// Leaves what a page has of what was found, which is one more if there is another page, and says
/// where that begins.
pub(super) fn end_page<T, P: Serialize>(
    found: &mut Vec<T>,
    limit: u32,
    place: impl Fn(&T) -> P,
) -> Result<Option<String>, ApiError> {
    let has_more = found.len() > limit as usize;
    found.truncate(limit as usize);
    found.last().filter(|_| has_more).map(|it| encode(&place(it))).transpose()
}

/// As text.
fn encode(place: &impl Serialize) -> Result<String, ApiError> {
    Ok(URL_SAFE_NO_PAD.encode(serde_json::to_vec(place)?))
}

/// # Errors
///
/// If it is none of ours, or of another list.
pub(super) fn decode<T: DeserializeOwned>(cursor: Option<&str>) -> Result<Option<T>, ApiError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
    let place = bytes.and_then(|it| serde_json::from_slice(&it).ok());
    let hint = "take `next` of the page before, with the same filter";
    let wrong = || ApiError::bad("`cursor` is not of this list").with_hint(hint);
    place.map(Some).ok_or_else(wrong)
}
