//! Row statistics: position, accumulated attention and value norm of each row, for policies that evict single rows.
//!
//! Attention comes as integers ([`haversack_kernels::attention::Mass`]), so the sums do not depend on how tokens were
//! split into steps. Counters saturate: a row that gets there stays anyway.

use crate::counting::{AttentionCounting, Heads};
use crate::error::{CacheResult, copied, reserve_exact};
use crate::size::SLOTS;
use haversack_kernels::attention::MassStatistic;
use haversack_kernels::format::kv::BLOCK_SLOTS;
use std::ops::Range;

/// Layout of a row's statistics word.
///
/// ```text
/// Attention            31                     attention                      0
/// AttentionAndNorm     31   norm   24 23            attention                0
/// ```
///
/// Only sums of squares are weighted with norms, and their unit is chosen for 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Attention,
    /// See [`norm_code`].
    AttentionAndNorm,
}

impl Word {
    const NORM_SHIFT: u32 = 24;

    /// Largest attention it holds.
    const fn max(self) -> u32 {
        match self {
            Word::Attention => u32::MAX,
            Word::AttentionAndNorm => (1 << Word::NORM_SHIFT) - 1,
        }
    }

    fn attention(self, word: u32) -> u32 {
        word & self.max()
    }

    /// Approximate squared norm of the values; 1 if the word does not hold it.
    fn norm_sq(self, word: u32) -> f32 {
        match self {
            Word::Attention => 1.0,
            Word::AttentionAndNorm => norm_sq((word >> Word::NORM_SHIFT) as u8),
        }
    }

    /// The word of a new row without attention.
    fn fresh(self, values: &[f32]) -> u32 {
        match self {
            Word::Attention => 0,
            Word::AttentionAndNorm => u32::from(norm_code(values)) << Word::NORM_SHIFT,
        }
    }

    fn with_attention(self, word: u32, attention: u32) -> u32 {
        word & !self.max() | attention.min(self.max())
    }
}

/// What a sequence records about each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatsFormat {
    word: Word,
    heads: Heads,
}

impl StatsFormat {
    pub const ATTENTION: StatsFormat = StatsFormat {
        word: Word::Attention,
        heads: Heads::Together,
    };

    /// What a policy that counts attention in this way needs.
    pub fn of(counting: &AttentionCounting) -> StatsFormat {
        StatsFormat {
            word: match counting.count {
                MassStatistic::Squares => Word::AttentionAndNorm,
                MassStatistic::Sum | MassStatistic::Max | MassStatistic::Weighted(_) => {
                    Word::Attention
                }
            },
            heads: counting.heads,
        }
    }

    /// Words per row.
    fn words(self, kv_heads: usize) -> usize {
        match self.heads {
            Heads::Together => 1,
            Heads::Apart => kv_heads,
        }
    }

    /// Bytes for one block of rows.
    pub fn block_bytes(self, kv_heads: usize) -> usize {
        (1 + self.words(kv_heads)) * size_of::<Slots>()
    }
}

/// One number per slot of a block.
type Slots = [u32; BLOCK_SLOTS];

/// The row statistics of one table.
#[derive(Debug)]
pub(crate) struct RowStats {
    word: Word,
    /// Words per row.
    heads: usize,
    /// (block, slot): position of the token. A row may have moved here from another block.
    positions: Vec<Slots>,
    /// (block, head, slot): attention since the row was written, except from queries of its own block, and its norm.
    words: Vec<Slots>,
}

impl RowStats {
    pub fn new(format: StatsFormat, kv_heads: usize) -> RowStats {
        RowStats {
            word: format.word,
            heads: format.words(kv_heads),
            positions: Vec::new(),
            words: Vec::new(),
        }
    }

    pub fn bytes(&self) -> usize {
        (self.positions.capacity() + self.words.capacity()) * size_of::<Slots>()
    }

    /// How many bytes it grows when it has room for `blocks` blocks.
    pub fn bytes_to_hold(&self, blocks: usize) -> usize {
        let positions = blocks.saturating_sub(self.positions.capacity());
        let words = (blocks * self.heads).saturating_sub(self.words.capacity());
        (positions + words) * size_of::<Slots>()
    }

    /// Makes room for `blocks` blocks.
    pub fn hold(&mut self, blocks: usize) -> CacheResult {
        let (positions, words) = (self.positions.len(), self.words.len());
        reserve_exact(&mut self.positions, blocks.saturating_sub(positions))?;
        reserve_exact(&mut self.words, (blocks * self.heads).saturating_sub(words))
    }

    /// Bytes of a copy.
    pub fn copy_bytes(&self) -> usize {
        size_of_val(&self.positions[..]) + size_of_val(&self.words[..])
    }

    pub fn copy(&self) -> CacheResult<RowStats> {
        Ok(RowStats {
            positions: copied(&self.positions)?,
            words: copied(&self.words)?,
            ..*self
        })
    }

    /// Appends a block whose slots hold consecutive positions. Its room was reserved.
    pub fn push(&mut self, first_position: u64) {
        let positions = std::array::from_fn(|i| clamp(first_position + i as u64));
        self.positions.push(positions);
        let words = self.words.len() + self.heads;
        self.words.resize(words, [0; BLOCK_SLOTS]);
    }

    /// Removes blocks.
    pub fn remove(&mut self, blocks: Range<usize>) {
        self.words
            .drain(blocks.start * self.heads..blocks.end * self.heads);
        self.positions.drain(blocks);
    }

    /// Keeps the blocks for which `is_kept` holds.
    pub fn retain(&mut self, is_kept: impl Fn(usize) -> bool) {
        let (mut block, mut word) = (0.., 0..);
        let heads = self.heads;
        self.words
            .retain(|_| word.next().is_some_and(|i: usize| is_kept(i / heads)));
        self.positions
            .retain(|_| block.next().is_some_and(&is_kept));
    }

    pub fn position(&self, block: usize, slot: usize) -> u32 {
        self.positions[block][slot]
    }

    /// Starts the statistics of a new row; `values` is (kv_head, dim).
    pub fn write(&mut self, block: usize, slot: usize, values: &[f32]) {
        let words = &mut self.words[block * self.heads..][..self.heads];
        let values = values.chunks_exact(values.len() / self.heads);
        for (word, values) in words.iter_mut().zip(values) {
            word[slot] = self.word.fresh(values);
        }
    }

    /// Adds the attention that each KV head counted; `mass` is (kv_head, slot) of all blocks.
    pub fn count(&mut self, count: MassStatistic, mass: &[u64]) {
        let (heads, form) = (self.heads, self.word);
        let slots = self.positions.len() * BLOCK_SLOTS;
        for (head, mass) in mass.chunks_exact(slots.max(1)).enumerate() {
            let words = self.words.iter_mut().skip(head % heads).step_by(heads);
            for (words, mass) in words.zip(mass.chunks_exact(BLOCK_SLOTS)) {
                for (word, more) in words.iter_mut().zip(mass) {
                    let more = u32::try_from(*more).unwrap_or(u32::MAX);
                    let have = form.attention(*word);
                    let sum = match count {
                        MassStatistic::Max => more.max(have),
                        _ => have.saturating_add(more),
                    };
                    *word = form.with_attention(*word, sum);
                }
            }
        }
    }

    /// Multiplies all attention by `decay`, in units of 2^-32, rounding down.
    pub fn decay(&mut self, decay: u32) {
        let form = self.word;
        for word in self.words.as_flattened_mut() {
            let left = u64::from(form.attention(*word)) * u64::from(decay);
            *word = form.with_attention(*word, (left >> 32) as u32);
        }
    }

    /// Moves a row to another slot; both are (block, slot).
    pub fn move_row(&mut self, from: (usize, usize), to: (usize, usize)) {
        self.positions[to.0][to.1] = self.positions[from.0][from.1];
        for head in 0..self.heads {
            self.words[to.0 * self.heads + head][to.1] =
                self.words[from.0 * self.heads + head][from.1];
        }
    }

    /// Attention of a row over all heads, and the squared norm of its values. With [`Heads::Apart`] the norm is the mean
    /// of the heads' norms, weighted with their attention.
    pub fn attention_and_norm(&self, block: usize, slot: usize) -> (u32, f32) {
        let words = &self.words[block * self.heads..][..self.heads];
        let of = |word: &Slots| {
            let attention = self.word.attention(word[slot]);
            (attention, self.word.norm_sq(word[slot]))
        };
        if let [word] = words {
            return of(word);
        }
        let (mut sum, mut weighed) = (0u32, 0.0);
        for (attention, norm_sq) in words.iter().map(of) {
            sum = sum.saturating_add(attention);
            weighed += attention as f32 * norm_sq;
        }
        (sum, weighed / sum.max(1) as f32)
    }

    /// Attention of the first rows of the first block.
    pub fn attention_of_first(&self, rows: usize) -> u64 {
        let words = self.words.iter().take(self.heads);
        let attention = |word: &u32| u64::from(self.word.attention(*word));
        words.flat_map(|words| &words[..rows]).map(attention).sum()
    }
}

/// Positions past 2^32 are all recorded as the last one.
fn clamp(position: u64) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// One row as a policy sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvRow {
    pub position: u64,
    /// Attention since the row was written, in units of the kernel.
    pub mass: u32,
    /// Approximate squared norm of its values; 1 if it is not recorded.
    pub norm_sq: f32,
    /// The policy's score; 0 as the store gives it.
    pub worth: f32,
    /// Its place: entry of the table, slot of the entry.
    pub entry: u32,
    pub slot: u8,
    /// Annotated as protected: it always stays.
    pub protected: bool,
}

impl KvRow {
    /// Queries outside its own block that have seen the row by `position`.
    pub fn queries(&self, position: u64) -> u64 {
        let end = (self.position / SLOTS + 1).saturating_mul(SLOTS);
        position.saturating_sub(end)
    }
}

/// Eighths of powers of two around one, in a byte.
const NORM_BIAS: i32 = 128;

/// The squared norm of a row in a byte: its binary logarithm in eighths, clamped.
fn norm_code(values: &[f32]) -> u8 {
    let sum = values.iter().fold(0.0f32, |sum, x| x.mul_add(*x, sum));
    // Exponent and three bits of the fraction: a logarithm, nearly.
    let log = (sum.to_bits() >> 20) as i32 - (127 << 3);
    (log + NORM_BIAS).clamp(0, 255) as u8
}

/// The number a code stands for: the middle of its eighth.
fn norm_sq(code: u8) -> f32 {
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

    fn stats_of(count: MassStatistic, heads: Heads, values: &[f32]) -> RowStats {
        let counting = AttentionCounting {
            heads,
            ..AttentionCounting::always(count)
        };
        let mut stats = RowStats::new(StatsFormat::of(&counting), 2);
        for block in 0..2 {
            stats.push(block as u64 * SLOTS);
            (0..BLOCK_SLOTS).for_each(|slot| stats.write(block, slot, values));
        }
        stats
    }

    /// Counts of two heads and two blocks.
    fn counted(first: u64, second: u64) -> Vec<u64> {
        [[first; 2 * BLOCK_SLOTS], [second; 2 * BLOCK_SLOTS]].concat()
    }

    #[test]
    fn attention_and_norm_share_a_word() {
        let mut stats = stats_of(MassStatistic::Squares, Heads::Together, &[3.0, 4.0]);
        let norm = stats.attention_and_norm(1, 7).1;
        assert!((norm - 25.0).abs() < 2.0);
        stats.count(MassStatistic::Squares, &counted(1000, 0));
        stats.count(MassStatistic::Squares, &counted(4, 20));
        stats.count(MassStatistic::Max, &counted(500, 500));
        assert_eq!(stats.attention_and_norm(1, 7), (1024, norm));
        stats.decay(1 << 31);
        assert_eq!(stats.attention_and_norm(1, 7), (512, norm));
        assert_eq!(stats.attention_of_first(4), 4 * 512);
        // Attention saturates and leaves the norm alone.
        for more in [(1 << 24) - 512, 1 << 24, u64::MAX] {
            stats.count(MassStatistic::Squares, &counted(more, 0));
            assert_eq!(stats.attention_and_norm(1, 7), (stats.word.max(), norm));
        }
        // Without norms, attention has the whole word.
        let mut stats = stats_of(MassStatistic::Sum, Heads::Together, &[3.0, 4.0]);
        stats.count(MassStatistic::Sum, &counted(u32::MAX.into(), 3));
        assert_eq!(stats.attention_and_norm(0, 0), (u32::MAX, 1.0));
    }

    #[test]
    fn separate_heads_are_weighted_with_their_own_norms() {
        let mut stats = stats_of(MassStatistic::Squares, Heads::Apart, &[2.0, 8.0]);
        stats.count(MassStatistic::Squares, &counted(300, 100));
        let (attention, length) = stats.attention_and_norm(1, 3);
        let expected = (300.0 * 4.0 + 100.0 * 64.0) / 400.0;
        assert_eq!(attention, 400);
        assert!((length / expected - 1.0).abs() < 0.07, "{length}");
        assert_eq!(stats.attention_of_first(2), 2 * 400);
        // A row moves with all its words.
        stats.write(0, 5, &[1.0, 1.0]);
        stats.move_row((1, 3), (0, 5));
        assert_eq!(stats.attention_and_norm(0, 5), (attention, length));
        assert_eq!(stats.position(0, 5), 35);
        stats.retain(|block| block == 0);
        assert_eq!((stats.positions.len(), stats.words.len()), (1, 2));
        assert_eq!(stats.attention_and_norm(0, 5), (attention, length));
        stats.remove(0..1);
        assert_eq!((stats.positions.len(), stats.words.len()), (0, 0));
    }

    #[test]
    fn queries_are_those_after_the_block() {
        let row = KvRow {
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
