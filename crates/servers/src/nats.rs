mod credentials;
mod login;
mod unheard;

use std::error::Error as StdError;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::{self, Context};
use async_nats::{
    Client, ConnectOptions, Event, ReconnectToServer, Server, ServerAddr, ServerInfo,
};
use outbox::jetstream_api::{self, DEFAULT_PREFIX, use_prefix};
use percent_encoding::percent_decode_str;
use tokio::sync::watch;
use tracing::{debug, info, warn};
use url::Url;

use self::credentials::{Credentials, choose_credentials};
use self::unheard::is_about_answers;
use crate::Backoff;
use crate::error::{Error, Renewed, renew};
use crate::tls::install_crypto_provider;
use crate::tls::{self, Identity};

/// Time allowed for one attempt to connect to one address.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// A dead connection is noticed after two unanswered pings.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Commands waiting for the socket. Publishing waits beyond that.
const CLIENT_CAPACITY: usize = 4096;
/// Messages waiting for a subscriber. Beyond that they are dropped, so it exceeds any window.
const SUBSCRIPTION_CAPACITY: usize = 65_536;

const DEFAULT_PORT: u16 = 4222;

const INBOX: &str = "_INBOX";

/// What opens the door at a NATS server, given beside the URL.
///
/// At most one of `creds`, `nkey`, `token`, `token_file`, and `user` with `password` or
/// `password_file`; none of them if the URL has credentials. Secrets are not shown by `Debug`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct NatsAccess {
    /// Credentials file: a user's JWT and its seed. Read again for each connection.
    pub creds: Option<PathBuf>,
    /// NKey seed (`SU...`), or the path of a file that holds one, which is read again for each
    /// connection.
    pub nkey: Option<String>,
    /// Authentication token.
    pub token: Option<String>,
    /// File that holds the token. Read again for each connection.
    pub token_file: Option<PathBuf>,
    /// User name. Needs `password` or `password_file`.
    pub user: Option<String>,
    /// Password of `user`.
    pub password: Option<String>,
    /// File that holds the password of `user`. Read again for each connection.
    pub password_file: Option<PathBuf>,
    /// PEM file of the authorities to trust; the system's if none. Demands TLS.
    pub ca: Option<PathBuf>,
    /// PEM file of the client certificate. Needs `key`. Demands TLS.
    pub cert: Option<PathBuf>,
    /// PEM file of the client certificate's key.
    pub key: Option<PathBuf>,
    /// Start TLS before the server says anything, as servers with `handshake_first` want it.
    pub tls_first: bool,
    /// Where JetStream is asked, if not under `$JS.API`: `$JS.<domain>.API` for a domain.
    pub api_prefix: Option<String>,
    /// What the subjects of answers begin with, if not with `_INBOX`.
    pub inbox_prefix: Option<String>,
}

/// One or more NATS servers of a cluster and how to get in.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsTarget {
    // Never empty. Free of credentials, because the client logs addresses.
    servers: Vec<ServerAddr>,
    credentials: Credentials,
    again: Again,
    roots: Option<PathBuf>,
    identity: Option<Identity>,
    tls_first: bool,
    api_prefix: String,
    inbox_prefix: String,
}

/// Reads the configuration again, if there is something to read.
#[derive(Clone, Default)]
struct Again(Option<Arc<Reread>>);

type Reread = dyn Fn() -> Result<NatsTarget, Box<dyn StdError + Send + Sync>> + Send + Sync;

/// Where a target was read from is not a part of what it is.
impl PartialEq for Again {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Again {}

/// The state of the connection to NATS, for those who must act when it changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NatsLink {
    /// Whether the connection is up, as far as known.
    pub connected: bool,
    /// How often it was established. Tells a reconnect from no change.
    pub connects: u64,
    /// What the server or the client reported since then, such as a permission violation.
    pub last_error: Option<String>,
    /// How often the server reported an error. Tells the same one again from no change.
    pub errors: u64,
    /// Where answers come to which the user may not subscribe: nobody hears them on this connection.
    pub unheard: Option<String>,
    /// Why the server does not let the client in, and what helps, while it is so.
    pub refused: Option<String>,
}

impl FromStr for NatsTarget {
    type Err = Error;

    fn from_str(servers: &str) -> Result<Self, Error> {
        Self::new(servers, NatsAccess::default())
    }
}

impl NatsTarget {
    /// Parses a comma-separated list of `nats://` or `tls://` URLs.
    ///
    /// Credentials may stand in the URLs (`user:password@` or `token@`), the same in each or only
    /// in the first.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for what cannot be parsed or combined. Files are read when connecting.
    pub fn new(servers: &str, access: NatsAccess) -> Result<Self, Error> {
        let mut addresses = Vec::new();
        let mut from_url = Credentials::None;
        for server in servers.split(',').map(str::trim).filter(|it| !it.is_empty()) {
            let (address, credentials) = parse_server(server)?;
            addresses.push(address);
            if credentials == Credentials::None || credentials == from_url {
                continue;
            }
            if from_url != Credentials::None {
                return Err(invalid("the servers have different credentials"));
            }
            from_url = credentials;
        }
        if addresses.is_empty() {
            return Err(invalid("expected nats://host:port, or several separated by commas"));
        }
        let identity = match (access.cert.clone(), access.key.clone()) {
            (Some(cert), Some(key)) => Some(Identity { cert, key }),
            (None, None) => None,
            _ => return Err(Error::invalid("nats.cert", "nats.cert and nats.key go together")),
        };
        let roots = access.ca.clone();
        let tls_first = access.tls_first;
        let api_prefix = prefix("nats.api_prefix", &access.api_prefix, DEFAULT_PREFIX)?;
        let inbox_prefix = prefix("nats.inbox_prefix", &access.inbox_prefix, INBOX)?;
        let credentials = choose_credentials(from_url, access)?;
        let again = Again::default();
        Ok(Self {
            servers: addresses,
            credentials,
            again,
            roots,
            identity,
            tls_first,
            api_prefix,
            inbox_prefix,
        })
    }

    /// Has a token, or a user with a password, read anew for each connection: `again` makes the
    /// target as it is configured then, and its credentials are used. If that fails, those that are
    /// known are.
    pub fn reread_by<F>(mut self, again: F) -> Self
    where
        F: Fn() -> Result<Self, Box<dyn StdError + Send + Sync>> + Send + Sync + 'static,
    {
        self.again = Again(Some(Arc::new(again)));
        self
    }

    /// Connects under the given client name.
    ///
    /// The first attempt fails if no server lets us in. After that the client reconnects by
    /// itself, for as long as it takes; what happens is logged.
    ///
    /// # Errors
    ///
    /// Fails if no server can be reached or lets us in, or a file cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up.
    pub async fn connect(&self, name: &str) -> Result<Client, Error> {
        self.connect_watched(name).await.map(|(client, _)| client)
    }

    /// Like [`connect`](Self::connect), and lets the caller watch the connection, which is up by
    /// the time this returns.
    ///
    /// # Errors
    ///
    /// See [`connect`](Self::connect).
    pub async fn connect_watched(
        &self,
        name: &str,
    ) -> Result<(Client, watch::Receiver<NatsLink>), Error> {
        install_crypto_provider();
        self.check_tls_files()?;
        if !use_prefix(&self.api_prefix) {
            let reason = "the process asks another JetStream already: run one for each";
            return Err(Error::invalid("nats.api_prefix", reason));
        }
        let (link, mut watcher) = watch::channel(NatsLink::default());
        let (servers, renewed) = (self.to_string(), self.renewed());
        let (elsewhere, inbox) = (elsewhere(), self.inbox_prefix.clone());
        let options = login::options(&self.credentials, &self.again)
            .await?
            .name(name)
            .custom_inbox_prefix(&self.inbox_prefix)
            .connection_timeout(CONNECTION_TIMEOUT)
            .request_timeout(Some(REQUEST_TIMEOUT))
            .ping_interval(PING_INTERVAL)
            .client_capacity(CLIENT_CAPACITY)
            .subscription_capacity(SUBSCRIPTION_CAPACITY)
            // The wire mapping makes valid subjects; checking again costs on each publish.
            .skip_subject_validation(true)
            .max_reconnects(None)
            .reconnect_delay_callback(reconnect_delay)
            .reconnect_to_server_callback(move |servers, info| {
                std::future::ready(elsewhere(&servers, &info))
            })
            .event_callback(move |event| {
                observe(&link, (&servers, &inbox), renewed, &event);
                std::future::ready(())
            });
        let client = self
            .encrypt(options)?
            .connect(self.servers.clone())
            .await
            .map_err(|source| Error::Nats { target: self.to_string(), source, renewed })?;
        // Events come through a task of the client: let the caller start from "connected".
        // The sender lives in that task, so it can be gone only if the client is.
        let _ = watcher.wait_for(|link| link.connects > 0).await;
        Ok((client, watcher))
    }

    /// What the subjects of answers begin with.
    pub fn inbox_prefix(&self) -> &str {
        &self.inbox_prefix
    }

    /// What is read anew for each connection.
    fn renewed(&self) -> Renewed {
        let of_certificate = self.identity.as_ref().map(|_| "nats.cert");
        Renewed {
            login: self.credentials.renewed().or(of_certificate),
            certificates: self.identity.is_some() || self.roots.is_some(),
        }
    }

    fn encrypt(&self, mut options: ConnectOptions) -> Result<ConnectOptions, Error> {
        if let Some(path) = &self.roots {
            let config = tls::kept_config(path, self.identity.as_ref())?;
            options = options.tls_client_config(config);
        } else if let Some(Identity { cert, key }) = &self.identity {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        if self.tls_first {
            options = options.tls_first();
        }
        // Whoever names certificates does not mean to send credentials in the clear.
        let named = self.roots.is_some() || self.identity.is_some();
        Ok(options.require_tls(self.tls_first || named))
    }

    /// The client would report a bad file as an I/O error without its name.
    fn check_tls_files(&self) -> Result<(), Error> {
        if let Some(path) = &self.roots {
            tls::load_roots(path)?;
        }
        self.identity.as_ref().map_or(Ok(()), tls::check_identity)
    }
}

/// JetStream as a connected process asks it: under its `nats.api_prefix`.
pub fn jetstream_of(client: &Client) -> Context {
    jetstream::with_prefix(client.clone(), jetstream_api::prefix())
}

fn invalid(reason: impl Into<String>) -> Error {
    Error::invalid("nats.url", reason)
}

fn prefix(key: &'static str, prefix: &Option<String>, default: &str) -> Result<String, Error> {
    let prefix = prefix.as_deref().unwrap_or(default);
    let is_token = |it: &str| {
        !it.is_empty() && it.chars().all(|it| it.is_ascii_graphic() && it != '*' && it != '>')
    };
    match prefix.split('.').all(is_token) {
        true => Ok(prefix.to_owned()),
        false => Err(Error::invalid(key, "expected a subject without wildcards")),
    }
}

fn parse_server(server: &str) -> Result<(ServerAddr, Credentials), Error> {
    let text = if server.contains("://") { server.to_owned() } else { format!("nats://{server}") };
    let url = Url::parse(&text).map_err(|error| invalid(error.to_string()))?;
    if !matches!(url.scheme(), "nats" | "tls") {
        return Err(invalid(format!("the scheme must be nats:// or tls://, not {}", url.scheme())));
    }
    let host = url.host_str().filter(|it| !it.is_empty()).ok_or_else(|| invalid("no host"))?;
    if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
        return Err(invalid("expected nothing after host and port"));
    }
    let port = url.port().unwrap_or(DEFAULT_PORT);
    let address = format!("{}://{host}:{port}", url.scheme())
        .parse()
        .map_err(|_| invalid("not an address of a NATS server"))?;
    // The parser drops an empty password, and what is left would be taken for a token.
    if text.contains(":@") {
        return Err(invalid("the password is empty"));
    }
    let credentials = match (url.username(), url.password()) {
        ("", None) => Credentials::None,
        (token, None) => Credentials::Token(decode(token)?),
        (user, Some(password)) => Credentials::UserPassword(decode(user)?, decode(password)?),
    };
    Ok((address, credentials))
}

fn decode(text: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| invalid("the credentials are not UTF-8"))
}

/// Chooses where to connect again: anywhere but to where the client just was. Left to itself it
/// would go to the servers that failed least, and when asked to leave one that can do nothing,
/// straight back to it.
fn elsewhere() -> impl Fn(&[Server], &ServerInfo) -> Option<ReconnectToServer> {
    let last = Mutex::new(None);
    move |servers, info| {
        if info.server_id.is_empty() {
            return None; // the first time all are tried, one after the other
        }
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let first = || servers.iter().find(|it| it.did_connect).map(|it| it.addr.clone());
        let left = last.take().or_else(first);
        let others = servers.iter().map(|it| &it.addr).filter(|it| Some(*it) != left.as_ref());
        let others: Vec<&ServerAddr> = others.collect();
        let addr = match others.len() {
            0 => left?,
            count => others[rand::random_range(0..count)].clone(),
        };
        *last = Some(addr.clone());
        Some(ReconnectToServer { addr, delay: None })
    }
}

/// As [`Backoff::NATS`] says, less up to half of it at random, so that the relays of a
/// restarted server do not come back all at once.
fn reconnect_delay(attempt: usize) -> Duration {
    // The first attempt after start or loss is immediate.
    let failures = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
    Backoff::NATS.after(failures).mul_f64(rand::random_range(0.5..=1.0))
}

/// What helps against an error of which the client has only words, with its name before them.
fn hint(error: &str, renewed: Renewed) -> Option<String> {
    use async_nats::ConnectErrorKind::{Authentication, AuthorizationViolation};
    let refusals = [Authentication, AuthorizationViolation].map(|it| it.to_string());
    let is_refusal = refusals.iter().any(|it| error.ends_with(it));
    renewed.login.filter(|_| is_refusal).map(renew)
}

fn observe(
    link: &watch::Sender<NatsLink>,
    (servers, inbox): (&str, &str),
    renewed: Renewed,
    event: &Event,
) {
    match event {
        Event::Connected => {
            info!(servers, "connected to NATS");
            link.send_modify(|it| {
                it.connected = true;
                it.connects += 1;
                it.last_error = None;
                it.unheard = None;
                it.refused = None;
            });
        }
        Event::Disconnected => {
            warn!(servers, "disconnected from NATS");
            link.send_modify(|it| it.connected = false);
        }
        Event::Closed => {
            debug!(servers, "closed the connection to NATS");
            link.send_modify(|it| it.connected = false);
        }
        Event::ServerError(error) => {
            warn!(servers, %error, "NATS server reported an error");
            let error = error.to_string();
            link.send_modify(|it| {
                if is_about_answers(&error, inbox) {
                    it.unheard = Some(format!("{inbox}.>"));
                }
                it.last_error = Some(error);
                it.errors += 1;
            });
        }
        Event::ClientError(error) => {
            let error = error.to_string();
            let hint = hint(&error, renewed);
            // Each attempt to reconnect reports the same once more: say it once. The server itself
            // may have said it before, when it ended the connection.
            let is_known = {
                let link = link.borrow();
                link.last_error.as_ref() == Some(&error) && link.refused.is_some() == hint.is_some()
            };
            if is_known {
                debug!(servers, error, "NATS client reported the same error again");
                return;
            }
            warn!(servers, error, hint, "NATS client reported an error");
            link.send_modify(|it| {
                it.refused =
                    hint.map(|it| format!("could not connect to {servers}: {error} ({it})"));
                it.last_error = Some(error);
            });
        }
        Event::SlowConsumer(subscription) => {
            warn!(
                servers,
                subscription, "messages dropped: a subscription is not read fast enough"
            );
        }
        Event::LameDuckMode => info!(servers, "NATS server is about to shut down"),
        Event::Draining => debug!(servers, "draining the connection to NATS"),
    }
}

impl fmt::Display for NatsTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, server) in self.servers.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}", server.as_url_str())?;
        }
        Ok(())
    }
}

impl fmt::Debug for NatsTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsTarget")
            .field("servers", &format_args!("{self}"))
            .field("credentials", &self.credentials)
            .field("roots", &self.roots)
            .field("identity", &self.identity)
            .field("tls_first", &self.tls_first)
            .field("api_prefix", &self.api_prefix)
            .field("inbox_prefix", &self.inbox_prefix)
            .finish()
    }
}

impl fmt::Debug for NatsAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let masked = |secret: &Option<String>| secret.as_ref().map(|_| "***");
        f.debug_struct("NatsAccess")
            .field("creds", &self.creds)
            .field("nkey", &masked(&self.nkey))
            .field("token", &masked(&self.token))
            .field("token_file", &self.token_file)
            .field("user", &self.user)
            .field("password", &masked(&self.password))
            .field("password_file", &self.password_file)
            .field("ca", &self.ca)
            .field("cert", &self.cert)
            .field("key", &self.key)
            .field("tls_first", &self.tls_first)
            .field("api_prefix", &self.api_prefix)
            .field("inbox_prefix", &self.inbox_prefix)
            .finish()
    }
}

#[cfg(test)]
mod tests;
