//! `tailpost top`: one screen that says whether events move, how far behind they are, and what is
//! stuck.

mod screen;
mod seen;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::widgets::{Paragraph, Wrap};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::seen::Seen;
use super::dlq::client::Client;
use crate::cli::TopArgs;
use crate::config::{AdminSettings, OrOff, Settings};
use crate::errors::{Kind, Refusal};
use crate::{output, shutdown};

/// How often the relay counts dead letters for this command: that takes a query.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// How long the screen stays as it is, if no key is pressed.
const REDRAW: Duration = Duration::from_millis(200);

pub(super) async fn run(args: &TopArgs, settings: &Settings) -> Result<()> {
    if !args.once && !std::io::stdout().is_terminal() {
        return Err(Refusal::conflict("standard output is not a terminal")
            .with_hint(
                "`tailpost status --json` is for scripts; `tailpost top --once` prints one screen",
            )
            .into());
    }
    let listen = args.relay_url.or(*settings.admin.listen);
    let inbox_listen = OrOff(args.inbox_url.or(*settings.admin.inbox_listen));
    let admin = AdminSettings { listen: OrOff(listen), inbox_listen, ..settings.admin.clone() };
    let Some(address) = listen else {
        let off = Refusal::new(Kind::Unreachable, "admin.listen is off, so no relay can be asked");
        return Err(off.with_hint("--relay-url says where a relay listens").into());
    };
    let clients = Clients {
        relay: Client::new(&admin)?,
        inbox: inbox_listen.map(|_| Client::of_inbox(&admin)).transpose()?,
    };
    let head = format!("tailpost top  {address}  every {:?}  q quits", args.interval);
    let seen = Seen::new(head, args.inbox_url.is_some());
    match args.once {
        true => once(args, &clients, seen).await,
        false => watch(args.interval, clients, seen).await,
    }
}

/// Prints one screen.
async fn once(args: &TopArgs, clients: &Clients, seen: Seen) -> Result<()> {
    let mut seen = seen;
    clients.ask(&mut seen).await;
    if seen.relay.failed.is_none() {
        tokio::time::sleep(args.interval).await;
        clients.ask(&mut seen).await;
    }
    let lines = screen::lines(&seen, Instant::now());
    output::text(&lines.iter().map(|it| format!("{it}\n")).collect::<String>())?;
    match seen.relay.failed {
        // The screen that was printed has the hint.
        Some(failed) => Err(Refusal::new(Kind::Unreachable, failed.error).into()),
        None => Ok(()),
    }
}

/// Shows the screen until a key or a signal ends it.
async fn watch(interval: Duration, clients: Clients, seen: Seen) -> Result<()> {
    let stop = shutdown::on_signal()?;
    let (sender, receiver) = watch::channel(seen.clone());
    let asking = tokio::spawn(async move {
        let mut seen = seen;
        loop {
            clients.ask(&mut seen).await;
            sender.send_replace(seen.clone());
            tokio::time::sleep(interval).await;
        }
    });
    let shown = tokio::task::spawn_blocking(move || {
        let mut terminal = ratatui::try_init().context("could not take over the terminal")?;
        let shown = show(&mut terminal, &receiver, &stop);
        ratatui::restore();
        shown.context("the terminal failed")
    });
    let shown = shown.await?;
    asking.abort();
    shown
}

fn show(
    terminal: &mut DefaultTerminal,
    seen: &watch::Receiver<Seen>,
    stop: &CancellationToken,
) -> std::io::Result<()> {
    while !stop.is_cancelled() {
        let lines = screen::lines(&seen.borrow(), Instant::now());
        let screen = Paragraph::new(lines).wrap(Wrap { trim: false });
        terminal.draw(|frame| frame.render_widget(screen, frame.area()))?;
        if event::poll(REDRAW)? && is_end(&event::read()?) {
            break;
        }
    }
    Ok(())
}

fn is_end(event: &Event) -> bool {
    let Some(key) = event.as_key_press_event() else { return false };
    let is_control_c =
        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    is_control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

/// The APIs that are asked.
struct Clients {
    relay: Client,
    inbox: Option<Client>,
}

impl Clients {
    /// Asks both, beside each other.
    async fn ask(&self, seen: &mut Seen) {
        let is_due = seen.counted_at.is_none_or(|it| it.elapsed() >= COUNT_EVERY);
        let inbox = async { Some(self.inbox.as_ref()?.get::<Value>("status").await) };
        let letters = async {
            let counted = self.relay.get("outbox/dead-letter?limit=0");
            if is_due { counted.await.ok() } else { None }
        };
        let (relay, inbox, letters) = tokio::join!(self.relay.get("status"), inbox, letters);
        let now = Instant::now();
        let hint = "start `tailpost relay`; admin.listen or --relay-url says where it is";
        seen.relay.see(now, relay, hint);
        if let Some(inbox) = inbox {
            let hint = "start `tailpost inbox run`; --inbox-url says where it is";
            seen.inbox.see(now, inbox, hint);
        }
        if is_due {
            (seen.letters, seen.counted_at) = (letters.or(seen.letters.take()), Some(now));
        }
    }
}
