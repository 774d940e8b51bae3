//! A consumer of the settings, as it calls its service.

use std::sync::Once;

use anyhow::Context;
use inbox::http::{Credentials, HttpHandler, HttpOptions};
use servers::https_config;
use tracing::warn;

use crate::config::{Consumer, Error, Settings};

static PROXY_WARNED: Once = Once::new();

/// What other programs go by.
fn warn_of_proxy() {
    let names =
        ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|it| !it.is_empty());
    if let Some(name) = names.into_iter().find(is_set) {
        warn!("{name} is not used: set inbox.proxy if handlers are to be called through a proxy");
    }
}

/// What calls the service of a consumer, with credentials that can be used.
pub(super) async fn handler(
    settings: &Settings,
    consumer: &Consumer,
) -> anyhow::Result<HttpHandler> {
    let Consumer { name, settings: it, .. } = consumer;
    let url = it.handler.clone().ok_or_else(|| Error::no_handler(name))?;
    let tls = if url.starts_with("https://") {
        let identity = it.cert.as_deref().zip(it.key.as_deref());
        let config = https_config(it.ca.as_deref(), identity);
        Some(config.with_context(|| format!("consumer {name}"))?)
    } else {
        None
    };
    if it.proxy.is_none() {
        PROXY_WARNED.call_once(warn_of_proxy);
    }
    let credentials = Credentials {
        headers: it.headers.clone().map(|it| it.0).unwrap_or_default(),
        headers_file: it.headers_file.clone(),
        bearer_token_file: it.bearer_token_file.clone(),
        secrets: it.secrets.iter().flatten().map(|it| it.0.clone()).collect(),
        secrets_file: it.secrets_file.clone(),
        ca: it.ca.clone(),
    };
    let options = HttpOptions {
        url,
        timeout: it.timeout.0,
        credentials,
        accept: it.accept.0,
        body: it.body.0,
        cloudevents: settings.cloudevents().unwrap_or_default(),
        proxy: it.proxy.clone().map(|it| it.0),
        tls,
    };
    let refused = |source| Error::handler(settings.origin(name, "handler"), name, source);
    let handler = HttpHandler::new(options).map_err(refused)?;
    handler.check().await.map_err(|it| Error::handler(None, name, it))?;
    Ok(handler)
}
