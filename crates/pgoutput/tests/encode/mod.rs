//! An encoder written from the protocol's description, independent of the decoder.

use bytes::{BufMut, Bytes, BytesMut};
use pgoutput::{Datum, Message, OldTuple, ReplicaIdentity, Tuple};

pub(crate) type Row = Vec<Datum>;

const FITS: &str = "test data is small";

/// A message in the words of the wire: tags are bytes, flags are bits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Wire {
    Begin(u64, i64, u32),
    Commit(u64, u64, i64),
    Origin(u64, String),
    Relation(u32, String, String, u8, Vec<(u8, String, u32, i32)>),
    Type(u32, String, String),
    Insert(u32, Row),
    Update(u32, Option<(u8, Row)>, Row),
    Delete(u32, (u8, Row)),
    Truncate(u8, Vec<u32>),
    Logical(bool, u64, String, Vec<u8>),
}

impl Wire {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Begin(lsn, time, xid) => {
                out.put_u8(b'B');
                out.put_u64(*lsn);
                out.put_i64(*time);
                out.put_u32(*xid);
            }
            Self::Commit(lsn, end_lsn, time) => {
                out.put_slice(b"C\0");
                out.put_u64(*lsn);
                out.put_u64(*end_lsn);
                out.put_i64(*time);
            }
            Self::Origin(lsn, name) => {
                out.put_u8(b'O');
                out.put_u64(*lsn);
                put_string(&mut out, name);
            }
            Self::Relation(oid, namespace, name, identity, columns) => {
                out.put_u8(b'R');
                out.put_u32(*oid);
                put_string(&mut out, namespace);
                put_string(&mut out, name);
                out.put_u8(*identity);
                put_columns(&mut out, columns);
            }
            Self::Type(oid, namespace, name) => {
                out.put_u8(b'Y');
                out.put_u32(*oid);
                put_string(&mut out, namespace);
                put_string(&mut out, name);
            }
            Self::Insert(oid, row) => {
                out.put_u8(b'I');
                out.put_u32(*oid);
                put_row(&mut out, b'N', row);
            }
            Self::Update(oid, old, row) => {
                out.put_u8(b'U');
                out.put_u32(*oid);
                if let Some((kind, old)) = old {
                    put_row(&mut out, *kind, old);
                }
                put_row(&mut out, b'N', row);
            }
            Self::Delete(oid, (kind, old)) => {
                out.put_u8(b'D');
                out.put_u32(*oid);
                put_row(&mut out, *kind, old);
            }
            Self::Truncate(options, oids) => {
                out.put_u8(b'T');
                out.put_u32(oids.len().try_into().expect(FITS));
                out.put_u8(*options);
                oids.iter().for_each(|oid| out.put_u32(*oid));
            }
            Self::Logical(transactional, lsn, prefix, content) => {
                out.put_u8(b'M');
                out.put_u8(u8::from(*transactional));
                out.put_u64(*lsn);
                put_string(&mut out, prefix);
                put_counted(&mut out, content);
            }
        }
        out.freeze()
    }
}

impl From<&Message> for Wire {
    fn from(message: &Message) -> Self {
        match message {
            Message::Begin(it) => Self::Begin(it.final_lsn.0, it.commit_time_micros, it.xid),
            Message::Commit(it) => Self::Commit(it.lsn.0, it.end_lsn.0, it.commit_time_micros),
            Message::Origin(it) => Self::Origin(it.commit_lsn.0, it.name.clone()),
            Message::Relation(it) => Self::Relation(
                it.oid,
                it.namespace.clone(),
                it.name.clone(),
                match it.replica_identity {
                    ReplicaIdentity::Default => b'd',
                    ReplicaIdentity::Nothing => b'n',
                    ReplicaIdentity::Full => b'f',
                    ReplicaIdentity::Index => b'i',
                },
                it.columns
                    .iter()
                    .map(|it| (it.flags, it.name.clone(), it.type_oid, it.type_modifier))
                    .collect(),
            ),
            Message::Type(it) => Self::Type(it.oid, it.namespace.clone(), it.name.clone()),
            Message::Insert(it) => Self::Insert(it.relation_oid, row(&it.tuple)),
            Message::Update(it) => {
                Self::Update(it.relation_oid, it.old.as_ref().map(old_row), row(&it.new))
            }
            Message::Delete(it) => Self::Delete(it.relation_oid, old_row(&it.old)),
            Message::Truncate(it) => Self::Truncate(
                u8::from(it.cascade) | u8::from(it.restart_identity) << 1,
                it.relation_oids.clone(),
            ),
            Message::Logical(it) => {
                Self::Logical(it.transactional, it.lsn.0, it.prefix.clone(), it.content.to_vec())
            }
        }
    }
}

fn row(tuple: &Tuple) -> Row {
    tuple.iter().collect()
}

fn old_row(old: &OldTuple) -> (u8, Row) {
    match old {
        OldTuple::Key(tuple) => (b'K', row(tuple)),
        OldTuple::Full(tuple) => (b'O', row(tuple)),
    }
}

fn put_columns(out: &mut BytesMut, columns: &[(u8, String, u32, i32)]) {
    out.put_u16(columns.len().try_into().expect(FITS));
    for (flags, name, type_oid, type_modifier) in columns {
        out.put_u8(*flags);
        put_string(out, name);
        out.put_u32(*type_oid);
        out.put_i32(*type_modifier);
    }
}

fn put_row(out: &mut BytesMut, kind: u8, row: &Row) {
    out.put_u8(kind);
    out.put_u16(row.len().try_into().expect(FITS));
    for value in row {
        match value {
            Datum::Null => out.put_u8(b'n'),
            Datum::Unchanged => out.put_u8(b'u'),
            Datum::Text(content) => {
                out.put_u8(b't');
                put_counted(out, content);
            }
            Datum::Binary(content) => {
                out.put_u8(b'b');
                put_counted(out, content);
            }
        }
    }
}

fn put_string(out: &mut BytesMut, text: &str) {
    out.put_slice(text.as_bytes());
    out.put_u8(0);
}

fn put_counted(out: &mut BytesMut, content: &[u8]) {
    out.put_u32(content.len().try_into().expect(FITS));
    out.put_slice(content);
}
