//! `tailpost top`: what a relay and an inbox do, live.

mod dashboard;
mod figures;
mod poller;
mod readings;
mod screen;
mod terminal;

use std::time::Instant;

use anyhow::Context;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::Widget;
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use self::dashboard::{Dashboard, Input, Link, Output};
use self::poller::Poller;
use self::screen::Screen;
use self::terminal::{Happened, Taken};
use super::dlq::client::Client;
use crate::cli::TopArgs;
use crate::config::{AdminSettings, OrOff, Settings};
use crate::refusal::{Kind, Refusal};
use crate::{output, shutdown};

/// How wide a screen is that goes to no terminal, and how high.
const COLUMNS: u16 = 100;
const ROWS: u16 = 40;

pub(super) async fn run(args: &TopArgs, settings: &Settings) -> anyhow::Result<()> {
    if !args.once {
        terminal::check()?;
    }
    let (admin, title) = addresses(args, &settings.admin);
    let inbox = match *admin.inbox_listen {
        Some(_) => Some((Client::of_inbox(&admin)?, args.inbox_url.is_some())),
        None => None,
    };
    if admin.listen.is_none() {
        let off = Refusal::new(Kind::Unreachable, "admin.listen is off, so no relay can be asked");
        return Err(off.with_hint("--relay-url says where a relay listens").into());
    }
    let poller = Poller::new(Client::new(&admin)?, inbox);
    let has_colors = std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty());
    let shown = Shown { title, has_colors };
    if args.once { once(args, poller, &shown).await } else { watch(args, poller, &shown).await }
}

/// How it is shown.
struct Shown {
    title: String,
    has_colors: bool,
}

impl Shown {
    fn screen<'a>(&'a self, dashboard: &'a Dashboard, now: Instant) -> Screen<'a> {
        Screen { dashboard, now, title: &self.title, has_colors: self.has_colors }
    }
}

/// The settings with the addresses of the command line.
fn addresses(args: &TopArgs, settings: &AdminSettings) -> (AdminSettings, String) {
    let listen = args.relay_url.or(*settings.listen);
    let inbox_listen = args.inbox_url.or(*settings.inbox_listen);
    let title = listen.map(|it| it.to_string()).unwrap_or_default();
    let (listen, inbox_listen) = (OrOff(listen), OrOff(inbox_listen));
    (AdminSettings { listen, inbox_listen, ..settings.clone() }, title)
}

/// Prints one screen.
async fn once(args: &TopArgs, mut poller: Poller, shown: &Shown) -> anyhow::Result<()> {
    let mut dashboard = Dashboard::new(Instant::now(), args.interval);
    for is_last in [false, true] {
        let told = poller.ask().await;
        dashboard.apply(Instant::now(), Input::Told(Box::new(told)));
        if !is_last && matches!(dashboard.relay.link, Link::Up) {
            tokio::time::sleep(args.interval).await;
        }
    }
    let columns = std::env::var("COLUMNS").ok().and_then(|it| it.parse().ok());
    let area = Rect::new(0, 0, columns.unwrap_or(COLUMNS).max(1), ROWS);
    let mut buffer = Buffer::empty(area);
    shown.screen(&dashboard, Instant::now()).render(area, &mut buffer);
    output::text(&text(&buffer))?;
    match dashboard.relay.link {
        // The screen that was printed says so too.
        Link::Down { why, .. } => Err(Refusal::new(Kind::Unreachable, why.error).into()),
        _ => Ok(()),
    }
}

/// The lines of a screen, without what is blank at their ends.
fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let lines = buffer.content().chunks(width).map(|cells| {
        let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Shows it until somebody has seen enough.
async fn watch(args: &TopArgs, mut poller: Poller, shown: &Shown) -> anyhow::Result<()> {
    let stop = shutdown::on_signal()?;
    let mut terminal = Taken::take()?;
    let mut keys = terminal::keys()?;
    let mut dashboard = Dashboard::new(Instant::now(), args.interval);
    let (ask, mut asked) = mpsc::channel::<()>(1);
    let (tell, mut told) = mpsc::channel(1);
    // A task of its own, so that keys are heeded while somebody does not answer.
    let asking = tokio::spawn(async move {
        while asked.recv().await.is_some() {
            if tell.send(poller.ask().await).await.is_err() {
                return;
            }
        }
    });
    loop {
        let now = Instant::now();
        let screen = shown.screen(&dashboard, now);
        terminal.0.draw(|frame| frame.render_widget(&screen, frame.area()))?;
        let next_at = dashboard.next_at;
        let due = async {
            match next_at {
                Some(at) => sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let input = tokio::select! {
            () = stop.cancelled() => break,
            happened = keys.recv() => match happened {
                Some(Happened::Pressed(key)) => Input::Key(key),
                Some(Happened::Resized) => continue,
                Some(Happened::Broken(error)) => return Err(error).context("the terminal failed"),
                None => break,
            },
            Some(told) = told.recv() => Input::Told(Box::new(told)),
            () = due => Input::Due,
            // That somebody is away for longer is shown too.
            () = tokio::time::sleep(std::time::Duration::from_secs(1)) => continue,
        };
        match dashboard.apply(Instant::now(), input) {
            Some(Output::Quit) => break,
            // There is room: it is asked once at a time.
            Some(Output::Ask) => _ = ask.try_send(()),
            None => {}
        }
    }
    asking.abort();
    Ok(())
}
