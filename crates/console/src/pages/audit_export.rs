//! The audit as a file: an entry a line, as the API has it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::audit::{Search, meant};
use crate::app::App;
use crate::problem::Problem;
use crate::visitor::Visitor;

/// `/api/v1/audit`, with whatever its entries have.
#[derive(Deserialize)]
struct Page {
    entries: Vec<Map<String, Value>>,
    next: Option<String>,
}

/// What is still to be read: of each source all pages, the newest entries first.
struct Export {
    app: Arc<App>,
    visitor: Visitor,
    query: String,
    sources: VecDeque<String>,
    cursor: String,
}

impl Export {
    async fn page(&mut self) -> Result<Option<String>, Problem> {
        let Some(key) = self.sources.front() else { return Ok(None) };
        let path = format!("audit?limit=500{}{}", self.query, self.cursor);
        let page: Page = self.app.source(key)?.get(&self.visitor, &path).await?;
        let line = |mut entry: Map<String, Value>| {
            entry.insert("source".into(), key.as_str().into());
            format!("{}\n", Value::Object(entry))
        };
        let lines = page.entries.into_iter().map(line).collect();
        match page.next {
            Some(next) => self.cursor = format!("&cursor={next}"),
            None => {
                self.sources.pop_front();
                self.cursor.clear();
            }
        }
        Ok(Some(lines))
    }
}

/// All entries that match. One that cannot be read any more breaks the download.
pub(crate) async fn export(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Query(search): Query<Search>,
) -> Result<Response, Problem> {
    let sources = meant(&app, &search).map(|it| it.key().to_owned()).collect();
    let (query, cursor) = (search.query(""), String::new());
    let mut export = Export { app: Arc::clone(&app), visitor, query, sources, cursor };
    // A refusal is a page.
    let first = export.page().await?.unwrap_or_default();
    let rest = stream::try_unfold(export, async |mut it| {
        Ok::<_, Problem>(it.page().await?.map(|lines| (lines, it)))
    });
    let lines = stream::iter([Ok(first)]).chain(rest);
    let body = Body::from_stream(lines.map_err(|it| io::Error::other(it.detail)));
    let headers = [
        (CONTENT_TYPE, "application/jsonl"),
        (CONTENT_DISPOSITION, "attachment; filename=\"audit.jsonl\""),
    ];
    Ok((headers, body).into_response())
}
