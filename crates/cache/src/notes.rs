//! What is remembered about each row: where it came from, how much attention it got, how large its value is.
//!
//! Attention comes as whole numbers ([`haversack_kernels::attention::Mass`]), so counters do not depend on
//! how tokens were portioned. They end at the greatest number: a row that gets there stays anyway.
//!
//! [`Counting`]: crate::policy::count::Counting

use crate::size::SLOTS;
use haversack_kernels::attention::Count;
use haversack_kernels::format::kv::BLOCK_SLOTS;

/// Of the rows of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notes {
    /// Position of the token in each slot. A row may have come from another block.
    pub positions: [u32; BLOCK_SLOTS],
    /// Attention since the row was written, its own block's aside, as [`Counting`] says.
    pub mass: [u32; BLOCK_SLOTS],
    /// See [`norm_code`].
    pub norms: [u8; BLOCK_SLOTS],
}

impl Notes {
    /// Of rows that stand where they were written, from `first_position` on.
    pub fn of_block(first_position: u64) -> Notes {
        Notes {
            positions: std::array::from_fn(|i| clamp(first_position + i as u64)),
            mass: [0; BLOCK_SLOTS],
            norms: [0; BLOCK_SLOTS],
        }
    }

    /// Adds what one KV head counted.
    pub fn count(&mut self, count: Count, more: &[u64]) {
        for (mass, more) in self.mass.iter_mut().zip(more) {
            let more = u32::try_from(*more).unwrap_or(u32::MAX);
            *mass = match count {
                Count::Max => more.max(*mass),
                _ => mass.saturating_add(more),
            };
        }
    }

    /// Everything is multiplied by `decay`, in units of 2^-32, and rounded down.
    pub fn decay(&mut self, decay: u32) {
        for mass in &mut self.mass {
            *mass = ((u64::from(*mass) * u64::from(decay)) >> 32) as u32;
        }
    }

    /// Another block's row takes a slot.
    pub fn take(&mut self, slot: usize, from: &Notes, from_slot: usize) {
        self.positions[slot] = from.positions[from_slot];
        self.mass[slot] = from.mass[from_slot];
        self.norms[slot] = from.norms[from_slot];
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
    /// Squared length of its values, about.
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
