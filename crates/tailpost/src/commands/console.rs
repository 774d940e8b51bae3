//! `tailpost console`: the pages, as a process of their own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use console::{Console, Kind, Peer, Proxy, Upstream};
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
    let router = console.router().layer(middleware::from_fn(name_peer));
    tokio::select! {
        served = admin::serve_connections(listener, router, stop) => {
            served.context("the console cannot be served")
        }
        () = console.keep_asking() => Ok(()),
    }
}

async fn name_peer(mut request: Request, next: Next) -> Response {
    if let Some(peer) = request.extensions().get::<admin::Peer>().copied() {
        request.extensions_mut().insert(Peer(peer.0));
    }
    next.run(request).await
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
        let token_file = token_files.get(place).or(token_files.first()).cloned();
        Upstream { kind, authority, token_file }
    });
    let environment = Some(&settings.metrics.environment).filter(|it| *it != "default");
    Ok(console::Settings {
        upstreams: upstreams.collect(),
        title: title.or(environment.cloned()).unwrap_or_default(),
        base_path,
        proxy: proxy(admin)?,
        read_only,
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
