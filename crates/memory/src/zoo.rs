//! Mistakes that others have shipped, to be made again on purpose.
//!
//! The simulation (`docs/how-it-works/simulation.md`) is only worth something if it finds bugs. So each of these stands in the code
//! behind [`planted`], at the place where it would be made here, and is planted in one thread at a time. Without the
//! feature `zoo` the answer is a constant `false`, and nothing of them is in the program.

/// A mistake, by what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A row's number in memory is taken for its position once rows have left.
    RowsForPositions,
    /// A step reads the whole sequence again, not the new token.
    DoubleAccumulation,
    /// Positions of single tokens begin at 0.
    PositionsRestart,
    /// Keys that are coded coarsely are not moved along where a gap closes.
    ShiftMissesCoded,
    /// A table does not follow one of the blocks that were moved together.
    DefragmentMixes,
    /// A layer with a window is cut back past what it still has.
    PartialRemoval,
    /// Going back leaves a row too many.
    RollbackOffByOne,
    /// What a prefix is to hold is shared before all of it is computed.
    SharedBeforeComputed,
    /// What is known under a hash stays known after it was freed.
    StaleHash,
    /// A fork holds a block that is not counted for it.
    ForkLosesReference,
    /// A session is read from whatever file lies under its name.
    OtherConversation,
    /// A fork looks for its rows where those of the first one lie.
    OtherRecords,
    /// The key of a prefix leaves out how its rows were computed.
    KeyOmitsSalt,
    /// A restore that fails leaves behind what it took.
    FailedRestoreLeaks,
    /// Another model's rows are accepted where their shape fits.
    OtherModelAccepted,
    /// What must stay has the highest score, and shares it with others.
    ProtectionByScore,
    /// One who leaves the queue takes along somebody who decodes.
    CancelHitsAnother,
    /// A turn that nobody wants any more leaves its session answering for ever.
    WedgedAfterCancel,
    /// Who leaves stays in the queue.
    QueueLeak,
    /// Who is left out of a smaller batch loses its token.
    BatchLosesToken,
    /// What was taken back is there again after a restart.
    TombstoneIgnored,
    /// Two names have one file.
    SpillFileShared,
    /// Forks write into the block that they share.
    ForkSharesTail,
    /// Blocks are taken before anybody looks whether they fit.
    BudgetAfterAllocating,
    /// Heat that makes the batch smaller drops who does not fit.
    HeatDropsRequest,
    /// Numbers of a request are used as they came.
    NegativeCount,
    /// A block that was handed out is still in the list of free ones.
    HandedOutTwice,
    /// What is hidden is counted in rows where attention counts in positions.
    MaskByRows,
    /// Half a turn leaves.
    HalfTurn,
    /// An answer that was cut off lacks the marker that ends it.
    OrphanedMarker,
}

impl Bug {
    pub const ALL: [Bug; 30] = [
        Bug::RowsForPositions,
        Bug::DoubleAccumulation,
        Bug::PositionsRestart,
        Bug::ShiftMissesCoded,
        Bug::DefragmentMixes,
        Bug::PartialRemoval,
        Bug::RollbackOffByOne,
        Bug::SharedBeforeComputed,
        Bug::StaleHash,
        Bug::ForkLosesReference,
        Bug::OtherConversation,
        Bug::OtherRecords,
        Bug::KeyOmitsSalt,
        Bug::FailedRestoreLeaks,
        Bug::OtherModelAccepted,
        Bug::ProtectionByScore,
        Bug::CancelHitsAnother,
        Bug::WedgedAfterCancel,
        Bug::QueueLeak,
        Bug::BatchLosesToken,
        Bug::TombstoneIgnored,
        Bug::SpillFileShared,
        Bug::ForkSharesTail,
        Bug::BudgetAfterAllocating,
        Bug::HeatDropsRequest,
        Bug::NegativeCount,
        Bug::HandedOutTwice,
        Bug::MaskByRows,
        Bug::HalfTurn,
        Bug::OrphanedMarker,
    ];
}

/// Whether this mistake is made by this thread now.
#[cfg(not(feature = "zoo"))]
#[inline(always)]
pub const fn planted(_: Bug) -> bool {
    false
}

#[cfg(feature = "zoo")]
pub use live::{plant, planted};

#[cfg(feature = "zoo")]
mod live {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Whether this mistake is made by this thread now.
    pub fn planted(bug: Bug) -> bool {
        PLANTED.with(Cell::get) == Some(bug)
    }

    /// This thread makes the mistake from now on, or none. Returns which it made before.
    pub fn plant(bug: Option<Bug>) -> Option<Bug> {
        PLANTED.with(|planted| planted.replace(bug))
    }
}
