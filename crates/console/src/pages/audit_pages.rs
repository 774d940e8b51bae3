//! The audit of several sources as one list: what differs in its event alone is one row, however many
//! pages of a source that is.
//!
//! Each source has its own pages. A page of the console ends within some of them, and the next one goes
//! on there: [`Places`] says where. New entries come at the front, so the pages are those of before the
//! first row that somebody saw.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};

use crate::app::Source;
use crate::problem::Problem;
use crate::state::answers::Decision;
use crate::state::operator_answers::Audit;
use crate::visitor::Visitor;

/// Entries of a page of a source: work on many has an entry for each.
const PAGE: u32 = 500;
/// Pages of sources that are asked for, for one page here.
const PAGES_MAX: usize = 24;

/// Entries in a row that differ in their event alone.
pub(super) struct Row {
    pub(super) source: String,
    pub(super) first: Decision,
    pub(super) count: usize,
}

impl Row {
    fn takes(&self, entry: &Decision) -> bool {
        let of = |it: &Decision| {
            let Decision { action, actor, why, consumer, .. } = it.clone();
            (action, actor, why, consumer, it.event_id.is_some())
        };
        entry.event_id.is_some() && of(entry) == of(&self.first)
    }
}

/// Behind so many entries of a page of a source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Place {
    cursor: String,
    skip: usize,
}

/// Where a page begins, by source: one that is missing has no more.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// Only entries of before are listed.
    pub(super) until: String,
    of: BTreeMap<String, Place>,
}

impl Places {
    /// Nothing where the text is none of ours.
    pub(super) fn read(text: &str) -> Self {
        let mut parts = text.split(' ');
        let until = parts.next().unwrap_or_default().to_owned();
        let place = |part: &str| {
            let mut parts = part.splitn(3, '.');
            let (key, cursor) = (parts.next()?.to_owned(), parts.next()?.to_owned());
            Some((key, Place { cursor, skip: parts.next()?.parse().ok()? }))
        };
        Self { until, of: parts.filter_map(place).collect() }
    }
}

impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.until)?;
        self.of
            .iter()
            .try_for_each(|(key, Place { cursor, skip })| write!(f, " {key}.{cursor}.{skip}"))
    }
}

/// The entries of one source.
pub(super) struct Pages<'a> {
    source: Source<'a>,
    place: Place,
    /// Behind `place`.
    entries: VecDeque<Decision>,
    /// Where the page behind these begins; none is known before the first is read.
    next: Option<String>,
    is_read: bool,
    failed: Option<Problem>,
    /// The row that its latest entry is in.
    row: Option<usize>,
}

impl<'a> Pages<'a> {
    /// None if there is nothing behind.
    pub(super) fn behind(source: Source<'a>, places: &Places) -> Option<Self> {
        let place = places.of.get(source.key()).cloned();
        let place = if places.of.is_empty() { Some(Place::default()) } else { place };
        let entries = VecDeque::new();
        let (next, is_read, failed, row) = (None, false, None, None);
        Some(Self { source, place: place?, entries, next, is_read, failed, row })
    }

    fn is_over(&self) -> bool {
        self.entries.is_empty() && self.is_read && self.next.is_none()
    }

    fn is_wanting(&self) -> bool {
        self.entries.is_empty() && self.failed.is_none() && !self.is_over()
    }

    async fn fetch(&mut self, visitor: &Visitor, query: &str) {
        if let Some(cursor) = self.next.take() {
            self.place = Place { cursor, skip: 0 };
        }
        let cursor = &self.place.cursor;
        let cursor = if cursor.is_empty() { String::new() } else { format!("&cursor={cursor}") };
        let path = format!("audit?limit={PAGE}{query}{cursor}");
        match self.source.get::<Audit>(visitor, &path).await {
            Ok(audit) => {
                self.entries = audit.entries.into_iter().skip(self.place.skip).collect();
                (self.next, self.is_read) = (audit.next, true);
            }
            Err(error) => self.failed = Some(error.into()),
        }
    }

    fn head(&self) -> Option<Timestamp> {
        Some(self.entries.front()?.at.unwrap_or(Timestamp::MIN))
    }
}

/// The entries of all sources, the newest first.
pub(super) struct Merge<'a> {
    pages: Vec<Pages<'a>>,
    pub(super) rows: Vec<Row>,
    pub(super) problems: Vec<(String, Problem)>,
}

impl<'a> Merge<'a> {
    pub(super) fn new(pages: Vec<Pages<'a>>) -> Self {
        Self { pages, rows: Vec::new(), problems: Vec::new() }
    }

    /// Reads so many rows. The last one is whole, unless that takes too many pages.
    pub(super) async fn read(&mut self, visitor: &Visitor, query: &str, rows_max: usize) {
        let mut asked = 0;
        loop {
            let wanting = self.pages.iter_mut().filter(|it| it.is_wanting()).collect::<Vec<_>>();
            asked += wanting.len();
            if !wanting.is_empty() {
                if asked > PAGES_MAX {
                    break;
                }
                join_all(wanting.into_iter().map(|it| it.fetch(visitor, query))).await;
                continue;
            }
            let newest = self.pages.iter_mut().filter(|it| !it.entries.is_empty());
            let Some(pages) = newest.max_by_key(|it| it.head()) else { break };
            if !add(&mut self.rows, pages, rows_max) {
                break;
            }
        }
        let failed = self
            .pages
            .iter_mut()
            .filter_map(|it| Some((it.source.key().to_owned(), it.failed.take()?)));
        self.problems = failed.collect();
    }

    /// Where the next page begins, if there is one.
    pub(super) fn places(&self, before: &Places) -> Option<Places> {
        let newest = self.rows.iter().filter_map(|it| it.first.at).max();
        let behind = newest.and_then(|it| it.checked_add(SignedDuration::from_micros(1)).ok());
        let behind = behind.map(|it| it.to_string()).unwrap_or_default();
        let until = if before.until.is_empty() { behind } else { before.until.clone() };
        let more = self.pages.iter().filter(|it| !it.is_over());
        let of: BTreeMap<_, _> =
            more.map(|it| (it.source.key().to_owned(), it.place.clone())).collect();
        // A source that does not answer has no older page now.
        let has_more = self.pages.iter().any(|it| it.is_read && !it.is_over());
        has_more.then_some(Places { until, of })
    }
}

/// False if the page is full.
fn add(rows: &mut Vec<Row>, pages: &mut Pages<'_>, rows_max: usize) -> bool {
    let Some(entry) = pages.entries.front() else { return true };
    let joins = pages.row.filter(|at| rows[*at].takes(entry));
    if joins.is_none() && rows.len() >= rows_max {
        return false;
    }
    let Some(first) = pages.entries.pop_front() else { return true };
    pages.place.skip += 1;
    match joins {
        Some(at) => rows[at].count += 1,
        None => {
            pages.row = Some(rows.len());
            rows.push(Row { source: pages.source.key().to_owned(), first, count: 1 });
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_on_many_is_one_row_and_decisions_of_two_people_are_two() {
        let entry = |actor: &str| Decision {
            action: "requeue".into(),
            actor: actor.into(),
            event_id: Some("1".into()),
            ..Decision::default()
        };
        let row = Row { source: "inbox".into(), first: entry("postgres (ada)"), count: 1 };
        assert!(row.takes(&entry("postgres (ada)")) && !row.takes(&entry("postgres (bob)")));
    }

    #[test]
    fn a_place_is_read_as_it_is_written() {
        for text in ["2026-11-26T16:48:07.000001Z inbox..12 relay.W10_-.0", ""] {
            assert_eq!(Places::read(text).to_string(), text);
        }
        assert_eq!(Places::read("x relay").of, BTreeMap::new());
    }
}
