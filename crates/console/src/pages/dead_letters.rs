//! What failed, why, and what now.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Query, State};
use axum::response::Response;
use futures_util::future::join_all;
use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) use super::again::Again;
use crate::app::{App, Source, change, with};
use crate::fields::Fields;
use crate::frame::{Frame, Place, done, page_with};
use crate::problem::Problem;
use crate::settings::Kind;
use crate::state::answers::{Group, Letter, Letters};
use crate::state::figures::{count, counted, short};
use crate::state::needs::{filter, wait_behind};
use crate::state::operator_answers::Operation;
use crate::state::picture::Picture;
use crate::state::plan::{self, LetterPlan, Verb, escape};
use crate::visitor::Visitor;

/// Letters of a page of one queue.
const PAGE: u32 = 50;
/// Letters of each queue while none is chosen.
const NEWEST: u32 = 15;
/// How many a second a requeue begins with.
const RATE: u32 = 50;

/// Which letters are meant. It stands in the address, and survives every action.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Filter {
    pub(crate) source: String,
    pub(crate) consumer: String,
    pub(crate) reason: String,
    pub(crate) aggregate: String,
    #[serde(rename = "type")]
    pub(crate) event_type: String,
    /// Dead since then or later.
    pub(crate) since: String,
    pub(crate) cursor: String,
    pub(crate) action: Option<Verb>,
    pub(crate) rate: String,
    /// At most so many, the oldest.
    pub(crate) first: String,
}

impl Filter {
    /// What the API is asked for.
    pub(super) fn query(&self, limit: u32) -> String {
        let mut query = format!("limit={limit}");
        for (name, value) in self.parts() {
            query.push_str(&format!("&{name}={}", escape(value)));
        }
        query
    }

    fn parts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [
            ("consumer", &self.consumer),
            ("reason", &self.reason),
            ("aggregate", &self.aggregate),
            ("type", &self.event_type),
            ("since", &self.since),
            ("cursor", &self.cursor),
        ];
        // A reason may end in a space that matters.
        all.into_iter().filter(|(_, it)| !it.trim().is_empty()).map(|(name, it)| (name, &**it))
    }

    /// The same letters in an address of the console.
    pub(crate) fn address(&self) -> String {
        let mut address = format!("source={}", escape(&self.source));
        for (name, value) in self.parts().filter(|(name, _)| *name != "cursor") {
            address.push_str(&format!("&{name}={}", escape(value)));
        }
        address
    }

    fn with_cursor(&self, cursor: &str) -> String {
        format!("{}&cursor={}", self.address(), escape(cursor))
    }

    /// In words.
    pub(crate) fn says(&self) -> Vec<(&'static str, String)> {
        let parts = self.parts().filter(|(name, _)| *name != "cursor");
        parts.map(|(name, it)| (name, short(it.trim(), 120))).collect()
    }

    /// As the API takes it for work on many. `None` for what it cannot say.
    fn body(&self) -> Value {
        let mut body = json!({});
        if let Some((kind, id)) = self.aggregate.split_once(':') {
            body = with(body, "aggregate", &json!({ "kind": kind, "id": id }));
        }
        if !self.event_type.is_empty() {
            body = with(body, "event_type", &self.event_type);
        }
        if !self.reason.is_empty() {
            body = with(body, "reason", &self.reason);
        }
        if !self.since.is_empty() {
            body = with(body, "since", &self.since);
        }
        body
    }

    fn first(&self) -> Option<u32> {
        self.first.trim().parse().ok().filter(|it| *it > 0)
    }
}

/// A cause, with how many it has.
struct GroupRow {
    source: String,
    group: Group,
    address: String,
    is_chosen: bool,
    /// What is done to it at the moment.
    under_way: Option<String>,
}

impl GroupRow {
    fn is_follower(&self) -> bool {
        plan::is_of_followers(&self.group.fingerprint)
    }

    fn cause(&self) -> String {
        short(&plan::cause(&self.group.fingerprint), 200)
    }
}

/// A letter in a list.
pub(crate) struct LetterRow {
    pub(crate) source: String,
    pub(crate) letter: Letter,
    /// The list's own address, which its page leads back to.
    pub(crate) from: String,
}

impl LetterRow {
    pub(crate) fn path(&self) -> String {
        let path = letter_path(&self.source, &self.letter);
        let sign = if path.contains('?') { '&' } else { '?' };
        match &*self.from {
            "" => path,
            from => format!("{path}{sign}from={}", escape(from)),
        }
    }

    /// What a box that selects it has.
    pub(crate) fn value(&self) -> String {
        let consumer = self.letter.consumer.clone().unwrap_or_default();
        format!("{} {} {consumer}", self.source, self.letter.id)
    }

    pub(crate) fn aggregate(&self) -> String {
        short(&self.letter.aggregate().unwrap_or_else(|| "–".into()), 80)
    }

    pub(crate) fn reason(&self) -> String {
        short(&self.letter.reason, 200)
    }

    pub(crate) fn queue(&self) -> String {
        self.letter.consumer.clone().unwrap_or_else(|| "outbox".into())
    }

    pub(crate) fn kind(&self) -> String {
        short(self.letter.event_type.as_deref().unwrap_or("–"), 80)
    }
}

/// Where the page of a letter is.
pub(crate) fn letter_path(source: &str, letter: &Letter) -> String {
    let consumer = letter.consumer.as_ref().map(|it| format!("?consumer={}", escape(it)));
    format!("/dead-letters/{source}/{}{}", letter.id, consumer.unwrap_or_default())
}

/// A queue that can be chosen.
struct QueueRow {
    source: String,
    name: String,
}

#[derive(Template)]
#[template(path = "dead_letters.html")]
struct DeadLetters {
    frame: Frame,
    filter: Filter,
    total: u64,
    /// From this count of the poller on, its figure is newer than the list.
    counts: u64,
    groups: Vec<GroupRow>,
    queues: Vec<QueueRow>,
    consumers: Vec<String>,
    rows: Vec<LetterRow>,
    next: Option<String>,
    problems: Vec<(String, Problem)>,
    is_one_queue: bool,
    again: Again,
    /// Work on many, by source.
    running: Vec<(String, Operation)>,
}

pub(crate) async fn dead_letters(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Query(filter): Query<Filter>,
) -> Result<Response, Problem> {
    list_page(&app, &visitor, filter, Again::default()).await
}

/// The list, once more if a form of it was not carried out.
pub(super) async fn list_page(
    app: &App,
    visitor: &Visitor,
    filter: Filter,
    again: Again,
) -> Result<Response, Problem> {
    let sources: Vec<Source<'_>> = match &*filter.source {
        "" => {
            let all = app.sources(Kind::Relay).chain(app.sources(Kind::Inbox));
            let has = |it: &Source<'_>| filter.consumer.is_empty() || it.kind() == Kind::Inbox;
            all.filter(|it| !app.is_twin(it.key()) && has(it)).collect()
        }
        key => vec![app.source(key)?],
    };
    let is_one_queue = sources.len() == 1;
    let limit = if is_one_queue { PAGE } else { NEWEST };
    let asked = join_all(sources.iter().map(|it| list(it, visitor, &filter, limit))).await;
    // The next count may have begun before the list was read.
    let counts = app.watch.see(|it| it.counts) + 2;
    app.watch.freshen().await;
    let frame = Frame::new(app, visitor, Place::DeadLetters, "Dead letters");
    let mut shown = DeadLetters {
        queues: queues(app),
        consumers: app.watch.see(Picture::consumers).into_iter().map(|it| it.name).collect(),
        frame,
        counts,
        total: 0,
        groups: Vec::new(),
        rows: Vec::new(),
        next: None,
        problems: Vec::new(),
        is_one_queue,
        filter,
        again,
        running: app.watch.see(|picture| {
            picture.operations().map(|(source, it)| (source.to_owned(), it.clone())).collect()
        }),
    };
    for (source, letters) in sources.iter().zip(asked) {
        match letters {
            Ok(letters) => shown.add(source, letters),
            Err(problem) => shown.problems.push((source.key().to_owned(), problem)),
        }
    }
    // What others wait for comes first, however many wait.
    shown.groups.sort_by_key(|it| (it.is_follower(), std::cmp::Reverse(it.group.count)));
    shown.rows.sort_by_key(|it| std::cmp::Reverse(it.letter.dead_at));
    page_with(shown.again.status(), &shown)
}

async fn list(
    source: &Source<'_>,
    visitor: &Visitor,
    filter: &Filter,
    limit: u32,
) -> Result<Letters, Problem> {
    if !filter.aggregate.trim().is_empty() && !plan::is_aggregate(&filter.aggregate) {
        return Err(Problem::no_aggregate(&filter.aggregate));
    }
    let queue = queue_of(source.kind());
    let path = format!("{queue}/dead-letter?{}", filter.query(limit));
    Ok(source.get(visitor, &path).await?)
}

pub(crate) fn verb_of(name: &str) -> Result<Verb, Problem> {
    let all = [Verb::Requeue, Verb::Discard, Verb::Reject];
    let found = all.into_iter().find(|it| it.name() == name);
    found.ok_or_else(|| Problem::bad("a dead letter is requeued, discarded or rejected"))
}

/// The part of the path that says whose dead letters are meant.
pub(crate) fn queue_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Relay => "outbox",
        Kind::Inbox => "inbox",
    }
}

impl DeadLetters {
    /// The figure that counts what is listed, if one does: of all queues, or of one.
    fn figure(&self) -> Option<String> {
        let source = self.filter.source.clone();
        let is_known = self.problems.is_empty()
            && self.filter == Filter { source: source.clone(), ..Filter::default() };
        is_known.then(|| {
            if source.is_empty() { "all-letters".into() } else { format!("letters.{source}") }
        })
    }

    /// Letters, and what only waits behind them, where there is both.
    fn summary(&self) -> Option<String> {
        let count = |it: &GroupRow| it.group.count;
        let followers = self.groups.iter().filter(|it| it.is_follower()).map(count).sum::<u64>();
        // There are groups of the newest letters only.
        (self.groups.iter().map(count).sum::<u64>() == self.total).then_some(())?;
        let letters = self.total.checked_sub(followers).filter(|it| followers > 0 && *it > 0)?;
        let said = counted(letters, "dead letter", "dead letters");
        Some(format!("{said}, {}.", wait_behind(followers, letters)))
    }

    fn known(&self) -> String {
        count(self.total)
    }

    fn add(&mut self, source: &Source<'_>, letters: Letters) {
        let key = source.key().to_owned();
        self.total += letters.total;
        let group = |group: Group| {
            let mut address = filter(&key, &group);
            if !self.filter.consumer.is_empty() {
                address.push_str(&format!("&consumer={}", escape(&self.filter.consumer)));
            }
            let is_chosen = self.filter.reason == plan::literal(&group.fingerprint);
            let mut running = self.running.iter().filter(|(source, _)| *source == key);
            let under_way = running.find(|(_, it)| it.is_about(&group));
            let under_way = under_way.map(|(_, it)| it.request.action.clone());
            GroupRow { source: key.clone(), address, is_chosen, under_way, group }
        };
        self.groups.extend(letters.groups.into_iter().map(group));
        let from =
            if self.filter == Filter::default() { String::new() } else { self.filter.address() };
        let row = |letter| LetterRow { source: key.clone(), letter, from: from.clone() };
        self.rows.extend(letters.dead_letters.into_iter().map(row));
        self.next = letters.next.filter(|_| self.is_one_queue);
    }
}

/// Every queue.
fn queues(app: &App) -> Vec<QueueRow> {
    app.watch.see(|picture| {
        let relays = picture.relays.iter().map(|it| QueueRow {
            source: it.key.clone(),
            name: if picture.relays.len() == 1 { "outbox".into() } else { it.key.clone() },
        });
        let inboxes =
            picture.databases().map(|it| QueueRow { source: it.key.clone(), name: it.key.clone() });
        relays.chain(inboxes).collect()
    })
}

#[derive(Template)]
#[template(path = "letter_plan.html")]
struct PlanPage {
    frame: Frame,
    filter: Filter,
    verb: Verb,
    plan: LetterPlan,
    letters: Letters,
    rate: u32,
    /// How many can be chosen, to see first whether it helps.
    choices: Vec<u32>,
    again: Again,
}

/// What would be done to all that match.
pub(crate) async fn plan_letters(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Query(filter): Query<Filter>,
) -> Result<Response, Problem> {
    plan_page(&app, &visitor, filter, Again::default()).await
}

async fn plan_page(
    app: &App,
    visitor: &Visitor,
    filter: Filter,
    again: Again,
) -> Result<Response, Problem> {
    let source = app.source(&filter.source)?;
    let verb = filter.action.unwrap_or(Verb::Requeue);
    let letters = list(&source, visitor, &filter, 0).await?;
    let rate = filter.rate.trim().parse().ok().filter(|it| *it > 0).unwrap_or(RATE);
    let mut plan = plan::letters(verb, &letters, (filter.first(), Some(rate)), source.kind());
    if filter.consumer.is_empty() {
        plan.lines.extend(whose(app, &source, visitor, &filter).await);
    }
    let fits = |it: &u32| u64::from(*it) < letters.total;
    let choices = [1, 10, 100, 1_000].into_iter().filter(fits).collect();
    let title = format!("{} dead letters", verb.title());
    let frame = Frame::new(app, visitor, Place::DeadLetters, &title);
    let status = again.status();
    page_with(status, &PlanPage { frame, filter, verb, plan, letters, rate, choices, again })
}

/// Whose letters they are, where nobody said of which consumer they are to be.
async fn whose(
    app: &App,
    source: &Source<'_>,
    visitor: &Visitor,
    filter: &Filter,
) -> Option<String> {
    let names: Vec<String> = app.watch.see(|picture| {
        let inbox = picture.inboxes.iter().find(|it| it.key == source.key())?;
        Some(inbox.with_letters().into_iter().map(str::to_owned).collect())
    })?;
    let each = join_all(names.iter().map(async |name| {
        let of_one = Filter { consumer: name.clone(), ..filter.clone() };
        let total = list(source, visitor, &of_one, 0).await.ok()?.total;
        (total > 0).then_some((name, total))
    }));
    match &*each.await.into_iter().flatten().collect::<Vec<_>>() {
        [] => None,
        [(one, _)] => Some(format!("They are of {one}.")),
        some => {
            let each = some.iter().map(|(name, total)| format!("{} of {name}", count(*total)));
            Some(format!("They are {}.", each.collect::<Vec<_>>().join(", ")))
        }
    }
}

/// Begins work on all that match. The relay does it.
pub(crate) async fn work_on_letters(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let get = |name| fields.raw(name).unwrap_or_default().to_owned();
    let filter = Filter {
        source: get("source"),
        reason: get("reason"),
        aggregate: get("aggregate"),
        event_type: get("type"),
        since: get("since"),
        consumer: get("consumer"),
        first: get("first"),
        rate: get("rate"),
        action: Some(verb_of(&get("action"))?),
        ..Filter::default()
    };
    match begin_work(&app, &visitor, &filter, &fields).await {
        Ok(said) => Ok(done(&app, "/work", &said)),
        Err(problem) => {
            let again = Again::of(&fields, problem.clone());
            plan_page(&app, &visitor, filter, again).await.or(Err(problem))
        }
    }
}

async fn begin_work(
    app: &App,
    visitor: &Visitor,
    filter: &Filter,
    fields: &Fields,
) -> Result<String, Problem> {
    visitor.must_be_operator()?;
    let verb = filter.action.unwrap_or(Verb::Requeue);
    let source = app.source(&filter.source)?;
    let letters = list(&source, visitor, filter, 0).await?;
    let plan = plan::letters(verb, &letters, (filter.first(), None), source.kind());
    let typed = fields.get("typed").map(|it| it.replace(',', ""));
    if plan.typed && typed != Some(plan.total.to_string()) {
        let detail = format!("type how many there are: {}", plan.total);
        return Err(Problem::bad(detail).hint("they may be more than when the plan was made"));
    }
    let why = fields.get("why");
    if verb.is_final() && why.is_none() {
        return Err(Problem::no_reason());
    }
    let body = with(change(why), "action", &verb.name());
    let body = with(with(body, "filter", &filter.body()), "rate", &fields.number("rate")?);
    let consumer = Some(&filter.consumer).filter(|it| !it.is_empty());
    let body = with(with(body, "first", &filter.first()), "consumer", &consumer);
    let path = format!("{}/dead-letter/operations", queue_of(source.kind()));
    source.change::<Value>(visitor, Method::POST, &path, body).await?;
    let letters = counted(plan.total, "dead letter", "dead letters");
    let who = if source.kind() == Kind::Relay { "relay" } else { "inbox" };
    Ok(format!("The {who} begins to {} {letters}.", verb.name()))
}

#[cfg(test)]
mod tests;
