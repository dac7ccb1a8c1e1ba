//! Where the bytes are. One ceiling covers the sum of all accounts.

use crate::error::CannotFit;

/// Bytes that others hold and the budget covers. Each is told as a level, not as a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// Activations and attention scratch.
    Scratch,
    /// What others keep beside keys and values.
    Side,
}

/// The store's bytes at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// `None` = what the system gives.
    pub budget: Option<usize>,
    /// Blocks that queries see, shared ones once.
    pub kv_live: usize,
    /// Blocks that were made ahead, before any query sees them.
    pub kv_ahead: usize,
    /// Blocks that tables hold in mapped files, shared ones once. Clean pages, which the system can take back: the
    /// budget does not cover them.
    pub kv_file: usize,
    /// Blocks promised to steps under way.
    pub kv_promised: usize,
    /// The most that `kv_live` has been.
    pub kv_peak: usize,
    /// Tables, lists of blocks and staging: what the store holds to find and code them.
    pub tables: usize,
    pub scratch: usize,
    /// The mean keys, and what others keep beside keys and values.
    pub side: usize,
    /// The most that [`Ledger::total`] has been, promises included.
    pub peak: usize,
    /// Address space of the slabs; what of it is in memory, the system says.
    pub mapped: usize,
}

impl Ledger {
    /// What is held against the budget.
    pub fn total(&self) -> usize {
        self.kv_live + self.kv_ahead + self.kv_promised + self.tables + self.scratch + self.side
    }

    /// Whether `more` bytes fit beside all this.
    pub(crate) fn fit(&self, more: usize) -> Result<(), CannotFit> {
        let Some(budget_bytes) = self.budget else {
            return Ok(());
        };
        match self.total().saturating_add(more).checked_sub(budget_bytes) {
            None | Some(0) => Ok(()),
            Some(short_by) => Err(CannotFit {
                short_by,
                budget_bytes,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_covers_the_sum() {
        let ledger = Ledger {
            budget: Some(15),
            kv_live: 1,
            kv_ahead: 1,
            kv_promised: 1,
            tables: 3,
            scratch: 1,
            side: 3,
            kv_file: 1 << 40,
            ..Ledger::default()
        };
        assert_eq!(ledger.fit(5), Ok(()));
        let short = ledger.fit(6).unwrap_err();
        assert_eq!((short.short_by, short.minimum_bytes()), (1, 16));
        assert_eq!(Ledger::default().fit(usize::MAX), Ok(()));
    }
}
