//! The fields of a form, once its token is checked.

use axum::Form;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;

use crate::problem::Problem;
use crate::sessions::is_same;
use crate::visitor::Visitor;

/// What a form of ours has sent. Some names come several times.
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    /// A field that says something.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.trim());
        found.filter(|it| !it.is_empty())
    }

    /// A field as it was typed, spaces and all.
    pub(crate) fn raw(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| &**value)
    }

    /// A field that has to say something.
    pub(crate) fn need(&self, name: &str, what: &str) -> Result<&str, Problem> {
        self.get(name).ok_or_else(|| Problem::bad(what))
    }

    /// A number of at least one, if there is one.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u32>, Problem> {
        let number = self.get(name).map(str::parse).transpose();
        let number = number.map_err(|_| Problem::bad(format!("`{name}` is a whole number")))?;
        match number {
            Some(0) => Err(Problem::bad(format!("`{name}` is at least 1"))),
            number => Ok(number),
        }
    }
}

impl<S: Send + Sync> FromRequest<S> for Fields {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let visitor = request.extensions().get::<Visitor>().cloned();
        let form = Form::<Vec<(String, String)>>::from_request(request, state).await;
        let Form(fields) = form.map_err(|it| Problem::bad(it.body_text()))?;
        let fields = Self(fields);
        let token = fields.raw("form").unwrap_or_default();
        if visitor.is_some_and(|it| is_same(token, &it.form_token)) {
            return Ok(fields);
        }
        let detail = "the form is of another session, or is too old";
        Err(Problem::new(StatusCode::FORBIDDEN, detail).hint("load the page again, and repeat it"))
    }
}
