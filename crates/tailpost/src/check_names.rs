//! The names of `doctor`'s checks, as they are given to the command and to the API.

use operate::checks::Category;

/// # Errors
///
/// If one is neither a check's id nor a category; with the nearest that is.
pub(crate) fn known<'a>(names: impl IntoIterator<Item = &'a String>) -> Result<(), String> {
    let ids = operate::doctor_checks().into_iter();
    let ids: Vec<_> = ids.map(|(id, _)| id).chain(Category::ALL.map(Category::name)).collect();
    let Some(unknown) = names.into_iter().find(|it| !ids.contains(&it.as_str())) else {
        return Ok(());
    };
    let near = |it: &str| strsim::jaro_winkler(it, unknown);
    let near = ids.into_iter().max_by(|a, b| near(a).total_cmp(&near(b)));
    let near = near.map(|it| format!("; did you mean `{it}`?")).unwrap_or_default();
    Err(format!("there is no check `{unknown}`{near}"))
}
