//! What is remembered about each row: where it came from, how much attention it got, how large its value is.
//!
//! Attention comes as whole numbers ([`haversack_kernels::attention::Mass`]), so counters do not depend on
//! how tokens were portioned. They end at the greatest number: a row that gets there stays anyway.

use crate::size::SLOTS;
use haversack_kernels::attention::Count;
use haversack_kernels::format::kv::BLOCK_SLOTS;

/// What a row's word holds.
///
/// ```text
/// Attention            31                     attention                      0
/// AttentionAndLength   31  length  24 23            attention                0
/// ```
///
/// Only the sum of squares is weighed with lengths, and its unit is made for 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noting {
    Attention,
    /// See [`norm_code`].
    AttentionAndLength,
}

impl Noting {
    const LENGTH_SHIFT: u32 = 24;

    /// What a policy that counts in this way needs.
    pub fn of(count: Count) -> Noting {
        match count {
            Count::Squares => Noting::AttentionAndLength,
            Count::Sum | Count::Max | Count::Weighted(_) => Noting::Attention,
        }
    }

    /// The greatest attention a word holds.
    pub const fn most(self) -> u32 {
        match self {
            Noting::Attention => u32::MAX,
            Noting::AttentionAndLength => (1 << Noting::LENGTH_SHIFT) - 1,
        }
    }

    pub fn attention(self, word: u32) -> u32 {
        word & self.most()
    }

    /// Squared length of the row's values, about; 1 where it is not remembered.
    pub fn norm_sq(self, word: u32) -> f32 {
        match self {
            Noting::Attention => 1.0,
            Noting::AttentionAndLength => norm_sq((word >> Noting::LENGTH_SHIFT) as u8),
        }
    }

    /// The word of a row with these values that nobody has looked at.
    pub(crate) fn fresh(self, values: &[f32]) -> u32 {
        match self {
            Noting::Attention => 0,
            Noting::AttentionAndLength => u32::from(norm_code(values)) << Noting::LENGTH_SHIFT,
        }
    }

    fn with_attention(self, word: u32, attention: u32) -> u32 {
        word & !self.most() | attention.min(self.most())
    }
}

/// Of the rows of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notes {
    /// Position of the token in each slot. A row may have come from another block.
    pub positions: [u32; BLOCK_SLOTS],
    /// Attention since the row was written, its own block's aside, and its length, as [`Noting`] says.
    pub words: [u32; BLOCK_SLOTS],
}

impl Notes {
    /// Of rows that stand where they were written, from `first_position` on.
    pub fn of_block(first_position: u64) -> Notes {
        Notes {
            positions: std::array::from_fn(|i| clamp(first_position + i as u64)),
            words: [0; BLOCK_SLOTS],
        }
    }

    /// Adds what one KV head counted.
    pub fn count(&mut self, noting: Noting, count: Count, more: &[u64]) {
        for (word, more) in self.words.iter_mut().zip(more) {
            let more = u32::try_from(*more).unwrap_or(u32::MAX);
            let have = noting.attention(*word);
            let sum = match count {
                Count::Max => more.max(have),
                _ => have.saturating_add(more),
            };
            *word = noting.with_attention(*word, sum);
        }
    }

    /// All attention is multiplied by `decay`, in units of 2^-32, and rounded down.
    pub fn decay(&mut self, noting: Noting, decay: u32) {
        for word in &mut self.words {
            let left = u64::from(noting.attention(*word)) * u64::from(decay);
            *word = noting.with_attention(*word, (left >> 32) as u32);
        }
    }

    /// Another block's row takes a slot.
    pub fn take(&mut self, slot: usize, from: &Notes, from_slot: usize) {
        self.positions[slot] = from.positions[from_slot];
        self.words[slot] = from.words[from_slot];
    }
}

/// Conversations of more than 2^32 tokens would remember them all as old.
fn clamp(position: u64) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// One row as a policy sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    pub position: u64,
    /// Attention since the row was written, in units of the kernel.
    pub mass: u32,
    /// Squared length of its values, about; 1 where it is not remembered.
    pub norm_sq: f32,
    /// What a policy makes of it; the store says 0.
    pub worth: f32,
    /// Where it is: entry of the table, slot of the entry.
    pub entry: u32,
    pub slot: u8,
    /// Somebody said that it stays.
    pub protected: bool,
}

impl Row {
    /// Queries outside its own block that have seen the row when the sequence stands at `position`.
    pub fn queries(&self, position: u64) -> u64 {
        let end = (self.position / SLOTS + 1).saturating_mul(SLOTS);
        position.saturating_sub(end)
    }
}

/// Eighths of powers of two around one, in a byte.
const NORM_BIAS: i32 = 128;

/// The squared length of a row in a byte: the logarithm to base two in eighths, cut off at both ends.
pub fn norm_code(values: &[f32]) -> u8 {
    let sum = values.iter().fold(0.0f32, |sum, x| x.mul_add(*x, sum));
    // Exponent and three bits of the fraction: a logarithm, nearly.
    let log = (sum.to_bits() >> 20) as i32 - (127 << 3);
    (log + NORM_BIAS).clamp(0, 255) as u8
}

/// The number a code stands for: the middle of its eighth.
pub fn norm_sq(code: u8) -> f32 {
    let log = i32::from(code) - NORM_BIAS + (127 << 3);
    f32::from_bits(((log as u32) << 20) | 1 << 19)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_norm_survives_within_a_sixteenth() {
        for exponent in -40..40 {
            for part in 0..16 {
                let x = (1.0 + part as f32 / 16.0) * (exponent as f32 / 4.0).exp2();
                let sum = x * x;
                let back = norm_sq(norm_code(&[x]));
                if (-15..15).contains(&(sum.log2() as i32)) {
                    assert!((back / sum - 1.0).abs() <= 1.0 / 15.0, "{sum} {back}");
                }
            }
        }
        assert_eq!(norm_code(&[0.0; 4]), 0);
        assert_eq!(norm_code(&[f32::MAX; 4]), 255);
        assert_eq!(norm_code(&[f32::NAN]), 255);
        assert!(norm_sq(0) > 0.0 && norm_sq(255).is_finite());
    }

    #[test]
    fn attention_and_length_share_a_word() {
        let noting = Noting::of(Count::Squares);
        let long = noting.fresh(&[3.0, 4.0]);
        let mut notes = Notes::of_block(0);
        notes.words = [long; BLOCK_SLOTS];
        notes.count(noting, Count::Squares, &[1000; BLOCK_SLOTS]);
        notes.count(noting, Count::Squares, &[24; BLOCK_SLOTS]);
        notes.count(noting, Count::Max, &[500; BLOCK_SLOTS]);
        assert_eq!(noting.attention(notes.words[7]), 1024);
        notes.decay(noting, 1 << 31);
        assert_eq!(noting.attention(notes.words[7]), 512);
        // It ends at the greatest number and leaves the length alone.
        for more in [(1 << 24) - 512, 1 << 24, u64::MAX] {
            notes.count(noting, Count::Squares, &[more; BLOCK_SLOTS]);
            assert_eq!(noting.attention(notes.words[7]), noting.most());
            assert_eq!(noting.norm_sq(notes.words[7]), noting.norm_sq(long));
        }
        assert!((noting.norm_sq(long) - 25.0).abs() < 2.0);
        // Where only attention is remembered it has the whole word.
        let noting = Noting::of(Count::Sum);
        assert_eq!(noting.fresh(&[3.0, 4.0]), 0);
        notes.words = [u32::MAX - 1; BLOCK_SLOTS];
        notes.count(noting, Count::Sum, &[3; BLOCK_SLOTS]);
        assert_eq!(noting.attention(notes.words[0]), u32::MAX);
        assert_eq!(noting.norm_sq(notes.words[0]), 1.0);
    }

    #[test]
    fn queries_are_those_behind_the_block() {
        let row = Row {
            position: 40,
            mass: 0,
            norm_sq: 1.0,
            worth: 0.0,
            entry: 0,
            slot: 0,
            protected: false,
        };
        assert_eq!(
            (row.queries(0), row.queries(64), row.queries(100)),
            (0, 0, 36)
        );
    }
}
