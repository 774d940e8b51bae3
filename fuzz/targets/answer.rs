//! Any subject, status and payload as an answer of the broker: read, or ignored. A line of its own
//! each: the subject, the status, and the payload, which may be any bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(3, |byte| *byte == b'\n');
    let mut next = || parts.next().unwrap_or_default();
    let subject = String::from_utf8_lossy(next()).into_owned();
    let status = std::str::from_utf8(next()).ok().and_then(|it| it.parse().ok());
    relay::fuzz_answer(&subject, status, next());
});
