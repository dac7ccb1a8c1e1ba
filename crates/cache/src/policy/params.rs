//! Errors of policy parameters.

use std::fmt::Display;

/// Why parameters are refused: which one, its value, and what is accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParamsError(pub(super) String);

impl ParamsError {
    /// Refuses a number outside `min` to `max`. NaN is in no range.
    pub(super) fn range<T: Display + PartialOrd>(
        name: &str,
        found: T,
        (min, max): (T, T),
    ) -> Result<(), ParamsError> {
        match (&min..=&max).contains(&&found) {
            true => Ok(()),
            false => Err(ParamsError(format!(
                "{name} is {found}; accepted: {min} to {max}"
            ))),
        }
    }
}
