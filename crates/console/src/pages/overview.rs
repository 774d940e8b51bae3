//! Whether everything is all right, and if not, what first.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Query, State};
use axum::response::Response;
use serde::Deserialize;

use super::consumers::{ConsumerRow, consumer_rows};
use super::work::{WorkRow, replay_rows};
use crate::app::App;
use crate::frame::{Frame, Place, page};
use crate::problem::Problem;
use crate::state::figures::{bytes, clock, latency, rate, rounded};
use crate::state::history::Reach;
use crate::state::needs::{ActKind, Need, needs};
use crate::state::picture::{Link, Picture};
use crate::visitor::Visitor;

/// Rows of the table that says what a chart shows.
const CHART_ROWS: usize = 15;

/// How far back the charts go.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Look {
    reach: Option<String>,
}

impl Look {
    pub(crate) fn reach(&self) -> Reach {
        if self.reach.as_deref() == Some("day") { Reach::Day } else { Reach::QuarterHour }
    }
}

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    frame: Frame,
    needs: Vec<Need>,
    has_relays: bool,
    /// Figures are of all of them together.
    has_many: bool,
    relays: Vec<RelayRow>,
    consumers: Vec<ConsumerRow>,
    work: Vec<WorkRow>,
    is_day: bool,
    table: Vec<ChartRow>,
}

/// A process of a relay, or a shard of it.
struct RelayRow {
    address: String,
    role: String,
    is_up: bool,
    facts: Vec<String>,
}

/// What the charts show at one time.
struct ChartRow {
    at: String,
    rate: String,
    p50: String,
    p99: String,
    slot: String,
}

pub(crate) async fn overview(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Query(look): Query<Look>,
) -> Result<Response, Problem> {
    app.watch.freshen().await;
    let reach = look.reach();
    let frame = Frame::looking_back(&app, &visitor, Place::Overview, "Overview", reach);
    let now = frame.now;
    let overview = app.watch.see(|picture| Overview {
        needs: needs(picture, now),
        has_relays: !picture.relays.is_empty(),
        has_many: picture.relays.len() > 1,
        relays: relay_rows(picture),
        consumers: consumer_rows(picture, now),
        work: replay_rows(picture),
        is_day: reach == Reach::Day,
        table: chart_rows(picture, &frame, reach),
        frame,
    });
    page(&overview)
}

fn relay_rows(picture: &Picture) -> Vec<RelayRow> {
    let mut rows = Vec::new();
    let all = picture.relays.iter().flat_map(|it| it.processes.iter().map(move |of| (it, of)));
    for (relay, process) in all {
        let called = picture.called(relay, &process.address);
        let is_up = process.is_up();
        if !is_up {
            let role = if process.link == Link::NotAsked { "not asked yet" } else { "away" };
            let (address, role) = (called, role.to_owned());
            rows.push(RelayRow { address, role, is_up, facts: Vec::new() });
            continue;
        }
        for shard in process.status.shards() {
            let ok = |is_up: bool| if is_up { "connected" } else { "away" };
            let mut facts = vec![
                format!("PostgreSQL {}", ok(shard.postgres_connected)),
                format!("NATS {}", ok(shard.nats_connected)),
            ];
            if shard.mode == "keyed" || shard.mode == "poll" {
                facts.push(format!("{} mode", shard.mode));
            }
            let address = match shard.shard {
                Some(number) => format!("{called} shard {number}"),
                None => called.clone(),
            };
            rows.push(RelayRow { address, role: shard.role.clone(), is_up, facts });
        }
    }
    rows
}

fn chart_rows(picture: &Picture, frame: &Frame, reach: Reach) -> Vec<ChartRow> {
    let now = frame.now;
    let window = picture.history.window(reach, now);
    let points = |name: &str| picture.history.points(name, window, now);
    let (rates, p50, p99, slots) = (points("rate"), points("p50"), points("p99"), points("slot"));
    let every = (window.count / CHART_ROWS).max(1);
    let row = |place: usize| {
        let most = |of: &[Option<f64>]| most(of, place, every);
        let known = |value: Option<f64>, text: &dyn Fn(f64) -> String| {
            value.map_or_else(|| "–".into(), text)
        };
        ChartRow {
            at: clock(window.begins(place, now), now),
            rate: known(most(&rates), &rate),
            p50: known(most(&p50), &latency),
            p99: known(most(&p99), &latency),
            slot: known(most(&slots), &|it| bytes(rounded(it))),
        }
    };
    (0..window.count).rev().step_by(every).map(row).collect()
}

/// A peak between two rows is in the one behind it.
fn most(points: &[Option<f64>], place: usize, every: usize) -> Option<f64> {
    let from = (place + 1).saturating_sub(every);
    points[from..=place].iter().copied().flatten().reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_the_charts_has_the_peak_of_its_time() {
        let points = [Some(1.0), Some(900.0), Some(2.0), None, Some(3.0), None];
        assert_eq!(most(&points, 2, 3), Some(900.0));
        assert_eq!(most(&points, 5, 3), Some(3.0));
        assert_eq!((most(&points, 0, 3), most(&points, 3, 1)), (Some(1.0), None));
    }
}
