//! Schemas counted with those that they refer to, each of which is counted once.

use serde_json::Value as Json;
use std::collections::HashMap;

pub struct Counter<'a> {
    root: &'a Json,
    of: CountSchema<'a>,
    /// By reference. One that is being counted has one, so that circles end.
    known: HashMap<&'a str, usize>,
}

/// What is counted of one schema.
type CountSchema<'a> = fn(&mut Counter<'a>, &'a Json) -> usize;

impl<'a> Counter<'a> {
    pub fn new(root: &'a Json, of: CountSchema<'a>) -> Counter<'a> {
        Counter {
            root,
            of,
            known: HashMap::new(),
        }
    }

    pub fn of(&mut self, schema: &'a Json) -> usize {
        (self.of)(self, schema)
    }

    /// Of the schema that a `$ref` means.
    pub fn at(&mut self, reference: &'a str) -> usize {
        if let Some(&known) = self.known.get(reference) {
            return known;
        }
        self.known.insert(reference, 1);
        let place = reference.strip_prefix('#');
        let place = place.and_then(|place| self.root.pointer(place));
        let found = place.map_or(1, |schema| self.of(schema));
        self.known.insert(reference, found);
        found
    }
}
