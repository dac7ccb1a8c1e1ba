//! Evaluated arguments of a call, a filter or a test, and how they meet parameter names.

use super::ast::Name;
use super::limits::{Outcome, fail};
use super::value::Value;

#[derive(Clone)]
pub(super) struct Call {
    pub positional: Vec<Value>,
    pub named: Vec<(Name, Value)>,
}

impl Call {
    /// The arguments in the order of `params`; absent ones are `None`, surplus ones an error.
    pub fn bind<const N: usize>(
        self,
        what: &str,
        params: [&str; N],
    ) -> Outcome<[Option<Value>; N]> {
        let mut bound = [const { None }; N];
        let count = self.positional.len();
        if count > N {
            return fail(format!("{what} takes at most {N} arguments, not {count}"));
        }
        for (slot, value) in bound.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            match params.iter().position(|p| **p == *name) {
                Some(at) if bound[at].is_none() => bound[at] = Some(value),
                Some(_) => return fail(format!("{what} got '{name}' twice")),
                None => return fail(format!("{what} has no argument '{name}'")),
            }
        }
        Ok(bound)
    }

    /// The only argument, which must be there.
    pub fn one(self, what: &str, param: &str) -> Outcome<Value> {
        let [value] = self.bind(what, [param])?;
        required(value, what)
    }

    pub fn none(self, what: &str) -> Outcome<()> {
        self.bind(what, []).map(|[]| ())
    }

    /// The first positional argument, leaving the others.
    pub fn shift(&mut self) -> Option<Value> {
        (!self.positional.is_empty()).then(|| self.positional.remove(0))
    }
}

/// An argument that must be there.
pub fn required(value: Option<Value>, what: &str) -> Outcome<Value> {
    match value {
        Some(value) => Ok(value),
        None => fail(format!("{what} misses an argument")),
    }
}

/// How often, or `usize::MAX` where nothing is said.
pub fn count(value: Option<Value>, what: &str) -> Outcome<usize> {
    let Some(value) = value else {
        return Ok(usize::MAX);
    };
    Ok(usize::try_from(value.int_arg(what)?).unwrap_or(usize::MAX))
}

/// Whether a flag was given and holds.
pub fn flag(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.truth())
}
