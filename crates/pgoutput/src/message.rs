use bytes::Bytes;

use crate::reader::Reader;
use crate::{DecodeError, Lsn, Tuple};

/// A message of `pgoutput`, protocol version 1.
///
/// Times are in microseconds since 2000-01-01 00:00:00 UTC, as PostgreSQL counts them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A committed transaction begins. Only committed ones are sent, in commit order.
    Begin(Begin),
    /// The transaction is complete.
    Commit(Commit),
    /// The transaction came from another server.
    Origin(Origin),
    /// What the rows with this relation's oid look like from here on.
    Relation(Relation),
    /// A data type that is not built in.
    Type(Type),
    /// A row was inserted.
    Insert(Insert),
    /// A row was updated.
    Update(Update),
    /// A row was deleted.
    Delete(Delete),
    /// Tables were emptied.
    Truncate(Truncate),
    /// Written by `pg_logical_emit_message`.
    Logical(Logical),
}

impl Message {
    /// Decodes the body of one `XLogData` frame.
    ///
    /// # Errors
    ///
    /// Whenever `body` is not exactly one message of protocol version 1.
    pub fn decode(body: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let message = match reader.u8("tag")? {
            b'B' => Self::Begin(Begin::decode(&mut reader)?),
            b'C' => Self::Commit(Commit::decode(&mut reader)?),
            b'O' => Self::Origin(Origin::decode(&mut reader)?),
            b'R' => Self::Relation(Relation::decode(&mut reader)?),
            b'Y' => Self::Type(Type::decode(&mut reader)?),
            b'I' => Self::Insert(Insert::decode(&mut reader)?),
            b'U' => Self::Update(Update::decode(&mut reader)?),
            b'D' => Self::Delete(Delete::decode(&mut reader)?),
            b'T' => Self::Truncate(Truncate::decode(&mut reader)?),
            b'M' => Self::Logical(Logical::decode(&mut reader)?),
            tag => return Err(DecodeError::UnknownTag { tag }),
        };
        reader.finish()?;
        Ok(message)
    }
}

/// A committed transaction begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    /// Where the commit record begins; equals the [`Commit::lsn`] that follows.
    pub final_lsn: Lsn,
    /// When it was committed.
    pub commit_time_micros: i64,
    /// The lower 32 bits of the transaction's id.
    pub xid: u32,
}

impl Begin {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            final_lsn: reader.lsn("final lsn")?,
            commit_time_micros: reader.i64("commit time")?,
            xid: reader.u32("transaction id")?,
        })
    }
}

/// The transaction is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Where the commit record begins.
    pub lsn: Lsn,
    /// The byte after the commit record: the position to confirm.
    pub end_lsn: Lsn,
    /// When it was committed.
    pub commit_time_micros: i64,
}

impl Commit {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        // No flag is defined; PostgreSQL's own subscriber refuses them, too.
        match reader.u8("commit flags")? {
            0 => {}
            value => return Err(DecodeError::UnknownValue { field: "commit flags", value }),
        }
        Ok(Self {
            lsn: reader.lsn("commit lsn")?,
            end_lsn: reader.lsn("end lsn")?,
            commit_time_micros: reader.i64("commit time")?,
        })
    }
}

/// The transaction came from another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Where it was committed over there.
    pub commit_lsn: Lsn,
    /// The name of the replication origin.
    pub name: String,
}

impl Origin {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { commit_lsn: reader.lsn("origin lsn")?, name: reader.string("origin name")? })
    }
}

/// What the rows with this relation's oid look like from here on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation {
    /// The oid that rows refer to.
    pub oid: u32,
    /// The schema; empty for `pg_catalog`.
    pub namespace: String,
    /// The table.
    pub name: String,
    /// Which columns of old rows are logged.
    pub replica_identity: ReplicaIdentity,
    /// The published columns, in the order of the values in a row.
    pub columns: Vec<Column>,
}

impl Relation {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let oid = reader.u32("relation oid")?;
        let namespace = reader.string("namespace")?;
        let name = reader.string("relation name")?;
        let replica_identity = ReplicaIdentity::decode(reader)?;
        let column_count = usize::from(reader.u16("column count")?);
        // A claimed count reserves nothing that the message could not hold.
        let capacity = column_count.min(reader.remaining().len() / Column::BYTES_MIN);
        let mut columns = Vec::with_capacity(capacity);
        for _ in 0..column_count {
            columns.push(Column::decode(reader)?);
        }
        Ok(Self { oid, namespace, name, replica_identity, columns })
    }
}

/// Which columns of old rows are logged for updates and deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaIdentity {
    /// The primary key, if there is one.
    Default,
    /// None.
    Nothing,
    /// All.
    Full,
    /// Those of a chosen index.
    Index,
}

impl ReplicaIdentity {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match reader.u8("replica identity")? {
            b'd' => Ok(Self::Default),
            b'n' => Ok(Self::Nothing),
            b'f' => Ok(Self::Full),
            b'i' => Ok(Self::Index),
            value => Err(DecodeError::UnknownValue { field: "replica identity", value }),
        }
    }
}

/// A column of a [`Relation`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Bit 0: the column is part of the replica identity.
    pub flags: u8,
    /// The column's name.
    pub name: String,
    /// The oid of its data type.
    pub type_oid: u32,
    /// `atttypmod`; -1 if the type has none.
    pub type_modifier: i32,
}

impl Column {
    /// Flags, an empty name, type and modifier.
    const BYTES_MIN: usize = 1 + 1 + 4 + 4;

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            flags: reader.u8("column flags")?,
            name: reader.string("column name")?,
            type_oid: reader.u32("column type")?,
            type_modifier: reader.i32("column type modifier")?,
        })
    }
}

/// A data type that is not built in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Type {
    /// The oid that columns refer to.
    pub oid: u32,
    /// The schema; empty for `pg_catalog`.
    pub namespace: String,
    /// The type's name.
    pub name: String,
}

impl Type {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            oid: reader.u32("type oid")?,
            namespace: reader.string("namespace")?,
            name: reader.string("type name")?,
        })
    }
}

/// A row was inserted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Insert {
    /// The relation, as announced by a [`Relation`].
    pub relation_oid: u32,
    /// The new row.
    pub tuple: Tuple,
}

impl Insert {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let relation_oid = reader.u32("relation oid")?;
        match reader.u8("kind of row")? {
            b'N' => Ok(Self { relation_oid, tuple: Tuple::decode(reader)? }),
            value => Err(DecodeError::UnknownValue { field: "kind of row", value }),
        }
    }
}

/// A row was updated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The relation, as announced by a [`Relation`].
    pub relation_oid: u32,
    /// The old row, if its replica identity asks for it or its key changed.
    pub old: Option<OldTuple>,
    /// The new row.
    pub new: Tuple,
}

impl Update {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let relation_oid = reader.u32("relation oid")?;
        let mut kind = reader.u8("kind of row")?;
        let mut old = None;
        if kind != b'N' {
            old = Some(OldTuple::decode(kind, reader)?);
            kind = reader.u8("kind of row")?;
        }
        match kind {
            b'N' => Ok(Self { relation_oid, old, new: Tuple::decode(reader)? }),
            value => Err(DecodeError::UnknownValue { field: "kind of row", value }),
        }
    }
}

/// A row was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delete {
    /// The relation, as announced by a [`Relation`].
    pub relation_oid: u32,
    /// The old row.
    pub old: OldTuple,
}

impl Delete {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let relation_oid = reader.u32("relation oid")?;
        let kind = reader.u8("kind of row")?;
        Ok(Self { relation_oid, old: OldTuple::decode(kind, reader)? })
    }
}

/// What the log holds of a row before it was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OldTuple {
    /// The columns of the replica identity; the others are null.
    Key(Tuple),
    /// All columns.
    Full(Tuple),
}

impl OldTuple {
    fn decode(kind: u8, reader: &mut Reader) -> Result<Self, DecodeError> {
        match kind {
            b'K' => Ok(Self::Key(Tuple::decode(reader)?)),
            b'O' => Ok(Self::Full(Tuple::decode(reader)?)),
            value => Err(DecodeError::UnknownValue { field: "kind of row", value }),
        }
    }
}

/// Tables were emptied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncate {
    /// Whether it was `CASCADE`.
    pub cascade: bool,
    /// Whether it was `RESTART IDENTITY`.
    pub restart_identity: bool,
    /// The relations, as announced by [`Relation`].
    pub relation_oids: Vec<u32>,
}

impl Truncate {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let relation_count = reader.u32("relation count")?;
        let options = reader.u8("truncate options")?;
        if options > 3 {
            return Err(DecodeError::UnknownValue { field: "truncate options", value: options });
        }
        let mut relation_oids = Vec::new();
        for _ in 0..relation_count {
            relation_oids.push(reader.u32("relation oid")?);
        }
        Ok(Self { cascade: options & 1 != 0, restart_identity: options & 2 != 0, relation_oids })
    }
}

/// Written by `pg_logical_emit_message`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logical {
    /// Whether it belongs to the transaction around it; otherwise it stands alone.
    pub transactional: bool,
    /// Where it lies in the log.
    pub lsn: Lsn,
    /// Says whom the message is for.
    pub prefix: String,
    /// The message; any bytes.
    pub content: Bytes,
}

impl Logical {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let flags = reader.u8("message flags")?;
        if flags > 1 {
            return Err(DecodeError::UnknownValue { field: "message flags", value: flags });
        }
        let lsn = reader.lsn("message lsn")?;
        let prefix = reader.string("message prefix")?;
        let length = reader.u32("message length")?;
        // A length that does not fit is longer than any message.
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let content = reader.bytes(length, "message content")?;
        Ok(Self { transactional: flags == 1, lsn, prefix, content })
    }
}
