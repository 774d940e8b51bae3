//! Any bytes as a message of the replication protocol: refused, or written the same way again.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use pgoutput::Message;

#[path = "../../crates/pgoutput/tests/encode/mod.rs"]
mod encode;

fuzz_target!(|bytes: &[u8]| {
    let bytes = Bytes::copy_from_slice(bytes);
    match Message::decode(bytes.clone()) {
        Ok(message) => assert_eq!(encode::Wire::from(&message).encode(), bytes),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
