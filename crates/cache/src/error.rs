//! What can go wrong, by name. Running out of budget is an answer ([`CannotFit`]), not a fault.

/// The step does not fit the budget. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("does not fit: {short_by} bytes short of the budget of {budget_bytes} bytes")]
pub struct CannotFit {
    pub short_by: usize,
    pub budget_bytes: usize,
}

/// A broken contract between the caller and the cache. None of these leaves a partial state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    #[error(transparent)]
    CannotFit(#[from] CannotFit),
    #[error("the system refused memory for a slab of {bytes} bytes")]
    OutOfMemory { bytes: usize },
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
    #[error("cannot cut back to position {asked}: the sequence stands at {position}")]
    Truncate { asked: u64, position: u64 },
}
