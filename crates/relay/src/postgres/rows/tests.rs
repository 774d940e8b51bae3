//! How values become parts of events.

use super::*;

fn bytes(value: &[u8]) -> Bytes {
    Bytes::copy_from_slice(value)
}

#[test]
fn timestamps_are_read_in_both_forms() {
    let expected: Timestamp = "2026-11-21T01:24:33.123456Z".parse().unwrap();
    let micros = expected.as_microsecond() - POSTGRES_EPOCH_UNIX_SECONDS * 1_000_000;
    let binary = Datum::Binary(bytes(&micros.to_be_bytes()));
    assert_eq!(instant(&binary, TIMESTAMPTZ), Some(expected));
    assert_eq!(instant(&binary, INT8), None);
    let text = Datum::Text(bytes(b"2026-11-21 01:24:33.123456+00"));
    assert_eq!(instant(&text, TIMESTAMPTZ), Some(expected));
    assert_eq!(timestamp(i64::MAX), Timestamp::MAX);
    assert_eq!(timestamp(i64::MIN), Timestamp::MIN);
}

#[test]
fn jsonb_loses_its_version_byte_and_json_nothing() {
    let jsonb = Datum::Binary(bytes(b"\x01{\"a\": 1.00}"));
    assert_eq!(json(&jsonb, JSONB).as_deref(), Some(&b"{\"a\": 1.00}"[..]));
    assert_eq!(json(&Datum::Binary(bytes(b"\x02{}")), JSONB), None);
    assert_eq!(json(&Datum::Text(bytes(b"{}")), JSONB).as_deref(), Some(&b"{}"[..]));
    assert_eq!(json(&Datum::Binary(bytes(b"{}")), JSON).as_deref(), Some(&b"{}"[..]));
}

#[test]
fn integers_of_any_width_become_versions() {
    assert_eq!(integer(&Datum::Binary(bytes(&7i16.to_be_bytes())), INT2), Some(7));
    assert_eq!(integer(&Datum::Binary(bytes(&7i64.to_be_bytes())), INT8), Some(7));
    assert_eq!(integer(&Datum::Binary(bytes(&i64::MAX.to_be_bytes())), INT8), None);
    assert_eq!(integer(&Datum::Text(bytes(b"7")), TEXT), Some(7));
    assert_eq!(integer(&Datum::Binary(bytes(b"0007")), TEXT), None);
}

#[test]
fn a_text_is_what_postgresql_prints_and_never_a_number_of_bytes() {
    let id = Uuid::from_u128(7);
    let string = |value: &[u8], oid| string(&Datum::Binary(bytes(value)), oid);
    assert_eq!(string(b"o-1", VARCHAR).as_deref(), Some("o-1"));
    assert_eq!(string(b"o-1   ", BPCHAR).as_deref(), Some("o-1"));
    assert_eq!(string(id.as_bytes(), UUID), Some(id.to_string().into()));
    assert_eq!(string(&7i64.to_be_bytes(), INT8).as_deref(), Some("7"));
    assert_eq!(string(b"paid", USER_DEFINED_MIN).as_deref(), Some("paid"));
    assert_eq!(string(&7f64.to_be_bytes(), 701), None);
    assert_eq!(string(b"\xff", TEXT), None);
}

#[test]
fn bytes_pass_as_they_are() {
    let binary = Datum::Binary(bytes(b"\x01\xff\0"));
    assert_eq!(payload(&binary, BYTEA).as_deref(), Some(&b"\x01\xff\0"[..]));
    assert_eq!(payload(&Datum::Text(bytes(b"\\x01")), BYTEA), None);
    assert_eq!(payload(&Datum::Binary(bytes(b"plain")), TEXT).as_deref(), Some(&b"plain"[..]));
    assert_eq!(payload(&Datum::Binary(bytes(&7i32.to_be_bytes())), INT4), None);
}
