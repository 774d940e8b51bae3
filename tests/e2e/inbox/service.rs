//! An HTTP service that handles events, and remembers them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use support::{DEADLINE, TestEnv, until};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use uuid::Uuid;

/// A call as the service saw it.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) id: Uuid,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: String,
}

impl Call {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |it| it.to_str().expect("text"))
    }
}

#[derive(Default)]
struct Shared {
    calls: Vec<Call>,
    answers: BTreeMap<String, u16>,
    otherwise: u16,
    words: String,
}

/// A service whose answers can be changed while it runs. Dropping it closes its port.
pub(crate) struct Service {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Service {
    /// Says 204 to everything.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Mutex::new(Shared { otherwise: 204, ..Shared::default() }));
        let router = Router::new().fallback(serve).with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, shared, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/events", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on answers so, but for what [`Service::answer_to`] says.
    pub(crate) fn answer(&self, status: u16) {
        self.shared.lock().expect("not poisoned").otherwise = status;
    }

    /// From now on answers so to events of this aggregate.
    pub(crate) fn answer_to(&self, aggregate_id: &str, status: u16) {
        let mut shared = self.shared.lock().expect("not poisoned");
        shared.answers.insert(aggregate_id.to_owned(), status);
    }

    /// From now on answers with these words.
    pub(crate) fn say(&self, words: &str) {
        words.clone_into(&mut self.shared.lock().expect("not poisoned").words);
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.shared.lock().expect("not poisoned").calls.clone()
    }

    pub(crate) fn calls_of(&self, id: Uuid) -> usize {
        self.calls().iter().filter(|it| it.id == id).count()
    }

    /// Waits for this many calls.
    pub(crate) async fn wait_calls(&self, count: usize) {
        let what = format!("the service was called {count} times");
        until(DEADLINE, &what, async || self.calls().len() >= count).await;
    }

    /// What makes `tailpost inbox run` call it.
    pub(crate) fn args(&self) -> [String; 6] {
        ["inbox", "run", "--consumer", "billing", "--handler", &self.url()].map(str::to_owned)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(State(shared): State<Arc<Mutex<Shared>>>, request: Request) -> (StatusCode, String) {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("a body");
    let text = |name: &str| parts.headers.get(name).and_then(|it| it.to_str().ok()).unwrap_or("");
    let id = text("idempotency-key").parse().unwrap_or_default();
    let payload = String::from_utf8(body.to_vec()).expect("UTF-8");
    let mut shared = shared.lock().expect("not poisoned");
    let status = shared.answers.get(text("aggregate-id")).copied().unwrap_or(shared.otherwise);
    shared.calls.push(Call { id, headers: parts.headers.clone(), payload });
    (StatusCode::from_u16(status).expect("a status"), shared.words.clone())
}

/// Commits an event of an aggregate; returns its id.
pub(crate) async fn emit(env: &TestEnv, aggregate_id: &str, payload: &str) -> Uuid {
    let sql = format!("SELECT outbox_emit('order', '{aggregate_id}', 'OrderPlaced', '{payload}')");
    env.query(&sql).await
}
