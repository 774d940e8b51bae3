//! The pages: each a template, a struct with what it shows, and a function.

pub(crate) mod again;
pub(crate) mod audit;
pub(crate) mod audit_export;
mod audit_pages;
pub(crate) mod came_of_it;
pub(crate) mod checks;
pub(crate) mod consumer;
pub(crate) mod consumers;
pub(crate) mod dead_letters;
pub(crate) mod event;
pub(crate) mod events;
pub(crate) mod letter;
pub(crate) mod letter_changes;
pub(crate) mod log;
pub(crate) mod one_event;
pub(crate) mod overview;
pub(crate) mod replay;
pub(crate) mod rewind;
mod rewind_rows;
pub(crate) mod settings_page;
pub(crate) mod sign_in;
pub(crate) mod work;
