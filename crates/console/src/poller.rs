//! Asks all relays and inboxes again and again, for all visitors together.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

use crate::client::{AskError, Client, Token};
use crate::settings::Kind;
use crate::state::answers::{Consumers, InboxStatus, Letters, Readiness, RelayStatus, Replays};
use crate::state::operator_answers::Operations;
use crate::state::picture::{Answered, InboxBooks, RelayBooks, Round, Told};
use crate::watch::Watch;

/// How often somebody is asked while a person looks.
const EVERY: Duration = Duration::from_secs(1);
/// And while nobody does.
const UNWATCHED_EVERY: Duration = Duration::from_secs(15);
/// How often what is in a database is asked for.
const BOOKS_EVERY: Duration = Duration::from_secs(5);
/// A process that is slow does not keep the others' figures back for longer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Runs until it is dropped.
pub(crate) async fn keep_asking(clients: &[Arc<Client>], watch: &Watch) {
    let mut books_at: Option<Instant> = None;
    loop {
        let began = Instant::now();
        let every = if watch.is_watched() { BOOKS_EVERY } else { UNWATCHED_EVERY };
        // A little early, so that five rounds of a second are not six.
        let is_due = books_at.is_none_or(|it| it.elapsed() + EVERY / 2 >= every)
            && (watch.is_watched() || !watch.is_guest);
        let has_books = watch.take_changed() || is_due;
        let round = ask(clients, has_books).await;
        if has_books {
            books_at = Some(began);
        }
        watch.apply(Timestamp::now(), round);
        let pause = if watch.is_watched() { EVERY } else { UNWATCHED_EVERY };
        tokio::select! {
            () = tokio::time::sleep_until(began + pause) => {}
            () = watch.wanted() => {}
        }
    }
}

async fn ask(clients: &[Arc<Client>], has_books: bool) -> Round {
    let of = |kind| clients.iter().filter(move |it| it.kind == kind);
    let relays = join_all(of(Kind::Relay).map(|it| ask_relay(it, has_books)));
    let inboxes = join_all(of(Kind::Inbox).map(|it| ask_inbox(it, has_books)));
    let (relays, inboxes) = tokio::join!(relays, inboxes);
    Round { relays, inboxes }
}

/// The answers by address, and the first that answered; the best comes first.
struct Asked<S> {
    processes: Vec<(String, Answered<S>)>,
    first: Option<SocketAddr>,
}

async fn ask_processes<S: DeserializeOwned>(
    client: &Client,
    is_best: impl Fn(&S) -> bool,
) -> Result<Asked<S>, AskError> {
    let addresses = client.addresses().await?;
    let ask_one = async |address: SocketAddr| {
        let both = async {
            let status = client.get(address, "/api/v1/status", &Token::Own);
            let ready = client.look::<Readiness>(address, "/readyz");
            tokio::try_join!(status, ready)
        };
        let silent = AskError::Silent { authority: address.to_string() };
        let answered = timeout(ANSWER_MAX, both).await.unwrap_or(Err(silent));
        answered.map_err(|it| it.failure(client.kind))
    };
    let answered: Vec<Answered<S>> = join_all(addresses.iter().map(|it| ask_one(*it))).await;
    let up =
        || addresses.iter().zip(&answered).filter_map(|(at, it)| Some((at, it.as_ref().ok()?)));
    let best = up().find(|(_, (status, _))| is_best(status));
    let first = best.or_else(|| up().next()).map(|(address, _)| *address);
    let processes = addresses.iter().map(ToString::to_string).zip(answered).collect();
    Ok(Asked { processes, first })
}

async fn ask_relay(client: &Client, has_books: bool) -> Told<RelayStatus, RelayBooks> {
    let is_active = |it: &RelayStatus| it.shards().iter().any(|shard| shard.role == "active");
    let asked = match ask_processes(client, is_active).await {
        Ok(asked) => asked,
        Err(error) => {
            return Told { processes: Vec::new(), books: Some(Err(error.failure(client.kind))) };
        }
    };
    let books = match asked.first.filter(|_| has_books) {
        Some(address) => {
            let letters = client.get::<Letters>(address, LETTERS_OF_OUTBOX, &Token::Own);
            let replays = client.get::<Replays>(address, "/api/v1/replays?limit=50", &Token::Own);
            let operations = client.get::<Operations>(address, OPERATIONS_OF_OUTBOX, &Token::Own);
            let all = async { tokio::try_join!(letters, replays, operations) }.await;
            let books = all.map(|(letters, replays, operations)| RelayBooks {
                letters,
                replays: replays.replays,
                operations: operations.operations,
            });
            Some(books.map_err(|it| it.failure(client.kind)))
        }
        None => None,
    };
    Told { processes: asked.processes, books }
}

// A few may all be known, with their aggregates.
const LETTERS_OF_OUTBOX: &str = "/api/v1/outbox/dead-letter?limit=20";
const OPERATIONS_OF_OUTBOX: &str = "/api/v1/outbox/dead-letter/operations";
const OPERATIONS_OF_INBOX: &str = "/api/v1/inbox/dead-letter/operations";
const LETTERS_OF_INBOX: &str = "/api/v1/inbox/dead-letter?limit=0";

async fn ask_inbox(client: &Client, has_books: bool) -> Told<InboxStatus, InboxBooks> {
    let is_active = |it: &InboxStatus| it.consumers.values().any(|it| it.state != "standby");
    let asked = match ask_processes(client, is_active).await {
        Ok(asked) => asked,
        Err(error) => {
            return Told { processes: Vec::new(), books: Some(Err(error.failure(client.kind))) };
        }
    };
    let books = match asked.first.filter(|_| has_books) {
        Some(address) => {
            let letters = client.get::<Letters>(address, LETTERS_OF_INBOX, &Token::Own);
            let consumers = client.get::<Consumers>(address, "/api/v1/consumers", &Token::Own);
            let operations = client.get::<Operations>(address, OPERATIONS_OF_INBOX, &Token::Own);
            let all = async { tokio::try_join!(letters, consumers, operations) }.await;
            let books = all.map(|(letters, consumers, operations)| InboxBooks {
                letters,
                database: consumers.database,
                consumers: consumers.consumers,
                operations: operations.operations,
            });
            Some(books.map_err(|it| it.failure(client.kind)))
        }
        None => None,
    };
    Told { processes: asked.processes, books }
}
