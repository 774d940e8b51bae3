//! Where a page of a list ends. Clients hand it back as it is.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::problem::ApiError;

/// As text.
pub(super) fn encode(place: &impl Serialize) -> Result<String, ApiError> {
    Ok(URL_SAFE_NO_PAD.encode(serde_json::to_vec(place)?))
}

/// # Errors
///
/// If it is none of ours, or of another list.
pub(super) fn decode<T: DeserializeOwned>(cursor: Option<&str>) -> Result<Option<T>, ApiError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
    let place = bytes.and_then(|it| serde_json::from_slice(&it).ok());
    let hint = || Some("take `next` of the page before, with the same filter".to_owned());
    let wrong = || ApiError { hint: hint(), ..ApiError::bad("`cursor` is not of this list") };
    place.map(Some).ok_or_else(wrong)
}
