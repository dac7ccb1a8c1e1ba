//! What can go wrong, by name. Running out of budget is an answer ([`CannotFit`]), not a fault.

/// It does not fit the budget. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("does not fit: {short_by} bytes short of the budget of {budget_bytes} bytes")]
pub struct CannotFit {
    pub short_by: usize,
    pub budget_bytes: usize,
}

impl CannotFit {
    /// The least budget that would do.
    pub fn minimum_bytes(self) -> usize {
        self.budget_bytes.saturating_add(self.short_by)
    }
}

/// A broken contract between the caller and the cache, or no memory. None of these leaves a partial
/// state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    #[error(transparent)]
    CannotFit(#[from] CannotFit),
    #[error("the system refused {bytes} bytes of memory")]
    OutOfMemory { bytes: usize },
    #[error("the system has no memory of this kind: {why}")]
    NoBacking { why: &'static str },
    #[error("{what} is {found}; it may be at most {most}")]
    TooMany {
        what: &'static str,
        found: usize,
        most: usize,
    },
    #[error("layer {layer}: heads of {head_dim} cannot be stored in this form")]
    Form { layer: usize, head_dim: usize },
    #[error("the mean keys of layer {layer} have {found} values, expected {expected}")]
    Mean {
        layer: usize,
        expected: usize,
        found: usize,
    },
    #[error("the rounding of layer {layer}'s keys is for heads of another shape")]
    Carry { layer: usize },
    #[error("the row of position {position} may not leave layer {layer}")]
    NotLoose { layer: usize, position: u64 },
    /// The step did not happen. What the layers before counted of it stays counted.
    #[error("the attention of layer {layer} is not a number at position {position}")]
    NotANumber { layer: usize, position: u64 },
    #[error(
        "attention of positions {from} to {to} was counted across a multiple of 32, where counters are weighed anew"
    )]
    Unaligned { from: u64, to: u64 },
    #[error("positions {start} to {end} are no piece of a sequence")]
    BadSpan { start: u64, end: u64 },
    #[error("the image of a sequence has {what}")]
    BadImage { what: &'static str },
    #[error("rows of this store leave one by one; its sequences have no image")]
    NoImage,
    #[error(
        "positions {start} to {end} cannot be hidden: pieces come in order, apart from each other, and end at {position} at most"
    )]
    BadHidden { start: u64, end: u64, position: u64 },
    #[error("rows of sequence {index} leave one by one, so they cannot be hidden")]
    Noted { index: usize },
    #[error("sequence {index} is closed")]
    Closed { index: usize },
    #[error("sequence {index} is in the middle of a step")]
    Busy { index: usize },
    #[error("sequence {index} is not in the middle of a step")]
    NotInStep { index: usize },
    #[error("sequence stands at position {expected}, but was fed position {found}")]
    Position { expected: u64, found: u64 },
    #[error("layer {layer} does not exist; the model has {layers}")]
    NoSuchLayer { layer: usize, layers: usize },
    #[error("layer {layer} must grow by {expected} rows in this step, found {found}")]
    Growth {
        layer: usize,
        expected: usize,
        found: usize,
    },
    #[error("layer {layer} was given {found} values for {rows} rows, expected {expected}")]
    Shape {
        layer: usize,
        rows: usize,
        expected: usize,
        found: usize,
    },
    #[error("layer {layer} was written and not settled before the next one")]
    Unsettled { layer: usize },
    #[error("cannot cut back to position {asked}: the sequence stands at {position}")]
    Truncate { asked: u64, position: u64 },
    /// What the sequence held at `asked` is not kept in the form it had; from `oldest` on it is.
    #[error("position {asked} cannot be restored any more; the oldest that can is {oldest}")]
    Gone { asked: u64, oldest: u64 },
    #[error("the plan was made at position {planned}, the sequence stands at {position}")]
    StalePlan { planned: u64, position: u64 },
    #[error("the plan drops positions {start} to {end}, which is not the end of whole blocks")]
    BadPlan { start: u64, end: u64 },
}
