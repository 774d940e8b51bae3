//! From the stream to the effect.

mod dead_letters;
mod http;
mod service;
