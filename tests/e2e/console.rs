//! `tailpost console` in a real browser.

mod acted_on;
mod behind_proxy;
mod many;
mod own_port;
mod picture;
mod sound_pages;
mod stage;
mod states;
mod story;
