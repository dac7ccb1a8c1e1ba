//! Errors of policy parameters.

/// Parameters outside their accepted range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParamsError {
    #[error("{name} is {found}; accepted: {min} to {max}")]
    Range {
        name: &'static str,
        found: f32,
        min: f32,
        max: f32,
    },
    #[error("{name} is {found}; accepted: {min} to {max}")]
    Number {
        name: &'static str,
        found: u64,
        min: u64,
        max: u64,
    },
    #[error("layer border {border} is beyond the model; accepted: 0 to {layers}")]
    Border { border: usize, layers: usize },
    #[error(
        "the {first} end at layer {end} and the {second} begin at layer {start}; accepted: borders that grow"
    )]
    Order {
        first: &'static str,
        end: usize,
        second: &'static str,
        start: usize,
    },
    #[error("{name} goes from {from} to {to}; accepted: a beginning before the end")]
    Reversed {
        name: &'static str,
        from: f32,
        to: f32,
    },
}

impl ParamsError {
    /// NaN is in no range.
    pub(super) fn range(
        name: &'static str,
        found: f32,
        min: f32,
        max: f32,
    ) -> Result<(), ParamsError> {
        if (min..=max).contains(&found) {
            return Ok(());
        }
        Err(ParamsError::Range {
            name,
            found,
            min,
            max,
        })
    }

    pub(super) fn number(
        name: &'static str,
        found: u64,
        accepted: std::ops::RangeInclusive<u64>,
    ) -> Result<(), ParamsError> {
        if accepted.contains(&found) {
            return Ok(());
        }
        Err(ParamsError::Number {
            name,
            found,
            min: *accepted.start(),
            max: *accepted.end(),
        })
    }
}
