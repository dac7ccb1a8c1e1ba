//! Evaluated arguments of a call, a filter or a test, and how they meet parameter names.

use super::ast::Name;
use super::limits::{Outcome, fail};
use super::value::Value;

#[derive(Default)]
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
        if self.positional.len() > N {
            return fail(format!(
                "{what} takes at most {N} arguments, not {}",
                self.positional.len()
            ));
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

    pub fn none(self, what: &str) -> Outcome<()> {
        self.bind(what, []).map(|[]| ())
    }

    /// The first positional argument, leaving the others.
    pub fn shift(&mut self) -> Option<Value> {
        if self.positional.is_empty() {
            None
        } else {
            Some(self.positional.remove(0))
        }
    }
}

/// An argument that must be there.
pub fn required(value: Option<Value>, what: &str) -> Outcome<Value> {
    match value {
        Some(value) => Ok(value),
        None => fail(format!("{what} misses an argument")),
    }
}
