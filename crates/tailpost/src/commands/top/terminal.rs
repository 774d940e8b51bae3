//! The terminal: taken, read, and given back whatever happens.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Context;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

use super::dashboard::Key;
use crate::refusal::Refusal;

/// How long the reader waits for a key before it looks whether anybody listens.
const LOOK: Duration = Duration::from_millis(100);

/// What comes from the terminal.
pub(super) enum Happened {
    Pressed(Key),
    Resized,
    /// It is gone.
    Broken(std::io::Error),
}

/// # Errors
///
/// If standard output is no terminal.
pub(super) fn check() -> Result<(), Refusal> {
    if std::io::stdout().is_terminal() {
        return Ok(());
    }
    Err(Refusal::conflict("standard output is not a terminal").with_hint(
        "`tailpost status --json` is for scripts; `tailpost top --once` prints one screen",
    ))
}

/// A terminal that shows nothing but us. Dropping it brings back what was there before, and so does
/// a panic.
pub(super) struct Taken(pub(super) DefaultTerminal);

impl Taken {
    /// # Errors
    ///
    /// If it does not do as it is told.
    pub(super) fn take() -> anyhow::Result<Self> {
        ratatui::try_init().map(Self).context("could not take over the terminal")
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Reads keys on a thread of its own, until nobody listens.
pub(super) fn keys() -> anyhow::Result<mpsc::Receiver<Happened>> {
    let (sender, receiver) = mpsc::channel(16);
    let read = move || {
        loop {
            let happened = match event::poll(LOOK) {
                Ok(false) if sender.is_closed() => return,
                Ok(false) => continue,
                Ok(true) => event::read().map(meaning),
                Err(error) => Err(error),
            };
            let happened = match happened {
                Ok(None) => continue,
                Ok(Some(happened)) => happened,
                Err(error) => Happened::Broken(error),
            };
            let is_last = matches!(happened, Happened::Broken(_));
            if sender.blocking_send(happened).is_err() || is_last {
                return;
            }
        }
    };
    std::thread::Builder::new().name("keys".into()).spawn(read).context("start a thread")?;
    Ok(receiver)
}

fn meaning(event: Event) -> Option<Happened> {
    match event {
        Event::Key(key) => key_meant(key).map(Happened::Pressed),
        Event::Resize(..) => Some(Happened::Resized),
        _ => None,
    }
}

fn key_meant(key: KeyEvent) -> Option<Key> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    match key.code {
        KeyCode::Char('c' | 'C') if key.modifiers.contains(KeyModifiers::CONTROL) => {
            Some(Key::Quit)
        }
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => Some(Key::Quit),
        KeyCode::Char('p' | ' ') => Some(Key::Pause),
        KeyCode::Char('+' | '=') => Some(Key::Slower),
        KeyCode::Char('-') => Some(Key::Faster),
        KeyCode::Char('?' | 'h') => Some(Key::Help),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_mean_what_the_help_says() {
        let plain = |code| key_meant(KeyEvent::new(code, KeyModifiers::NONE));
        assert_eq!(plain(KeyCode::Char('q')), Some(Key::Quit));
        assert_eq!(plain(KeyCode::Esc), Some(Key::Quit));
        assert_eq!(plain(KeyCode::Char('c')), None);
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(key_meant(control), Some(Key::Quit));
        assert_eq!(plain(KeyCode::Char(' ')), Some(Key::Pause));
        assert_eq!(plain(KeyCode::Char('-')), Some(Key::Faster));
        let shifted = KeyEvent::new(KeyCode::Char('+'), KeyModifiers::SHIFT);
        assert_eq!(key_meant(shifted), Some(Key::Slower));
        assert_eq!(plain(KeyCode::Char('?')), Some(Key::Help));
    }
}
