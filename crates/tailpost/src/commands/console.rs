//! `tailpost console`: the pages, as a process of their own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use console::{Console, Credential, Kind, Proxy, Upstream};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::admin;
use crate::cli::ConsoleArgs;
use crate::config::{AdminSettings, Settings};
use crate::errors::{self, Refusal};
use crate::shutdown;

pub(super) async fn run(args: ConsoleArgs, settings: &Settings) -> anyhow::Result<()> {
    let listen = args.listen;
    let settings = of(args, settings)?;
    if settings.is_open() && !listen.ip().is_loopback() {
        let problem = format!("anybody who reaches {listen} could do everything");
        let refusal = Refusal::new(errors::Kind::BadConfiguration, problem);
        let hint = "give --token-file, then visitors sign in; or set admin.trusted_proxy";
        return Err(refusal.with_hint(hint).into());
    }
    let stop = shutdown::on_signal()?;
    let listener = TcpListener::bind(listen).await;
    let listener = listener.with_context(|| format!("could not listen on {listen}"))?;
    info!(version = env!("CARGO_PKG_VERSION"), "the console is at http://{listen}/");
    serve(listener, &Console::new(settings), stop).await
}

/// Serves pages until `stop`.
pub(super) async fn serve(
    listener: TcpListener,
    console: &Console,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    tokio::select! {
        served = admin::serve_connections(listener, admin::pages(console), stop.clone()) => {
            served.context("the console cannot be served")
        }
        () = admin::keep_pages(console, &stop) => Ok(()),
    }
}

/// The pages that a relay serves beside its API, which is at `listen`. `own` is a token for them.
pub(super) fn of_relay(
    settings: &Settings,
    listen: SocketAddr,
    own: Option<Arc<str>>,
) -> anyhow::Result<Console> {
    let reachable = match listen.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let relay = Upstream {
        kind: Kind::Relay,
        authority: SocketAddr::new(reachable, listen.port()).to_string(),
        credential: own.map_or(Credential::None, Credential::Token),
    };
    let file = own_token_file(&settings.admin);
    let inboxes = settings.console.inboxes.iter().map(|it| Upstream {
        kind: Kind::Inbox,
        authority: it.0.clone(),
        credential: file.clone().map_or(Credential::None, Credential::File),
    });
    Ok(Console::new(console::Settings {
        upstreams: std::iter::once(relay).chain(inboxes).collect(),
        title: installation(settings).unwrap_or_default(),
        proxy: proxy(&settings.admin)?,
        is_guest: true,
        ..console::Settings::default()
    }))
}

/// What the pages call it.
fn installation(settings: &Settings) -> Option<String> {
    Some(settings.metrics.environment.clone()).filter(|it| it != "default")
}

fn of(args: ConsoleArgs, settings: &Settings) -> anyhow::Result<console::Settings> {
    let ConsoleArgs { relays, inboxes, token_files, base_path, title, read_only, .. } = args;
    let admin = &settings.admin;
    let is_given = !relays.is_empty() || !inboxes.is_empty();
    let or = |given: Vec<String>, listen: Option<SocketAddr>| match listen {
        Some(listen) if !is_given => vec![listen.to_string()],
        _ => given,
    };
    let (relays, inboxes) = (or(relays, *admin.listen), or(inboxes, *admin.inbox_listen));
    let token_files = match token_files.is_empty() {
        true => own_token_file(admin).into_iter().collect(),
        false => token_files,
    };
    let of_kind = |kind, all: Vec<String>| all.into_iter().map(move |it| (kind, it));
    let all = of_kind(Kind::Relay, relays).chain(of_kind(Kind::Inbox, inboxes));
    let all: Vec<_> = all.collect();
    if token_files.len() > 1 && token_files.len() != all.len() {
        let (files, urls) = (token_files.len(), all.len());
        let problem = format!("there are {files} token files for {urls} relays and inboxes");
        let refusal = Refusal::new(errors::Kind::BadConfiguration, problem);
        return Err(refusal.with_hint("give one for all, or one for each").into());
    }
    let upstreams = all.into_iter().enumerate().map(|(place, (kind, authority))| {
        let file = token_files.get(place).or(token_files.first()).cloned();
        Upstream { kind, authority, credential: file.map_or(Credential::None, Credential::File) }
    });
    Ok(console::Settings {
        upstreams: upstreams.collect(),
        title: title.or(installation(settings)).unwrap_or_default(),
        base_path,
        proxy: proxy(admin)?,
        read_only,
        is_guest: false,
    })
}

/// The console needs to read. With a lower role it can do less, whoever gets hold of it.
fn own_token_file(admin: &AdminSettings) -> Option<PathBuf> {
    admin.tokens.iter().min_by_key(|it| it.role).map(|it| it.file.clone())
}

fn proxy(admin: &AdminSettings) -> anyhow::Result<Option<Proxy>> {
    let trusted = admin.trusted_proxy.clone();
    if trusted.is_empty() {
        return Ok(None);
    }
    let user_header = admin.proxy_user_header.0.parse().context("admin.proxy_user_header")?;
    let trusts = Arc::new(move |peer| trusted.iter().any(|it| it.has(peer)));
    Ok(Some(Proxy { trusts, user_header }))
}
