//! The stream of changes: the figures of every page by name, once a second, as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use jiff::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, timeout_at};

use crate::app::App;
use crate::pages::overview::Look;
use crate::problem::Problem;
use crate::state::history::Reach;
use crate::state::live_figures::{Figures, figures};

/// A stream ends by itself after this, and the browser opens another: so that is no exception.
const AGE_MAX: Duration = Duration::from_secs(55);
/// Something is sent at least this often: a page knows that its console is there while a relay is slow
/// to answer, and proxies keep the connection.
const SILENT_MAX: Duration = Duration::from_secs(3);

/// When the connection of a request takes no more of them: a stream that went on would be cut off.
#[derive(Debug, Clone, Copy)]
pub struct ClosesAt(pub Instant);

/// A stream that is open.
struct Open {
    app: Arc<App>,
    rounds: watch::Receiver<u64>,
    reach: Reach,
    /// What the browser has.
    sent: Figures,
    ends: Instant,
    _place: OwnedSemaphorePermit,
}

pub(crate) async fn live(
    State(app): State<Arc<App>>,
    Query(look): Query<Look>,
    connection: Option<Extension<ClosesAt>>,
) -> Response {
    let Some(place) = app.watch.stream() else {
        let detail = "too many pages are open";
        return Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).into_response();
    };
    let mut rounds = app.watch.rounds();
    rounds.mark_changed();
    let by_itself = Instant::now() + AGE_MAX;
    let ends = connection.map_or(by_itself, |Extension(ClosesAt(at))| by_itself.min(at));
    let sent = Figures::default();
    let open = Open { app, rounds, reach: look.reach(), sent, ends, _place: place };
    let unbuffered = (HeaderName::from_static("x-accel-buffering"), "no");
    let headers = [unbuffered, (header::CACHE_CONTROL, "no-store")];
    (headers, Sse::new(events(open))).into_response()
}

fn events(open: Open) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(open, async |mut open| {
        loop {
            let until = open.ends.min(Instant::now() + SILENT_MAX);
            match timeout_at(until, open.rounds.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) if open.ends <= Instant::now() => return None,
                Err(_) => return Some((Ok(Event::default().event("silence").data("-")), open)),
            }
            if open.app.watch.is_closed() {
                return None;
            }
            let round = *open.rounds.borrow_and_update();
            let now = Timestamp::now();
            let all = open.app.watch.see(|picture| figures(picture, now, open.reach));
            let changed = all.changed_since(&open.sent);
            open.sent = all;
            if let Ok(json) = serde_json::to_string(&changed) {
                let event = Event::default().id(round.to_string()).data(json);
                return Some((Ok(event.retry(Duration::from_secs(1))), open));
            }
        }
    })
}
