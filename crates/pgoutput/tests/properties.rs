//! The decoder against an encoder of the protocol, against truncation, and against any bytes.

use bytes::Bytes;
use pgoutput::{Datum, DecodeError, Lsn, Message};
use proptest::collection::vec;
use proptest::prelude::*;

mod encode;

use encode::{Row, Wire};

fn name() -> impl Strategy<Value = String> {
    "[^\0]{0,12}"
}

fn row() -> impl Strategy<Value = Row> {
    let content = || vec(any::<u8>(), 0..24).prop_map(Bytes::from);
    vec(
        prop_oneof![
            Just(Datum::Null),
            Just(Datum::Unchanged),
            content().prop_map(Datum::Text),
            content().prop_map(Datum::Binary),
        ],
        0..24,
    )
}

fn wire() -> impl Strategy<Value = Wire> {
    let old = || (prop_oneof![Just(b'K'), Just(b'O')], row());
    let columns = vec((any::<u8>(), name(), any::<u32>(), any::<i32>()), 0..24);
    let identity = prop_oneof![Just(b'd'), Just(b'n'), Just(b'f'), Just(b'i')];
    prop_oneof![
        any::<(u64, i64, u32)>().prop_map(|(lsn, time, xid)| Wire::Begin(lsn, time, xid)),
        any::<(u64, u64, i64)>().prop_map(|(lsn, end, time)| Wire::Commit(lsn, end, time)),
        (any::<u64>(), name()).prop_map(|(lsn, name)| Wire::Origin(lsn, name)),
        (any::<u32>(), name(), name(), identity, columns).prop_map(
            |(oid, namespace, name, identity, columns)| Wire::Relation(
                oid, namespace, name, identity, columns
            )
        ),
        (any::<u32>(), name(), name()).prop_map(|(oid, ns, name)| Wire::Type(oid, ns, name)),
        (any::<u32>(), row()).prop_map(|(oid, row)| Wire::Insert(oid, row)),
        (any::<u32>(), proptest::option::of(old()), row())
            .prop_map(|(oid, old, row)| Wire::Update(oid, old, row)),
        (any::<u32>(), old()).prop_map(|(oid, old)| Wire::Delete(oid, old)),
        (0..4_u8, vec(any::<u32>(), 0..12))
            .prop_map(|(options, oids)| Wire::Truncate(options, oids)),
        (any::<bool>(), any::<u64>(), name(), vec(any::<u8>(), 0..64))
            .prop_map(|(tx, lsn, prefix, content)| Wire::Logical(tx, lsn, prefix, content)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn decoding_inverts_encoding(wire in wire()) {
        let message = Message::decode(wire.encode()).unwrap();
        prop_assert_eq!(Wire::from(&message), wire);
    }

    #[test]
    fn every_truncation_and_every_surplus_is_refused(wire in wire(), surplus in any::<u8>()) {
        let whole = wire.encode();
        for end in 0..whole.len() {
            let cut = Message::decode(whole.slice(..end));
            prop_assert!(matches!(cut, Err(DecodeError::Truncated { .. })), "{end}: {cut:?}");
        }
        let longer = Bytes::from([&whole[..], &[surplus]].concat());
        prop_assert_eq!(
            Message::decode(longer),
            Err(DecodeError::TrailingBytes { byte_count: 1 })
        );
    }

    #[test]
    fn any_bytes_are_safe(bytes in vec(any::<u8>(), 0..200)) {
        walk(bytes.into());
    }

    /// Valid messages with a few bytes changed reach deeper than noise does.
    #[test]
    fn damaged_messages_are_safe(
        wire in wire(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = wire.encode().to_vec();
        for (index, value) in damage {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        walk(bytes.into());
    }
}

/// Decodes, and looks at every value of what was accepted. Whatever was accepted is written the
/// same way again, but for names that are not UTF-8: these become longer.
fn walk(bytes: Bytes) {
    if let Ok(message) = Message::decode(bytes.clone()) {
        let written = Wire::from(&message).encode();
        if written.len() == bytes.len() {
            assert_eq!(written, bytes);
        }
        assert_eq!(Message::decode(written), Ok(message));
    }
}

#[test]
fn values_are_slices_of_the_message() {
    let body = Wire::Insert(1, vec![Datum::Text(Bytes::from_static(b"payload"))]).encode();
    let Ok(Message::Insert(insert)) = Message::decode(body.clone()) else { panic!("an insert") };
    let Some(Datum::Text(value)) = insert.tuple.iter().next() else { panic!("a text") };
    assert!(body.as_ptr_range().contains(&value.as_ptr()), "the value was copied");
}

#[test]
fn rows_know_how_many_values_they_have() {
    let body = Wire::Insert(1, vec![Datum::Null; 1_600]).encode();
    let Ok(Message::Insert(insert)) = Message::decode(body) else { panic!("an insert") };
    let mut values = insert.tuple.iter();
    assert_eq!((insert.tuple.len(), values.len()), (1_600, 1_600));
    assert_eq!(values.by_ref().count(), 1_600);
    assert_eq!(values.next(), None);
}

#[test]
fn claimed_sizes_beyond_the_message_are_refused() {
    let huge = |tail: &'static [u8]| Message::decode(Bytes::from_static(tail));
    // 65,535 columns, 4 GiB of text, 4 G relations, 4 GiB of content.
    for body in [
        &b"R\0\0\0\x01n\0t\0d\xFF\xFF"[..],
        b"I\0\0\0\x01N\0\x01t\xFF\xFF\xFF\xFFabc",
        b"T\xFF\xFF\xFF\xFF\0\0\0\0\x01",
        b"M\x01\0\0\0\0\0\0\0\x01p\0\xFF\xFF\xFF\xFFx",
    ] {
        assert!(matches!(huge(body), Err(DecodeError::Truncated { .. })), "{body:?}");
    }
}

#[test]
fn what_the_protocol_does_not_define_is_named_in_the_error() {
    let refused = |bytes: &'static [u8]| Message::decode(Bytes::from_static(bytes)).unwrap_err();
    let streaming = refused(b"S\0\0\0\x01\x01");
    assert_eq!(streaming.to_string(), "unknown pgoutput message tag S");
    let kind = refused(b"I\0\0\0\x01X\0\0");
    assert_eq!(kind.to_string(), "unknown kind of row X in a pgoutput message");
    let value = refused(b"I\0\0\0\x01N\0\x01z");
    assert_eq!(value.to_string(), "unknown kind of value z in a pgoutput message");
    let commit = refused(b"C\x01");
    assert_eq!(commit.to_string(), r"unknown commit flags \x01 in a pgoutput message");
    let empty = refused(b"");
    assert_eq!(empty.to_string(), "pgoutput message ends in the middle of its tag");
}

/// Of a database with another encoding.
#[test]
fn a_name_that_is_not_utf_8_has_a_character_for_each_byte() {
    let body = Bytes::from_static(b"O\0\0\0\0\0\0\0\x01a\xFF\0");
    let Ok(Message::Origin(origin)) = Message::decode(body) else { panic!("an origin") };
    assert_eq!(origin.name, "a\u{ff}");
}

#[test]
fn a_recorded_begin_is_understood() {
    let body = b"B\0\0\0\x16\xB3\x74\xD8\x48\0\x02\xDA\x1F\x5E\x9A\x40\0\0\0\x02\xE6";
    let Ok(Message::Begin(begin)) = Message::decode(Bytes::from_static(body)) else {
        panic!("a begin")
    };
    assert_eq!(begin.final_lsn, "16/B374D848".parse::<Lsn>().unwrap());
    assert_eq!(begin.xid, 742);
}
