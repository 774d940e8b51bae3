//! What is between Tailpost and PostgreSQL, and what the sessions begin with.

mod pooler;
mod poolers;
mod settings;
mod standbys;
