//! `tailpost console` in a real browser.

mod acted_on;
mod sound_pages;
mod stage;
mod states;
