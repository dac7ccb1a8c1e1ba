//! Mutants: bugs that other projects have shipped, each at the place where it would occur here.
//!
//! `mutants/planted.patch` inserts this file and every site into a copy of the tree; the simulation must find each
//! (`docs/how-it-works/simulation.md`). A thread has at most one mutant at a time.

use std::cell::Cell;

/// A bug, named after what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A row's index in memory is used as its position after rows were evicted.
    RowsForPositions,
    /// A step reads the whole sequence again instead of the new token.
    DoubleAccumulation,
    /// Positions of single tokens begin at 0.
    PositionsRestart,
    /// Quantised keys are not shifted where a gap closes.
    ShiftMissesCoded,
    /// A table gets the new id of another block after compaction.
    DefragmentMixes,
    /// A layer with a window is truncated to a position whose rows it no longer has.
    PartialRemoval,
    /// Truncation leaves one row too many.
    RollbackOffByOne,
    /// A prefix is shared before its last row is computed.
    SharedBeforeComputed,
    /// A prefix is found under a hash that is no longer its own.
    StaleHash,
    /// A fork does not count its reference to a block.
    ForkLosesReference,
    /// A session accepts the file of another conversation.
    OtherConversation,
    /// A fork reads at the offsets of the original's records.
    OtherRecords,
    /// The key of a prefix omits model, codec and tenant.
    KeyOmitsSalt,
    /// A failed restore leaks its sequence.
    FailedRestoreLeaks,
    /// Rows of another model with the same shape are accepted.
    OtherModelAccepted,
    /// Pinned turns only get the highest score, and lose ties.
    ProtectionByScore,
    /// Cancelling a queued request also cancels a running one.
    CancelHitsAnother,
    /// A cancelled turn leaves its session answering for ever.
    WedgedAfterCancel,
    /// A cancelled request stays in the queue.
    QueueLeak,
    /// A request that a smaller batch leaves out loses its token.
    BatchLosesToken,
    /// A forgotten turn returns after a restart.
    TombstoneIgnored,
    /// Two sessions share one file.
    SpillFileShared,
    /// Forks write into the block that they share.
    ForkSharesTail,
    /// Blocks are allocated before the budget is checked.
    BudgetAfterAllocating,
    /// A thermal limit on the batch drops the requests above it.
    HeatDropsRequest,
    /// Row limits of a request are not checked.
    NegativeCount,
    /// An allocated block stays in the free list.
    HandedOutTwice,
    /// The mask counts rows where attention counts positions.
    MaskByRows,
    /// Half a turn is evicted.
    HalfTurn,
    /// A cancelled answer lacks its end marker.
    OrphanedMarker,
}

impl Mutant {
    pub const ALL: [Mutant; 30] = [
        Mutant::RowsForPositions,
        Mutant::DoubleAccumulation,
        Mutant::PositionsRestart,
        Mutant::ShiftMissesCoded,
        Mutant::DefragmentMixes,
        Mutant::PartialRemoval,
        Mutant::RollbackOffByOne,
        Mutant::SharedBeforeComputed,
        Mutant::StaleHash,
        Mutant::ForkLosesReference,
        Mutant::OtherConversation,
        Mutant::OtherRecords,
        Mutant::KeyOmitsSalt,
        Mutant::FailedRestoreLeaks,
        Mutant::OtherModelAccepted,
        Mutant::ProtectionByScore,
        Mutant::CancelHitsAnother,
        Mutant::WedgedAfterCancel,
        Mutant::QueueLeak,
        Mutant::BatchLosesToken,
        Mutant::TombstoneIgnored,
        Mutant::SpillFileShared,
        Mutant::ForkSharesTail,
        Mutant::BudgetAfterAllocating,
        Mutant::HeatDropsRequest,
        Mutant::NegativeCount,
        Mutant::HandedOutTwice,
        Mutant::MaskByRows,
        Mutant::HalfTurn,
        Mutant::OrphanedMarker,
    ];
}

thread_local! {
    static PLANTED: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Whether this thread has the mutant now.
pub fn planted(mutant: Mutant) -> bool {
    PLANTED.with(Cell::get) == Some(mutant)
}

/// Gives this thread a mutant, or none. Returns the one it had.
pub fn plant(mutant: Option<Mutant>) -> Option<Mutant> {
    PLANTED.with(|planted| planted.replace(mutant))
}
