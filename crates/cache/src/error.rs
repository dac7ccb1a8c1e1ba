//! Errors of the cache. Running out of budget is an answer ([`CannotFit`]), not a fault.

/// The request does not fit the budget. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("does not fit: {short_by} bytes short of the budget of {budget_bytes} bytes")]
pub struct CannotFit {
    pub short_by: usize,
    pub budget_bytes: usize,
}

impl CannotFit {
    /// The smallest budget that would be enough.
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
    #[error("{what} is {found}; it may be at most {max}")]
    TooMany {
        what: &'static str,
        found: usize,
        max: usize,
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
    ErrorFeedback { layer: usize },
    #[error("the row of position {position} cannot be evicted from layer {layer}")]
    NotEvictable { layer: usize, position: u64 },
    /// The step was rolled back. Attention that earlier layers recorded in this step stays recorded.
    #[error("the attention of layer {layer} is not a number at position {position}")]
    NotANumber { layer: usize, position: u64 },
    #[error(
        "attention of positions {from} to {to} was recorded across a multiple of 32, where statistics decay"
    )]
    Unaligned { from: u64, to: u64 },
    #[error("the annotation {start}..{end} is empty")]
    BadSpan { start: u64, end: u64 },
    #[error("the image of a sequence has {what}")]
    BadImage { what: &'static str },
    #[error("a sequence with row statistics has no image")]
    NoImage,
    #[error(
        "positions {start} to {end} cannot be hidden: ranges must be in order, must not overlap, and must end at {position} or before"
    )]
    BadHidden { start: u64, end: u64, position: u64 },
    #[error("sequence {index} has row statistics, so its rows cannot be hidden")]
    HasRowStats { index: usize },
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
    /// Blocks near `asked` were evicted or recoded; every position from `oldest` on can be restored.
    #[error("position {asked} cannot be restored any more; the oldest that can is {oldest}")]
    NotRestorable { asked: u64, oldest: u64 },
    #[error("the plan was made at position {planned}, the sequence stands at {position}")]
    StalePlan { planned: u64, position: u64 },
    #[error("the plan drops positions {start} to {end}, which is not the end of whole blocks")]
    BadPlan { start: u64, end: u64 },
}

pub type CacheResult<T = ()> = Result<T, CacheError>;

/// Reserves room for exactly `more` elements, or says that there is no memory.
pub fn reserve_exact<T>(list: &mut Vec<T>, more: usize) -> CacheResult {
    let bytes = more.saturating_mul(size_of::<T>());
    let reserved = list.try_reserve_exact(more);
    reserved.map_err(|_| CacheError::OutOfMemory { bytes })
}

/// An empty list with room for exactly `len` elements.
pub fn with_room<T>(len: usize) -> CacheResult<Vec<T>> {
    let mut list = Vec::new();
    reserve_exact(&mut list, len)?;
    Ok(list)
}

/// `len` times the same value.
pub fn filled<T: Clone>(len: usize, value: T) -> CacheResult<Vec<T>> {
    let mut list = with_room(len)?;
    list.resize(len, value);
    Ok(list)
}

pub(crate) fn copied<T: Clone>(from: &[T]) -> CacheResult<Vec<T>> {
    let mut list = with_room(from.len())?;
    list.extend_from_slice(from);
    Ok(list)
}
