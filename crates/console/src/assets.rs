//! The style sheet, the script and the icon, which the binary has in it.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::extract::Path;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

const STYLE: &str = include_str!("../assets/console.css");
const SCRIPT: &str = include_str!("../assets/console.js");
const ICON: &str = include_str!("../assets/icon.svg");

/// Names with a hash of what is in them: a browser may keep them for ever.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) style: String,
    pub(crate) script: String,
    pub(crate) icon: String,
}

impl Names {
    pub(crate) fn new() -> Self {
        let hash = |text: &str| {
            let mut hasher = DefaultHasher::new();
            text.hash(&mut hasher);
            format!("{:016x}", hasher.finish())
        };
        Self {
            style: format!("console.{}.css", hash(STYLE)),
            script: format!("console.{}.js", hash(SCRIPT)),
            icon: format!("icon.{}.svg", hash(ICON)),
        }
    }
}

pub(crate) async fn asset(Path(name): Path<String>) -> Response {
    let names = Names::new();
    let (kind, text) = match name {
        name if name == names.style => ("text/css; charset=utf-8", STYLE),
        name if name == names.script => ("text/javascript; charset=utf-8", SCRIPT),
        name if name == names.icon => ("image/svg+xml", ICON),
        _ => return Problem::not_found("there is no such file").into_response(),
    };
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    (headers, text).into_response()
}
