//! What all requests share, and how they ask upstreams.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use futures_util::future::join_all;
use hyper::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::{AskError, Client, Token};
use crate::problem::Problem;
use crate::sessions::{Role, Sessions, secret};
use crate::settings::{Kind, Settings};
use crate::state::operator_answers::Oneself;
use crate::state::picture::Picture;
use crate::visitor::{Peer, Theme, Visitor, cookie, only, session_cookies};
use crate::watch::Watch;

pub(crate) struct App {
    pub(crate) settings: Settings,
    pub(crate) clients: Vec<Arc<Client>>,
    pub(crate) watch: Watch,
    pub(crate) sessions: Sessions,
    /// What forms carry where there are no sessions.
    pub(crate) form_token: Arc<str>,
    /// What the console's own tokens are good for, and when they were shown.
    own_role: tokio::sync::Mutex<Option<(Instant, Role)>>,
}

/// How long that is believed.
const OWN_ROLE_AGE: Duration = Duration::from_secs(60);

impl App {
    pub(crate) fn new(settings: Settings) -> Self {
        let (mut relays, mut inboxes) = (Vec::new(), Vec::new());
        let clients = settings.upstreams.iter().map(|upstream| {
            let (names, name) = match upstream.kind {
                Kind::Relay => (&mut relays, "relay"),
                Kind::Inbox => (&mut inboxes, "inbox"),
            };
            let key = match names.len() {
                0 => name.to_owned(),
                others => format!("{name}-{}", others + 1),
            };
            names.push(key.clone());
            Arc::new(Client::new(key, upstream.clone()))
        });
        let clients = clients.collect();
        let watch = Watch::new(Picture::new(relays, inboxes), settings.is_guest);
        Self {
            settings,
            clients,
            watch,
            sessions: Sessions::default(),
            form_token: secret().into(),
            own_role: tokio::sync::Mutex::default(),
        }
    }

    /// The source that is called so.
    pub(crate) fn source(&self, key: &str) -> Result<Source<'_>, Problem> {
        let client = self.clients.iter().find(|it| it.key == key);
        let client = client.ok_or_else(|| Problem::not_found("no relay or inbox has this name"))?;
        Ok(Source { app: self, client })
    }

    pub(crate) fn sources(&self, kind: Kind) -> impl Iterator<Item = Source<'_>> {
        self.clients
            .iter()
            .filter(move |it| it.kind == kind)
            .map(|client| Source { app: self, client })
    }

    /// Whether what its database has is asked of another source.
    pub(crate) fn is_twin(&self, key: &str) -> bool {
        self.watch.see(|picture| picture.is_twin(key))
    }

    /// What each of some sources answers, and why others do not.
    pub(crate) async fn ask_each<T: DeserializeOwned>(
        &self,
        visitor: &Visitor,
        is_meant: impl Fn(&str) -> bool,
        path: impl Fn(Kind) -> String,
    ) -> (Vec<(String, T)>, Vec<(String, Problem)>) {
        let meant = self.clients.iter().filter(|it| is_meant(&it.key));
        let asked = join_all(meant.map(async |client| {
            let source = Source { app: self, client };
            (client.key.clone(), source.get::<T>(visitor, &path(client.kind)).await)
        }));
        let (mut told, mut problems) = (Vec::new(), Vec::new());
        for (key, answer) in asked.await {
            match answer {
                Ok(answer) => told.push((key, answer)),
                Err(error) => problems.push((key, error.into())),
            }
        }
        (told, problems)
    }

    /// Finds out who sent these headers.
    ///
    /// # Errors
    ///
    /// Why that is nobody.
    pub(crate) async fn visitor(
        &self,
        headers: &HeaderMap,
        peer: Option<Peer>,
    ) -> Result<Visitor, Absence> {
        let theme = Theme::of(headers);
        if let Some(proxy) = &self.settings.proxy {
            let is_trusted = peer.is_some_and(|it| (proxy.trusts)(it.0));
            let name = only(headers, proxy.user_header.as_str()).filter(|_| is_trusted);
            let name = name.ok_or(Absence::NotYet)?;
            let name = Some(name.chars().take(200).collect());
            let role = self.own_role().await;
            return Ok(Visitor { role, is_known: true, name, ..self.nobody(theme) });
        }
        if !self.settings.needs_sign_in() {
            let role = self.own_role().await;
            return Ok(Visitor { role, is_known: true, ..self.nobody(theme) });
        }
        let id = session_cookies().into_iter().find_map(|it| cookie(headers, it));
        let id = id.filter(|it| !it.is_empty()).ok_or(Absence::NotYet)?;
        let mut session = self.sessions.get(id).ok_or(Absence::Forgotten)?;
        if session.is_revoked {
            return Err(Absence::Revoked);
        }
        if session.is_to_be_checked() {
            match self.role_of(&session.token).await {
                Ok(Some(Oneself { role, .. })) => {
                    self.sessions.confirm(id, role);
                    session.role = role;
                }
                // The token is gone from its file.
                Ok(None) => {
                    self.sessions.revoke(id);
                    return Err(Absence::Revoked);
                }
                // No upstream can say so now. None can be changed either.
                Err(_) => {}
            }
        }
        Ok(Visitor {
            role: session.role,
            is_known: true,
            called: session.called,
            form_token: session.form_token,
            token: Some(session.token),
            ..self.nobody(theme)
        })
    }

    pub(crate) fn nobody(&self, theme: Theme) -> Visitor {
        Visitor::nobody(Arc::clone(&self.form_token), theme)
    }

    pub(crate) fn may_change(&self, visitor: &Visitor) -> bool {
        visitor.role >= Role::Operator && !self.settings.read_only
    }

    /// What the console itself may do, for visitors without a token of their own. A viewer, as long as
    /// nobody says more.
    pub(crate) async fn own_role(&self) -> Role {
        let mut known = self.own_role.lock().await;
        if let Some((_, role)) = known.filter(|(at, _)| at.elapsed() < OWN_ROLE_AGE) {
            return role;
        }
        let roles = self.roles_of(&Token::Own).await;
        let proven = roles.proven.map(|it| it.role);
        let best = if self.settings.has_credentials() { proven } else { roles.of_anybody };
        if let Some(role) = best {
            *known = Some((Instant::now(), role));
        }
        best.unwrap_or(Role::Viewer)
    }

    /// What a token is good for, by asking each upstream. `None` if no upstream that has tokens knows
    /// it.
    ///
    /// # Errors
    ///
    /// If no upstream knows it, and one of them did not answer.
    pub(crate) async fn role_of(&self, token: &Arc<str>) -> Result<Option<Oneself>, AskError> {
        let roles = self.roles_of(&Token::Of(Arc::clone(token))).await;
        match (roles.proven, roles.failed) {
            (None, Some(error)) => Err(error),
            (proven, _) => Ok(proven),
        }
    }

    async fn roles_of(&self, token: &Token) -> Roles {
        let mut roles = Roles::default();
        for client in &self.clients {
            match (Source { app: self, client }).role_of(token).await {
                Ok(Some((it, true))) => {
                    let best = roles.proven.take().into_iter().chain([it]);
                    roles.proven = best.max_by_key(|it| it.role);
                }
                Ok(Some((it, false))) => roles.of_anybody = roles.of_anybody.max(Some(it.role)),
                Ok(None) => {}
                Err(error) => roles.failed = Some(error),
            }
        }
        roles
    }
}

/// Why nobody is signed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Absence {
    /// Nobody has signed in here.
    NotYet,
    /// The cookie is of a session that is not known.
    Forgotten,
    Revoked,
}

impl Absence {
    /// As the query of the page to sign in at has it.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Self::NotYet => None,
            Self::Forgotten => Some("forgotten"),
            Self::Revoked => Some("revoked"),
        }
    }

    /// As the page says it.
    pub(crate) fn words(self) -> Option<&'static str> {
        match self {
            Self::NotYet => None,
            Self::Forgotten => {
                Some("Your session has ended: the console was restarted. Sign in again.")
            }
            Self::Revoked => Some("Your token is not known any more: it was revoked or replaced."),
        }
    }
}

/// What a token is good for at all upstreams.
#[derive(Default)]
struct Roles {
    /// The best at those that know it.
    proven: Option<Oneself>,
    /// The best at those that have no tokens, and admit everybody.
    of_anybody: Option<Role>,
    failed: Option<AskError>,
}

/// The processes behind one URL, as a request asks them.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    app: &'a App,
    pub(crate) client: &'a Arc<Client>,
}

impl Source<'_> {
    pub(crate) fn key(&self) -> &str {
        &self.client.key
    }

    pub(crate) fn kind(&self) -> Kind {
        self.client.kind
    }

    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        visitor: &Visitor,
        path: &str,
    ) -> Result<T, AskError> {
        let address = self.address().await?;
        self.client.get(address, &format!("/api/v1/{path}"), &visitor.token()).await
    }

    /// Sends a change in the visitor's name.
    pub(crate) async fn change<T: DeserializeOwned>(
        &self,
        visitor: &Visitor,
        method: Method,
        path: &str,
        body: Value,
    ) -> Result<T, Problem> {
        self.change_seen(visitor, (method, path), None, body).await
    }

    /// The same, if it is still as it was seen.
    pub(crate) async fn change_seen<T: DeserializeOwned>(
        &self,
        visitor: &Visitor,
        (method, path): (Method, &str),
        seen: Option<&str>,
        mut body: Value,
    ) -> Result<T, Problem> {
        visitor.must_be_operator()?;
        if let (Some(name), Some(fields)) = (&visitor.name, body.as_object_mut()) {
            fields.insert("by".into(), json!(name));
        }
        let address = self.address().await?;
        let path = format!("/api/v1/{path}");
        let with = (&visitor.token(), seen);
        let changed = self.client.change((method, address, &path), with, &body).await;
        self.app.watch.hurry();
        Ok(changed?)
    }

    /// Of several processes the active one, else one that answers, else any.
    async fn address(&self) -> Result<SocketAddr, AskError> {
        let addresses = self.client.addresses().await?;
        let best = self.app.watch.see(|picture| {
            let relay = picture.relay(self.key()).and_then(|it| {
                let active = it.shards().into_iter().map(|(address, _)| address.to_owned());
                active.into_iter().next()
            });
            relay.or_else(|| {
                let inbox = picture.inboxes.iter().find(|it| it.key == self.client.key)?;
                inbox.processes.iter().find(|it| it.is_up()).map(|it| it.address.clone())
            })
        });
        let best = best.and_then(|best| addresses.iter().find(|it| it.to_string() == best));
        best.or(addresses.first()).copied().ok_or(AskError::Unknown { authority: String::new() })
    }

    /// What a token is good for, and whether it proves that: a process without tokens admits any.
    /// `None` if it is not known.
    async fn role_of(&self, token: &Token) -> Result<Option<(Oneself, bool)>, AskError> {
        let Some(oneself) = self.me(token).await? else { return Ok(None) };
        let made_up = Token::Of(secret().into());
        let is_proven = self.me(&made_up).await?.is_none();
        Ok(Some((oneself, is_proven)))
    }

    async fn me(&self, token: &Token) -> Result<Option<Oneself>, AskError> {
        let address = self.address().await?;
        match self.client.get::<Oneself>(address, "/api/v1/me", token).await {
            Ok(oneself) => Ok(Some(oneself)),
            Err(AskError::Refused { status: StatusCode::UNAUTHORIZED, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The fields of a change that is made for a reason, if there is one.
pub(crate) fn change(why: Option<&str>) -> Value {
    let why = why.map(str::trim).filter(|it| !it.is_empty());
    why.map_or_else(|| json!({}), |why| json!({ "why": why }))
}

/// A body of such fields, for a change that has more.
pub(crate) fn with(mut change: Value, name: &str, value: &impl Serialize) -> Value {
    if let (Some(fields), Ok(value)) = (change.as_object_mut(), serde_json::to_value(value)) {
        fields.insert(name.to_owned(), value);
    }
    change
}
