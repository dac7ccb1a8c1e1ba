//! What attention counts into row statistics.

use haversack_kernels::attention::MassStatistic;

/// Whether the KV heads of a layer share a row's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heads {
    /// One word per row: the sum over all KV heads.
    #[default]
    Together,
    /// One word per row and KV head, weighted with that head's values.
    Apart,
}

/// How attention is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionCounting {
    pub count: MassStatistic,
    pub heads: Heads,
    /// One query in `every` is counted.
    pub every: u64,
    /// Factor for all statistics at every multiple of 32, in units of 2^-32; `None` = no decay.
    pub decay: Option<u32>,
}

impl AttentionCounting {
    /// One query in four: neighbouring queries attend to much the same rows.
    pub const EVERY: u64 = 4;

    /// Without decay.
    pub const fn always(count: MassStatistic) -> AttentionCounting {
        AttentionCounting {
            count,
            heads: Heads::Together,
            every: AttentionCounting::EVERY,
            decay: None,
        }
    }

    /// All queries of the last block of 32, and no others.
    pub const LAST_BLOCK: AttentionCounting = AttentionCounting {
        count: MassStatistic::Sum,
        heads: Heads::Together,
        every: 1,
        decay: Some(0),
    };

    /// Whether any of `queries` queries from `position` on is counted.
    pub fn counts(&self, position: u64, queries: usize) -> bool {
        let end = position.saturating_add(queries as u64);
        position / self.every.max(1) < end / self.every.max(1)
    }

    /// Whether steps must not cross a multiple of 32.
    pub fn is_aligned(&self) -> bool {
        self.decay.is_some()
    }
}
