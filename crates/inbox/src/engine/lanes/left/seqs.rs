//! A set of many sequences of a stream in little memory.

use std::collections::BTreeMap;

/// One bit for each sequence, by words of 64: about 25 bytes for a sequence that has no neighbour,
/// and less than a byte for one of many that follow each other.
#[derive(Debug, Default)]
pub(super) struct Seqs {
    words: BTreeMap<u64, u64>,
}

impl Seqs {
    pub(super) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// False if it was there.
    pub(super) fn insert(&mut self, seq: u64) -> bool {
        let (word, bit) = (self.words.entry(seq / 64).or_default(), 1 << (seq % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    pub(super) fn first(&self) -> Option<u64> {
        let (at, word) = self.words.first_key_value()?;
        Some(at * 64 + u64::from(word.trailing_zeros()))
    }

    pub(super) fn pop_first(&mut self) {
        let Some(mut entry) = self.words.first_entry() else { return };
        let word = entry.get_mut();
        *word &= *word - 1;
        if *word == 0 {
            entry.remove();
        }
    }

    /// In ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        self.words.iter().flat_map(|(at, word)| {
            let bits = (0..64).filter(move |bit| word >> bit & 1 == 1);
            bits.map(move |bit| at * 64 + bit)
        })
    }

    #[cfg(test)]
    pub(super) fn words(&self) -> usize {
        self.words.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set_in_ascending_order(seqs in prop::collection::vec(1_u64..400, 0..200)) {
            let (mut set, mut model) = (Seqs::default(), BTreeSet::new());
            for seq in seqs {
                prop_assert_eq!(set.insert(seq), model.insert(seq));
                prop_assert_eq!(set.first(), model.first().copied());
            }
            while !model.is_empty() {
                prop_assert!(set.iter().eq(model.iter().copied()));
                model.pop_first();
                set.pop_first();
            }
            prop_assert!(set.is_empty());
        }
    }
}
