//! Records in temporary files, divided so that one part after the other fits into memory.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use relay::Error;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

/// What a record takes, about.
pub(super) const RECORD_BYTES: u64 = 80;

/// What the largest record may take.
const RECORD_BYTES_MAX: usize = 256;

/// Records of a part, about. A part is read at once.
const PART_RECORDS: u64 = 50_000;

/// Files of a division that are open at a time.
const PARTS_MAX: u64 = 128;

const BUFFER_BYTES: usize = 32 << 10;

/// A folder that is removed in the end.
pub(super) struct SpillFolder {
    folder: TempDir,
}

impl SpillFolder {
    pub(super) fn new() -> Result<Self, Error> {
        let folder = tempfile::Builder::new().prefix("tailpost-verify-").tempdir();
        let folder = folder.map_err(Error::spill("make a temporary folder"))?;
        Ok(Self { folder })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// How many parts there are to be of so many records.
pub(super) fn parts_for(records: u64) -> usize {
    let parts = records.div_ceil(PART_RECORDS).clamp(1, PARTS_MAX).next_power_of_two();
    usize::try_from(parts).unwrap_or(1)
}

/// Files to which records are written. A record's key says to which.
pub(super) struct Division<T> {
    files: Vec<(PathBuf, BufWriter<File>)>,
    /// How many records were written.
    pub(super) records: u64,
    kind: std::marker::PhantomData<T>,
}

const WRITING: &str = "write a temporary file";

impl<T: Serialize> Division<T> {
    pub(super) fn new(folder: &SpillFolder, name: &str, parts: usize) -> Result<Self, Error> {
        let file = |part: usize| {
            let path = folder.path().join(format!("{name}-{part}"));
            let file = File::create_new(&path).map_err(Error::spill(WRITING))?;
            Ok((path, BufWriter::with_capacity(BUFFER_BYTES, file)))
        };
        let files: Result<Vec<_>, Error> = (0..parts).map(file).collect();
        Ok(Self { files: files?, records: 0, kind: std::marker::PhantomData })
    }

    /// `key` must be spread evenly: records with the same one are in the same part.
    pub(super) fn write(&mut self, key: u64, record: &T) -> Result<(), Error> {
        let mut buffer = [0; RECORD_BYTES_MAX];
        let bytes = postcard::to_slice(record, &mut buffer).map_err(unfit(WRITING))?;
        let parts = self.files.len() as u64;
        let part = usize::try_from(key % parts).unwrap_or(0);
        self.files[part].1.write_all(bytes).map_err(Error::spill(WRITING))?;
        self.records += 1;
        Ok(())
    }

    /// Ends the writing.
    pub(super) fn finish(self) -> Result<Parts<T>, Error> {
        let flush = |(path, mut file): (PathBuf, BufWriter<File>)| {
            file.flush().map_err(Error::spill(WRITING))?;
            Ok(path)
        };
        let paths: Result<Vec<_>, Error> = self.files.into_iter().map(flush).collect();
        Ok(Parts { paths: paths?, kind: self.kind })
    }
}

/// What was written, part by part.
pub(super) struct Parts<T> {
    paths: Vec<PathBuf>,
    kind: std::marker::PhantomData<T>,
}

impl<T: DeserializeOwned> Parts<T> {
    pub(super) fn count(&self) -> usize {
        self.paths.len()
    }

    /// Reads a part and removes its file.
    pub(super) fn take(&self, part: usize) -> Result<Vec<T>, Error> {
        let doing = "read a temporary file";
        let path = &self.paths[part];
        let bytes = fs::read(path).map_err(Error::spill(doing))?;
        // Most take more than that.
        let mut read = Vec::with_capacity(bytes.len() / 64);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (record, behind) = postcard::take_from_bytes(rest).map_err(unfit(doing))?;
            read.push(record);
            rest = behind;
        }
        fs::remove_file(path).map_err(Error::spill("remove a temporary file"))?;
        Ok(read)
    }
}

/// A record that cannot be written or read as what it is.
fn unfit(doing: &'static str) -> impl FnOnce(postcard::Error) -> Error {
    move |error| Error::spill(doing)(io::Error::other(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify_rules::spilled::{OrphanRecord, Place};

    #[test]
    fn every_record_comes_back_once_and_beside_those_with_its_key() {
        let folder = SpillFolder::new().expect("a folder");
        let mut division = Division::new(&folder, "x", 4).expect("files");
        for sequence in 0..5_000 {
            let record = OrphanRecord { at: Place { stream: 1, sequence }, id: None };
            division.write(sequence % 7, &record).expect("written");
        }
        let parts = division.finish().expect("flushed");
        let mut all = Vec::new();
        for part in 0..parts.count() {
            let read = parts.take(part).expect("read");
            assert!(read.iter().all(|it| it.at.sequence % 7 % 4 == part as u64));
            all.extend(read.iter().map(|it| it.at.sequence));
        }
        all.sort_unstable();
        assert!(all.into_iter().eq(0..5_000));
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0);
    }

    #[test]
    fn parts_are_bounded_in_number() {
        assert_eq!([0, 50_000, 50_001, 10_000_000, u64::MAX].map(parts_for), [1, 1, 2, 128, 128]);
    }
}
