//! Memory ledger: the store's bytes by account. One budget covers their sum.

use crate::error::CannotFit;

/// Bytes outside the store that its budget covers. The caller reports each as a level, not as a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// Activations and attention scratch.
    Scratch,
    /// Everything else the caller keeps beside keys and values.
    Side,
}

/// The store's bytes at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// `None` = no limit.
    pub budget: Option<usize>,
    /// Blocks that queries read; a shared block counts once.
    pub kv_live: usize,
    /// Blocks recoded ahead, before any query reads them.
    pub kv_ahead: usize,
    /// Blocks that tables hold in mapped files; a shared block counts once. Their pages are clean and the system can
    /// reclaim them, so the budget does not cover them.
    pub kv_file: usize,
    /// Blocks reserved for steps in progress.
    pub kv_promised: usize,
    /// Highest `kv_live` so far.
    pub kv_peak: usize,
    /// Block tables, free lists and staging buffers.
    pub tables: usize,
    pub scratch: usize,
    /// Mean keys and error feedback, plus [`Account::Side`].
    pub side: usize,
    /// What the process has on its heap beside all of these and its baseline, bytes reserved by other threads included.
    /// It grows outside the store: admission asks for it, and no step that has begun fails for it.
    pub heap: usize,
    /// Highest [`Ledger::total`] so far, reservations included.
    pub peak: usize,
    /// Address space of the slabs; how much of it is resident, only the system knows.
    pub mapped: usize,
}

impl Ledger {
    /// Bytes counted against the budget.
    pub fn total(&self) -> usize {
        self.own() + self.heap
    }

    /// The same without the heap: what the store enforces its budget on.
    pub fn own(&self) -> usize {
        self.kv_live + self.kv_ahead + self.kv_promised + self.heap_accounts()
    }

    /// Accounts of the store that lie on the heap.
    pub fn heap_accounts(&self) -> usize {
        self.tables + self.scratch + self.side
    }

    /// Checks that `more` bytes of the store fit the budget.
    pub(crate) fn fit(&self, more: usize) -> Result<(), CannotFit> {
        let Some(budget_bytes) = self.budget else {
            return Ok(());
        };
        match self.own().saturating_add(more).checked_sub(budget_bytes) {
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
            heap: 7,
            kv_file: 1 << 40,
            ..Ledger::default()
        };
        assert_eq!((ledger.total(), ledger.heap_accounts()), (17, 7));
        assert_eq!(ledger.fit(5), Ok(()));
        let short = ledger.fit(6).unwrap_err();
        assert_eq!((short.short_by, short.minimum_bytes()), (1, 16));
        assert_eq!(Ledger::default().fit(usize::MAX), Ok(()));
    }
}
