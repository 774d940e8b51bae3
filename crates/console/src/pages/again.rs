//! A form that was refused.

use hyper::StatusCode;

use crate::fields::Fields;
use crate::problem::Problem;

/// A form that was not carried out is shown again, with what was filled in, and says why.
#[derive(Default)]
pub(crate) struct Again {
    /// Letters that were selected.
    pub(crate) ticked: Vec<String>,
    pub(crate) why: String,
    /// One that was edited.
    pub(crate) payload: Option<String>,
    pub(crate) problem: Option<Problem>,
}

impl Again {
    pub(crate) fn of(fields: &Fields, problem: Problem) -> Self {
        let why = fields.raw("why").unwrap_or_default().to_owned();
        let ticked = fields.all("letter").map(str::to_owned).collect();
        let payload = fields.raw("payload").map(str::to_owned);
        Self { ticked, why, payload, problem: Some(problem) }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.problem.as_ref().map_or(StatusCode::OK, |it| it.status)
    }
}
