//! From the stream to the effect.

mod dead_letters;
mod example;
mod http;
mod service;
